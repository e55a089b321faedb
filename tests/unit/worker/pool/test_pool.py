"""The warm pool's rules, with runners that are no processes."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from smore.domain.artifact import Artifact
from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause
from smore.messages.commands import ALL_REVISIONS
from smore.messages.reports import WarmState
from smore.process.settings import WorkerSettings
from tests.support.eventually import eventually
from tests.support.pool_stage import FakeRunner, Killed, Stage, lifecycle_events
from worker.artifacts.runtime import RuntimeEnvironment, RuntimeFailed, RuntimeUnavailable
from worker.device.device import CpuLoad, CpuPartition
from worker.heartbeat import STALLED_S, ConsumerWatch
from worker.pool.errors import LoadFailed, Quarantined, Unservable
from worker.runner.runner_handle import NoRunner

UPLOADED = Artifact(code="a" * 64)


def test_an_uploaded_function_is_supplied_once_and_let_go_of_with_its_instance() -> None:
    stage = Stage()
    first = stage.run("a", artifact=UPLOADED)
    assert first.instance.phases == {"process": 0.0, "fetch": 2.0, "import": 1.0}
    stage.run("a", artifact=UPLOADED)
    assert stage.supplied == ["+a"]
    stage.pool.offload("p/a", 1)
    assert stage.supplied == ["+a", "-a"]
    stage.run("b")
    assert stage.supplied == ["+a", "-a"], "a module of the platform needs nothing"


def test_what_a_cold_start_needs_is_fetched_before_the_gate_is_asked() -> None:
    stage = Stage()
    spec = FunctionSpec(entrypoint="m:C", artifact=UPLOADED)
    prepared = stage.pool.prepare("p/a", 1, spec)
    assert (stage.supplied, prepared) == (["+a", "-a"], {"fetch": 2.0})
    seat = stage.pool.acquire("p/a", 1, spec, until=stage.now, wanted=lambda: True, prepared=prepared)
    assert seat.instance.phases == {"process": 0.0, "fetch": 4.0, "import": 1.0}, "it is told as a part of the load"
    assert seat.load_us == 2000
    stage.pool.release(seat)
    stage.pool.prepare("p/a", 1, spec)
    stage.pool.prepare("p/b", 1, FunctionSpec(entrypoint="m:C"))
    assert stage.supplied == ["+a", "-a", "+a"]


def test_a_run_that_ends_while_its_memory_is_measured_is_measured_again() -> None:
    device = CpuPartition(WorkerSettings(memory_mib=300))
    held_mib = 10.0
    device.runner_memory_mib = lambda pid: look()  # type: ignore[method-assign]
    device.quick_memory_mib = lambda pid: held_mib  # type: ignore[method-assign]
    stage = Stage(device=device)
    seat = stage.acquire("a")
    running = [seat]

    def look() -> float:
        """What the runner holds; the run takes more and ends before anybody writes it down."""
        nonlocal held_mib
        seen_mib = held_mib
        if running:
            held_mib = 50.0
            stage.pool.release(running.pop())
        stage.now += 1
        return seen_mib

    stage.now += 1
    for _ in range(3):
        stage.pool.upkeep.round()
        stage.now += 60
    assert [one.memory_mib for one in stage.pool.status.warm()] == [50.0]


def test_a_function_with_requirements_is_loaded_in_its_environment() -> None:
    stage = Stage()
    assert stage.run("a", artifact=UPLOADED, requirements=("x",)).instance.runner.loaded.environment == "/environment"
    assert stage.run("b", artifact=UPLOADED).instance.runner.loaded.environment == ""


@pytest.mark.parametrize(
    ("error", "raised"), [(RuntimeFailed("no such package"), LoadFailed), (RuntimeUnavailable("gone"), Unservable)]
)
def test_what_cannot_be_supplied_leaves_its_room(error: Exception, raised: type[Exception]) -> None:
    """The instances that had to make room for it are gone, and what was theirs is free."""
    stage = Stage()
    for name in "abc":
        stage.run(name)

    def failing(function: str, spec: FunctionSpec) -> RuntimeEnvironment:
        assert stage.pool.activity.wait_idle(0), "it counts as no run"
        raise error

    stage.supply = failing
    with pytest.raises(raised, match=str(error)):
        stage.run("d", artifact=UPLOADED)
    assert (stage.warm(), stage.pool.status.memory_used_mib()) == (["b", "c"], 200.0)
    assert stage.made[0].ended.is_set()
    assert stage.run("e").cold


def test_cold_once_then_warm() -> None:
    stage = Stage()
    assert [stage.run("a").cold for _ in range(3)] == [True, False, False]
    assert len(stage.made) == 1


def test_the_least_recently_used_idle_instance_goes() -> None:
    stage = Stage()
    for name in "abca":
        stage.run(name)
    with capture_logs() as lines:
        stage.run("d")
    assert stage.warm() == ["a", "c", "d"]
    assert stage.made[1].ended.is_set()
    assert [(line["log_level"], line["event"], line["function"]) for line in lines] == [
        ("debug", "load begins", "p/d@1"),
        ("debug", "unloaded", "p/b@1"),
        ("debug", "loaded", "p/d@1"),
    ]
    assert (lines[0]["evicts"], lines[1]["why"]) == (["p/b@1"], "evicted")


def test_busy_instances_are_not_evicted() -> None:
    stage = Stage()
    seats = [stage.acquire(name) for name in "abc"]
    with pytest.raises(Unservable):
        stage.acquire("d")
    stage.pool.release(seats[0])
    assert stage.acquire("d").cold and stage.warm() == ["b", "c", "d"]


def test_nothing_is_evicted_when_it_would_not_help() -> None:
    stage = Stage()
    stage.run("a")
    held = stage.acquire("b", memory_mib=150.0)
    with pytest.raises(Unservable):
        stage.acquire("c", memory_mib=200.0)
    assert stage.warm() == ["a", "b"]
    stage.pool.release(held)


def test_what_can_never_fit_fails_and_jobs_take_room() -> None:
    stage = Stage()
    with pytest.raises(LoadFailed, match="needs 301 MiB"):
        stage.acquire("a", memory_mib=301.0)
    stage.jobs_mib = 250.0
    with pytest.raises(Unservable):
        stage.acquire("a")


def test_max_warm_bounds_the_instances() -> None:
    stage = Stage()
    first, second = (stage.acquire("a", max_warm=2) for _ in range(2))
    with pytest.raises(Unservable):
        stage.acquire("a", max_warm=2)
    stage.pool.release(first)
    assert stage.acquire("a", max_warm=2).instance is first.instance
    assert second.instance is not first.instance


def test_a_doomed_instance_goes_to_nobody() -> None:
    stage = Stage()
    seat = stage.acquire("a")
    stage.pool.retire(seat)
    stage.pool.release(seat)
    assert stage.warm() == [] and stage.made[0].ended.is_set()
    assert stage.acquire("a").cold


def test_what_is_gone_leaves_with_all_revisions_and_behind_its_run() -> None:
    stage = Stage(memory_mib=600)
    spec = FunctionSpec(entrypoint="m:C", memory_mib=100.0)
    busy = stage.acquire("a")
    for function, revision in (("p/a", 2), ("p/a", 3), ("p/b", 1)):
        stage.pool.release(stage.pool.acquire(function, revision, spec, until=stage.now, wanted=lambda: True))
    stage.pool.offload("p/a", 3, gone=True)
    assert stage.warm() == ["a", "a", "b"]
    stage.pool.offload("p/a", ALL_REVISIONS)
    assert stage.warm() == ["a", "b"], "one is at work, and stays for who comes next"
    stage.pool.offload("p/a", ALL_REVISIONS, gone=True)
    assert not busy.runner.ended.is_set()
    stage.pool.release(busy)
    assert stage.warm() == ["b"] and busy.runner.ended.is_set()
    assert {event.why for event in lifecycle_events(stage).values() if event.ended_us} == {"offload"}


def test_a_load_that_a_call_waits_for_is_gone_behind_the_call() -> None:
    stage = Stage()
    stage.fork = lambda: offloading(stage)
    seat = stage.acquire("a")
    assert seat.cold and not seat.runner.ended.is_set()
    stage.pool.release(seat)
    assert stage.warm() == [] and seat.runner.ended.is_set()


def offloading(stage: Stage) -> FakeRunner:
    """A runner during whose load its function is deleted."""

    class Runner(FakeRunner):
        def load(self, *request: Any) -> Any:
            stage.pool.offload("p/a", ALL_REVISIONS, gone=True)
            return super().load(*request)

    return Runner(1)


def test_who_waits_for_a_load_gets_it_and_was_cold() -> None:
    stage = Stage()
    gate = threading.Event()

    def slow() -> FakeRunner:
        runner = stage._fork()
        runner.gate = gate
        return runner

    stage.fork = slow
    stage.pool.prewarm("p/a", 1, FunctionSpec(entrypoint="m:C", memory_mib=100.0))
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(stage.acquire("a", wait_s=1e9)))
    waiter.start()
    gate.set()
    waiter.join(5)
    assert found[0].instance.state is WarmState.BUSY and len(stage.made) == 1


def test_a_load_without_a_zygote_leaves_nothing_behind() -> None:
    stage = Stage()

    def none() -> FakeRunner:
        raise NoRunner("gone")

    stage.fork = none
    with pytest.raises(Unservable):
        stage.acquire("a")
    assert stage.warm() == [] and stage.pool.status.memory_used_mib() == 0
    assert not stage.pool.activity.overlaps(0, 1e12) or stage.pool.activity.wait_idle(0)


def test_an_idle_runner_that_ends_leaves_the_pool() -> None:
    stage = Stage()
    stage.run("a")
    stage.made[0].ended.set()
    stage.pool.exited(stage.made[0])  # type: ignore[arg-type]
    assert stage.warm() == []


def test_a_cpu_partitions_utilisation_is_of_its_share() -> None:
    device = CpuPartition(WorkerSettings(share=0.5, device="0"))

    def load(at: float, functions_s: float, jobs_s: float) -> CpuLoad:
        return CpuLoad(at=at, functions_cpu_s=functions_s, jobs_cpu_s=jobs_s, runners=())

    assert device.utilisation(load(10, 5, 5)).total == 0
    found = device.utilisation(load(12, 5.2, 5.3))
    assert (round(found.functions, 3), round(found.total, 3)) == (0.2, 0.5)
    assert device.utilisation(load(13, 7, 5.3)).total == 1, "beyond its share is reported as 1"


def test_ears() -> None:
    watch = ConsumerWatch()

    def stalled(now: float, waiting: int = 1, free: int = 1, consumed_at: float = 0.0) -> bool:
        return watch.stalled(now=now, waiting=waiting, free=free, consumed_at=consumed_at)

    assert not stalled(10) and not stalled(12) and stalled(10 + STALLED_S)
    assert not stalled(16, consumed_at=15.5), "it has heard one"
    assert not stalled(17, free=0) and not stalled(30), "a full worker need not listen"
    assert not stalled(31, waiting=0) and not stalled(36)
    watch.reset()
    assert not stalled(41) and not stalled(45) and stalled(46)


class Measured:
    """A CPU partition whose figures are the test's."""

    handler_device = "cpu"
    memory_total_mib = 300.0

    def __init__(self) -> None:
        self.held: dict[int, float] = {}
        self.free = 10_000.0
        #: What is wrong with it, and what its next look finds.
        self.wrong = self.comes = ""

    def process_memory_mib(self, pid: int) -> float | None:
        return self.held.get(pid)

    quick_memory_mib = runner_memory_mib = process_memory_mib

    def free_mib(self) -> float | None:
        return self.free

    def health(self) -> str:
        return self.wrong

    def refresh(self) -> None:
        self.wrong = self.wrong or self.comes


