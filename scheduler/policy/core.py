"""The one method every policy has, and the first policy behind it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import numpy as np

from scheduler.policy.cluster import Batch, Bools, Cluster, Floats
from scheduler.policy.decisions import Candidate, Decision, Dispatch, End, Prewarm, Reasons, Refusal
from scheduler.policy.degradation import Effect
from scheduler.policy.demand import Demand
from scheduler.policy.events import (
    ClaimRefused,
    Event,
    FunctionKnown,
    FunctionRemoved,
    GpuLost,
    GpuReported,
    InvocationArrived,
    InvocationHeld,
    InvocationSettled,
    PausesChanged,
    TableUpdated,
)
from scheduler.policy.waiting import Lane, Waiting
from smore.domain.invocation import Cause


class Policy(Protocol):
    """A pure rule. Two policies fed the same events at the same times decide the same."""

    def decide(self, now: float, events: Sequence[Event]) -> list[Decision]:
        """
        Apply what has happened and decide.

        ``now`` in epoch seconds. Decisions are in the order in which they must be carried out; the policy counts them as done (a claim that
        fails comes back as :class:`ClaimRefused`).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Of the spine's policy. ``ageing_per_s``: added to the normalised priority per second of waiting (digest A20)."""

    ageing_per_s: float = 0.5
    #: Candidates recorded with each decision.
    recorded: int = 8
    seed: int = 0


@dataclass(slots=True)
class Weighed:
    """Every row as it was weighed for one batch. Arrays of length N; ``code`` is 0 or an index into :data:`CODES`."""

    code: "np.ndarray[tuple[int], np.dtype[np.int8]]"
    warm: Bools
    delay: Floats
    finish: Floats
    effect: Effect


#: Seconds over which a GPU worker averages a job's iterations (worker/jobs.py).
ALONE_S = 60.0

#: Order matters: a row is refused for the first that holds.
CODES = (Refusal.GONE, Refusal.PAUSED, Refusal.QUARANTINED, Refusal.NO_SLOT, Refusal.BUSY, Refusal.MEMORY, Refusal.DEADLINE)
_CODE = {refusal: position + 1 for position, refusal in enumerate(CODES)}


