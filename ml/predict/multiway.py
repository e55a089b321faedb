"""
Weights of Eq. 3 and 4 (``smore/domain/degradation.py``) learned from observations, and what they are worth on sets of
workloads that they have not seen (section IV-C).

The paper adds "the error times a coefficient" to the weights (assumption A10).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ml.predict.samples import Direction
from ml.rows import BadRow, Workload
from smore.domain.degradation import (
    HIGHEST,
    K_MAX,
    LOWEST,
    Kind,
    Neighbour,
    WeightedSum,
    Weights,
    of_function,
    of_training,
)
from smore.messages.degradation import Weight

#: (victim, other) to the pair-wise degradation of the victim, a fraction >= 0.
PairWise: TypeAlias = Callable[[Workload, Workload], float]
#: D_tr, D_fn and D_ff. They may raise BadRow or KeyError for an unknown pair.
Pairs: TypeAlias = Mapping[Direction, PairWise]
#: The sum: Eq. 3 (the victim is a training) or Eq. 4 (a function).
Side: TypeAlias = Literal["training", "function"]


def published(weights: Weights) -> list[Weight]:
    """
    The weights for a table: each pair of models from its lowest learned k up to K_MAX, so that a reader needs no rule
    for gaps.
    """
    pairs = sorted({(kind, victim, other) for kind, _, victim, other in weights.learned})
    listed = []
    for kind, victim, other in pairs:
        first = min(k for k in range(2, K_MAX + 1) if (kind, k, victim, other) in weights.learned)
        for k in range(first, K_MAX + 1):
            value = weights.value(kind, k, victim, other)
            listed.append(Weight(kind=kind, k=k, victim=victim, other=other, value=value))
    return listed


def weights_of(listed: Iterable[Weight]) -> Weights:
    """
    The inverse of :func:`published`: a weight equal to that of k - 1 counts as never learned.

    Raises BadRow for a weight out of range.
    """
    values: dict[tuple[Kind, int, str, str], float] = {}
    for weight in listed:
        if weight.kind not in get_args(Kind) or not 2 <= weight.k <= K_MAX or not LOWEST <= weight.value <= HIGHEST:
            raise BadRow(f"{weight} is not a weight: k lies in 2..{K_MAX}, the value in {LOWEST:g}..{HIGHEST:g}")
        values[weight.kind, weight.k, weight.victim, weight.other] = weight.value
    return Weights(
        learned={
            (kind, k, victim, other): value
            for (kind, k, victim, other), value in values.items()
            if values.get((kind, k - 1, victim, other)) != value
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """
    One measured degradation ``actual`` (a raw fraction) of ``victim``, measured ``at`` (epoch seconds).

    ``beside``: the functions, each as often as it ran, and the training if there is one that is not the victim.
    """

    victim: Workload
    beside: tuple[Workload, ...]
    actual: float
    at: float

    @property
    def side(self) -> Side:
        return self.victim.role

    @property
    def group(self) -> tuple[Workload, ...]:
        """The sorted workloads: equal for all observations of one set."""
        return tuple(sorted((self.victim, *self.beside)))


def learn(observations: Iterable[Observation], pairs: Pairs, *, epochs: int = 30) -> Weights:
    """
    Weights learned from observations in ``epochs`` passes in the order of measurement, so that the newest count most.

    Raises BadRow for an observed degradation that is not finite or a pair-wise one that is negative or not finite, and
    whatever ``pairs`` raises.
    """
    in_order = sorted(observations, key=lambda observation: observation.at)
    for observation in in_order:
        if not math.isfinite(observation.actual):
            raise BadRow(f"the observed degradation is {observation.actual}")
    cases = [(_case(observation, pairs), observation.actual) for observation in in_order]
    weights = Weights()
    for _ in range(epochs):
        for predicted, actual in cases:
            weights.learn(predicted, actual)
    return weights


def mean_error(weights: Weights, observations: Iterable[Observation], pairs: Pairs) -> float:
    """
    Mean absolute error of Eq. 3 and 4 over at least one observation, a fraction. Raises whatever ``pairs`` raises.
    """
    return _mean(_error(weights, observation, pairs) for observation in observations)


def _case(observation: Observation, pairs: Pairs) -> WeightedSum[str]:
    """Eq. 3 or 4 for an observation."""
    victim, functions = observation.victim, [other for other in observation.beside if other.role == "function"]
    if observation.side == "training":
        return of_training(victim.model, [_neighbour(victim, j, pairs["training"]) for j in functions])
    trainings = [_neighbour(victim, i, pairs["function"]) for i in observation.beside if i.role == "training"]
    others = [_neighbour(victim, w, pairs["functions"]) for w in functions]
    return of_function(victim.model, trainings, others)


def _neighbour(victim: Workload, other: Workload, pair: PairWise) -> Neighbour[str]:
    degradation = pair(victim, other)
    if not 0 <= degradation < math.inf:
        raise BadRow(f"the degradation by {other.model} is {degradation}, expected a number of at least 0")
    return Neighbour(other.model, degradation)


def _error(weights: Weights, observation: Observation, pairs: Pairs) -> float:
    return abs(observation.actual - _case(observation, pairs).value(weights.value))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
