"""
The one method every policy has, and the engine behind all of them: SMore's rule and, with other knobs, its baselines'.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import ceil, inf, nan, sqrt
from random import Random
from typing import Final, NamedTuple, Protocol, assert_never, runtime_checkable

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.budget import DUTY, Governor, Step
from scheduler.policy.cluster import Batch, Bools, Cluster
from scheduler.policy.decisions import Answer, Decision, Dispatch, End, Offload, Prewarm, Reasons, Shadow, Throttle
from scheduler.policy.demand import Demand
from scheduler.policy.events import (
    ClaimRefused,
    CountsKnown,
    Event,
    ForecastsUpdated,
    FunctionKnown,
    FunctionRemoved,
    GpuLost,
    GpuReported,
    InstanceTold,
    InvocationArrived,
    InvocationHeld,
    InvocationSettled,
    PausesChanged,
    SteeringChanged,
    TableUpdated,
    TrafficMoved,
    WarmLimits,
)
from scheduler.policy.knobs import PRESETS, BudgetRule, Choice, Knobs, Order, SmRule
from scheduler.policy.lanes import Lane, Waiting
from scheduler.policy.load import LoadSwitch
from scheduler.policy.overrides import Steering
from scheduler.policy.prewarm.prewarmer import Keeper
from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause


class Policy(Protocol):
    """A pure rule. Two policies fed the same events at the same times decide the same."""

    def decide(self, now: float, events: Sequence[Event]) -> list[Decision]:
        """
        Apply what has happened and decide.

        ``now`` in epoch seconds. Decisions are in the order in which they must be carried out; the policy counts them
        as done (a claim that fails comes back as :class:`ClaimRefused`).
        """
        ...


class Feasible(NamedTuple):
    """
    When a new invocation of a function could end, seconds from now: ``backlog_s`` as things are, ``floor_s`` on an idle
    platform.

    ``each_s``: how much later for each further invocation of the function that waits beside the ``counted`` ones.
    """

    backlog_s: float
    floor_s: float
    each_s: float
    counted: int


@runtime_checkable
class Admitting(Policy, Protocol):
    """A policy that can also say beforehand when something could end, so that a gate may refuse it."""

    def feasible(self, now: float, function: str, revision: int) -> Feasible | None:
        """For a new invocation at ``now``; None for an unknown revision."""
        ...


class Weighed(NamedTuple):
    """
    What the kernel found for one batch: the best warm row and the best cold one (-1 = none), the earliest end and the
    row of least impact among those that are refused for the deadline alone, how many rows were looked at, and whether
    as a sample.
    """

    warm: int
    cold: int
    earliest: float
    late: int
    seen: int
    sampled: bool


#: Seconds over which a GPU worker averages a job's iterations (worker/training/job.py).
ALONE_S: Final = 60.0

#: How old a backlog must be to be judged by what was placed meanwhile, and the slowest rate that is told, seconds for
#: one.
BACKLOG_S: Final = 0.5
LONGEST_WAIT_S: Final = 60.0
#: The gate is told so many times the predicted wait for an account, and two deviations more. A wait is a sum of runs of
#: uncertain lengths and of windows, so it strays by the square root of itself times this many seconds.
CAUTION: Final = 1.5
STRAY_S: Final = 0.4
#: How long a GPU instance is taken to stay closed before it was seen how long it does, and the weight of the newest
#: time seen.
CLOSED_S: Final = 1.0
CLOSED_WEIGHT: Final = 0.2
#: No function's share of the run time is smaller than this part of the largest, whatever its P is.
LEAST_SHARE: Final = 0.25
#: An account that holds less than this part of what it can hold is short. A batch waits for company there if an
#: invocation of a larger one costs no more than this part of what it costs now, and while an account at nothing could
#: still earn that batch in time.
SHORT: Final = 0.5
CHEAPER: Final = 0.9
#: A function that had something placed so lately takes part in the division of what a budget leaves.
ACTIVE_S: Final = 1.0

_SM_RULES: Final = {
    SmRule.NONE: kernel.SM_NONE,
    SmRule.TOTAL: kernel.SM_TOTAL,
    SmRule.TRAINING: kernel.SM_TRAINING_ONLY,
}
_BUDGET_RULES: Final = {
    BudgetRule.NONE: kernel.BUDGET_NONE,
    BudgetRule.INSTANT: kernel.BUDGET_INSTANT,
    BudgetRule.ACCOUNT: kernel.BUDGET_ACCOUNT,
}
_NO_ROWS: Final = np.zeros(0, np.int64)

#: What waits at the head of each lane.
_Heads = dict[Lane, tuple[Demand, InvocationArrived]]


@dataclass(slots=True, kw_only=True)
class _Supply:
    """
    What all open trainings' accounts together hold and earn, seconds and seconds a second (inf: some GPU instance asks
    for no budget, 0: none is open); ``starts_s``: until the first can pay anything; ``rows``: GPU instances that are
    there; ``rivals``: the functions that take part in the division (function → place), and of each its run time so far
    (tag), its weight, what one invocation costs and runs for alone, how many wait, and how many are placed a second [6,
    F].
    """

    at: float = -1.0
    earns: float = inf
    saved: float = 0.0
    starts_s: float = 0.0
    rows: Bools = field(default_factory=lambda: np.zeros(0, bool))
    rivals: dict[str, int] = field(default_factory=dict)
    of_rivals: kernel.Floats = field(default_factory=lambda: np.zeros((6, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Company:
    """
    A batch that could go and waits until ``leaves_at`` for more; so many invocations have ``room`` in the largest that
    can be waited for so long. What is there now costs ``cost_s``.
    """

    leaves_at: float
    room: int
    cost_s: float


class Engine:
    """
    Admission by deadline, budget, SM and memory; warm or least impact first; batches of one revision; Eq. 5 order with
    ageing: as its ``knobs`` say.

    Starvation bounds. By shares (start-time fair queueing over seconds of run time, weights by Eq. 5): while a function
    waits, no other one gets more than its weight over the waiting one's times what the latter got, and one batch: what
    an account must still earn for whose turn it is, nobody after it takes. By P with ``ageing_per_s`` > 0: a function
    whose head has waited ``1 / ageing_per_s`` seconds longer than any other's stands before it whatever their
    priorities are, because normalised priorities differ by at most one. An invocation waits at most until its deadline:
    then it expires.

    ``shadow`` decides beside it, on the same state, where it would have placed each batch; it does not act. ``keeper``
    holds instances ready (None: nobody does).
    """

    def __init__(
        self, knobs: Knobs = PRESETS["smore-product"], shadow: Knobs | None = None, keeper: Keeper | None = None
    ) -> None:
        self.knobs = knobs
        self.keeper = keeper
        self.shadow = shadow
        self.cluster = Cluster(
            shares=knobs.impact,
            cap_s=knobs.account_s,
            aim=knobs.aim,
            budget=knobs.tau_training,
            memory_reserve=knobs.memory_reserve,
        )
        self.waiting = Waiting()
        self.load = LoadSwitch(high=knobs.load_hi, low=knobs.load_lo, hold_s=knobs.hold_s)
        self.columns: dict[tuple[str, int], int] = {}
        self._paused: frozenset[str] = frozenset()
        self._steering = Steering(self.cluster)
        #: (function, revision) → when its prewarm was last asked for, so that one is asked for once.
        self._prewarmed_at: dict[tuple[str, int], float] = {}
        #: Function → the run time that it has had, divided by its weight, seconds; and that of the function that was
        #: placed last.
        self._tags: dict[str, float] = {}
        self._tag = 0.0
        #: The largest P of all functions; None = to be counted.
        self._largest: float | None = None
        #: Batches that could go and wait for more.
        self._company: dict[Lane, _Company] = {}
        #: Of this round: what is left alone on which row for who comes earlier, who saves, and when the first of them
        #: can be paid.
        self._left: list[tuple[int, float]] = []
        self._savers: set[str] = set()
        self._paid_at = inf
        #: What waits and what may still be spent, counted once for each moment.
        self._supply = _Supply()
        #: Row → since when it is closed, and how long closings there last.
        self._closed_at: dict[int, float] = {}
        self._closed_s: dict[int, float] = {}
        #: Row → the start of its worker that reported last.
        self._boots: dict[int, str] = {}
        #: Row → its budgets' closed loop.
        self._governors: dict[int, Governor] = {}
        #: Row → the one column that has run there, and since when.
        self._alone: dict[int, tuple[int, float]] = {}
        self._random = Random(knobs.seed)
        #: For so many GPU instances, how many a sample looks at.
        self._sample = (0, 0)
        self._asks = self._asked(knobs)
        self._shadow_asks = self._asked(shadow) if shadow is not None else self._asks
        self._shadow_random = Random(shadow.seed if shadow is not None else 0)
        self._best = np.zeros(knobs.recorded, np.int64)
        self._numbers = np.zeros((knobs.recorded, kernel.CANDIDATE_FIELDS))
        self._counts = np.zeros(kernel.CODES, np.int64)

    @staticmethod
    def _asked(knobs: Knobs) -> kernel.Row:
        """What a scan needs of the knobs."""
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

    # ---- events ------------------------------------------------------------------------------------------------------

    def decide(self, now: float, events: Sequence[Event]) -> list[Decision]:
        decisions: list[Decision] = []
        for event in events:
            self._apply(now, event, decisions)
        self._steering.refresh(now)
        self._paid_at = inf
        self._company.clear()
        if len(self.waiting):
            self._place(now, self._expire(now, decisions), decisions)
            for row, seconds in self._left:
                self.cluster.spend(row, -seconds, now)
            self._left.clear()
            self._savers.clear()
        if self.keeper is not None:
            decisions += self.keeper.act(now, self)
        return decisions

    def _apply(self, now: float, event: Event, decisions: list[Decision]) -> None:
        match event:
            case InvocationArrived():
                self._arrived(now, event, decisions)
            case InvocationSettled():
                batch = self.cluster.end(event.id, event.attempt, now)
                if batch is None:
                    self.waiting.remove(event.id)  # ended while it waited: cancelled
                elif not batch.members:
                    self._rested(now, batch)
                if batch is not None and event.run_s is not None and not batch.members:
                    self._observed(now, batch, event.batch_rows, event.run_s)
            case GpuReported():
                self._reported(event, decisions)
            case ClaimRefused():
                self._returned(now, event.id, event.attempt + 1)
            case InvocationHeld():
                self._held(now, event)
            case FunctionKnown():
                self._known(event)
            case FunctionRemoved():
                if self.keeper is not None:
                    decisions += self.keeper.forget(event.function)
                for invocation in list(self.waiting.of_function(event.function)):
                    self.waiting.remove(invocation.id)
                    decisions.append(_end(invocation, "fail", Cause.FUNCTION_DELETED, "The function was deleted."))
            case GpuLost():
                self.cluster.lose(event.gpu)
                if self.keeper is not None and event.gpu in self.cluster.index:
                    self.keeper.lost(self.cluster.index[event.gpu])
            case PausesChanged():
                self._paused = event.paused
                for row, name in enumerate(self.cluster.names):
                    self.cluster.pause(row, self._closed(name))
            case SteeringChanged():
                self._steering.change(event.steers)
            case WarmLimits():
                self._steering.limit(event.mib)
            case TableUpdated():
                self.cluster.adopt(event.table)
                self._learn(self.cluster.demands)
            case InstanceTold():
                self._told(now, event)
            case TrafficMoved() | ForecastsUpdated() | CountsKnown():
                if self.keeper is not None:
                    self._prepared(now, event, self.keeper)
            case _:
                assert_never(event)

    def _prepared(self, now: float, event: TrafficMoved | ForecastsUpdated | CountsKnown, keeper: Keeper) -> None:
        match event:
            case TrafficMoved():
                demand = self._demand(event.function, event.revision)
                if demand is not None:
                    keeper.serve(now, demand)
            case ForecastsUpdated():
                keeper.foresee(now, event)
            case CountsKnown():
                keeper.remember(now, event)

    def _told(self, now: float, event: InstanceTold) -> None:
        demand, row = self._demand(event.function, event.revision), self.cluster.index.get(event.gpu)
        if demand is not None and event.host and event.load_s is not None:
            demand.observe_host(event.load_s)
        if self.keeper is not None and row is not None:
            self.keeper.told(now, event, row)

    def _rested(self, now: float, batch: Batch) -> None:
        """The last member of a batch has ended: an instance has no work."""
        if self.keeper is None:
            return
        demand, n = self.cluster.demands[batch.column], len(self.cluster)
        cell = self.cluster.cells[batch.column, :, :n]
        idle = np.maximum(0.0, cell[kernel.RESIDENT] - np.maximum(cell[kernel.OUTSTANDING], cell[kernel.LOADING]))
        self.keeper.idle(now, demand, int(idle.sum()), int(cell[kernel.OUTSTANDING].sum()))

    def _arrived(self, now: float, event: InvocationArrived, decisions: list[Decision]) -> None:
        if event.attempt:
            self._returned(now, event.id, event.attempt)  # its former attempt's place is free
        demand = self._demand(event.function, event.revision)
        if demand is None:
            decisions.append(_end(event, "fail", Cause.FUNCTION_DELETED, "The revision is not known any more."))
            return
        if event.attempt == 0 and 0 < self.cluster.largest < demand.memory_mib:
            decisions.append(_end(event, "reject", Cause.INFEASIBLE, "It needs more memory than any GPU instance has."))
            return
        if event.attempt == 0 and not self._steering.fits(demand):
            decisions.append(
                _end(event, "reject", Cause.INFEASIBLE, "It needs more memory than its project may keep warm.")
            )
            return
        self.load.arrived(now, demand.run_s(event.rows))
        if not self.waiting.count(event.function):
            # Who had nothing waiting has no claim on what was given meanwhile.
            self._tags[event.function] = max(self._tag, self._tags.get(event.function, 0.0))
        self.waiting.add(event)
        if self.keeper is not None and event.attempt == 0:
            self.keeper.arrived(now, demand)

    def _returned(self, now: float, id_: str, attempt: int) -> None:
        """A member was not run; a batch of which none was costs nothing."""
        batch = self.cluster.end(id_, attempt, now)
        if batch is not None and not batch.members and batch.charge_s:
            self._charge(now, batch.row, -batch.charge_s)

    def _held(self, now: float, event: InvocationHeld) -> None:
        column = self.columns.get((event.function, event.revision))
        if column is None or event.id in self.cluster.batches:
            return
        row, demand = self.cluster.add_row(event.gpu), self.cluster.demands[column]
        run_s = demand.run_s(event.rows)
        self.cluster.join(
            Batch(
                row=row,
                column=column,
                kind=self.cluster.kind(demand, event.rows),
                run_s=run_s,
                start_at=event.since_at,
                deadline_at=event.deadline_at,
                expected_end_at=event.since_at + demand.load_s + run_s,
                members={event.id: event.attempt},
            ),
            now,
        )

    def _known(self, event: FunctionKnown) -> None:
        column = self.columns.get((event.function, event.revision))
        if column is not None:
            demand = self.cluster.demands[column]
            demand.update(event.spec)
            self.cluster.respecify(demand)
        else:
            column = len(self.cluster.demands)
            self.columns[event.function, event.revision] = column
            demand = Demand(function=event.function, revision=event.revision, spec=event.spec, column=column)
            self.cluster.add_column(demand)
        self._learn([demand])

    def _observed(self, now: float, batch: Batch, rows: int, run_s: float) -> None:
        """
        The last member of a warm batch has ended: its run time teaches, and what it really cost is what the account
        pays.
        """
        demand = self.cluster.demands[batch.column]
        demand.observe_run(rows, run_s, batch.slowdown)
        if batch.charge_s:
            expected = batch.run_s * (1.0 + batch.slowdown)
            self._charge(now, batch.row, batch.charge_s * (run_s / expected - 1.0))

    def _reported(self, event: GpuReported, decisions: list[Decision]) -> None:
        cluster = self.cluster
        if cluster.report(event, self.columns):
            self._learn(cluster.demands)
        row = cluster.index[event.gpu]
        if self.knobs.budget_rule is not BudgetRule.NONE:
            self._govern(row, event, decisions)
        governor = self._governors.get(row)
        closed = event.closed or (governor is not None and governor.step is not Step.OPEN)
        if closed:
            self._closed_at.setdefault(row, event.at)
        elif row in self._closed_at:
            usual = self._closed_s.get(row, CLOSED_S)
            self._closed_s[row] = usual + CLOSED_WEIGHT * (event.at - self._closed_at.pop(row) - usual)
        cluster.govern(row, governor.factor if governor is not None else 1.0, closed, event.at)
        cluster.pause(row, self._closed(event.gpu))
        if f"-g:{event.gpu}" in self._paused:
            # Drained: the worker ends what idles or is parked, so that each report brings fewer.
            there = dict.fromkeys((function, revision) for function, revision, _ in (*event.warm, *event.parked))
            decisions += [
                Offload(function=function, revision=revision, gpu=event.gpu, gone=True) for function, revision in there
            ]
        if self.keeper is not None:
            self.keeper.reported(event.at, row, event, cluster)
        column, since = self._alone.get(row, (-1, event.at))
        # The job's degradation is a mean over the last minute, so a function must have had that minute to itself; then
        # a new minute begins.
        if event.jobs and column >= 0 and event.function_utilisation > 0 and event.at - since >= ALONE_S:
            demand = cluster.demands[column]
            demand.observe_effect(event.function_utilisation, event.job_degradation)
            cluster.redeclare(demand)
            self._largest = None
            self._alone[row] = (column, event.at)

    def _closed(self, gpu: str) -> bool:
        return f"g:{gpu}" in self._paused or f"-g:{gpu}" in self._paused

    def _govern(self, row: int, event: GpuReported, decisions: list[Decision]) -> None:
        """Budgets are kept by what was measured too: see budget.py."""
        governor = self._governors.setdefault(row, Governor())
        if self._boots.get(row, event.boot) != event.boot and governor.step is not Step.OPEN:
            # A worker that starts anew lets everything in.
            whose = event.losses[0].id if event.losses else ""
            decisions.append(
                Throttle(gpu=event.gpu, step=governor.step, duty=DUTY[governor.step], job=whose, factor=governor.factor)
            )
        self._boots[row] = event.boot
        job = governor.judge(event.at, event.losses, event.function_utilisation)
        if job is None:
            return
        step, gpu = governor.step, event.gpu
        decisions.append(Throttle(gpu=gpu, step=step, duty=DUTY[step], job=job, factor=governor.factor))
        if step is Step.OFFLOADED:
            decisions += [
                Offload(function=function, revision=revision, gpu=gpu) for function, revision, _ in event.warm
            ]

    def _learn(self, demands: Iterable[Demand]) -> None:
        """Eq. 5 rests on what was measured, where a table knows the function."""
        self._largest = None
        for demand in demands:
            averages = self.cluster.averages(demand.spec.profile.model)
            if averages is not None:
                demand.know(*averages)
                self.cluster.redeclare(demand)

    def _demand(self, function: str, revision: int) -> Demand | None:
        column = self.columns.get((function, revision))
        return None if column is None else self.cluster.demands[column]

    # ---- admission ---------------------------------------------------------------------------------------------------

    def _expire(self, now: float, decisions: list[Decision]) -> _Heads:
        """
        Drop what cannot finish in time even warm and alone (digest A22), or so long after; what is left at the head of
        each lane.

        Heads are the earliest, so a lane is looked at until one holds.
        """
        heads: _Heads = {}
        for function in self.waiting.functions():
            for lane in self.waiting.lanes(function):
                demand = self.cluster.demands[self.columns[lane[0], lane[1]]]
                while (head := self.waiting.head(lane)) is not None:
                    if now + demand.best_s(head.rows) <= head.deadline_at + self.knobs.late_s:
                        heads[lane] = (demand, head)
                        break
                    self.waiting.take(lane, 1)
                    if not self.cluster.cells[demand.column, kernel.OUTSTANDING].any():
                        demand.relax()
                    message = "No GPU instance could finish it before its deadline."
                    decisions.append(_end(head, "expire", Cause.DEADLINE_EXPIRED, message))
        return heads

    # ---- placement ---------------------------------------------------------------------------------------------------

    def _place(self, now: float, heads: _Heads, decisions: list[Decision]) -> None:
        """One round: every lane in order until it takes no more; a lane that fails does not block the next (Fig. 6)."""
        if "*" in self._paused:
            return
        n = len(self.cluster.names)
        free, slots = kernel.slots(self.cluster.rows, n)
        if not free:
            return
        fast = self.load.fast(now, slots, len(self.waiting), n)
        # A random choice is one among all that accept: of a sample only the first is known.
        fast = fast and self.knobs.fast and n >= self.knobs.fast_from and self.knobs.choice is not Choice.RANDOM
        open_ = {lane: head for lane, head in heads.items() if not self.paused(lane[0])} if self._paused else heads
        if self.knobs.order is Order.PRIORITY:
            for priority, lane in self._order(now, open_):
                while self._place_one(now, lane, open_[lane][0], priority, fast, decisions):
                    pass
            return
        several = len({lane[0] for lane in open_}) < len(open_)
        heap = [self._urgency(lane, demand, head) for lane, (demand, head) in open_.items()]
        heapify(heap)
        while heap:
            key = heappop(heap)
            lane = key[-1]
            demand = open_[lane][0]
            if (
                several
                and (head := self.waiting.head(lane)) is not None
                and (fresh := self._urgency(lane, demand, head)) != key
            ):
                heappush(heap, fresh)  # another lane of its function has had something meanwhile
            elif (
                self._place_one(now, lane, demand, 0.0, fast, decisions)
                and (head := self.waiting.head(lane)) is not None
            ):
                heappush(heap, self._urgency(lane, demand, head))

    def _urgency(self, lane: Lane, demand: Demand, head: InvocationArrived) -> tuple[float, float, float, str, Lane]:
        if self.knobs.order is Order.ARRIVAL:
            return head.arrival_at, head.deadline_at, 0.0, head.id, lane
        if self.knobs.order is Order.SHARES:
            priority = demand.priority * self._steering.boost(lane[0])
            return self._tags[lane[0]], -priority, head.deadline_at, head.id, lane
        return head.deadline_at, head.arrival_at, 0.0, head.id, lane

    def _order(self, now: float, lanes: _Heads) -> list[tuple[float, Lane]]:
        """
        Lanes by their function's Eq. 5, normalised to 0..1, plus ageing, highest first; ties by function, so that
        replays agree.

        A function ages with its oldest head, and its own lanes keep their order (earliest deadline first).
        """
        oldest: dict[str, float] = {}
        highest: dict[str, float] = {}
        for lane, (demand, head) in lanes.items():
            oldest[lane[0]] = min(oldest.get(lane[0], now), head.arrival_at)
            highest[lane[0]] = max(highest.get(lane[0], 0.0), demand.priority * self._steering.boost(lane[0]))
        scale = max(highest.values(), default=0.0) or 1.0
        ranks = {
            function: highest[function] / scale + self.knobs.ageing_per_s * (now - oldest[function])
            for function in oldest
        }
        return sorted(((ranks[lane[0]], lane) for lane in lanes), key=lambda item: (-item[0], item[1][0]))

    def _place_one(
        self, now: float, lane: Lane, demand: Demand, priority: float, fast: bool, decisions: list[Decision]
    ) -> bool:
        """Dispatch the largest batch of a lane that passes, or nothing."""
        cluster = self.cluster
        members = waiting = self.waiting.first(lane, demand.spec.max_batch)
        if not members:
            return False
        while True:
            rows = sum(member.rows for member in members)
            kind, deadline_at = cluster.kind(demand, rows), members[0].deadline_at
            run_s = demand.run_s(rows)
            weighed = self.weigh(now, demand, kind, rows, deadline_at, fast, run_s)
            row = self._choose(now, demand, kind, weighed, deadline_at, rows, self.knobs, self._random)
            if row >= 0:
                company = self._awaited(now, demand, kind, rows, members[0], row, waiting)
                if company is None:
                    break
                self._company[lane] = company
                self._leave(now, row, company.cost_s)
                return False
            saves, ends_at = self._saves(now, demand, kind, run_s, members, weighed)
            if saves:
                return False
            if len(members) == 1:
                later = self._later(lane, min(weighed.earliest, ends_at), members[0])
                if later is None:
                    if weighed.cold >= 0 and not self._steering.may_load(demand):
                        decisions += self._steering.room(now, demand)
                    else:
                        self._want(now, demand, weighed, decisions)
                    return False
                members = [later]
            else:
                # A smaller batch helps where the deadline or the budget was the reason; where neither was, one is tried
                # all the same.
                members = members[: len(members) // 2]
        cold, delay_s = cluster.cells.item(demand.column, kernel.STATE, row) < 0, cluster.delay_s(demand, row)
        slowdown, expected_end_at = cluster.effects.item(kind, kernel.OWN, row), cluster.finish.item(row)
        reasons = self._reasons(demand, kind, weighed, row, run_s, priority)
        if cold and self.keeper is not None:
            self.keeper.dispatched(demand)
            reasons = replace(reasons, unforeseen=self.keeper.unforeseen(now, demand, cluster).value)
        if self.shadow is not None:
            reasons = replace(reasons, shadow=self._shadowed(now, demand, kind, rows, deadline_at))
        batch = Batch(
            row=row,
            column=demand.column,
            kind=kind,
            run_s=run_s,
            start_at=now + delay_s,
            deadline_at=deadline_at,
            expected_end_at=expected_end_at,
            members={member.id: member.attempt + 1 for member in members},
            slowdown=slowdown,
        )
        decisions.append(
            Dispatch(
                function=demand.function,
                revision=demand.revision,
                gpu=cluster.names[row],
                attempts=[(member.id, member.attempt) for member in members],
                cold=cold,
                reasons=reasons,
            )
        )
        if row in self._governors and cluster.rows.item(kernel.JOBS, row) > 0:
            batch.charge_s = kernel.charge(cluster.rows, row, cluster.effects, kind, run_s)
            self._charge(now, row, batch.charge_s)
        self.waiting.take_these(members)
        demand.placed.add(now, len(members))
        self._tag = self._tags[demand.function]
        self._tags[demand.function] += run_s / self._weight(demand)
        cluster.begin(batch, now)
        if self._alone.get(row, (-1, now))[0] != demand.column:
            self._alone[row] = (demand.column, now)
        return True

    def _saves(
        self,
        now: float,
        demand: Demand,
        kind: int,
        run_s: float,
        members: Sequence[InvocationArrived],
        weighed: Weighed,
    ) -> tuple[bool, float]:
        """
        Whether a batch waits until an account can pay for it, which leaves its head in time: what the account must hold
        for it is then left alone by whoever comes later. Of more than one only where that is cheaper for each than half
        of them are. And when it would end (inf: no account stands in its way).

        Not where a sample was looked at: the next one would be another.
        """
        if self.knobs.budget_rule is not BudgetRule.ACCOUNT or weighed.sampled or max(weighed.warm, weighed.cold) >= 0:
            return False, inf
        cluster, rows = self.cluster, sum(member.rows for member in members)
        row, wait_s, ends_s, asked_s = kernel.saved(
            cluster.rows,
            cluster.cells,
            cluster.effects,
            cluster.code,
            self._asks,
            len(cluster.names),
            demand.column,
            kind,
            now,
            run_s,
            demand.load_s,
            demand.host_s,
            demand.stretch_s,
            self._steering.may_load(demand),
        )
        ends_at = now + ends_s
        if row < 0 or ends_at > members[0].deadline_at or demand.function in self._savers:
            return False, ends_at
        if len(members) > 1:
            fewer = sum(member.rows for member in members[: len(members) // 2])
            fewer_kind = cluster.kind(demand, fewer)  # may make room for it, elsewhere
            of_fewer = kernel.charge(cluster.rows, row, cluster.effects, fewer_kind, demand.run_s(fewer))
            if kernel.charge(cluster.rows, row, cluster.effects, kind, run_s) / rows > CHEAPER * of_fewer / fewer:
                return False, ends_at
        self._leave(now, row, asked_s)
        self._savers.add(demand.function)
        self._paid_at = min(self._paid_at, now + wait_s)
        return True, ends_at

    def _leave(self, now: float, row: int, seconds: float) -> None:
        """So much of an account is left alone by all who come later in this round."""
        self.cluster.spend(row, seconds, now)
        self._left.append((row, seconds))

    def _later(self, lane: Lane, earliest: float, head: InvocationArrived) -> InvocationArrived | None:
        """The first of a lane that would be in time where its head would not."""
        if not head.deadline_at < earliest < inf:
            return None
        return self.waiting.due_after(lane, earliest)

    def weigh(
        self,
        now: float,
        demand: Demand,
        kind: int,
        rows: int,
        deadline_at: float,
        fast: bool,
        run_s: float | None = None,
        asks: kernel.Row | None = None,
    ) -> Weighed:
        """
        Every GPU instance, or a sample: may the batch run there now, when would it end (digest A26-A28).

        ``run_s``: where it is not a run of so many rows; ``asks``: of other knobs than the engine's own.
        """
        cluster, column = self.cluster, demand.column
        n, homes, start, stride, d = len(cluster.names), _NO_ROWS, 0, 1, 0
        if fast:
            d, start, stride = self._sampled(n)
            if self.knobs.warm_first:
                homes = cluster.homes[column]
        warm, cold, earliest, late, seen = kernel.weigh(
            cluster.rows,
            cluster.cells,
            cluster.effects,
            cluster.code,
            cluster.finish,
            cluster.looked,
            homes,
            self._asks if asks is None else asks,
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
            fast,
            start,
            stride,
            d,
        )
        return Weighed(warm, cold, earliest, late, seen, fast)

    def loadable(self, now: float, demand: Demand) -> Bools:
        """
        GPU instances [N] that would accept a run as long as a load now. Of one with an idle instance memory is not
        asked.
        """
        n = len(self.cluster)
        if "*" in self._paused or not self._steering.may_load(demand):
            return np.zeros(n, bool)
        self.weigh(now, demand, self.cluster.kind(demand, 1), 1, inf, False, demand.load_s)
        open_: Bools = self.cluster.code[:n] == kernel.OPEN
        host = self.cluster.host(demand.column)
        if host.any():
            self.weigh(now, demand, self.cluster.kind(demand, 1), 1, inf, False, demand.host_s)
            open_ = np.where(host, self.cluster.code[:n] == kernel.OPEN, open_)
        return open_

    def charge_load(self, now: float, demand: Demand, row: int) -> None:
        """A load costs training time as a run of its length does."""
        cluster = self.cluster
        if row in self._governors and cluster.rows[kernel.JOBS, row] > 0:
            kind = cluster.kind(demand, 1)
            load_s = demand.host_s if cluster.host(demand.column)[row] else demand.load_s
            self._charge(now, row, kernel.charge(cluster.rows, row, cluster.effects, kind, load_s))

    def _charge(self, now: float, row: int, seconds: float) -> None:
        """
        Training time that a run costs, as corrected: from the account, and into the books from which predictions are
        corrected.
        """
        self._governors[row].charged_s += seconds / float(self.cluster.rows[kernel.FACTOR, row])
        if self.knobs.budget_rule is BudgetRule.ACCOUNT:
            self.cluster.spend(row, seconds, now)

    def _awaited(
        self,
        now: float,
        demand: Demand,
        kind: int,
        rows: int,
        head: InvocationArrived,
        row: int,
        waiting: Sequence[InvocationArrived],
    ) -> _Company | None:
        """
        Whether a batch that could go now had better wait for more of its kind, since the account there is short; and
        until when.

        ``waiting``: what is there of its lane, which may be more than could go.
        """
        cluster, knobs, most = self.cluster, self.knobs, demand.spec.max_batch
        if not knobs.company or knobs.budget_rule is not BudgetRule.ACCOUNT or rows >= most or head.alone:
            return None
        facts = cluster.rows
        if (
            facts.item(kernel.JOBS, row) == 0
            or row not in self._governors
            or cluster.cells.item(demand.column, kernel.STATE, row) < 0
        ):
            return None
        earns = facts.item(kernel.EARNS, row)
        if not 0 < earns < inf or kernel.balance(facts, row, now, knobs.account_s) > SHORT * earns * knobs.account_s:
            return None
        cost_s, own = (
            kernel.charge(facts, row, cluster.effects, kind, demand.run_s(rows)),
            cluster.effects.item(kind, kernel.OWN, row),
        )
        latest, leaves_at, awaited = head.arrival_at + knobs.company * (head.deadline_at - head.arrival_at), now, 0
        while most > rows:
            run_s = demand.run_s(most)
            larger_kind = cluster.kind(demand, most)  # may make room for it, elsewhere
            larger = kernel.charge(facts, row, cluster.effects, larger_kind, run_s)
            if larger / most <= CHEAPER * cost_s / rows:
                until = min(latest, head.deadline_at - run_s * (1.0 + own) - larger / earns)
                if until > leaves_at:
                    leaves_at, awaited = until, most
            most //= 2
        if not awaited:
            return None
        there = sum(invocation.rows for invocation in waiting)
        return _Company(leaves_at=leaves_at, room=max(0, (awaited - there) * len(waiting) // there), cost_s=cost_s)

    @property
    def next_at(self) -> float:
        """When there is something to decide even if nothing happens, epoch seconds."""
        next_at = min(self._paid_at, min((company.leaves_at for company in self._company.values()), default=inf))
        return next_at if self.keeper is None else min(next_at, self.keeper.next_at)

    def paused(self, function: str) -> bool:
        return f"f:{function}" in self._paused

    def _sampled(self, n: int) -> tuple[int, int, int]:
        """
        How many of ``n`` rows are looked at, and two numbers below ``n`` and from 1 to ``n``: where to start, and by
        what stride.
        """
        known, d = self._sample
        if known != n:
            d = min(n, max(self.knobs.d_least, ceil(self.knobs.d_share * n)))
            self._sample = (n, d)
        # As random.randrange draws, without its checks.
        draw, bits = self._random.getrandbits, n.bit_length()
        while (start := draw(bits)) >= n:
            pass
        while (stride := draw(bits)) >= n:
            pass
        return d, start, stride + 1

    def _choose(
        self,
        now: float,
        demand: Demand,
        kind: int,
        weighed: Weighed,
        deadline_at: float,
        rows: int,
        knobs: Knobs,
        random: Random,
    ) -> int:
        """The best acceptable row, -1 = none."""
        may_load = self._steering.may_load(demand)
        if knobs.choice is Choice.RANDOM:
            open_ = np.flatnonzero(self.cluster.code[: len(self.cluster)] == kernel.OPEN)
            if not may_load:
                open_ = open_[self.cluster.cells[demand.column, kernel.STATE, open_] >= 0]
            if not len(open_) or (
                weighed.warm < 0 and self._better_to_wait(now, demand, weighed.cold, deadline_at, rows)
            ):
                return -1
            return int(open_[random.randrange(len(open_))])
        if weighed.warm >= 0:
            if knobs.warm_first or weighed.cold < 0 or not may_load:
                return weighed.warm
            impact = self.cluster.effects[kind, kernel.IMPACT]
            return weighed.warm if impact[weighed.warm] <= impact[weighed.cold] else weighed.cold
        if weighed.cold < 0 or not may_load or self._better_to_wait(now, demand, weighed.cold, deadline_at, rows):
            return -1
        return weighed.cold

    def _shadowed(self, now: float, demand: Demand, kind: int, rows: int, deadline_at: float) -> Shadow:
        assert self.shadow is not None
        weighed = self.weigh(now, demand, kind, rows, deadline_at, False, asks=self._shadow_asks)
        row = self._choose(now, demand, kind, weighed, deadline_at, rows, self.shadow, self._shadow_random)
        return Shadow(policy=self.shadow.name, gpu=self.cluster.names[row] if row >= 0 else None)

    def ask(self, now: float, function: str, revision: int, rows: int, deadline_at: float) -> Answer | None:
        """What would become of an invocation that came now, all GPU instances weighed; None for an unknown revision."""
        demand = self._demand(function, revision)
        if demand is None:
            return None
        cluster = self.cluster
        kind, run_s = cluster.kind(demand, rows), demand.run_s(rows)
        weighed = self.weigh(now, demand, kind, rows, deadline_at, False)
        row = self._choose(now, demand, kind, weighed, deadline_at, rows, self.knobs, Random(self.knobs.seed))
        cold = row >= 0 and bool(cluster.cells[demand.column, kernel.STATE, row] < 0)
        finish_at = float(cluster.finish[row]) if row >= 0 else nan
        open_ = cluster.finish[: len(cluster)][cluster.code[: len(cluster)] == kernel.OPEN]
        earliest = min(weighed.earliest, float(open_.min(initial=inf)))
        return Answer(
            row_gpu=cluster.names[row] if row >= 0 else None,
            cold=cold,
            start_at=(now + cluster.delay_s(demand, row)) if row >= 0 else nan,
            finish_at=finish_at,
            earliest_deadline_at=earliest if earliest < inf else None,
            reasons=self._reasons(demand, kind, weighed, row, run_s, demand.priority),
        )

    def _better_to_wait(self, now: float, demand: Demand, cold: int, deadline_at: float, rows: int) -> bool:
        """
        True where a busy instance will be free in time, and sooner than a new one could be loaded on the row ``cold``.
        """
        cluster = self.cluster
        free_at = float(cluster.cells[demand.column, kernel.FREE_AT, : len(cluster)][cluster.alive].min(initial=np.inf))
        # One that is overdue by x is expected to take x more, so that nobody waits for ever for one that hangs.
        remaining = abs(free_at - now)
        return remaining < cluster.delay_s(demand, cold) and now + remaining + demand.run_s(rows) <= deadline_at

    def _want(self, now: float, demand: Demand, weighed: Weighed, decisions: list[Decision]) -> None:
        """
        Load a revision that has no instance where its deadline leaves no time for a cold start.

        Without this, requests of a function whose deadline is shorter than its load would expire for ever with nobody
        loading it.
        """
        cluster, cell = self.cluster, self.cluster.cells[demand.column]
        key = (demand.function, demand.revision)
        if weighed.late < 0 or len(cluster.homes[demand.column]):
            return
        if not self._steering.may_load(demand) or cell[kernel.RESIDENT].any() or cell[kernel.OUTSTANDING].any():
            return
        if now - self._prewarmed_at.get(key, -np.inf) < 2 * demand.load_s + 1.0:
            return
        self._prewarmed_at[key] = now
        decisions.append(Prewarm(function=demand.function, revision=demand.revision, gpu=cluster.names[weighed.late]))

    def _reasons(
        self, demand: Demand, kind: int, weighed: Weighed, chosen: int, run_s: float, priority: float
    ) -> Reasons:
        cluster = self.cluster
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
            policy=self.knobs.name,
            table_version=cluster.places.table.version,
            seed=self.knobs.seed,
            priority=priority,
            run_s=run_s,
            load_s=demand.load_s,
            host_s=demand.host_s,
            names=[cluster.names[row] for row in self._best[:kept].tolist()],
            numbers=self._numbers[:kept].copy(),
            counts=self._counts.tolist(),
        )

    # ---- what the gate may be told -----------------------------------------------------------------------------------

    def feasible(self, now: float, function: str, revision: int) -> Feasible | None:
        """
        When a new invocation of the revision could end; None for an unknown one.

        The backlog counts what waits before it at the batch throughput of the instances there are, and what the
        trainings' accounts allow at the function's share; once it has lasted for :data:`BACKLOG_S`, no less than at the
        rate at which it was really placed.
        """
        demand = self._demand(function, revision)
        if demand is None:
            return None
        cluster, floor = self.cluster, demand.best_s(1)
        cell = cluster.cells[demand.column, :, : len(cluster)]
        alive = cluster.alive & ~cluster.paused & ~cluster.protected
        instances = int(np.maximum(cell[kernel.RESIDENT], cell[kernel.OUTSTANDING])[alive].sum())
        waiting = self.waiting.count(function)
        if not instances:
            # A cold start counts only where the function's own deadline has room for it (see _want).
            load_s = demand.host_s if (cluster.host(demand.column) & alive).any() else demand.load_s
            cold = load_s + floor
            return Feasible(cold if cold <= demand.spec.deadline_s else floor, floor, 0.0, waiting)
        most = demand.spec.max_batch
        batch_s = demand.run_s(most) / instances
        wait, each = (waiting // most) * batch_s, batch_s / most
        if waiting and now - self.waiting.oldest(function, now) > min(BACKLOG_S, demand.spec.deadline_s / 4):
            placed = 1.0 / max(demand.placed.at(now), 1.0 / LONGEST_WAIT_S)
            wait, each = max(wait, waiting * placed), max(each, placed)
        unpaid, unpaid_each = self._unpaid(now, demand, waiting)
        unpaid, unpaid_each = max(0.0, unpaid), max(0.0, unpaid_each)
        told = with_margin(unpaid)
        rooms = [
            company for lane, company in self._company.items() if lane[:2] == (function, revision) and company.room
        ]
        if rooms:
            # There is room in a batch that could go now; what it costs is left alone by those after it.
            company = max(rooms, key=lambda one: one.room)
            wait, each = max(wait, company.leaves_at - now), max(each, told / company.room)
        else:
            wait, each = max(wait, told), max(each, with_margin(unpaid + unpaid_each) - told)
        under_way = cell[kernel.OUTSTANDING][alive].any()
        if (waiting or not cluster.idle(demand.column)[alive].any()) and under_way:
            wait += max(0.0, float(cell[kernel.FREE_AT][alive].min(initial=np.inf)) - now)
        # Of what nobody tries nothing is learned: with nothing before it, its run counts as in the best case.
        run_s = demand.run_s(min(most, waiting + 1)) if waiting or under_way else floor
        return Feasible(wait + run_s, floor, each, waiting)

    def pressed(self, now: float) -> bool:
        """
        Whether budgets of trainings limit what is placed: then what the gate is told changes with each run. Not where
        nothing is.
        """
        if self.knobs.budget_rule is not BudgetRule.ACCOUNT or not self._governors:
            return False
        supply = self._count(now)
        return supply.earns < inf and bool(supply.rivals)

    def accounts(self, now: float) -> list[tuple[str, float, float]]:
        """
        Of each GPU instance with a training: its name, what predictions there are multiplied by, what its account holds
        (seconds).
        """
        cluster = self.cluster
        rows = np.flatnonzero(cluster.alive & (cluster.fact(kernel.JOBS) > 0)).tolist()
        return [
            (
                cluster.names[row],
                float(cluster.rows[kernel.FACTOR, row]),
                float(kernel.balance(cluster.rows, row, now, cluster.cap_s)),
            )
            for row in rows
        ]

    def _unpaid(self, now: float, demand: Demand, waiting: int) -> tuple[float, float]:
        """
        Seconds until the trainings' accounts allow one more invocation, at its function's share of them, and for each
        that waits beside.

        Work of others counts as far as their shares go, what they have waiting and what they go on sending.
        """
        if self.knobs.budget_rule is not BudgetRule.ACCOUNT:
            return 0.0, 0.0
        supply = self._count(now)
        if supply.earns == inf:
            return 0.0, 0.0
        if not supply.earns:
            return supply.starts_s, 0.0
        cost_s, weight, run_s = self._cost(demand), self._weight(demand), demand.run_s(1)
        # It starts when no other function has had less run time for its weight than its own will have had before it:
        # until then each of the others may have what it lacks, and the batch with which it passes that.
        tag = self._tags.get(demand.function, 0.0)
        start = (tag if waiting else max(tag, self._tag)) + waiting * run_s / weight
        has, weights, costs, runs, waits, rates = supply.of_rivals
        shares = np.maximum(0.0, start - has) * weights * costs / runs + costs * (has <= start)
        slope = cost_s + float((weights * costs / runs).sum()) * run_s / weight
        if demand.function in supply.rivals:
            own = supply.rivals[demand.function]
            shares[own] = 0.0
            slope -= float(weights[own] * costs[own] / runs[own]) * run_s / weight
        own_s = (waiting + 1) * cost_s
        longest = max(0.0, (own_s + float(shares.sum()) - supply.saved) / supply.earns)
        ahead = own_s + float(np.minimum(shares, costs * (waits + longest * rates)).sum())
        return max(supply.starts_s, (ahead - supply.saved) / supply.earns), slope / supply.earns

    def _count(self, now: float) -> "_Supply":
        """The open accounts and what waits for them, all functions together."""
        if self._supply.at == now:
            return self._supply
        cluster = self.cluster
        alive = cluster.alive & ~cluster.paused & ~cluster.protected
        jobs, closed = cluster.fact(kernel.JOBS) > 0, cluster.fact(kernel.CLOSED) > 0
        supply = self._supply = _Supply(at=now)
        if not alive.any() or (alive & ~jobs & ~closed).any():
            return supply
        earns = cluster.fact(kernel.EARNS)
        held = np.minimum(
            cluster.fact(kernel.BALANCE) + earns * np.maximum(0.0, now - cluster.fact(kernel.AT)), earns * cluster.cap_s
        )
        owed_s = np.maximum(0.0, -held) / earns
        for row in np.flatnonzero(alive & closed).tolist():
            # One that is overdue by x is expected to take x more.
            owed_s[row] = max(owed_s[row], abs(self._closed_at.get(row, now) + self._closed_s.get(row, CLOSED_S) - now))
        supply.starts_s = float(owed_s[alive].min())
        open_ = earns[alive & ~closed]
        # One at a time closes for a window; who is let in now may still wait when the next does.
        spare = float(open_.max()) if len(open_) > 1 and not (alive & closed).any() else 0.0
        supply.earns = float(open_.sum()) - spare
        supply.saved = float(held[alive & ~closed].sum())
        supply.rows = alive
        taking: dict[str, tuple[float, ...]] = {}
        newest: dict[str, float] = {}
        for demand in cluster.demands:
            waiting = self.waiting.count(demand.function)
            if waiting or now - demand.placed.last_at < ACTIVE_S:
                if demand.placed.last_at < newest.get(demand.function, 0.0):
                    continue  # another revision was placed since
                newest[demand.function] = demand.placed.last_at
                tag = self._tags.get(demand.function, 0.0)
                taking[demand.function] = (
                    tag if waiting else max(tag, self._tag),
                    self._weight(demand),
                    self._cost(demand),
                    demand.run_s(1),
                    waiting,
                    demand.placed.at(now),
                )
        supply.rivals = {function: place for place, function in enumerate(taking)}
        supply.of_rivals = np.array(list(taking.values()), float).reshape(-1, 6).T
        return supply

    def _cost(self, demand: Demand) -> float:
        """Training time that one invocation costs by itself, where it is least, seconds."""
        cluster = self.cluster
        kind = cluster.kind(demand, 1)
        more = np.maximum(0.0, cluster.effect(kind, kernel.TRAINING) - cluster.fact(kernel.NOW_TRAINING))
        costs = (
            demand.run_s(1)
            * (1.0 + cluster.effect(kind, kernel.OWN))
            * more
            / (1.0 + more)
            * cluster.fact(kernel.FACTOR)
        )
        return float(costs[self._supply.rows].min(initial=inf))

    def _weight(self, demand: Demand) -> float:
        """
        A function's share of the run time: Eq. 5 over the largest, :data:`LEAST_SHARE` to 1, times what an
        administrator gave it.
        """
        if self._largest is None:
            self._largest = max((known.priority for known in self.cluster.demands), default=0.0)
        share = max(LEAST_SHARE, demand.priority / self._largest) if self._largest > 0 else 1.0
        return share * self._steering.boost(demand.function)

    def priority(self, function: str, revision: int) -> float:
        """Eq. 5 of the revision that takes a function's traffic; 0 for an unknown one."""
        demand = self._demand(function, revision)
        return 0.0 if demand is None else demand.priority


