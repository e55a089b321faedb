"""
When functions were at work on this GPU instance. The pool writes it; jobs read from it which of their iterations were
shared, and the run gate how long functions have worked.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

#: Seconds for which intervals are kept: longer than the window over which jobs are measured.
KEPT_S: Final = 120.0


class Activity:
    """
    The union of the times in which something ran, as intervals of epoch seconds.

    ``begin`` and ``end`` come from many threads and nest; ``clock`` gives epoch seconds. A lock of its own guards
    everything.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy_s = 0.0
        self._running = 0
        self._since = 0.0
        self._past: deque[tuple[float, float]] = deque()

    def begin(self) -> None:
        """Something begins to run."""
        with self._lock:
            if self._running == 0:
                self._since = self._clock()
            self._running += 1

    def end(self) -> None:
        """Something that began to run has ended."""
        with self._lock:
            self._running -= 1
            if self._running == 0:
                now = self._clock()
                self._past.append((self._since, now))
                self._busy_s += now - self._since
                self._idle.notify_all()
                while self._past[0][1] < now - KEPT_S:
                    self._past.popleft()

    @contextmanager
    def working(self) -> Iterator[None]:
        """What is done to the device meanwhile counts as work of functions."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def busy_s(self) -> float:
        """Seconds in which something ran, since this object was made."""
        with self._lock:
            return self._busy_s + (self._clock() - self._since if self._running else 0.0)

    def wait_idle(self, within_s: float) -> bool:
        """Wait until nothing runs; False where that takes longer than ``within_s``."""
        with self._idle:
            return self._idle.wait_for(lambda: self._running == 0, within_s)

    def overlaps(self, start: float, stop: float) -> bool:
        """Whether anything ran within [start, stop), epoch seconds, at most :data:`KEPT_S` ago."""
        with self._lock:
            if self._running and self._since < stop:
                return True
            # The newest first: what is asked for ended a moment ago.
            for began, ended in reversed(self._past):
                if ended <= start:
                    return False
                if began < stop:
                    return True
        return False
