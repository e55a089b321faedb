"""
Degradation beside several functions, from that of pairs: weighted sums (section IV-C, Eq. 3 and 4).

    training i, functions S:  sum over j in S of gamma[k, M_i, M_j] D_tr[i, j]                                        (Eq. 3)
    function j in S:          alpha[k, M_j, M_i] D_fn[j, i] + sum over w in S, w != j, of beta[k, M_j, M_w] D_ff[j, w]  (Eq. 4)

D is the degradation that one neighbour causes alone. ``k`` is the number of functions |S|, but 1 for two functions
without a training, which are a pair with the degradation D_ff. All weights start at one. The weights of ``k`` = 1 stay
there, because the error of a pair belongs to the pair-wise predictor (assumption A11). The others learn from
observations: the paper adds "the error times a coefficient" to them; :data:`Update` lists the readings of that sentence
(assumption A10). Functions of one model share a weight whatever their batch (assumption A9), so their degradations are
added before they are weighted; a function that runs several times counts as often.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from ml.measure.rows import BadRow, Workload
from ml.predict.samples import Direction
from smore.messages.degradation import Kind, Weight

#: Largest k with weights of its own; larger sets use these weights (assumption A12).
K_MAX: Final = 8
#: Bounds of a weight (assumption A10).
LOWEST, HIGHEST = 0.0, 10.0

#: With the error e, the pair-wise degradation x of a weight and the coefficient eta, a weight grows by: ``nlms`` eta e
#: x / (eps + sum x^2) over all weights of the sum; ``literal`` eta e; ``grad`` eta e x; ``off`` nothing.
Update: TypeAlias = Literal["nlms", "literal", "grad", "off"]

#: (victim, other) to the pair-wise degradation of the victim, a fraction >= 0.
PairWise: TypeAlias = Callable[[Workload, Workload], float]
#: D_tr, D_fn and D_ff. They may raise BadRow or KeyError for an unknown pair.
Pairs: TypeAlias = Mapping[Direction, PairWise]
#: The sum: Eq. 3 (the victim is a training) or Eq. 4 (a function).
Side: TypeAlias = Literal["training", "function"]

_Key: TypeAlias = tuple[Kind, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A co-runner: the name of its model, and the degradation (>= 0) that it causes alone."""

    model: str
    degradation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """
    How weights learn. ``eps`` protects neighbours that cost next to nothing: a term with x^2 far below ``eps`` hardly
    changes its weight.
    """

    update: Update = "nlms"
    eta: float = 0.1
    eps: float = 1e-3

    def __post_init__(self) -> None:
        if self.update not in get_args(Update):
            raise ValueError(f"update is {self.update!r}, expected one of {', '.join(get_args(Update))}")
        if not 0 < self.eta < 2:
            raise ValueError(f"eta is {self.eta}: the normalised update is stable only between 0 and 2")
        if not self.eps > 0:
            raise ValueError(f"eps is {self.eps}, expected more than 0")


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

    def published(self) -> list[Weight]:
        """
        The weights for a table: each pair of models from its lowest learned k up to K_MAX, so that a reader needs no
        rule for gaps.
        """
        pairs = sorted({(kind, victim, other) for kind, _, victim, other in self.learned})
        weights = []
        for kind, victim, other in pairs:
            first = min(k for k in range(2, K_MAX + 1) if (kind, k, victim, other) in self.learned)
            for k in range(first, K_MAX + 1):
                weights.append(
                    Weight(kind=kind, k=k, victim=victim, other=other, value=self.value(kind, k, victim, other))
                )
        return weights

    @classmethod
    def of(cls, published: Iterable[Weight]) -> "Weights":
        """
        The inverse of :meth:`published`: a weight equal to that of k - 1 counts as never learned.

        Raises BadRow for a weight out of range.
        """
        values: dict[tuple[Kind, int, str, str], float] = {}
        for weight in published:
            if weight.kind not in get_args(Kind) or not 2 <= weight.k <= K_MAX or not LOWEST <= weight.value <= HIGHEST:
                raise BadRow(f"{weight} is not a weight: k lies in 2..{K_MAX}, the value in {LOWEST:g}..{HIGHEST:g}")
            values[weight.kind, weight.k, weight.victim, weight.other] = weight.value
        return cls(
            learned={
                (kind, k, victim, other): value
                for (kind, k, victim, other), value in values.items()
                if values.get((kind, k - 1, victim, other)) != value
            }
        )


