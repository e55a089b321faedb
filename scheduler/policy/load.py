"""
How much comes, and whether that is much: then the first acceptable GPU instance of a sample is taken (docs/paper.md,
A23).
"""

from dataclasses import dataclass, field
from math import exp2, log
from typing import Final

#: Weight of the newest arrival in the moving average of how long it took to be heard of, the longest that counts, and
#: how many times the average it seldom takes. Each second without an arrival but the first halves what is above the least
#: that was seen: where it has the gate refuse all, none arrives.
HEARD_WEIGHT, HEARD_LONGEST_S, HEARD_SELDOM = 0.1, 0.1, 2.0
#: Seconds after which an arrival counts half.
HALF_LIFE_S: Final = 1.0
_LN2: Final = log(2.0)


@dataclass(slots=True, kw_only=True)
class Rate:
    """What comes per second, the last ``half_life_s`` seconds as heavily as all before."""

    half_life_s: float = HALF_LIFE_S
    _value: float = 0.0
    _at: float = 0.0

    def add(self, now: float, amount: float) -> None:
        if now > self._at:
            self._value *= 0.5 ** ((now - self._at) / self.half_life_s)
            self._at = now
        self._value += amount * _LN2 / self.half_life_s

    def at(self, now: float) -> float:
        left: float = self._value * 0.5 ** (max(0.0, now - self._at) / self.half_life_s)
        return left


@dataclass(slots=True, kw_only=True)
class Placements:
    """
    How fast what waits is placed: placements, and the seconds in which something waited and could have been placed, the
    last ``half_life_s`` seconds as heavily as all before.

    Time in which nothing waits, or in which nothing may be placed, says nothing of it.
    """

    half_life_s: float
    #: When something was last placed, epoch seconds, 0 = never.
    last_at: float = 0.0
    _count: float = 0.0
    _waited_s: float = 0.0
    _at: float = 0.0

    def add(self, now: float, count: int, since: float) -> None:
        """``count`` are placed now (0: none, and what waited ends); something waited, and could be, from ``since`` on."""
        if now > self._at:
            left = 0.5 ** ((now - self._at) / self.half_life_s)
            self._waited_s = self._waited_s * left + max(0.0, now - max(since, self._at))
            self._count *= left
            self._at = now
        if count:
            self._count += count
            self.last_at = now

    def per_s(self, now: float) -> float:
        """Placements a second, the time in which nothing waits included."""
        return self._count * self._left(now) * _LN2 / self.half_life_s

    def each_s(self, now: float, since: float, usual_s: float, together: int) -> float:
        """
        Seconds of waiting for each that is placed, where something waits since ``since``.

        The next placement counts as if it came now, or ``usual_s`` after the last one where that is later, with
        ``together`` in it; without any so far it is all that counts.
        """
        left = self._left(now)
        waits_s = max(now - max(since, self._at), usual_s)
        return (self._waited_s * left + waits_s / together) / (self._count * left + 1.0)

    def _left(self, now: float) -> float:
        left: float = 0.5 ** (max(0.0, now - self._at) / self.half_life_s)
        return left


@dataclass(slots=True, kw_only=True)
class Lateness:
    """Seconds from an arrival to the round that hears of it."""

    _mean_s: float = 0.0
    _at: float = 0.0
    _least_s: float = HEARD_LONGEST_S

    def add(self, now: float, seconds: float) -> None:
        """An arrival was heard of so late."""
        late_s, mean_s = min(max(0.0, seconds), HEARD_LONGEST_S), self._mean(now)
        self._mean_s, self._at = mean_s + HEARD_WEIGHT * (late_s - mean_s), now
        self._least_s = min(self._least_s, late_s)

    def seldom_s(self, now: float) -> float:
        """It seldom takes longer."""
        return HEARD_SELDOM * self._mean(now)

    def _mean(self, now: float) -> float:
        above_s = max(0.0, self._mean_s - self._least_s)
        return self._mean_s - above_s * (1.0 - exp2(min(0.0, 1.0 + self._at - now)))


@dataclass(slots=True, kw_only=True)
class LoadSwitch:
    """
    With hysteresis. Offered load = seconds of work that arrive per second, over the slots there are.

    High from ``high`` on, or when as many wait as there are GPU instances; low again once it is at most ``low``, and
    fewer than half as many wait, for ``hold_s``.
    """

    high: float
    low: float
    hold_s: float
    is_high: bool = False
    #: Seconds of work per second.
    _work: Rate = field(default_factory=Rate)
    #: Since when load has been low; None = it is not.
    _low_since: float | None = None

    def arrived(self, now: float, seconds: float) -> None:
        """``seconds`` of work have come."""
        self._work.add(now, seconds)

    def offered(self, now: float) -> float:
        """Seconds of work per second."""
        return self._work.at(now)

    def fast(self, now: float, slots: float, waiting: int, gpus: int) -> bool:
        """Whether to sample now."""
        load = self.offered(now) / slots if slots else 0.0
        if load >= self.high or waiting >= gpus:
            self.is_high, self._low_since = True, None
        elif self.is_high:
            if load > self.low or 2 * waiting >= gpus:
                self._low_since = None
            elif self._low_since is None:
                self._low_since = now
            elif now - self._low_since >= self.hold_s:
                self.is_high, self._low_since = False, None
        return self.is_high
