"""
Degradation beside several neighbours, from that of pairs: Eq. 3 and 4 of the paper (docs/paper.md), and their weights.

    training i, functions S:  sum over j in S of gamma[k, M_i, M_j] D_tr[i, j]                                        (Eq. 3)
    function j in S:          alpha[k, M_j, M_i] D_fn[j, i] + sum over w in S, w != j, of beta[k, M_j, M_w] D_ff[j, w]  (Eq. 4)

D is the degradation that one neighbour causes alone, a fraction of at least 0. ``k`` is the number of functions, one
less where there is no training: two functions alone are a pair, whose degradation was measured. Beside a second training
(which the paper has not) a function's sum has a term for each, and its ``k`` is one more; what each training loses to
functions is counted as if it were alone with them. All weights start at
one. The weights of ``k`` = 1 stay there, because the error of a pair belongs to the pair-wise predictor (assumption
A11). Functions of one model share a weight whatever their batch (assumption A9), so their degradations are added before
they are weighted; a function that runs several times counts as often.

``scheduler/policy/kernel.py`` has the same two sums compiled, over arrays and for every kind of batch at once, because
a decision has microseconds; ``tests/unit/scheduler/policy/test_degradation.py`` holds it equal to these functions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeAlias, TypeVar

#: Whose weight it is: of a training (gamma), of a function beside a training (alpha), of a function beside another (beta).
Kind: TypeAlias = Literal["training", "function", "functions"]

#: Largest k with weights of its own; larger sets use these weights (assumption A12).
K_MAX: Final = 8
#: Bounds of a weight (assumption A10).
LOWEST, HIGHEST = 0.0, 10.0

#: With the error e and the pair-wise degradation x of a weight, it grows by ETA e x / (EPS + sum x^2) over all weights of
#: the sum (assumption A10). EPS protects neighbours that cost next to nothing: a term with x^2 far below it hardly changes
#: its weight.
ETA: Final = 0.1
EPS: Final = 1e-3

#: A model: its name, or its number in a table.
M = TypeVar("M", str, int)


@dataclass(frozen=True, slots=True)
class Neighbour(Generic[M]):
    """A co-runner: its model, and the degradation (>= 0) that it causes alone."""

    model: M
    degradation: float


@dataclass(frozen=True, slots=True)
class WeightedSum(Generic[M]):
    """Eq. 3 or 4 for one victim: k, and the pair-wise degradations by (kind, victim's model, neighbour's model)."""

    k: int
    terms: Mapping[tuple[Kind, M, M], float]

    def value(self, weight: Callable[[Kind, int, M, M], float]) -> float:
        """The degradation, a fraction. ``weight``: kind, k up to K_MAX, victim's model, neighbour's model → weight."""
        k = min(self.k, K_MAX)
        return math.fsum(weight(kind, k, victim, other) * x for (kind, victim, other), x in self.terms.items())


def of_training(training: M, functions: Sequence[Neighbour[M]], *, unpaired: int = 0) -> WeightedSum[M]:
    """
    Eq. 3 for a training of the model ``training``. ``unpaired``: further functions there whose pairs nobody knows; they
    count in k alone.
    """
    terms: dict[tuple[Kind, M, M], float] = {}
    for neighbour in functions:
        _add(terms, ("training", training, neighbour.model), neighbour)
    return WeightedSum(len(functions) + unpaired, terms)


def of_function(
    function: M, trainings: Sequence[Neighbour[M]], others: Sequence[Neighbour[M]], *, unpaired: int = 0
) -> WeightedSum[M]:
    """
    Eq. 4 for a function of the model ``function`` beside trainings and other functions; the paper has one training.
    ``unpaired``: further neighbours whose pairs nobody knows, a training among them; they count in k alone.
    """
    terms: dict[tuple[Kind, M, M], float] = {}
    for training in trainings:
        _add(terms, ("function", function, training.model), training)
    for neighbour in others:
        _add(terms, ("functions", function, neighbour.model), neighbour)
    return WeightedSum(max(1, len(trainings) + len(others) + unpaired), terms)


def _add(terms: dict[tuple[Kind, M, M], float], key: tuple[Kind, M, M], neighbour: Neighbour[M]) -> None:
    terms[key] = terms.get(key, 0.0) + neighbour.degradation


@dataclass(slots=True)
class Weights:
    """
    Weights by kind, k, victim's model and other's model, of one device and sharing mode. A weight that was never
    learned is that of k - 1, down to one (assumption A12).
    """

    learned: dict[tuple[Kind, int, str, str], float] = field(default_factory=dict)

    def value(self, kind: Kind, k: int, victim: str, other: str) -> float:
        for learned_k in range(min(k, K_MAX), 1, -1):
            weight = self.learned.get((kind, learned_k, victim, other))
            if weight is not None:
                return weight
        return 1.0

    def learn(self, predicted: WeightedSum[str], actual: float) -> float:
        """
        Learn from the observed degradation ``actual`` (finite; noise may make it negative). Weights of pairs that cost
        nothing stay as they are.

        Returns the error before the update, observed less predicted.
        """
        error = actual - predicted.value(self.value)
        k = min(predicted.k, K_MAX)
        if k < 2:
            return error
        power = EPS + math.fsum(x * x for x in predicted.terms.values())
        for (kind, victim, other), x in predicted.terms.items():
            if x:
                value = self.value(kind, k, victim, other) + ETA * error * (x / power)
                self.learned[kind, k, victim, other] = min(HIGHEST, max(LOWEST, value))
        return error
