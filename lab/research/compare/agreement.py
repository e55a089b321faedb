"""
The agreement of a simulation with measurements, metric by metric: in the order of the policies, and in size.

Both sides hold one value for each policy and repeat; repeat k has the same arrivals on both. The orders are compared by
the rank correlations of Spearman (rho) and Kendall (tau-b) over the policies' means. Four policies have few orders, so
two counts are added: the pairs of policies that the measurement separates (the 95 % interval of the paired difference
excludes zero), and those of them in which the simulation has the same sign. Size is the mean absolute error over
policies, with its 95 % interval over repeats.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy.stats import kendalltau, spearmanr

from lab.simulation.metrics import Interval, interval

#: Policy → one value for each repeat.
Values = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """
    The agreement in one metric over ``policies``, those with a value in every repeat on both sides.

    ``spearman``, ``kendall``: -1..1, NaN if all policies of one side are equal or there are fewer than two. ``apart``:
    pairs that the measurement separates. ``alike``: those of them in the same order in the simulation. ``error``: mean
    absolute difference, ``bias``: mean of simulated less measured, both in the metric's unit.
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
    """Raises ValueError if the sides differ in policies or numbers of repeats."""
    if set(measured) != set(simulated) or any(len(measured[name]) != len(simulated[name]) for name in measured):
        raise ValueError(f"{metric}: both sides need the same policies and repeats")
    policies = tuple(name for name in measured if all(map(math.isfinite, (*measured[name], *simulated[name]))))
    ours, theirs = ([math.fsum(side[name]) / len(side[name]) for name in policies] for side in (measured, simulated))
    differences = [
        [theirs - ours for ours, theirs in zip(measured[name], simulated[name], strict=True)] for name in policies
    ]
    by_repeat = list(zip(*differences, strict=True))
    pairs = [
        (first, second) for first, second in combinations(policies, 2) if _apart(measured[first], measured[second])
    ]
    return Agreement(
        metric=metric,
        policies=policies,
        spearman=_rank(spearmanr, ours, theirs),
        kendall=_rank(kendalltau, ours, theirs),
        apart=len(pairs),
        alike=sum(_gap(measured, first, second) * _gap(simulated, first, second) > 0 for first, second in pairs),
        error=interval([math.fsum(map(abs, repeat)) / len(repeat) for repeat in by_repeat]),
        bias=interval([math.fsum(repeat) / len(repeat) for repeat in by_repeat]),
    )


def _gap(side: Values, first: str, second: str) -> float:
    return math.fsum(side[first]) - math.fsum(side[second])


def _apart(first: Sequence[float], second: Sequence[float]) -> bool:
    difference = interval([mine - theirs for mine, theirs in zip(first, second, strict=True)])
    return difference.low > 0 or difference.high < 0


def _rank(correlation: object, ours: Sequence[float], theirs: Sequence[float]) -> float:
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return math.nan
    assert callable(correlation)
    return float(correlation(ours, theirs).statistic)