def prepare() -> None:
    """
    Compile the kernel, or load what was compiled before: some seconds in a fresh installation, and nobody should wait
    for them.
    """
    engine = Engine()
    spec = FunctionSpec(entrypoint="none:None")
    report = GpuReported(
        gpu="none",
        boot="",
        at=0.0,
        slots=1,
        memory_total=1e6,
        memory_used=0.0,
        memory_idle=0.0,
        utilisation=0.0,
        function_utilisation=0.0,
        jobs=1,
        warm=[("none", 1, 1)],
    )
    arrival = InvocationArrived(function="none", revision=1, id="", attempt=0, arrival_at=0.0, deadline_at=60.0)
    engine.decide(
        0.0, [FunctionKnown(function="none", revision=1, spec=spec), report, GpuLost(gpu="none"), report, arrival]
    )
    engine.decide(1.0, [InvocationSettled(id="", attempt=1)])
    # Another one finds an empty account.
    engine.cluster.spend(0, 1.0, 1.0)
    engine.decide(1.0, [arrival])
    engine.accounts(1.0)


def with_margin(wait_s: float) -> float:
    """A wait for an account that is seldom exceeded, seconds."""
    return CAUTION * wait_s + 2.0 * sqrt(STRAY_S * wait_s)


def _end(invocation: InvocationArrived, action: str, cause: Cause, message: str) -> End:
    return End(function=invocation.function, id=invocation.id, action=action, cause=cause, message=message)
