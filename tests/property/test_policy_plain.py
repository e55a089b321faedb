"""
The compiled loops against the same rules in plain Python: what begins and ends on random clusters leaves the same
facts, effects and choices. The plain side counts everything afresh from a list of runs, so that nothing is kept up to
date twice in the same way.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import gcd, inf
from random import Random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.leader.tables import ArrayTable
from scheduler.policy import kernel
from scheduler.policy.cluster import Batch
from scheduler.policy.demand import Demand
from scheduler.policy.events import Event, FunctionKnown, GpuReported, TableUpdated
from scheduler.policy.knobs import BudgetRule, Choice, Knobs, SmRule, preset
from scheduler.policy.placement import OVERDUE_S
from smore.domain.degradation import K_MAX, Kind, Weights
from smore.domain.function import FunctionSpec, Profile
from smore.domain.loss import JobLoss
from smore.messages.degradation import PlaceTable, Table, Weight
from tests.support.driven import DrivenEngine
from tests.support.tables import DEVICE, MODE, place

pytestmark = pytest.mark.numeric

TRAININGS, TABLED, FUNCTIONS = 3, 3, 5
POLICIES = ("smore", "smore-product", "smore-strict10", "edf-util", "edf-util-total", "exclusive", "fifo")


@dataclass(kw_only=True)
class Run:
    """One batch under way; ``remaining`` seconds alone at the moment ``since``."""

    column: int
    remaining: float
    since: float
    deadline: float
    ends: float
    lost: float = 0.0


@dataclass(kw_only=True)
class Gpu:
    """What was reported last, and what has begun since."""

    told: GpuReported
    #: In the table; none where it does not know one of them.
    trainings: list[int]
    balance: float
    at: float
    runs: list[Run] = field(default_factory=list)

    @property
    def jobs(self) -> int:
        return self.told.jobs

    @property
    def trains(self) -> float:
        """SM in use by all but functions."""
        return max(0.0, self.told.utilisation - self.told.function_utilisation)

    @property
    def budget(self) -> float:
        return min((job.budget for job in self.told.losses), default=inf)

    def refill(self, aim: float) -> float:
        budget = self.budget
        return aim * budget / (1.0 + budget) if self.jobs else inf


@dataclass(frozen=True, kw_only=True)
class Added:
    """One more batch of a column on a GPU instance."""

    own: float
    own_upper: float
    training: float
    training_upper: float
    impact: float
    holds: bool
    more: float


@dataclass(kw_only=True)
class Plain:
    """Eq. 3 and 4 and Algorithm 1 over lists. Columns from ``TABLED`` on are functions that no table knows."""

    table: PlaceTable
    weights: Weights
    knobs: Knobs
    demands: list[Demand]
    declared: list[float]
    gpus: list[Gpu]

    # ---- Eq. 3 and 4 -------------------------------------------------------------------------------------------------

    def _weight(self, kind: Kind, k: int, victim: str, other: str) -> float:
        return self.weights.value(kind, k, victim, other)

    def _among(self, k: int, victim: int, other: int, *, upper: bool = False) -> float:
        matrix = self.table.function_on_function_upper if upper else self.table.function_on_function
        return self._weight("functions", k, f"f{victim}", f"f{other}") * self.table.cell(matrix, victim, other)

    def _by_training(self, k: int, gpu: Gpu, column: int, *, upper: bool = False) -> float:
        if not gpu.trainings or column >= TABLED:
            return self.declared[column] * gpu.jobs
        matrix = self.table.function_upper if upper else self.table.function
        return sum(
            self._weight("function", k, f"f{column}", f"t{training}") * self.table.cell(matrix, training, column)
            for training in gpu.trainings
        )

    def _of_training(self, k: int, training: int, column: int, *, upper: bool = False) -> float:
        matrix = self.table.training_upper if upper else self.table.training
        return self._weight("training", k, f"t{training}", f"f{column}") * self.table.cell(matrix, training, column)

    def _slowed(self, k: int, gpu: Gpu, column: int, others: list[int], *, upper: bool = False) -> float:
        """
        Of a batch beside the trainings and others; whom the table does not know costs it what was declared of itself.
        """
        lost = self._by_training(k, gpu, column, upper=upper)
        for other in others:
            lost += self._among(k, column, other, upper=upper) if max(column, other) < TABLED else self.declared[column]
        return lost

    def _k(self, gpu: Gpu, more: int) -> int:
        """Of a training: how many functions there are."""
        return min(max(len(gpu.runs) + more, 1), K_MAX)

    def _k_own(self, gpu: Gpu, more: int) -> int:
        """Of a function: how many others there are, trainings too."""
        return min(max(len(gpu.runs) + more - 1 + gpu.jobs, 1), K_MAX)

    def go_on(self, gpu: Gpu, now: float) -> None:
        """
        Everything there progresses at its old speed up to ``now``, and goes on at the speed of those that are there
        now.
        """
        for run in gpu.runs:
            if now > run.since:
                run.remaining, run.since = max(0.0, run.remaining - (now - run.since) / (1.0 + run.lost)), now
        for run in gpu.runs:
            others = [other.column for other in gpu.runs if other is not run]
            run.lost = self._slowed(self._k_own(gpu, 0), gpu, run.column, others)

    def added(self, gpu: Gpu, column: int) -> Added:
        k, there = self._k_own(gpu, 1), [run.column for run in gpu.runs]
        own, own_upper = (self._slowed(k, gpu, column, there, upper=upper) for upper in (False, True))
        said, losses = self.declared[column], {False: [0.0], True: [0.0]}
        for upper, each in losses.items():
            if gpu.trainings:
                each[:] = [self._lost(self._k(gpu, 1), i, [*there, column], upper=upper) for i in gpu.trainings]
            elif gpu.jobs:
                each[:] = [said + sum(said if one < TABLED else self.declared[one] for one in there)]
        adds = sum(
            self._of_training(self._k(gpu, 1), training, column) if column < TABLED else said
            for training in gpu.trainings
        )
        suffered, holds = 0.0, True
        for run in gpu.runs:
            both = max(run.column, column) < TABLED
            suffered += self._among(k, run.column, column) if both else said
            then = self._slowed(k, gpu, run.column, [other.column for other in gpu.runs if other is not run])
            if both:
                then += self._among(k, run.column, column)
            else:
                then += self.declared[run.column] if run.column >= TABLED else said
            if run.since + run.remaining * (1.0 + run.lost) <= run.deadline < run.since + run.remaining * (1.0 + then):
                holds = False
        train, batch, others = self.knobs.impact
        return Added(
            own=own,
            own_upper=own_upper,
            training=max(losses[False]),
            training_upper=max(losses[True]),
            holds=holds,
            more=max(0.0, *(then - now for then, now in zip(losses[False], self.lost_now(gpu), strict=True))),
            impact=train * (adds if gpu.trainings else said * gpu.jobs) + batch * own + others * suffered,
        )

    def _lost(self, k: int, training: int, there: list[int], *, upper: bool = False) -> float:
        """By a training of the table."""
        return sum(
            self._of_training(k, training, one, upper=upper) if one < TABLED else self.declared[one] for one in there
        )

    def lost_now(self, gpu: Gpu) -> list[float]:
        """By each training, to what runs there; those that no table knows are one."""
        there = [run.column for run in gpu.runs]
        if not gpu.trainings:
            return [sum(self.declared[one] for one in there) if gpu.jobs else 0.0]
        return [self._lost(self._k(gpu, 0), training, there) for training in gpu.trainings]

    # ---- what is where -----------------------------------------------------------------------------------------------

    def outstanding(self, gpu: Gpu, column: int) -> int:
        return sum(run.column == column for run in gpu.runs)

    def resident(self, gpu: Gpu, column: int) -> int:
        return next((count for name, _, count in gpu.told.warm if name == self.demands[column].function), 0)

    def reserved(self, gpu: Gpu) -> float:
        return sum(
            max(0, self.outstanding(gpu, column) - self.resident(gpu, column)) * demand.memory_mib
            for column, demand in enumerate(self.demands)
        )

    def state(self, gpu: Gpu, column: int) -> int:
        outstanding, resident = self.outstanding(gpu, column), self.resident(gpu, column)
        if resident > outstanding:
            return kernel.OPEN
        if max(resident, outstanding) >= self.demands[column].spec.max_warm:
            return kernel.BUSY
        parked = sum(name == self.demands[column].function for name, _, _ in gpu.told.parked)
        return kernel.HOST if parked > max(0, outstanding - resident) else kernel.COLD

    def sm(self, gpu: Gpu) -> float:
        return gpu.trains + sum(self.demands[run.column].sm for run in gpu.runs)

    def begin(self, gpu: Gpu, batch: Batch, now: float) -> None:
        gpu.runs.append(
            Run(
                column=batch.column,
                remaining=batch.run_s,
                since=max(now, batch.start_at),
                deadline=batch.deadline_at,
                ends=batch.expected_end_at,
            )
        )
        self.go_on(gpu, now)

    def end(self, gpu: Gpu, position: int, now: float) -> None:
        del gpu.runs[position]
        self.go_on(gpu, now)

    # ---- Algorithm 1 -------------------------------------------------------------------------------------------------

    def why(
        self, gpu: Gpu, column: int, run_s: float, deadline: float, now: float, *, free: bool = False
    ) -> tuple[int, float]:
        """(the kernel's code, when it would end); ``free``: as if an instance were idle."""
        knobs, demand, added = self.knobs, self.demands[column], self.added(gpu, column)
        state = kernel.OPEN if free else self.state(gpu, column)
        cold, slowed = state in (kernel.COLD, kernel.HOST), added.own_upper if knobs.use_upper else added.own
        load_s = {kernel.COLD: demand.load_s, kernel.HOST: demand.host_s}.get(state, 0.0)
        ends = now + run_s * (1.0 + knobs.guard) * (1.0 + slowed) + load_s
        told = gpu.told
        sm, room = (self.sm(gpu) if knobs.sm_rule is SmRule.TOTAL else gpu.trains), knobs.sm_cap - demand.sm
        if len(gpu.runs) >= told.slots:
            return kernel.NO_SLOT, ends
        if state == kernel.BUSY:
            return kernel.BUSY, ends
        if cold and self._free(gpu) - self.reserved(gpu) < demand.memory_mib:
            return kernel.NO_MEMORY, ends
        if knobs.sm_rule is not SmRule.NONE and (sm > room or (knobs.sm_rule is SmRule.TRAINING and sm == room)):
            return kernel.NO_SM, ends
        if added.own > knobs.tau_function:
            return kernel.TOO_SLOW, ends
        if gpu.jobs and not knobs.beside_training:
            return kernel.BESIDE_TRAINING, ends
        if gpu.jobs and knobs.budget_rule is BudgetRule.INSTANT and added.training > gpu.budget:
            return kernel.OVER_BUDGET, ends
        if gpu.jobs and knobs.budget_rule is BudgetRule.BUCKET and self.held(gpu, now) < self.asked(gpu, column, run_s):
            return kernel.OVER_BUDGET, ends
        if knobs.protect_inflight and not added.holds:
            return kernel.BREAKS_OTHERS, ends
        return (kernel.TOO_LATE if knobs.accept and ends > deadline else kernel.OPEN), ends

    def near(
        self, column: int, run_s: float, deadline: float, now: float, ahead: Collection[tuple[int, int]]
    ) -> tuple[bool, float]:
        """
        Whether a batch may be sent ahead to the first instance that becomes free, and when that is; or when one is near
        enough, inf = never. ``ahead``: where one is already.
        """
        firsts = {
            row: min(run.ends for run in gpu.runs if run.column == column)
            for row, gpu in enumerate(self.gpus)
            if (row, column) not in ahead and 0 < self.resident(gpu, column) <= self.outstanding(gpu, column)
        }
        for row, at in sorted(firsts.items(), key=lambda pair: pair[1]):
            if at - now > self.knobs.ahead_s:
                return False, at - self.knobs.ahead_s
            start_at = max(now, at)
            why, _ = self.why(self.gpus[row], column, run_s, deadline, start_at, free=True)
            if at >= now - OVERDUE_S and why == kernel.OPEN:
                return True, start_at
        return False, inf

    def held(self, gpu: Gpu, now: float) -> float:
        refill = gpu.refill(self.knobs.aim)
        return min(gpu.balance + refill * max(0.0, now - gpu.at), refill * self.knobs.account_s)

    def asked(self, gpu: Gpu, column: int, run_s: float) -> float:
        """
        What the account must hold: the usual cost, or of the longest run what is more than a whole account; but no more
        than that.
        """
        added, most = self.added(gpu, column), gpu.refill(self.knobs.aim) * self.knobs.account_s
        more, expected_s = added.more, run_s * (1.0 + added.own)
        usual, longest = (
            seconds * more / (1.0 + more) for seconds in (expected_s, max(expected_s, self.demands[column].stretch_s))
        )
        return min(max(0.0, usual, longest - most), most)

    def saved(
        self, column: int, run_s: float, codes: dict[int, int], now: float, may_load: bool
    ) -> dict[int, tuple[float, float, float]]:
        """
        Row → until the account can pay, until it then ends, what it must hold; where nothing else stands in the way.
        """
        found = {}
        for row, code in codes.items():
            gpu, state = self.gpus[row], self.state(self.gpus[row], column)
            if (
                code == kernel.OVER_BUDGET
                and (may_load or state == kernel.OPEN)
                and (self.added(gpu, column).holds or not self.knobs.protect_inflight)
            ):
                asked = self.asked(gpu, column, run_s)
                wait_s = (asked - self.held(gpu, now)) / gpu.refill(self.knobs.aim)
                found[row] = (wait_s, wait_s + self.why(gpu, column, run_s, inf, now)[1] - now, asked)
        return found

    def best(self, column: int, codes: dict[int, int], cold: bool) -> set[int]:
        """
        Rows that may be taken, of those that were looked at: one, but where sums in another order are as good as equal.
        """
        open_ = [
            row
            for row, code in codes.items()
            if code == kernel.OPEN and (self.state(self.gpus[row], column) != kernel.OPEN) == cold
        ]
        parked = [row for row in open_ if self.state(self.gpus[row], column) == kernel.HOST]
        open_ = parked or open_
        keys = {row: self._key(row, column) for row in open_}
        least = {row for row in open_ if keys[row] <= min(keys.values()) + 1e-12}
        if any(self.gpus[row].runs for row in least):
            return least
        return {min(least, key=lambda row: (keys[row], -self._free(self.gpus[row]), row))} if least else {-1}

    def _free(self, gpu: Gpu) -> float:
        told = gpu.told
        return told.memory_total * (1.0 - self.knobs.memory_reserve) - told.memory_used + told.memory_idle

    def _key(self, row: int, column: int) -> float:
        gpu = self.gpus[row]
        return gpu.told.utilisation if self.knobs.choice is Choice.LEAST_UTILISED else self.added(gpu, column).impact

    def sample(self, random: Random, column: int) -> list[int]:
        """Rows in the order in which a sample looks at them."""
        n = len(self.gpus)
        d = min(n, max(self.knobs.d_least, -int(-self.knobs.d_share * n // 1)))
        start, stride = random.randrange(n), random.randrange(n) + 1
        while gcd(stride, n) != 1:
            stride += 1
        name = self.demands[column].function
        homes = [row for row, gpu in enumerate(self.gpus) if any(one == name for one, _, _ in gpu.told.warm)]
        homes = homes[:d] if self.knobs.warm_first else []
        return (homes + [(start + step * stride) % n for step in range(d)])[:d]


class Pair:
    """The engine and the plain rules, told and asked the same."""

    def __init__(self, seed: int, knobs: Knobs, n: int) -> None:
        self.random, self.knobs, self.now, self.count = Random(seed), knobs, 1_000.0, 0
        self.engine, self.draws = DrivenEngine(knobs), Random(knobs.seed)
        self.under_way: list[list[str]] = [[] for _ in range(n)]
        table = self._table()
        events: list[Event] = [
            TableUpdated(table=ArrayTable(Table(version=1, source="test", created_at=0.0, places=[table])))
        ]
        events += [self._function(number) for number in range(FUNCTIONS)]
        self.engine.decide(self.now, events)
        for demand in self.engine.cluster.demands[::2]:
            demand.observe_host(self.random.uniform(0.01, 0.1))
        cluster = self.engine.cluster
        self.kinds = [cluster.kind(demand, 1) for demand in cluster.demands]
        declared = [float(cluster.kinds.declared[kind]) for kind in self.kinds]
        self.plain = Plain(
            table=table, weights=table.learned(), knobs=knobs, demands=cluster.demands, declared=declared, gpus=[]
        )
        for row in range(n):
            self.report(row)

    def _table(self) -> PlaceTable:
        def matrix(rows: int) -> list[list[float]]:
            return [[self.random.uniform(0.0, 0.2) for _ in range(TABLED)] for _ in range(rows)]

        functions, trainings = [f"f{i}" for i in range(TABLED)], [f"t{i}" for i in range(TRAININGS)]
        sides: tuple[tuple[Literal["training", "function", "functions"], list[str], list[str]], ...] = (
            ("training", trainings, functions),
            ("function", functions, trainings),
            ("functions", functions, functions),
        )
        weights = [
            Weight(kind, k, victim, other, self.random.uniform(0.5, 1.5))
            for kind, victims, others in sides
            for k in (2, 3, 4)
            for victim in victims
            for other in others
            if self.random.random() < 0.7
        ]
        return place(matrix(TRAININGS), matrix(TRAININGS), matrix(TABLED), weights=weights, upper=0.05)

    def _function(self, number: int) -> FunctionKnown:
        profile = Profile(
            run_s={1: self.random.uniform(0.01, 1.0)},
            load_s=self.random.uniform(0.1, 2.0),
            memory_mib=self.random.uniform(50.0, 400.0),
            utilisation=self.random.uniform(0.0, 0.2),
            usage_gain=0.1,
            degradation=self.random.uniform(0.0, 0.2),
            model=f"f{number}/s" if number < TABLED else "",
        )
        spec = FunctionSpec(entrypoint="m:C", max_warm=1 + number % 3, profile=profile)
        return FunctionKnown(function=f"p/f{number}", revision=1, spec=spec)

    def report(self, row: int) -> None:
        """Other trainings each time: two, one or none, and some that no table knows."""
        random, plain = self.random, self.plain
        trainings = random.choices(range(TRAININGS + 1), weights=[3, 3, 3, 1], k=random.choice([0, 1, 1, 2, 2]))
        told = GpuReported(
            gpu=f"g{row}",
            boot="b",
            at=self.now,
            slots=6,
            memory_total=2_000.0,
            memory_used=random.uniform(0.0, 1_500.0),
            memory_idle=random.uniform(0.0, 100.0),
            utilisation=random.uniform(0.0, 0.8),
            function_utilisation=random.uniform(0.0, 0.2),
            jobs=len(trainings),
            device=DEVICE,
            sharing_mode=MODE,
            warm=[(f"p/f{number}", 1, random.randrange(1, 4)) for number in range(FUNCTIONS) if random.random() < 0.6],
            workloads=[f"t{training}/s/training/8" for training in trainings],
            losses=[JobLoss(id=f"j{place}", budget=random.uniform(0.05, 0.6)) for place in range(len(trainings))],
            stretches=[
                (f"p/f{number}", 1, random.uniform(0.0, 0.1)) for number in range(FUNCTIONS) if random.random() < 0.2
            ],
            parked=[(f"p/f{random.randrange(FUNCTIONS)}", 1, self.now + 600.0) for _ in range(random.randrange(4))],
        )
        tabled = trainings if max(trainings, default=0) < TRAININGS else []
        self.engine.cluster.report(told)
        if row == len(plain.gpus):
            plain.gpus.append(Gpu(told=told, trainings=tabled, balance=0.0, at=0.0))
        gpu = plain.gpus[row]
        gpu.told, gpu.trainings = told, tabled
        gpu.balance, gpu.at = gpu.refill(self.knobs.aim) * self.knobs.account_s, self.now
        plain.go_on(gpu, self.now)

    def begin(self, row: int, column: int, run_s: float) -> None:
        cluster, random = self.engine.cluster, self.random
        if len(self.under_way[row]) == self.plain.gpus[row].told.slots:
            return
        batch = self._batch(row, column, run_s, self.now + random.choice([0.0, 0.3]))
        cluster.begin(batch, self.now)
        self._began(batch)

    def _batch(self, row: int, column: int, run_s: float, start_at: float) -> Batch:
        self.count += 1
        return Batch(
            row=row,
            column=column,
            kind=self.kinds[column],
            run_s=run_s,
            start_at=start_at,
            deadline_at=self.now + self.random.uniform(0.0, 2.5) * run_s,
            expected_end_at=self.now + self.random.choice([0.2, 1.0]) * self.random.random(),
            members={str(self.count): 1},
        )

    def _began(self, batch: Batch) -> None:
        self.under_way[batch.row].extend(batch.members)
        self.plain.begin(self.plain.gpus[batch.row], batch, self.now)

    def send_ahead(self, row: int) -> None:
        """The plain side knows nothing of it: it must change nothing."""
        for column in range(FUNCTIONS):
            if self.engine.cluster.at_work(column, row):
                self.engine.cluster.send_ahead(self._batch(row, column, self.random.uniform(0.01, 1.0), self.now))

    def near(self, column: int, deadline_at: float) -> None:
        """Both sides send a batch ahead to the same place, or see the same moment at which one could be."""
        cluster, demand = self.engine.cluster, self.plain.demands[column]
        before = cluster.code.tolist()
        row, found, at = self.engine.engine.placement.ahead(self.now, demand, self.kinds[column], 1, deadline_at)
        expected = self.plain.near(column, demand.run_s(1), deadline_at, self.now, cluster.ahead)
        assert (row >= 0, pytest.approx(at, rel=1e-12)) == expected
        assert (found is None) == (row < 0)
        if row >= 0:
            cluster.send_ahead(self._batch(row, column, demand.run_s(1), at))
        else:
            assert cluster.code.tolist() == before

    def end(self, row: int) -> None:
        cluster = self.engine.cluster
        if self.under_way[row]:
            position = self.random.randrange(len(self.under_way[row]))
            ended = cluster.end(self.under_way[row].pop(position), 1, self.now)
            assert ended is not None
            self.plain.end(self.plain.gpus[row], position, self.now)
            slowed = self.plain.added(self.plain.gpus[row], ended.column).own
            begun = cluster.next(row, ended.column, self.now)
            if begun is not None:
                assert begun.slowdown == pytest.approx(slowed, abs=1e-9), "the one before it counts no more"
                self._began(begun)

    def take_back(self) -> None:
        """One that is ahead ends before it has begun."""
        cluster = self.engine.cluster
        if cluster.ahead:
            batch = self.random.choice(list(cluster.ahead.values()))
            assert cluster.end(next(iter(batch.members)), 1, self.now) is batch

    def spend(self, row: int, seconds: float) -> None:
        gpu = self.plain.gpus[row]
        if gpu.jobs:
            self.engine.cluster.take_tokens(row, seconds, self.now)
            most = gpu.refill(self.knobs.aim) * self.knobs.account_s
            gpu.balance, gpu.at = (
                min(gpu.balance + gpu.refill(self.knobs.aim) * max(0.0, self.now - gpu.at), most) - seconds,
                self.now,
            )

    def place(self, fast: bool) -> None:
        """Weigh on both sides, and begin what both would take."""
        column = self.random.randrange(FUNCTIONS)
        demand, deadline_at = self.plain.demands[column], self.now + self.random.uniform(0.0, 4.0)
        run_s, cluster = demand.run_s(1), self.engine.cluster
        found = self.engine.engine.placement.weigh(self.now, demand, self.kinds[column], 1, deadline_at, fast)
        looked = self.plain.sample(self.draws, column) if fast else list(range(len(self.plain.gpus)))
        codes: dict[int, int] = {}
        steps, earliest, late = 0, inf, []
        for row in looked:
            steps += 1
            codes[row], ends = self.plain.why(self.plain.gpus[row], column, run_s, deadline_at, self.now)
            assert cluster.code[row] == codes[row]
            assert cluster.finish[row] == pytest.approx(ends, rel=1e-12)
            if codes[row] == kernel.TOO_LATE:
                earliest = min(earliest, ends)
                late.append(row)
            if fast and codes[row] == kernel.OPEN:
                break
        impacts = {row: self.plain.added(self.plain.gpus[row], column).impact for row in late}
        assert (found.seen, found.sampled, found.earliest) == (steps, fast, pytest.approx(earliest, rel=1e-12))
        assert found.late in {row for row in late if impacts[row] <= min(impacts.values()) + 1e-12} or (
            found.late == -1 and not late
        )
        for row, cold in ((found.warm, False), (found.cold, True)):
            assert row in self.plain.best(column, codes, cold)
        if self.knobs.budget_rule is BudgetRule.BUCKET and not fast:
            may_load = self.random.random() < 0.5
            row, *told = kernel.reservation(
                cluster.rows,
                cluster.cells,
                cluster.effects,
                cluster.code,
                self.engine.engine.placement.ask,
                len(cluster),
                column,
                self.kinds[column],
                self.now,
                run_s,
                demand.load_s,
                demand.host_s,
                demand.stretch_s,
                may_load,
            )
            saved = self.plain.saved(column, run_s, codes, self.now, may_load)
            assert (row >= 0) == bool(saved)
            if saved:
                assert told == pytest.approx(list(saved[row]), abs=1e-9)
                assert told[1] == pytest.approx(min(ends_s for _, ends_s, _ in saved.values()), abs=1e-9)
        if found.warm >= 0 or found.cold >= 0:
            self.begin(found.warm if found.warm >= 0 else found.cold, column, run_s)

    def check(self, row: int) -> None:
        """Every fact and effect on a row."""
        cluster, plain, gpu = self.engine.cluster, self.plain, self.plain.gpus[row]
        facts = {
            kernel.USED: len(gpu.runs),
            kernel.RESERVED: plain.reserved(gpu),
            kernel.SM: plain.sm(gpu),
            kernel.REFUSAL: kernel.NO_SLOT if len(gpu.runs) >= gpu.told.slots else kernel.OPEN,
        }
        for name, value in facts.items():
            assert cluster.fact(name)[row] == pytest.approx(value, abs=1e-9), name
        held = cluster.running[row, : len(gpu.runs)].tolist()
        held.sort(key=lambda run: run[kernel.ENDS])
        for there, run in zip(held, sorted(gpu.runs, key=lambda run: run.ends), strict=True):
            kept = (
                there[kernel.KIND],
                there[kernel.REMAINING],
                there[kernel.SINCE],
                there[kernel.LOST],
                there[kernel.DEADLINE],
            )
            assert kept == pytest.approx(
                (self.kinds[run.column], run.remaining, run.since, run.lost, run.deadline), rel=1e-12, abs=1e-9
            )
        for column, kind in enumerate(self.kinds):
            cell = cluster.cells[column, :, row]
            assert cell[kernel.OUTSTANDING] == plain.outstanding(gpu, column)
            assert cell[kernel.FREE_AT] == min((run.ends for run in gpu.runs if run.column == column), default=inf)
            assert cell[kernel.STATE] == plain.state(gpu, column)
            added = plain.added(gpu, column)
            for effect, value in (
                (kernel.OWN, added.own),
                (kernel.OWN_UPPER, added.own_upper),
                (kernel.TRAINING, added.training),
                (kernel.TRAINING_UPPER, added.training_upper),
                (kernel.IMPACT, added.impact),
                (kernel.HOLDS, added.holds),
                (kernel.MORE, added.more),
            ):
                assert cluster.effect(kind, effect)[row] == pytest.approx(float(value), abs=1e-9), (effect, column)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(POLICIES), st.integers(1, 12))
def test_the_compiled_loops_are_the_rules(seed: int, policy: str, n: int) -> None:
    pair = Pair(seed, preset(policy, seed=seed, ahead_s=0.1), n)
    for _ in range(25):
        pair.now += pair.random.uniform(0.0, 0.3)
        row = pair.random.randrange(n)
        action = pair.random.choice(
            [
                "place",
                "place",
                "sample",
                "sample",
                "begin",
                "ahead",
                "near",
                "end",
                "end",
                "report",
                "spend",
                "take back",
            ]
        )
        if action in ("place", "sample"):
            pair.place(action == "sample")
        elif action == "begin":
            pair.begin(row, pair.random.randrange(FUNCTIONS), pair.random.uniform(0.01, 1.0))
        elif action == "ahead":
            pair.send_ahead(row)
        elif action == "near":
            for column in range(FUNCTIONS):
                pair.near(column, pair.now + pair.random.uniform(0.0, 4.0))
        elif action == "take back":
            pair.take_back()
        elif action == "end":
            pair.end(row)
        elif action == "report":
            pair.report(row)
        else:
            pair.spend(row, pair.random.uniform(0.0, 0.3))
        pair.check(row)
    for row in range(n):
        pair.check(row)
    assert not pair.engine.cluster.differing()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_what_is_saved_for_is_what_the_rules_say(seed: int, n: int) -> None:
    """Accounts that hold little, and a function with a long run behind it here and there."""
    pair = Pair(seed, preset("smore-product", seed=seed), n)
    for _ in range(20):
        pair.now += pair.random.uniform(0.0, 0.1)
        for row in range(n):
            pair.spend(row, pair.random.uniform(0.0, 0.2))
        pair.place(fast=False)
