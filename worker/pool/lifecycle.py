"""
The lifecycle of each warm instance: when it was asked for, ready, first used and ended, and how long it was busy and
idle. Kept by the pool and sent to the event stream, where the cold start rate and the resource waste rate are counted.

What must stay true: an event is offered again until it is acknowledged, so no instance is lost to an outage of Redis.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smore.messages import stream

#: Seconds between two events of a living instance to which nothing happens.
REMIND_S: Final = 60.0
#: Ended instances that are kept while the stream does not take their events; the oldest go first.
MOST_KEPT: Final = 10_000


class Ending(StrEnum):
    """What ended an instance. The words are those of the event stream."""

    KEEP_ALIVE = "keep_alive"
    OFFLOAD = "offload"
    EVICTED = "evicted"
    CRASHED = "crashed"
    FAILED = "failed"
    CLOSED = "closed"
    #: Its weights lie in host memory now. A load out of there begins another lifecycle.
    PARKED = "parked"


class PrewarmOutcome(StrEnum):
    """
    What a prewarm came to. OPEN: not known yet; HIT: ready before its first use; LATE: a request waited for the load;
    WASTED: no request came; FAILED: the load failed. COLD: no prewarm, a request asked for the load.
    """

    OPEN = "open"
    HIT = "hit"
    LATE = "late"
    WASTED = "wasted"
    FAILED = "failed"
    COLD = "cold"


@dataclass(eq=False, slots=True)
class Lifecycle:
    """Of one instance. Times are seconds of the pool's clock, 0 = did not happen. Guarded by the pool's lock."""

    id: str
    function: str
    revision: int
    prewarmed: bool
    asked_at: float
    ready_at: float = 0.0
    used_at: float = 0.0
    ended_at: float = 0.0
    ending: Ending | None = None
    uses: int = 0
    saved: int = 0
    busy_s: float = 0.0
    idle_s: float = 0.0
    #: It came out of host memory.
    host: bool = False
    #: A request waits, or waited, for the load.
    awaited: bool = False
    #: Since when it is busy or idle as it is now.
    since: float = 0.0
    busy: bool = False
    #: When its last event was acknowledged; how often it has changed, and how many of these changes that event had.
    acknowledged_at: float = 0.0
    changes: int = 1
    acknowledged: int = 0

    @property
    def unwanted(self) -> bool:
        """Whether it is a prewarm that no request waits for so far."""
        return self.prewarmed and not self.awaited

    @property
    def outcome(self) -> PrewarmOutcome:
        if self.ending is Ending.FAILED and self.prewarmed:
            return PrewarmOutcome.FAILED
        if not self.prewarmed:
            return PrewarmOutcome.COLD
        if self.awaited:
            return PrewarmOutcome.LATE
        if self.uses:
            return PrewarmOutcome.HIT
        return PrewarmOutcome.OPEN if self.ending is None else PrewarmOutcome.WASTED

    def await_(self) -> None:
        """A request waits for the load."""
        self.awaited = True

    def ready(self, now: float, *, used: bool) -> None:
        """The load is over. ``used``: the request that asked for it has it."""
        self.ready_at = self.since = now
        self.busy = used
        self.changes += 1
        if used:
            self.used_at = now
            self.uses = 1

    def begin(self, now: float, keep_alive_s: float) -> None:
        """
        A batch takes it. The use counts as saved where the keep-alive alone would not have kept the instance until now.
        """
        idle_s = now - self.since
        first = not self.uses
        ahead = first and self.prewarmed and not self.awaited
        if ahead or (not first and 0 <= keep_alive_s < idle_s):
            self.saved += 1
        if first:
            self.used_at = now
            self.changes += 1
        self.uses += 1
        self._pass(now, busy=True)

    def rest(self, now: float) -> None:
        """Its batch has ended."""
        self._pass(now, busy=False)

    def end(self, now: float, ending: Ending) -> None:
        """It is gone."""
        if self.ready_at:
            self._pass(now, busy=False)
        self.ended_at, self.ending = now, ending
        self.changes += 1

    def _pass(self, now: float, *, busy: bool) -> None:
        if self.busy:
            self.busy_s += now - self.since
        else:
            self.idle_s += now - self.since
        self.since, self.busy = now, busy


class Lifecycles:
    """
    All lifecycles of one worker since its start ``boot``. Guarded by the pool's lock.
    """

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._count = 0
        self._ended: dict[str, tuple[Lifecycle, float]] = {}
        #: What was offered and not acknowledged yet, each with its number of changes then.
        self._offered: dict[str, tuple[Lifecycle, int]] = {}

    def begin(self, function: str, revision: int, *, prewarmed: bool, now: float) -> Lifecycle:
        """A load is asked for at ``now`` (the pool's clock)."""
        self._count += 1
        return Lifecycle(f"{self._boot}-{self._count}", function, revision, prewarmed, now)

    def end(self, lifecycle: Lifecycle, now: float, ending: Ending, memory_mib: float) -> None:
        """An instance that held so much has ended."""
        lifecycle.end(now, ending)
        self._ended[lifecycle.id] = (lifecycle, memory_mib)
        if len(self._ended) > MOST_KEPT:
            del self._ended[next(iter(self._ended))]

    def due(self, gpu: str, now: float, living: Iterable[tuple[Lifecycle, float]]) -> list[stream.Warmed]:
        """The events that the stream has not had. ``living``: the instances that live, with their memory in MiB."""
        news = [
            (lifecycle, mib)
            for lifecycle, mib in living
            if lifecycle.changes != lifecycle.acknowledged or now - lifecycle.acknowledged_at >= REMIND_S
        ]
        news += self._ended.values()
        self._offered = {lifecycle.id: (lifecycle, lifecycle.changes) for lifecycle, _ in news}
        return [self._event(gpu, now, lifecycle, mib) for lifecycle, mib in news]

    def acknowledge(self, events: Sequence[stream.Warmed], now: float) -> None:
        """These events of the last :meth:`due` have reached the stream."""
        for event in events:
            lifecycle, changes = self._offered.pop(event.id)
            lifecycle.acknowledged, lifecycle.acknowledged_at = changes, now
            if event.ended_us:
                self._ended.pop(event.id, None)

    def _event(self, gpu: str, now: float, lifecycle: Lifecycle, memory_mib: float) -> stream.Warmed:
        epoch = time.time() - now

        def us(at: float) -> int:
            return int((at + epoch) * 1e6) if at else 0

        at = lifecycle.ended_at or now
        current_s = at - lifecycle.since if lifecycle.ready_at and not lifecycle.ended_at else 0.0
        return stream.Warmed(
            version=stream.VERSION,
            function=lifecycle.function,
            revision=lifecycle.revision,
            gpu=gpu,
            boot=self._boot,
            id=lifecycle.id,
            prewarmed=int(lifecycle.prewarmed),
            outcome=lifecycle.outcome.value,
            why=lifecycle.ending.value if lifecycle.ending is not None else "",
            at_us=us(at),
            asked_us=us(lifecycle.asked_at),
            ready_us=us(lifecycle.ready_at),
            used_us=us(lifecycle.used_at),
            ended_us=us(lifecycle.ended_at),
            load_us=int(((lifecycle.ready_at or at) - lifecycle.asked_at) * 1e6),
            busy_us=int((lifecycle.busy_s + current_s * lifecycle.busy) * 1e6),
            idle_us=int((lifecycle.idle_s + current_s * (not lifecycle.busy)) * 1e6),
            uses=lifecycle.uses,
            saved=lifecycle.saved,
            memory_kib=int(memory_mib * 1024),
            host=int(lifecycle.host),
        )
