"""
The cluster as struct of arrays: one row per GPU instance, one column per revision.

What a worker reports and what was dispatched but not yet reported are kept apart, so that nothing has to be guessed: resident instances
come
from the last report, outstanding batches from our own dispatches; an instance is idle when fewer batches are outstanding than instances are
resident. Credits (free slots) are what the arrays say: one batch takes one.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scheduler.policy.degradation import Degradations, Load
from scheduler.policy.demand import Demand
from scheduler.policy.events import GpuReported

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Batch:
    """Members of one dispatch that have not ended yet."""

    row: int
    column: int
    expected_end_at: float
    members: dict[str, int]
    load: Load
    #: Its own degradation as it was predicted: what a measured run time is divided by to give the time alone.
    slowdown: float = 0.0


@dataclass(slots=True)
class Cluster:
    """Arrays of length N (rows) or N × F. Memory in MiB, times in epoch seconds, shares 0..1."""

    names: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    alive: Bools = field(default_factory=lambda: np.zeros(0, bool))
    paused: Bools = field(default_factory=lambda: np.zeros(0, bool))
    slots: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    used: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    memory_total: Floats = field(default_factory=lambda: np.zeros(0))
    #: Free now, and what idle instances would give back.
    memory_free: Floats = field(default_factory=lambda: np.zeros(0))
    utilisation: Floats = field(default_factory=lambda: np.zeros(0))
    jobs: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    #: Memory that batches on their way to a load will take: not in a report yet (digest A26).
    reserved: Floats = field(default_factory=lambda: np.zeros(0))
    resident: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    loading: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    outstanding: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    #: Earliest expected end among the outstanding batches of a revision on a row; +inf without one.
    free_at: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    quarantined: Bools = field(default_factory=lambda: np.zeros((0, 0), bool))
    demands: list[Demand] = field(default_factory=list)
    #: Invocation → its batch, and the batches of each (row, column).
    batches: dict[str, Batch] = field(default_factory=dict)
    cells: dict[tuple[int, int], list[Batch]] = field(default_factory=dict)
    reported_at: dict[str, float] = field(default_factory=dict)
    degradations: Degradations = field(default_factory=Degradations)
    #: Memory of the largest GPU instance ever seen, 0 before the first: what is away now may come back.
    largest: float = 0.0

    def add_row(self, name: str) -> int:
        row = self.rows.get(name)
        if row is not None:
            return row
        row = self.rows[name] = len(self.names)
        self.names.append(name)
        self.degradations.add_row()
        for array in ("alive", "paused", "slots", "used", "memory_total", "memory_free", "utilisation", "jobs", "reserved"):
            values = getattr(self, array)
            setattr(self, array, np.append(values, values.dtype.type(0)))
        for array, empty in (("resident", 0), ("loading", 0), ("outstanding", 0), ("free_at", np.inf), ("quarantined", False)):
            values = getattr(self, array)
            line = np.full((1, values.shape[1]), empty, values.dtype)
            setattr(self, array, np.vstack([values, line]))
        return row

    def add_column(self, demand: Demand) -> None:
        """``demand.column`` must be the number of columns so far."""
        self.demands.append(demand)
        for array, empty in (("resident", 0), ("loading", 0), ("outstanding", 0), ("free_at", np.inf), ("quarantined", False)):
            values = getattr(self, array)
            line = np.full((len(self.names), 1), empty, values.dtype)
            setattr(self, array, np.hstack([values, line]))

    def report(self, event: GpuReported, columns: dict[tuple[str, int], int]) -> bool:
        """Take a worker's word; True where its device is news."""
        row = self.add_row(event.gpu)
        self.alive[row] = True
        self.slots[row] = event.slots
        self.memory_total[row] = event.memory_total
        self.memory_free[row] = event.memory_total - event.memory_used + event.memory_idle
        self.utilisation[row] = event.utilisation
        self.jobs[row] = event.jobs
        self.resident[row] = 0
        self.loading[row] = 0
        for array, counts in ((self.resident, event.warm), (self.loading, event.loading)):
            for function, revision, count in counts:
                column = columns.get((function, revision))
                if column is not None:
                    array[row, column] = count
        for function, revision, memory_mib in event.sizes:
            column = columns.get((function, revision))
            if column is not None:
                self.demands[column].observe_memory(memory_mib)
        self._reserve(row)
        news = self.degradations.report(row, event.device, event.sharing_mode, event.workloads or [""] * event.jobs)
        self.quarantined[row] = False
        for name in event.quarantined:
            function, _, number = name.rpartition("@")
            column = columns.get((function, int(number)))
            if column is not None:
                self.quarantined[row, column] = True
        self.reported_at[event.gpu] = event.at
        self.largest = max(self.largest, event.memory_total)
        return news

    def lose(self, name: str) -> None:
        """A GPU instance has gone: nothing is resident. Its batches end when the queue gives them back."""
        row = self.rows.get(name)
        if row is not None:
            self.alive[row] = False
            self.resident[row] = 0
            self.loading[row] = 0
            self.reported_at.pop(name, None)

    def begin(self, batch: Batch) -> None:
        """Take a slot for a batch."""
        row, column = batch.row, batch.column
        self.degradations.begin(row, batch.load)
        for id_ in batch.members:
            self.batches[id_] = batch
        self.cells.setdefault((row, column), []).append(batch)
        self.used[row] += 1
        self.outstanding[row, column] += 1
        self._reserve(row)
        self.free_at[row, column] = min(self.free_at[row, column], batch.expected_end_at)

    def end(self, id_: str, attempt: int) -> Batch | None:
        """A member has ended or gone back to the queue; with the last one the slot is free. None: unknown, or another attempt."""
        batch = self.batches.get(id_)
        if batch is None or batch.members.get(id_) != attempt:
            return None
        del self.batches[id_]
        del batch.members[id_]
        if not batch.members:
            row, column = batch.row, batch.column
            self.degradations.end(row, batch.load)
            self.used[row] -= 1
            self.outstanding[row, column] -= 1
            self._reserve(row)
            cell = self.cells[row, column]
            cell.remove(batch)
            self.free_at[row, column] = min((other.expected_end_at for other in cell), default=np.inf)
        return batch

    def join(self, coming: Batch) -> None:
        """Take over a member that is under way already: those that are to end together were dispatched together."""
        for batch in self.cells.get((coming.row, coming.column), ()):
            if batch.expected_end_at == coming.expected_end_at:
                batch.members.update(coming.members)
                self.batches.update(dict.fromkeys(coming.members, batch))
                return
        self.begin(coming)

    def idle(self, column: int) -> Bools:
        """Rows with an instance that could run now: more are resident than are taken or still loading."""
        busy = np.maximum(self.outstanding[:, column], self.loading[:, column])
        return np.asarray(self.resident[:, column] > busy)

    def _reserve(self, row: int) -> None:
        coming = self.outstanding[row] - self.resident[row]
        self.reserved[row] = sum(count * self.demands[column].memory_mib for column, count in enumerate(coming.tolist()) if count > 0)

    def rebuilt(self) -> tuple[Ints, Ints]:
        """``used`` and ``outstanding`` computed afresh from the batches: what the incremental arrays must equal."""
        used, outstanding = np.zeros_like(self.used), np.zeros_like(self.outstanding)
        for batch in set(self.batches.values()):
            used[batch.row] += 1
            outstanding[batch.row, batch.column] += 1
        return used, outstanding
