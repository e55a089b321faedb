"""Time as a port: code that needs a clock gets one, so that a test can hand it another."""

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()
