"""
Instances in host memory, as the policy sees them: their return is awaited in place of a cold start, by a hold and by a
deadline.
"""

import math
from typing import Any

import pytest

from scheduler.policy import kernel
from scheduler.policy.decisions import Dispatch, Offload, Prewarm, Refusal
from scheduler.policy.events import (
    FunctionRemoved,
    GpuReported,
    InstanceReported,
    InvocationArrived,
    InvocationSettled,
    PausesChanged,
)
from scheduler.policy.knobs import preset
from scheduler.policy.prewarm.window import WarmWindow
from tests.support.driven import DrivenEngine
from tests.support.policy_events import arrived, function
from tests.support.prewarm_stage import Stage, T, kinds, report, served, standing

#: A load takes 1 s (test_policy_engine.function), a return out of host memory this.
HOST_S = 0.1


def returned(seconds: float = HOST_S) -> InstanceReported:
    return InstanceReported(function="p/f0", revision=1, gpu="a", load_s=seconds, host=True)


def holding(name: str, at: float, *until: float, **fields: Any) -> GpuReported:
    """A GPU instance where instances of f0 are parked, each until then."""
    return report(name, at, parked=[("p/f0", 1, one) for one in until], **fields)


@pytest.fixture
def stage() -> Stage:
    """
    One function whose return out of host memory was measured, and two empty GPU instances, the first of which weighs
    less.
    """
    made = Stage()
    made.at(T, function(0), served(), report("a", T), report("b", T, training=0), returned())
    return made


# ---- the keeper ------------------------------------------------------------------------------------------------------


def test_a_hold_waits_for_a_return_where_one_is_parked_and_for_a_cold_start_where_none_is(stage: Stage) -> None:
    stage.at(T, holding("b", T, T + 600, training=0))
    assert stage.hold(T, WarmWindow(from_at=T + 10, until_at=T + 20)) == []
    assert stage.prewarmer.next_at == pytest.approx(T + 10 - HOST_S - 1)
    # It is gone: what a cold start needs is needed now.
    stage.at(T + 1, report("b", T + 1, training=0))
    assert stage.prewarmer.next_at == pytest.approx(T + 8)


def test_it_comes_back_where_it_is_parked(stage: Stage) -> None:
    stage.at(T, holding("b", T, T + 600, training=0))
    stage.hold(T, WarmWindow(from_at=T + 10, until_at=T + 20))
    assert stage.at(T + 8.8) == []
    assert kinds(stage.at(T + 8.9)) == [("prewarm", "b", 1)]


@pytest.mark.parametrize(
    ("instances", "until", "lead_s"),
    [
        (1, (T + 600,), HOST_S),
        (1, (T + 9,), 1.0),
        (2, (T + 600,), 1.0),
        (2, (T + 600, T + 600), HOST_S),
        (2, (T + 600, T + 9), 1.0),
    ],
)
def test_the_lead_is_the_longest_that_a_hold_needs(
    stage: Stage, instances: int, until: tuple[float, ...], lead_s: float
) -> None:
    """A cold start where more are held than are parked, or where one will have gone by then."""
    stage.at(T, holding("b", T, *until, training=0))
    stage.hold(T, WarmWindow(from_at=T + 10, until_at=T + 20, instances=instances))
    assert stage.prewarmer.next_at == pytest.approx(T + 10 - lead_s - 1)


def test_what_is_parked_where_nothing_may_be_loaded_is_not_waited_for(stage: Stage) -> None:
    stage.at(T, holding("b", T, T + 600, training=0), PausesChanged(paused=frozenset({"g:b"})))
    stage.hold(T, WarmWindow(from_at=T + 10, until_at=T + 20))
    assert stage.prewarmer.next_at == pytest.approx(T + 8)


def test_more_than_is_parked_is_loaded_anew_elsewhere(stage: Stage) -> None:
    stage.at(T, holding("b", T, T + 600, training=0))
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=math.inf, instances=2))) == [
        ("prewarm", "b", 1),
        ("prewarm", "a", 1),
    ]


def test_a_return_says_nothing_of_a_cold_start(stage: Stage) -> None:
    stage.at(T + 1, holding("b", T + 1, T + 600, T + 600, training=0), returned(0.2))
    found = standing(stage)
    assert (found.parked, found.load_s) == (2, 1.0)  # type: ignore[attr-defined]
    assert found.host_s == pytest.approx(HOST_S + 0.3 * (0.2 - HOST_S))  # type: ignore[attr-defined]
    stage.at(T + 2, report("b", T + 2, training=0))
    assert standing(stage).parked == 0  # type: ignore[attr-defined]


def test_a_deleted_function_leaves_host_memory_too(stage: Stage) -> None:
    stage.at(T, holding("b", T, T + 600, training=0))
    assert stage.at(T + 1, FunctionRemoved(function="p/f0")) == [
        Offload(function="p/f0", revision=1, gpu="b", gone=True)
    ]


def test_a_drained_gpu_instance_gives_back_what_is_parked(stage: Stage) -> None:
    stage.at(T, PausesChanged(paused=frozenset({"-g:b"})))
    decisions = stage.at(T + 1, holding("b", T + 1, T + 600, T + 600, training=0))
    assert decisions == [Offload(function="p/f0", revision=1, gpu="b", gone=True)]


