"""
Bulk work (class batch) beside work that has users waiting: a small share, runs no longer than others can wait, a slot
that it never has, and a place among the others once its own deadline is near.

The order alone changes nothing on a device that cannot be interrupted: what hurts is the run that has begun. The bound on
runs has a floor, so that no function can hold bulk work back altogether: single invocations that are longer may have
:data:`FLOOR` of the run time of a GPU instance all the same.
"""

from dataclasses import replace
from math import inf
from typing import Final

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.cluster import Batch, Cluster
from scheduler.policy.demand import Demand
from scheduler.policy.events import InvocationArrived
from scheduler.policy.knobs import ClassRule, Knobs
from scheduler.policy.lanes import Lane, Lanes
from scheduler.policy.load import Lateness
from smore.domain.function import WorkClass

#: A function that had a user's call placed within so many seconds bounds the runs of bulk work where it may run.
INVOKED_S: Final = 60.0
#: The part of the time that others can wait which a run of bulk work may take.
YIELDED: Final = 0.75
#: The part of the time that remains in the best case which others are taken to be able to wait at the least: calls that
#: seem late by themselves hold bulk work back no further.
LEAST_SLACK: Final = 0.25
#: A single invocation longer than that waits until nothing else ran there for so long, or for its floor: the part of the
#: run time of a GPU instance that such runs may have.
QUIET_S: Final = 1.0
FLOOR: Final = 0.05
#: Bulk work that has waited for less is judged by what half of its instances could do, not by its rate, seconds.
RATED_AFTER_S: Final = 60.0
#: Deadlines that are compared in a second, so that a long queue is looked at less often.
LOOKED_AT_A_S: Final = 10_000