class Training(Stage):
    """A pool beside a job that is owed memory; every instance holds 60 MiB of its 100 unless told otherwise."""

    def __init__(self) -> None:
        self.device = Measured()
        self.told: list[tuple[str, str]] = []
        self.changes: list[float] = []
        super().__init__(
            device=self.device,
            beyond_mib=50.0,
            faulted=lambda function, revision, culprit, cause: self.told.append((function, cause.value)),
            changed=lambda: self.changes.append(self.now),
        )

    def _fork(self) -> FakeRunner:
        self.made.append(Killed(len(self.made) + 1))
        self.device.held[len(self.made)] = 60.0
        return self.made[-1]

    def relieve(self) -> list[str]:
        return [one.function[2:] for one in self.pool.relieve()]


def test_training_gets_its_memory_from_idle_functions_first() -> None:
    stage = Training()
    for name in "ab":
        stage.run(name)
    busy = stage.acquire("c")
    assert stage.relieve() == []
    # 300 - 180 held by functions - 100 by the job: 20 are free, and it is owed 50 more.
    stage.jobs_mib, stage.owed_mib = 150.0, 50.0
    assert stage.relieve() == ["a"] and stage.made[0].ended.is_set()
    assert not busy.instance.evicted
    assert stage.relieve() == [], "that was enough"


