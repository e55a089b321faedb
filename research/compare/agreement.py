"""
Whether a simulation agrees with what was measured, metric by metric: in the order of the policies, and in size.

Both sides hold one value for each policy and repeat; repeat k of either side is the same arrivals. The order is
compared by the rank correlations of Spearman (rho) and Kendall (tau-b) over the policies' means. Four policies have few
orders, so beside them stands how many pairs of policies the measurement tells apart at all (the 95 % interval of the
paired difference does not hold zero), and in how many of those the simulation has the same sign. Size is the mean
absolute error over policies, with its 95 % interval over repeats.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy.stats import kendalltau, spearmanr  # type: ignore[import-untyped]

from scheduler.simulation.metrics import Interval, interval

#: Policy → one value for each repeat.
Values = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """
    Of one metric over ``policies``, those that have a value in every repeat on both sides.

    ``spearman``, ``kendall``: -1..1, NaN where one side puts all policies level or there are fewer than two. ``apart``:
    pairs that the measurement tells apart; ``alike``: of those, the ones in the same order in the simulation.
    ``error``: mean absolute difference, ``bias``: mean of simulated less measured, both in the metric's unit.
    """

    metric: str
    policies: tuple[str, ...]
    spearman: float
    kendall: float
    apart: int
    alike: int
    error: Interval
    bias: Interval


def agreement(metric: str, measured: Values, simulated: Values) -> Agreement:
    """Raises ValueError where the sides do not have the same policies or numbers of repeats."""
    if set(measured) != set(simulated) or any(len(measured[name]) != len(simulated[name]) for name in measured):
        raise ValueError(f"{metric}: both sides need the same policies and repeats")
    known = tuple(name for name in measured if all(map(math.isfinite, (*measured[name], *simulated[name]))))
    ours, theirs = ([math.fsum(side[name]) / len(side[name]) for name in known] for side in (measured, simulated))
    differences = [
        [theirs - ours for ours, theirs in zip(measured[name], simulated[name], strict=True)] for name in known
    ]
    by_repeat = list(zip(*differences, strict=True))
    pairs = [(one, other) for one, other in combinations(known, 2) if _apart(measured[one], measured[other])]
    return Agreement(
        metric=metric,
        policies=known,
        spearman=_rank(spearmanr, ours, theirs),
        kendall=_rank(kendalltau, ours, theirs),
        apart=len(pairs),
        alike=sum(_gap(measured, one, other) * _gap(simulated, one, other) > 0 for one, other in pairs),
        error=interval([math.fsum(map(abs, each)) / len(each) for each in by_repeat]),
        bias=interval([math.fsum(each) / len(each) for each in by_repeat]),
    )


def _gap(side: Values, one: str, other: str) -> float:
    return math.fsum(side[one]) - math.fsum(side[other])


def _apart(one: Sequence[float], other: Sequence[float]) -> bool:
    found = interval([mine - theirs for mine, theirs in zip(one, other, strict=True)])
    return found.low > 0 or found.high < 0


def _rank(correlation: object, ours: Sequence[float], theirs: Sequence[float]) -> float:
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return math.nan
    assert callable(correlation)
    return float(correlation(ours, theirs).statistic)
