"""
One round: what cannot be in time any more expires, then lane after lane is tried, and each dispatches the largest batch
that passes.
"""

from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.batching import Batching
from scheduler.policy.budget.budgets import Budgets
from scheduler.policy.budget.reservations import Reservations
from scheduler.policy.classes import Classes
from scheduler.policy.cluster import Batch, Cluster
from scheduler.policy.decisions import Decision, Dispatch, Prewarm
from scheduler.policy.demand import Demand
from scheduler.policy.events import InvocationArrived
from scheduler.policy.knobs import Choice, Knobs, Order
from scheduler.policy.lanes import Lane, Lanes
from scheduler.policy.load import LoadSwitch
from scheduler.policy.ordering import Heads, Ordering
from scheduler.policy.overrides import Overrides
from scheduler.policy.placement import OVERDUE_S, Placement
from scheduler.policy.prewarm.prewarmer import Prewarmer
from smore.domain.invocation import Cause, End, EndAction, EndedFor

#: Sending a batch ahead costs more than an instance loses by waiting for the next run after one that is shorter, seconds.
SHORT_S: Final = 0.001


class Dispatching:
    """The rounds of one policy, over the parts that it is made of."""

    def __init__(
        self,
        *,
        knobs: Knobs,
        cluster: Cluster,
        waiting: Lanes,
        classes: Classes,
        load: LoadSwitch,
        overrides: Overrides,
        ordering: Ordering,
        placement: Placement,
        budgets: Budgets,
        reservations: Reservations,
        batching: Batching,
        prewarmer: Prewarmer | None,
    ) -> None:
        self._knobs, self._cluster, self._waiting, self._load = knobs, cluster, waiting, load
        self._classes, self._overrides, self._ordering, self._placement = classes, overrides, ordering, placement
        self._budgets, self._reservations, self._batching = budgets, reservations, batching
        self._prewarmer = prewarmer
        #: (function, revision) → when its load was last asked for, so that one is asked for once.
        self._loaded_at: dict[tuple[str, int], float] = {}
        #: When a reserved or delayed batch may go, or one ahead of the end of a run, epoch seconds; inf = there is none.
        self.wake_at = self._ahead_at = inf
        #: Row → the one column that has run there, and since when.
        self._sole: dict[int, tuple[int, float]] = {}

    def run(self, now: float, decisions: list[Decision]) -> None:
        """One round at ``now`` (epoch seconds); adds what it decides."""
        reservations, batching = self._reservations, self._batching
        reservations.paid_at = self._ahead_at = inf
        batching.begin()
        self._classes.wake_at = inf
        if len(self._waiting):
            self._place(now, self._expire(now, decisions), decisions)
            reservations.release(now)
        self.wake_at = min(reservations.paid_at, batching.wake_at, self._ahead_at, self._classes.wake_at)

    def sole(self, row: int, at: float) -> tuple[int, float]:
        """The one column that has run on a row, and since when; (-1, ``at``) before any."""
        return self._sole.get(row, (-1, at))

    def sole_from(self, row: int, column: int, at: float) -> None:
        """Count anew from ``at`` for how long a column has had a row to itself."""
        self._sole[row] = (column, at)

    def _expire(self, now: float, decisions: list[Decision]) -> Heads:
        """
        End what cannot finish in time even warm and alone, or so long after (``late_s``); returns the heads that are
        left.

        Heads are the earliest of their lane, so a lane is looked at until one can be in time.
        """
        heads: Heads = {}
        for function in self._waiting.functions():
            for lane in self._waiting.lanes(function):
                demand = self._cluster.demand(lane[0], lane[1])
                demand.forget(now)
                while (head := self._waiting.head(lane)) is not None:
                    if now + demand.best_s(head.rows) <= head.deadline_at + self._knobs.late_s:
                        heads[lane] = (demand, head)
                        break
                    self._waiting.take(lane, 1)
                    if not self._overrides.holds(lane[0]):
                        since = max(demand.open_since, self._cluster.open_since, head.arrival_at)
                        (demand.bulk_placed if lane[3] else demand.placed).add(now, 0, since)
                    if not self._cluster.cells[demand.column, kernel.OUTSTANDING].any():
                        demand.relax()
                    why, held = self._overrides.against(demand)
                    decisions.append(
                        End(
                            function=head.function,
                            id=head.id,
                            action="expire",
                            cause=Cause.DEADLINE_EXPIRED,
                            why=why,
                            held=held,
                            least_s=demand.best_s(head.rows),
                            left_s=head.deadline_at - now,
                        )
                    )
        return heads

    def _place(self, now: float, heads: Heads, decisions: list[Decision]) -> None:
        """Try every lane in order until it takes no more; a lane that fails does not block the next (Fig. 6)."""
        if self._overrides.platform_paused:
            return
        n = len(self._cluster.names)
        free, slots = kernel.slots(self._cluster.rows, n)
        if not free:
            return
        fast = self._load.fast(now, slots, len(self._waiting), n)
        # A random choice is one among all that accept: of a sample only the first is known.
        fast = fast and self._knobs.fast and n >= self._knobs.fast_from and self._knobs.choice is not Choice.RANDOM
        # So is a choice by a rule of one's own.
        fast = fast and self._knobs.rule is None
        open_ = self._overrides.without_paused(heads)
        if self._waiting.bulk:
            self._classes.begin(now)
            for lane, (demand, _) in open_.items():
                if lane[3]:
                    self._classes.judge(now, lane, demand)
        if self._knobs.order is Order.PRIORITY and self._knobs.rule is None:
            for priority, lane in self._ordering.by_priority(now, open_):
                while self._place_one(now, lane, open_[lane][0], priority, fast, decisions):
                    pass
            return
        several = len({lane[0] for lane in open_}) < len(open_)
        key_of = self._ordering.key
        heap = [key_of(now, lane, demand, head) for lane, (demand, head) in open_.items()]
        heapify(heap)
        while heap:
            key = heappop(heap)
            lane = key[-1]
            demand = open_[lane][0]
            if (
                several
                and (head := self._waiting.head(lane)) is not None
                and (fresh := key_of(now, lane, demand, head)) != key
            ):
                heappush(heap, fresh)  # another lane of its function has had something placed meanwhile
            elif (
                self._place_one(now, lane, demand, 0.0, fast, decisions)
                and (head := self._waiting.head(lane)) is not None
            ):
                heappush(heap, key_of(now, lane, demand, head))

    def _place_one(
        self, now: float, lane: Lane, demand: Demand, priority: float, fast: bool, decisions: list[Decision]
    ) -> bool:
        """Dispatch the largest batch of a lane that passes; returns whether one did."""
        cluster = self._cluster
        members = waiting = self._waiting.first(lane, demand.spec.max_batch)
        if not members:
            return False
        ask, bounded = None, lane[3] and self._classes.bounds(lane[0])
        if bounded:
            members = members[: self._classes.most(demand, [member.rows for member in members])]
        while True:
            if bounded:
                ask = self._classes.ask(now, demand, len(members))
            rows = sum(member.rows for member in members)
            kind, deadline_at = cluster.kind(demand, rows), members[0].deadline_at
            run_s = demand.run_s(rows)
            weighed = self._placement.weigh(now, demand, kind, rows, deadline_at, fast, run_s, ask)
            row = self._placement.choose(now, demand, kind, weighed, deadline_at, rows, members[0].arrival_at)
            ahead_s, start_at = 0.0, now
            if row < 0 and self._may_go_ahead(demand, rows, run_s) and (not bounded or self._classes.free):
                row, found, start_at = self._placement.ahead(now, demand, kind, rows, deadline_at)
                if found is not None:
                    weighed, ahead_s = found, self._patience_s(now, demand, row)
                    break
                self._ahead_at = min(self._ahead_at, start_at)
            if row >= 0:
                if lane[3]:
                    break
                delay = self._batching.delay_to_fill(now, demand, kind, rows, members[0], row, waiting)
                if delay is None:
                    break
                self._batching.delay(lane, delay)
                self._reservations.reserve(now, row, delay.cost_s)
                return False
            reserved, ends_at = self._reservations.reserve_budget(now, demand, kind, run_s, members, weighed)
            if reserved:
                return False
            if len(members) == 1:
                later = self._later(lane, min(weighed.earliest, ends_at), members[0])
                if later is None:
                    if weighed.cold >= 0 and not self._overrides.may_load(demand):
                        decisions += self._overrides.room(now, demand)
                    else:
                        self._load_ahead(now, demand, weighed.late, decisions)
                    return False
                members = [later]
            else:
                # A smaller batch helps where the deadline or the budget was the reason; where neither was, one is tried
                # all the same.
                members = members[: len(members) // 2]
        cold, delay_s = cluster.cells.item(demand.column, kernel.STATE, row) < 0, cluster.delay_s(demand, row)
        slowdown, expected_end_at = cluster.effects.item(kind, kernel.OWN, row), cluster.finish.item(row)
        reasons = self._placement.reasons(demand, kind, weighed, row, run_s, priority)
        if cold and self._prewarmer is not None:
            self._prewarmer.dispatched(demand)
            reasons = replace(reasons, unforeseen=self._prewarmer.reports.cold_start_reason(now, demand, cluster).value)
        if self._placement.shadow is not None:
            reasons = replace(
                reasons, shadow=self._placement.shadowed(now, demand, kind, rows, deadline_at, members[0].arrival_at)
            )
        placed, since, bulk = demand.placed, demand.open_since, lane[3]
        if bulk:
            placed, since, bulk = demand.bulk_placed, demand.bulk_since, lane[0] not in self._classes.urgent
            reasons = replace(reasons, work_class="batch" if bulk else "urgent")
        batch = Batch(
            row=row,
            column=demand.column,
            kind=kind,
            run_s=run_s,
            start_at=start_at + delay_s,
            deadline_at=deadline_at,
            expected_end_at=expected_end_at,
            members={member.id: member.attempt + 1 for member in members},
            slowdown=slowdown,
            bulk=bulk,
        )
        decisions.append(
            Dispatch(
                function=demand.function,
                revision=demand.revision,
                gpu=cluster.names[row],
                attempts=[(member.id, member.attempt) for member in members],
                cold=cold,
                reasons=reasons,
                ahead_s=ahead_s,
            )
        )
        if self._budgets.kept(row):
            batch.charge_s = self._budgets.charge_run(now, row, kind, run_s)
        self._waiting.take_these(members)
        placed.add(now, len(members), max(since, cluster.open_since, members[0].arrival_at))
        self._ordering.placed(demand, run_s, lane[3])
        if ahead_s:
            cluster.send_ahead(batch)
        else:
            cluster.begin(batch, now)
            if bulk:
                self._classes.placed(now, batch)
                if self._classes.shares(now, demand):
                    self._load_another(now, demand, row, decisions)
        if row not in self._sole or self._sole[row][0] != demand.column:
            self._sole[row] = (demand.column, now)
        return True

    def _may_go_ahead(self, demand: Demand, rows: int, run_s: float) -> bool:
        """Whether a batch may be sent before an instance is free: what is not full may fill until then."""
        knobs = self._knobs
        return knobs.ahead_s > 0 and knobs.rule is None and rows >= demand.spec.max_batch and run_s >= SHORT_S

    def _patience_s(self, now: float, demand: Demand, row: int) -> float:
        """Seconds for which a batch waits there: until the run before it is well behind its time."""
        before = min(
            (batch for batch in self._cluster.there[row] if batch.column == demand.column),
            key=lambda batch: batch.expected_end_at,
        )
        expected_s = before.expected_end_at - before.start_at
        return max(0.0, before.expected_end_at - now) + max(OVERDUE_S, expected_s / 2)

    def end(self, now: float, id_: str, attempt: int) -> Batch | None:
        """See Cluster.end; behind the last member of a batch the one that is ahead begins."""
        batch = self._cluster.end(id_, attempt, now)
        if batch is not None and not batch.members:
            self._next(now, batch.row, batch.column)
        return batch

    def begin_ahead(self, now: float, row: int) -> None:
        """Begin what is ahead of an instance that a report shows idle."""
        for _, column in [key for key in self._cluster.ahead if key[0] == row]:
            if self._cluster.idle(column)[row]:
                self._next(now, row, column)

    def _next(self, now: float, row: int, column: int) -> None:
        """Begin what is ahead there, charged as it runs: not beside the batch before it."""
        batch = self._cluster.ahead.get((row, column))
        if batch is not None:
            self._budgets.refund(now, batch)
            kept = self._budgets.kept(row)
            batch.charge_s = self._budgets.charge_run(now, row, batch.kind, batch.run_s) if kept else 0.0
            self._cluster.next(row, column, now)

    def _later(self, lane: Lane, earliest: float, head: InvocationArrived) -> InvocationArrived | None:
        """The first of a lane that would be in time where its head would not."""
        if not head.deadline_at < earliest < inf:
            return None
        return self._waiting.due_after(lane, earliest)

    def load_wanted(self, now: float, demand: Demand, decisions: list[Decision]) -> None:
        """
        A call was refused because no instance of the revision stands ready: those after it would be as well, with
        nobody loading it.
        """
        # Nothing can end now, so that the least impact of all that may load it is found.
        weighed = self._placement.weigh(now, demand, self._cluster.kind(demand, 1), 1, now, fast=False)
        self._load_ahead(now, demand, max(weighed.late, weighed.cold), decisions)

    def _load_ahead(self, now: float, demand: Demand, row: int, decisions: list[Decision]) -> None:
        """
        Load a revision that has no instance where its deadline leaves no time for a cold start; ``row`` -1 = nowhere.

        Without this, requests of a function whose deadline is shorter than its load would expire for ever with nobody
        loading it.
        """
        cluster, cell = self._cluster, self._cluster.cells[demand.column]
        if row < 0 or len(cluster.homes[demand.column]):
            return
        if not cell[kernel.RESIDENT].any() and not cell[kernel.OUTSTANDING].any():
            self._have(now, demand, row, 1, decisions)

    def _load_another(self, now: float, demand: Demand, row: int, decisions: list[Decision]) -> None:
        """Load a second instance where bulk work has the only one of a function that has users waiting too."""
        rows, resident = self._cluster.rows, self._cluster.cells.item(demand.column, kernel.RESIDENT, row)
        room_mib = rows[kernel.MEMORY_FREE, row] - rows[kernel.RESERVED, row]
        if resident == 1 and demand.spec.max_warm > 1 and rows[kernel.SLOTS, row] > 1 and room_mib >= demand.memory_mib:
            self._have(now, demand, row, 2, decisions)

    def _have(self, now: float, demand: Demand, row: int, instances: int, decisions: list[Decision]) -> None:
        """Have so many instances there, asked for once while they may be on their way."""
        key = (demand.function, demand.revision)
        if not self._overrides.may_load(demand) or now - self._loaded_at.get(key, -np.inf) < 2 * demand.load_s + 1.0:
            return
        self._loaded_at[key] = now
        gpu = self._cluster.names[row]
        decisions.append(Prewarm(function=key[0], revision=key[1], gpu=gpu, instances=instances))


def ending(invocation: InvocationArrived, action: EndAction, cause: Cause, why: EndedFor) -> End:
    return End(function=invocation.function, id=invocation.id, action=action, cause=cause, why=why)
