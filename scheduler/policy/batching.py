"""
Batch delay: a batch that could go now may wait for more invocations of its lane while the token bucket that pays for it
is low, because a larger batch costs the training less for each invocation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from scheduler.policy import kernel
from scheduler.policy.budget.budgets import Budgets
from scheduler.policy.budget.reservations import CHEAPER
from scheduler.policy.cluster import Cluster
from scheduler.policy.demand import Demand
from scheduler.policy.events import InvocationArrived
from scheduler.policy.knobs import BudgetRule, Knobs
from scheduler.policy.lanes import Lane

#: A token bucket that holds less than this part of its capacity is low.
LOW: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDelay:
    """
    A batch that could go and waits until ``leaves_at`` (epoch seconds). ``room``: how many more invocations fit in the
    largest batch that it can wait for so long; ``cost_s``: what it would cost the training now.
    """

    leaves_at: float
    room: int
    cost_s: float


class Batching:
    """The delayed batches of the last round, by lane."""

    def __init__(self, knobs: Knobs, cluster: Cluster, budgets: Budgets) -> None:
        self._knobs, self._cluster, self._budgets = knobs, cluster, budgets
        self._delays: dict[Lane, BatchDelay] = {}
        #: When the first delayed batch leaves, epoch seconds; inf = none is delayed.
        self.wake_at = inf

    def begin(self) -> None:
        """A new round."""
        self._delays.clear()
        self.wake_at = inf

    def delay(self, lane: Lane, delay: BatchDelay) -> None:
        self._delays[lane] = delay
        self.wake_at = min(self.wake_at, delay.leaves_at)

    def with_room(self, function: str, revision: int) -> BatchDelay | None:
        """Of a revision's delayed batches the one with the most room; None: none has any."""
        delays = [delay for lane, delay in self._delays.items() if lane[:2] == (function, revision) and delay.room]
        return max(delays, key=lambda delay: delay.room) if delays else None

    def delay_to_fill(
        self,
        now: float,
        demand: Demand,
        kind: int,
        rows: int,
        head: InvocationArrived,
        row: int,
        waiting: Sequence[InvocationArrived],
    ) -> BatchDelay | None:
        """
        Whether a batch of ``rows`` that could go to ``row`` now is better delayed, and until when; None: it goes.

        ``waiting``: what its lane holds, which may be more than could go. It waits at most while a larger batch would
        still be in time, an empty bucket would have refilled to that batch's cost, and the knob ``company`` allows.
        """
        cluster, knobs, most = self._cluster, self._knobs, demand.spec.max_batch
        if not knobs.company or knobs.budget_rule is not BudgetRule.BUCKET or rows >= most or head.alone:
            return None
        facts = cluster.rows
        if not self._budgets.kept(row) or cluster.cells.item(demand.column, kernel.STATE, row) < 0:
            return None
        refill = facts.item(kernel.REFILL, row)
        if not 0 < refill < inf or kernel.tokens(facts, row, now, knobs.account_s) > LOW * refill * knobs.account_s:
            return None
        cost_s, own = self._budgets.cost_s(row, kind, demand.run_s(rows)), cluster.effects.item(kind, kernel.OWN, row)
        latest, leaves_at, target = head.arrival_at + knobs.company * (head.deadline_at - head.arrival_at), now, 0
        while most > rows:
            run_s = demand.run_s(most)
            larger_s = self._budgets.cost_s(row, cluster.kind(demand, most), run_s)
            if larger_s / most <= CHEAPER * cost_s / rows:
                until = min(latest, head.deadline_at - run_s * (1.0 + own) - larger_s / refill)
                if until > leaves_at:
                    leaves_at, target = until, most
            most //= 2
        if not target:
            return None
        waiting_rows = sum(invocation.rows for invocation in waiting)
        room = max(0, (target - waiting_rows) * len(waiting) // waiting_rows)
        return BatchDelay(leaves_at=leaves_at, room=room, cost_s=cost_s)
