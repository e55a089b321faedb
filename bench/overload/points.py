"""One point of ``bench.overload``: a rate, and the figures at it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.overload.client import BLOCK_S
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
    The figures at one rate (per second), in one turn of ``seconds`` or in several; the first ``began`` then (epoch
    seconds).

    ``statuses``: all requests by answer, 0 = none. ``met``: answered well within the deadline, by the client;
    ``met_platform`` of ``ended_platform`` by the platform's clock. ``functions``: met, admitted, refused of each.
    ``goodput``: met per second; ``by_turn``: the same of each turn; ``harvest``: device-seconds per second; ``busy``:
    the same of all runs, as slow as they were and batches counted once. ``losses`` by training, None = not enough
    ``windows``. ``arrivals``: (seconds from the beginning of the warm-up, function) of all that were sent, by turn.
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
        """The largest loss; None while one is not known."""
        known = [loss for loss in self.losses.values() if loss is not None]
        return max(known, key=lambda loss: loss.mean) if known and len(known) == len(self.losses) else None


def wilson(good: int, of: int) -> Estimate:
    """A share with its interval (Wilson 1927); NaN of none."""
    if not of:
        return Estimate(value=math.nan, low=math.nan, high=math.nan)
    z, share = 1.96, good / of
    middle, reach = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return Estimate(value=share, low=(middle - reach) / (1 + z * z / of), high=(middle + reach) / (1 + z * z / of))


def per_second(
    at: NDArray[np.float64], amount: NDArray[np.float64], begins: Sequence[float], seconds: float
) -> Estimate:
    """
    Sum of ``amount`` per second, over ``seconds`` from each of ``begins`` on; the interval from the scatter of blocks
    (assumed independent).
    """
    blocks = max(2, round(seconds / BLOCK_S))
    sums = [np.histogram(at, bins=blocks, range=(begin, begin + seconds), weights=amount)[0] for begin in begins]
    rates = np.concatenate(sums) / (seconds / blocks)
    mean = float(rates.mean())
    reach = student(0.975, len(rates) - 1) * float(rates.std(ddof=1)) / math.sqrt(len(rates))
    return Estimate(value=mean, low=max(0.0, mean - reach), high=mean + reach)


def ratio(one: Estimate, other: Estimate) -> Estimate:
    """``one`` over ``other``, both known independently: their relative half widths add in squares."""
    value = one.value / other.value
    spread = math.hypot((one.high - one.value) / one.value, (other.high - other.value) / other.value)
    return Estimate(value=value, low=value * math.exp(-spread), high=value * math.exp(spread))