class Classes:
    """
    The bounds of bulk work on every GPU instance, and which of it is urgent. Nothing is computed while no bulk work waits.
    ``ask``: what other work is weighed by [kernel.ASK_FIELDS]. ``heard``: how late calls are heard of.
    """

    def __init__(self, knobs: Knobs, cluster: Cluster, waiting: Lanes, ask: kernel.Row) -> None:
        self._rule, self._guarded, self.heard = knobs.classes, 1.0 + knobs.guard, Lateness()
        self._cluster, self._waiting = cluster, waiting
        self._bounded, self._single = ask.copy(), ask.copy()
        self._bounded[kernel.A_BULK], self._single[kernel.A_BULK] = kernel.BULK, kernel.BULK_ROW
        #: Row → from when on its runs that are longer than the bound have had less than their floor.
        self._floor_at: dict[int, float] = {}
        #: When the first run longer than the bound may begin; the longest bound, seconds, inf = some GPU instance has none.
        self.wake_at = self._most_s = inf
        #: Functions whose bulk work would miss deadlines at the rate it has, and when each is to be judged again.
        self.urgent: set[str] = set()
        self._judged_at: dict[str, float] = {}

    def of(self, event: InvocationArrived) -> InvocationArrived:
        """The same with the class that counts here."""
        return replace(event, bulk=False) if self._rule is ClassRule.NONE else event

    def arrived(self, now: float, demand: Demand) -> None:
        """The first of a function's bulk work that waits."""
        demand.bulk_since = now
        self.urgent.discard(demand.function)
        self._judged_at.pop(demand.function, None)

    def begin(self, now: float) -> None:
        """A round in which bulk work waits: how long its runs may be on each GPU instance."""
        cluster, n = self._cluster, len(self._cluster)
        bounds, long_at, busy = cluster.fact(kernel.YIELD), cluster.fact(kernel.LONG_AT), np.full(n, -inf)
        bounds[:], long_at[:] = inf, -inf
        if self._rule is ClassRule.TEMPORAL:
            standard = len(self._waiting) > self._waiting.bulk
            for row, there in enumerate(cluster.there):
                if standard or any(not batch.bulk for batch in there):
                    bounds[row] = 0.0
            return
        heard_s = self.heard.seldom_s(now)
        for demand in cluster.demands:
            # What has no time for its own run is late whatever bulk work does.
            placed_at, best_s = demand.placed.last_at, demand.spec.deadline_s - demand.best_s(1)
            if now - placed_at <= INVOKED_S and best_s > 0:
                # As the gate counts: what would make it refuse a call is too long.
                alone_s = heard_s + demand.run_s(1) * self._guarded
                slack_s = max(demand.spec.deadline_s - alone_s, LEAST_SLACK * best_s)
                cell = cluster.cells[demand.column, :, :n]
                may_run = (cell[kernel.AWAY] == 0) & (cell[kernel.QUARANTINED] == 0)
                np.minimum(bounds, np.where(may_run, YIELDED * slack_s, inf), out=bounds)
                quiet_at = placed_at + alone_s + QUIET_S
                np.maximum(busy, np.where(cell[kernel.RESIDENT] > 0, quiet_at, -inf), out=busy)
        self._floor_at = {row: at for row, at in self._floor_at.items() if at > now}
        for row, at in self._floor_at.items():
            long_at[row] = min(busy[row], at)
        self._most_s = float(bounds.max(initial=0.0))
        self.wake_at = float(long_at[long_at > now].min(initial=inf))

    def judge(self, now: float, lane: Lane, demand: Demand) -> None:
        """
        Whether a lane of bulk work is urgent from now on, until none of its function waits: it would miss a deadline at the
        rate at which it was placed in the last minute.
        """
        function = lane[0]
        if function in self.urgent or now < self._judged_at.get(function, 0.0):
            return
        # A caller's own deadline makes nothing urgent that its function lets wait for longer.
        least_s = demand.spec.deadline_s if demand.spec.work_class is WorkClass.BATCH else 0.0
        deadlines = np.sort([max(at, arrival_at + least_s) for at, arrival_at, _ in self._waiting.entries(lane)])
        then = self._judged_at[function] = now + max(1.0, len(deadlines) / LOOKED_AT_A_S)
        together = min(demand.spec.max_batch, len(deadlines))
        resident = self._cluster.cells[demand.column, kernel.RESIDENT, : len(self._cluster)]
        at_a_time = max(1.0, np.minimum(resident, self._cluster.slots).sum())
        run_s = demand.run_s(together)
        each_s = 2.0 * run_s / together / at_a_time
        if now - demand.bulk_since >= RATED_AFTER_S:
            each_s = max(each_s, demand.bulk_placed.each_s(now, demand.bulk_since, run_s, together))
        # Until it is judged again it would have next to nothing.
        if (then + run_s + each_s * np.arange(1, len(deadlines) + 1) > deadlines).any():
            self.urgent.add(function)

    def bounds(self, function: str) -> bool:
        """Whether a function's bulk work is bounded. What is urgent is work as any other."""
        return self._rule is not ClassRule.TIER and function not in self.urgent

    def ask(self, now: float, demand: Demand, members: int) -> kernel.Row:
        """The knobs by which a batch of bulk work is weighed."""
        ask = self._bounded if members > 1 or self._rule is ClassRule.TEMPORAL else self._single
        ask[kernel.A_KEEPS] = self.shares(now, demand)
        return ask

    def shares(self, now: float, demand: Demand) -> bool:
        """Whether bulk work of a revision has its instances in common with users: it leaves them one of several."""
        return self._rule is ClassRule.BOUND and now - demand.placed.last_at <= INVOKED_S

    def most(self, demand: Demand, rows: list[int]) -> int:
        """How many of these, the rows of each, a run may hold that ends within the longest bound; one at least."""
        count, total = len(rows), sum(rows)
        while count > 1 and demand.run_s(total) * self._guarded > self._most_s:
            count -= 1
            total -= rows[count]
        return count

    @property
    def free(self) -> bool:
        """Whether runs are bounded nowhere."""
        return self._most_s == inf

    def placed(self, now: float, batch: Batch) -> None:
        """A batch of bulk work has begun: when one that is longer than the bound may be next."""
        row, rows = batch.row, self._cluster.rows
        if batch.expected_end_at - batch.start_at > rows[kernel.YIELD, row]:
            self._floor_at[row] = now + batch.run_s / FLOOR / rows[kernel.USED, row]

    def most_s(self) -> float | None:
        """The longest bound of the GPU instances that the kernel has just refused for it, seconds; None = none."""
        refused = self._cluster.code[: len(self._cluster)] == kernel.YIELDS
        return float(self._cluster.fact(kernel.YIELD)[refused].max()) if refused.any() else None

    def yields(self) -> dict[str, float]:
        """
        GPU instance → the longest run of bulk work that is allowed there, seconds; without a bound it lacks, and so do all
        while no bulk work waits.
        """
        if not self._waiting.bulk:
            return {}
        bounds = self._cluster.fact(kernel.YIELD)
        return {self._cluster.names[row]: float(bounds[row]) for row in np.flatnonzero((bounds > 0) & (bounds < inf))}
