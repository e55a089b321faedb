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


class _Union:
    """The union of times that may overlap, as intervals of epoch seconds. Not thread-safe."""

    def __init__(self) -> None:
        self.running = 0
        self.since = 0.0
        self._past: deque[tuple[float, float]] = deque()

    def begin(self, now: float) -> None:
        if self.running == 0:
            self.since = now
        self.running += 1

    def end(self, now: float) -> None:
        self.running -= 1
        if self.running == 0:
            self._past.append((self.since, now))
            while self._past[0][1] < now - KEPT_S:
                self._past.popleft()

    def overlaps(self, start: float, stop: float) -> bool:
        if self.running and self.since < stop:
            return True
        # The newest first: what is asked for ended a moment ago.
        for began, ended in reversed(self._past):
            if ended <= start:
                return False
            if began < stop:
                return True
        return False


class Activity:
    """
    The times in which something ran: functions and their loads, and the worker's own preparations.

    ``begin`` and ``end`` come from many threads and nest; ``clock`` gives epoch seconds. A lock of its own guards
    everything.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        #: What ran before it is not known.
        self.since = clock()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy_s = 0.0
        self._any, self._functions = _Union(), _Union()

    def begin(self, *, function: bool = True) -> None:
        """Something begins to run, for a function or not."""
        with self._lock:
            now = self._clock()
            for union in self._unions(function):
                union.begin(now)

    def end(self, *, function: bool = True) -> None:
        """Something that began so has ended."""
        with self._lock:
            now = self._clock()
            for union in self._unions(function):
                union.end(now)
            if not self._any.running:
                self._busy_s += now - self._any.since
                self._idle.notify_all()

    def _unions(self, function: bool) -> tuple[_Union, ...]:
        return (self._any, self._functions) if function else (self._any,)

    @contextmanager
    def working(self, *, function: bool = True) -> Iterator[None]:
        """What is done to the device meanwhile counts as work of functions, or as the worker's own."""
        self.begin(function=function)
        try:
            yield
        finally:
            self.end(function=function)

    def busy_s(self) -> float:
        """Seconds in which something ran, since this object was made."""
        with self._lock:
            return self._busy_s + (self._clock() - self._any.since if self._any.running else 0.0)

    def wait_idle(self, within_s: float) -> bool:
        """Wait until nothing runs; False where that takes longer than ``within_s``."""
        with self._idle:
            return self._idle.wait_for(lambda: self._any.running == 0, within_s)

    def overlaps(self, start: float, stop: float) -> bool:
        """Whether anything ran within [start, stop), epoch seconds, at most :data:`KEPT_S` ago."""
        with self._lock:
            return self._any.overlaps(start, stop)

    def by_function(self, start: float, stop: float) -> bool:
        """The same of functions and their loads alone."""
        with self._lock:
            return self._functions.overlaps(start, stop)
