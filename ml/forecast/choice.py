"""
Who foresees a function: the forecaster by which it would have cost least in a rolling backtest, or nobody but its own
gaps.

One rule for the live platform (``ml/forecast/foresight.py``) and for the evaluation (``research/prewarm/cases.py``).
What a forecaster would have cost is a judge's word; the platform's replays its own rule behind the forecasts
(``scheduler/simulation/backtest.py``). Going by the gaps alone is a keep-alive whose length was learned, and
seasonal-naive is one of the forecasters, so that what is chosen has beaten both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.forecast.forecaster import Floats
from smore.messages.forecasts import OWN

Bools = NDArray[np.bool_]
#: One minute ahead: ``mean`` and ``any`` [F, T]; NaN: not forecast.
Ahead = tuple[Floats, Floats]

#: How much less a forecaster must cost than the gaps alone, as a share.
BETTER: Final = 0.02
#: Requests a minute, on average, beyond which no forecaster is tried: what a second brings is nothing that a minute's
#: number says.
DENSEST: Final = 30.0


class Judge(Protocol):
    """A backtest, rolling: each minute is decided by what was forecast for it from earlier ones."""

    def __call__(self, ahead: Ahead | None, only: Bools) -> Floats:
        """
        [F]: what going by these forecasts (None: by the gaps alone) would have cost each function of ``only`` [F].
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """
    ``sources`` [F]: a forecaster's name or ``gaps``. ``costs`` [F] of the gaps alone and of what was chosen, as the
    judge counts.
    """

    sources: list[str]
    alone: Floats
    chosen: Floats


def choose(ahead: Mapping[str, Ahead], counts: Floats, judge: Judge) -> Choice:
    """For each function of ``counts`` [F, T], requests per minute that are known (NaN: nobody counted)."""
    known = np.isfinite(counts)
    light = np.where(known, counts, 0.0).sum(axis=1) <= DENSEST * known.sum(axis=1)
    names = [OWN, *ahead]
    costs = np.stack([judge(None, light), *(judge(one, light) for one in ahead.values())])
    asked = costs.copy()
    asked[0] *= 1.0 - BETTER
    best = np.where(light, np.argmin(asked, axis=0), 0)
    return Choice(sources=[names[one] for one in best], alone=costs[0], chosen=costs[best, np.arange(len(best))])
