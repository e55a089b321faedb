"""Bulk work: its share, the bound on its runs and the floor below it, the slot that it never has, and when it is urgent."""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policy import kernel
from scheduler.policy.classes import FLOOR, YIELDED
from scheduler.policy.decisions import Answer, Decision, Dispatch, Prewarm, QuestionAnswered
from scheduler.policy.events import Event, InvocationArrived, InvocationSettled, QuestionAsked
from scheduler.policy.knobs import preset
from smore.domain.function import WorkClass
from tests.support.driven import DrivenEngine
from tests.support.policy_events import NOW, arrived, batched, function, gpu, placed

#: f0 has users waiting, for 10 ms; f1 is bulk, 20 ms a row.
ROWS = {1: 0.02, 8: 0.16}


def bulk(number: int, id_: str, *, at: float = NOW, within: float = 3600.0) -> InvocationArrived:
    return replace(arrived(number, id_, at=at, within=within), bulk=True)


def engine(*, policy: str = "smore-product", slots: int = 8, deadline_s: float = 0.11) -> DrivenEngine:
    """One GPU instance where f0, which has this deadline, was invoked a moment ago."""
    made = DrivenEngine(preset(policy, guard=0.0))
    made.decide(NOW - 5.0, [function(0, deadline_s=deadline_s), batched(1, ROWS), gpu("a", None, slots=slots)])
    answer(made, NOW - 5.0, deadline_s)
    return made


def answer(made: DrivenEngine, at: float, within: float) -> None:
    """A call of f0, which ends after 10 ms."""
    assert placed(made.decide(at, [arrived(0, "answer", at=at, within=within)]))
    made.decide(at + 0.01, [InvocationSettled(id="answer", attempt=1, run_s=0.01, batch_rows=1)])


def sizes(decisions: list[Decision]) -> list[int]:
    return [len(decision.attempts) for decision in decisions if isinstance(decision, Dispatch)]


# ---- the bound -------------------------------------------------------------------------------------------------------
def test_runs_are_as_long_as_others_can_wait() -> None:
    """0.75 of the 100 ms that an answer can wait are three rows; where nobody was invoked for a minute, all eight go."""
    inputs = [bulk(1, f"{i}") for i in range(8)]
    (first, *_) = sizes(engine(slots=2).decide(NOW, list(inputs)))
    assert first == 3
    later = [replace(one, arrival_at=NOW + 61.0, deadline_at=NOW + 4000.0) for one in inputs]
    assert sizes(engine(slots=2).decide(NOW + 61.0, list(later))) == [8]
    assert sizes(engine(policy="classless", slots=2).decide(NOW, list(inputs))) == [8]
    # The order alone bounds nothing.
    assert sizes(engine(policy="tier", slots=2).decide(NOW, list(inputs))) == [8]


def test_the_bound_holds_where_the_function_may_run() -> None:
    made = engine(slots=2)
    made.decide(NOW, [gpu("a", None, slots=2, quarantined=["p/f0@1"])])
    assert sizes(made.decide(NOW, [bulk(1, f"{i}") for i in range(8)])) == [8]


def test_a_call_with_a_shorter_deadline_than_its_function_holds_nobody_back() -> None:
    made = engine(slots=2)
    answer(made, NOW - 1.0, 0.02)
    assert sizes(made.decide(NOW, [bulk(1, f"{i}") for i in range(8)]))[0] == 3


def test_a_function_with_no_time_for_its_own_run_holds_nobody_back() -> None:
    made = engine(slots=2)
    made.decide(NOW, [function(0, deadline_s=0.009)])
    assert sizes(made.decide(NOW, [bulk(1, f"{i}") for i in range(8)])) == [8]


@pytest.mark.parametrize("users", [True, False])
def test_nothing_goes_ahead_beside_users(users: bool) -> None:
    """What a worker has ahead would begin without a look at who waits."""
    made = DrivenEngine(preset("smore-product", guard=0.0, ahead_s=0.005))
    made.decide(NOW, [function(0, deadline_s=0.5), function(1, run_s=0.02), gpu("a", None, warm=1, slots=2)])
    if users:
        answer(made, NOW, 0.5)
    assert sizes(made.decide(NOW + 0.1, [bulk(1, "1"), bulk(1, "2")])) == [1]
    made.decide(NOW + 0.116, [gpu("a", None, warm=1, slots=2, at=NOW + 0.116)])
    assert bool(made.cluster.ahead) is not users


