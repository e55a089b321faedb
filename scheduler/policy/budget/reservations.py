"""
Reservations of one round: tokens that a bucket must still earn for a batch whose turn it is are left alone by all that
come later in the round.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from scheduler.policy import kernel
from scheduler.policy.budget.budgets import Budgets
from scheduler.policy.cluster import Cluster
from scheduler.policy.demand import Demand
from scheduler.policy.events import InvocationArrived
from scheduler.policy.knobs import BudgetRule, Knobs
from scheduler.policy.overrides import Overrides
from scheduler.policy.placement import Weighed

#: A larger batch is worth a wait if an invocation of it costs no more than this part of what it costs in a smaller one.
CHEAPER: Final = 0.9


class Reservations:
    """Tokens reserved during a round; :meth:`release` gives them back at its end."""

    def __init__(self, knobs: Knobs, cluster: Cluster, overrides: Overrides, budgets: Budgets, ask: kernel.Row) -> None:
        self._knobs, self._cluster, self._overrides, self._budgets, self._ask = knobs, cluster, overrides, budgets, ask
        #: (row, seconds) of this round, and the functions for which a batch has a reservation.
        self._reserved: list[tuple[int, float]] = []
        self._functions: set[str] = set()
        #: When the first reservation of a round can be paid, epoch seconds; inf = there is none.
        self.paid_at = inf

    def release(self, now: float) -> None:
        """The end of a round: reserved tokens go back, so that the next round decides afresh."""
        if self._reserved:
            for row, seconds in self._reserved:
                self._cluster.take_tokens(row, -seconds, now)
            self._reserved.clear()
            self._functions.clear()

    def reserve(self, now: float, row: int, seconds: float) -> None:
        """Nobody who comes later in this round may use so many seconds of a row's tokens."""
        self._cluster.take_tokens(row, seconds, now)
        self._reserved.append((row, seconds))

    def reserve_budget(
        self,
        now: float,
        demand: Demand,
        kind: int,
        run_s: float,
        members: Sequence[InvocationArrived],
        weighed: Weighed,
    ) -> tuple[bool, float]:
        """
        Reserve what a batch costs where it only waits for a token bucket that can pay for it before its head is late.

        Returns whether the batch waits, and when it would end (epoch seconds; inf: no bucket stands in its way). A
        batch of several waits only where that is cheaper for each than half of them are. One batch of a function waits
        at a time. After a sample nothing is reserved: the next sample would be another.
        """
        if self._knobs.budget_rule is not BudgetRule.BUCKET or weighed.sampled or max(weighed.warm, weighed.cold) >= 0:
            return False, inf
        cluster, rows = self._cluster, sum(member.rows for member in members)
        row, wait_s, ends_s, tokens_s = kernel.reservation(
            cluster.rows,
            cluster.cells,
            cluster.effects,
            cluster.code,
            self._ask,
            len(cluster.names),
            demand.column,
            kind,
            now,
            run_s,
            demand.load_s,
            demand.host_s,
            demand.stretch_s,
            self._overrides.may_load(demand),
        )
        ends_at = now + ends_s
        if row < 0 or ends_at > members[0].deadline_at or demand.function in self._functions:
            return False, ends_at
        if len(members) > 1:
            fewer = sum(member.rows for member in members[: len(members) // 2])
            fewer_kind = cluster.kind(demand, fewer)  # may replace the arrays of effects
            fewer_s = self._budgets.cost_s(row, fewer_kind, demand.run_s(fewer))
            if self._budgets.cost_s(row, kind, run_s) / rows > CHEAPER * fewer_s / fewer:
                return False, ends_at
        self.reserve(now, row, tokens_s)
        self._functions.add(demand.function)
        self.paid_at = min(self.paid_at, now + wait_s)
        return True, ends_at
