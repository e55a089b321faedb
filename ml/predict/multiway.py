"""
Degradation beside several functions, from that of pairs: weighted sums (section IV-C, Eq. 3 and 4).

    training i, functions S:  sum over j in S of gamma[k, M_i, M_j] D_tr[i, j]                                        (Eq. 3)
    function j in S:          alpha[k, M_j, M_i] D_fn[j, i] + sum over w in S, w != j, of beta[k, M_j, M_w] D_ff[j, w]  (Eq. 4)

D is what the one causes alone with the other. ``k`` is the number of functions |S|, but 1 for two functions without a
training: that is a pair, and D_ff is it. All weights start at one; those of ``k`` = 1 stay there, because the error of
a pair belongs to the pair-wise predictor (A11). They learn from what was observed: the paper adds "the error times a
coefficient" to them, which :data:`Update` spells out (A10). Functions of one model share a weight whatever their batch
(A9), so their degradations are added before they are weighed; a function that runs several times counts as often.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from ml.measure.rows import BadRow, Workload
from ml.predict.samples import Direction
from smore.messages.degradation import Kind, Weight

#: Functions at a time for which there are weights; more of them are weighed like so many (A12).
K_MAX: Final = 8
#: Bounds of a weight (A10).
LOWEST, HIGHEST = 0.0, 10.0

#: With the error e, the pair-wise degradation x of a weight and the coefficient eta, a weight grows by: ``nlms`` eta e
#: x / (eps + sum x^2) over all weights of the sum; ``literal`` eta e; ``grad`` eta e x; ``off`` nothing.
Update: TypeAlias = Literal["nlms", "literal", "grad", "off"]

#: (victim, other) → pair-wise degradation of the victim, a fraction >= 0.
PairWise: TypeAlias = Callable[[Workload, Workload], float]
#: D_tr, D_fn and D_ff. They may raise BadRow or KeyError for a pair that they do not know.
Pairs: TypeAlias = Mapping[Direction, PairWise]
#: Whose sum it is: Eq. 3 or Eq. 4.
Side: TypeAlias = Literal["training", "function"]

_Key: TypeAlias = tuple[Kind, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """
    One of those that run beside: the name of its model, and by how much it slows the victim when it is alone with it
    (>= 0).
    """

    model: str
    degradation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    How weights learn. ``eps`` keeps neighbours that cost next to nothing from taking the blame: x^2 well below it
    hardly counts.
    """

    update: Update = "nlms"
    eta: float = 0.1
    eps: float = 1e-3

    def __post_init__(self) -> None:
        if self.update not in get_args(Update):
            raise ValueError(f"update is {self.update!r}, one of {', '.join(get_args(Update))} is expected")
        if not 0 < self.eta < 2:
            raise ValueError(f"eta is {self.eta}: the normalised update is stable between 0 and 2 alone")
        if not self.eps > 0:
            raise ValueError(f"eps is {self.eps}, more than 0 is expected")


