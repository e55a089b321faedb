"""
Chooses the source of each function's forecasts: the forecaster with the least cost in a rolling backtest, or the
function's own gaps.

The live platform (``ml/forecast/foresight.py``) and the evaluation (``lab/research/prewarm/cases.py``) use the same rule. A
judge computes the cost; the platform's judge replays its own prewarm rule on the forecasts
(``scheduler/backtest/cost.py``). Own gaps are a keep-alive with a learned length, and seasonal-naive is one of
the forecasters, so a chosen forecaster has beaten both.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.forecast.forecaster import Floats
from smore.domain.prewarming import OWN

Bools = NDArray[np.bool_]
#: Forecasts one minute ahead: ``mean`` and ``any`` [F, T]; NaN = no forecast.
Ahead = tuple[Floats, Floats]

#: Share by which a forecaster must cost less than the own gaps.
BETTER: Final = 0.02
#: Mean requests a minute above which no forecaster is tried: a forecast by the minute does not help within a second.
DENSEST: Final = 30.0


class Judge(Protocol):
    """A rolling backtest: each minute is decided by the forecast that earlier minutes gave for it."""

    def __call__(self, ahead: Ahead | None, only: Bools) -> Floats:
        """Cost [F] of following these forecasts (None: the own gaps) for the functions of the mask ``only`` [F]."""
        ...


def choose(ahead: Mapping[str, Ahead], counts: Floats, judge: Judge) -> list[str]:
    """
    For each function of ``counts`` [F, T], requests per minute (NaN = not counted): a forecaster's name or ``gaps``.
    """
    counted = np.isfinite(counts)
    light = np.where(counted, counts, 0.0).sum(axis=1) <= DENSEST * counted.sum(axis=1)
    names = [OWN, *ahead]
    costs = np.stack([judge(None, light), *(judge(forecasts, light) for forecasts in ahead.values())])
    costs[0] *= 1.0 - BETTER
    return [names[index] for index in np.where(light, np.argmin(costs, axis=0), 0)]
