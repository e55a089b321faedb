"""
Which GPU instance a batch goes to: every one is weighed (or a sample), the best acceptable one is chosen (algorithm 1).
"""

from math import ceil, inf
from random import Random
from typing import Final, NamedTuple

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.cluster import Bools, Cluster
from scheduler.policy.decisions import Reasons
from scheduler.policy.demand import Demand
from scheduler.policy.kernel import Ints
from scheduler.policy.knobs import BudgetRule, Choice, Knobs, SmRule
from scheduler.policy.ordering import waiting_batch
from scheduler.policy.overrides import Overrides
from scheduler.policy.own_rule import OwnRule
from smore.domain.candidate import Shadow
from smore.domain.placement_rule import Offer

_SM_RULES: Final = {
    SmRule.NONE: kernel.SM_NONE,
    SmRule.TOTAL: kernel.SM_TOTAL,
    SmRule.TRAINING: kernel.SM_TRAINING_ONLY,
}
_BUDGET_RULES: Final = {
    BudgetRule.NONE: kernel.BUDGET_NONE,
    BudgetRule.INSTANT: kernel.BUDGET_INSTANT,
    BudgetRule.BUCKET: kernel.BUDGET_BUCKET,
}
_NO_ROWS: Final = np.zeros(0, np.int64)
#: Seconds after its expected end from which on no batch waits for a run.
OVERDUE_S: Final = 0.02


class Weighed(NamedTuple):
    """
    What the kernel computed for one batch: the best warm row and the best cold one (-1 = none), the earliest end
    (epoch seconds), the row of least impact among those refused for the deadline alone, how many rows were looked at,
    and whether as a sample.
    """

    warm: int
    cold: int
    earliest: float
    late: int
    seen: int
    sampled: bool


def kernel_knobs(knobs: Knobs) -> kernel.Row:
    """The knobs that the kernel reads [kernel.ASK_FIELDS]."""
    ask = np.zeros(kernel.ASK_FIELDS)
    ask[kernel.A_GUARD], ask[kernel.A_SM_CAP], ask[kernel.A_TAU_FUNCTION] = (
        knobs.guard,
        knobs.sm_cap,
        knobs.tau_function,
    )
    ask[kernel.A_SM_RULE], ask[kernel.A_BUDGET_RULE] = _SM_RULES[knobs.sm_rule], _BUDGET_RULES[knobs.budget_rule]
    ask[kernel.A_PROTECT], ask[kernel.A_ACCEPT], ask[kernel.A_BESIDE] = (
        knobs.protect_inflight,
        knobs.accept,
        knobs.beside_training,
    )
    ask[kernel.A_CHOICE] = kernel.LEAST_UTILISED if knobs.choice is Choice.LEAST_UTILISED else kernel.LEAST_IMPACT
    ask[kernel.A_UPPER], ask[kernel.A_CAP_S] = knobs.use_upper, knobs.account_s
    return ask


