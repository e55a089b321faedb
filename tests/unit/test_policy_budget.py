"""The closed loop of a budget: steps down and back, and the slower correction of predictions."""

import pytest

from scheduler.policy import kernel
from scheduler.policy.budget import DUTY, FACTOR_MAX, FACTOR_MIN, STEPS, Governor, JobLoss, Step
from scheduler.policy.core import Engine
from scheduler.policy.decisions import Dispatch, Offload, Throttle
from scheduler.policy.events import InvocationSettled
from scheduler.policy.knobs import preset
from smore.domain.loss import Loss, Sample
from tests.unit.test_policy_engine import NOW, arrived, function, gpu, known

CLOSED = Sample(mean=0.1, sd=0.002, n=30)


def job(slower: float = 0.0, *, budget: float = 0.1, loss: Loss | None = None, n: int = 20) -> JobLoss:
    """A training whose last iterations of 0.1 s are slower by that fraction."""
    return JobLoss(id="j", budget=budget, recent=Sample(mean=0.1 * (1 + slower), sd=0.002, n=n), closed=CLOSED, loss=loss)


def loss(mean: float, reach: float = 0.01, windows: int = 20) -> Loss:
    return Loss(mean=mean, low=mean - reach, high=mean + reach, windows=windows)


def test_steps_down_only_on_younger_iterations_and_back_one_by_one() -> None:
    governor = Governor()
    assert governor.judge(0.0, [job(0.05)]) is None
    assert governor.judge(1.0, [job(0.3)]) == "j"
    assert governor.step is Step.HELD
    # Twenty iterations of 0.13 s are still those from before.
    assert governor.judge(3.5, [job(0.3)]) is None
    assert governor.judge(3.7, [job(0.3)]) == "j"
    assert governor.step is Step.DUTY_75
    assert governor.judge(7.0, [job(0.0)]) == "j"
    assert governor.step is Step.HELD
    assert governor.judge(7.5, [job(0.0)]) is None
    assert governor.judge(9.1, [job(0.0)]) == "j"
    assert governor.step is Step.OPEN


def test_the_last_step_is_the_last() -> None:
    governor, now, steps = Governor(), 0.0, []
    for _ in range(10):
        governor.judge(now, [job(0.5)])
        steps.append(governor.step)
        now += 10.0
    assert steps[:5] == list(STEPS[1:])
    assert set(steps[5:]) == {Step.OFFLOADED}
    assert [DUTY[step] for step in STEPS] == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_noise_takes_no_step() -> None:
    """Slower than twice the budget by the mean, but not surely; or surely, but not twice. It does not come back either while it is."""
    noisy = JobLoss(id="j", budget=0.1, recent=Sample(mean=0.123, sd=0.05, n=20), closed=Sample(mean=0.1, sd=0.05, n=20))
    governor = Governor()
    assert governor.judge(0.0, [noisy]) is None
    assert governor.judge(0.0, [job(0.15)]) is None
    governor.judge(1.0, [job(0.3)])
    assert governor.judge(10.0, [noisy]) is None
    assert governor.step is Step.HELD


@pytest.mark.parametrize("silent", [JobLoss(id="j", budget=0.1), job(0.3, n=10)])
def test_a_training_that_says_too_little_is_not_judged_and_holds_nobody_back(silent: JobLoss) -> None:
    governor = Governor()
    assert governor.judge(0.0, [silent]) is None
    governor.judge(1.0, [job(0.3)])
    assert governor.judge(10.0, [silent]) == "j"
    assert governor.step is Step.OPEN


def test_the_end_of_a_training_opens_everything() -> None:
    governor = Governor()
    governor.judge(1.0, [job(0.3)])
    assert governor.judge(1.1, []) == ""
    assert (governor.step, governor.factor) == (Step.OPEN, 1.0)
    assert governor.judge(1.2, []) is None


def test_predictions_are_corrected_by_each_new_estimate_once() -> None:
    governor = Governor()
    for _ in range(5):
        governor.judge(0.0, [job(loss=loss(0.02))])
    assert governor.factor == pytest.approx(0.9)
    governor.judge(0.0, [job(loss=loss(0.02, windows=21))])
    assert governor.factor == pytest.approx(0.81)
    # Not surely below, nor above.
    governor.judge(0.0, [job(loss=loss(0.085, windows=22))])
    assert governor.factor == pytest.approx(0.81)
    governor.judge(0.0, [job(loss=loss(0.12, windows=23))])
    assert governor.factor == pytest.approx(0.891)


def test_the_factor_has_bounds() -> None:
    governor = Governor()
    for windows in range(100):
        governor.judge(0.0, [job(loss=loss(0.0, windows=windows))])
    assert governor.factor == FACTOR_MIN
    for number in range(100):
        governor.judge(100.0 * number, [job(0.5, loss=loss(0.5, windows=1000 + number))])
    assert governor.factor == FACTOR_MAX


def test_one_of_two_trainings_is_enough_to_hold_back_and_both_must_recover() -> None:
    governor = Governor()
    assert governor.judge(0.0, [job(0.0), job(0.3)]) == "j"
    assert governor.judge(10.0, [job(0.0), job(0.105, budget=0.1)]) is None
    assert governor.judge(20.0, [job(0.0), job(0.05)]) == "j"