@dataclass(slots=True)
class Weights:
    """
    Weights by kind, k, victim's model and other's model; what was never learned is that of k - 1, and in the end one
    (A12).

    For one process and one place.
    """

    learned: dict[tuple[Kind, int, str, str], float] = field(default_factory=dict)

    def value(self, kind: Kind, k: int, victim: str, other: str) -> float:
        for known in range(min(k, K_MAX), 1, -1):
            found = self.learned.get((kind, known, victim, other))
            if found is not None:
                return found
        return 1.0

    def published(self) -> list[Weight]:
        """
        For a table: every weight from the lowest learned k of a pair of models up to K_MAX, so that a reader needs no
        rule for gaps.
        """
        pairs = sorted({(kind, victim, other) for kind, _, victim, other in self.learned})
        found = []
        for kind, victim, other in pairs:
            first = min(k for k in range(2, K_MAX + 1) if (kind, k, victim, other) in self.learned)
            for k in range(first, K_MAX + 1):
                found.append(
                    Weight(kind=kind, k=k, victim=victim, other=other, value=self.value(kind, k, victim, other))
                )
        return found

    @classmethod
    def of(cls, published: Iterable[Weight]) -> "Weights":
        """
        The inverse of :meth:`published`: a weight equal to that of k - 1 is one that was never learned.

        Raises BadRow for a weight that cannot be one.
        """
        given: dict[tuple[Kind, int, str, str], float] = {}
        for one in published:
            if one.kind not in get_args(Kind) or not 2 <= one.k <= K_MAX or not LOWEST <= one.value <= HIGHEST:
                raise BadRow(f"{one} is not a weight: k lies in 2..{K_MAX}, the value in {LOWEST:g}..{HIGHEST:g}")
            given[one.kind, one.k, one.victim, one.other] = one.value
        return cls(
            learned={
                (kind, k, victim, other): value
                for (kind, k, victim, other), value in given.items()
                if given.get((kind, k - 1, victim, other)) != value
            }
        )


def training_degradation(weights: Weights, training: str, functions: Sequence[Neighbour]) -> float:
    """
    Eq. 3 for a training of the model ``training``: a fraction. Raises BadRow for a pair-wise degradation below 0 or not
    a number.
    """
    return _sum(weights, len(functions), _training_terms(training, functions))


def function_degradation(
    weights: Weights, function: str, training: Neighbour | None, others: Sequence[Neighbour]
) -> float:
    """
    Eq. 4 for one function beside a training (None: there is none) and ``others``: a fraction. Raises BadRow as Eq. 3
    does.
    """
    return _sum(weights, _k(training, others), _function_terms(function, training, others))


def update_training(
    weights: Weights, training: str, functions: Sequence[Neighbour], actual: float, rule: Rule
) -> float:
    """
    Learn from the observed degradation of a training (raw: noise may make it negative).

    Returns the error, observed less predicted, from before. Raises BadRow for what is not a number; the weights are as
    before then.
    """
    return _learn(weights, len(functions), _training_terms(training, functions), actual, rule)


def update_function(
    weights: Weights, function: str, training: Neighbour | None, others: Sequence[Neighbour], actual: float, rule: Rule
) -> float:
    """Learn from the observed degradation of a function; otherwise as :func:`update_training`."""
    return _learn(weights, _k(training, others), _function_terms(function, training, others), actual, rule)


def _k(training: Neighbour | None, others: Sequence[Neighbour]) -> int:
    return 1 if training is None and len(others) == 1 else len(others) + 1


def _training_terms(training: str, functions: Sequence[Neighbour]) -> dict[_Key, float]:
    terms: dict[_Key, float] = {}
    for one in functions:
        _add(terms, ("training", training, one.model), one)
    return terms


def _function_terms(function: str, training: Neighbour | None, others: Sequence[Neighbour]) -> dict[_Key, float]:
    terms: dict[_Key, float] = {}
    if training is not None:
        _add(terms, ("function", function, training.model), training)
    for one in others:
        _add(terms, ("functions", function, one.model), one)
    return terms


def _add(terms: dict[_Key, float], key: _Key, neighbour: Neighbour) -> None:
    if not 0 <= neighbour.degradation < math.inf:
        raise BadRow(
            f"the degradation by {neighbour.model} is {neighbour.degradation}, a number of at least 0 is expected"
        )
    terms[key] = terms.get(key, 0.0) + neighbour.degradation


def _sum(weights: Weights, k: int, terms: dict[_Key, float]) -> float:
    return math.fsum(weights.value(kind, k, victim, other) * x for (kind, victim, other), x in terms.items())


