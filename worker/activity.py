"""When functions were at work on this GPU instance: what tells a job's shared iterations from its solo ones."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

#: Longer than the window over which jobs are measured.
KEPT_S: Final = 120.0


class Activity:
    """
    The union of the times in which something ran, as intervals of epoch seconds.

    ``begin`` and ``end`` come from many threads and nest; ``clock`` gives epoch seconds.
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
        with self._lock:
            if self._running == 0:
                self._since = self._clock()
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                now = self._clock()
                self._past.append((self._since, now))
                self._busy_s += now - self._since
                self._idle.notify_all()
                while self._past[0][1] < now - KEPT_S:
                    self._past.popleft()

    def busy_s(self) -> float:
        """For how long something has run, since this began."""
        with self._lock:
            return self._busy_s + (self._clock() - self._since if self._running else 0.0)

    def wait_idle(self, within_s: float) -> bool:
        """Wait until nothing runs; False when that took too long."""
        with self._idle:
            return self._idle.wait_for(lambda: self._running == 0, within_s)

    def overlaps(self, start: float, stop: float) -> bool:
        """Whether anything ran within [start, stop)."""
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
