"""
Where instances are loaded ahead and offloaded: on the GPU instance where a load is accepted, out of host memory before
anew, and impact is least, within a share of the memory that is free there; least recently used idle instances give way.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final, Protocol

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.cluster import Bools, Cluster
from scheduler.policy.decisions import Decision, Offload, Prewarm
from scheduler.policy.demand import Demand
from scheduler.policy.events import GpuReported
from scheduler.policy.prewarm.function import Pending, PrewarmedFunction
from scheduler.policy.prewarm.status import ColdStartReason

#: For how long a worker keeps an instance on one command.
LEASE_S: Final = 120.0


class PlacementView(Protocol):
    """What the prewarmer asks of the policy that it is part of."""

    cluster: Cluster

    def loadable(self, now: float, demand: Demand) -> Bools:
        """GPU instances [N] that accept a load now: budgets, compute, deadlines of what runs, pauses."""
        ...

    def charge_load(self, now: float, demand: Demand, row: int) -> None:
        """A load costs training time too: take it from the token bucket."""
        ...

    def paused(self, function: str) -> bool: ...


class Instances:
    """
    The instances on each GPU instance, as reported and as asked for. ``functions``: the prewarmer's, by name;
    ``share``: of the free memory that idle instances may hold.
    """

    def __init__(self, functions: Mapping[str, PrewarmedFunction], share: float) -> None:
        self._functions, self._share = functions, share
        #: Idle instances by row, as reported: (function, revision, MiB, seconds since they ran).
        self._idle: dict[int, Sequence[tuple[str, int, float, float]]] = {}
        #: All instances by row, and the functions that have, or are to have, some there.
        self._present: dict[int, Mapping[tuple[str, int], int]] = {}
        self._there: dict[int, set[str]] = {}
        self._names: Sequence[str] = ()

    # ---- what is there -----------------------------------------------------------------------------------------------

    def reported(self, row: int, event: GpuReported, names: Sequence[str]) -> None:
        """What a report says of a row; ``names`` of all rows."""
        self._names = names
        self._idle[row] = event.idle
        self._present[row] = {(function, revision): count for function, revision, count in event.warm}

    def present(self, row: int) -> Mapping[tuple[str, int], int]:
        """(function, revision) → resident instances, as last reported."""
        return self._present.get(row, {})

    def there(self, row: int) -> set[str]:
        """Functions that have, or are to have, instances on a row; the caller keeps it."""
        return self._there.setdefault(row, set())

    def lost(self, row: int) -> set[str]:
        """A GPU instance is gone: returns the functions that had instances there."""
        self._idle.pop(row, None)
        self._present.pop(row, None)
        return self._there.pop(row, set())

    def removed(self, function: PrewarmedFunction) -> list[Decision]:
        """A function is gone: so is all that was loaded for it, also what is still on its way."""
        name, revision = function.demand.function, function.demand.revision
        resident = (row for row, count in function.resident.items() if count)
        rows = {*function.leased, *function.pending, *function.parked, *resident}
        for there in self._there.values():
            there.discard(name)
        return [Offload(function=name, revision=revision, gpu=self._names[row], gone=True) for row in sorted(rows)]

    # ---- loading and offloading --------------------------------------------------------------------------------------

    def load(
        self,
        now: float,
        at: float,
        function: PrewarmedFunction,
        view: PlacementView,
        there: kernel.Floats,
        missing: int,
        decisions: list[Decision],
    ) -> bool:
        """
        Ask for ``missing`` instances, one by one, each where it weighs least; ``there`` [N] counts those of the
        function and is kept. Returns whether all found room.
        """
        cluster, demand = view.cluster, function.demand
        impact, free = cluster.effect(cluster.kind(demand, 1), kernel.IMPACT), cluster.fact(kernel.MEMORY_FREE)
        cell = cluster.cells[demand.column, :, : len(cluster)]
        for _ in range(missing):
            open_ = view.loadable(now, demand) & (there < demand.spec.max_warm)
            parked = np.zeros(len(cluster))
            for row, ends in function.parked.items():
                parked[row] = len(ends) - max(0.0, there[row] - cell[kernel.RESIDENT, row])
            order = [
                (parked[row] <= 0, impact[row], there[row], -free[row], row) for row in np.flatnonzero(open_).tolist()
            ]
            for *_, row in sorted(order):
                leaving = self._room(function, row, cluster)
                if leaving is None:
                    continue
                decisions += leaving
                instances = int(there[row]) + 1
                there[row] = instances
                function.pending[row] = Pending(instances, at + 3.0 * function.demand.load_s + 10.0)
                function.leased[row] = (instances, at + LEASE_S)
                self.there(row).add(demand.function)
                view.charge_load(now, demand, row)
                decisions.append(_prewarm(now, demand, cluster.names[row], instances))
                break
            else:
                return False
        return True

    def _room(self, function: PrewarmedFunction, row: int, cluster: Cluster) -> list[Decision] | None:
        """
        What must go first for one more instance to be idle on a row, None where there is no room.

        Idle instances may hold ``share`` of what is free; those that no rule wants give way, least recently used first.
        """
        need = function.demand.memory_mib
        # Free now and what idle instances would give back.
        free, reserved = float(cluster.fact(kernel.MEMORY_FREE)[row]), float(cluster.reserved[row])
        # What was asked for and is in no report yet.
        others = (self._functions[name] for name in self._there.get(row, ()) if name in self._functions)
        promised = sum(
            other.demand.memory_mib * max(0, other.pending[row].instances - other.resident.get(row, 0))
            for other in others
            if row in other.pending
        )
        held_mib, spare = 0.0, []
        for name, revision, mib, idle_s in self._idle.get(row, ()):
            holder = self._functions.get(name)
            held = (
                holder is not None and holder.demand.revision == revision and row in holder.leased and holder.wanted > 0
            )
            if held or name == function.demand.function:
                held_mib += mib
            else:
                spare.append((idle_s, name, revision, mib))
        room = self._share * free - promised - held_mib
        if need > min(room, free - reserved - promised - held_mib):
            return None
        spare_mib = sum(mib for *_, mib in spare)
        left = dict(self.present(row))
        going: dict[tuple[str, int], int] = {}
        for _, name, revision, mib in sorted(spare, reverse=True):
            if need + spare_mib <= room:
                break
            spare_mib -= mib
            left[name, revision] -= 1
            going[name, revision] = left[name, revision]
        return [
            Offload(function=name, revision=revision, gpu=cluster.names[row], keep=keep)
            for (name, revision), keep in going.items()
        ]

    def release(
        self,
        at: float,
        function: PrewarmedFunction,
        cluster: Cluster,
        there: kernel.Floats,
        surplus: int,
        decisions: list[Decision],
    ) -> None:
        """Offload ``surplus`` idle instances, those that weigh most first; ``there`` [N] is kept."""
        demand, n = function.demand, len(cluster)
        cell = cluster.cells[demand.column, :, :n]
        idle = (
            np.maximum(0.0, cell[kernel.RESIDENT] - np.maximum(cell[kernel.OUTSTANDING], cell[kernel.LOADING]))
            * cluster.alive
        )
        impact = cluster.effect(cluster.kind(demand, 1), kernel.IMPACT)
        for row in sorted(np.flatnonzero(idle).tolist(), key=lambda row: (-impact[row], row)):
            if row in function.pending:
                continue
            going = min(surplus, int(idle[row]))
            if not going:
                break
            surplus -= going
            keep = int(cell[kernel.RESIDENT, row]) - going
            decisions.append(
                Offload(function=demand.function, revision=demand.revision, gpu=cluster.names[row], keep=keep)
            )
            # Nothing is to be sent there as if it were still loaded.
            cluster.offload(demand, row, keep)
            there[row] -= going
            function.resident[row] = keep
            function.leased.pop(row, None)
            function.lost, function.lost_at = ColdStartReason.GIVEN_UP, at

    def renew(
        self, now: float, at: float, function: PrewarmedFunction, cluster: Cluster, decisions: list[Decision]
    ) -> None:
        """Renew the leases of what workers are to keep for longer than the keep-alive."""
        demand, n = function.demand, len(cluster)
        resident = cluster.cells[demand.column, kernel.RESIDENT, :n] * cluster.alive
        left = function.wanted
        for row in np.flatnonzero(resident).tolist():
            held = min(left, int(resident[row]))
            left -= held
            before, until = function.leased.get(row, (0, -inf))
            if held and row not in function.pending and (held != before or until - at <= LEASE_S / 2):
                function.leased[row] = (held, at + LEASE_S)
                decisions.append(_prewarm(now, demand, cluster.names[row], held))


def _prewarm(now: float, demand: Demand, gpu: str, instances: int) -> Prewarm:
    return Prewarm(
        function=demand.function, revision=demand.revision, gpu=gpu, instances=instances, until_at=now + LEASE_S
    )
