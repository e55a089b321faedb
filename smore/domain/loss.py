"""
What a serverful job loses to the functions beside it, estimated causally: against times in which no function may run.

A *closed window* is a short time, drawn at random, in which the run gate of a GPU instance lets no function run. Its
iterations show how fast the ones around it would have been. A drift of the training itself (another input size, a warmer
GPU, a slower disk) changes both alike and cancels; it would not cancel against a solo time that was measured once.
Standard library alone, without clock and randomness: the worker, the policy and the gateway compute the same numbers from
the same windows.

The loss of ``K`` windows. Of window ``i``, ``c_i`` is the mean time of the closed iterations and ``o_i = (b_i + a_i) /
2`` the mean of the means before and after, which lie equally far from it, so that a linear trend drops out of ``o_i -
c_i``::

    1 + L = sum(o_i) / sum(c_i)                       e_i = o_i - (1 + L) c_i
    s = sqrt(sum(e_i^2) / (K (K - 1))) / mean(o)      interval: (1 + L) exp(-+ t(0.975, K - 1) s) - 1

It is the ratio of the paired times and not the mean of their log differences: both agree where the loss is the same in
every window, but where functions come in bursts the mean of logs is the geometric mean of the losses and falls short of
the time that was really lost (at 0 % and 20 % by turns 9.5 % instead of 10 %). ``s`` is the standard error of the log
of the ratio to first order.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Final

#: A job that names no budget (assumption A29), the least that one may have, and the most: iterations that take twenty times
#: as long, for a training that nobody waits for.
DEFAULT_BUDGET: Final = 0.10
LEAST_BUDGET: Final = 0.01
MOST_BUDGET: Final = 19.0

#: Share of the time in which the gate is closed for one job.
PROBE_SHARE: Final = 0.03
#: The longest closing of the gate, seconds.
PROBE_MAX_S: Final = 10.0
#: A window is made long enough for so many whole iterations, and counts with at least so many.
WINDOW_ITERATIONS: Final = 6
LEAST_ITERATIONS: Final = 5
#: The shortest window, seconds: in a shorter one its beginning and end would weigh more than its iterations.
LEAST_WINDOW_S: Final = 0.3
#: Fewer windows give no estimate, because their scatter is not known.
LEAST_WINDOWS: Final = 8
#: The most further windows that a verdict is said to need.
MOST_TO_GO: Final = 10_000
#: Iterations that the fast test needs.
LEAST_RECENT: Final = 20
#: Times what a training may lose: a loss that the fast test surely finds above it takes a step on the ladder.
ALARM: Final = 2.0
#: The parts of the time in which functions, or a guest, may still run beside it, step by step.
LADDER: Final = (0.75, 0.5, 0.25)
#: Two-sided, of every interval here.
CONFIDENCE: Final = 0.95
#: Seconds within which a budget must be provable.
HORIZON_S: Final = 3600.0
#: Probability with which it must then be proven where functions in fact cost nothing.
POWER: Final = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedWindow:
    """
    One closed window and what lay beside it. ``start``, ``end``: closed from, to, epoch seconds.

    ``*_s`` are mean iteration times in seconds, ``*_n`` the iterations that they rest on; ``closed_sd`` is the standard
    deviation of the closed ones. Raises ValueError where a time or a count is not one.
    """

    start: float
    end: float
    before_s: float
    before_n: int
    closed_s: float
    closed_n: int
    closed_sd: float
    after_s: float
    after_n: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and math.isfinite(self.end) and self.start < self.end):
            raise ValueError(f"window: {self.start} to {self.end} is no time")
        for name in ("before_s", "closed_s", "after_s"):
            _positive(getattr(self, name), f"window: {name}")
        if not (math.isfinite(self.closed_sd) and self.closed_sd >= 0):
            raise ValueError(f"window: closed_sd: {self.closed_sd} is no standard deviation")
        if min(self.before_n, self.closed_n, self.after_n) < 1:
            raise ValueError("window: a mean of no iteration")

    @property
    def open_s(self) -> float:
        """Mean iteration time with the gate open, in the middle between before and after."""
        return (self.before_s + self.after_s) / 2


@dataclass(frozen=True, slots=True)
class Sums:
    """
    What an estimate needs of ``windows`` closed windows: the sums of their ``open_s`` and ``closed_s``, and of the
    squares of ``open_s - ratio closed_s``, where ``ratio`` is the first sum over the second.
    """

    windows: int
    open_s: float
    closed_s: float
    squares: float

    @classmethod
    def of(cls, windows: Sequence[ClosedWindow]) -> "Sums":
        """Raises ValueError without a window."""
        if not windows:
            raise ValueError("sums of no window")
        open_s, closed_s = (
            math.fsum(window.open_s for window in windows),
            math.fsum(window.closed_s for window in windows),
        )
        ratio = open_s / closed_s
        return cls(
            len(windows),
            open_s,
            closed_s,
            math.fsum((window.open_s - ratio * window.closed_s) ** 2 for window in windows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """
    What the job loses, as a fraction of its iteration time alone: 0.1 = 10 % slower. ``low`` to ``high`` holds the
    truth with 95 %.
    """

    mean: float
    low: float
    high: float
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Iterations summed up: mean and standard deviation in seconds, and how many."""

    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Sample":
        """Raises ValueError without an iteration."""
        if not seconds:
            raise ValueError("a sample of no iteration")
        mean = math.fsum(seconds) / len(seconds)
        squares = math.fsum((value - mean) ** 2 for value in seconds)
        return cls(mean=mean, sd=math.sqrt(squares / (len(seconds) - 1)) if len(seconds) > 1 else 0.0, n=len(seconds))


