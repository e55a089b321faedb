"""
Rules that read idle times off histograms: HHP (Shahrad et al., ATC 2020) and LSTH (INFless, ASPLOS 2022).

An idle time lasts from the end of a function's last work to its next arrival. Bins are minutes, up to a range; longer
ones are counted as out of bounds.
"""

import math
from collections.abc import Sequence
from typing import Final

from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm import kernel
from scheduler.policy.prewarm.fixed import Levels
from scheduler.policy.prewarm.window import WarmWindow

MINUTE_S: Final = 60.0


class Histogram:
    """
    HHP with ``gamma`` = 1, LSTH below. Windows are read off when a minute begins.

    ``head``, ``tail`` percentiles; ``margin`` around them; ``least`` idle times before a histogram is read at all;
    ``cv``, ``beyond`` as in :func:`kernel.window`; ``stand_in``: a short span without a pattern of its own leaves the
    long one alone, instead of the standard keep-alive. Idle times beyond the range get the standard keep-alive: HHP
    forecasts them with an ARIMA model, which is not built.
    """

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        head: float = 5.0,
        tail: float = 99.0,
        margin: float = 0.1,
        range_minutes: int = 240,
        long_minutes: int = 1440,
        short_minutes: int = 60,
        least: int = 10,
        cv: float = 2.0,
        beyond: float = 0.5,
        stand_in: bool = False,
    ) -> None:
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma is {gamma}: a number in 0..1 is expected")
        if not 0 <= head <= tail <= 100:
            raise ValueError(f"head and tail are {head} and {tail}: percentiles in this order are expected")
        if range_minutes < 1 or not 1 <= short_minutes <= long_minutes:
            raise ValueError(
                "range_minutes, short_minutes, long_minutes: at least 1, the short span within the long one"
            )
        self._knobs = (gamma, head, tail, margin, least, cv, beyond, stand_in)
        self._spans = (long_minutes, short_minutes)
        self._hist, self._log, self._place = kernel.no_idle_times(range_minutes, long_minutes)
        self._levels = Levels()
        self._idle_since: float | None = None
        self._origin: float | None = None
        self._window = (0.0, range_minutes * MINUTE_S)

    def _minute_of(self, at: float) -> int:
        if self._origin is None:
            self._origin = MINUTE_S * math.floor(at / MINUTE_S)
        return int((at - self._origin) / MINUTE_S)

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        if self._idle_since is not None:
            idle_s = max(0.0, at - self._idle_since)
            kernel.observe(self._hist, self._log, self._place, self._minute_of(at), idle_s)
            self._idle_since = None
        return None

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        unload, keep = self._window
        if busy == 0:
            self._idle_since = at
        # What is to come back is one instance: how many there were says nothing about the next arrival.
        self._levels.fell_idle(at, busy + 1, [(unload, unload + keep)] if busy == 0 or unload == 0 else [])
        return self._levels.holds(at, busy)

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        minute = self._minute_of(at)
        kernel.forget(self._hist, self._log, self._place, minute, *self._spans)
        unload, keep, _ = kernel.blended(self._hist, *self._knobs)
        self._window = (unload, keep)
        return None


def hhp(**knobs: object) -> Histogram:
    """One span (``long_minutes``)."""
    return Histogram(**{"gamma": 1.0, **knobs})  # type: ignore[arg-type]


def lsth(**knobs: object) -> Histogram:
    """Two spans, 24 h and 1 h, half of each."""
    return Histogram(**{"gamma": 0.5, **knobs})  # type: ignore[arg-type]
