"""
What became of each resident model: when it was asked for, ready, used and ended, and what of its time was for nothing
(digest A44).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smore.messages import stream

#: How often an instance that lives is told of when nothing happens to it, seconds.
REMIND_S: Final = 60.0
#: Ends that are kept for a stream that does not take them; the oldest go first.
MOST_KEPT: Final = 10_000


class Why(StrEnum):
    """What ended an instance."""

    KEEP_ALIVE = "keep_alive"
    OFFLOAD = "offload"
    EVICTED = "evicted"
    CRASHED = "crashed"
    FAILED = "failed"
    CLOSED = "closed"
    #: Its weights lie in host memory now; what comes of it is another life.
    PARKED = "parked"


class Outcome(StrEnum):
    """
    What loading ahead came to: not known yet; ready before its first use; a request waited for it; no request came; it
    failed. Or ``cold``: it was a request that asked for it.
    """

    OPEN = "open"
    HIT = "hit"
    LATE = "late"
    WASTED = "wasted"
    FAILED = "failed"
    COLD = "cold"


@dataclass(eq=False, slots=True)
class Life:
    """Of one instance, on the pool's clock in seconds; 0 = did not happen. Guarded by the pool."""

    id: str
    function: str
    revision: int
    prewarmed: bool
    asked_at: float
    ready_at: float = 0.0
    used_at: float = 0.0
    ended_at: float = 0.0
    why: Why | None = None
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
    #: When it was last told of; how often it has changed, and with how many changes it was told of.
    told_at: float = 0.0
    changes: int = 1
    told: int = 0

    @property
    def unwanted(self) -> bool:
        """Loaded ahead, and nobody waits for it so far."""
        return self.prewarmed and not self.awaited

    @property
    def outcome(self) -> Outcome:
        if self.why is Why.FAILED and self.prewarmed:
            return Outcome.FAILED
        if not self.prewarmed:
            return Outcome.COLD
        if self.awaited:
            return Outcome.LATE
        if self.uses:
            return Outcome.HIT
        return Outcome.OPEN if self.why is None else Outcome.WASTED

    def await_(self) -> None:
        self.awaited = True

    def ready(self, now: float, *, used: bool) -> None:
        """The load is over; ``used``: by whom asked for it."""
        self.ready_at = self.since = now
        self.busy = used
        self.changes += 1
        if used:
            self.used_at = now
            self.uses = 1

    def begin(self, now: float, keep_alive_s: float) -> None:
        """A batch takes it. Saved: with the keep-alive alone it would not have been here."""
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

    def end(self, now: float, why: Why) -> None:
        if self.ready_at:
            self._pass(now, busy=False)
        self.ended_at, self.why = now, why
        self.changes += 1

    def _pass(self, now: float, *, busy: bool) -> None:
        if self.busy:
            self.busy_s += now - self.since
        else:
            self.idle_s += now - self.since
        self.since, self.busy = now, busy


class Lives:
    """All lives of one worker. ``clock``: epoch seconds. Guarded by the pool."""

    def __init__(self, boot: str, clock: Callable[[], float] = time.time) -> None:
        self._boot = boot
        self._clock = clock
        self._count = 0
        self._ended: dict[str, tuple[Life, float]] = {}
        #: What was offered and not taken yet: each with its changes then.
        self._offered: dict[str, tuple[Life, int]] = {}

    def begin(self, function: str, revision: int, *, prewarmed: bool, now: float) -> Life:
        self._count += 1
        return Life(f"{self._boot}-{self._count}", function, revision, prewarmed, now)

    def end(self, life: Life, now: float, why: Why, memory_mib: float) -> None:
        life.end(now, why)
        self._ended[life.id] = (life, memory_mib)
        if len(self._ended) > MOST_KEPT:
            del self._ended[next(iter(self._ended))]

    def due(self, gpu: str, now: float, living: Iterable[tuple[Life, float]]) -> list[stream.Warmed]:
        """What is to be told now; ``living`` with their memory, MiB."""
        news = [(life, mib) for life, mib in living if life.changes != life.told or now - life.told_at >= REMIND_S]
        news += self._ended.values()
        self._offered = {life.id: (life, life.changes) for life, _ in news}
        return [self._event(gpu, now, life, mib) for life, mib in news]

    def told(self, events: Sequence[stream.Warmed], now: float) -> None:
        for event in events:
            life, changes = self._offered.pop(event.id)
            life.told, life.told_at = changes, now
            if event.ended_us:
                self._ended.pop(event.id, None)

    def _event(self, gpu: str, now: float, life: Life, memory_mib: float) -> stream.Warmed:
        epoch = self._clock() - now

        def us(at: float) -> int:
            return int((at + epoch) * 1e6) if at else 0

        at = life.ended_at or now
        current_s = at - life.since if life.ready_at and not life.ended_at else 0.0
        return stream.Warmed(
            version=stream.VERSION,
            function=life.function,
            revision=life.revision,
            gpu=gpu,
            boot=self._boot,
            id=life.id,
            prewarmed=int(life.prewarmed),
            outcome=life.outcome.value,
            why=life.why.value if life.why is not None else "",
            at_us=us(at),
            asked_us=us(life.asked_at),
            ready_us=us(life.ready_at),
            used_us=us(life.used_at),
            ended_us=us(life.ended_at),
            load_us=int(((life.ready_at or at) - life.asked_at) * 1e6),
            busy_us=int((life.busy_s + current_s * life.busy) * 1e6),
            idle_us=int((life.idle_s + current_s * (not life.busy)) * 1e6),
            uses=life.uses,
            saved=life.saved,
            memory_kib=int(memory_mib * 1024),
            host=int(life.host),
        )
