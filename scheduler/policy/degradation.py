"""
Predicted degradation as the policy reads it: arrays, filled from a published table, and nothing else at the moment of a decision.

:class:`Degradations` joins the tables with the cluster: each GPU instance's training, each batch's function and all that runs there become
indices, so that weighing every GPU instance is fancy indexing and sums over [N, F]. Eq. 3 and 4 (digest 2.6), k = |S|, one less where
there is no training:

    training_i(S) = sum over j in S of gamma[k, i, j] D_tr[i, j]
    function_j(i, S) = alpha[k, j, i] D_fn[j, i] + sum over w in S, w != j, of beta[k, j, w] D_ff[j, w]

What no table knows is taken as declared, and what nobody declared as conservative (smore/domain/workload.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Functions at a time for which there are weights; more of them are weighed like so many (digest A12).
K_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Degradation:
    """
    One place's table. J trainings (at least one row, which no name leads to where there is none), F functions (each a model at a
    batch), M models.

    ``training`` [J, F], ``function`` [J, F] and ``functions`` [F, F] are the expected fractions, ``*_upper`` their 90 % bounds. The weights
    ``gamma``, ``alpha`` and ``beta`` [K_MAX + 1, M, M] go by k, victim's model and other's model, which ``training_model`` [J] and
    ``function_model`` [F] number. ``batches``: model/size → (batch, index), smallest first. ``gain`` and ``cost`` [F]: the averages of
    digest A16 and A17.
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
        found = self.batches.get(model, ())
        return next((index for batch, index in found if batch >= rows), found[-1][1]) if found else -1