def _learn(weights: Weights, k: int, terms: dict[_Key, float], actual: float, rule: Rule) -> float:
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
    One measured degradation ``actual`` (a raw fraction) of ``victim`` beside ``beside``, measured ``at`` (epoch
    seconds).

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
        """The same for all observations of one set of workloads."""
        return tuple(sorted((self.victim, *self.beside)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """
    Mean absolute errors over ``n`` observations in ``groups`` distinct sets of workloads: with all weights one, with
    weights learned from the other sets, and with weights learned from all of them, the judged one too. Fractions, as
    the degradations are.
    """

    n: int
    groups: int
    ones: float
    learned: float
    in_sample: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Eq. 3 and Eq. 4 by themselves; None where there is no such observation."""

    training: Errors | None
    function: Errors | None


def learn(observations: Iterable[Observation], pairs: Pairs, *, rule: Rule | None = None, epochs: int = 30) -> Weights:
    """
    The weights that observations teach: ``epochs`` passes in the order of measurement, so that the newest have the last
    word.

    Raises BadRow for an observed degradation that is not a number, and what ``pairs`` raise.
    """
    rule = rule or Rule()
    cases = [(*_case(one, pairs), one.actual) for one in sorted(observations, key=lambda one: one.at)]
    weights = Weights()
    for _ in range(epochs):
        for k, terms, actual in cases:
            _learn(weights, k, terms, actual, rule)
    return weights


def mean_error(weights: Weights, observations: Iterable[Observation], pairs: Pairs) -> float:
    """Mean absolute error of Eq. 3 and 4 over at least one observation, a fraction. Raises what ``pairs`` raise."""
    return _mean(_error(weights, one, pairs) for one in observations)


def evaluate(
    observations: Sequence[Observation],
    pairs: Pairs,
    *,
    rule: Rule | None = None,
    epochs: int = 30,
    folds: int = 0,
    seed: int = 0,
) -> Evaluation:
    """
    What learned weights are worth: cross-validated over distinct sets of workloads.

    Sets, not observations, are left out, because repeats of one leak; ``folds`` = 0 leaves out one at a time, otherwise
    ``seed`` decides which sets are left out together. Weights are learned as :func:`learn` does.
    """
    groups = list(dict.fromkeys(one.group for one in observations))
    random.Random(seed).shuffle(groups)
    parts = min(folds or len(groups), len(groups))
    held_out: list[tuple[Observation, float]] = []
    for part in range(parts):
        absent = set(groups[part::parts])
        weights = learn([one for one in observations if one.group not in absent], pairs, rule=rule, epochs=epochs)
        held_out += [(one, _error(weights, one, pairs)) for one in observations if one.group in absent]
    everything = learn(observations, pairs, rule=rule, epochs=epochs)

    def errors(side: Side) -> Errors | None:
        chosen = [(one, error) for one, error in held_out if one.side == side]
        if not chosen:
            return None
        return Errors(
            n=len(chosen),
            groups=len({one.group for one, _ in chosen}),
            ones=mean_error(Weights(), (one for one, _ in chosen), pairs),
            learned=_mean(error for _, error in chosen),
            in_sample=mean_error(everything, (one for one, _ in chosen), pairs),
        )

    return Evaluation(training=errors("training"), function=errors("function"))


def _case(one: Observation, pairs: Pairs) -> tuple[int, dict[_Key, float]]:
    """k and the terms of Eq. 3 or 4 for an observation."""
    victim, functions = one.victim, [other for other in one.beside if other.role == "function"]
    if one.side == "training":
        slowed_by = [Neighbour(model=j.model, degradation=pairs["training"](victim, j)) for j in functions]
        return len(slowed_by), _training_terms(victim.model, slowed_by)
    trainings = [
        Neighbour(model=i.model, degradation=pairs["function"](victim, i)) for i in one.beside if i.role == "training"
    ]
    training = trainings[0] if trainings else None
    others = [Neighbour(model=w.model, degradation=pairs["functions"](victim, w)) for w in functions]
    return _k(training, others), _function_terms(victim.model, training, others)


def _error(weights: Weights, one: Observation, pairs: Pairs) -> float:
    return abs(one.actual - _sum(weights, *_case(one, pairs)))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
