"""
The events of instances: the outcomes of prewarms, busy and idle seconds, and nothing that is lost on the way.
"""

import pytest

from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.messages import stream
from tests.support.eventually import eventually
from tests.support.pool_stage import Stage, lifecycle_events, prewarm
from worker.frames import Loaded
from worker.runner.runner_handle import RunnerFailed


def after_upkeep(stage: Stage) -> list[str]:
    """The functions that are warm after a round."""
    stage.pool.upkeep.round()
    return stage.warm()


def only(stage: Stage) -> stream.Warmed:
    (event,) = lifecycle_events(stage).values()
    return event


def test_a_hit_was_ready_before_its_first_use() -> None:
    stage = Stage()
    prewarm(stage, "a")
    assert (only(stage).outcome, lifecycle_events(stage)) == ("open", {})
    stage.now += 7.0
    assert not stage.run("a").cold
    event = only(stage)
    assert (event.outcome, event.uses, event.saved, event.why) == ("hit", 1, 1, "")
    assert (event.idle_us, event.busy_us) == (7_000_000, 1_000_000)


def test_one_that_nobody_used_was_wasted() -> None:
    stage = Stage()
    prewarm(stage, "a")
    stage.now += 5.0
    stage.pool.offload("p/a", 1)
    event = only(stage)
    assert (event.outcome, event.why, event.idle_us, event.uses) == ("wasted", "offload", 5_000_000, 0)
    assert lifecycle_events(stage) == {}


def test_a_request_that_waits_for_the_load_makes_it_late() -> None:
    stage = Stage()
    runner = stage._fork()
    runner.gate.clear()
    stage.fork = lambda: runner
    stage.pool.prewarm("p/a", 1, FunctionSpec(entrypoint="m:C"))
    waited = []

    def wanted() -> bool:
        waited.append(True)
        runner.gate.set()
        return True

    seat = stage.pool.acquire("p/a", 1, FunctionSpec(entrypoint="m:C"), until=stage.now + 10, wanted=wanted)
    assert (seat.cold, only(stage).outcome) == (True, "late")


def test_a_request_that_asks_for_it_is_a_cold_start() -> None:
    stage = Stage()
    stage.run("a")
    assert (only(stage).outcome, stage.run("a").cold) == ("cold", False)


def test_a_load_that_fails_is_told_and_leaves_nothing() -> None:
    stage = Stage()

    def load(request: object, timeout_s: float) -> Loaded:
        raise RunnerFailed(Cause.LOAD_FAILED, "no weights")

    runner = stage._fork()
    runner.load = load  # type: ignore[method-assign]
    stage.fork = lambda: runner
    prewarm(stage, "a", hold_s=60.0)
    event = eventually(lambda: next((e for e in lifecycle_events(stage).values() if e.ended_us), None), what="the end")
    assert (event.outcome, event.why, event.ready_us) == ("failed", "failed", 0)
    assert stage.warm() == []
    assert stage.pool.status.memory_used_mib() == 0


def test_an_offload_in_mid_load_leaves_nothing() -> None:
    stage = Stage()
    runner = stage._fork()
    runner.gate.clear()
    stage.fork = lambda: runner
    stage.pool.prewarm("p/a", 1, FunctionSpec(entrypoint="m:C"), hold_s=60.0)
    stage.pool.offload("p/a", 1)
    assert stage.warm() == []
    runner.gate.set()
    event = eventually(lambda: next((e for e in lifecycle_events(stage).values() if e.ended_us), None), what="the end")
    assert (event.outcome, event.why, runner.ended.is_set()) == ("wasted", "offload", True)


def test_what_is_held_outlives_its_keep_alive_until_its_time() -> None:
    stage = Stage()
    prewarm(stage, "a", hold_s=30.0, keep_alive_s=5.0)
    stage.now += 29.0
    assert after_upkeep(stage) == ["a"]
    assert not stage.run("a", keep_alive_s=5.0).cold
    assert only(stage).saved == 1
    stage.now += 4.0
    assert after_upkeep(stage) == ["a"], "the hold is over, the keep-alive is not"
    stage.now += 2.0
    assert after_upkeep(stage) == []


def test_a_use_after_the_keep_alive_was_saved_by_the_hold() -> None:
    stage = Stage()
    stage.run("a", keep_alive_s=5.0)
    prewarm(stage, "a", hold_s=30.0, keep_alive_s=5.0)
    stage.now += 20.0
    stage.run("a", keep_alive_s=5.0)
    stage.run("a", keep_alive_s=5.0)
    assert len(stage.made) == 1
    assert (only(stage).saved, only_uses(stage)) == (1, 3)


def only_uses(stage: Stage) -> int:
    (instance,) = stage.pool._residents
    return instance.lifecycle.uses


def test_room_for_one_ahead_is_made_of_what_nobody_holds() -> None:
    stage = Stage(300)
    prewarm(stage, "a", hold_s=60.0)
    stage.now += 1
    stage.run("b")
    stage.now += 1
    seat = stage.acquire("c")
    prewarm(stage, "d")
    assert stage.warm() == ["a", "c", "d"]
    prewarm(stage, "e", hold_s=60.0)
    assert stage.warm() == ["a", "c", "e"]
    prewarm(stage, "f")  # the others are held or busy
    assert stage.warm() == ["a", "c", "e"]
    # A request comes before a hold.
    stage.acquire("g")
    assert stage.warm() == ["c", "e", "g"]
    stage.pool.release(seat)


def test_several_are_held_and_the_rest_goes() -> None:
    stage = Stage(500)
    prewarm(stage, "a", 3, 60.0, max_warm=4)
    assert stage.warm() == ["a"] * 3
    stage.pool.offload("p/a", 1, keep=1)
    assert stage.warm() == ["a"]
    stage.now += 50.0
    assert after_upkeep(stage) == ["a"]


def test_reports_say_which_are_held() -> None:
    stage = Stage(500)
    prewarm(stage, "a", 2, 60.0, max_warm=4)
    stage.run("b")
    seats = [stage.acquire("a", max_warm=4) for _ in range(3)]
    stage.pool.release(seats.pop())
    told = sorted((one.function, one.state.value, one.held) for one in stage.pool.status.warm())
    assert told == [("p/a", "busy", True), ("p/a", "busy", True), ("p/a", "idle", False), ("p/b", "idle", False)]


def test_what_the_stream_did_not_take_is_offered_again() -> None:
    stage = Stage()
    prewarm(stage, "a")
    first = stage.pool.status.lifecycle_events()
    assert [event.id for event in stage.pool.status.lifecycle_events()] == [event.id for event in first]
    stage.run("a")
    stage.pool.status.acknowledge(stage.pool.status.lifecycle_events())
    assert stage.pool.status.lifecycle_events() == []
    stage.now += 60.0
    assert [event.outcome for event in stage.pool.status.lifecycle_events()] == ["hit"]


@pytest.mark.parametrize("hold_s", [0.0, 30.0])
def test_nothing_is_loaded_twice(hold_s: float) -> None:
    stage = Stage()
    for _ in range(3):
        prewarm(stage, "a", hold_s=hold_s)
    assert stage.warm() == ["a"]