def estimate(windows: Sequence[ClosedWindow]) -> Loss | None:
    """
    The loss over all these windows; None = not enough data, fewer than :data:`LEAST_WINDOWS`. Formulas: see the module.
    """
    return estimate_of(Sums.of(windows)) if windows else None


def estimate_of(sums: Sums) -> Loss | None:
    """:func:`estimate` of windows that were summed up elsewhere."""
    count = sums.windows
    if count < LEAST_WINDOWS:
        return None
    ratio = sums.open_s / sums.closed_s
    error = math.sqrt(sums.squares * count / (count - 1)) / sums.open_s
    reach = math.exp(student((1 + CONFIDENCE) / 2, count - 1) * error)
    return Loss(mean=ratio - 1, low=ratio / reach - 1, high=ratio * reach - 1, windows=count)


def surely_lost(sums: Sums) -> float:
    """
    The loss is above this with 95 % (one-sided), by two windows at least: for whoever must act before there are enough for
    :func:`estimate`. -1 of fewer.
    """
    if sums.windows < 2:
        return -1.0
    ratio = sums.open_s / sums.closed_s
    error = math.sqrt(sums.squares * sums.windows / (sums.windows - 1)) / sums.open_s
    return ratio * math.exp(-student(CONFIDENCE, sums.windows - 1) * error) - 1


def missing(windows: int) -> int:
    """How many more windows an estimate needs."""
    return max(0, LEAST_WINDOWS - windows)


class Verdict(StrEnum):
    """Whether a budget was kept, with 95 % confidence; ``unmeasured``: the job's iterations are not compared."""

    KEPT = "kept"
    NOT_KEPT = "not_kept"
    NOT_PROVEN = "not_proven"
    UNMEASURED = "unmeasured"


def judge(loss: Loss | None, budget: float) -> Verdict:
    """The verdict of a measured job: by its interval, which lies below the budget, above it, or around it."""
    if loss is None or loss.low <= budget < loss.high:
        return Verdict.NOT_PROVEN
    return Verdict.KEPT if loss.high <= budget else Verdict.NOT_KEPT


def to_go(loss: Loss | None, windows: int, budget: float) -> int | None:
    """
    How many more windows a verdict needs if the mean and the scatter stay as they are, 0 = it is there. None: more than
    :data:`MOST_TO_GO`, the loss is too close to the budget.

    On the logarithmic scale, on which it is symmetric, the interval narrows with the root of the number of windows, and
    with Student's quantile for it.
    """
    if loss is None:
        return missing(windows)
    if judge(loss, budget) is not Verdict.NOT_PROVEN:
        return 0
    return _until_told(loss, _margin(loss, budget), _error(loss))


