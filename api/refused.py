"""Calls that a gateway has refused: a counter of each, and for the strip of problems those of the last minutes."""

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from api.errors import Ended
from smore.domain.errors import CallerError
from smore.process.observability import REFUSALS

#: For so many minutes a refusal is told.
MINUTES: Final = 5


class Refused:
    """Of one gateway's process, whose event loop alone counts."""

    def __init__(self) -> None:
        #: The minute since the epoch, and how many calls of which function were refused for what in it.
        self._minutes: deque[tuple[int, Counter[tuple[str, str]]]] = deque(maxlen=MINUTES)

    @contextmanager
    def counted(self, function: str) -> Iterator[None]:
        """Counts what is refused inside; how an accepted invocation ended is no refusal."""
        try:
            yield
        except Ended:
            raise
        except CallerError as error:
            self.count(function, error.code)
            raise

    def count(self, function: str, code: str) -> None:
        """``function``: its key."""
        REFUSALS.labels(function, code).inc()
        minute = int(time.time() // 60)
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append((minute, Counter()))
        self._minutes[-1][1][function, code] += 1

    def lately(self) -> Mapping[str, Counter[str]]:
        """How many calls of each function were refused for what in the last :data:`MINUTES` minutes."""
        found: dict[str, Counter[str]] = {}
        first = int(time.time() // 60) - MINUTES
        # A copy: the event loop counts on.
        for minute, counts in list(self._minutes):
            if minute > first:
                for (function, code), number in list(counts.items()):
                    found.setdefault(function, Counter())[code] += number
        return found
