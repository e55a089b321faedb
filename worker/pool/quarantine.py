"""
Which revisions this worker does not run: for a while those that crash again and again here, and until somebody lifts it
those that are quarantined on all workers (smore/redis/quarantine.py). Pure: the time is an argument, in seconds. Used
by :mod:`worker.pool.crashes`, under the pool's lock.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

#: This many crashes within the window, and no success between, begin a quarantine.
CRASHES: Final = 3
WINDOW_S: Final = 60.0
#: Seconds of the first quarantine; each following one is twice as long, up to the second figure.
FIRST_S: Final = 60.0
LONGEST_S: Final = 600.0

#: A function's name and revision.
Key = tuple[str, int]


@dataclass(slots=True)
class _Record:
    crashes: dict[str, float] = field(default_factory=dict)
    until: float = 0.0
    length_s: float = 0.0


class Quarantine:
    """
    Crashes and quarantines by (function, revision).

    An invocation counts once however often it is retried: one input that kills its runner each time is at fault itself,
    and its own limit of attempts ends it. With three different ones the revision is at fault.
    """

    def __init__(self) -> None:
        self._records: dict[Key, _Record] = {}
        self._everywhere: frozenset[Key] = frozenset()

    def crashed(self, key: Key, culprit: str, now: float) -> bool:
        """
        Note a crash; ``culprit`` names the invocation or load. Whether a quarantine begins with it.
        """
        record = self._records.setdefault(key, _Record())
        record.crashes = {name: at for name, at in record.crashes.items() if now - at < WINDOW_S}
        record.crashes[culprit] = now
        if len(record.crashes) < CRASHES:
            return False
        record.crashes.clear()
        record.length_s = min(LONGEST_S, record.length_s * 2 or FIRST_S)
        record.until = now + record.length_s
        return True

    def succeeded(self, key: Key) -> None:
        """A run came to its end: earlier crashes, and the length of earlier quarantines, are forgotten."""
        if self._records:
            self._records.pop(key, None)

    def holds(self, key: Key, now: float) -> float:
        """Seconds for which the revision stays quarantined, infinity = until it is lifted; 0 = it may run."""
        if key in self._everywhere:
            return math.inf
        record = self._records.get(key)
        return max(0.0, record.until - now) if record is not None else 0.0

    def set_everywhere(self, keys: Iterable[Key]) -> bool:
        """
        Replace those that are quarantined on all workers. Whether that is a change. A revision that is lifted begins
        without crashes.
        """
        before, self._everywhere = self._everywhere, frozenset(keys)
        for key in before - self._everywhere:
            self._records.pop(key, None)
        return before != self._everywhere

    def all(self, now: float) -> Iterable[Key]:
        """All that are quarantined here or on all workers, sorted."""
        here = {key for key, record in self._records.items() if record.until > now}
        return sorted(here | self._everywhere)
