"""
Degradation beside several functions, from that of pairs: weighted sums (section IV-C, Eq. 3 and 4; digest 2.6 and 2.7).

    training i, functions S:  sum over j in S of gamma[k, M_i, M_j] D_tr[i, j]                                        (Eq. 3)
    function j in S:          alpha[k, M_j, M_i] D_fn[j, i] + sum over w in S, w != j, of beta[k, M_j, M_w] D_ff[j, w]  (Eq. 4)

D is what the one causes alone with the other. ``k`` is the number of functions |S|, but 1 for two functions without a training: that is
a pair, and D_ff is it. All weights start at one; those of ``k`` = 1 stay there, because the error of a pair belongs to the pair-wise
predictor (A11). They learn from what was observed: the paper adds "the error times a coefficient" to them, which :data:`Update` spells out
(A10). Functions of one model share a weight whatever their batch (A9), so their degradations are added before they are weighed; a function
that runs several times counts as often.
"""

import math
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from ml.rows import BadRow, Colocation, Profile, Workload, degradation
from ml.samples import METRICS
from smore.degradation import Kind, Weight

#: Functions at a time for which there are weights; more of them are weighed like so many (A12).
K_MAX: Final = 8
#: Bounds of a weight (A10).
LOWEST, HIGHEST = 0.0, 10.0

#: With the error e, the pair-wise degradation x of a weight and the coefficient eta, a weight grows by: ``nlms`` eta e x / (eps + sum x^2)
#: over all weights of the sum; ``literal`` eta e; ``grad`` eta e x; ``off`` nothing.
Update: TypeAlias = Literal["nlms", "literal", "grad", "off"]

#: (victim, other) → pair-wise degradation of the victim, a fraction >= 0.
PairWise: TypeAlias = Callable[[Workload, Workload], float]