class Table(Protocol):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A batch as it weighs on others: the model that its function names, its rows, and what was declared of it."""

    model: str
    rows: int
    declared: float


@dataclass(slots=True, eq=False)
class Effect:
    """
    What adding a batch would mean on each GPU instance: arrays of N fractions.

    ``own``: slowdown of the batch; ``training``: of the training there by all functions, the batch included; ``added``: what the batch
    adds to the training, to itself and to the functions that run there (digest A27). ``*_upper``: 90 % bounds. ``known``:
    whether all of it came from a table.
    """

    own: Floats
    own_upper: Floats
    training: Floats
    training_upper: Floats
    added: Floats
    known: NDArray[np.bool_]


@dataclass(slots=True)
class Degradations:
    """
    The tables joined with the cluster. Owned by the policy's state.

    ``running`` [N, F] counts batches by function in the terms of their row's table, ``strange`` [N] those that no table knows, and
    ``strange_cost`` [N] sums what was declared of them.
    """

    table: Table = field(default_factory=NoTable)
    _places: dict[tuple[str, str], Degradation | None] = field(default_factory=dict)
    _place_of: list[tuple[str, str]] = field(default_factory=list)
    _workloads: list[tuple[str, ...]] = field(default_factory=list)
    _training: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _has_training: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    _loads: list[list[Load]] = field(default_factory=list)
    _running: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    _strange: Floats = field(default_factory=lambda: np.zeros(0))
    _strange_cost: Floats = field(default_factory=lambda: np.zeros(0))

    # ---- what is where ------------------------------------------------------------------------------------------------------------------

    def adopt(self, table: Table) -> None:
        """A new version: everything is joined with it."""
        self.table = table
        self._places.clear()
        for row in range(len(self._place_of)):
            self._join(row)

    def add_row(self) -> None:
        self._place_of.append(("", ""))
        self._workloads.append(())
        self._loads.append([])
        self._training = np.append(self._training, -1)
        self._has_training = np.append(self._has_training, False)
        self._strange = np.append(self._strange, 0.0)
        self._strange_cost = np.append(self._strange_cost, 0.0)
        self._running = np.vstack([self._running, np.zeros((1, self._running.shape[1]))])

    def report(self, row: int, device: str, sharing_mode: str, workloads: Sequence[str]) -> bool:
        """
        What a GPU worker says of its device and of the trainings there, one word each ('' = it does not say which).

        True where the device is news.
        """
        place, named, before = (device, sharing_mode), tuple(workloads), self._place_of[row]
        if (place, named) != (before, self._workloads[row]):
            self._place_of[row], self._workloads[row] = place, named
            self._join(row)
        return place != before

    def averages(self, model: str) -> tuple[float, float] | None:
        """(usage gain, degradation) of a function's smallest batch, mean over the cluster's places; None where no table knows it."""
        tables = [table for place in set(self._place_of) if (table := self._at_place(place)) is not None]
        found = [(table.gain[index], table.cost[index]) for table in tables if (index := table.index(model, 1)) >= 0]
        return (float(np.mean([gain for gain, _ in found])), float(np.mean([cost for _, cost in found]))) if found else None

    def begin(self, row: int, load: Load) -> None:
        self._loads[row].append(load)
        self._count(row, load, 1.0)

    def end(self, row: int, load: Load) -> None:
        self._loads[row].remove(load)
        self._count(row, load, -1.0)

    def _at(self, row: int) -> Degradation | None:
        return self._at_place(self._place_of[row])

    def _at_place(self, place: tuple[str, str]) -> Degradation | None:
        if place not in self._places:
            found = self._places[place] = self.table.at(*place)
            missing = len(found.function_model) - self._running.shape[1] if found is not None else 0
            if missing > 0:
                self._running = np.hstack([self._running, np.zeros((len(self._running), missing))])
        return self._places[place]

    def _join(self, row: int) -> None:
        found, workloads = self._at(row), self._workloads[row]
        # A table holds for one training beside functions; of two of them it says nothing.
        self._training[row] = found.trainings.get(workloads[0], -1) if found is not None and len(workloads) == 1 else -1
        self._has_training[row] = bool(workloads)
        self._strange[row] = self._strange_cost[row] = 0.0
        self._running[row] = 0.0
        for load in self._loads[row]:
            self._count(row, load, 1.0)

    def _count(self, row: int, load: Load, by: float) -> None:
        found = self._at(row)
        index = found.index(load.model, load.rows) if found is not None else -1
        if found is None or index < 0:
            self._strange[row] += by
            self._strange_cost[row] += by * load.declared
            return
        self._running[row, index] += by

    # ---- what a decision reads ----------------------------------------------------------------------------------------------------------

    def effect(self, load: Load) -> Effect:
        """Of adding ``load`` to each GPU instance as it is now."""
        n = len(self._place_of)
        found = Effect(
            own=np.zeros(n), own_upper=np.zeros(n), training=np.zeros(n), training_upper=np.zeros(n), added=np.zeros(n),
            known=np.zeros(n, bool),
        )  # fmt: skip
        for place in set(self._place_of):
            rows = np.array([row for row, other in enumerate(self._place_of) if other == place])
            self._weigh(rows, self._at(int(rows[0])), load, found)
        return found

    def _weigh(self, rows: Ints, table: Degradation | None, load: Load, found: Effect) -> None:
        has, strange, base = self._has_training[rows], self._strange[rows], self._strange_cost[rows]
        if table is None:
            # Every function costs the others there, and suffers from each, what was declared of it.
            found.own[rows] = found.own_upper[rows] = load.declared * (has + strange)
            found.training[rows] = found.training_upper[rows] = has * (base + load.declared)
            found.added[rows] = load.declared * (has + strange) + found.own[rows]
            return
        running, model = self._running[rows, : len(table.function_model)], table.function_model
        count = running.sum(axis=1) + strange
        # Two functions without a training are the pair that was measured: nothing is left for weights to mend.
        k = np.clip(count + has, 1, K_MAX).astype(np.int64)
        i, index = self._training[rows], table.index(load.model, load.rows)
        victim, known = table.training_model[i], has & (i >= 0)
        # Eq. 3. A training that the table does not know loses to each function what was declared of this one.
        gamma = table.gamma[k[:, None], victim[:, None], model[None, :]]
        adds = np.where(known, gamma[:, index] * table.training[i, index], load.declared) * has if index >= 0 else load.declared * has
        adds_upper = np.where(known, gamma[:, index] * table.training_upper[i, index], load.declared) * has if index >= 0 else adds
        others = np.where(known, (running * gamma * table.training[i]).sum(axis=1), running.sum(axis=1) * load.declared)
        others_upper = np.where(known, (running * gamma * table.training_upper[i]).sum(axis=1), others)
        found.training[rows] = has * (others + base) + adds
        found.training_upper[rows] = has * (others_upper + base) + adds_upper
        if index < 0:
            found.own[rows] = found.own_upper[rows] = load.declared * (has + count)
            found.added[rows] = adds + found.own[rows] + load.declared * count
            return
        # Eq. 4.
        alpha = table.alpha[k, model[index], victim]
        beta = table.beta[k[:, None], model[index], model[None, :]]
        for own, by_training, by_functions in (
            (found.own, table.function, table.functions),
            (found.own_upper, table.function_upper, table.functions_upper),
        ):
            from_training = np.where(known, alpha * by_training[i, index], has * load.declared)
            own[rows] = from_training + (running * beta * by_functions[index]).sum(axis=1) + strange * load.declared
        # What it adds to the functions that run there already, each by its own row of the table.
        to_others = (running * table.beta[k[:, None], model[None, :], model[index]] * table.functions[:, index]).sum(axis=1)
        found.added[rows] = adds + found.own[rows] + to_others + strange * load.declared
        found.known[rows] = (~has | known) & (strange == 0)