def least_to_go(loss: Loss, budget: float) -> int:
    """
    How many more windows a verdict needs at least: as :func:`to_go`, with the loss one standard error further from the
    budget than the mean is. While nothing is proven :func:`to_go` goes with the square of a distance that is hardly
    known, from a few windows to thousands and back; this one stays below four times the windows that there are.
    """
    error = _error(loss)
    return _until_told(loss, _margin(loss, budget) + error, error) or MOST_TO_GO


def _margin(loss: Loss, budget: float) -> float:
    """From the mean to the budget, on the logarithmic scale."""
    return abs(math.log((1 + budget) / (1 + loss.mean)))


def _error(loss: Loss) -> float:
    """The standard error of the mean, on the logarithmic scale."""
    return math.log((1 + loss.high) / (1 + loss.mean)) / student((1 + CONFIDENCE) / 2, loss.windows - 1)


def _until_told(loss: Loss, margin: float, error: float) -> int | None:
    scatter = error * math.sqrt(loss.windows)

    def tells(more: int) -> bool:
        count = loss.windows + more
        return student((1 + CONFIDENCE) / 2, count - 1) * scatter <= margin * math.sqrt(count)

    if not tells(MOST_TO_GO):
        return None
    return max(1, bisect_left(range(MOST_TO_GO), True, key=tells))


def reference(windows: Iterable[ClosedWindow]) -> Sample | None:
    """
    The closed iterations of some windows as one sample, scatter between the windows included; None without a window.
    """
    closed = list(windows)
    if not closed:
        return None
    count = sum(window.closed_n for window in closed)
    mean = math.fsum(window.closed_n * window.closed_s for window in closed) / count
    squares = math.fsum(
        (window.closed_n - 1) * window.closed_sd**2 + window.closed_n * (window.closed_s - mean) ** 2
        for window in closed
    )
    return Sample(mean=mean, sd=math.sqrt(squares / max(1, count - 1)), n=count)


def surely(recent: Sample, closed: Sample) -> float | None:
    """
    The fast test: the loss of the recent iterations is above this with 95 % (one-sided); None = not enough data.

    Wants :data:`LEAST_RECENT` recent iterations with the gate open and :data:`LEAST_ITERATIONS` closed ones::

        s = sqrt(cv_r^2 / n_r + cv_c^2 / n_c)        lower = r / c exp(-t(0.95, n_r + n_c - 2) s) - 1

    ``cv``: standard deviation over mean. It compares with the last closed windows, so it takes a drift since then for a
    loss. It is there to react fast; only the estimate proves. Raises ValueError where a mean is no time.
    """
    if recent.n < LEAST_RECENT or closed.n < LEAST_ITERATIONS:
        return None
    _positive(recent.mean, "recent: mean")
    _positive(closed.mean, "closed: mean")
    error = math.hypot(recent.sd / recent.mean / math.sqrt(recent.n), closed.sd / closed.mean / math.sqrt(closed.n))
    return recent.mean / closed.mean * math.exp(-student(CONFIDENCE, recent.n + closed.n - 2) * error) - 1


def over_budget(recent: Sample, closed: Sample, budget: float) -> bool:
    """Whether :func:`surely` puts the job above its budget now. False without enough data."""
    lower = surely(recent, closed)
    return lower is not None and lower > budget


def window_s(iteration_s: float) -> float:
    """
    How long a window must be: :data:`WINDOW_ITERATIONS` whole iterations and what is cut at both ends, at least the
    stated minimum.
    """
    return max(LEAST_WINDOW_S, (WINDOW_ITERATIONS + 1) * iteration_s)