_Key: TypeAlias = tuple[Kind, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One of those that run beside: the name of its model, and by how much it slows the victim when it is alone with it (>= 0)."""

    model: str
    degradation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How weights learn. ``eps`` keeps neighbours that cost next to nothing from taking the blame: x^2 well below it hardly counts."""

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
    Weights by kind, k, victim's model and other's model; what was never learned is that of k - 1, and in the end one (A12).

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
        """For a table: every weight from the lowest learned k of a pair of models up to K_MAX, so that a reader needs no rule for gaps."""
        pairs = sorted({(kind, victim, other) for kind, _, victim, other in self.learned})
        found = []
        for kind, victim, other in pairs:
            first = min(k for k in range(2, K_MAX + 1) if (kind, k, victim, other) in self.learned)
            for k in range(first, K_MAX + 1):
                found.append(Weight(kind=kind, k=k, victim=victim, other=other, value=self.value(kind, k, victim, other)))
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
    """Eq. 3 for a training of the model ``training``: a fraction. Raises BadRow for a pair-wise degradation below 0 or not a number."""
    return _sum(weights, len(functions), _training_terms(training, functions))


def function_degradation(weights: Weights, function: str, training: Neighbour | None, others: Sequence[Neighbour]) -> float:
    """Eq. 4 for one function beside a training (None: there is none) and ``others``: a fraction. Raises BadRow as Eq. 3 does."""
    return _sum(weights, _k(training, others), _function_terms(function, training, others))


def update_training(weights: Weights, training: str, functions: Sequence[Neighbour], actual: float, rule: Rule) -> float:
    """
    Learn from the observed degradation of a training (raw: noise may make it negative).

    Returns the error, observed less predicted, from before. Raises BadRow for what is not a number; the weights are as before then.
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
        raise BadRow(f"the degradation by {neighbour.model} is {neighbour.degradation}, a number of at least 0 is expected")
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
class Errors:
    """
    Mean absolute errors over ``n`` observations in ``groups`` distinct sets of workloads: with all weights one, with weights learned from
    the other sets, and with weights learned from all of them, the judged one too. Fractions, as the degradations are.
    """

    n: int
    groups: int
    ones: float
    learned: float
    in_sample: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Eq. 3 and Eq. 4 by themselves; None where no row has such an observation."""

    training: Errors | None
    function: Errors | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One member of a measured row. ``group`` is the same for rows of the same workloads."""

    side: Literal["training", "function"]
    group: Hashable
    k: int
    terms: dict[_Key, float]
    actual: float


def evaluate(
    profile: Profile, d_tr: PairWise, d_fn: PairWise, d_ff: PairWise, *, rule: Rule | None = None, epochs: int = 30, folds: int = 0,
    seed: int = 0,
) -> Evaluation:  # fmt: skip
    """
    What learned weights are worth on the measured rows with several functions: cross-validated over distinct sets of workloads.

    Sets, not rows, are left out, because repeats of one leak; ``folds`` = 0 leaves out one at a time. Weights are learned in ``epochs``
    passes over the other rows in a random order. ``d_*`` take (victim, other) and may raise BadRow or KeyError for a pair that they do not
    know. The observed degradation is that of the metric of each side (mean of a training, P99 of a function).
    """
    rule = rule or Rule()
    cases = _cases(profile, d_tr, d_fn, d_ff)
    groups = list(dict.fromkeys(case.group for case in cases))
    generator = random.Random(seed)
    generator.shuffle(groups)
    parts = min(folds or len(groups), len(groups))
    held_out: list[tuple[_Case, float]] = []
    for part in range(parts):
        absent = set(groups[part::parts])
        weights = _fitted([case for case in cases if case.group not in absent], rule, epochs, seed)
        held_out += [(case, _error(weights, case)) for case in cases if case.group in absent]
    ones = {id(case): _error(Weights(), case) for case in cases}
    everything = _fitted(cases, rule, epochs, seed)
    within = {id(case): _error(everything, case) for case in cases}

    def errors(side: str) -> Errors | None:
        chosen = [(case, error) for case, error in held_out if case.side == side]
        if not chosen:
            return None
        return Errors(
            n=len(chosen),
            groups=len({case.group for case, _ in chosen}),
            ones=_mean(ones[id(case)] for case, _ in chosen),
            learned=_mean(error for _, error in chosen),
            in_sample=_mean(within[id(case)] for case, _ in chosen),
        )

    return Evaluation(training=errors("training"), function=errors("function"))


def learn(
    profile: Profile, d_tr: PairWise, d_fn: PairWise, d_ff: PairWise, *, rule: Rule | None = None, epochs: int = 30, seed: int = 0
) -> Weights:
    """The weights that all measured rows with several functions teach in ``epochs`` passes. The arguments are those of :func:`evaluate`."""
    return _fitted(_cases(profile, d_tr, d_fn, d_ff), rule or Rule(), epochs, seed)


def _cases(profile: Profile, d_tr: PairWise, d_fn: PairWise, d_ff: PairWise) -> list[_Case]:
    return [case for row in profile.colocations if row.kind == "several" for case in _of_row(row, d_tr, d_fn, d_ff)]


def _of_row(row: Colocation, d_tr: PairWise, d_fn: PairWise, d_ff: PairWise) -> list[_Case]:
    first, *rest = row.members
    training = first if first.workload.role == "training" else None
    functions = rest if training is not None else list(row.members)
    group = tuple(sorted(member.workload for member in row.members))
    found = []
    if training is not None:
        i = training.workload
        beside = [Neighbour(model=j.workload.model, degradation=d_tr(i, j.workload)) for j in functions]
        actual = degradation(training, METRICS["training"])
        found.append(_Case(side="training", group=group, k=len(beside), terms=_training_terms(i.model, beside), actual=actual))
    for position, member in enumerate(functions):
        j = member.workload
        others = [other.workload for number, other in enumerate(functions) if number != position]
        by_training = Neighbour(model=training.workload.model, degradation=d_fn(j, training.workload)) if training is not None else None
        by_functions = [Neighbour(model=w.model, degradation=d_ff(j, w)) for w in others]
        found.append(
            _Case(
                side="function", group=group, k=_k(by_training, by_functions), terms=_function_terms(j.model, by_training, by_functions),
                actual=degradation(member, METRICS["function"]),
            )
        )  # fmt: skip
    return found


def _fitted(cases: Sequence[_Case], rule: Rule, epochs: int, seed: int) -> Weights:
    weights, order, generator = Weights(), list(cases), random.Random(seed)
    for _ in range(epochs):
        generator.shuffle(order)
        for case in order:
            _learn(weights, case.k, case.terms, case.actual, rule)
    return weights


def _error(weights: Weights, case: _Case) -> float:
    return abs(case.actual - _sum(weights, case.k, case.terms))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
