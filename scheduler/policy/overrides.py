"""
What people have set by hand: pauses and drains, boosts and pins for a time, and how much memory a project may keep
warm.

Part of the pure rule: it changes by events, and time is the ``now`` of ``decide``, so that a replay of the same events
ends the same.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.cluster import Cluster
from scheduler.policy.decisions import Offload
from scheduler.policy.demand import Demand
from scheduler.policy.events import InvocationArrived
from scheduler.policy.lanes import Lane
from smore.domain.invocation import EndedFor
from smore.domain.override import Override

_Head = tuple[Demand, InvocationArrived]

#: A worker ends an idle instance and reports it within this; until then nobody asks again.
ROOM_S: Final = 1.0


class Overrides:
    """
    Overrides of one cluster. By shares a boost multiplies a function's weight; by P it leaves the starvation bound as
    it is: P is changed before it is normalised, and normalised priorities differ by at most one.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._paused: frozenset[str] = frozenset()
        #: Nothing is placed anywhere.
        self.platform_paused = False
        self._overrides: dict[str, Override] = {}
        self._limits: Mapping[str, float] = {}
        #: What the pins were last applied to: (GPU instances, revisions).
        self._applied = (0, 0)
        #: When the next of them is over.
        self._due = inf
        #: (row, column) → when its idle instances were last offloaded.
        self._offloaded_at: dict[tuple[int, int], float] = {}

    # ---- pauses ------------------------------------------------------------------------------------------------------

    def pause(self, now: float, paused: frozenset[str]) -> None:
        """From ``now`` on these targets are paused or drained, and no others."""
        resumed = self._paused - paused
        self._paused, self.platform_paused = paused, "*" in paused
        if any(not target.startswith(("f:", "-f:")) for target in resumed):
            self._cluster.open_since = now
        for demand in self._cluster.demands:
            if f"f:{demand.function}" in resumed:
                demand.open_since = now
        for row, name in enumerate(self._cluster.names):
            self._cluster.pause(row, self.gpu_paused(name))

    def function_paused(self, function: str) -> bool:
        return f"f:{function}" in self._paused

    def holds(self, function: str) -> bool:
        """Nothing of it is placed, by a pause of it or of the platform."""
        return self.platform_paused or self.function_paused(function)

    def gpu_paused(self, gpu: str) -> float:
        """kernel.HELD or DRAINED where nothing is placed there, NOT_PAUSED elsewhere."""
        if self.gpu_drained(gpu):
            return kernel.DRAINED
        return kernel.HELD if f"g:{gpu}" in self._paused else kernel.NOT_PAUSED

    def gpu_drained(self, gpu: str) -> bool:
        return f"-g:{gpu}" in self._paused

    def against(self, demand: Demand) -> tuple[EndedFor, tuple[int, int, int]]:
        """
        Why a function is late: because of what people have paused or drained that keeps it from GPU instances now, or of
        itself; and the numbers of :class:`~smore.domain.invocation.End`.
        """
        none = (0, 0, 0)
        if self.platform_paused:
            return EndedFor.PLATFORM_PAUSED, none
        if self.function_paused(demand.function):
            return EndedFor.FUNCTION_PAUSED, none
        cluster = self._cluster
        if not cluster.paused.any():
            return EndedFor.TOO_LATE, none
        allowed = cluster.alive & (cluster.cells[demand.column, kernel.AWAY, : len(cluster)] == 0.0)
        held = [self.gpu_paused(cluster.names[row]) for row in np.flatnonzero(allowed).tolist()]
        drained, paused = held.count(kernel.DRAINED), held.count(kernel.HELD)
        if not drained and not paused:
            return EndedFor.TOO_LATE, none
        return EndedFor.DEVICES_PAUSED, (len(held), drained, paused)

    def without_paused(self, heads: dict[Lane, _Head]) -> dict[Lane, _Head]:
        """Lanes of functions that are not paused."""
        if not self._paused:
            return heads
        return {lane: head for lane, head in heads.items() if not self.function_paused(lane[0])}

    # ---- boosts and pins ---------------------------------------------------------------------------------------------

    def change(self, overrides: Sequence[Override]) -> None:
        """From now on these boosts and pins hold, and no others."""
        self._overrides = {override.function: override for override in overrides}
        self._applied, self._due = (-1, -1), -inf

    def limit(self, mib: Mapping[str, float]) -> None:
        self._limits = mib

    def refresh(self, now: float) -> None:
        """
        End what is over, and hold what is new (a GPU instance, a revision) against the pins. Nearly free where nothing
        has changed.
        """
        cluster = self._cluster
        there = (len(cluster), len(cluster.demands))
        if there == self._applied and now < self._due:
            return
        left = [override.left(now) for override in self._overrides.values()]
        self._overrides = {override.function: override for override in left if override.boost != 1.0 or override.gpus}
        self._due = min(
            (
                end
                for override in self._overrides.values()
                for end in (override.boost_until, override.pin_until)
                if end is not None
            ),
            default=inf,
        )
        self._applied = there
        for demand in cluster.demands:
            pinned = self._overrides.get(demand.function)
            cluster.pin(demand.column, pinned.gpus if pinned is not None else ())

    def boost(self, function: str) -> float:
        """What a function's P is multiplied by."""
        override = self._overrides.get(function)
        return override.boost if override is not None else 1.0

    # ---- memory that a project may keep warm -------------------------------------------------------------------------

    def fits(self, demand: Demand) -> bool:
        """Whether one instance could ever be loaded."""
        return not self._limits or demand.memory_mib <= self._limits.get(_project(demand), inf)

    def may_load(self, demand: Demand) -> bool:
        """Whether another instance may be loaded now."""
        limit = self._limits.get(_project(demand)) if self._limits else None
        return limit is None or self._held_mib(_project(demand)) + demand.memory_mib <= limit

    def room(self, now: float, demand: Demand) -> list[Offload]:
        """
        Let idle instances of the project go, so that this revision can be loaded: one at a time, the lowest column and
        row first.

        Its own go only from where it may not run.
        """
        cluster = self._cluster
        for other in cluster.demands:
            if _project(other) != _project(demand):
                continue
            away = cluster.cells[other.column, kernel.AWAY, : len(cluster)] != 0.0
            for row in np.flatnonzero(cluster.idle(other.column) & ((other.column != demand.column) | away)).tolist():
                if now - self._offloaded_at.get((row, other.column), -inf) >= ROOM_S:
                    self._offloaded_at[row, other.column] = now
                    return [Offload(function=other.function, revision=other.revision, gpu=cluster.names[row])]
        return []

    def _held_mib(self, project: str) -> float:
        """By all of its instances, those on their way to a load too."""
        cluster = self._cluster
        held = 0.0
        for demand in cluster.demands:
            if _project(demand) == project:
                cell = cluster.cells[demand.column, :, : len(cluster)]
                count = np.maximum(cell[kernel.RESIDENT], cell[kernel.OUTSTANDING])[cluster.alive].sum()
                held += float(count) * demand.memory_mib
        return held


def _project(demand: Demand) -> str:
    return demand.function.partition("/")[0]
