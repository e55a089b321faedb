"""
Predicted degradation as the policy reads it: tables from outside, joined with what runs where.

Each GPU instance's training, each batch's function and all that runs there become indices into the table of its place,
so that the effects of one more batch (``scheduler/policy/kernel.py``) are sums over arrays: Eq. 3 and 4, which
``smore/domain/degradation.py`` states.

What no table knows is taken as declared, and what nobody declared as conservative (smore/domain/workload.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.kernel import Floats, Ints
from smore.domain.degradation import K_MAX, Kind, Weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Degradation:
    """
    One place's table. J trainings (at least one row, which no name leads to where there is none), F functions (each a
    model at a batch), M models.

    ``training`` [J, F], ``function`` [J, F] and ``functions`` [F, F] are the expected fractions, ``*_upper`` their 90 %
    bounds. The weights ``gamma``, ``alpha`` and ``beta`` [K_MAX + 1, M, M] go by k, victim's model and other's model,
    which ``training_model`` [J] and ``function_model`` [F] number. ``batches``: model/size → (batch, index), smallest
    first. ``gain`` and ``cost`` [F]: the averages of docs/paper.md, A16 and A17.
    """

    trainings: Mapping[str, int]
    batches: Mapping[str, Sequence[tuple[int, int]]]
    training_model: Ints
    function_model: Ints
    training: Floats
    training_upper: Floats
    function: Floats
    function_upper: Floats
    functions: Floats
    functions_upper: Floats
    gamma: Floats
    alpha: Floats
    beta: Floats
    gain: Floats
    cost: Floats

    def index(self, model: str, rows: int) -> int:
        """The smallest profiled batch with room for ``rows``, else the largest; -1 for a model that is not there."""
        sizes = self.batches.get(model, ())
        return next((index for batch, index in sizes if batch >= rows), sizes[-1][1]) if sizes else -1


def weight_arrays(weights: Weights, models: Mapping[str, int]) -> tuple[Floats, Floats, Floats]:
    """
    gamma, alpha and beta [K_MAX + 1, M, M] of weights, for the models that are numbered; 1 up to k = 1 (docs/paper.md,
    A11).
    """
    size = max(1, len(models))
    arrays: dict[Kind, Floats] = {
        kind: np.ones((K_MAX + 1, size, size)) for kind in ("training", "function", "functions")
    }
    for kind, victim, other in {(kind, victim, other) for kind, _, victim, other in weights.learned}:
        if victim in models and other in models:
            for k in range(2, K_MAX + 1):
                arrays[kind][k, models[victim], models[other]] = weights.value(kind, k, victim, other)
    return arrays["training"], arrays["function"], arrays["functions"]


class PolicyTable(Protocol):
    """What a composition root hands the policy: tables by place, under one version."""

    @property
    def version(self) -> int: ...

    def at(self, device: str, sharing_mode: str) -> Degradation | None:
        """None: nothing was measured there, and other places say nothing about it."""
        ...


class NoTable:
    """Nothing is known: every degradation is as declared, or conservative."""

    version = 0

    def at(self, device: str, sharing_mode: str) -> Degradation | None:  # noqa: ARG002 - nothing is known of any
        return None


#: In the place of a model: of a function with precedence, which takes the whole of its run from a training. What windows
#: say corrects it, as every price.
PRECEDENCE: Final = "*"


@dataclass(slots=True, kw_only=True, eq=False)
class Place:
    """One place's table as the kernel reads it (see kernel.refresh). ``kinds`` [2, K] grows: kinds come one by one."""

    table: Degradation | None
    pairs: Floats
    between: Floats
    weights: Floats
    kinds: Ints = field(default_factory=lambda: np.zeros((2, 0), np.int64))

    def learn(self, names: Sequence[tuple[str, int]]) -> None:
        """Join the kinds that are not joined yet, of all there are."""
        indices = [
            kernel.WHOLE if model == PRECEDENCE else self.table.index(model, rows) if self.table is not None else -1
            for model, rows in names[self.kinds.shape[1] :]
        ]
        models = [self.table.function_model[index] if self.table is not None and index >= 0 else 0 for index in indices]
        self.kinds = np.concatenate([self.kinds, np.array([indices, models], np.int64)], axis=1)


def _packed(table: Degradation | None) -> Place:
    if table is None:
        return Place(
            table=None, pairs=np.zeros((4, 1, 1)), between=np.zeros((2, 1, 1)), weights=np.ones((3, K_MAX + 1, 1, 1))
        )
    return Place(
        table=table,
        pairs=np.ascontiguousarray([table.training, table.training_upper, table.function, table.function_upper]),
        between=np.ascontiguousarray([table.functions, table.functions_upper]),
        weights=np.ascontiguousarray([table.gamma, table.alpha, table.beta]),
    )


@dataclass(slots=True)
class Kinds:
    """
    Kinds of batches: a model at a size, and what was declared of it where no table knows it.

    ``declared`` [>= K] in fractions. Owned by the cluster, which counts the effects of one more of each kind on every
    GPU instance.
    """

    names: list[tuple[str, int]] = field(default_factory=list)
    declared: Floats = field(default_factory=lambda: np.zeros(8))

    def __len__(self) -> int:
        return len(self.names)

    def add(self, model: str, rows: int, declared: float) -> int:
        """A new kind. ``model`` '' = nobody has profiled it."""
        if len(self.names) == len(self.declared):
            self.declared = np.concatenate([self.declared, np.zeros(len(self.declared))])
        self.names.append((model, rows))
        self.declared[len(self.names) - 1] = declared
        return len(self.names) - 1


class Places:
    """The places that GPU instances are at, by (device, sharing mode), each joined with every kind."""

    def __init__(self, kinds: Kinds) -> None:
        self.table: PolicyTable = NoTable()
        self._kinds = kinds
        self._places: dict[tuple[str, str], Place] = {}

    def adopt(self, table: PolicyTable) -> None:
        """A new version: what was joined with the old one is forgotten."""
        self.table = table
        self._places.clear()

    def learn(self) -> None:
        """Kinds have come: they are joined with the places that are known."""
        for place in self._places.values():
            place.learn(self._kinds.names)

    def at(self, key: tuple[str, str]) -> Place:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _packed(self.table.at(*key))
            place.learn(self._kinds.names)
        return place

    def averages(self, model: str, keys: Sequence[tuple[str, str]]) -> tuple[float, float] | None:
        """
        (usage gain, degradation) of a function's smallest batch, mean over ``keys``; None where no table knows it.
        """
        tables = [table for key in keys if (table := self.at(key).table) is not None]
        averages = [(table.gain[index], table.cost[index]) for table in tables if (index := table.index(model, 1)) >= 0]
        return (
            (float(np.mean([gain for gain, _ in averages])), float(np.mean([cost for _, cost in averages])))
            if averages
            else None
        )
