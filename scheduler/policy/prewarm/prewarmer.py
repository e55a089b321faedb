"""
Who keeps instances ready: the rules' holds carried out over the GPU instances, and a reason for every cold start
(digest A35, A40, A44).

For each function a rule says how many instances should be loaded when. The keeper says where: on the GPU instance where
a load is accepted, out of host memory before anew, and impact is least, within a share of the memory that is free
there, least recently used idle instances giving way; and it begins as much earlier as that takes, a cold start or the
return out of host memory. What is held is told to its worker for :data:`LEASE_S` at a time, so that without a leader
the keep-alive holds again after that. What is more than a rule holds, and idle, is let go of.

A rule has a say only while it knows something: where it needs a forecast and that is missing, older than ``stale_s`` or
no number for the minute that runs, the function goes on with its keep-alive, and :class:`Standing` says so. What the
rule answers meanwhile is kept, so that it counts as soon as it has a say again. All is pure: time is what the caller
says, and a clock that was set back, or ahead, is straightened here.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from math import ceil, floor, inf, isfinite, isnan
from random import Random
from typing import Final, Protocol

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.cluster import Bools, Cluster
from scheduler.policy.decisions import Decision, Offload, Prewarm
from scheduler.policy.demand import Demand
from scheduler.policy.events import CountsKnown, ForecastsUpdated, GpuReported, InstanceTold
from scheduler.policy.prewarm.window import OWN, Forecast, Hold, WarmPolicy
from smore.domain.function import Prewarming

MINUTE_S: Final = 60.0
#: How long a worker holds an instance on one word.
LEASE_S: Final = 120.0
#: A step of the clock by more than this is no passing of time: what was counted across it counts for nothing.
JUMP_S: Final = 90.0
#: One back by no more than this is an error of measurement: a leader reckons Redis' clock from its own.
STEP_S: Final = 5.0
#: Rules that are told of a new minute in one round: a round is what an invocation's placement may have to wait for.
AT_A_TIME: Final = 200
#: Missed minutes that rules are told of, the newest.
MISSED: Final = 10
#: Where there was no room it is tried again after this.
AGAIN_S: Final = 1.0
#: After a failed load nothing is loaded ahead for so long, twice as long after each further one, up to the second.
FAILED_S: Final = 30.0
FAILED_MOST_S: Final = 3600.0
#: Weight of the newest load in the moving average of a function's cold start.
LOAD_WEIGHT: Final = 0.3


class Unforeseen(StrEnum):
    """Why no instance stood ready for an invocation that had to load one."""

    #: Nobody was to foresee it: ``prewarm: off``, or prewarming is switched off.
    OFF = "off"
    #: It runs a revision that does not take the function's traffic.
    OTHER_REVISION = "other_revision"
    NEVER_SEEN = "never_seen"
    #: The rule had nothing to go by (Silence), and the keep-alive was over.
    NO_FORECAST = "no_forecast"
    STALE = "stale"
    NOT_A_NUMBER = "not_a_number"
    #: The rule held none.
    NOT_FORESEEN = "not_foreseen"
    #: The rule let it go within its keep-alive.
    GIVEN_UP = "given_up"
    #: It was asked for, and had not come.
    LATE = "late"
    EVICTED = "evicted"
    NO_ROOM = "no_room"
    #: All that were held are at work.
    MORE_AT_ONCE = "more_at_once"
    #: One is idle where nothing may run now.
    HELD_ELSEWHERE = "held_elsewhere"
    LOAD_FAILED = "load_failed"


#: Why a rule has no say.
SILENCES: Final = (Unforeseen.OFF, Unforeseen.NO_FORECAST, Unforeseen.STALE, Unforeseen.NOT_A_NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """
    Knobs of the keeper. ``rules``: a function's mode and demand → its rule; ``foresees``: modes whose rule has nothing
    to say without a forecast; ``share``: of the free memory that idle instances may hold (A35); ``lead_s``: added to
    the cold start (A40).
    """

    rules: Callable[[Prewarming, Demand], WarmPolicy]
    foresees: frozenset[Prewarming] = frozenset((Prewarming.AUTO, Prewarming.PAPER))
    on: bool = True
    share: float = 0.3
    lead_s: float = 1.0
    stale_s: float = 240.0


class House(Protocol):
    """The policy that the keeper is part of."""

    cluster: Cluster

    def loadable(self, now: float, demand: Demand) -> Bools:
        """GPU instances [N] that accept a load now: budgets, compute, deadlines of what runs, pauses."""
        ...

    def charge_load(self, now: float, demand: Demand, row: int) -> None:
        """A load costs training time too: take it from the account."""
        ...

    def paused(self, function: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """
    How one function is kept, for people. ``silence``: why its rule has no say, '' = it has; ``source``: whose word is
    followed.

    ``holds``: (from, until, instances) in epoch seconds. ``loaded``: instances that there are, on their way included;
    ``parked``: in host memory, from where a load takes ``host_s`` and not ``load_s``.
    """

    function: str
    revision: int
    mode: Prewarming
    source: str
    silence: str
    wanted: int
    loaded: int
    unmet: bool
    load_s: float
    parked: int
    host_s: float
    holds: Sequence[tuple[float, float, int]]


@dataclass(slots=True, eq=False)
class _Pending:
    """A load that was asked for: the instances that a report shows once it is under way, and when it is given up."""

    instances: int
    until: float


@dataclass(slots=True, eq=False)
class _Kept:
    """
    One function. Times are straightened; ``told`` by row: instances, and until when (as the worker was told).
    ``minute``: the one in which it was last called, ``count`` times, and ``before`` times in the one before that;
    ``heard``: the one that its rule was told of last. ``seen``: it was called before.
    """

    demand: Demand
    mode: Prewarming
    rule: WarmPolicy | None
    load_s: float
    due_at: float = inf
    minute: float = -inf
    before: int = 0
    heard: float = -inf
    holds: Sequence[Hold] = ()
    silence: str = Unforeseen.NO_FORECAST
    source: str = ""
    seen: bool = False
    count: int = 0
    wanted: int = 0
    #: Instances that there are, on their way included, as last looked; ``look``: something has changed there since.
    loaded: int = 0
    look: bool = True
    unmet: bool = False
    retry_at: float = -inf
    failures: int = 0
    lost: Unforeseen | None = None
    lost_at: float = -inf
    told: dict[int, tuple[int, float]] = field(default_factory=dict)
    pending: dict[int, _Pending] = field(default_factory=dict)
    #: Resident instances as last reported, by row.
    known: dict[int, int] = field(default_factory=dict)
    #: When instances in host memory go, by row.
    parked: dict[int, Sequence[float]] = field(default_factory=dict)

    @property
    def heeded(self) -> Sequence[Hold]:
        """``holds`` while the rule has a say."""
        return () if self.silence else self.holds


class Keeper:
    """
    Owned by a policy, which calls it for what happens and then :meth:`act`."""

    def __init__(self, knobs: Warmth) -> None:
        self.knobs = knobs
        self._next_at = inf
        #: Steps of the clock that were no passing of time.
        self.jumps = 0
        self.cold: Counter[Unforeseen] = Counter()
        self._kept: dict[str, _Kept] = {}
        self._dirty: set[str] = set()
        self._forecasts: Mapping[str, Forecast] = {}
        self._made_at = -inf
        #: Idle instances by row, as reported: (function, revision, MiB, seconds).
        self._idle: dict[int, Sequence[tuple[str, int, float, float]]] = {}
        #: All instances by row, and the functions that have, or were to have, some there.
        self._present: dict[int, Mapping[tuple[str, int], int]] = {}
        self._there: dict[int, set[str]] = {}
        self._names: Sequence[str] = ()
        #: (when, function), the earliest first; an entry holds where it is the function's ``due_at``.
        self._due: list[tuple[float, str]] = []
        self._offset = 0.0
        self._last = -inf
        #: The minute that runs, and the rules that are still to be told of it.
        self._minute = -inf
        #: Whether all of the minute that runs was counted, and all of the one before.
        self._counted = self._complete = False
        self._untold: deque[str] = deque()

    @property
    def next_at(self) -> float:
        """When it next has something to do if nothing happens, epoch seconds; inf = never."""
        return self._next_at - self._offset

    # ---- what happens ------------------------------------------------------------------------------------------------

    def serve(self, now: float, demand: Demand) -> None:
        """A revision takes its function's traffic, or its knobs have changed."""
        kept = self._kept.get(demand.function)
        mode = demand.spec.prewarm
        if kept is None or kept.demand is not demand or kept.mode is not mode:
            former, kept = kept, _Kept(demand, mode, self._rule(demand), demand.load_s)
            if former is not None:
                kept.seen, kept.minute, kept.count, kept.before = (
                    former.seen,
                    former.minute,
                    former.count,
                    former.before,
                )
                if former.demand is demand:
                    kept.told, kept.pending, kept.known, kept.parked = (
                        former.told,
                        former.pending,
                        former.known,
                        former.parked,
                    )
            self._kept[demand.function] = kept
        at = self._straight(now)
        self._turn(at)
        kept.heard = max(kept.heard, self._minute)
        kept.look = True
        self._consult(kept, at)
        self._dirty.add(demand.function)

    def _rule(self, demand: Demand) -> WarmPolicy | None:
        if not self.knobs.on or demand.spec.prewarm is Prewarming.OFF:
            return None
        return self.knobs.rules(demand.spec.prewarm, demand)

    def remember(self, now: float, event: CountsKnown) -> None:
        """
        Arrivals of the past, so that rules need not learn them again: those of the functions that are named begin anew
        with them.

        When in its minute an arrival came is not known: each is given a moment at random, the same ones for the same
        function. Moments spread evenly would make gaps of whole minutes, and a rule sure of what nobody knows. Nothing
        that a rule answers meanwhile counts. What is loaded then begins to be idle now.
        """
        now_at = self._straight(now)
        self._turn(now_at)
        begin = self._minute
        for function, minutes in event.counts.items():
            kept = self._kept.get(function)
            if kept is None or kept.rule is None:
                continue
            kept.rule = self._rule(kept.demand)
            assert kept.rule is not None
            draw = Random(function).random
            for at, count in minutes:
                if at + MINUTE_S > begin:
                    break
                if count:
                    kept.seen = True
                    for moment in sorted(at + MINUTE_S * draw() for _ in range(min(count, 60))):
                        kept.rule.arrived(moment)
                        kept.rule.idle(moment, 1)
                kept.rule.minute(at + MINUTE_S, count, None)
            loaded = sum(kept.known.values())
            if loaded:
                self._hold(kept, kept.rule.idle(now_at, loaded, 0))

    def forget(self, function: str) -> list[Decision]:
        """A function is gone: so is all that was loaded for it, also what is still on its way."""
        kept = self._kept.pop(function, None)
        self._dirty.discard(function)
        if kept is None:
            return []
        rows = {*kept.told, *kept.pending, *kept.parked, *(row for row, count in kept.known.items() if count)}
        for there in self._there.values():
            there.discard(function)
        return [
            Offload(function=function, revision=kept.demand.revision, gpu=self._names[row], gone=True)
            for row in sorted(rows)
        ]

    def arrived(self, now: float, demand: Demand) -> None:
        kept = self._kept.get(demand.function)
        if kept is None or kept.demand is not demand:
            return
        at = self._straight(now)
        self._hear(kept, at)
        minute = floor(at / MINUTE_S) * MINUTE_S
        if minute != kept.minute:
            kept.before = kept.count if kept.minute == minute - MINUTE_S else 0
            kept.minute, kept.count = minute, 0
        kept.count += 1
        if kept.rule is not None:
            self._hold(kept, kept.rule.arrived(at))

    def dispatched(self, demand: Demand) -> None:
        """A batch is on its way to a load of its own."""
        kept = self._kept.get(demand.function)
        if kept is not None:
            kept.look = True

    def idle(self, now: float, demand: Demand, idle: int, busy: int) -> None:
        """A batch has ended: ``idle`` instances have no work now, its own included."""
        kept = self._kept.get(demand.function)
        if kept is None or kept.demand is not demand:
            return
        kept.seen = True
        at = self._straight(now)
        self._hear(kept, at)
        if kept.rule is not None:
            self._hold(kept, kept.rule.idle(at, max(1, idle), busy))

    def reported(self, now: float, row: int, event: GpuReported, cluster: Cluster) -> None:
        """
        What is loaded there. An instance that nobody here has asked for (a former leader has, or a person) begins to be
        idle now.
        """
        self._idle[row] = event.idle
        self._names = cluster.names
        counts = self._present[row] = {(function, revision): count for function, revision, count in event.warm}
        parked: dict[tuple[str, int], list[float]] = {}
        for function, revision, until_at in event.parked:
            parked.setdefault((function, revision), []).append(until_at + self._offset)
        there = self._there.setdefault(row, set())
        for function in {function for function, _ in (*counts, *parked)} | there:
            kept = self._kept.get(function)
            if kept is None:
                continue
            demand = kept.demand
            count = counts.get((demand.function, demand.revision), 0)
            before = kept.known.get(row, 0)
            waiting, waited = parked.get((demand.function, demand.revision), ()), len(kept.parked.pop(row, ()))
            if waiting:
                kept.parked[row] = waiting
            if count or row in kept.pending or waiting:
                there.add(function)
            else:
                there.discard(function)
            kept.known[row] = count
            pending = kept.pending.get(row)
            if pending is not None:
                # Instead of one that was there and is gone, no other was asked for.
                pending.instances -= max(0, before - count)
            if pending is not None and count >= pending.instances:
                del kept.pending[row]
            elif pending is None and count > before and not cluster.cells[demand.column, kernel.OUTSTANDING, row]:
                self.idle(now, demand, count, 0)
            if count != before or len(waiting) != waited or kept.unmet:
                kept.look = True
                self._dirty.add(demand.function)

    def lost(self, row: int) -> None:
        """A GPU instance is silent."""
        self._idle.pop(row, None)
        self._present.pop(row, None)
        for function in self._there.pop(row, set()):
            kept = self._kept.get(function)
            if kept is not None:
                for facts in (kept.told, kept.pending, kept.known, kept.parked):
                    facts.pop(row, None)
                kept.look = True
                self._dirty.add(function)

    def told(self, now: float, event: InstanceTold, row: int) -> None:
        """A worker's word on an instance."""
        kept = self._kept.get(event.function)
        if kept is None or kept.demand.revision != event.revision:
            return
        if event.failed:
            kept.failures += 1
            wait_s = min(FAILED_MOST_S, FAILED_S * 2 ** (kept.failures - 1))
            kept.retry_at = self._straight(now) + wait_s
            kept.pending.pop(row, None)
            kept.told.pop(row, None)
        elif event.load_s is not None:
            kept.failures = 0
            if not event.host:
                kept.load_s += LOAD_WEIGHT * (event.load_s - kept.load_s)
        if event.evicted:
            kept.lost, kept.lost_at = Unforeseen.EVICTED, self._straight(now)
        kept.look = True
        self._dirty.add(event.function)

    def foresee(self, now: float, event: ForecastsUpdated) -> None:
        """Other forecasts hold from now on; rules see them when the next minute begins."""
        self._straight(now)
        self._forecasts, self._made_at = event.forecasts, event.made_at + self._offset

    # ---- time --------------------------------------------------------------------------------------------------------

    def _straight(self, now: float) -> float:
        """
        Time that never goes back. A small step back is waited for; after a large one time is ahead of the clock by
        whole minutes, so that minutes begin together.
        """
        at = now + self._offset
        if at < self._last - STEP_S:
            self._offset += ceil((self._last - at) / MINUTE_S) * MINUTE_S
            at = now + self._offset
        elif at - self._last <= JUMP_S or not isfinite(self._last):
            self._last = max(self._last, at)
            return self._last
        self.jumps += 1
        # What is left of this minute was counted on two clocks.
        self._counted = False
        self._last = at
        return at

    def _turn(self, at: float) -> None:
        """Another minute may have begun."""
        minute = floor(at / MINUTE_S) * MINUTE_S
        if minute <= self._minute:
            return
        if isfinite(self._minute):
            self._complete, self._counted = self._counted and minute - self._minute == MINUTE_S, True
            self._untold = deque(self._kept)
        else:
            # What came in this minute before anybody was here is not known.
            self._counted = at == minute
        self._minute = minute

    def _hear(self, kept: _Kept, at: float) -> None:
        """
        Tell a rule of the minutes that have begun since it was told last, before it hears of anything in this one.
        """
        self._turn(at)
        if kept.heard >= self._minute:
            return
        counted = self._minute - MINUTE_S
        count = kept.count if kept.minute == counted else kept.before if kept.minute == self._minute else 0
        missed = min(MISSED, int((self._minute - kept.heard) / MINUTE_S)) - 1
        complete = self._complete and not missed
        kept.heard = self._minute
        self._consult(kept, at)
        if kept.rule is None:
            return
        forecast = self._forecasts.get(kept.demand.function) if not kept.silence else None
        if forecast is not None and self._offset:
            forecast = Forecast(
                from_at=forecast.from_at + self._offset, mean=forecast.mean, any=forecast.any, source=forecast.source
            )
        for back in range(missed, 0, -1):
            self._hold(kept, kept.rule.minute(self._minute - MINUTE_S * back, None, forecast))
        self._hold(kept, kept.rule.minute(self._minute, count if complete else None, forecast))

    def _consult(self, kept: _Kept, at: float) -> None:
        """Whether its rule has a say now."""
        before = kept.silence
        kept.silence, kept.source = self._voice(kept, at)
        if kept.silence != before:
            kept.look = True
            self._dirty.add(kept.demand.function)

    def _voice(self, kept: _Kept, at: float) -> tuple[str, str]:
        """(why the rule has no say, '' = it has; whose word is followed)."""
        if kept.rule is None:
            return Unforeseen.OFF, "keep-alive"
        forecast = self._forecasts.get(kept.demand.function)
        if kept.mode not in self.knobs.foresees:
            return "", "rule"
        if forecast is None:
            return Unforeseen.NO_FORECAST, "keep-alive"
        if at - self._made_at > self.knobs.stale_s:
            return Unforeseen.STALE, "keep-alive"
        if forecast.source == OWN:
            return "", OWN
        clock = at - self._offset
        # Of the minute that runs alone: another one's may be a number, and a rule is told which are none.
        if isnan(forecast.expected(clock)) or isnan(forecast.chance(clock)):
            return Unforeseen.NOT_A_NUMBER, "keep-alive"
        return "", forecast.source or "rule"

    def _hold(self, kept: _Kept, holds: Iterable[Hold] | None) -> None:
        if holds is None:
            return
        kept.holds = [hold for hold in holds if hold.until_at > self._last and hold.instances > 0]
        self._dirty.add(kept.demand.function)

    # ---- what is to be done ------------------------------------------------------------------------------------------

    def act(self, now: float, house: House) -> list[Decision]:
        """What is due. Costs nothing where nothing has happened and nothing is due."""
        at = self._straight(now)
        if at < self._next_at and not self._dirty and not self._untold:
            return []
        self._turn(at)
        for _ in range(min(AT_A_TIME, len(self._untold))):
            waiting = self._kept.get(self._untold.popleft())
            if waiting is not None:
                self._hear(waiting, at)
        while self._due and self._due[0][0] <= at:
            due_at, function = heappop(self._due)
            if function in self._kept and self._kept[function].due_at == due_at:
                self._kept[function].look = True
                self._dirty.add(function)
        decisions: list[Decision] = []
        dirty, self._dirty = self._dirty, set()
        for function in sorted(dirty & self._kept.keys()):
            kept = self._kept[function]
            self._keep(now, at, kept, house, decisions)
            due_at = self._next(kept, at, house.cluster)
            if due_at != kept.due_at:
                kept.due_at = due_at
                if due_at < inf:
                    heappush(self._due, (due_at, function))
        due_at = min(self._minute + MINUTE_S if self._kept else inf, self._due[0][0] if self._due else inf)
        self._next_at = at if self._untold else due_at
        return decisions

    def _next(self, kept: _Kept, at: float, cluster: Cluster) -> float:
        """When something is due for a function, but for the beginning of a minute."""
        moments = [
            moment for hold in kept.heeded for moment in (hold.from_at - self._lead(kept, hold, cluster), hold.until_at)
        ]
        if kept.unmet:
            moments.append(max(at + AGAIN_S, kept.retry_at))
        if kept.wanted:
            moments += [until - LEASE_S / 2 for _, until in kept.told.values()]
        moments += [pending.until for pending in kept.pending.values()]
        return min((moment for moment in moments if at < moment), default=inf)

    def _wanted(self, kept: _Kept, at: float, house: House) -> int:
        if house.paused(kept.demand.function):
            return 0
        wanted = kept.demand.spec.min_warm
        for hold in kept.heeded:
            if hold.from_at - self._lead(kept, hold, house.cluster) <= at < hold.until_at:
                wanted = max(wanted, hold.instances)
        return wanted

    def _lead(self, kept: _Kept, hold: Hold, cluster: Cluster) -> float:
        """
        How much earlier than a hold its loads begin, seconds: by a cold start, unless all that it lacks is in host
        memory until then.
        """
        host_s = kept.demand.host_s
        open_ = cluster.alive & ~cluster.paused & ~cluster.protected
        parked = sum(until > hold.from_at for row, several in kept.parked.items() if open_[row] for until in several)
        load_s = host_s if 0 < hold.instances - kept.loaded <= parked else kept.load_s
        return load_s + self.knobs.lead_s

    def _keep(self, now: float, at: float, kept: _Kept, house: House, decisions: list[Decision]) -> None:
        cluster, demand = house.cluster, kept.demand
        self._consult(kept, at)
        wanted = self._wanted(kept, at, house)
        renewed = all(until - at > LEASE_S / 2 for _, until in kept.told.values())
        if wanted == kept.wanted == kept.loaded and renewed and not kept.look:
            return  # as at the ends of most batches
        kept.wanted, kept.unmet, kept.look = wanted, False, False
        n = len(cluster)
        cell = cluster.cells[demand.column, :, :n]
        there = np.maximum(cell[kernel.RESIDENT], cell[kernel.OUTSTANDING]) * cluster.alive
        for row, pending in list(kept.pending.items()):
            if at >= pending.until:
                del kept.pending[row]
            else:
                there[row] = max(there[row], pending.instances)
        loaded = int(there.sum())
        if kept.wanted > loaded:
            self._load(now, at, kept, house, there, kept.wanted - loaded, decisions)
        elif loaded > kept.wanted and not kept.silence and demand.spec.keep_alive_s != -1:
            self._release(at, kept, cluster, there, loaded - kept.wanted, decisions)
        if kept.wanted:
            self._renew(now, at, kept, cluster, decisions)
        kept.loaded = int(there.sum())

    def _load(
        self,
        now: float,
        at: float,
        kept: _Kept,
        house: House,
        there: kernel.Floats,
        missing: int,
        decisions: list[Decision],
    ) -> None:
        """Ask for instances, one by one, each where it weighs least."""
        cluster, demand = house.cluster, kept.demand
        kept.unmet = True
        if at < kept.retry_at:
            return
        impact, free = cluster.effect(cluster.kind(demand, 1), kernel.IMPACT), cluster.fact(kernel.MEMORY_FREE)
        cell = cluster.cells[demand.column, :, : len(cluster)]
        for _ in range(missing):
            open_ = house.loadable(now, demand) & (there < demand.spec.max_warm)
            left = np.zeros(len(cluster))
            for row, waiting in kept.parked.items():
                left[row] = len(waiting) - max(0.0, there[row] - cell[kernel.RESIDENT, row])
            order = [
                (left[row] <= 0, impact[row], there[row], -free[row], row) for row in np.flatnonzero(open_).tolist()
            ]
            for *_, row in sorted(order):
                leaving = self._room(kept, row, cluster)
                if leaving is None:
                    continue
                decisions += leaving
                instances = int(there[row]) + 1
                there[row] = instances
                kept.pending[row] = _Pending(instances, at + 3.0 * kept.load_s + 10.0)
                kept.told[row] = (instances, at + LEASE_S)
                self._there.setdefault(row, set()).add(demand.function)
                house.charge_load(now, demand, row)
                decisions.append(
                    Prewarm(
                        function=demand.function,
                        revision=demand.revision,
                        gpu=cluster.names[row],
                        instances=instances,
                        until_at=now + LEASE_S,
                    )
                )
                break
            else:
                return
        kept.unmet = False

    def _room(self, kept: _Kept, row: int, cluster: Cluster) -> list[Decision] | None:
        """
        What must go first for one more instance to be idle there (A35), None where there is no room.

        Idle instances may hold ``share`` of what is free; those that nobody holds give way, least recently used first.
        """
        need = kept.demand.memory_mib
        # Free now and what idle instances would give back.
        free, reserved = float(cluster.fact(kernel.MEMORY_FREE)[row]), float(cluster.reserved[row])
        # What was asked for and is in no report yet.
        promised = sum(
            other.demand.memory_mib * max(0, other.pending[row].instances - other.known.get(row, 0))
            for other in (self._kept[function] for function in self._there.get(row, ()) if function in self._kept)
            if row in other.pending
        )
        held_mib, spare = 0.0, []
        for function, revision, mib, idle_s in self._idle.get(row, ()):
            holder = self._kept.get(function)
            held = (
                holder is not None and holder.demand.revision == revision and row in holder.told and holder.wanted > 0
            )
            if held or function == kept.demand.function:
                held_mib += mib
            else:
                spare.append((idle_s, function, revision, mib))
        room = self.knobs.share * free - promised - held_mib
        if need > min(room, free - reserved - promised - held_mib):
            return None
        spare_mib = sum(mib for *_, mib in spare)
        left = dict(self._present.get(row, {}))
        going: dict[tuple[str, int], int] = {}
        for _, function, revision, mib in sorted(spare, reverse=True):
            if need + spare_mib <= room:
                break
            spare_mib -= mib
            left[function, revision] -= 1
            going[function, revision] = left[function, revision]
        return [
            Offload(function=function, revision=revision, gpu=cluster.names[row], keep=keep)
            for (function, revision), keep in going.items()
        ]

    def _release(
        self, at: float, kept: _Kept, cluster: Cluster, there: kernel.Floats, surplus: int, decisions: list[Decision]
    ) -> None:
        """Let idle instances go, those that weigh most first."""
        demand, n = kept.demand, len(cluster)
        cell = cluster.cells[demand.column, :, :n]
        idle = (
            np.maximum(0.0, cell[kernel.RESIDENT] - np.maximum(cell[kernel.OUTSTANDING], cell[kernel.LOADING]))
            * cluster.alive
        )
        impact = cluster.effect(cluster.kind(demand, 1), kernel.IMPACT)
        for row in sorted(np.flatnonzero(idle).tolist(), key=lambda row: (-impact[row], row)):
            if row in kept.pending:
                continue
            going = min(surplus, int(idle[row]))
            if not going:
                break
            surplus -= going
            keep = int(cell[kernel.RESIDENT, row]) - going
            decisions.append(
                Offload(function=demand.function, revision=demand.revision, gpu=cluster.names[row], keep=keep)
            )
            # Nothing is to be sent there as if it were still loaded.
            cluster.offload(demand, row, keep)
            there[row] -= going
            kept.known[row] = keep
            kept.told.pop(row, None)
            kept.lost, kept.lost_at = Unforeseen.GIVEN_UP, at

    def _renew(self, now: float, at: float, kept: _Kept, cluster: Cluster, decisions: list[Decision]) -> None:
        """Tell workers what they are to hold for longer than its keep-alive."""
        demand, n = kept.demand, len(cluster)
        resident = cluster.cells[demand.column, kernel.RESIDENT, :n] * cluster.alive
        left = kept.wanted
        for row in np.flatnonzero(resident).tolist():
            held = min(left, int(resident[row]))
            left -= held
            before, until = kept.told.get(row, (0, -inf))
            if held and row not in kept.pending and (held != before or until - at <= LEASE_S / 2):
                kept.told[row] = (held, at + LEASE_S)
                decisions.append(
                    Prewarm(
                        function=demand.function,
                        revision=demand.revision,
                        gpu=cluster.names[row],
                        instances=held,
                        until_at=now + LEASE_S,
                    )
                )

    # ---- what is said ------------------------------------------------------------------------------------------------

    def unforeseen(self, now: float, demand: Demand, cluster: Cluster) -> Unforeseen:
        """Why an invocation of a revision must load an instance now. Asked once for each, before it is placed."""
        why = self._why(self._straight(now), demand, cluster)
        self.cold[why] += 1
        return why

    def _why(self, at: float, demand: Demand, cluster: Cluster) -> Unforeseen:
        kept = self._kept.get(demand.function)
        if kept is None or kept.demand is not demand:
            return Unforeseen.OTHER_REVISION
        if at < kept.retry_at:
            return Unforeseen.LOAD_FAILED
        if kept.pending:
            return Unforeseen.LATE
        cell = cluster.cells[demand.column, :, : len(cluster)]
        if (cell[kernel.RESIDENT][cluster.alive] > 0).any():
            return (
                Unforeseen.HELD_ELSEWHERE
                if cluster.idle(demand.column)[cluster.alive].any()
                else Unforeseen.MORE_AT_ONCE
            )
        if kept.unmet and kept.wanted:
            return Unforeseen.NO_ROOM
        if kept.lost is Unforeseen.EVICTED:
            return Unforeseen.EVICTED
        if not kept.seen:
            return Unforeseen.NEVER_SEEN
        if kept.silence:
            return Unforeseen(kept.silence)
        alive_s = demand.spec.keep_alive_s
        if kept.lost is Unforeseen.GIVEN_UP and (alive_s < 0 or at - kept.lost_at < alive_s):
            return Unforeseen.GIVEN_UP
        return Unforeseen.NOT_FORESEEN

    def standings(self) -> list[Standing]:
        """By function."""
        return [
            Standing(
                function=function,
                revision=kept.demand.revision,
                mode=kept.mode,
                source=kept.source,
                silence=str(kept.silence),
                wanted=kept.wanted,
                loaded=kept.loaded,
                unmet=kept.unmet,
                load_s=round(kept.load_s, 4),
                parked=sum(len(row) for row in kept.parked.values()),
                host_s=round(kept.demand.host_s, 4),
                holds=[
                    (hold.from_at - self._offset, hold.until_at - self._offset, hold.instances) for hold in kept.heeded
                ],
            )
            for function, kept in sorted(self._kept.items())
        ]