@dataclass(slots=True)
class Spine:
    """
    Admission by deadline and memory, warm first, least impact, batches of one revision, Eq. 5 order with ageing.

    Starvation bound: a function whose head has waited ``1 / ageing_per_s`` seconds longer than any other's stands before it whatever their
    priorities are, because normalised priorities differ by at most one. An invocation waits at most until its deadline: then it expires.
    """

    knobs: Knobs = field(default_factory=Knobs)
    cluster: Cluster = field(default_factory=Cluster)
    waiting: Waiting = field(default_factory=Waiting)
    name: str = "spine"
    _columns: dict[tuple[str, int], int] = field(default_factory=dict)
    _paused: frozenset[str] = frozenset()
    #: (function, revision) → when its prewarm was last asked for, so that one is asked for once.
    _prewarmed_at: dict[tuple[str, int], float] = field(default_factory=dict)
    #: Row → the one column that has run there, and since when.
    _alone: dict[int, tuple[int, float]] = field(default_factory=dict)

    # ---- events -------------------------------------------------------------------------------------------------------------------------

    def decide(self, now: float, events: Sequence[Event]) -> list[Decision]:
        decisions: list[Decision] = []
        for event in events:
            self._apply(event, decisions)
        self._expire(now, decisions)
        self._place(now, decisions)
        return decisions

    def _apply(self, event: Event, decisions: list[Decision]) -> None:
        match event:
            case InvocationArrived():
                self._arrived(event, decisions)
            case InvocationSettled():
                batch = self.cluster.end(event.id, event.attempt)
                if batch is None:
                    self.waiting.remove(event.id)  # ended while it waited: cancelled
                elif event.run_s is not None and not batch.members:
                    self.cluster.demands[batch.column].observe_run(event.batch_rows, event.run_s, batch.slowdown)
            case GpuReported():
                self._reported(event)
            case ClaimRefused():
                self.cluster.end(event.id, event.attempt + 1)
            case InvocationHeld():
                column = self._columns.get((event.function, event.revision))
                if column is not None and event.id not in self.cluster.batches:
                    row = self.cluster.add_row(event.gpu)
                    demand = self.cluster.demands[column]
                    end_at = event.since_at + demand.load_s + demand.run_s(event.rows)
                    members = {event.id: event.attempt}
                    batch = Batch(row=row, column=column, expected_end_at=end_at, members=members, load=demand.load(event.rows))
                    self.cluster.join(batch)
            case FunctionKnown():
                column = self._columns.get((event.function, event.revision))
                if column is not None:
                    self.cluster.demands[column].update(event.spec)
                else:
                    column = len(self.cluster.demands)
                    self._columns[event.function, event.revision] = column
                    demand = Demand(function=event.function, revision=event.revision, spec=event.spec, column=column)
                    self.cluster.add_column(demand)
                self._learn([self.cluster.demands[column]])
            case FunctionRemoved():
                for invocation in list(self.waiting.of_function(event.function)):
                    self.waiting.remove(invocation.id)
                    decisions.append(_end(invocation, "fail", Cause.FUNCTION_DELETED, "The function was deleted."))
            case GpuLost():
                self.cluster.lose(event.gpu)
            case PausesChanged():
                self._paused = event.paused
                for row, name in enumerate(self.cluster.names):
                    self.cluster.paused[row] = f"g:{name}" in event.paused
            case TableUpdated():
                self.cluster.degradations.adopt(event.table)
                self._learn(self.cluster.demands)
            case _:
                assert_never(event)

    def _arrived(self, event: InvocationArrived, decisions: list[Decision]) -> None:
        self.cluster.end(event.id, event.attempt)  # came back: its former attempt's place is free
        demand = self._demand(event.function, event.revision)
        if demand is None:
            decisions.append(_end(event, "fail", Cause.FUNCTION_DELETED, "The revision is not known any more."))
            return
        if event.attempt == 0 and 0 < self.cluster.largest < demand.memory_mib:
            decisions.append(_end(event, "reject", Cause.INFEASIBLE, "It needs more memory than any GPU instance has."))
            return
        self.waiting.add(event)

    def _reported(self, event: GpuReported) -> None:
        cluster = self.cluster
        if cluster.report(event, self._columns):
            self._learn(cluster.demands)
        row = cluster.rows[event.gpu]
        cluster.paused[row] = f"g:{event.gpu}" in self._paused
        column, since = self._alone.get(row, (-1, event.at))
        # The job's degradation is a mean over the last minute, so a function must have had that minute to itself; then a new minute begins.
        if event.jobs and column >= 0 and event.function_utilisation > 0 and event.at - since >= ALONE_S:
            cluster.demands[column].observe_effect(event.function_utilisation, event.job_degradation)
            self._alone[row] = (column, event.at)

    def _learn(self, demands: Iterable[Demand]) -> None:
        """Eq. 5 rests on what was measured, where a table knows the function."""
        for demand in demands:
            averages = self.cluster.degradations.averages(demand.spec.profile.model)
            if averages is not None:
                demand.know(*averages)

    def _demand(self, function: str, revision: int) -> Demand | None:
        column = self._columns.get((function, revision))
        return None if column is None else self.cluster.demands[column]

    # ---- admission ----------------------------------------------------------------------------------------------------------------------

    def _expire(self, now: float, decisions: list[Decision]) -> None:
        """
        Drop what cannot finish in time even warm and alone (digest A22).

        Heads are the earliest, so a lane is looked at until one holds.
        """
        for function in self.waiting.functions():
            for lane in self.waiting.lanes(function):
                demand = self._demand(lane[0], lane[1])
                while (head := self.waiting.head(lane)) is not None:
                    best = now + (demand.best_s(head.rows) if demand is not None else 0.0)
                    if best <= head.deadline_at:
                        break
                    self.waiting.take(lane, 1)
                    if demand is not None and not self.cluster.outstanding[:, demand.column].any():
                        demand.relax()
                    message = "No GPU instance could finish it before its deadline."
                    decisions.append(_end(head, "expire", Cause.DEADLINE_EXPIRED, message))

    # ---- placement ----------------------------------------------------------------------------------------------------------------------

    def _order(self, now: float) -> list[tuple[float, str]]:
        """Functions with waiting work, by Eq. 5 normalised to 0..1 plus ageing, highest first; ties by name, so that replays agree."""
        found: list[tuple[float, float, str]] = []
        highest = 0.0
        for function in self.waiting.functions():
            if f"f:{function}" in self._paused:
                continue
            priority, oldest = 0.0, now
            for lane in self.waiting.lanes(function):
                head = self.waiting.head(lane)
                demand = self._demand(lane[0], lane[1])
                if head is not None and demand is not None:
                    priority = max(priority, demand.priority)
                    oldest = min(oldest, head.arrival_at)
            highest = max(highest, priority)
            found.append((priority, oldest, function))
        scale = highest or 1.0
        ordered = [(priority / scale + self.knobs.ageing_per_s * (now - oldest), function) for priority, oldest, function in found]
        ordered.sort(key=lambda item: (-item[0], item[1]))
        return ordered

    def _place(self, now: float, decisions: list[Decision]) -> None:
        """One round: every function in order, every lane until it takes no more; a lane that fails does not block the next (Fig. 6)."""
        if not len(self.waiting) or "*" in self._paused:
            return
        free = self.cluster.alive & (self.cluster.used < self.cluster.slots)
        if not free.any():
            return
        for priority, function in self._order(now):
            for lane in self.waiting.lanes(function):
                while self._place_one(now, lane, priority, decisions):
                    pass

    def _place_one(self, now: float, lane: Lane, priority: float, decisions: list[Decision]) -> bool:
        """Dispatch the largest batch of a lane that passes, or nothing."""
        demand = self._demand(lane[0], lane[1])
        if demand is None:
            return False
        members = self.waiting.first(lane, demand.spec.max_batch)
        if not members:
            return False
        size = len(members)
        while True:
            rows = sum(member.rows for member in members[:size])
            weighed = self._weigh(now, demand, rows, members[0].deadline_at)
            row = self._choose(now, demand, weighed, members[0].deadline_at, rows)
            if row is not None:
                break
            if size == 1 or not (weighed.code == _CODE[Refusal.DEADLINE]).any():
                # A smaller batch only helps where the deadline was the reason.
                self._want(now, demand, weighed, decisions)
                return False
            size = size // 2
        batch = members[:size]
        self.waiting.take(lane, size)
        self.cluster.begin(
            Batch(
                row=row,
                column=demand.column,
                expected_end_at=float(weighed.finish[row]),
                members={member.id: member.attempt + 1 for member in batch},
                load=demand.load(rows),
                slowdown=float(weighed.effect.own[row]),
            )
        )
        if self._alone.get(row, (-1, now))[0] != demand.column:
            self._alone[row] = (demand.column, now)
        decisions.append(
            Dispatch(
                function=demand.function,
                revision=demand.revision,
                gpu=self.cluster.names[row],
                attempts=[(member.id, member.attempt) for member in batch],
                cold=not bool(weighed.warm[row]),
                reasons=self._reasons(weighed, row, demand.run_s(rows), priority),
            )
        )
        return True

    def _weigh(self, now: float, demand: Demand, rows: int, deadline_at: float) -> Weighed:
        """Every GPU instance for a batch: may it run there now, when would it end, what would it cost (digest A26-A28)."""
        cluster, column = self.cluster, demand.column
        outstanding, resident = cluster.outstanding[:, column], cluster.resident[:, column]
        warm = cluster.idle(column)
        full = np.maximum(resident, outstanding) >= demand.spec.max_warm
        delay = np.where(warm, 0.0, demand.load_s)
        effect = cluster.degradations.effect(demand.load(rows))
        finish = now + delay + demand.run_s(rows) * (1.0 + effect.own)
        code = np.zeros(len(cluster.names), np.int8)
        for refusal, holds in (
            (Refusal.DEADLINE, finish > deadline_at),
            (Refusal.MEMORY, ~warm & (cluster.memory_free - cluster.reserved < demand.memory_mib)),
            (Refusal.BUSY, ~warm & full),
            (Refusal.NO_SLOT, cluster.used >= cluster.slots),
            (Refusal.QUARANTINED, cluster.quarantined[:, column]),
            (Refusal.PAUSED, cluster.paused),
            (Refusal.GONE, ~cluster.alive),
        ):
            code[holds] = _CODE[refusal]
        return Weighed(code=code, warm=warm, delay=delay, finish=finish, effect=effect)

    def _choose(self, now: float, demand: Demand, weighed: Weighed, deadline_at: float, rows: int) -> int | None:
        """The acceptable row of least impact, warm ones first; ties: more free memory, then the lower row."""
        open_ = weighed.code == 0
        warm = open_ & weighed.warm
        if not warm.any():
            if not open_.any() or self._better_to_wait(now, demand, deadline_at, rows):
                return None
            warm = open_
        candidates = np.flatnonzero(warm)
        keys = (candidates, -self.cluster.memory_free[candidates], weighed.effect.added[candidates])
        return int(candidates[np.lexsort(keys)[0]])

    def _better_to_wait(self, now: float, demand: Demand, deadline_at: float, rows: int) -> bool:
        """True where a busy instance will be free in time, and sooner than a new one could be loaded."""
        free_at = float(self.cluster.free_at[:, demand.column][self.cluster.alive].min(initial=np.inf))
        # One that is overdue by x is expected to take x more, so that nobody waits for ever for one that hangs.
        remaining = abs(free_at - now)
        return remaining < demand.load_s and now + remaining + demand.run_s(rows) <= deadline_at

    def _want(self, now: float, demand: Demand, weighed: Weighed, decisions: list[Decision]) -> None:
        """
        Load a revision that has no instance where its deadline leaves no time for a cold start.

        Without this, requests of a function whose deadline is shorter than its load would expire for ever with nobody loading it.
        """
        cluster, column = self.cluster, demand.column
        key = (demand.function, demand.revision)
        if cluster.resident[:, column].any() or cluster.outstanding[:, column].any():
            return
        if now - self._prewarmed_at.get(key, -np.inf) < 2 * demand.load_s + 1.0:
            return
        possible = np.flatnonzero(weighed.code == _CODE[Refusal.DEADLINE])
        if possible.size:
            row = int(possible[np.argmin(weighed.effect.added[possible])])
            self._prewarmed_at[key] = now
            decisions.append(Prewarm(function=demand.function, revision=demand.revision, gpu=cluster.names[row]))

    def _reasons(self, weighed: Weighed, chosen: int, run_s: float, priority: float) -> Reasons:
        """The chosen row first, then the best of the others."""
        counts = Counter(weighed.code.tolist())
        others = np.arange(len(weighed.code)) != chosen
        effect = weighed.effect
        best = np.lexsort((effect.added, ~weighed.warm, weighed.code > 0, others))[: self.knobs.recorded]
        return Reasons(
            policy=self.name,
            table_version=self.cluster.degradations.table.version,
            seed=self.knobs.seed,
            priority=priority,
            candidates=[
                Candidate(
                    gpu=self.cluster.names[row],
                    warm=bool(weighed.warm[row]),
                    start_delay_s=float(weighed.delay[row]),
                    run_s=run_s,
                    finish_at=float(weighed.finish[row]),
                    impact=float(effect.added[row]),
                    function_degradation=float(effect.own[row]),
                    function_degradation_upper=float(effect.own_upper[row]),
                    training_degradation=float(effect.training[row]),
                    training_degradation_upper=float(effect.training_upper[row]),
                    known=bool(effect.known[row]),
                    refusal=CODES[weighed.code[row] - 1] if weighed.code[row] else None,
                )
                for row in best.tolist()
            ],
            refused={CODES[code - 1]: count for code, count in counts.items() if code},
        )

    # ---- what the gate may be told ------------------------------------------------------------------------------------------------------

    def feasible_s(self, now: float, function: str, revision: int) -> tuple[float, float] | None:
        """
        (backlog, floor) in seconds from now: the earliest a new invocation of the revision could finish as things are, and on an idle
        platform.

        None for an unknown revision. The backlog counts what waits before it at the batch throughput of the instances there are.
        """
        demand = self._demand(function, revision)
        if demand is None:
            return None
        floor = demand.best_s(1)
        cluster, column = self.cluster, demand.column
        alive = cluster.alive & ~cluster.paused
        instances = int(np.maximum(cluster.resident, cluster.outstanding)[alive, column].sum())
        waiting = self.waiting.count(function)
        if not instances:
            # A cold start counts only where the function's own deadline has room for it (see _want).
            cold = demand.load_s + floor
            return (cold if cold <= demand.spec.deadline_s else floor), floor
        batches = waiting // demand.spec.max_batch
        wait = batches * demand.run_s(demand.spec.max_batch) / instances
        if waiting or not cluster.idle(column)[alive].any():
            wait += (
                max(0.0, float(cluster.free_at[alive, column].min(initial=np.inf)) - now)
                if cluster.outstanding[alive, column].any()
                else 0.0
            )
        return wait + floor, floor

    def priority(self, function: str, revision: int) -> float:
        """Eq. 5 of the revision that takes a function's traffic; 0 for an unknown one."""
        demand = self._demand(function, revision)
        return 0.0 if demand is None else demand.priority


def _end(invocation: InvocationArrived, action: str, cause: Cause, message: str) -> End:
    return End(function=invocation.function, id=invocation.id, action=action, cause=cause, message=message)
