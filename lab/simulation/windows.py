"""Closed windows: short times in which nothing may start, so that what functions cost the training is measured."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from lab.simulation.gpu import SimulatedGpu
from lab.simulation.world import World
from scheduler.policy.budget.controller import between
from smore.domain.loss import WINDOW_ITERATIONS, Window, window_s

#: How far back the work of a training is kept, for windows that are reported late, seconds.
WORKED_S: Final = 60.0


class Windows:
    """``noisy``: a standard normal draw, shared with the monitor's reports."""

    def __init__(self, world: World, seed: int, noisy: Callable[[], float]) -> None:
        self._world, self._noisy = world, noisy
        self._random = np.random.default_rng([seed, 3])

    def measured(self, gpu: SimulatedGpu) -> bool:
        """Whether windows close there: something trains, and the world asks for them."""
        return bool(self._world.probe_share) and gpu.contention.training is not None

    def gap_s(self, gpu: SimulatedGpu) -> float:
        """Open time until the next window: exponential, so that no period is met."""
        share = self._world.probe_share
        return float(self._random.exponential(self.window_s(gpu) * (1.0 - share) / share))

    def window_s(self, gpu: SimulatedGpu) -> float:
        """How long a window there is closed, seconds."""
        assert gpu.contention.training is not None
        return window_s(gpu.contention.training.seconds)

    def settle(self, gpu: SimulatedGpu, now: float) -> None:
        """
        What a window shows, as soon as the work after it is done (worker/training/windows.py): the closed iterations
        as if nothing had run, those beside it by the work that was done then, all with the noise of their means.
        """
        training, count = gpu.contention.training, WINDOW_ITERATIONS
        assert training is not None
        gpu.worked.append((now, gpu.work_s))
        while len(gpu.worked) > 2 and gpu.worked[1][0] < now - WORKED_S:
            gpu.worked.popleft()
        while gpu.windows:
            closed_at, opened_at = gpu.windows[0]
            length = opened_at - closed_at
            if now < opened_at + 2 * length:
                return
            gpu.windows.popleft()
            if closed_at - 2 * length < gpu.worked[0][0]:
                continue
            sides = [(closed_at - 2 * length, closed_at - length), (opened_at + length, opened_at + 2 * length)]
            before, after = (
                length / max(1e-9, between(gpu.worked, end) - between(gpu.worked, begin)) for begin, end in sides
            )
            spread = self._world.interference_model.noise / math.sqrt(count)
            means = [training.seconds * slow * math.exp(spread * self._noisy()) for slow in (before, 1.0, after)]
            gpu.reported_windows.append(
                Window(
                    start=closed_at,
                    end=opened_at,
                    before_s=means[0],
                    before_n=count,
                    closed_s=means[1],
                    closed_n=count,
                    closed_sd=self._world.interference_model.noise * training.seconds,
                    after_s=means[2],
                    after_n=count,
                )
            )