def training_degradation(weights: Weights, training: str, functions: Sequence[Neighbour]) -> float:
    """
    Eq. 3 for a training of the model ``training``, a fraction. Raises BadRow for a pair-wise degradation that is
    negative or not finite.
    """
    return _sum(weights, len(functions), _training_terms(training, functions))


def function_degradation(
    weights: Weights, function: str, training: Neighbour | None, others: Sequence[Neighbour]
) -> float:
    """Eq. 4 for a function beside a training (None = none) and ``others``, a fraction. Raises BadRow as Eq. 3 does."""
    return _sum(weights, _k(training, others), _function_terms(function, training, others))


def update_training(
    weights: Weights, training: str, functions: Sequence[Neighbour], actual: float, rule: UpdateRule
) -> float:
    """
    Learn from the observed degradation of a training (raw: noise may make it negative).

    Returns the error before the update, observed less predicted. Raises BadRow for a value that is not finite, and then
    leaves the weights unchanged.
    """
    return _learn(weights, len(functions), _training_terms(training, functions), actual, rule)


def update_function(
    weights: Weights,
    function: str,
    training: Neighbour | None,
    others: Sequence[Neighbour],
    actual: float,
    rule: UpdateRule,
) -> float:
    """Learn from the observed degradation of a function; see :func:`update_training`."""
    return _learn(weights, _k(training, others), _function_terms(function, training, others), actual, rule)


def _k(training: Neighbour | None, others: Sequence[Neighbour]) -> int:
    return 1 if training is None and len(others) == 1 else len(others) + 1


def _training_terms(training: str, functions: Sequence[Neighbour]) -> dict[_Key, float]:
    terms: dict[_Key, float] = {}
    for neighbour in functions:
        _add(terms, ("training", training, neighbour.model), neighbour)
    return terms


def _function_terms(function: str, training: Neighbour | None, others: Sequence[Neighbour]) -> dict[_Key, float]:
    terms: dict[_Key, float] = {}
    if training is not None:
        _add(terms, ("function", function, training.model), training)
    for neighbour in others:
        _add(terms, ("functions", function, neighbour.model), neighbour)
    return terms


def _add(terms: dict[_Key, float], key: _Key, neighbour: Neighbour) -> None:
    if not 0 <= neighbour.degradation < math.inf:
        raise BadRow(
            f"the degradation by {neighbour.model} is {neighbour.degradation}, expected a number of at least 0"
        )
    terms[key] = terms.get(key, 0.0) + neighbour.degradation


def _sum(weights: Weights, k: int, terms: dict[_Key, float]) -> float:
    return math.fsum(weights.value(kind, k, victim, other) * x for (kind, victim, other), x in terms.items())


