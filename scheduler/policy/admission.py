"""
When a new invocation could end: the bounds by which gateways admit, and the answers to their questions.

A bound counts what waits at the batch throughput of the instances there are, and what the token buckets of the
trainings allow. It changes nothing.
"""

from dataclasses import dataclass, field
from math import inf, nan, sqrt
from random import Random
from typing import Final

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.batching import Batching
from scheduler.policy.budget.budgets import Budgets
from scheduler.policy.cluster import Bools, Cluster
from scheduler.policy.decisions import Answer, FinishBounds, PublishAdmission
from scheduler.policy.demand import Demand
from scheduler.policy.events import AdmissionDue, QuestionAsked
from scheduler.policy.knobs import BudgetRule, Knobs
from scheduler.policy.lanes import Lanes
from scheduler.policy.ordering import Ordering
from scheduler.policy.overrides import Overrides
from scheduler.policy.placement import Placement

#: How old a backlog must be to be judged by what was placed meanwhile, and the slowest rate that is published, seconds
#: for one invocation.
BACKLOG_S: Final = 0.5
LONGEST_WAIT_S: Final = 60.0
#: See :func:`with_margin`.
CAUTION: Final = 1.5
STRAY_S: Final = 0.4
#: A function that had something placed within so many seconds takes part in the division of what a budget leaves.
ACTIVE_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class _Supply:
    """
    What all open token buckets hold together at the moment ``at``, and who shares it.

    ``refill``: seconds a second (inf: some GPU instance needs no budget; 0: none is open); ``tokens_s``; ``starts_s``:
    seconds until the first bucket can pay anything; ``rows``: GPU instances that may be used. ``rivals``: functions, and
    whether of their bulk work, that take part in the division → their column in ``of_rivals`` [6, F]: SFQ tag, weight, cost
    and run time of one invocation (seconds), how many wait, how many are placed a second.
    """

    at: float = -1.0
    refill: float = inf
    tokens_s: float = 0.0
    starts_s: float = 0.0
    rows: Bools = field(default_factory=lambda: np.zeros(0, bool))
    rivals: dict[tuple[str, bool], int] = field(default_factory=dict)
    of_rivals: kernel.Floats = field(default_factory=lambda: np.zeros((6, 0)))


