"""
Closed windows: short times in which no function runs, so that what functions cost the training is measured. What the
worker of a GPU instance does in its thread (worker/training/run_gate.py: Prober) on the simulated clock, with the
worker's own windows: so a policy is told of a training's speed what was measured of its iterations, and before the
first window nothing.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from smore.domain.loss import PROBE_MAX_S, ClosedWindow, JobLoss, Sample
from smore.domain.windows import Closing, Windows

#: Seconds between two looks for a window while it is not known when the next one is due.
LOOK_S: Final = 0.25


class Stage(IntEnum):
    """What an entry of the heap does to a window: look whether one is due, stop what still runs, open."""

    LOOK = 0
    STOP = 1
    OPEN = 2


class Probe:
    """
    Of one start of one training, from ``since`` on; ``share``: part of the time in which it is closed, 0 = never. The
    closing that is under way is number ``closings``, shut at ``shut_at``, quiet from ``quiet_at`` on (None: not yet).
    """

    def __init__(self, seed: str, share: float, since: float) -> None:
        self._windows = Windows(seed=seed, share=share, longest_s=PROBE_MAX_S, since=since)
        self.closings, self.shut_at, self.length_s = 0, 0.0, 0.0
        self.quiet_at: float | None = None
        #: Until when the window before needs open time after it.
        self._clear_at = 0.0
        self._told: tuple[Sample | None, Sample | None, Sequence[ClosedWindow]] = None, None, ()

    def take(self, now: float, iterations: list[tuple[float, float, bool]]) -> None:
        """Count these iterations, as (end, seconds, whether a function was at work), and empty the list."""
        for iteration in iterations:
            self._windows.add(*iteration)
        iterations.clear()
        self._windows.settle(now)

    def sum_up(self) -> None:
        """What :meth:`told` says from now on."""
        self._told = self._windows.recent, self._windows.reference, self._windows.fresh()

    def told(self, job: str, budget: float) -> JobLoss:
        """What a report says of the training."""
        recent, closed, windows = self._told
        return JobLoss(id=job, budget=budget, recent=recent, closed=closed, windows=windows)

    def wait_s(self, now: float) -> float:
        """Seconds until the next window, at most 0 = it is due; or until the next look for it."""
        due = self._windows.due(now)
        return LOOK_S if due is None else max(due, self._clear_at + self._windows.side_s) - now

    def shut(self, now: float) -> None:
        self.closings, self.shut_at, self.quiet_at = self.closings + 1, now, None
        self.length_s = self._windows.length_s or 0.0

    def over(self, now: float) -> bool:
        """Whether it has been quiet for long enough, or never was in time."""
        return self.quiet_at is None or now >= self.quiet_at + self.length_s

    def open(self, now: float) -> None:
        self._clear_at = 2 * now - self.shut_at + self.length_s
        self._windows.closed(Closing(shut=self.shut_at, quiet=self.quiet_at, opened=now))


def lengths(seconds: float, noise: float, seed: int, index: int) -> Iterator[float]:
    """
    The work of one iteration after the other, seconds alone: the same for every policy. ``noise``: standard deviation of
    its logarithm.
    """
    random = np.random.default_rng([seed, 8, index])
    while True:
        yield from (seconds * np.exp(noise * random.standard_normal(1024))).tolist()
