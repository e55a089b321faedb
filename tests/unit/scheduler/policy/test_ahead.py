"""Batches that are sent before the run ahead of them has ended, so that an instance has its next one at hand."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler.policy import kernel
from scheduler.policy.decisions import Dispatch
from scheduler.policy.events import Event, GpuLost, InvocationArrived, InvocationHeld, InvocationSettled
from scheduler.policy.knobs import preset
from scheduler.policy.placement import OVERDUE_S
from scheduler.policy.setting import UnknownPolicy
from tests.support.driven import DrivenEngine
from tests.support.policy_events import NOW, arrived, batched, function, gpu, known, own, placed

AHEAD_S = 0.005
GUARDED = 1.05


def engine(ahead_s: float = AHEAD_S) -> DrivenEngine:
    return DrivenEngine(preset("smore-product", ahead_s=ahead_s))


def busy(run_s: float = 0.1) -> DrivenEngine:
    """One instance, at work since now."""
    made = engine()
    first: list[Event] = [function(0, run_s=run_s, degradation=0.0), gpu("a", None, warm=1), arrived(0, "1")]
    assert placed(made.decide(NOW, first)) == [("1", "a")]
    return made


def ended(id_: str, attempt: int = 1) -> InvocationSettled:
    return InvocationSettled(id=id_, attempt=attempt, run_s=0.1, batch_rows=1)


def returned(id_: str, attempt: int = 1) -> InvocationArrived:
    return replace(arrived(0, id_), attempt=attempt)


def test_the_next_one_goes_shortly_before_the_run_is_expected_to_end() -> None:
    policy, free_at = busy(), NOW + GUARDED * 0.1
    assert placed(policy.decide(NOW, [arrived(0, "2"), arrived(0, "3")])) == []
    assert policy.wake_at == pytest.approx(free_at - AHEAD_S)
    (dispatch,) = policy.decide(policy.wake_at + 1e-6, [])
    assert isinstance(dispatch, Dispatch) and (dispatch.attempts, dispatch.cold) == ([("2", 0)], False)
    assert dispatch.ahead_s == pytest.approx(AHEAD_S + GUARDED * 0.1 / 2, abs=1e-5), (
        "until the run is well behind its time"
    )
    (chosen,) = dispatch.reasons.candidates
    assert (chosen.gpu, chosen.warm, chosen.refusal) == ("a", True, None)
    assert chosen.finish_at == pytest.approx(free_at + GUARDED * 0.1), "behind the one that runs"
    # One for each revision and GPU instance, and it takes nothing yet.
    assert policy.decide(free_at, []) == [] and policy.wake_at > free_at + 1
    assert (policy.cluster.used[0], policy.cluster.outstanding[0, 0], policy.cluster.differing()) == (1, 1, 0)
    assert policy.decide(free_at + 0.01, [ended("1")]) == []
    assert (policy.cluster.used[0], policy.cluster.cell(kernel.FREE_AT)[0, 0]) == (
        1,
        pytest.approx(free_at + 0.01 + GUARDED * 0.1),
    )
    assert policy.wake_at == pytest.approx(free_at + 0.01 + GUARDED * 0.1 - AHEAD_S)
    assert placed(policy.decide(policy.wake_at + 1e-6, [])) == [("3", "a")]


def test_behind_a_short_run_it_goes_at_once_and_waits_for_a_while() -> None:
    (dispatch,) = busy(0.003).decide(NOW, [arrived(0, "2")])
    assert isinstance(dispatch, Dispatch)
    assert dispatch.ahead_s == pytest.approx(GUARDED * 0.003 + OVERDUE_S)


def test_no_preset_sends_ahead() -> None:
    for ahead_s in (-0.001, 0.2):
        with pytest.raises(UnknownPolicy, match="ahead_s"):
            preset("smore-product", ahead_s=ahead_s)
    policy = engine(0.0)
    policy.decide(NOW, [function(0, run_s=0.003), gpu("a", None, warm=1), arrived(0, "1")])
    assert policy.decide(NOW, [arrived(0, "2")]) == [] and policy.wake_at > NOW + 1


def test_nothing_is_sent_behind_runs_so_short_that_it_would_cost_more_than_it_brings() -> None:
    assert placed(busy(0.0009).decide(NOW, [arrived(0, "2")])) == []


def test_an_idle_instance_goes_first_and_a_loading_one_is_none_at_work() -> None:
    policy = busy(0.003)
    assert placed(policy.decide(NOW, [gpu("b", None, warm=1), arrived(0, "2")])) == [("2", "b")]
    policy = busy(0.003)
    loads = gpu("a", None, warm=1, loading=[("p/f0", 1, 1)])
    assert placed(policy.decide(NOW, [loads, arrived(0, "2")])) == []


@pytest.mark.parametrize(
    ("report", "within", "why"),
    [
        ({"closed": True, "jobs": 1}, 5.0, "its gate is shut"),
        ({"unregistered": 1}, 5.0, "protected"),
        ({"quarantined": ["p/f0@1"]}, 5.0, "kept out"),
        ({}, 0.005, "it would end behind its deadline"),
    ],
)
def test_what_could_not_run_there_then_is_not_sent(report: dict[str, Any], within: float, why: str) -> None:
    policy = busy(0.003)
    assert placed(policy.decide(NOW, [gpu("a", None, warm=1, **report), arrived(0, "2", within=within)])) == [], why


def test_nothing_waits_for_a_run_that_does_not_end() -> None:
    policy = busy(0.003)
    assert placed(policy.decide(NOW + GUARDED * 0.003 + OVERDUE_S + 0.001, [arrived(0, "2")])) == []


def test_a_batch_that_is_not_full_may_fill() -> None:
    policy = engine()
    policy.decide(NOW, [batched(0, {1: 0.003, 8: 0.003}), gpu("a", None, warm=1), arrived(0, "1")])
    assert policy.decide(NOW, [arrived(0, str(number)) for number in range(2, 9)]) == []
    (dispatch,) = policy.decide(NOW, [arrived(0, "9")])
    assert isinstance(dispatch, Dispatch) and len(dispatch.attempts) == 8 and dispatch.ahead_s


def test_what_comes_back_unbegun_costs_nothing_and_takes_nothing() -> None:
    policy = engine()
    told: list[Event] = [
        known([[0.1]]),
        function(0, run_s=0.003, degradation=0.5),
        gpu("a", warm=1, functions=1, losses=own(0.5)),
    ]
    policy.decide(NOW, [*told, arrived(0, "1")])

    def tokens() -> float:
        return float(kernel.tokens(policy.cluster.rows, 0, NOW, policy.cluster.capacity_s))

    before, effects = tokens(), policy.cluster.effects[:, :, 0].copy()
    facts = policy.cluster.rows[:, 0].copy()
    assert placed(policy.decide(NOW, [arrived(0, "2")])) == [("2", "a")]
    charged = before - tokens()
    assert charged > 0
    assert (policy.cluster.effects[:, :, 0] == effects).all()
    changed = {place for place in range(kernel.ROW_FIELDS) if policy.cluster.rows[place, 0] != facts[place]}
    assert changed <= {kernel.TOKENS, kernel.AT}
    # It is given back, and goes again at the next moment that it may.
    assert placed(policy.decide(NOW + 0.1, [returned("2")])) == []
    assert policy.cluster.batches.keys() == {"1"} and not policy.cluster.ahead
    assert kernel.tokens(policy.cluster.rows, 0, NOW + 0.1, 2.0) == pytest.approx(
        min(before + 0.1 * policy.cluster.rows[kernel.REFILL, 0], 2.0 * policy.cluster.rows[kernel.REFILL, 0])
    )


def test_one_that_begins_is_charged_as_it_runs() -> None:
    """Alone: neither its charge nor what its run time teaches counts the one before it as a neighbour."""
    policy, other = engine(), engine(0.0)
    told: list[Event] = [
        known([[0.1]], [[0.3]], [[0.5]]),
        function(0, run_s=0.003),
        gpu("a", warm=1, functions=1, losses=own(0.9)),
    ]
    for each in (policy, other):
        each.decide(NOW, [*told, arrived(0, "1"), arrived(0, "2")])
    for each in (policy, other):
        each.decide(NOW + 0.004, [InvocationSettled(id="1", attempt=1)])
    batch, alone = policy.cluster.batches["2"], other.cluster.batches["2"]
    assert (batch.slowdown, batch.charge_s) == (pytest.approx(alone.slowdown), pytest.approx(alone.charge_s))
    assert batch.expected_end_at == pytest.approx(alone.expected_end_at)


def test_it_begins_where_an_instance_is_idle_all_the_same() -> None:
    policy = busy(0.003)
    policy.decide(NOW, [arrived(0, "2")])
    policy.decide(NOW + 0.001, [gpu("a", None, warm=2, at=NOW + 0.001)])
    assert (policy.cluster.used[0], len(policy.cluster.ahead), policy.cluster.differing()) == (2, 0, 0)


def test_the_gate_counts_it_as_the_next_to_run() -> None:
    policy, now = busy(), NOW + GUARDED * 0.1 - 0.004
    told = policy.bounds(now, "p/f0", 1)
    assert told is not None and told.backlog_s == pytest.approx(0.004 + GUARDED * 0.1, abs=1e-3)
    assert placed(policy.decide(now, [arrived(0, "2", at=now)])) == [("2", "a")]
    told = policy.bounds(now, "p/f0", 1)
    assert told is not None and told.backlog_s == pytest.approx(0.004 + 2 * GUARDED * 0.1, abs=1e-3)


def test_a_lost_gpu_instance_gives_back_both() -> None:
    policy = busy(0.003)
    policy.decide(NOW, [arrived(0, "2")])
    policy.decide(NOW + 1, [GpuLost(gpu="a"), returned("1"), returned("2")])
    assert (policy.cluster.used[0], len(policy.cluster.batches), policy.cluster.differing()) == (0, 0, 0)
    assert len(policy.waiting) == 2


def test_a_new_leader_knows_which_are_ahead() -> None:
    policy = engine()

    def held(id_: str, since_at: float, begun: bool) -> InvocationHeld:
        return InvocationHeld(
            function="p/f0", revision=1, id=id_, attempt=1, rows=1, gpu="a", since_at=since_at, begun=begun
        )

    under_way = [held("1", NOW - 1, True), held("2", NOW - 1, True)]
    sent = [held("3", NOW, False), held("4", NOW, False)]
    policy.decide(NOW, [function(0), gpu("a", None, warm=1, functions=1), *under_way, *sent])
    (ahead,) = policy.cluster.ahead.values()
    assert ahead.members.keys() == {"3", "4"} and policy.cluster.used[0] == 1
    policy.decide(NOW + 1, [ended("1"), ended("2")])
    assert (policy.cluster.used[0], len(policy.cluster.ahead), policy.cluster.differing()) == (1, 0, 0)
    # Where nothing runs, what was sent is for a load.
    other = engine()
    other.decide(NOW, [function(0), gpu("a", None, warm=0), held("3", NOW, False)])
    assert (other.cluster.used[0], len(other.cluster.ahead)) == (1, 0)
