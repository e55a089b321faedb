"""
The prewarmer: what the rules of the functions want becomes loads and offloads on the GPU instances, and every cold
start gets a reason.

For each function a rule says how many instances should be loaded when (window.py). The prewarmer begins as much earlier
as that takes, a cold start or the return out of host memory, and ``instances.py`` says where. What a rule wants is
leased from its worker for :data:`~scheduler.policy.prewarm.instances.LEASE_S` at a time, so that without a leader the
keep-alive holds again after that. Idle instances beyond what a rule wants are offloaded.

A rule is followed only while it knows something: where it needs a forecast and that is missing, older than ``stale_s``
or no number for the minute that runs, the function goes on with its keep-alive, and
:class:`~smore.domain.prewarming.PrewarmStatus` says so. What the rule answers meanwhile is kept, so that it
counts as soon as the rule is followed again. All is pure: time is an argument, and a clock that was set back, or ahead,
is straightened (clock.py).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import floor, inf, isnan
from random import Random
from typing import Final

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.cluster import Cluster
from scheduler.policy.decisions import Decision
from scheduler.policy.demand import Demand
from scheduler.policy.events import CountsKnown, ForecastsUpdated, GpuReported, InstanceReported
from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm.clock import MINUTE_S, MinuteClock
from scheduler.policy.prewarm.function import PrewarmedFunction
from scheduler.policy.prewarm.instances import LEASE_S, Instances, PlacementView
from scheduler.policy.prewarm.reports import PrewarmReports
from scheduler.policy.prewarm.status import ColdStartReason
from scheduler.policy.prewarm.window import PrewarmRule, WarmWindow
from smore.domain.function import Prewarming
from smore.domain.prewarming import OWN

#: Rules that see a new minute in one round: a round is what an invocation's placement may have to wait for.
AT_A_TIME: Final = 200
#: Missed minutes that rules see, the newest.
MISSED: Final = 10
#: Where there was no room it is tried again after this.
AGAIN_S: Final = 1.0
#: After a failed load nothing is loaded ahead for so long, twice as long after each further one, up to the second.
FAILED_S: Final = 30.0
FAILED_MOST_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmKnobs:
    """
    ``rules``: a function's mode and demand → its rule; ``foresees``: modes whose rule says nothing without a forecast;
    ``share``: of the free memory that idle instances may hold; ``lead_s``: how much earlier than a cold start takes a
    load begins; ``stale_s``: how old a forecast may be, seconds.
    """

    rules: Callable[[Prewarming, Demand], PrewarmRule]
    foresees: frozenset[Prewarming] = frozenset((Prewarming.AUTO, Prewarming.PAPER))
    on: bool = True
    share: float = 0.3
    lead_s: float = 1.0
    stale_s: float = 240.0


class Prewarmer:
    """
    Owned by a policy, which reports to it what happens and then calls :meth:`act`. It stays whole: its events, its
    rules and what is due share the functions and their agenda.
    """

    def __init__(self, knobs: PrewarmKnobs) -> None:
        self.knobs = knobs
        self._next_at = inf
        self._clock = MinuteClock()
        self._functions: dict[str, PrewarmedFunction] = {}
        self._instances = Instances(self._functions, knobs.share)
        self._dirty: set[str] = set()
        self._forecasts: Mapping[str, Forecast] = {}
        self._made_at = -inf
        #: (when, function), the earliest first; an entry holds where it is the function's ``due_at``.
        self._due: list[tuple[float, str]] = []
        #: Functions whose rules are still to see the minute that runs.
        self._unseen: deque[str] = deque()
        self.reports = PrewarmReports(self._functions, self._clock)

    @property
    def next_at(self) -> float:
        """When it next has something to do if nothing happens, epoch seconds; inf = never."""
        return self._next_at - self._clock.offset

    # ---- what happens ------------------------------------------------------------------------------------------------

    def serve(self, now: float, demand: Demand) -> None:
        """A revision takes its function's traffic, or its knobs have changed."""
        entry = self._functions.get(demand.function)
        mode = demand.spec.prewarm
        if entry is None or entry.demand is not demand or entry.mode is not mode:
            former, entry = entry, PrewarmedFunction(demand, mode, self._rule(demand))
            if former is not None:
                entry.seen, entry.minute, entry.count, entry.before = (
                    former.seen,
                    former.minute,
                    former.count,
                    former.before,
                )
                if former.demand is demand:
                    entry.leased, entry.pending, entry.resident, entry.parked = (
                        former.leased,
                        former.pending,
                        former.resident,
                        former.parked,
                    )
            self._functions[demand.function] = entry
        at = self._clock.straighten(now)
        self._turn(at)
        entry.rule_at = max(entry.rule_at, self._clock.minute)
        entry.look = True
        self._consult(entry, at)
        self._dirty.add(demand.function)

    def _rule(self, demand: Demand) -> PrewarmRule | None:
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
        now_at = self._clock.straighten(now)
        self._turn(now_at)
        begin = self._clock.minute
        for function, minutes in event.counts.items():
            entry = self._functions.get(function)
            if entry is None or entry.rule is None:
                continue
            entry.rule = self._rule(entry.demand)
            assert entry.rule is not None
            draw = Random(function).random
            for at, count in minutes:
                if at + MINUTE_S > begin:
                    break
                if count:
                    entry.seen = True
                    for moment in sorted(at + MINUTE_S * draw() for _ in range(min(count, 60))):
                        entry.rule.arrived(moment)
                        entry.rule.idle(moment, 1)
                entry.rule.minute(at + MINUTE_S, count, None)
            loaded = sum(entry.resident.values())
            if loaded:
                self._want(entry, entry.rule.idle(now_at, loaded, 0))

    def forget(self, function: str) -> list[Decision]:
        """A function is gone: so is all that was loaded for it."""
        entry = self._functions.pop(function, None)
        self._dirty.discard(function)
        if entry is None:
            return []
        return self._instances.removed(entry)

    def arrived(self, now: float, demand: Demand) -> None:
        entry = self._functions.get(demand.function)
        if entry is None or entry.demand is not demand:
            return
        at = self._clock.straighten(now)
        self._catch_up(entry, at)
        minute = floor(at / MINUTE_S) * MINUTE_S
        if minute != entry.minute:
            entry.before = entry.count if entry.minute == minute - MINUTE_S else 0
            entry.minute, entry.count = minute, 0
        entry.count += 1
        if entry.rule is not None:
            self._want(entry, entry.rule.arrived(at))

    def dispatched(self, demand: Demand) -> None:
        """A batch is on its way to a load of its own."""
        entry = self._functions.get(demand.function)
        if entry is not None:
            entry.look = True

    def idle(self, now: float, demand: Demand, idle: int, busy: int) -> None:
        """A batch has ended: ``idle`` instances have no work now, its own included."""
        entry = self._functions.get(demand.function)
        if entry is None or entry.demand is not demand:
            return
        entry.seen = True
        at = self._clock.straighten(now)
        self._catch_up(entry, at)
        if entry.rule is not None:
            self._want(entry, entry.rule.idle(at, max(1, idle), busy))

    def reported(self, now: float, row: int, event: GpuReported, cluster: Cluster) -> None:
        """
        What is loaded on a row. An instance that was not asked for here (a former leader has, or a person) begins to be
        idle now.
        """
        self._instances.reported(row, event, cluster.names)
        counts = self._instances.present(row)
        parked: dict[tuple[str, int], list[float]] = {}
        for function, revision, until_at in event.parked:
            parked.setdefault((function, revision), []).append(until_at + self._clock.offset)
        there = self._instances.there(row)
        for function in {function for function, _ in (*counts, *parked)} | there:
            entry = self._functions.get(function)
            if entry is None:
                continue
            demand = entry.demand
            count = counts.get((demand.function, demand.revision), 0)
            before = entry.resident.get(row, 0)
            ends, ended = parked.get((demand.function, demand.revision), ()), len(entry.parked.pop(row, ()))
            if ends:
                entry.parked[row] = ends
            if count or row in entry.pending or ends:
                there.add(function)
            else:
                there.discard(function)
            entry.resident[row] = count
            pending = entry.pending.get(row)
            if pending is not None:
                # Instead of one that was there and is gone, no other was asked for.
                pending.instances -= max(0, before - count)
            if pending is not None and count >= pending.instances:
                del entry.pending[row]
            elif pending is None and count > before and not cluster.cells[demand.column, kernel.OUTSTANDING, row]:
                self.idle(now, demand, count, 0)
            if count != before or len(ends) != ended or entry.unmet:
                entry.look = True
                self._dirty.add(demand.function)

    def lost(self, row: int) -> None:
        """A GPU instance is gone."""
        for function in self._instances.lost(row):
            entry = self._functions.get(function)
            if entry is not None:
                for facts in (entry.leased, entry.pending, entry.resident, entry.parked):
                    facts.pop(row, None)
                entry.look = True
                self._dirty.add(function)

    def instance_reported(self, now: float, event: InstanceReported, row: int) -> None:
        """What a worker reports of one instance."""
        entry = self._functions.get(event.function)
        if entry is None or entry.demand.revision != event.revision:
            return
        if event.failed:
            entry.failures += 1
            wait_s = min(FAILED_MOST_S, FAILED_S * 2 ** (entry.failures - 1))
            entry.retry_at = self._clock.straighten(now) + wait_s
            entry.pending.pop(row, None)
            entry.leased.pop(row, None)
        elif event.load_s is not None:
            entry.failures = 0
        if event.evicted:
            entry.lost, entry.lost_at = ColdStartReason.EVICTED, self._clock.straighten(now)
        entry.look = True
        self._dirty.add(event.function)

    def foresee(self, now: float, event: ForecastsUpdated) -> None:
        """Other forecasts hold from now on; rules see them when the next minute begins."""
        self._clock.straighten(now)
        self._forecasts, self._made_at = event.forecasts, event.made_at + self._clock.offset

    # ---- rules -------------------------------------------------------------------------------------------------------

    def _turn(self, at: float) -> None:
        """Another minute may have begun."""
        if self._clock.turn(at):
            self._unseen = deque(self._functions)

    def _catch_up(self, entry: PrewarmedFunction, at: float) -> None:
        """
        Show a rule the minutes that have begun since it saw the last one, before anything in this one.
        """
        self._turn(at)
        if entry.rule_at >= self._clock.minute:
            return
        counted = self._clock.minute - MINUTE_S
        count = entry.count if entry.minute == counted else entry.before if entry.minute == self._clock.minute else 0
        missed = min(MISSED, int((self._clock.minute - entry.rule_at) / MINUTE_S)) - 1
        complete = self._clock.complete and not missed
        entry.rule_at = self._clock.minute
        self._consult(entry, at)
        if entry.rule is None:
            return
        forecast = self._forecasts.get(entry.demand.function) if not entry.silence else None
        if forecast is not None and self._clock.offset:
            forecast = Forecast(
                from_at=forecast.from_at + self._clock.offset,
                mean=forecast.mean,
                any=forecast.any,
                source=forecast.source,
            )
        for back in range(missed, 0, -1):
            self._want(entry, entry.rule.minute(self._clock.minute - MINUTE_S * back, None, forecast))
        self._want(entry, entry.rule.minute(self._clock.minute, count if complete else None, forecast))

    def _consult(self, entry: PrewarmedFunction, at: float) -> None:
        """Decide whether its rule is followed now."""
        before = entry.silence
        entry.silence, entry.source = self._source(entry, at)
        if entry.silence != before:
            entry.look = True
            self._dirty.add(entry.demand.function)

    def _source(self, entry: PrewarmedFunction, at: float) -> tuple[str, str]:
        """(why the rule is not followed, '' = it is; whose forecast or rule is)."""
        if entry.rule is None:
            return ColdStartReason.OFF, "keep-alive"
        forecast = self._forecasts.get(entry.demand.function)
        if entry.mode not in self.knobs.foresees:
            return "", "rule"
        if forecast is None:
            return ColdStartReason.NO_FORECAST, "keep-alive"
        if at - self._made_at > self.knobs.stale_s:
            return ColdStartReason.STALE, "keep-alive"
        if forecast.source == OWN:
            return "", OWN
        clock = at - self._clock.offset
        # Of the minute that runs alone: another one's may be a number, and a rule checks which are none.
        if isnan(forecast.expected(clock)) or isnan(forecast.chance(clock)):
            return ColdStartReason.NOT_A_NUMBER, "keep-alive"
        return "", forecast.source or "rule"

    def _want(self, entry: PrewarmedFunction, windows: Iterable[WarmWindow] | None) -> None:
        """What a rule answered replaces what it wanted before; None = that stays."""
        if windows is None:
            return
        entry.windows = [window for window in windows if window.until_at > self._clock.last and window.instances > 0]
        self._dirty.add(entry.demand.function)

    # ---- what is to be done ------------------------------------------------------------------------------------------

    def act(self, now: float, view: PlacementView) -> list[Decision]:
        """What is due. Costs nothing where nothing has happened and nothing is due."""
        at = self._clock.straighten(now)
        if at < self._next_at and not self._dirty and not self._unseen:
            return []
        self._turn(at)
        for _ in range(min(AT_A_TIME, len(self._unseen))):
            waiting = self._functions.get(self._unseen.popleft())
            if waiting is not None:
                self._catch_up(waiting, at)
        while self._due and self._due[0][0] <= at:
            due_at, function = heappop(self._due)
            if function in self._functions and self._functions[function].due_at == due_at:
                self._functions[function].look = True
                self._dirty.add(function)
        decisions: list[Decision] = []
        dirty, self._dirty = self._dirty, set()
        for function in sorted(dirty & self._functions.keys()):
            entry = self._functions[function]
            self._adjust(now, at, entry, view, decisions)
            due_at = self._next(entry, at, view.cluster)
            if due_at != entry.due_at:
                entry.due_at = due_at
                if due_at < inf:
                    heappush(self._due, (due_at, function))
        due_at = min(self._clock.minute + MINUTE_S if self._functions else inf, self._due[0][0] if self._due else inf)
        self._next_at = at if self._unseen else due_at
        return decisions

    def _next(self, entry: PrewarmedFunction, at: float, cluster: Cluster) -> float:
        """When something is due for a function, but for the beginning of a minute."""
        moments = [
            moment
            for window in entry.followed
            for moment in (window.from_at - self._lead(entry, window, cluster), window.until_at)
        ]
        if entry.unmet:
            moments.append(max(at + AGAIN_S, entry.retry_at))
        if entry.wanted:
            moments += [until - LEASE_S / 2 for _, until in entry.leased.values()]
        moments += [pending.until for pending in entry.pending.values()]
        return min((moment for moment in moments if at < moment), default=inf)

    def _wanted(self, entry: PrewarmedFunction, at: float, view: PlacementView) -> int:
        if view.paused(entry.demand.function):
            return 0
        wanted = entry.demand.spec.min_warm
        for window in entry.followed:
            if window.from_at - self._lead(entry, window, view.cluster) <= at < window.until_at:
                wanted = max(wanted, window.instances)
        return wanted

    def _lead(self, entry: PrewarmedFunction, window: WarmWindow, cluster: Cluster) -> float:
        """
        How much earlier than a window its loads begin, seconds: by a cold start, unless all that it lacks is in host
        memory until then.
        """
        host_s = entry.demand.host_s
        open_ = cluster.alive & ~cluster.paused & ~cluster.protected
        parked = sum(until > window.from_at for row, several in entry.parked.items() if open_[row] for until in several)
        load_s = host_s if 0 < window.instances - entry.loaded <= parked else entry.demand.load_s
        return load_s + self.knobs.lead_s

    def _adjust(
        self, now: float, at: float, entry: PrewarmedFunction, view: PlacementView, decisions: list[Decision]
    ) -> None:
        cluster, demand = view.cluster, entry.demand
        self._consult(entry, at)
        wanted = self._wanted(entry, at, view)
        renewed = all(until - at > LEASE_S / 2 for _, until in entry.leased.values())
        if wanted == entry.wanted == entry.loaded and renewed and not entry.look:
            return  # as at the ends of most batches
        entry.wanted, entry.unmet, entry.look = wanted, False, False
        n = len(cluster)
        cell = cluster.cells[demand.column, :, :n]
        there = np.maximum(cell[kernel.RESIDENT], cell[kernel.OUTSTANDING]) * cluster.alive
        for row, pending in list(entry.pending.items()):
            if at >= pending.until:
                del entry.pending[row]
            else:
                there[row] = max(there[row], pending.instances)
        loaded = int(there.sum())
        if entry.wanted > loaded:
            entry.unmet = at < entry.retry_at or not self._instances.load(
                now, at, entry, view, there, entry.wanted - loaded, decisions
            )
        elif loaded > entry.wanted and not entry.silence and demand.spec.keep_alive_s != -1:
            self._instances.release(at, entry, cluster, there, loaded - entry.wanted, decisions)
        if entry.wanted:
            self._instances.renew(now, at, entry, cluster, decisions)
        entry.loaded = int(there.sum())
