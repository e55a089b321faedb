"""
What the worker of a GPU instance reports: what happened over its intervals, by its counter (counter.py) and with noise.
"""

import math
from collections.abc import Sequence

import numpy as np

from lab.simulation.gpu import SimulatedGpu
from lab.simulation.world import World
from scheduler.policy.events import GpuReported
from smore.domain.loss import DEFAULT_BUDGET, JobLoss

#: The one revision that every function of a run has.
REVISION = 1


class Monitor:
    """``names`` and ``need_mib`` (of one instance) by function."""

    def __init__(self, world: World, seed: int, names: Sequence[str], need_mib: Sequence[float]) -> None:
        self._world, self._names, self._need_mib = world, names, need_mib
        self._random = np.random.default_rng([seed, 2])
        self._noises: list[float] = []
        self._seed = seed

    def noisy(self) -> float:
        """A standard normal draw: all noise of measurements, in the order in which they are made."""
        if not self._noises:
            self._noises = self._random.standard_normal(4096).tolist()
        return self._noises.pop()

    def report(self, gpu: SimulatedGpu, now: float) -> GpuReported:
        """
        What its monitor saw: utilisation over the time since the last report of a whole interval, the job over
        ``job_window_s``.
        """
        world, spec, window = self._world, gpu.spec, gpu.window
        if now - window[-1][0] >= 0.8 * world.monitor_s:
            window.append((now, gpu.slow_s, gpu.alive_s, gpu.busy_s, gpu.function_s))
            while len(window) > 2 and now - window[1][0] >= world.job_window_s:
                window.popleft()
        last, before = window[-1], window[max(0, len(window) - 2)]
        span = last[2] - before[2]
        training = gpu.contention.training
        wrong = world.reading(spec, training.u, self._seed) / training.u if training is not None else 1.0
        noise = 1.0
        if span > 0:
            noise = 1.0 + world.monitor_noise * self.noisy()
            busy, part = (last[3] - before[3]) / span, (last[4] - before[4]) / span
        else:
            busy, part = gpu.state[1], gpu.state[2]
        # The counter reads the training as wrongly as it did when it was profiled.
        busy = min(1.0, max(0.0, ((busy - part) * wrong + part) * noise))
        part = min(busy, max(0.0, part * noise))
        degradation = None
        whole = last[2] - window[0][2]
        if training is not None and whole > 0:
            iterations = max(1.0, whole / training.seconds)
            noise = math.exp(world.interference_model.noise * self.noisy() / math.sqrt(iterations))
            degradation = (last[1] - window[0][1]) / whole * noise - 1.0
        names, need = self._names, self._need_mib
        return GpuReported(
            gpu=spec.name,
            boot=str(gpu.boot),
            at=now,
            slots=spec.slots,
            memory_total=spec.memory_mib,
            memory_used=spec.memory_mib - gpu.free_mib,
            memory_idle=sum(len(idle) * need[index] for index, idle in enumerate(gpu.idle) if idle),
            utilisation=busy,
            function_utilisation=part,
            jobs=int(training is not None),
            warm=[(names[index], REVISION, count) for index, count in enumerate(gpu.count) if count],
            loading=[(names[index], REVISION, count) for index, count in enumerate(gpu.loading) if count],
            idle=[
                (names[index], REVISION, need[index], now - since)
                for index, idle in enumerate(gpu.idle)
                for since in idle
            ],
            job_degradation=degradation,
            device=world.device(spec),
            sharing_mode=world.sharing_mode(spec),
            workloads=[world.workload(spec.training)] if spec.training is not None else [],
            closed=gpu.closed,
            stretches=[
                (names[index], REVISION, max(lasted))
                for index, lasted in enumerate(gpu.lasted)
                if lasted and world.closed_loop
            ],
            losses=self._losses(gpu),
        )

    def _losses(self, gpu: SimulatedGpu) -> list[JobLoss]:
        """The training's budget, and in the closed loop what its worker has measured of its iterations."""
        budget = gpu.spec.budget
        if gpu.contention.training is None or (budget is None and not self._world.closed_loop):
            return []
        job, budget = f"job-{gpu.spec.name}", DEFAULT_BUDGET if budget is None else budget
        if not self._world.closed_loop or gpu.probe is None:
            return [JobLoss(id=job, budget=budget)]
        return [gpu.probe.told(job, budget)]