def _learn(weights: Weights, k: int, terms: dict[_Key, float], actual: float, rule: UpdateRule) -> float:
    if not math.isfinite(actual):
        raise BadRow(f"the observed degradation is {actual}")
    k = min(k, K_MAX)
    error = actual - _sum(weights, k, terms)
    if k < 2 or rule.update == "off":
        return error
    power = rule.eps + math.fsum(x * x for x in terms.values())
    for (kind, victim, other), x in terms.items():
        step = {"nlms": x / power, "literal": 1.0, "grad": x}[rule.update]
        value = weights.value(kind, k, victim, other) + rule.eta * error * step
        weights.learned[kind, k, victim, other] = min(HIGHEST, max(LOWEST, value))
    return error


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """
    Mean absolute errors, fractions, over ``n`` observations in ``groups`` distinct sets of workloads: ``ones`` with all
    weights one, ``learned`` with weights learned from the other sets, ``in_sample`` with weights learned from all sets.
    """

    n: int
    groups: int
    ones: float
    learned: float
    in_sample: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The errors of Eq. 3 and of Eq. 4; None without such an observation."""

    training: Errors | None
    function: Errors | None


def learn(
    observations: Iterable[Observation], pairs: Pairs, *, rule: UpdateRule | None = None, epochs: int = 30
) -> Weights:
    """
    Weights learned from observations in ``epochs`` passes in the order of measurement, so that the newest count most.

    Raises BadRow for an observed degradation that is not finite, and whatever ``pairs`` raises.
    """
    rule = rule or UpdateRule()
    in_order = sorted(observations, key=lambda observation: observation.at)
    cases = [(*_case(observation, pairs), observation.actual) for observation in in_order]
    weights = Weights()
    for _ in range(epochs):
        for k, terms, actual in cases:
            _learn(weights, k, terms, actual, rule)
    return weights


def mean_error(weights: Weights, observations: Iterable[Observation], pairs: Pairs) -> float:
    """
    Mean absolute error of Eq. 3 and 4 over at least one observation, a fraction. Raises whatever ``pairs`` raises.
    """
    return _mean(_error(weights, observation, pairs) for observation in observations)


def evaluate(
    observations: Sequence[Observation],
    pairs: Pairs,
    *,
    rule: UpdateRule | None = None,
    epochs: int = 30,
    folds: int = 0,
    seed: int = 0,
) -> Evaluation:
    """
    The errors of learned weights, cross-validated over distinct sets of workloads.

    Whole sets are left out, because repeats of one set are not independent. ``folds`` = 0 leaves out one set at a time;
    otherwise ``seed`` decides which sets are left out together. Weights are learned as in :func:`learn`.
    """
    groups = list(dict.fromkeys(observation.group for observation in observations))
    random.Random(seed).shuffle(groups)
    parts = min(folds or len(groups), len(groups))
    held_out: list[tuple[Observation, float]] = []
    for part in range(parts):
        absent = set(groups[part::parts])
        weights = learn(
            [observation for observation in observations if observation.group not in absent],
            pairs,
            rule=rule,
            epochs=epochs,
        )
        held_out += [
            (observation, _error(weights, observation, pairs))
            for observation in observations
            if observation.group in absent
        ]
    everything = learn(observations, pairs, rule=rule, epochs=epochs)

    def errors(side: Side) -> Errors | None:
        chosen = [(observation, error) for observation, error in held_out if observation.side == side]
        if not chosen:
            return None
        return Errors(
            n=len(chosen),
            groups=len({observation.group for observation, _ in chosen}),
            ones=mean_error(Weights(), (observation for observation, _ in chosen), pairs),
            learned=_mean(error for _, error in chosen),
            in_sample=mean_error(everything, (observation for observation, _ in chosen), pairs),
        )

    return Evaluation(training=errors("training"), function=errors("function"))


def _case(observation: Observation, pairs: Pairs) -> tuple[int, dict[_Key, float]]:
    """k and the terms of Eq. 3 or 4 for an observation."""
    victim, functions = observation.victim, [other for other in observation.beside if other.role == "function"]
    if observation.side == "training":
        slowed_by = [Neighbour(model=j.model, degradation=pairs["training"](victim, j)) for j in functions]
        return len(slowed_by), _training_terms(victim.model, slowed_by)
    trainings = [
        Neighbour(model=i.model, degradation=pairs["function"](victim, i))
        for i in observation.beside
        if i.role == "training"
    ]
    training = trainings[0] if trainings else None
    others = [Neighbour(model=w.model, degradation=pairs["functions"](victim, w)) for w in functions]
    return _k(training, others), _function_terms(victim.model, training, others)


def _error(weights: Weights, observation: Observation, pairs: Pairs) -> float:
    return abs(observation.actual - _sum(weights, *_case(observation, pairs)))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
