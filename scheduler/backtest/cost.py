"""
What a forecaster would have cost: the platform's own rule replayed behind its forecasts, and the price of that.

The judge of ``ml/forecast/choice.py``, live and in the evaluation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.backtest.instances import Setup, Workload, score
from scheduler.policy.kernel import Floats
from scheduler.policy.prewarm import kernel
from scheduler.policy.prewarm.kernel import COLDS, IDLE_S, LOADING_S, PRICED

Bools = NDArray[np.bool_]
#: (trace, rule, seed, first minute that is scored, functions) → tally [F, FIELDS]: ``instances.score``, or one that
#: keeps what it made.
Replay = Callable[[Workload, Setup, int, int, Bools | None], Floats]

#: Of the priced rule where nobody says otherwise: see ``scheduler/policy/prewarm/priced.py``.
PRIOR: Final = 1.0
TAIL: Final = 0.3


def waste_s(tally: Floats) -> Floats:
    """Seconds loaded and not at work."""
    return np.asarray(tally[..., LOADING_S] + tally[..., IDLE_S])


def cost(tally: Floats, work: Workload, price_gb_s: float) -> Floats:
    """[F]: GB-seconds, a cold start at its price."""
    return np.asarray(tally[:, COLDS] * price_gb_s + waste_s(tally) * work.memory_gb)


def priced(name: str, work: Workload, price_gb_s: float, ahead: tuple[Floats, Floats] | None) -> Setup:
    """The platform's rule; ``ahead``: mean and chance [F, T] of forecasts it goes by, None: by the gaps alone."""
    price_s = price_gb_s / work.memory_gb
    alone = Setup(name=name, how=PRICED, knobs=(PRIOR, TAIL), price_s=price_s)
    if ahead is None:
        return alone
    base, told = kernel.wanted(ahead[1], ahead[0], price_s, work.load_s, work.run_s)
    return replace(alone, base=base, told=told)


class Backtest:
    """
    ``begin``: the first minute of ``work`` that is judged; what lies before is lived through. Arrivals are those of
    seed 0.
    """

    def __init__(self, work: Workload, begin: int, price_gb_s: float, replay: Replay = score) -> None:
        self._work, self._begin, self._price_gb_s, self._replay = work, begin, price_gb_s, replay

    def __call__(self, ahead: tuple[Floats, Floats] | None, only: Bools) -> Floats:
        """
        [F] GB-seconds; of forecasts [F, T'] the minutes of ``work`` count. Functions that are not in ``only`` cost
        nothing.
        """
        minutes = self._work.counts.shape[1]
        cut = None if ahead is None else (ahead[0][:, :minutes], ahead[1][:, :minutes])
        setup = priced("backtest", self._work, self._price_gb_s, cut)
        return cost(self._replay(self._work, setup, 0, self._begin, only), self._work, self._price_gb_s)
