"""The rules that an evaluation compares: settings of HHP and LSTH, and the paper's rule behind a forecaster."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml.forecast.choice import Ahead
from scheduler.backtest.instances import Setup, Workload
from scheduler.policy.prewarm.kernel import (
    HISTOGRAM,
)
from scheduler.policy.prewarm.ls_lstm import instances_for, requests_of


def histogram(
    name: str, gamma: float, *, head: float = 5.0, tail: float = 99.0, range_minutes: int = 240, stand_in: bool = False
) -> Setup:
    """The rule HHP (``gamma`` = 1) or LSTH."""
    return Setup(
        name=name, how=HISTOGRAM, knobs=(gamma, head, tail, 0.1, 10, 2.0, 0.5, float(stand_in), range_minutes, 1440, 60)
    )


def lsth_grid() -> list[Setup]:
    """The settings of LSTH that are tried, the published one first."""
    grid = [histogram("lsth", 0.5)]
    for tail in (99.0, 90.0):
        for range_minutes in (240, 60, 20):
            for stand_in in (False, True):
                for gamma in (0.3, 0.7):
                    name = f"lsth {gamma:g} 5/{tail:g} {range_minutes} min{' stand-in' if stand_in else ''}"
                    grid.append(histogram(name, gamma, tail=tail, range_minutes=range_minutes, stand_in=stand_in))
    return grid[:1] + [setup for setup in grid[1:] if setup.knobs != grid[0].knobs]


def counted(name: str, work: Workload, ahead: Ahead, quantile: float | None = None) -> Setup:
    """The paper's rule behind a forecaster; ``quantile``: see ``scheduler.policy.prewarm.ls_lstm.requests_of``."""
    mean = np.nan_to_num(ahead[0])
    requests = np.vectorize(lambda one: requests_of(one, quantile), otypes=[np.int64])(mean)
    base = np.zeros(requests.shape, np.int64)
    for function in range(len(requests)):
        for minute in np.flatnonzero(requests[function]):
            base[function, minute] = instances_for(int(requests[function, minute]), float(work.run_s[function]))
    return Setup(name=name, base=base, close=requests)


def cut(setup: Setup, minutes: int) -> Setup:
    """The setup for the first ``minutes`` of a trace."""

    def first(counts: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        return None if counts is None else counts[:, :minutes]

    return replace(
        setup,
        base=first(setup.base),
        close=first(setup.close),
        told=first(setup.told),
        others=tuple(cut(other, minutes) for other in setup.others),
    )