def test_a_look_that_changes_nothing_asks_for_no_report() -> None:
    stage = Training()
    stage.run("a")
    del stage.changes[:]
    # Every heartbeat looks. If the look asked for the next heartbeat they would follow each other without a pause.
    assert stage.relieve() == [] and stage.changes == []
    stage.jobs_mib, stage.owed_mib = 250.0, 50.0
    assert stage.relieve() == ["a"] and stage.changes


def test_then_from_running_ones() -> None:
    stage = Training()
    stage.run("a")
    modest, greedy = stage.acquire("b"), stage.acquire("c")
    stage.device.held[3] = 140.0
    stage.jobs_mib, stage.owed_mib = 150.0, 100.0
    assert stage.relieve() == ["a", "c"], "the one furthest above what it declared"
    assert greedy.instance.evicted is Cause.WORKER_BUSY and not modest.instance.evicted


@pytest.mark.parametrize("wanted", [True, False])
def test_the_standby_runner_counts_and_can_be_switched_off(wanted: bool) -> None:
    stage = Training()
    stage.pool._standby.wanted = wanted
    stage.run("a", keep_alive_s=5.0)
    stage.pool.start()
    try:
        # The keeper's work in one round: first what has waited long enough goes, then a standby runner comes.
        stage.now += 10
        eventually(lambda: not stage.pool.status.warm(), what="the end of what idles")
        eventually(lambda: stage.pool.status.memory_used_mib() == (60.0 if wanted else 0.0), what="its memory")
    finally:
        stage.pool.close()
    assert len(stage.made) == 1 + wanted