class Admission:
    """Reads the state of the other parts; keeps what it computed for one moment."""

    def __init__(
        self,
        knobs: Knobs,
        cluster: Cluster,
        waiting: Lanes,
        overrides: Overrides,
        ordering: Ordering,
        batching: Batching,
        placement: Placement,
        budgets: Budgets,
    ) -> None:
        self._knobs, self._cluster, self._waiting, self._overrides = knobs, cluster, waiting, overrides
        self._ordering, self._batching, self._placement, self._budgets = ordering, batching, placement, budgets
        self._supply = _Supply()

    def forget(self) -> None:
        """Something has happened: what was computed for this moment holds no more."""
        self._supply.at = -1.0

    def bounds(self, now: float, demand: Demand) -> FinishBounds:
        """
        When a new invocation of a revision could end.

        The backlog counts what waits before it at the batch throughput of the instances there are, and what the
        trainings' token buckets allow at the function's share; once it has lasted for :data:`BACKLOG_S`, no less than
        at the rate at which it was really placed while it could be: pauses, loads and the time before this leader count
        for nothing.
        """
        cluster = self._cluster
        demand.forget(now)
        floor = demand.best_s(1)
        if cluster.keeps_out(demand.column):
            return FinishBounds(floor, floor, 0.0, 0, inf, quarantined=demand.revision)
        cell = cluster.cells[demand.column, :, : len(cluster)]
        usable = cluster.usable
        # As many as may run at a time; a worker that takes nothing more has no slots.
        there = np.minimum(
            np.where(usable, np.maximum(cell[kernel.RESIDENT], cell[kernel.OUTSTANDING]), 0.0),
            np.maximum(cluster.slots, 1.0),
        )
        instances = int(there.sum())
        waiting = self._waiting.of_class(demand.function, False)
        starts_s, slowed = self._start(now, demand, usable, there > 0 if instances else usable)
        # A run as a placement will count it.
        guarded = (1.0 + self._knobs.guard) * (1.0 + slowed)
        row_s = demand.row_s * guarded
        if not instances:
            # A cold start counts only where the function's own deadline has room for it: where it has none, a load is
            # asked for ahead (Dispatching).
            load_s = demand.host_s if (cluster.host(demand.column) & usable).any() else demand.load_s
            cold = self._ordering.classes.heard.seldom_s(now) + load_s + demand.run_s(1) * guarded
            admits = cold if cold <= demand.spec.deadline_s else floor
            return FinishBounds(admits, floor, 0.0, waiting, cold if usable.any() else inf, row_s)
        most = demand.spec.max_batch
        batch_s = demand.run_s(most) / instances
        wait, each = (waiting // most) * batch_s, batch_s / most
        if waiting and not self._overrides.holds(demand.function):
            oldest = self._waiting.oldest(demand.function, now)
            since = max(demand.open_since, cluster.open_since, oldest)
            if now - oldest > min(BACKLOG_S, demand.spec.deadline_s / 4):
                together = min(most, waiting)
                placed = demand.placed.each_s(now, since, demand.run_s(together) / instances, together)
                placed = min(placed, LONGEST_WAIT_S)
                wait, each = max(wait, waiting * placed), max(each, placed)
        unpaid, unpaid_each = self._unpaid(now, demand, waiting)
        unpaid, unpaid_each = max(0.0, unpaid), max(0.0, unpaid_each)
        budget_s = with_margin(unpaid)
        delay = self._batching.with_room(demand.function, demand.revision)
        if delay is not None:
            # There is room in a delayed batch; its cost is reserved from those after it.
            wait, each = max(wait, delay.leaves_at - now), max(each, budget_s / delay.room)
        else:
            wait, each = max(wait, budget_s), max(each, with_margin(unpaid + unpaid_each) - budget_s)
        if waiting or starts_s:
            wait += starts_s
        under_way = int(cell[kernel.OUTSTANDING][usable].sum())
        # One at a time tries whether what was learned of a slow time still holds (Demand.forget).
        tries = not waiting and not under_way
        run_s = demand.run_s(1) if tries else demand.learned_s(min(most, waiting + 1))
        heard_s = self._ordering.classes.heard.seldom_s(now)
        # A run that ends before its time leaves an instance free, except where a budget has to allow the next one.
        busy = under_way if starts_s and not unpaid else 0
        alone_s = (demand.run_s(1) if tries else demand.learned_s(1)) * (1.0 + self._knobs.guard)
        alone_s *= 1.0 + (self._slowed_most(demand, usable) if busy else slowed)
        backlog_s = heard_s + wait + run_s * guarded
        return FinishBounds(backlog_s, floor, each, waiting, 0.0, row_s, heard_s + alone_s, busy)

    def _slowed_most(self, demand: Demand, usable: Bools) -> float:
        """The slowdown of one invocation by the trainings where batches of its revision are under way, at most."""
        cluster = self._cluster
        there = usable & (cluster.cells[demand.column, kernel.OUTSTANDING, : len(cluster)] > 0)
        rows = np.flatnonzero(there & (cluster.fact(kernel.JOBS) > 0)).tolist()
        kind = cluster.kind(demand, 1)
        return max((cluster.beside_training(kind, row, self._knobs.use_upper) for row in rows), default=0.0)

    def _start(self, now: float, demand: Demand, usable: Bools, rows: Bools) -> tuple[float, float]:
        """
        Seconds until the first of these GPU instances has an instance and a slot free, and the slowdown of one
        invocation that starts there then, a fraction.
        """
        cluster, upper = self._cluster, self._knobs.use_upper
        kind = cluster.kind(demand, 1)
        free = rows & (cluster.used < cluster.slots)
        idle = free & cluster.idle(demand.column)
        # Where there is no instance yet, nothing else is known of the one to come.
        if not idle.any() and not cluster.cells[demand.column, kernel.RESIDENT, : len(cluster)][usable].any():
            idle = free
        if idle.any():
            return 0.0, float(cluster.effect(kind, kernel.OWN_UPPER if upper else kernel.OWN)[idle].min())
        ends = self._free_at(now, demand, rows)
        row = int(ends.argmin()) if len(ends) else -1
        if row < 0 or ends[row] == inf:
            return 0.0, 0.0
        return max(0.0, float(ends[row]) - now), cluster.beside_training(kind, row, upper)

    def _free_at(self, now: float, demand: Demand, rows: Bools) -> kernel.Floats:
        """When an instance and a slot are expected to be free on each of these GPU instances [N], inf on the others."""
        cluster = self._cluster
        cell, n = cluster.cells[demand.column, :, : len(cluster)], len(cluster)
        ends = np.where(rows, cell[kernel.FREE_AT], inf)
        for (row, column), batch in cluster.ahead.items():
            if column == demand.column:
                ends[row] = max(ends[row], batch.expected_end_at)  # it takes the first that is free
        for_slot = rows & cluster.idle(demand.column)
        if for_slot.any():
            taken = np.arange(cluster.running.shape[1]) < cluster.used[:, None]
            ends = np.where(
                for_slot, np.where(taken, cluster.running[:n, :, kernel.ENDS], inf).min(1, initial=inf), ends
            )
        loading = rows & ~for_slot & (cell[kernel.OUTSTANDING] == 0)
        return np.where(loading, now + demand.load_s, ends)

    def publication(self, now: float, due: AdmissionDue) -> PublishAdmission:
        """The bounds of functions, and their priorities."""
        bounds: dict[str, FinishBounds] = {}
        priorities: dict[str, float] = {}
        for function, revision in due.revisions.items():
            demand = self._cluster.find(function, revision)
            priorities[function] = 0.0 if demand is None else demand.priority
            if demand is not None:
                bounds[function] = self.bounds(now, demand)
        return PublishAdmission(bounds=bounds, priorities=priorities, pressed=self.pressed(now))

    def pressed(self, now: float) -> bool:
        """
        Whether budgets of trainings limit what is placed: then the bounds change with each run. Not while nothing is
        placed.
        """
        if self._knobs.budget_rule is not BudgetRule.BUCKET or not self._budgets.any:
            return False
        supply = self._supply_at(now)
        return supply.refill < inf and bool(supply.rivals)

    def answer(self, now: float, demand: Demand, asked: QuestionAsked) -> Answer:
        """What would become of an invocation that came now, all GPU instances weighed."""
        cluster, placement, classes = self._cluster, self._placement, self._ordering.classes
        rows, deadline_at = asked.rows, asked.deadline_at
        kind, run_s, ask = cluster.kind(demand, rows), demand.run_s(rows), None
        if asked.bulk and classes.bounds(demand.function):
            classes.begin(now)
            ask = classes.ask(now, demand, 1)
        weighed = placement.weigh(now, demand, kind, rows, deadline_at, False, ask=ask)
        row = placement.choose(now, demand, kind, weighed, deadline_at, rows, now, Random(self._knobs.seed))
        cold = row >= 0 and bool(cluster.cells[demand.column, kernel.STATE, row] < 0)
        open_ = cluster.finish[: len(cluster)][cluster.code[: len(cluster)] == kernel.OPEN]
        earliest = min(weighed.earliest, float(open_.min(initial=inf)))
        return Answer(
            row_gpu=cluster.names[row] if row >= 0 else None,
            cold=cold,
            start_at=(now + cluster.delay_s(demand, row)) if row >= 0 else nan,
            finish_at=float(cluster.finish[row]) if row >= 0 else nan,
            earliest_deadline_at=earliest if earliest < inf else None,
            reasons=placement.reasons(demand, kind, weighed, row, run_s, demand.priority),
            budget_s=with_margin(
                max(0.0, self._unpaid(now, demand, self._waiting.of_class(demand.function, asked.bulk))[0])
            ),
            yield_s=classes.most_s() if asked.bulk else None,
        )

    # ---- budgets -----------------------------------------------------------------------------------------------------

    def _unpaid(self, now: float, demand: Demand, waiting: int) -> tuple[float, float]:
        """
        Seconds until the token buckets allow one more invocation, at its function's share of them, and how much longer
        for each further one that waits.

        Work of other functions counts as far as their shares go: what they have waiting and what they go on sending.
        """
        if self._knobs.budget_rule is not BudgetRule.BUCKET:
            return 0.0, 0.0
        supply = self._supply_at(now)
        if supply.refill == inf:
            return 0.0, 0.0
        if not supply.refill:
            return supply.starts_s, 0.0
        cost_s, weight, run_s = self._cost_s(demand), self._ordering.weight(demand), demand.run_s(1)
        # It starts when no other function has had less run time for its weight than its own will have had before it:
        # until then each of the others may have what it lacks, and the batch with which it passes that.
        start = self._ordering.tag(demand.function, bool(waiting)) + waiting * run_s / weight
        tags, weights, costs, runs, waits, rates = supply.of_rivals
        shares = np.maximum(0.0, start - tags) * weights * costs / runs + costs * (tags <= start)
        slope = cost_s + float((weights * costs / runs).sum()) * run_s / weight
        own = supply.rivals.get((demand.function, False))
        if own is not None:
            shares[own] = 0.0
            slope -= float(weights[own] * costs[own] / runs[own]) * run_s / weight
        own_s = (waiting + 1) * cost_s
        longest = max(0.0, (own_s + float(shares.sum()) - supply.tokens_s) / supply.refill)
        ahead = own_s + float(np.minimum(shares, costs * (waits + longest * rates)).sum())
        return max(supply.starts_s, (ahead - supply.tokens_s) / supply.refill), slope / supply.refill

    def _supply_at(self, now: float) -> _Supply:
        """Computed once for each moment: a publication asks for every function."""
        if self._supply.at == now:
            return self._supply
        cluster = self._cluster
        usable = cluster.usable
        jobs, closed = cluster.fact(kernel.JOBS) > 0, cluster.fact(kernel.CLOSED) > 0
        supply = self._supply = _Supply(at=now)
        if not usable.any() or (usable & ~jobs & ~closed).any():
            return supply
        refill = cluster.fact(kernel.REFILL)
        tokens = np.minimum(
            cluster.fact(kernel.TOKENS) + refill * np.maximum(0.0, now - cluster.fact(kernel.AT)),
            refill * cluster.capacity_s,
        )
        starts_s = np.maximum(0.0, -tokens) / refill
        for row in np.flatnonzero(usable & closed).tolist():
            starts_s[row] = max(starts_s[row], self._budgets.closed_left_s(row, now))
        supply.starts_s = float(starts_s[usable].min())
        open_ = refill[usable & ~closed]
        # One at a time closes for a window; who is let in now may still wait when the next one does.
        spare = float(open_.max()) if len(open_) > 1 and not (usable & closed).any() else 0.0
        supply.refill = float(open_.sum()) - spare
        supply.tokens_s = float(tokens[usable & ~closed].sum())
        supply.rows = usable
        rivals: dict[tuple[str, bool], tuple[float, ...]] = {}
        newest: dict[tuple[str, bool], float] = {}
        for demand in cluster.demands:
            for bulk, placed in ((False, demand.placed), (True, demand.bulk_placed)):
                key = demand.function, bulk
                waiting = self._waiting.of_class(*key)
                if waiting or now - placed.last_at < ACTIVE_S:
                    if placed.last_at < newest.get(key, 0.0):
                        continue  # another revision was placed since
                    newest[key] = placed.last_at
                    rivals[key] = (
                        self._ordering.tag(demand.function, bool(waiting), bulk),
                        self._ordering.weight(demand, bulk),
                        self._cost_s(demand),
                        demand.run_s(1),
                        waiting,
                        placed.per_s(now),
                    )
        supply.rivals = {key: place for place, key in enumerate(rivals)}
        supply.of_rivals = np.array(list(rivals.values()), float).reshape(-1, 6).T
        return supply

    def _cost_s(self, demand: Demand) -> float:
        """Training time that one invocation costs by itself, on the GPU instance where it is least, seconds."""
        cluster = self._cluster
        kind = cluster.kind(demand, 1)
        more = cluster.effect(kind, kernel.MORE)
        costs = (
            demand.run_s(1)
            * (1.0 + cluster.effect(kind, kernel.OWN))
            * more
            / (1.0 + more)
            * cluster.fact(kernel.FACTOR)
        )
        return float(costs[self._supply.rows].min(initial=inf))


def with_margin(wait_s: float) -> float:
    """
    A wait for a token bucket that is seldom exceeded, seconds: ``CAUTION * w + 2 * sqrt(STRAY_S * w)``.

    A wait is a sum of random run times and closed windows, so its standard deviation grows with the square root of it.
    """
    return CAUTION * wait_s + 2.0 * sqrt(STRAY_S * wait_s)