# ---- the engine ------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> DrivenEngine:
    """One of f0 is parked on b, where a run costs more than on a."""
    made = DrivenEngine(preset("smore-product"))
    made.decide(T, [function(0), report("a", T), holding("b", T, T + 600, training=0)])
    return made


def in_(engine: DrivenEngine, within: float, id_: str = "1", at: float = T) -> list[Dispatch | Prewarm]:
    """What becomes of an invocation that must end ``within`` seconds."""
    arrival = arrived(0, id_, at=at, within=within)
    return [one for one in engine.decide(at, [arrival]) if isinstance(one, (Dispatch, Prewarm))]


def test_a_deadline_that_no_cold_start_meets_is_met_out_of_host_memory(engine: DrivenEngine) -> None:
    # Before a return was measured it counts as a cold start.
    (asked,) = in_(engine, 0.5)
    assert isinstance(asked, Prewarm)
    assert engine.decide(T + 1, [])[0].action == "expire"  # type: ignore[union-attr]
    assert engine.bounds(T + 1, "p/f0", 1).backlog_s == pytest.approx(1.0 + 1.05 * 0.01)  # type: ignore[union-attr]
    engine.decide(T + 1, [returned()])
    assert engine.bounds(T + 1, "p/f0", 1).backlog_s == pytest.approx(HOST_S + 1.05 * 0.01)  # type: ignore[union-attr]
    (dispatch,) = in_(engine, 0.5, "2", T + 1)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.gpu, dispatch.cold) == ("b", True)
    chosen, other = dispatch.reasons.candidates
    assert (chosen.gpu, chosen.warm, chosen.delay_s) == ("b", False, HOST_S)
    assert (other.gpu, other.delay_s) == ("a", 1.0)
    assert chosen.finish_at is not None and other.finish_at is not None
    assert chosen.finish_at < T + 1.5 < other.finish_at


def test_what_is_parked_goes_before_a_cold_start_that_weighs_less_and_after_what_is_warm(engine: DrivenEngine) -> None:
    engine.decide(T, [function(0, run_s=5.0), returned()])
    (first,) = in_(engine, 30.0)
    (second,) = in_(engine, 30.0, "2", T + 1)
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    # One was parked, and the first is on its way to it: the second is a cold start, which is sooner than the end of the
    # first.
    assert (first.gpu, second.gpu) == ("b", "a")
    engine.decide(T + 2, [InvocationSettled(id="1", attempt=1), InvocationSettled(id="2", attempt=1)])
    engine.decide(T + 2, [report("a", T + 2, 1), holding("b", T + 2, T + 600, training=0)])
    (third,) = in_(engine, 30.0, "3", T + 2)
    assert isinstance(third, Dispatch)
    assert (third.gpu, third.cold) == ("a", False)


def test_a_gpu_instance_that_falls_silent_has_nothing_parked(engine: DrivenEngine) -> None:
    assert engine.cluster.host(0).tolist() == [False, True]
    engine.cluster.lose("b")
    engine.cluster.report(report("b", T + 1, training=0))
    assert engine.cluster.cell(kernel.PARKED)[:, 0].tolist() == [0, 0]
    assert engine.cluster.host(0).tolist() == [False, False]


def test_an_answer_to_a_question_knows_of_the_return(engine: DrivenEngine) -> None:
    engine.decide(T, [returned()])
    answer = engine.ask(T, "p/f0", 1, 1, T + 0.5)
    assert answer is not None
    assert (answer.row_gpu, answer.cold, answer.start_at) == ("b", True, pytest.approx(T + HOST_S))


def test_waiting_for_a_busy_instance_is_weighed_against_the_return(engine: DrivenEngine) -> None:
    """A busy one is free in half a second: sooner than a cold start, not sooner than a return."""
    engine.decide(T, [returned(), function(0, run_s=0.5, max_warm=1), report("b", T, 1, training=0)])
    assert [type(one) for one in in_(engine, 30.0)] == [Dispatch]
    arrival = InvocationArrived(function="p/f0", revision=1, id="2", attempt=0, arrival_at=T, deadline_at=T + 30.0)
    assert [one for one in engine.decide(T, [arrival]) if isinstance(one, Dispatch)] == []
    (dispatch,) = (one for one in engine.decide(T, [holding("a", T, T + 600)]) if isinstance(one, Dispatch))
    assert dispatch.gpu == "a"


def test_a_measured_cold_start_is_expected_of_the_next_one_and_a_warm_instance_awaited_where_it_is_sooner(
    engine: DrivenEngine,
) -> None:
    engine.decide(T, [function(0, run_s=2.0, max_warm=1), report("b", T, 1, training=0), report("a", T, 0, training=0)])
    assert [type(one) for one in in_(engine, 30.0)] == [Dispatch]
    before = engine.ask(T, "p/f0", 1, 1, T + 30.0)
    assert before is not None and (before.row_gpu, before.cold) == ("a", True), "a cold start takes 1 s"
    engine.decide(T, [InstanceReported(function="p/f0", revision=1, gpu="a", load_s=11.0)])
    after = engine.ask(T, "p/f0", 1, 1, T + 30.0)
    assert after is not None and after.row_gpu is None and Refusal.DEADLINE not in after.reasons.refused, "4 s by now"
