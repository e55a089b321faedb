"""One point of ``lab.bench.overload``: a rate, and the figures at it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.bench.overload.client import BLOCK_S
from lab.simulation.metrics import wilson as interval_of_share
from smore.domain.loss import Loss, student


# ---- one point -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """
    The figures at one rate (per second), of one or several turns of ``seconds``; the first turn ``began`` at that time
    (epoch seconds).

    ``statuses``: all requests by status, 0 = no answer. ``named_a_time``: refusals with a Retry-After. ``met``: answered
    200 within the deadline by the client's clock; ``met_platform`` of ``ended_platform`` by the platform's clock.
    ``functions``: met, admitted, refused of each. ``goodput``: met per second; ``by_turn``: of each turn. ``harvest``:
    solo device-seconds of the met, per second; ``busy``: device-seconds of all runs per second, a batch counted once.
    ``losses`` by training, None = too few ``windows``. ``arrivals``: for each turn (seconds from the beginning of the
    warm-up, function) of all requests.
    """

    began: float
    rate: float
    seconds: float
    submitted: int
    admitted: int
    refused: int
    named_a_time: int
    met: int
    ended_platform: int
    met_platform: int
    expired: int
    statuses: Mapping[int, int]
    goodput: Estimate
    by_turn: Sequence[float]
    harvest: Estimate
    busy: float
    batch: float
    p50_ms: float
    p95_ms: float
    functions: Mapping[str, Mapping[str, int]]
    losses: Mapping[str, Loss | None]
    windows: Mapping[str, int]
    arrivals: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]]

    @property
    def worst(self) -> Loss | None:
        """The largest loss; None where a training has no estimate."""
        losses = [loss for loss in self.losses.values() if loss is not None]
        return max(losses, key=lambda loss: loss.mean) if losses and len(losses) == len(self.losses) else None


def wilson(good: int, of: int) -> Estimate:
    """A share with its interval (Wilson 1927); NaN where ``of`` is 0."""
    if not of:
        return Estimate(value=math.nan, low=math.nan, high=math.nan)
    low, high = interval_of_share(good / of, of)
    return Estimate(value=good / of, low=low, high=high)


def per_second(
    at: NDArray[np.float64], amount: NDArray[np.float64], begins: Sequence[float], seconds: float
) -> Estimate:
    """
    The sum of ``amount`` (of events at the times ``at``) per second, within ``seconds`` from each of ``begins`` on. The
    interval comes from the variance between blocks, which are assumed independent.
    """
    blocks = max(2, round(seconds / BLOCK_S))
    sums = [np.histogram(at, bins=blocks, range=(begin, begin + seconds), weights=amount)[0] for begin in begins]
    rates = np.concatenate(sums) / (seconds / blocks)
    mean = float(rates.mean())
    reach = student(0.975, len(rates) - 1) * float(rates.std(ddof=1)) / math.sqrt(len(rates))
    return Estimate(value=mean, low=max(0.0, mean - reach), high=mean + reach)


def ratio(numerator: Estimate, denominator: Estimate) -> Estimate:
    """The quotient of independent estimates: their relative half widths add in squares."""
    value = numerator.value / denominator.value
    spread = math.hypot(
        (numerator.high - numerator.value) / numerator.value, (denominator.high - denominator.value) / denominator.value
    )
    return Estimate(value=value, low=value * math.exp(-spread), high=value * math.exp(spread))
