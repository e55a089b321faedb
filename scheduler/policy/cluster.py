"""
The cluster as packed arrays: GPU instances, revisions on them, what runs there, and what one more batch would mean.

What a worker reports and what was dispatched but not yet reported are kept apart, so that nothing has to be guessed:
resident instances come from the last report, outstanding batches from our own dispatches; an instance is idle when
fewer batches are outstanding than instances are resident. Credits (free slots) are what the arrays say: one batch takes
one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.policy import kernel
from scheduler.policy.degradation import PRECEDENCE, Kinds, Place, Places, PolicyTable
from scheduler.policy.demand import Demand
from scheduler.policy.events import GpuReported
from scheduler.policy.kernel import Floats, Ints

Bools = NDArray[np.bool_]

#: Of a GPU instance whose training no table names.
_NO_TRAINING: Final = -1
#: Where the kernel finds trainings in the table, and their models; of more it counts effects as declared.
_TABLED: Final = ((kernel.TABLED, kernel.VICTIM), (kernel.TABLED_2, kernel.VICTIM_2))
_TRAININGS: Final = len(_TABLED)


@dataclass(slots=True, eq=False)
class Batch:
    """
    Members of one dispatch that have not ended yet.

    ``kind``: what it weighs on others; ``expected_end_at`` and ``slowdown`` (a fraction: what a measured run time is
    divided by to give the time alone) as predicted when it was placed; ``charge_s``: training time that it was expected
    to cost; ``bulk``: of class batch; ``position`` among the batches there.
    """

    row: int
    column: int
    kind: int
    run_s: float
    start_at: float
    deadline_at: float
    expected_end_at: float
    members: dict[str, int]
    slowdown: float = 0.0
    charge_s: float = 0.0
    bulk: bool = False
    position: int = -1


def _grown(array: Floats, axis: int, empty: Floats | float = 0.0) -> Floats:
    """Twice as long along ``axis``, the new half ``empty``; in memory as before."""
    more = np.empty_like(array)
    more[...] = empty
    return np.concatenate([array, more], axis=axis)


def _lines(*shape: int) -> Floats:
    """
    Zeros [..., fields, N] whose fields lie side by side in memory, where what begins or ends on one GPU instance needs
    them.
    """
    *others, fields, n = shape
    return np.zeros((*others, n, fields)).swapaxes(-1, -2)


_EMPTY_CELL: Final = np.array([0.0, 0.0, 0.0, np.inf, 0.0, kernel.COLD, 0.0, 0.0])[None, :, None]


class Cluster:
    """
    N GPU instances, F revisions, K kinds of batches, in arrays with room to grow; see ``kernel.py`` for their fields.

    ``shares``: weights of the impact (docs/paper.md, A27: training, the batch, the others); ``capacity_s``: seconds of
    budget that a token bucket holds, ``target``: the part of a budget that refills it; ``budget``: of a training that
    names none; ``memory_reserve``: share of the memory that stays free (A26).

    It stays whole: everything that is reported, begun or ended changes the same arrays, of which the kernel keeps sums.
    """

    def __init__(
        self,
        *,
        shares: Sequence[float] = (1.0, 1.0, 1.0),
        capacity_s: float = 10.0,
        target: float = 1.0,
        budget: float = 0.1,
        memory_reserve: float = 0.0,
    ) -> None:
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.demands: list[Demand] = []
        #: (function, revision) → its column.
        self.columns: dict[tuple[str, int], int] = {}
        self.kinds = Kinds()
        self.places = Places(self.kinds)
        self.capacity_s, self.target = capacity_s, target
        self.default_budget = budget
        self.memory_reserve = memory_reserve
        self.rows = _lines(kernel.ROW_FIELDS, 8)
        self.cells = _lines(8, kernel.CELL_FIELDS, 8) + _EMPTY_CELL
        self.effects = _lines(8, kernel.EFFECT_FIELDS, 8)
        self.running = np.zeros((8, 8, kernel.RUN_FIELDS))
        #: What was weighed last [N]: kernel's codes, when the batch would end, and in which order rows were looked at.
        self.code = np.zeros(8, np.int8)
        self.finish = np.zeros(8)
        self.looked = np.zeros(8, np.int64)
        #: Invocation → its batch, those ahead included; the batches of each GPU instance in the order of ``running``.
        self.batches: dict[str, Batch] = {}
        self.there: list[list[Batch]] = []
        #: (row, column) → the batch that a worker has ahead: it waits for an instance and takes nothing yet.
        self.ahead: dict[tuple[int, int], Batch] = {}
        #: Rows with a resident instance of a revision, in order, by column.
        self.homes: list[Ints] = []
        #: Memory of the largest GPU instance ever seen, MiB, 0 before the first: what is away now may come back.
        self.largest = 0.0
        #: When a GPU instance last came to be usable, or placing was resumed, epoch seconds.
        self.open_since = 0.0
        self._shares = np.array(shares, float)
        #: Where each GPU instance is, what it trains, and the columns that are at home there.
        self._place: list[tuple[str, str]] = []
        self._known_places: set[tuple[str, str]] = set()
        self._workloads: list[tuple[str, ...]] = []
        self._joined: list[Place] = []
        self._at_home: list[set[int]] = []
        #: Rows that a closed window keeps shut, as last reported.
        self._windows: set[int] = set()
        #: Row → columns that it has in quarantine, as last reported; rows without any lack.
        self._quarantines: dict[int, frozenset[int]] = {}

    def __len__(self) -> int:
        return len(self.names)

    # ---- views, for people and tests ---------------------------------------------------------------------------------

    def fact(self, field_: int) -> Floats:
        """One fact of every GPU instance [N], a view."""
        return self.rows[field_, : len(self.names)]

    def cell(self, field_: int) -> Floats:
        """One fact of every revision on every GPU instance [N, F], a view."""
        cells: Floats = self.cells[: len(self.demands), field_, : len(self.names)].T
        return cells

    def effect(self, kind: int, field_: int) -> Floats:
        """One effect of another batch of a kind on every GPU instance [N], a view."""
        return self.effects[kind, field_, : len(self.names)]

    @property
    def used(self) -> Floats:
        return self.fact(kernel.USED)

    @property
    def slots(self) -> Floats:
        return self.fact(kernel.SLOTS)

    @property
    def alive(self) -> Bools:
        return self.fact(kernel.ALIVE) > 0

    @property
    def paused(self) -> Bools:
        return self.fact(kernel.PAUSED) > 0

    @property
    def protected(self) -> Bools:
        return self.fact(kernel.PROTECTED) > 0

    @property
    def reserved(self) -> Floats:
        return self.fact(kernel.RESERVED)

    @property
    def outstanding(self) -> Floats:
        return self.cell(kernel.OUTSTANDING)

    # ---- growing -----------------------------------------------------------------------------------------------------

    def add_row(self, name: str) -> int:
        row = self.index.get(name)
        if row is not None:
            return row
        row = self.index[name] = len(self.names)
        if row == self.rows.shape[1]:
            self.rows = _grown(self.rows, 1)
            self.cells = _grown(self.cells, 2, _EMPTY_CELL)
            self.effects = _grown(self.effects, 2)
            self.running = _grown(self.running, 0)
            self.code = np.zeros(2 * row, np.int8)
            self.finish = np.zeros(2 * row)
            self.looked = np.zeros(2 * row, np.int64)
        self.names.append(name)
        self.there.append([])
        self._place.append(("", ""))
        self._workloads.append(())
        self._joined.append(self.places.at(("", "")))
        self._at_home.append(set())
        self.rows[kernel.TABLED, row] = self.rows[kernel.TABLED_2, row] = _NO_TRAINING
        self.rows[kernel.FACTOR, row] = 1.0
        self.rows[kernel.BUDGET, row] = self.rows[kernel.REFILL, row] = self.rows[kernel.YIELD, row] = np.inf
        self.refresh(row, 0.0)
        return row

    def add_column(self, demand: Demand) -> None:
        """``demand.column`` must be the number of columns so far."""
        if len(self.demands) == len(self.cells):
            self.cells = _grown(self.cells, 0, _EMPTY_CELL)
        self.demands.append(demand)
        self.columns[demand.function, demand.revision] = demand.column
        self.homes.append(np.zeros(0, np.int64))

    def find(self, function: str, revision: int) -> Demand | None:
        """None for an unknown revision."""
        column = self.columns.get((function, revision))
        return None if column is None else self.demands[column]

    def demand(self, function: str, revision: int) -> Demand:
        """Of a revision that is known: its invocations wait."""
        return self.demands[self.columns[function, revision]]

    def kind(self, demand: Demand, rows: int) -> int:
        """The kind of a batch of ``rows``: one for each size that is a power of two, made when it is first met."""
        size = 1 << max(0, rows - 1).bit_length()
        kind = demand.kinds.get(size)
        if kind is None:
            model = PRECEDENCE if demand.spec.precedence else demand.spec.profile.model
            kind = demand.kinds[size] = self.add_kind(model, size, demand.degradation)
        return kind

    def add_kind(self, model: str, rows: int, declared: float) -> int:
        kind = self.kinds.add(model, rows, declared)
        if kind == len(self.effects):
            self.effects = _grown(self.effects, 0)
        self.places.learn()
        self.refresh_all(kind)
        return kind

    def respecify(self, demand: Demand) -> None:
        """The catalog's word of a revision has changed."""
        for row in range(len(self.names)):
            self._set_state(demand.column, row)
        demand.kinds.clear()

    def redeclare(self, demand: Demand) -> None:
        """What is believed of a revision without a table has changed."""
        kinds = list(demand.kinds.values())
        if (self.kinds.declared[kinds] != demand.degradation).any():
            self.kinds.declared[kinds] = demand.degradation
            self.refresh_all()

    # ---- what is where -----------------------------------------------------------------------------------------------

    def adopt(self, table: PolicyTable) -> None:
        """A new version of the table: everything is joined with it."""
        self.places.adopt(table)
        for row in range(len(self.names)):
            self._join(row)
        self.refresh_all()

    def averages(self, model: str) -> tuple[float, float] | None:
        """See Places.averages, over the places of this cluster."""
        return self.places.averages(model, sorted(self._known_places))

    def report(self, event: GpuReported) -> bool:
        """Take a worker's word; True where it is at a place where no GPU instance was before."""
        row = self.add_row(event.gpu)
        facts = self.rows[:, row]
        facts[kernel.ALIVE] = 1.0
        facts[kernel.SLOTS] = event.slots
        facts[kernel.MEMORY_TOTAL] = event.memory_total
        # Free now, and what idle instances would give back.
        facts[kernel.MEMORY_FREE] = (
            event.memory_total * (1.0 - self.memory_reserve) - event.memory_used + event.memory_idle
        )
        facts[kernel.UTILISATION] = event.utilisation
        facts[kernel.PROTECTED] = float(event.unregistered > 0)
        self._train(row, event)
        cells = self.cells[:, :, row]
        cells[:, kernel.RESIDENT] = cells[:, kernel.LOADING] = cells[:, kernel.QUARANTINED] = cells[
            :, kernel.PARKED
        ] = 0.0
        at_home: set[int] = set()
        for field_, counts in ((kernel.RESIDENT, event.warm), (kernel.LOADING, event.loading)):
            for function, revision, count in counts:
                column = self.columns.get((function, revision))
                if column is not None:
                    cells[column, field_] = count
                    at_home.add(column)
        self._settle(row, at_home)
        for function, revision, _ in event.parked:
            column = self.columns.get((function, revision))
            if column is not None:
                cells[column, kernel.PARKED] += 1.0
        for function, revision, memory_mib in event.sizes:
            column = self.columns.get((function, revision))
            if column is not None:
                self.demands[column].observe_memory(memory_mib)
        for function, revision, seconds in event.stretches:
            column = self.columns.get((function, revision))
            if column is not None:
                self.demands[column].observe_stretch(row, seconds)
        self._quarantine(row, event.quarantined)
        for column in range(len(self.demands)):
            if (
                cells[column, (kernel.RESIDENT, kernel.OUTSTANDING, kernel.PARKED)].any()
                or cells[column, kernel.STATE] != kernel.COLD
            ):
                self._set_state(column, row)
        self._reserve(row)
        place, workloads = (event.device, event.sharing_mode), tuple(event.workloads or [""] * event.jobs)
        news = place not in self._known_places
        self._known_places.add(place)
        if place != self._place[row] or workloads != self._workloads[row]:
            self._place[row] = place
            self._workloads[row] = workloads
            self._join(row)
        self._room(row)
        self.refresh(row, event.at)
        self.largest = max(self.largest, event.memory_total)
        return news

    def _quarantine(self, row: int, names: Sequence[str]) -> None:
        """A worker keeps these revisions out, named ``function@revision``."""
        columns = set()
        for name in names:
            function, _, number = name.rpartition("@")
            column = self.columns.get((function, int(number)))
            if column is not None:
                self.cells[column, kernel.QUARANTINED, row] = 1.0
                columns.add(column)
        if columns:
            self._quarantines[row] = frozenset(columns)
        else:
            self._quarantines.pop(row, None)

    def _train(self, row: int, event: GpuReported) -> None:
        """The training's side of a report: what functions may cost it from now on."""
        facts = self.rows[:, row]
        budget = min((job.budget for job in event.losses), default=self.default_budget) if event.jobs else np.inf
        refill = self.target * budget / (1.0 + budget) if event.jobs else np.inf
        if refill != facts[kernel.REFILL]:
            # Another training, or none: what the last one had saved or owed is not this one's.
            facts[kernel.TOKENS], facts[kernel.AT] = refill * self.capacity_s, event.at
        elif row in self._windows:
            # No tokens come in while a window is closed: what windows say of the loss, they say of the time beside
            # them.
            facts[kernel.AT] = max(facts[kernel.AT], event.at)
        elif event.closed and event.jobs:
            self.take_tokens(row, 0.0, event.at)
        (self._windows.add if event.closed else self._windows.discard)(row)
        facts[kernel.JOBS], facts[kernel.BUDGET], facts[kernel.REFILL] = event.jobs, budget, refill
        # The counter is a mean over what functions did too: their part of it is past, and those that run now are
        # counted by their profiles.
        facts[kernel.SM_TRAINING] = max(0.0, event.utilisation - event.function_utilisation)

    def lose(self, name: str) -> None:
        """A GPU instance has gone: nothing is resident. Its batches end when the queue gives them back."""
        row = self.index.get(name)
        if row is not None:
            self.rows[kernel.ALIVE, row] = 0.0
            self.cells[:, kernel.RESIDENT, row] = self.cells[:, kernel.LOADING, row] = self.cells[
                :, kernel.PARKED, row
            ] = 0.0
            kernel.set_refusal(self.rows, row)
            self._settle(row, set())
            self._windows.discard(row)

    def offload(self, demand: Demand, row: int, keep: int) -> None:
        """Idle instances of a revision are on their way out there: ``keep`` are left, before any report says so."""
        self.cells[demand.column, kernel.RESIDENT, row] = keep
        if not keep:
            self._settle(row, self._at_home[row] - {demand.column})
        self._set_state(demand.column, row)

    def begin(self, batch: Batch, now: float) -> None:
        """Take a slot for a batch."""
        row, column = batch.row, batch.column
        there, demand, place = self.there[row], self.demands[column], self._joined[row]
        batch.position = len(there)
        there.append(batch)
        for id_ in batch.members:
            self.batches[id_] = batch
        if len(there) > self.running.shape[1]:
            self._room(row)
        if batch.bulk:
            self.rows[kernel.BULK_USED, row] += 1.0
        kernel.begin(
            now,
            row,
            column,
            batch.kind,
            batch.run_s,
            max(now, batch.start_at),
            batch.deadline_at,
            batch.expected_end_at,
            demand.memory_mib,
            demand.sm,
            demand.spec.max_warm,
            self.rows,
            self.cells,
            *self._counted(place),
        )

    def end(self, id_: str, attempt: int, now: float) -> Batch | None:
        """
        A member has ended or gone back to the queue; with the last one the slot is free. None: unknown, or another
        attempt.
        """
        batch = self.batches.get(id_)
        if batch is None or batch.members.get(id_) != attempt:
            return None
        del self.batches[id_]
        del batch.members[id_]
        if not batch.members and self.ahead.get((batch.row, batch.column)) is batch:
            del self.ahead[batch.row, batch.column]
        elif not batch.members:
            row = batch.row
            there, demand, place = self.there[row], self.demands[batch.column], self._joined[row]
            if batch.bulk:
                self.rows[kernel.BULK_USED, row] -= 1.0
            last = there.pop()
            if last is not batch:
                there[batch.position], last.position = last, batch.position
            kernel.end(
                now,
                row,
                batch.position,
                demand.memory_mib,
                demand.sm,
                demand.spec.max_warm,
                self.rows,
                self.cells,
                *self._counted(place),
            )
        return batch

    def join(self, coming: Batch, now: float, begun: bool) -> None:
        """
        Take over a member that is under way already: those that are to end together were dispatched together.

        One that no worker has begun is ahead where all instances are at work.
        """
        for batch in (*self.there[coming.row], *self.ahead.values()):
            if (batch.row, batch.column) == (coming.row, coming.column) and (
                batch.expected_end_at == coming.expected_end_at
            ):
                batch.members.update(coming.members)
                self.batches.update(dict.fromkeys(coming.members, batch))
                return
        if begun or not self.at_work(coming.column, coming.row):
            self.begin(coming, now)
        else:
            self.send_ahead(coming)

    def at_work(self, column: int, row: int) -> bool:
        """Whether a revision has instances there, all of them at work and none loading, and no batch ahead."""
        cell = self.cells[column, :, row]
        busy = 0.0 < cell[kernel.RESIDENT] <= cell[kernel.OUTSTANDING] and not cell[kernel.LOADING]
        return bool(busy) and (row, column) not in self.ahead

    def send_ahead(self, batch: Batch) -> None:
        """A worker gets a batch before an instance is free for it."""
        self.ahead[batch.row, batch.column] = batch
        self.batches.update(dict.fromkeys(batch.members, batch))
        self._set_state(batch.column, batch.row)

    def next(self, row: int, column: int, now: float) -> Batch | None:
        """Begin the batch that is ahead there; None: there is none."""
        batch = self.ahead.pop((row, column), None)
        if batch is not None:
            slowdown = self.effects.item(batch.kind, kernel.OWN, row)
            run_s = (batch.expected_end_at - batch.start_at) * (1.0 + slowdown) / (1.0 + batch.slowdown)
            batch.start_at, batch.slowdown, batch.expected_end_at = now, slowdown, now + run_s
            self.begin(batch, now)
        return batch

    def pause(self, row: int, paused: float) -> None:
        """``paused``: kernel.NOT_PAUSED, HELD or DRAINED."""
        self.rows[kernel.PAUSED, row] = paused
        kernel.set_refusal(self.rows, row)

    def pin(self, column: int, gpus: Collection[str]) -> None:
        """Let a revision go to these GPU instances only; none named = to all."""
        away = np.array([bool(gpus) and name not in gpus for name in self.names], float)
        cell = self.cells[column, kernel.AWAY]
        for row in np.flatnonzero(cell[: len(away)] != away).tolist():
            cell[row] = away[row]
            self._set_state(column, row)

    def govern(self, row: int, factor: float, closed: bool, now: float) -> None:
        """What predicted losses are multiplied by there, and whether nothing new may go beside the training."""
        if factor != self.rows[kernel.FACTOR, row] or closed != bool(self.rows[kernel.CLOSED, row]):
            self.rows[kernel.FACTOR, row], self.rows[kernel.CLOSED, row] = factor, float(closed)
            self.refresh(row, now)

    def take_tokens(self, row: int, seconds: float, now: float) -> None:
        """Take seconds of training time from the token bucket of the training there; a debt is allowed."""
        kernel.take_tokens(self.rows, row, seconds, now, self.capacity_s)

    @property
    def usable(self) -> Bools:
        """GPU instances [N] on which something could be placed now or later: alive, not paused, not protected."""
        return self.alive & ~self.paused & ~self.protected

    def is_usable(self, row: int) -> bool:
        """One entry of :attr:`usable`."""
        facts = self.rows[:, row]
        return bool(facts[kernel.ALIVE] > 0 and not facts[kernel.PAUSED] and not facts[kernel.PROTECTED])

    def keeps_out(self, column: int) -> bool:
        """Whether all GPU instances to which a revision may go have it in quarantine."""
        if not self._quarantines:
            return False
        cell = self.cells[column, :, : len(self.names)]
        allowed = self.alive & (cell[kernel.AWAY] == 0)
        return bool(allowed.any() and (cell[kernel.QUARANTINED] > 0)[allowed].all())

    def quarantined(self, row: int) -> frozenset[int]:
        """Columns that a GPU instance has in quarantine."""
        return self._quarantines.get(row, frozenset())

    def idle(self, column: int) -> Bools:
        """Rows with an instance that could run now: more are resident than are taken or still loading."""
        cell = self.cells[column, :, : len(self.names)]
        return np.asarray(cell[kernel.RESIDENT] > np.maximum(cell[kernel.OUTSTANDING], cell[kernel.LOADING]))

    def host(self, column: int) -> Bools:
        """Rows [N] where a load now would come out of host memory."""
        return np.asarray(self.cells[column, kernel.STATE, : len(self.names)] == kernel.HOST)

    def beside_training(self, kind: int, row: int, upper: bool) -> float:
        """Slowdown of a batch of a kind that has a GPU instance to itself but for its training, or its 90 % bound."""
        facts, place = self.rows[:, row], self._joined[row]
        if not facts[kernel.JOBS] > 0:
            return 0.0
        (own, model), training = place.kinds[:, kind], int(facts[kernel.TABLED])
        if own < 0 or training < 0:
            return float(self.kinds.declared[kind])
        return float(place.weights[1, 1, model, int(facts[kernel.VICTIM])] * place.pairs[2 + upper, training, own])

    def delay_s(self, demand: Demand, row: int) -> float:
        """
        Seconds until an instance of a revision could run there, by what is there: none, out of host memory, a cold
        start.
        """
        state = self.cells.item(demand.column, kernel.STATE, row)
        return (demand.host_s if state == kernel.HOST else demand.load_s) if state < 0 else 0.0

    def refresh(self, row: int, now: float) -> None:
        """Count the effects on a GPU instance afresh."""
        kernel.refresh(now, row, self.rows, *self._counted(self._joined[row]))

    def refresh_all(self, first: int = 0) -> None:
        """Count the effects of the kinds from ``first`` on afresh, everywhere."""
        by_place: dict[tuple[str, str], list[int]] = {}
        for row, key in enumerate(self._place):
            by_place.setdefault(key, []).append(row)
        for key, rows in by_place.items():
            kernel.refresh_all(np.array(rows), first, self.rows, *self._counted(self.places.at(key)))

    def _counted(self, place: Place) -> tuple[Floats, Floats, Floats, Floats, Floats, Ints, Floats, Floats]:
        """What the kernel counts effects with on a GPU instance of a place: its last arguments."""
        return (
            self.effects,
            self.running,
            place.pairs,
            place.between,
            place.weights,
            place.kinds,
            self.kinds.declared,
            self._shares,
        )

    def _settle(self, row: int, at_home: set[int]) -> None:
        """These columns, and no others, have a resident instance there."""
        for column in at_home ^ self._at_home[row]:
            home = self.homes[column]
            position = int(np.searchsorted(home, row))
            self.homes[column] = np.insert(home, position, row) if column in at_home else np.delete(home, position)
        self._at_home[row] = at_home

    def _join(self, row: int) -> None:
        place, workloads = self.places.at(self._place[row]), self._workloads[row]
        table = place.table
        tabled: list[int] = []
        if table is not None and len(workloads) <= _TRAININGS and table.trainings.keys() >= set(workloads):
            tabled = [table.trainings[workload] for workload in workloads]
        self._joined[row] = place
        for number, (training, victim) in enumerate(_TABLED):
            index = tabled[number] if number < len(tabled) else _NO_TRAINING
            self.rows[training, row] = index
            self.rows[victim, row] = table.training_model[index] if table is not None and index >= 0 else 0

    def _set_state(self, column: int, row: int) -> None:
        kernel.set_state(self.cells, column, row, self.demands[column].spec.max_warm)

    def _room(self, row: int) -> None:
        """As many places as batches may be there."""
        if max(len(self.there[row]), int(self.rows[kernel.SLOTS, row])) > self.running.shape[1]:
            self.running = _grown(self.running, 1)
            self._room(row)

    def _reserve(self, row: int) -> None:
        """Count afresh the memory that batches on their way to a load will take, and SM in use (docs/paper.md, A26)."""
        reserved, busy = 0.0, 0.0
        for column in {batch.column for batch in self.there[row]}:
            cell = self.cells[column, :, row]
            coming = cell[kernel.OUTSTANDING] - cell[kernel.RESIDENT]
            busy += cell[kernel.OUTSTANDING] * self.demands[column].sm
            if coming > 0:
                reserved += coming * self.demands[column].memory_mib
        self.rows[kernel.RESERVED, row] = reserved
        self.rows[kernel.SM, row] = self.rows[kernel.SM_TRAINING, row] + busy

    def rebuilt(self) -> tuple[Floats, Floats]:
        """``used`` and ``outstanding`` computed afresh from the batches: what the incremental arrays must equal."""
        used, outstanding = np.zeros(len(self.names)), np.zeros((len(self.names), len(self.demands)))
        for batch in set(self.batches.values()) - set(self.ahead.values()):
            used[batch.row] += 1
            outstanding[batch.row, batch.column] += 1
        return used, outstanding

    def differing(self) -> int:
        """Entries of ``used`` and ``outstanding`` that differ from a fresh count: each is a defect."""
        used, outstanding = self.rebuilt()
        return int((used != self.used).sum() + (outstanding != self.outstanding).sum())
