"""The closed loop of a budget: steps down and back, and the correction of predictions by closed windows."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from random import Random

import pytest

from scheduler.policy import kernel
from scheduler.policy.admission import with_margin
from scheduler.policy.budget.controller import (
    DUTY,
    FACTOR_MAX,
    FACTOR_MIN,
    MARGIN,
    PRIOR_SD,
    STEPS,
    UNLEARNED,
    BudgetController,
    corrected,
)
from scheduler.policy.decisions import Dispatch, Offload, PublishLearned, Throttle
from scheduler.policy.events import ClaimRefused, CostsKnown, Event, InvocationSettled, LearnedDue, WarmLimits
from scheduler.policy.knobs import PRESETS, BudgetRule, preset
from smore.domain.loss import MOST_BUDGET, ClosedWindow, JobLoss, Sample, Step
from smore.messages.learned import decode_costs, encode_learned
from tests.support.driven import DrivenEngine
from tests.support.policy_events import NOW, arrived, batched, function, gpu, known

CLOSED = Sample(mean=0.1, sd=0.002, n=30)
#: Functions at work all the time.
BUSY = 1.0
#: What an account of 10 % earns a second, and holds when it is full, seconds.
EARNS = 0.8 * 0.1 / 1.1
#: What a run counts for where it is held against a deadline.
GUARDED = 1.05
FULL = 2.0 * EARNS


def job(slower: float = 0.0, *, budget: float = 0.1, windows: Sequence[ClosedWindow] = (), n: int = 20) -> JobLoss:
    """A training whose last iterations of 0.1 s are slower by that fraction."""
    return JobLoss(
        id="j", budget=budget, recent=Sample(mean=0.1 * (1 + slower), sd=0.002, n=n), closed=CLOSED, windows=windows
    )


def window(end: float, lost: float, noise: float = 0.0) -> ClosedWindow:
    """Closed for 0.7 s; beside it that share of the time was lost, all told 2 s after it."""
    open_s = 0.1 / (1 - lost) * (1 + noise)
    return ClosedWindow(
        start=end - 0.7,
        end=end,
        before_s=open_s,
        before_n=6,
        closed_s=0.1,
        closed_n=6,
        closed_sd=0.005,
        after_s=open_s,
        after_n=6,
    )


def test_steps_down_only_on_younger_iterations_and_back_one_by_one() -> None:
    governor = BudgetController()
    assert governor.judge(0.0, [job(0.05)], BUSY) is None
    assert governor.judge(1.0, [job(0.3)], BUSY) == "j"
    assert governor.step is Step.HELD
    # Twenty iterations of 0.13 s are still those from before.
    assert governor.judge(3.5, [job(0.3)], BUSY) is None
    assert governor.judge(3.7, [job(0.3)], BUSY) == "j"
    assert governor.step is Step.DUTY_75
    assert governor.judge(7.0, [job(0.0)], BUSY) == "j"
    assert governor.step is Step.HELD
    assert governor.judge(7.5, [job(0.0)], BUSY) is None
    assert governor.judge(9.1, [job(0.0)], BUSY) == "j"
    assert governor.step is Step.OPEN


def test_the_last_step_is_the_last() -> None:
    governor, now, steps = BudgetController(), 0.0, []
    for _ in range(10):
        governor.judge(now, [job(0.5)], BUSY)
        steps.append(governor.step)
        now += 10.0
    assert steps[:5] == list(STEPS[1:])
    assert set(steps[5:]) == {Step.OFFLOADED}
    assert [DUTY[step] for step in STEPS] == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_noise_takes_no_step() -> None:
    """
    Slower than twice the budget by the mean, but not surely; or surely, but not twice. It does not come back either
    while it is.
    """
    noisy = JobLoss(
        id="j", budget=0.1, recent=Sample(mean=0.123, sd=0.05, n=20), closed=Sample(mean=0.1, sd=0.05, n=20)
    )
    governor = BudgetController()
    assert governor.judge(0.0, [noisy], BUSY) is None
    assert governor.judge(0.0, [job(0.15)], BUSY) is None
    governor.judge(1.0, [job(0.3)], BUSY)
    assert governor.judge(10.0, [noisy], BUSY) is None
    assert governor.step is Step.HELD


def test_functions_are_not_blamed_for_what_they_cannot_have_cost() -> None:
    """At work for a twentieth of the time they can have cost a tenth of it; the training loses three."""
    governor = BudgetController()
    for second in range(60):
        assert governor.judge(float(second), [job(0.3)], 0.05) is None
    for second in range(60, 70):
        governor.judge(float(second), [job(0.3)], 0.5)
    assert governor.step is not Step.OPEN


def test_a_training_that_nobody_waits_for_holds_no_functions_back() -> None:
    governor = BudgetController()
    for now in range(100):
        assert governor.judge(float(now), [job(3.0, budget=MOST_BUDGET)], BUSY) is None


@pytest.mark.parametrize("silent", [JobLoss(id="j", budget=0.1), job(0.3, n=10)])
def test_a_training_that_says_too_little_is_not_judged_and_holds_nobody_back(silent: JobLoss) -> None:
    governor = BudgetController()
    assert governor.judge(0.0, [silent], BUSY) is None
    governor.judge(1.0, [job(0.3)], BUSY)
    assert governor.judge(10.0, [silent], BUSY) == "j"
    assert governor.step is Step.OPEN


def test_the_end_of_a_training_opens_everything() -> None:
    governor = BudgetController()
    governor.judge(1.0, [job(0.3)], BUSY)
    assert governor.judge(1.1, [], BUSY) == ""
    assert (governor.step, governor.factor) == (Step.OPEN, 1.0)
    assert governor.judge(1.2, [], BUSY) is None


def settled(
    truth: float, charged: Callable[[float], float], *, minutes: float = 5.0, noise: float = 0.0, drift: float = 0.0
) -> BudgetController:
    """
    A window each 5 s beside a training that loses ``truth`` times the ``charged`` (seconds a second at each second),
    reports each 0.5 s.

    ``noise``: of what is lost; ``drift``: the training slows down by itself by that fraction a minute.
    """
    governor, random, windows = BudgetController(), Random(0), deque[ClosedWindow](maxlen=6)
    for tick in range(int(minutes * 120)):
        now = tick / 2
        governor.charged_s += charged(now) / 2
        if tick % 10 == 9 and now > 5.0:
            slow = 1 + drift * now / 60
            one = window(now - 2.0, min(0.9, truth * charged(now - 2.5) + random.gauss(0.0, noise)))
            windows.append(
                replace(one, before_s=one.before_s * slow, closed_s=one.closed_s * slow, after_s=one.after_s * slow)
            )
        governor.judge(now, [job(windows=windows)], BUSY)
    return governor


@pytest.mark.parametrize("truth", [0.3, 1.0, 2.0, 4.0])
def test_predictions_are_corrected_by_what_windows_show(truth: float) -> None:
    """By a little more than that: half a standard error is charged on top."""
    assert 0.9 * truth < settled(truth, lambda _: 0.05).factor < 1.2 * truth + 0.1
    assert 0.7 * truth < settled(truth, lambda _: 0.05, noise=0.01).factor < 1.4 * truth + 0.1


@pytest.mark.parametrize("seed", range(5))
def test_charges_that_are_booked_beside_their_time_make_nothing_dearer(seed: int) -> None:
    """
    Bursts are booked in one second and paid for in the next: a fit that trusts small charges more would find twice the
    truth.
    """
    random = Random(seed)
    bursts = [random.choice((0.0, 0.02, 0.18)) for _ in range(1000)]
    toll = UNLEARNED
    for number in range(100):
        toll = corrected(
            toll,
            window(10.0 * number + 5.0, max(0.0, bursts[number] + random.gauss(0.0, 0.03))),
            0.5 * (bursts[number] + bursts[number + 1]),
        )
    assert 0.7 < toll.factor < 1.4


def test_a_first_window_whose_sides_differ_says_little() -> None:
    """
    A training that has only just started, or a hiccup: the same loss over even sides would have made runs several times
    as dear.
    """
    whole = window(10.0, 0.3)
    even = corrected(UNLEARNED, whole, 0.02)
    uneven = corrected(UNLEARNED, replace(whole, before_s=1.4 * whole.before_s, after_s=0.6 * whole.after_s), 0.02)
    assert uneven.factor < 1.2 < 2.0 < even.factor
    assert uneven.error > even.error


@pytest.mark.parametrize("charged", [0.002, 0.02, 0.09])
def test_how_much_runs_teaches_nothing_about_what_a_run_costs(charged: float) -> None:
    """
    A load far below the budget leaves predictions that are right as they are, but for the margin, and a drift does not
    change them.
    """
    assert 1.0 < settled(1.0, lambda _: charged, drift=0.2).factor <= 1.0 + MARGIN * PRIOR_SD


def test_without_a_run_windows_say_nothing() -> None:
    assert settled(1.0, lambda _: 0.0, noise=0.05).factor == 1.0 + MARGIN * PRIOR_SD


def test_a_few_windows_are_enough_for_a_prediction_that_is_far_off() -> None:
    assert settled(3.0, lambda _: 0.05, minutes=0.5).factor > 1.8


def test_a_window_is_learned_from_once_and_not_where_the_books_do_not_reach() -> None:
    governor = BudgetController()
    for tick in range(20):
        governor.charged_s += 0.025
        governor.judge(tick / 2, [job(windows=[window(5.0, 0.2)])], BUSY)
    once = governor.factor
    assert 1.0 < once < 4.0
    governor.judge(10.0, [job(windows=[window(5.0, 0.2)])], BUSY)
    assert governor.factor == once
    late = BudgetController()
    for tick in range(8, 20):
        late.judge(tick / 2, [job(windows=[window(5.0, 0.2)])], BUSY)
    assert late.factor == 1.0


def test_the_factor_has_bounds() -> None:
    assert settled(0.0, lambda _: 0.3, minutes=10.0).factor == pytest.approx(FACTOR_MIN, rel=0.2)
    assert settled(40.0, lambda _: 0.02, minutes=10.0).factor == FACTOR_MAX


def test_one_of_two_trainings_is_enough_to_hold_back_and_both_must_recover() -> None:
    governor = BudgetController()
    assert governor.judge(0.0, [job(0.0), job(0.3)], BUSY) == "j"
    assert governor.judge(10.0, [job(0.0), job(0.105, budget=0.1)], BUSY) is None
    assert governor.judge(20.0, [job(0.0), job(0.05)], BUSY) == "j"


def test_the_policy_holds_throttles_offloads_and_comes_back() -> None:
    """From the report that proves it, in the same round; on the next GPU instance nothing changes."""
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.01]]), function(0), gpu("a", functions=1), gpu("b", functions=1, warm=0)])
    log, now = [], NOW
    for slower in (0.3, 0.3, 0.3, 0.3, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0):
        now += 10.0
        log += [
            (decision.step, decision.duty) if isinstance(decision, Throttle) else decision
            for decision in engine.decide(
                now, [gpu("a", functions=1, at=now, losses=[job(slower)], function_utilisation=BUSY)]
            )
        ]
    off = Offload(function="p/f0", revision=1, gpu="a")
    down = [(step, DUTY[step]) for step in STEPS]
    assert log == [*down[1:], off, *down[-2::-1]]


def test_nothing_new_goes_beside_a_training_over_its_budget() -> None:
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.01]]), function(0), gpu("a", functions=1, losses=[job(0.0)])])
    slowed = gpu("a", functions=1, at=NOW + 1.0, losses=[job(0.3)], function_utilisation=BUSY)
    held = engine.decide(NOW + 1.0, [slowed, arrived(0, "1", at=NOW + 1.0)])
    assert [type(decision) for decision in held] == [Throttle]
    assert engine.cluster.rows[kernel.FACTOR, 0] == 1.0
    back = engine.decide(NOW + 4.5, [gpu("a", functions=1, at=NOW + 4.5, losses=[job(0.0)])])
    assert [type(decision) for decision in back] == [Throttle, Dispatch]


@pytest.mark.parametrize("name", [name for name, knobs in PRESETS.items() if knobs.budget_rule is not BudgetRule.NONE])
def test_every_setting_with_a_budget_rule_throttles_by_measured_losses(name: str) -> None:
    engine = DrivenEngine(PRESETS[name])
    engine.decide(NOW, [known([[0.01]]), function(0), gpu("a", functions=1, losses=[job(0.0)])])
    slowed = gpu("a", functions=1, at=NOW + 1.0, losses=[job(0.3)], function_utilisation=BUSY)
    assert [type(decision) for decision in engine.decide(NOW + 1.0, [slowed])] == [Throttle]


def test_a_corrected_prediction_is_what_is_charged() -> None:
    """
    Runs that take a third of the training while they last, charged 0.067 s a second: windows show that 0.06 are lost.
    """
    engine, now = DrivenEngine(preset("smore-product")), NOW
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1), gpu("a", functions=1, losses=[job()])])
    for tick in range(120):
        now = NOW + tick / 2
        engine.decide(
            now,
            [
                arrived(0, f"{tick}", at=now),
                gpu("a", functions=1, at=now, losses=[job(windows=[window(now - 2.0, 0.06)])]),
            ],
        )
        engine.decide(now + 0.1, [InvocationSettled(id=f"{tick}", attempt=1, run_s=0.1, batch_rows=1)])
    ((name, factor, _),) = engine.buckets(now)
    truth = 0.06 / (0.1 * 0.5 / 1.5 * 2)
    assert name == "a"
    assert truth < factor < 1.2 * truth
    engine.decide(now + 10.0, [arrived(0, "last", at=now + 10.0)])
    ((_, _, held),) = engine.buckets(now + 10.0)
    assert held == pytest.approx(FULL - factor * 0.1 * 0.5 / 1.5)
    # The next leader goes on with it, before it has seen a window of its own, and for as long as the training runs.
    (learned,) = engine.decide(now, [LearnedDue(revisions={}, kept={})])
    assert isinstance(learned, PublishLearned)
    costs = {place: decode_costs(encode_learned(of_trainings)) for place, of_trainings in learned.costs.items()}
    heir = DrivenEngine(preset("smore-product"))
    heir.decide(now, [CostsKnown(costs=costs), gpu("a", functions=1, at=now, losses=[job()])])
    ((_, taken_over, _),) = heir.buckets(now)
    assert taken_over == factor
    heir.decide(now + 1.0, [gpu("a", None, functions=1, at=now + 1.0)])
    (learned,) = heir.decide(now + 1.0, [LearnedDue(revisions={}, kept={})])
    assert isinstance(learned, PublishLearned) and learned.costs == {"a": {}}


def test_a_run_with_precedence_is_charged_as_long_as_it_takes() -> None:
    """Whatever tables say of it, as far as windows do not correct it; without tokens it waits as any other."""
    engine = DrivenEngine(preset("smore-product"))
    run_s = 0.1
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=run_s, precedence=True), gpu("a", losses=[job()])])
    decisions = engine.decide(NOW, [arrived(0, "1")])
    assert any(isinstance(decision, Dispatch) for decision in decisions)
    assert engine.buckets(NOW)[0][2] == pytest.approx(FULL - run_s, rel=1e-4)
    # It is not expected to be slowed down by the training.
    engine.decide(NOW, [InvocationSettled(id="1", attempt=1, run_s=run_s, batch_rows=1)])
    assert engine.buckets(NOW)[0][2] == pytest.approx(FULL - run_s, rel=1e-4)
    sent = 0
    for tick in range(60):
        now = NOW + 1.0 + tick / 100
        sent += sum(isinstance(each, Dispatch) for each in engine.decide(now, [arrived(0, f"more {tick}", at=now)]))
    assert sent * run_s <= FULL + 1.6 * 0.1


def test_what_was_never_run_costs_nothing() -> None:
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1, max_batch=2), gpu("a", functions=1, losses=[job()])])
    engine.decide(NOW, [arrived(0, "1"), arrived(0, "2")])
    spent = engine.buckets(NOW)[0][2]
    assert spent < FULL
    engine.decide(NOW, [ClaimRefused(id="1", attempt=0)])
    assert engine.buckets(NOW)[0][2] == spent
    engine.decide(NOW, [ClaimRefused(id="2", attempt=0)])
    assert engine.buckets(NOW)[0][2] == pytest.approx(FULL)


def test_the_gate_is_told_what_a_budget_leaves() -> None:
    """
    Runs of 0.1 s that cost a training a third of that each: 10 a second by throughput, 2.2 a second by a budget of 10
    %. What waits is told at the rate at which it is really placed.
    """
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1, max_warm=1, max_batch=1), gpu("a", functions=1, warm=1)])
    now, count, running, done = NOW, 0, "", 0
    while now < NOW + 60.0:
        events: list[Event] = [arrived(0, f"{count}", at=now, within=20.0)] if count % 2 == 0 else []
        if running:
            events = [InvocationSettled(id=running, attempt=1, run_s=0.1, batch_rows=1), *events]
            done += 1
        running = next((d.attempts[0][0] for d in engine.decide(now, events) if isinstance(d, Dispatch)), "")
        now, count = now + 0.1, count + 1
    waiting = engine.waiting.count("p/f0")
    told = engine.bounds(now, "p/f0", 1)
    assert waiting > 20
    assert done / 60.0 == pytest.approx(2.2, rel=0.1)
    assert told is not None
    assert told.backlog_s == pytest.approx(with_margin(waiting / 2.2), rel=0.25)
    assert (told.each_s, told.counted) == (
        pytest.approx(with_margin((waiting + 1) / 2.2) - with_margin(waiting / 2.2), rel=0.05),
        waiting,
    )


def test_the_longest_run_that_was_seen_must_fit_an_account() -> None:
    """
    10 ms expected, but one of the last runs took 4 s: with less than that saved nothing starts, because nothing could
    stop it.
    """
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.01), gpu("a", functions=1, stretches=[("p/f0", 1, 4.0)])])
    first = engine.decide(NOW, [arrived(0, "1")])
    assert [type(decision) for decision in first] == [Dispatch]
    engine.cluster.take_tokens(0, 0.1, NOW)
    assert engine.decide(NOW, [arrived(0, "2")]) == []
    engine.decide(NOW, [gpu("a", functions=1, stretches=[("p/f0", 1, 0.02)])])
    assert [type(decision) for decision in engine.decide(NOW, [arrived(0, "3")])] == [Dispatch]


def test_a_long_run_that_was_seen_once_does_not_keep_a_function_out() -> None:
    """10 ms expected, 0.5 s the longest: that would leave an account at half a debt that the next seconds pay back."""
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.01), gpu("a", functions=1, stretches=[("p/f0", 1, 0.5)])])
    engine.cluster.take_tokens(0, FULL / 2, NOW)
    assert [type(decision) for decision in engine.decide(NOW, [arrived(0, "1")])] == [Dispatch]
    engine.cluster.take_tokens(0, FULL, NOW)
    assert engine.decide(NOW, [arrived(0, "2")]) == []


def test_a_batch_is_saved_for_and_goes_when_it_can_be_paid() -> None:
    """
    One costs 3.3 ms and eight cost 26.7 ms: what waits at an account that holds nothing goes together, as soon as all
    are paid.
    """
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), batched(0, {1: 0.01, 8: 0.03}), gpu("a", functions=1)])
    engine.cluster.take_tokens(0, FULL, NOW)
    assert engine.decide(NOW, [arrived(0, str(number)) for number in range(8)]) == []
    paid_at = NOW + 0.03 * 0.5 / 1.5 / EARNS
    assert engine.wake_at == pytest.approx(paid_at)
    assert engine.cluster.fact(kernel.TOKENS)[0] == pytest.approx(0.0), "what is saved for is not spent yet"
    assert engine.decide(paid_at - 0.01, []) == []
    placed = engine.decide(engine.wake_at, [])
    assert [len(decision.attempts) for decision in placed if isinstance(decision, Dispatch)] == [8]
    assert engine.wake_at == inf


def test_what_cannot_be_saved_for_in_time_is_made_smaller() -> None:
    """Eight are paid after 0.14 s, and four, which take two thirds of that time, after 0.09 s."""
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), batched(0, {1: 0.01, 4: 0.02, 8: 0.03}), gpu("a", functions=1)])
    engine.cluster.take_tokens(0, FULL, NOW)
    assert engine.decide(NOW, [arrived(0, str(number), within=0.15) for number in range(8)]) == []
    assert engine.wake_at == pytest.approx(NOW + 0.02 * 0.5 / 1.5 / EARNS)
    placed = engine.decide(engine.wake_at, [])
    assert [len(decision.attempts) for decision in placed if isinstance(decision, Dispatch)] == [4]


def test_what_is_no_cheaper_together_goes_as_soon_as_one_is_paid() -> None:
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), batched(0, {1: 0.01, 8: 0.08}), gpu("a", functions=1)])
    engine.cluster.take_tokens(0, FULL, NOW)
    assert engine.decide(NOW, [arrived(0, str(number)) for number in range(8)]) == []
    assert engine.wake_at == pytest.approx(NOW + 0.01 * 0.5 / 1.5 / EARNS)


def test_nobody_takes_what_is_saved_for_whose_turn_it_is() -> None:
    """
    A dear run costs as much as ten cheap ones, of which there are always some. It has had nothing yet, so it is its
    turn: the account pays for it as soon as it can, and for the cheap ones afterwards.
    """
    engine = DrivenEngine(preset("smore-product"))
    functions = [function(0, run_s=0.01, max_batch=1), function(1, run_s=0.1, max_batch=1)]
    engine.decide(NOW, [known([[0.5, 0.5]]), *functions, gpu("a", functions=2)])
    engine.decide(NOW, [arrived(0, "before")])
    engine.decide(NOW + 0.02, [InvocationSettled(id="before", attempt=1)])
    now = NOW + 0.02
    engine.cluster.take_tokens(0, float(kernel.tokens(engine.cluster.rows, 0, now, engine.cluster.capacity_s)), now)
    engine.decide(now, [arrived(1, "dear"), *(arrived(0, f"cheap{number}") for number in range(5))])
    cost_s = 0.1 * 0.5 / 1.5
    assert engine.decide(now + 0.9 * cost_s / EARNS, []) == [], "enough for nine cheap ones"
    placed = engine.decide(now + cost_s / EARNS + 1e-6, [])
    assert [decision.function for decision in placed if isinstance(decision, Dispatch)] == ["p/f1"]


def test_who_cannot_be_paid_in_time_leaves_its_turn_to_the_next_of_its_lane() -> None:
    """What one run costs is earned in 0.46 s; the head has 0.3."""
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1, max_batch=1), gpu("a", functions=1)])
    engine.cluster.take_tokens(0, FULL, NOW)
    assert engine.decide(NOW, [arrived(0, "head", within=0.3), arrived(0, "next")]) == []
    paid_at = NOW + 0.1 * 0.5 / 1.5 / EARNS
    assert engine.wake_at == pytest.approx(paid_at)
    placed = engine.decide(engine.wake_at, [])
    assert [decision.attempts for decision in placed if isinstance(decision, Dispatch)] == [[("next", 0)]]


def test_what_a_long_run_asks_for_is_saved_too() -> None:
    """
    A function was seen to run for ten seconds, so a full account is asked for before it may go; cheap ones do not keep
    it empty.
    """
    engine = DrivenEngine(preset("smore-product"))
    functions = [function(0, run_s=0.01, max_batch=1), function(1, run_s=0.1, max_batch=1)]
    stretched = gpu("a", functions=2, stretches=[("p/f1", 1, 10.0)])
    engine.decide(NOW, [known([[0.5, 0.5]]), *functions, stretched])
    engine.cluster.take_tokens(0, FULL, NOW)
    engine.decide(
        NOW,
        [
            arrived(1, "long", within=60.0),
            *(arrived(0, f"cheap{number}", at=NOW + 0.1, within=60.0) for number in range(5)),
        ],
    )
    assert engine.decide(NOW + 1.9, []) == []
    placed = engine.decide(NOW + 2.001, [])
    assert placed and isinstance(placed[0], Dispatch) and placed[0].function == "p/f1"


@pytest.mark.parametrize(("mib", "saved"), [(250.0, True), (150.0, False)])
def test_nothing_is_saved_where_a_project_may_load_no_more(mib: float, saved: bool) -> None:
    """
    It has no instance, one of another function holds 100 MiB, and it needs as much: below 200 its project leaves room
    for none.
    """
    engine = DrivenEngine(preset("smore-product"))
    functions = [function(number, run_s=0.1, max_batch=1) for number in range(2)]
    report = replace(gpu("a", functions=2), warm=[("p/f1", 1, 1)])
    engine.decide(NOW, [known([[0.5, 0.5]]), *functions, WarmLimits(mib={"p": mib}), report])
    engine.cluster.take_tokens(0, FULL, NOW)
    engine.decide(NOW, [arrived(0, "x")])
    assert engine.waiting.count("p/f0") == 1
    assert (engine.wake_at < inf) == saved


def test_the_gate_is_told_when_an_account_can_pay() -> None:
    """
    One run costs 0.0333 s of a training that earns 0.0727 s a second: with nothing saved and four waiting, a fifth is
    five times 0.46 s away, and for each that comes beside it as much more; margins are added. A GPU instance without a
    training asks for nothing.
    """
    engine = DrivenEngine(preset("smore-product"))
    cost, earns = 0.1 * 0.5 / 1.5, EARNS
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1, max_batch=1), gpu("a", functions=1)])
    assert engine.bounds(NOW, "p/f0", 1) == (
        pytest.approx(GUARDED * 0.1),
        pytest.approx(0.1),
        pytest.approx(with_margin(cost / earns)),
        0,
        0.0,
        pytest.approx(GUARDED * 0.1),
        pytest.approx(GUARDED * 0.1),
        0,
        0,
    )
    engine.cluster.take_tokens(0, FULL, NOW)
    engine.decide(NOW, [arrived(0, str(number)) for number in range(4)])
    assert engine.waiting.count("p/f0") == 4
    told = engine.bounds(NOW + 1e-6, "p/f0", 1)
    assert told is not None
    assert (told.backlog_s, told.floor_s) == (
        pytest.approx(with_margin(5 * cost / earns) + GUARDED * 0.1, rel=1e-3),
        pytest.approx(0.1),
    )
    assert (told.each_s, told.counted) == (
        pytest.approx(with_margin(6 * cost / earns) - with_margin(5 * cost / earns), rel=1e-3),
        4,
    )
    engine.decide(NOW + 0.2, [gpu("b", None, functions=1)])
    told = engine.bounds(NOW + 0.2, "p/f0", 1)
    assert told is not None
    assert told.backlog_s < 0.25


def test_the_gate_divides_what_a_budget_leaves_among_the_functions_that_want_it() -> None:
    """
    Two functions of one P and one cost: with ten of the one waiting, the other waits for one of them and for itself,
    not for all ten.
    """
    engine = DrivenEngine(preset("smore-product"))
    cost, earns = 0.1 * 0.5 / 1.5, EARNS
    functions = [function(number, run_s=0.1, max_batch=1) for number in range(2)]
    engine.decide(NOW, [known([[0.5, 0.5]]), *functions, gpu("a", functions=2)])
    engine.cluster.take_tokens(0, FULL, NOW)
    engine.decide(NOW, [arrived(0, str(number), within=60.0) for number in range(10)])
    one, other = engine.bounds(NOW, "p/f0", 1), engine.bounds(NOW, "p/f1", 1)
    assert one is not None and other is not None
    assert one.backlog_s == pytest.approx(with_margin(11 * cost / earns) + GUARDED * 0.1)
    assert other.backlog_s == pytest.approx(with_margin(2 * cost / earns) + GUARDED * 0.1)
    assert other.each_s == pytest.approx(with_margin(4 * cost / earns) - with_margin(2 * cost / earns))


def test_a_closed_gpu_instance_counts_when_it_opens() -> None:
    """It is taken to stay closed for a second, and then for as long as it did before."""
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1, max_batch=1), gpu("a", functions=1, closed=True)])
    told = engine.bounds(NOW + 0.25, "p/f0", 1)
    assert told is not None
    assert told.backlog_s == pytest.approx(with_margin(0.75) + GUARDED * 0.1)
    for second in range(1, 20):
        now = NOW + 10.0 * second
        engine.decide(now + 0.2, [gpu("a", functions=1, at=now + 0.2)])
        engine.decide(now + 10.0, [gpu("a", functions=1, at=now + 10.0, closed=True)])
    told = engine.bounds(NOW + 200.0, "p/f0", 1)
    assert told is not None
    assert told.backlog_s == pytest.approx(with_margin(0.2) + 0.1, rel=0.5)


def test_a_worker_that_starts_anew_is_told_again() -> None:
    engine = DrivenEngine(preset("smore-product"))
    engine.decide(NOW, [known([[0.01]]), function(0), gpu("a", functions=1)])
    slowed = [
        gpu("a", functions=1, at=NOW + second, losses=[job(0.3)], function_utilisation=BUSY) for second in (1.0, 10.0)
    ]
    first, second = (engine.decide(report.at, [report]) for report in slowed)
    assert [type(decision) for decision in (*first, *second)] == [Throttle, Throttle]
    (again,) = engine.decide(NOW + 10.5, [gpu("a", functions=1, at=NOW + 10.5, losses=[job(0.3)], boot="another")])
    assert isinstance(again, Throttle)
    assert (again.step, again.duty) == (Step.DUTY_75, 0.75)