def test_users_keep_one_of_several_instances_of_their_own_function() -> None:
    """Bulk work has the first one asked for, once, and leaves one of two idle."""
    made = engine(slots=4)
    made.decide(NOW, [gpu("a", None, warm=1, slots=4)])
    first = made.decide(NOW, [bulk(0, f"{i}") for i in range(3)])
    assert sizes(first) == [1]
    loads = [each for each in first if isinstance(each, Prewarm)]
    assert [(load.function, load.gpu, load.instances) for load in loads] == [("p/f0", "a", 2)]
    made.decide(NOW + 0.01, [InvocationSettled(id="0", attempt=1, run_s=0.01, batch_rows=1)])
    second = made.decide(NOW + 0.02, [gpu("a", None, warm=2, slots=4, at=NOW + 0.02)])
    assert not [each for each in second if isinstance(each, Prewarm)], "it is asked for once"
    assert len(made.cluster.batches) == 1
    assert placed(made.decide(NOW + 0.03, [arrived(0, "user", at=NOW + 0.03, within=0.11)])) == [("user", "a")]
    made.decide(NOW + 0.04, [InvocationSettled(id="user", attempt=1, run_s=0.01, batch_rows=1)])
    assert len(made.cluster.batches) == 1
    quiet = made.decide(NOW + 70.0, [gpu("a", None, warm=2, slots=4, at=NOW + 70.0)])
    assert sizes(quiet) == [1], "nobody has called for a minute"


@pytest.mark.parametrize(
    ("fields", "there"),
    [({"max_warm": 1}, {}), ({}, {"slots": 1}), ({}, {"memory_total": 90.0}), ({}, {"memory_used": 9_950.0})],
)
def test_no_second_instance_is_loaded_where_it_may_not_be_or_lacks_room(
    fields: dict[str, Any], there: dict[str, Any]
) -> None:
    made = engine(slots=4)
    made.decide(NOW, [function(0, deadline_s=0.11, **fields), gpu("a", None, warm=1, **({"slots": 4} | there))])
    decisions = made.decide(NOW, [bulk(0, "1")])
    assert sizes(decisions) == [1]
    assert not [each for each in decisions if isinstance(each, Prewarm)]


# ---- the floor -------------------------------------------------------------------------------------------------------
def test_a_row_that_is_longer_waits_for_a_quiet_second_once_it_has_had_its_floor() -> None:
    made = engine(slots=1, deadline_s=0.03)
    answer(made, NOW, 0.03)
    assert sizes(made.decide(NOW + 0.1, [bulk(1, "1"), bulk(1, "2")])) == [1]
    end = NOW + 0.12
    ended = InvocationSettled(id="1", attempt=1, run_s=0.02, batch_rows=1)
    assert not placed(made.decide(end, [ended])) and made.cluster.code[0] == kernel.YIELDS
    assert made.wake_at == pytest.approx(NOW + 0.1 + 0.02 / FLOOR)
    assert sizes(made.decide(made.wake_at, [gpu("a", None, slots=1, at=made.wake_at)])) == [1]
    quiet = engine(slots=1, deadline_s=0.03)
    assert sizes(quiet.decide(NOW, [bulk(1, "1"), bulk(1, "2")])) == [1]
    ended = InvocationSettled(id="1", attempt=1, run_s=0.02, batch_rows=1)
    assert placed(quiet.decide(NOW + 0.02, [ended])), "nothing else ran for a second"