def resolvable(
    *,
    noise: float,
    iteration_s: float,
    share: float = PROBE_SHARE,
    longest_s: float = PROBE_MAX_S,
    horizon_s: float = HORIZON_S,
) -> float:
    """
    The smallest budget that can be told from noise: where functions in fact cost nothing, the upper bound of the interval
    is within it after ``horizon_s``, with the probability :data:`POWER`. inf: there would be too few windows, or one
    would be longer than ``longest_s``.

    ``noise``: standard deviation of an iteration over its mean, see :func:`noise_of`. With ``n`` iterations in a window
    and ``2 n`` around it, ``K`` windows::

        B = exp((t(0.975, K - 1) + t(0.9, K - 1)) noise sqrt(3 / (2 n K))) - 1

    Raises ValueError for a noise below 0, a time or a share that is not one.
    """
    _positive(iteration_s, "iteration_s")
    _positive(horizon_s, "horizon_s")
    if not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise: {noise} is no relative standard deviation")
    if not 0 <= share < 1:
        raise ValueError(f"share: {share} is not from 0 up to 1")
    length = window_s(iteration_s)
    count = int(horizon_s * share / length)
    if count < LEAST_WINDOWS or length > longest_s:
        return math.inf
    inside = int(length / iteration_s * (1 + 1e-9)) - 1
    error = noise * math.sqrt(1.5 / (inside * count))
    return math.expm1((student((1 + CONFIDENCE) / 2, count - 1) + student(POWER, count - 1)) * error)


def noise_of(p50_s: float, p95_s: float) -> float:
    """
    Relative standard deviation of iterations from two of their percentiles, as profiles hold them: ln(p95 / p50) /
    1.645.

    Exact for log-normal times; outliers beyond the 95th percentile do not show in it. Raises ValueError where they are
    no percentiles.
    """
    _positive(p50_s, "p50_s")
    if not (math.isfinite(p95_s) and p95_s >= p50_s):
        raise ValueError(f"p95_s: {p95_s} is below the median of {p50_s}")
    return math.log(p95_s / p50_s) / 1.645


# ---- Student's t -----------------------------------------------------------------------------------------------------


@cache
@lru_cache(maxsize=4096)
def student(probability: float, freedom: int) -> float:
    """
    Quantile of Student's t with ``freedom`` >= 1 degrees: the x with P(T <= x) = ``probability``. Relative error below
    1e-9.

    By Newton's method, whose steps from the normal quantile on only ever go up: the tail, which is half the regularised
    incomplete beta function I(f / (f + x^2); f / 2, 1 / 2) (Abramowitz and Stegun, 26.7.1), is convex. Raises ValueError outside
    0 < probability < 1.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(f"student: no quantile at {probability} with {freedom} degrees of freedom")
    if probability < 0.5:
        return -student(1 - probability, freedom)
    x = NormalDist().inv_cdf(probability)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    while True:
        density = scale * math.exp(-(freedom + 1) / 2 * math.log1p(x * x / freedom))
        step = (_tail(x, freedom) - (1 - probability)) / density
        x += step
        # A step down is rounding.
        if step <= 1e-12 * x:
            return x


def _tail(x: float, freedom: int) -> float:
    """P(T > x) for x >= 0."""
    return _incomplete_beta(freedom / (freedom + x * x), freedom / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """
    I(x; a, b) by its continued fraction (Abramowitz and Stegun, 26.5.8), which converges fast for x < (a + 1) / (a + b
    + 2).
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    # Lentz's method: value = product of upper / lower.
    tiny = 1e-300
    value, upper, lower = 1.0, 1.0, 0.0
    for step in range(1000):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        lower = 1 / ((1 + term * lower) or tiny)
        upper = (1 + term / upper) or tiny
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-14:
            break
    return front * (value - 1)


def _positive(value: float, what: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{what}: {value} is not a time above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLoss:
    """
    What a report says of one training: its budget, its last iterations, the closed ones before them, and the closed
    windows that were finished a short while ago, each told several times and known by its ``start``.
    """

    id: str
    budget: float
    recent: Sample | None = None
    closed: Sample | None = None
    windows: Sequence[ClosedWindow] = ()


class Step(StrEnum):
    """How far functions are kept from a training."""

    OPEN = "open"
    HELD = "held"
    DUTY_75 = "duty_75"
    DUTY_50 = "duty_50"
    DUTY_25 = "duty_25"
    OFFLOADED = "offloaded"