def test_the_policy_holds_throttles_offloads_and_comes_back() -> None:
    """From the report that proves it, in the same round; on the next GPU instance nothing changes."""
    engine = Engine(preset("smore-product"))
    engine.decide(NOW, [known([[0.01]]), function(0), gpu("a", functions=1), gpu("b", functions=1, warm=0)])
    log, now = [], NOW
    for slower in (0.3, 0.3, 0.3, 0.3, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0):
        now += 10.0
        log += [
            (decision.step, decision.duty) if isinstance(decision, Throttle) else decision
            for decision in engine.decide(now, [gpu("a", functions=1, at=now, losses=[job(slower)])])
        ]
    off = Offload(function="p/f0", revision=1, gpu="a")
    down = [(step, DUTY[step]) for step in STEPS]
    assert log == [*down[1:], off, *down[-2::-1]]


def test_nothing_new_goes_beside_a_training_over_its_budget() -> None:
    engine = Engine(preset("smore-product"))
    engine.decide(NOW, [known([[0.01]]), function(0), gpu("a", functions=1, losses=[job(0.0)])])
    held = engine.decide(NOW + 1.0, [gpu("a", functions=1, at=NOW + 1.0, losses=[job(0.3)]), arrived(0, "1", at=NOW + 1.0)])
    assert [type(decision) for decision in held] == [Throttle]
    assert engine.cluster.rows[kernel.FACTOR, 0] == 1.0
    back = engine.decide(NOW + 4.5, [gpu("a", functions=1, at=NOW + 4.5, losses=[job(0.0)])])
    assert [type(decision) for decision in back] == [Throttle, Dispatch]


def test_a_corrected_prediction_is_what_is_charged() -> None:
    engine = Engine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1), gpu("a", functions=1, losses=[job(loss=loss(0.12))])])
    full = 0.1 / 1.1 * 10.0
    engine.decide(NOW, [arrived(0, "1")])
    assert kernel.balance(engine.cluster.rows, 0, NOW, 10.0) == pytest.approx(full - 0.1 * 0.55 / 1.55)


def test_the_gate_is_told_what_a_budget_leaves() -> None:
    """
    Runs of 0.1 s that cost a training a third of that each: 10 a second by throughput, 2.7 a second by a budget of 10 %. What waits is
    told at the rate at which it is really placed.
    """
    engine = Engine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1, max_warm=1), gpu("a", functions=1, warm=1)])
    now, count, running = NOW, 0, ""
    while now < NOW + 60.0:
        events = [arrived(0, f"{count}", at=now, within=20.0)] if count % 2 == 0 else []
        if running:
            events = [InvocationSettled(id=running, attempt=1, run_s=0.1, batch_rows=1), *events]
        running = next((d.attempts[0][0] for d in engine.decide(now, events) if isinstance(d, Dispatch)), "")
        now, count = now + 0.1, count + 1
    waiting = engine.waiting.count("p/f0")
    backlog, _ = engine.feasible_s(now, "p/f0", 1) or (0.0, 0.0)
    assert waiting > 20
    assert backlog == pytest.approx(waiting / 2.7, rel=0.25)


def test_the_longest_run_that_was_seen_must_fit_an_account() -> None:
    """10 ms expected, but one of the last runs took 4 s: with less than that saved nothing starts, because nothing could stop it."""
    engine = Engine(preset("smore-product"))
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.01), gpu("a", functions=1, stretches=[("p/f0", 1, 4.0)])])
    first = engine.decide(NOW, [arrived(0, "1")])
    assert [type(decision) for decision in first] == [Dispatch]
    engine.cluster.spend(0, 0.5, NOW)
    assert engine.decide(NOW, [arrived(0, "2")]) == []
    engine.decide(NOW, [gpu("a", functions=1, stretches=[("p/f0", 1, 0.02)])])
    assert [type(decision) for decision in engine.decide(NOW, [arrived(0, "3")])] == [Dispatch]


def test_the_gate_is_told_when_an_account_can_pay() -> None:
    """
    One run costs 0.0333 s of a training that earns 0.0909 s a second: with an empty account the next is 0.37 s away, and what waits
    comes before it. A GPU instance without a training asks for nothing.
    """
    engine = Engine(preset("smore-product"))
    cost, earns = 0.1 * 0.5 / 1.5, 0.1 / 1.1
    engine.decide(NOW, [known([[0.5]]), function(0, run_s=0.1), gpu("a", functions=1)])
    assert engine.feasible_s(NOW, "p/f0", 1) == (pytest.approx(0.1), pytest.approx(0.1))
    engine.cluster.spend(0, 10 * earns, NOW)
    assert engine.feasible_s(NOW, "p/f0", 1) == (pytest.approx(cost / earns + 0.1), pytest.approx(0.1))
    engine.decide(NOW, [arrived(0, str(number)) for number in range(4)])
    assert engine.waiting.count("p/f0") == 4
    told = engine.feasible_s(NOW + 0.1, "p/f0", 1)
    assert told == (pytest.approx(5 * cost / earns, abs=0.01), pytest.approx(0.1))
    engine.decide(NOW + 0.2, [gpu("b", None, functions=1)])
    told = engine.feasible_s(NOW + 0.2, "p/f0", 1)
    assert told is not None
    assert told[0] < 0.25