def test_the_standby_runner_goes_before_what_works() -> None:
    stage = Training()
    seat, standby = stage.acquire("a"), Killed(99)
    stage.pool._standby.runner, stage.pool._standby.memory_mib = standby, 60.0  # type: ignore[assignment]
    # 300 - 60 - 60 - 100 are free: 80, and the job is owed 120.
    stage.jobs_mib, stage.owed_mib = 220.0, 120.0
    assert stage.relieve() == [] and standby.ended.is_set() and not seat.instance.evicted
    assert stage.pool.status.memory_used_mib() == 100.0
    stage.jobs_mib, stage.owed_mib = 260.0, 160.0
    assert stage.relieve() == ["a"]


def test_what_somebody_else_takes_of_the_machine_counts() -> None:
    stage = Training()
    seat = stage.acquire("a")
    stage.jobs_mib, stage.owed_mib = 110.0, 10.0
    assert stage.relieve() == []
    stage.device.free = 5.0
    assert stage.relieve() == ["a"] and seat.instance.evicted is Cause.WORKER_BUSY


def test_without_training_nobody_is_disturbed() -> None:
    stage = Training()
    stage.run("a")
    stage.acquire("b")
    stage.device.held |= {1: 120.0, 2: 149.0}
    stage.device.memory_total_mib = 250.0
    assert stage.relieve() == ["a"]


def test_who_takes_more_than_it_may_goes_at_once() -> None:
    stage = Training()
    stage.run("a")
    stage.acquire("b")
    stage.device.held[2] = 151.0
    assert stage.relieve() == ["b"]
    assert stage.relieve() == []
    seat = stage.acquire("c")
    seat.runner.spent = True
    assert stage.relieve() == ["c"], "the kernel has ended a child of its for want of memory"
    assert seat.instance.evicted is Cause.OUT_OF_MEMORY


@pytest.mark.parametrize(("status", "told"), [(-11, True), (-6, True), (-9, False), (3, False)])
def test_only_what_a_function_did_itself_counts_everywhere(status: int, told: bool) -> None:
    """An operator's kill -9 of a runner, or its exit, says nothing about the device."""
    stage = Training()
    seat = stage.acquire("a")
    seat.runner.status = status
    stage.pool.crashed(seat, "i1", Cause.CRASHED)
    assert bool(stage.told) is told


def test_what_is_shut_out_everywhere_is_refused_until_it_is_lifted() -> None:
    stage = Training()
    stage.pool.quarantine_everywhere([("p/a", 1)])
    assert stage.pool.status.quarantined() == ["p/a@1"]
    with pytest.raises(Quarantined, match="everywhere"):
        stage.acquire("a")
    stage.pool.quarantine_everywhere([])
    assert stage.acquire("a").cold


def test_runs_that_are_held_are_idle_until_they_go_on() -> None:
    stage = Stage()
    said: list[tuple[str, int]] = []

    class Held(FakeRunner):
        def hold(self) -> None:
            said.append(("hold", self.pid))

        def stands(self, until: float) -> bool:
            return True

        def go_on(self) -> None:
            said.append(("go on", self.pid))

    runners = iter([Held(1), Held(2), Held(3)])
    stage.fork = lambda: next(runners)
    stage.run("idle")
    ending, going_on = stage.acquire("a"), stage.acquire("b")
    stage.pool.held.hold()
    assert said == [("hold", 2), ("hold", 3)], "nobody is at work in the first"
    assert stage.pool.activity.wait_idle(0)
    stage.pool.release(ending, healthy=False)
    assert stage.pool.activity.wait_idle(0), "the end of one does not count twice"
    stage.pool.held.go_on()
    assert said[2:] == [("go on", 2), ("go on", 3)] and not stage.pool.activity.wait_idle(0)
    stage.pool.release(going_on)
    assert stage.pool.activity.wait_idle(0)
    stage.pool.held.hold()
    stage.pool.held.go_on()
    assert len(said) == 4


def test_a_run_that_is_not_stopped_is_at_work() -> None:
    stage = Stage()
    stage.fork = lambda: SimpleNamespace(
        **vars(FakeRunner(1)), load=FakeRunner(1).load, hold=list, go_on=list, stands=lambda _: False
    )
    seat = stage.acquire("a")
    stage.pool.held.hold()
    assert not stage.pool.activity.wait_idle(0)
    stage.pool.held.go_on()
    stage.pool.release(seat)
    assert stage.pool.activity.wait_idle(0)
