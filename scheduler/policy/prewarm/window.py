"""What every prewarming rule is told and what it answers: one interface for all of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

#: The source of a forecast that says: the function's own gaps foresee more than any forecaster; a rule goes by those.
OWN: Final = "gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmWindow:
    """
    At least ``instances`` instances should be loaded, at work or not, from ``from_at`` until before ``until_at`` (epoch
    seconds; inf = for ever). Whoever acts begins to load a cold start earlier than ``from_at``; what is more than is
    held and idle may go at once.
    """

    from_at: float
    until_at: float
    instances: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """
    Arrivals of one function in the minutes that begin at ``from_at`` + 60 k.

    ``mean`` [H]: expected arrivals in each; ``any`` [H]: chance of at least one, 0..1. NaN: nothing can be said.
    ``source``: the forecaster whose numbers these are, the one that was best in this function's backtest.
    """

    from_at: float
    mean: NDArray[np.float64]
    any: NDArray[np.float64]
    source: str = ""

    def expected(self, at: float) -> float:
        """
        Arrivals in the minute that ``at`` lies in; NaN where that is outside, or where the number is none (infinite,
        negative).
        """
        return _at(self, self.mean, at, math.inf)

    def chance(self, at: float) -> float:
        """Of at least one arrival in the minute that ``at`` lies in, 0..1; NaN as in :meth:`expected`."""
        return _at(self, self.any, at, 1.0)


def _at(forecast: Forecast, values: NDArray[np.float64], at: float, most: float) -> float:
    minute = math.floor((at - forecast.from_at) / 60.0 + 1e-9)
    if not 0 <= minute < len(values):
        return math.nan
    value = float(values[minute])
    return value if 0.0 <= value <= most and value < math.inf else math.nan


class PrewarmRule(Protocol):
    """
    The rule of one function. Each method answers with the holds from now on, which replace all that were said before;
    None = they stay.

    Times are epoch seconds and never decrease from call to call; a clock that jumps is straightened by the caller.
    """

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        """A request came."""
        ...

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        """
        An instance has ended its work and has none: ``instances`` are loaded and idle now, this one included; ``busy``
        are at work.
        """
        ...

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        """
        A minute begins. ``count`` arrivals came in the one before, None = nobody counted. ``forecast`` is None where
        there is none.
        """
        ...
