"""The arrivals of one function that are expected, minute by minute."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