def shares(
    made: DrivenEngine, *, seconds: float, run_s: dict[str, float], gap_s: float, within: float
) -> dict[str, float]:
    """
    Run time of answers (a) and of bulk (b) until then, where bulk never ends. An answer comes each ``gap_s``, 0 = as soon
    as none waits.
    """
    now, next_at, had = NOW, NOW, {"a": 0.0, "b": 0.0}
    numbers, running, events = count(), list[tuple[float, str]](), list[Event]()
    while now < NOW + seconds:
        if now >= next_at and (gap_s or not made.waiting.of_class("p/f0", False)):
            events.append(arrived(0, f"a{next(numbers)}", at=now, within=within))
            next_at = now + gap_s
        while made.waiting.of_class("p/f1", True) + len(events) < 10:
            events.append(bulk(1, f"b{next(numbers)}", at=now, within=1e6))
        for id_, _ in placed(made.decide(now, events)):
            had[id_[0]] += run_s[id_[0]]
            heappush(running, (now + run_s[id_[0]], id_))
        moments = [made.wake_at, now + 0.1, *([running[0][0]] if running else []), *([next_at] if gap_s else [])]
        now, events = min(max(moment, now + 1e-6) for moment in moments), []
        while running and running[0][0] <= now:
            events.append(InvocationSettled(id=heappop(running)[1], attempt=1, run_s=None, batch_rows=1))
    return had


@given(
    row_s=st.floats(0.02, 0.5),
    ratio=st.floats(0.1, 2.0),
    slots=st.sampled_from([1, 2, 4]),
    busy=st.booleans(),
    slack=st.floats(0.01, 1.0),
)
@settings(max_examples=12, deadline=None)
def test_no_calls_hold_bulk_work_back_altogether(
    row_s: float, ratio: float, slots: int, busy: bool, slack: float
) -> None:
    """Whatever calls can wait, at full load and at a tenth of it, and however much longer than the bound a row is."""
    answer_s = ratio * row_s
    made, within = DrivenEngine(preset("smore-product", guard=0.0)), answer_s * (1.0 + slack) + 1e-3
    made.decide(NOW, [function(0, run_s=answer_s, deadline_s=within), function(1, run_s=row_s)])
    made.decide(NOW, [gpu("a", None, slots=slots)])
    seconds, gap_s = 200.0 * row_s, 0.0 if busy else 10.0 * answer_s
    had = shares(made, seconds=seconds, run_s={"a": answer_s, "b": row_s}, gap_s=gap_s, within=within)
    assert had["b"] >= 0.04 * (had["a"] + had["b"] if busy else seconds)


# ---- slots, lanes ----------------------------------------------------------------------------------------------------
def test_of_several_slots_bulk_work_never_has_the_last() -> None:
    made = engine(slots=3)
    inputs: list[Event] = [bulk(1, f"{i}") for i in range(100)]
    assert len(sizes(made.decide(NOW, inputs))) == 2
    assert placed(made.decide(NOW, [arrived(0, "now", within=0.11)])) == [("now", "a")]
    assert len(sizes(engine(slots=1).decide(NOW, inputs))) == 1, "the only one"


def test_classes_do_not_share_a_batch() -> None:
    made = engine()
    together: list[Event] = [arrived(1, "a1"), bulk(1, "b1"), arrived(1, "a2"), bulk(1, "b2")]
    batches = [
        {id_[0] for id_, _ in decision.attempts}
        for decision in made.decide(NOW, together)
        if isinstance(decision, Dispatch)
    ]
    assert sorted(map(sorted, batches)) == [["a"], ["b"]]


# ---- share and deadline ----------------------------------------------------------------------------------------------
def served(made: DrivenEngine, until: float, inputs: int, within: float) -> tuple[dict[str, float], int]:
    """
    Run time by class, and bulk work that was not served, on one slot: f0 has always something that waits, and so many
    inputs of bulk wait from the beginning.
    """
    made.decide(NOW, [function(0), function(1, run_s=0.01), gpu("a", None, slots=1)])
    made.decide(NOW, [bulk(1, f"b{i}", within=within) for i in range(inputs)])
    now, had, running, left = NOW, {"a": 0.0, "b": 0.0}, dict.fromkeys(made.cluster.batches, 1), inputs
    numbers = count()
    while now < until:
        events: list[Event] = [InvocationSettled(id=id_, attempt=1, run_s=0.01, batch_rows=1) for id_ in running]
        events += [arrived(0, f"a{next(numbers)}", at=now, within=5.0)]
        for id_ in running:
            had[id_[0]] += 0.01
            left -= id_[0] == "b"
        running = {id_: 1 for id_, _ in placed(made.decide(now, events))}
        now += 0.01
    return had, left


def test_bulk_work_has_its_share_of_full_load() -> None:
    had, _ = served(DrivenEngine(preset("smore-product", guard=0.0)), NOW + 30.0, 1000, within=1e6)
    assert had["b"] / (had["a"] + had["b"]) == pytest.approx(0.05 / 1.05, abs=0.01)


