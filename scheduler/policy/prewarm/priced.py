"""
The rule of this platform: an idle instance is held while that costs less than the cold start it may save.

One price says what a cold start is worth, in GB-seconds of held memory; over a function's memory it is ``price_s``, the
seconds for which one of its instances may stand idle to save one cold start. For each level (the n-th instance at once)
the gaps between its work are counted by age. Their hazard, the chance that a gap of this age ends in the next bin,
decides by dynamic programming over the ages

    loaded:  L(b) = min( q_b w_b / 2 + (1 - q_b) (w_b + L(b + 1)),  U(b) )
    gone:    U(b) = min( q_b (price_s + load_s) + (1 - q_b) U(b + 1),  load_s + L(b) )

in which windows after a level fell idle it is held: for w_b seconds of bin b, with the load's own seconds counted as
waste. It is exact for gaps that are independent. A load begins a cold start before its window. Where few gaps are
known, a hazard that falls with the age (Pareto, exponent ``tail``) stands in with the weight of ``prior`` gaps.

Where the caller gives a forecast (it does so only where one has been better than the gaps in this function's backtest),
a minute is held if its chance of a request outweighs its seconds, and the windows end within a minute.
"""

import math
from collections.abc import Sequence
from typing import Final

from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm import kernel
from scheduler.policy.prewarm.fixed import Levels
from scheduler.policy.prewarm.window import WarmWindow
from smore.domain.prewarming import OWN

MINUTE_S: Final = 60.0


class Priced:
    """
    ``price_gb_s``: GB-seconds of idle memory that a cold start is worth; ``memory_gb``, ``load_s``, ``run_s``: of one
    instance, its cold start and a warm run; ``prior``, ``tail``: what is believed before gaps are known (see the
    module).
    """

    def __init__(
        self,
        *,
        price_gb_s: float,
        load_s: float,
        run_s: float,
        memory_gb: float = 1.0,
        prior: float = 1.0,
        tail: float = 0.3,
    ) -> None:
        for name, value in (("price_gb_s", price_gb_s), ("load_s", load_s), ("run_s", run_s)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}: a number of at least 0 is expected")
        for name, value in (("memory_gb", memory_gb), ("prior", prior), ("tail", tail)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: a number above 0 is expected")
        self._prices = (price_gb_s / memory_gb, load_s)
        self._beliefs = (prior, tail)
        self._run_s = run_s
        self._gaps, self._totals, self._windows = kernel.no_gaps(price_gb_s / memory_gb, load_s, prior, tail)
        self._levels = Levels()
        #: When each level fell idle; NaN while it is at work or before it ever was.
        self._since = [math.nan]
        self._busy = 0
        self._forecasts: list[WarmWindow] = []
        self._forecast_until = -math.inf

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        self._busy += 1
        if self._busy > len(self._since):
            self._since.append(math.nan)
        since = self._since[self._busy - 1]
        if not math.isnan(since):
            kernel.count_gap(self._gaps, self._totals, kernel.group_of(self._busy), max(0.0, at - since))
            self._since[self._busy - 1] = math.nan
        return None

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        level = busy + 1
        self._since += [math.nan] * (level - len(self._since))
        for index in range(busy, max(level, self._busy)):
            self._since[index] = at
        self._busy = busy
        group = kernel.group_of(level)
        kernel.replan(self._gaps, self._totals, self._windows, group, *self._prices, *self._beliefs)
        self._levels.fell_idle(at, level, self._windows_of(group, at < self._forecast_until))
        return self._holds(at, busy)

    def _windows_of(self, group: int, forecast: bool) -> list[tuple[float, float]]:
        return [kernel.level_window(self._windows, group, which, forecast) for which in range(kernel.WINDOWS)]

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        before = self._forecasts
        self._forecast_until = -math.inf
        # The minute after this one too, so that a load may begin before it does; what is said of it then takes its
        # place.
        self._forecasts = [
            hold for hold in (self._held(begin, forecast) for begin in (at, at + MINUTE_S)) if hold is not None
        ]
        if not before and not self._forecasts:
            return None
        return self._holds(at, self._busy)

    def _held(self, begin: float, forecast: Forecast | None) -> WarmWindow | None:
        """What a forecast is worth in the minute from ``begin``."""
        if forecast is None or forecast.source == OWN:
            return None
        chance, mean = forecast.chance(begin), forecast.expected(begin)
        if math.isnan(chance) or math.isnan(mean):
            return None
        if self._forecast_until == -math.inf:
            self._forecast_until = begin + MINUTE_S
        wanted = kernel.minute_wanted(chance, mean, *self._prices, self._run_s)
        return WarmWindow(from_at=begin, until_at=begin + MINUTE_S, instances=wanted) if wanted else None

    def _holds(self, at: float, busy: int) -> list[WarmWindow]:
        return [hold for hold in self._forecasts if hold.until_at > at] + self._levels.holds(at, busy)