class Placement:
    """
    ``shadow``: knobs of another policy that decides beside this one, on the same state, where it would have placed each
    batch; it does not act.
    """

    def __init__(self, knobs: Knobs, shadow: Knobs | None, cluster: Cluster, overrides: Overrides) -> None:
        self._knobs, self.shadow, self._cluster, self._overrides = knobs, shadow, cluster, overrides
        self.ask = kernel_knobs(knobs)
        self._shadow_ask = kernel_knobs(shadow) if shadow is not None else self.ask
        self._random = Random(knobs.seed)
        self._shadow_random = Random(shadow.seed if shadow is not None else 0)
        #: Of how many GPU instances a sample looks at how many.
        self._sample = (0, 0)
        self._best = np.zeros(knobs.recorded, np.int64)
        self._numbers = np.zeros((knobs.recorded, kernel.CANDIDATE_FIELDS))
        self._counts = np.zeros(kernel.CODES, np.int64)

    def weigh(
        self,
        now: float,
        demand: Demand,
        kind: int,
        rows: int,
        deadline_at: float,
        fast: bool,
        run_s: float | None = None,
        ask: kernel.Row | None = None,
        only: Ints = _NO_ROWS,
    ) -> Weighed:
        """
        May a batch of ``rows`` run on each GPU instance now, and when would it end; with ``fast`` of a sample.

        ``run_s``: seconds alone, where it is not a run of so many rows; ``ask``: knobs other than this policy's own;
        ``only``: rows to look at, none = all.
        Codes and ends stay in the cluster's arrays ``code`` and ``finish``.
        """
        cluster, column = self._cluster, demand.column
        n, homes, start, stride, d = len(cluster.names), only, 0, 1, len(only)
        if fast:
            d, start, stride = self._draw(n)
            if self._knobs.warm_first:
                homes = cluster.homes[column]
        warm, cold, earliest, late, seen = kernel.weigh(
            cluster.rows,
            cluster.cells,
            cluster.effects,
            cluster.code,
            cluster.finish,
            cluster.looked,
            homes,
            self.ask if ask is None else ask,
            n,
            column,
            kind,
            now,
            deadline_at,
            demand.run_s(rows) if run_s is None else run_s,
            demand.load_s,
            demand.host_s,
            demand.memory_mib,
            demand.sm,
            demand.stretch_s,
            fast or d > 0,
            start,
            stride,
            d,
        )
        return Weighed(warm, cold, earliest, late, seen, fast or d > 0)

    def _draw(self, n: int) -> tuple[int, int, int]:
        """How many of ``n`` rows a sample looks at, where it starts (below ``n``), and its stride (1 to ``n``)."""
        sampled_of, d = self._sample
        if sampled_of != n:
            d = min(n, max(self._knobs.d_least, ceil(self._knobs.d_share * n)))
            self._sample = (n, d)
        # As random.randrange draws, without its checks.
        draw, bits = self._random.getrandbits, n.bit_length()
        while (start := draw(bits)) >= n:
            pass
        while (stride := draw(bits)) >= n:
            pass
        return d, start, stride + 1

    def choose(
        self,
        now: float,
        demand: Demand,
        kind: int,
        weighed: Weighed,
        deadline_at: float,
        rows: int,
        arrival_at: float,
        random: Random | None = None,
        knobs: Knobs | None = None,
    ) -> int:
        """
        The best acceptable row, -1 = none. ``random`` and ``knobs``: the draws of a random choice and the knobs, where
        they are not this policy's own. Raises BadRule.
        """
        if knobs is None:
            knobs = self._knobs
        may_load = self._overrides.may_load(demand)
        if knobs.choice is Choice.RANDOM or knobs.rule is not None:
            open_ = np.flatnonzero(self._cluster.code[: len(self._cluster)] == kernel.OPEN)
            if not may_load or (knobs.warm_first and knobs.rule is None and weighed.warm >= 0):
                open_ = open_[self._cluster.cells[demand.column, kernel.STATE, open_] >= 0]
            if not len(open_) or (
                weighed.warm < 0 and self._better_to_wait(now, demand, weighed.cold, deadline_at, rows)
            ):
                return -1
            if knobs.rule is not None:
                batch = waiting_batch(demand, rows, arrival_at, deadline_at, self._overrides)
                offers = self._offers(demand, kind, open_)
                chosen = OwnRule(knobs.name, knobs.rule).choose(now, batch, offers)
                return -1 if chosen is None else int(open_[offers.index(chosen)])
            draws = self._random if random is None else random
            return int(open_[draws.randrange(len(open_))])
        if weighed.warm >= 0:
            if knobs.warm_first or weighed.cold < 0 or not may_load:
                return weighed.warm
            impact = self._cluster.effects[kind, kernel.IMPACT]
            return weighed.warm if impact[weighed.warm] <= impact[weighed.cold] else weighed.cold
        if weighed.cold < 0 or not may_load or self._better_to_wait(now, demand, weighed.cold, deadline_at, rows):
            return -1
        return weighed.cold

    def ahead(
        self, now: float, demand: Demand, kind: int, rows: int, deadline_at: float
    ) -> tuple[int, Weighed | None, float]:
        """
        Of the rows where all instances of a revision are at work: the one where the first is expected to be free the
        soonest, within ``ahead_s``, and which may have the batch then; its weighing, and that moment (epoch seconds). From
        now on that row stands as if one were idle, for :meth:`~scheduler.policy.cluster.Cluster.send_ahead`.

        -1 and None where there is none, and when one will be so near (inf: none will).
        """
        cluster, cell = self._cluster, self._cluster.cells[demand.column]
        homes = cluster.homes[demand.column]
        free_at = cell[kernel.FREE_AT, homes]
        free_at[free_at < now - OVERDUE_S] = inf
        while len(homes):
            place = int(free_at.argmin())
            row, at, state = int(homes[place]), float(free_at[place]), cell.item(kernel.STATE, int(homes[place]))
            if at == inf:
                break
            if state in (kernel.BUSY, kernel.COLD, kernel.HOST) and cluster.at_work(demand.column, row):
                if at - now > self._knobs.ahead_s:
                    return -1, None, at - self._knobs.ahead_s
                # As if it were free by then. The batch before it counts as one beside it, which refuses no less.
                start_at, why = max(now, at), cluster.code[row]
                cell[kernel.STATE, row] = kernel.OPEN
                weighed = self.weigh(start_at, demand, kind, rows, deadline_at, False, only=homes[place : place + 1])
                if weighed.warm >= 0:
                    return row, weighed, start_at
                cell[kernel.STATE, row], cluster.code[row] = state, why
            free_at[place] = inf
        return -1, None, inf

    def _offers(self, demand: Demand, kind: int, rows: Ints) -> list[Offer]:
        """The rows as a rule of one's own sees them."""
        cluster = self._cluster
        state, effects, facts = cluster.cells[demand.column, kernel.STATE], cluster.effects[kind], cluster.rows
        columns = (
            state,
            cluster.finish,
            effects[kernel.OWN],
            effects[kernel.OWN_UPPER],
            effects[kernel.TRAINING],
            effects[kernel.TRAINING_UPPER],
            effects[kernel.KNOWN],
            effects[kernel.IMPACT],
            facts[kernel.JOBS],
            facts[kernel.MEMORY_FREE] - facts[kernel.RESERVED],
            facts[kernel.UTILISATION],
        )
        return [
            Offer(
                gpu=cluster.names[row],
                warm=at >= 0,
                start_delay_s=cluster.delay_s(demand, row),
                finish_at=finish,
                function_degradation=own,
                function_degradation_upper=own_upper,
                training_degradation=training,
                training_degradation_upper=training_upper,
                known=known > 0,
                impact=impact,
                trains=jobs > 0,
                free_mib=free,
                utilisation=utilisation,
            )
            for row, at, finish, own, own_upper, training, training_upper, known, impact, jobs, free, utilisation in zip(
                rows.tolist(), *(column[rows].tolist() for column in columns), strict=True
            )
        ]

    def _better_to_wait(self, now: float, demand: Demand, cold: int, deadline_at: float, rows: int) -> bool:
        """True where a busy instance will be free in time, and sooner than a new one is loaded on the row ``cold``."""
        cluster = self._cluster
        free_at = float(cluster.cells[demand.column, kernel.FREE_AT, : len(cluster)][cluster.alive].min(initial=np.inf))
        # An instance that is overdue by x is expected to take x more, so that nobody waits for ever for one that hangs.
        remaining = abs(free_at - now)
        return remaining < cluster.delay_s(demand, cold) and now + remaining + demand.run_s(rows) <= deadline_at

    def loadable(self, now: float, demand: Demand) -> Bools:
        """GPU instances [N] that would accept a run as long as a load now. Out of host memory a load is shorter."""
        cluster = self._cluster
        n, kind = len(cluster), cluster.kind(demand, 1)
        self.weigh(now, demand, kind, 1, inf, False, demand.load_s)
        open_: Bools = cluster.code[:n] == kernel.OPEN
        host = cluster.host(demand.column)
        if host.any():
            self.weigh(now, demand, kind, 1, inf, False, demand.host_s)
            open_ = np.where(host, cluster.code[:n] == kernel.OPEN, open_)
        return open_

    def shadowed(
        self, now: float, demand: Demand, kind: int, rows: int, deadline_at: float, arrival_at: float
    ) -> Shadow | None:
        """
        Where the shadow policy would place a batch; None without a shadow. A rule of one's own that fails there names
        itself and its error in place of the policy: it must not stop the policy that decides.
        """
        if self.shadow is None:
            return None
        weighed = self.weigh(now, demand, kind, rows, deadline_at, False, ask=self._shadow_ask)
        try:
            row = self.choose(
                now, demand, kind, weighed, deadline_at, rows, arrival_at, self._shadow_random, self.shadow
            )
        except Exception as error:
            if self.shadow.rule is None:
                raise
            return Shadow(policy=f"{self.shadow.name} ({type(error.__cause__ or error).__name__})", gpu=None)
        return Shadow(policy=self.shadow.name, gpu=self._cluster.names[row] if row >= 0 else None)

    def reasons(
        self, demand: Demand, kind: int, weighed: Weighed, chosen: int, run_s: float, priority: float
    ) -> Reasons:
        """Of the batch that was weighed last; ``chosen``: its row, -1 = none."""
        cluster = self._cluster
        kept = kernel.rank(
            cluster.cells,
            cluster.effects,
            demand.column,
            kind,
            cluster.code,
            cluster.finish,
            cluster.looked,
            weighed.seen,
            weighed.sampled,
            chosen,
            self._best,
            self._numbers,
            self._counts,
        )
        return Reasons(
            policy=self._knobs.name,
            table_version=cluster.places.table.version,
            seed=self._knobs.seed,
            priority=priority,
            run_s=run_s,
            load_s=demand.load_s,
            host_s=demand.host_s,
            names=[cluster.names[row] for row in self._best[:kept].tolist()],
            numbers=self._numbers[:kept].copy(),
            counts=self._counts.tolist(),
        )