def test_urgent_work_meets_a_deadline_that_half_of_the_platform_would_meet() -> None:
    """1000 inputs of 10 ms in 25 s: a twentieth would do 120 of them, half does them all."""
    made = DrivenEngine(preset("smore-product", guard=0.0))
    had, left = served(made, NOW + 25.0, 1000, within=25.0)
    assert left == 0 and had["a"] > 0.9 * had["b"]
    assert made.engine.classes.urgent == {"p/f1"}


@pytest.mark.parametrize(("work_class", "told"), [(WorkClass.STANDARD, "urgent"), (WorkClass.BATCH, "batch")])
def test_a_near_deadline_makes_urgent_what_its_function_does_not_let_wait(work_class: WorkClass, told: str) -> None:
    """A caller cannot raise the class of a function by the deadline that it asks for."""
    made = engine(slots=2)
    made.decide(NOW, [function(2, run_s=0.02, work_class=work_class, deadline_s=3600.0), gpu("a", None, slots=2)])
    (dispatch,) = [d for d in made.decide(NOW, [bulk(2, "1", within=0.5)]) if isinstance(d, Dispatch)]
    assert dispatch.reasons.work_class == told
    assert made.cluster.batches["1"].bulk == (told == "batch")


def test_urgent_work_is_bounded_no_more() -> None:
    made = engine(slots=2, deadline_s=0.03)
    assert sizes(made.decide(NOW, [bulk(1, f"{i}", within=0.5) for i in range(8)])) == [8]


def test_slow_runs_of_bulk_work_teach_nothing_of_a_function_with_users() -> None:
    made = engine()
    (demand,) = [demand for demand in made.cluster.demands if demand.function == "p/f1"]
    before = demand.run_s(1)
    for number, idle in enumerate((True, False)):
        made.decide(NOW + 4.0 * number, [bulk(1, f"{number}")])
        ended = InvocationSettled(id=f"{number}", attempt=1, run_s=3.0, batch_rows=1, idle=idle)
        made.decide(NOW + 4.0 * number + 3.0, [ended])
        assert (demand.run_s(1) == before) is idle, "on a GPU nobody holds them back"


# ---- words -----------------------------------------------------------------------------------------------------------
def test_a_question_about_bulk_work_names_the_bound() -> None:
    made = engine(slots=2, deadline_s=0.03)
    made.decide(NOW, [bulk(1, "1")])
    asked = QuestionAsked(id="q", function="p/f1", revision=1, rows=1, deadline_at=NOW + 3600.0)
    held = answered(made, [replace(asked, bulk=True)])
    assert held.row_gpu is None and held.reasons.refused == {"no_slot": 1}
    answer(made, NOW + 0.1, 0.03)
    made.decide(NOW + 0.12, [InvocationSettled(id="1", attempt=1, run_s=0.02, batch_rows=1)])
    held = answered(made, [replace(asked, bulk=True)], at=NOW + 0.13)
    assert held.reasons.refused == {"yields": 1} and held.yield_s == pytest.approx(YIELDED * 0.02, rel=0.01)
    assert answered(made, [asked], at=NOW + 0.13).row_gpu == "a", "who waits is not held back"


def answered(made: DrivenEngine, questions: Sequence[Event], at: float = NOW) -> Answer:
    (said,) = made.decide(at, questions)
    assert isinstance(said, QuestionAnswered) and said.answer is not None
    return said.answer


def test_temporal_refuses_while_anything_else_waits() -> None:
    made = engine(policy="temporal", slots=4)
    decisions = made.decide(NOW, [arrived(0, "now", within=0.11), bulk(1, "1")])
    assert placed(decisions) == [("now", "a")]


def test_thousands_of_inputs_that_are_heard_of_late_close_the_gate_to_nobody() -> None:
    made = engine(slots=8)
    before = made.bounds(NOW, "p/f0", 1)
    made.decide(NOW, [bulk(1, f"{i}", at=NOW - 0.5) for i in range(100)])
    after = made.bounds(NOW, "p/f0", 1)
    assert before is not None and after is not None and after.backlog_s < before.backlog_s + 0.01
