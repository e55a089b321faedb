"""
The estimate of what a job loses: a known truth under drift that is not ours, the fast test, budgets that cannot be told
from noise.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from smore.domain import loss
from smore.domain.loss import (
    ClosedWindow,
    Loss,
    Sample,
    Sums,
    Verdict,
    estimate,
    missing,
    over_budget,
    reference,
    resolvable,
    student,
    surely,
    surely_lost,
)

NOISE = 0.05
#: Iterations in a window and on each side of it.
INSIDE = loss.WINDOW_ITERATIONS
#: Mean number of iterations from one window to the next: 3 % of the time is closed.
GAP = 200

#: Factor on the iteration time, of the number of the iteration.
Drift = Callable[[int], float]
WINDOWS = 60
LAST = WINDOWS * GAP


def none(_: int) -> Drift:
    return lambda _: 1.0


def trend(_: int) -> Drift:
    """Half as slow again, over the whole time."""
    return lambda number: 1 + 0.5 * number / LAST


def step(_: int) -> Drift:
    return lambda number: 1.4 if number > 0.37 * LAST else 1.0


def wander(seed: int) -> Drift:
    """A random walk of the log: after 10,000 iterations 20 % away, as a standard deviation."""
    rng, level, last = random.Random(f"walk {seed}"), 0.0, 0

    def drift(number: int) -> float:
        nonlocal level, last
        level += rng.gauss(0, 0.002) * math.sqrt(number - last)
        last = number
        return math.exp(level)

    return drift


def training(
    seed: int, truth: float, drift: Drift, *, windows: int = WINDOWS, bursts: bool = False
) -> list[ClosedWindow]:
    """
    Windows of a job whose iterations take 0.1 s times the drift, with log-normal noise and outliers (1 in 200, two to
    four times as long).

    With the gate open functions make each slower by ``truth``; with ``bursts`` by twice that, half of the time.
    """
    rng = random.Random(seed)
    sigma = math.sqrt(math.log(1 + NOISE**2))
    now, number, busy = 0.0, 0, True

    def iterations(count: int, *, closed: bool = False) -> list[float]:
        nonlocal now, number, busy
        found = []
        for _ in range(count):
            seconds = 0.1 * drift(number) * rng.lognormvariate(-sigma * sigma / 2, sigma)
            if rng.random() < 0.005:
                seconds *= rng.uniform(2, 4)
            if bursts and rng.random() < 1 / 60:
                busy = not busy
            if not closed:
                seconds *= 1 + (2 * truth * busy if bursts else truth)
            found.append(seconds)
            now, number = now + seconds, number + 1
        return found

    made = []
    for _ in range(windows):
        # Far from the window nobody looks: only the time passes.
        number += int(rng.uniform(0.3, 1.7) * GAP) - 4 * INSIDE
        busy = rng.random() < 0.5
        before = iterations(2 * INSIDE)[:INSIDE]
        start, inside = now, Sample.of(iterations(INSIDE, closed=True))
        end, after = now, iterations(2 * INSIDE)[INSIDE:]
        made.append(
            ClosedWindow(
                start=start,
                end=end,
                before_s=Sample.of(before).mean,
                before_n=INSIDE,
                closed_s=inside.mean,
                closed_n=INSIDE,
                closed_sd=inside.sd,
                after_s=Sample.of(after).mean,
                after_n=INSIDE,
            )
        )
    return made


@pytest.mark.parametrize("truth", [0.0, 0.06, 0.3])
@pytest.mark.parametrize("drift", [none, trend, step, wander])
def test_the_interval_holds_the_truth_whatever_drifts(drift: Callable[[int], Drift], truth: float) -> None:
    """With a truth of 0: drift alone is not blamed on functions."""
    held = 0
    for seed in range(100):
        found = estimate(training(seed, truth, drift(seed)))
        assert found is not None
        held += found.low <= truth <= found.high
    assert held >= 90


def test_bursts_count_with_the_time_that_they_cost() -> None:
    """The mean of logs would come to 9.5 % here."""
    means = []
    held = 0
    for seed in range(100):
        found = estimate(training(seed, 0.1, none(seed), windows=100, bursts=True))
        assert found is not None
        means.append(found.mean)
        held += found.low <= 0.1 <= found.high
    assert held >= 90
    assert sum(means) / len(means) == pytest.approx(0.1, abs=0.003)


def test_more_windows_make_it_narrower() -> None:
    few, many = (
        [estimate(training(seed, 0.06, none(seed), windows=windows)) for seed in range(20)] for windows in (16, 144)
    )
    widths = [sum(one.high - one.low for one in found if one is not None) for found in (few, many)]
    assert {one.windows for one in many if one is not None} == {144}
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.25)


def test_too_little_says_so() -> None:
    windows = training(1, 0.06, none(1), windows=loss.LEAST_WINDOWS)
    assert estimate(windows) is not None
    assert estimate(windows[1:]) is None
    assert estimate([]) is None
    with pytest.raises(ValueError, match="no window"):
        Sums.of([])
    assert [missing(count) for count in (0, loss.LEAST_WINDOWS - 1, loss.LEAST_WINDOWS, 100)] == [
        loss.LEAST_WINDOWS,
        1,
        0,
        0,
    ]


def test_by_hand() -> None:
    """Open 1.1 and 1.3 by turns against 1: 20 %, and each pair 0.1 from it."""
    windows = [window(before_s=1.0, after_s=1.2 + 0.4 * (number % 2)) for number in range(10)]
    found = estimate(windows)
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    error = math.sqrt(10 * 0.1**2 / (10 * 9)) / 1.2
    assert (found.low, found.high) == pytest.approx(
        (1.2 * math.exp(-2.262157 * error) - 1, 1.2 * math.exp(2.262157 * error) - 1)
    )


def window(**values: float) -> ClosedWindow:
    plain: dict[str, float] = {
        "start": 10.0,
        "end": 11.0,
        "before_s": 1.0,
        "closed_s": 1.0,
        "after_s": 1.0,
        "closed_sd": 0.1,
        "before_n": 5,
        "closed_n": 5,
        "after_n": 5,
    }
    return ClosedWindow(**(plain | values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"end": 10.0},
        {"start": math.nan},
        {"end": math.inf},
        {"before_s": 0.0},
        {"closed_s": -1.0},
        {"after_s": math.nan},
        {"closed_s": math.inf},
        {"closed_sd": -0.1},
        {"closed_sd": math.nan},
        {"before_n": 0},
        {"closed_n": 0},
        {"after_n": -1},
    ],
)
def test_what_is_no_window_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="window"):
        window(**wrong)


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [
        # Critical values as tables of the distribution give them.
        (0.95, 1, 6.313752), (0.975, 1, 12.706205), (0.975, 2, 4.302653), (0.95, 7, 1.894579), (0.975, 9, 2.262157), (0.995, 4, 4.604095),
        (0.90, 19, 1.327728), (0.975, 30, 2.042272), (0.95, 60, 1.670649), (0.975, 120, 1.979930), (0.5, 3, 0.0),
        (0.025, 9, -2.262157),
    ],
)  # fmt: skip
def test_students_quantile(probability: float, freedom: int, quantile: float) -> None:
    assert student(probability, freedom) == pytest.approx(quantile, abs=1e-6)


def test_students_quantile_approaches_the_normal_one() -> None:
    assert student(0.975, 10**6) == pytest.approx(1.959964, abs=1e-5)
    for probability, freedom in ((0.0, 5), (1.0, 5), (math.nan, 5), (0.9, 0)):
        with pytest.raises(ValueError, match="student"):
            student(probability, freedom)


def test_samples() -> None:
    assert Sample.of([1.0, 3.0]) == Sample(mean=2.0, sd=math.sqrt(2), n=2)
    assert Sample.of([2.0]).sd == 0
    with pytest.raises(ValueError, match="no iteration"):
        Sample.of([])


def test_the_reference_is_all_closed_iterations() -> None:
    assert reference([]) is None
    parts = ([1.0, 1.2, 0.9], [2.0, 2.1], [1.5, 1.4, 1.3, 1.7])
    samples = [Sample.of(part) for part in parts]
    pooled = reference([window(closed_s=one.mean, closed_sd=one.sd, closed_n=one.n) for one in samples])
    whole = Sample.of([seconds for part in parts for seconds in part])
    assert pooled is not None
    assert (pooled.mean, pooled.sd, pooled.n) == pytest.approx((whole.mean, whole.sd, whole.n))


def test_the_fast_test() -> None:
    closed = Sample(mean=0.1, sd=0.005, n=30)
    slow = Sample(mean=0.115, sd=0.006, n=20)
    lower = surely(slow, closed)
    assert lower is not None
    assert 0.10 < lower < 0.15
    assert over_budget(slow, closed, 0.10)
    assert not over_budget(slow, closed, 0.15)
    assert not over_budget(replace(slow, sd=0.06), closed, 0.10), "it may be noise"
    assert surely(replace(slow, n=19), closed) is None
    assert surely(slow, replace(closed, n=4)) is None
    assert not over_budget(replace(slow, n=19), closed, 0.10)
    with pytest.raises(ValueError, match="recent"):
        surely(replace(slow, mean=0.0), closed)


def test_the_fast_test_errs_as_rarely_as_it_says() -> None:
    """At a loss of exactly the budget it may cry wolf in 5 of 100; at half as much again it must see it."""
    rng = random.Random(7)
    wrong = right = 0
    for _ in range(400):
        closed = Sample.of([rng.gauss(0.1, 0.005) for _ in range(30)])
        at_budget, beyond = (
            Sample.of([rng.gauss(0.1 * slow, 0.005 * slow) for _ in range(20)]) for slow in (1.1, 1.15)
        )
        wrong += over_budget(at_budget, closed, 0.10)
        right += over_budget(beyond, closed, 0.10)
    assert wrong <= 32
    assert right >= 360


def test_the_smallest_budget_can_be_proven_and_half_of_it_cannot() -> None:
    """What resolvable promises: of jobs that lose nothing, at least nine in ten are shown to keep that budget."""
    smallest = resolvable(noise=NOISE, iteration_s=0.1, share=0.03, horizon_s=1800)
    count = int(1800 * 0.03 / loss.window_s(0.1))
    rng = random.Random(3)
    shown = {smallest: 0, smallest / 3: 0}
    for _ in range(200):
        windows = []
        for _ in range(count):
            before, closed, after = (Sample.of([rng.gauss(0.1, 0.1 * NOISE) for _ in range(INSIDE)]) for _ in range(3))
            windows.append(window(before_s=before.mean, closed_s=closed.mean, closed_sd=closed.sd, after_s=after.mean))
        found = estimate(windows)
        assert found is not None
        for budget in shown:
            shown[budget] += found.high <= budget
    assert shown[smallest] >= 170
    assert shown[smallest / 3] <= 60


def test_resolvable_budgets() -> None:
    calm = resolvable(noise=0.02, iteration_s=0.1)
    assert 0 < calm < loss.LEAST_BUDGET
    assert resolvable(noise=0.0, iteration_s=0.1) == 0
    assert resolvable(noise=0.2, iteration_s=0.1) > 5 * calm
    assert resolvable(noise=0.02, iteration_s=1.0) > calm
    assert resolvable(noise=0.02, iteration_s=0.1, share=0.01) > calm
    assert resolvable(noise=0.02, iteration_s=0.1, horizon_s=600) > calm
    assert resolvable(noise=0.02, iteration_s=0.1, share=0.0) == math.inf
    assert resolvable(noise=0.02, iteration_s=10.0) == math.inf, "too few windows in the time"
    for wrong in (
        {"noise": -0.1},
        {"noise": math.nan},
        {"iteration_s": 0.0},
        {"share": 1.0},
        {"share": -0.1},
        {"horizon_s": math.inf},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            resolvable(**{"noise": 0.02, "iteration_s": 0.1} | wrong)


@pytest.mark.parametrize(
    ("low", "mean", "high", "verdict", "to_go"),
    [
        (0.01, 0.04, 0.07, Verdict.KEPT, 0),
        (0.12, 0.15, 0.18, Verdict.NOT_KEPT, 0),
        # The interval must become half as wide: four times as many windows, less what Student's quantile falls by then.
        (1.05 / (1.10 / 1.05) ** 2 - 1, 0.05, 1.05 * (1.10 / 1.05) ** 2 - 1, Verdict.NOT_PROVEN, 53),
        (0.0, 0.0999999, 0.2, Verdict.NOT_PROVEN, None),
    ],
)
def test_what_is_missing_to_a_verdict(
    low: float, mean: float, high: float, verdict: Verdict, to_go: int | None
) -> None:
    known = Loss(low=low, mean=mean, high=high, windows=20)
    assert loss.judge(known, 0.10) is verdict
    needed = loss.to_go(known, 20, 0.10)
    assert needed == to_go


def test_a_training_that_nobody_waits_for_is_soon_told_to_be_within_its_budget() -> None:
    for low, high in ((-0.2, 1.0), (2.0, 15.0)):
        known = Loss(low=low, mean=(low + high) / 2, high=high, windows=8)
        assert loss.judge(known, loss.MOST_BUDGET) is Verdict.KEPT
    wide = Loss(low=1.0, mean=6.0, high=25.0, windows=8)
    assert loss.judge(wide, loss.MOST_BUDGET) is Verdict.NOT_PROVEN
    assert 0 < loss.least_to_go(wide, loss.MOST_BUDGET) <= (loss.to_go(wide, 8, loss.MOST_BUDGET) or 0)


def test_what_is_missing_at_least_stays_bounded_while_the_forecast_does_not() -> None:
    """At a loss near the budget the forecast goes from a few windows to thousands, and back."""
    rng, forecasts, least = random.Random(5), [], []
    windows: list[ClosedWindow] = []
    for _ in range(60):
        before, closed, after = (rng.gauss(0.1 * slow, 0.004) for slow in (1.1, 1.0, 1.1))
        windows.append(window(before_s=before, closed_s=closed, after_s=after))
        known = estimate(windows)
        if known is None or loss.judge(known, 0.10) is not Verdict.NOT_PROVEN:
            continue
        forecasts.append(loss.to_go(known, len(windows), 0.10) or loss.MOST_TO_GO)
        least.append(loss.least_to_go(known, 0.10))
        assert 1 <= least[-1] <= min(forecasts[-1], 4 * len(windows))
    assert min(forecasts) < 10 and max(forecasts) > 500


def test_without_an_estimate_nothing_is_proven() -> None:
    assert loss.judge(None, 0.10) is Verdict.NOT_PROVEN
    assert [loss.to_go(None, windows, 0.10) for windows in (0, 5)] == [8, 3]


def test_what_is_surely_lost_needs_two_windows_and_is_below_the_mean() -> None:
    def sums(*losses: float) -> Sums:
        return Sums.of(
            [
                ClosedWindow(
                    start=i,
                    end=i + 1,
                    before_s=1 + x,
                    before_n=5,
                    closed_s=1,
                    closed_n=5,
                    closed_sd=0,
                    after_s=1 + x,
                    after_n=5,
                )
                for i, x in enumerate(losses)
            ]
        )

    assert surely_lost(sums(0.5)) == -1.0
    assert surely_lost(sums(0.5, 0.5)) == pytest.approx(0.5)
    # s = sqrt(2 * 0.1^2 / (2 * 1)) / 1.5; t(0.95, 1) = 6.31375.
    assert surely_lost(sums(0.4, 0.6)) == pytest.approx(1.5 * math.exp(-6.31375 * 0.1 / 1.5) - 1, abs=1e-5)
