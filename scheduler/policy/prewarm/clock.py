"""The time that prewarming rules see: it never goes back, and it is divided into minutes that were counted or not."""

from math import ceil, floor, inf, isfinite
from typing import Final

MINUTE_S: Final = 60.0
#: A step of the clock by more than this is no passing of time: minutes counted across it are not used.
JUMP_S: Final = 90.0
#: A step back by no more than this is an error of measurement: a leader estimates Redis' clock from its own.
STEP_S: Final = 5.0


class MinuteClock:
    """Epoch seconds in, straightened epoch seconds out: those plus ``offset``."""

    def __init__(self) -> None:
        self.offset = 0.0
        #: The latest straightened time.
        self.last = -inf
        #: Steps of the clock that were no passing of time.
        self.steps = 0
        #: The beginning of the minute that runs.
        self.minute = -inf
        #: Whether all of the minute that runs was counted, and all of the one before.
        self._counted = self.complete = False

    def straighten(self, now: float) -> float:
        """
        Time that never goes back. A small step back is waited for; after a large one time is ahead of the clock by
        whole minutes, so that minutes begin together.
        """
        at = now + self.offset
        if at < self.last - STEP_S:
            self.offset += ceil((self.last - at) / MINUTE_S) * MINUTE_S
            at = now + self.offset
        elif at - self.last <= JUMP_S or not isfinite(self.last):
            self.last = max(self.last, at)
            return self.last
        self.steps += 1
        # What is left of this minute was counted on two clocks.
        self._counted = False
        self.last = at
        return at

    def turn(self, at: float) -> bool:
        """Whether another minute has begun since the last call, but for the first minute of all."""
        minute = floor(at / MINUTE_S) * MINUTE_S
        if minute <= self.minute:
            return False
        first = not isfinite(self.minute)
        if first:
            # What arrived in this minute before the first call is unknown.
            self._counted = at == minute
        else:
            self.complete, self._counted = self._counted and minute - self.minute == MINUTE_S, True
        self.minute = minute
        return not first
