"""The warm instances of a run: how many a world keeps on each GPU instance, and how memory is made for more."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lab.simulation.gpu import SimulatedGpu
from lab.simulation.world import World

Floats = NDArray[np.float64]


class WarmPool:
    """
    ``need_mib``: memory of one instance, by function; ``busy_s`` [F]: work of the trace alone, of ``duration_s``
    seconds.
    """

    def __init__(
        self,
        world: World,
        gpus: Sequence[SimulatedGpu],
        need_mib: Sequence[float],
        busy_s: Floats,
        duration_s: float,
    ) -> None:
        self._world, self._gpus, self._need_mib = world, gpus, need_mib
        #: Instances of each function that are kept on each GPU instance [N][F].
        self.sizes = self._sized(busy_s, duration_s)

    def _sized(self, busy_s: Floats, duration_s: float) -> list[list[int]]:
        """
        Instances of each function that are to be warm on each GPU instance [N][F], as the world's ``keep_warm``,
        ``warm_share`` and ``burst`` say.

        Every function has one somewhere, the largest first, where most memory is left; unless there is no room for one
        of each. Then each GPU instance has as many of each as are wanted, those with the most work for their memory
        first. What does not fit is passed over.
        """
        world, n, functions = self._world, len(self._gpus), len(self._need_mib)
        load = busy_s / max(duration_s, 1e-9)
        share = [max(world.keep_warm, math.ceil(world.burst * work / n)) for work in load.tolist()]
        room = [world.warm_share * gpu.free_mib for gpu in self._gpus]
        left = room.copy()
        counts = [[0] * functions for _ in range(n)]

        def place(row: int, function: int) -> None:
            if counts[row][function] < share[function] and self._need_mib[function] <= left[row]:
                counts[row][function] += 1
                left[row] -= self._need_mib[function]

        each = [function for function in range(functions) if share[function] and self._need_mib[function] <= max(room)]
        for function in sorted(each, key=lambda function: -self._need_mib[function]):
            place(max(range(n), key=left.__getitem__), function)
        if sum(map(sum, counts)) < len(each):
            counts[:], left[:] = [[0] * functions for _ in range(n)], room
        for function in sorted(range(functions), key=lambda function: -load[function] / self._need_mib[function]):
            for row in range(n):
                for _ in range(share[function]):
                    place(row, function)
        return counts

    def missing(self, gpu: SimulatedGpu) -> list[int]:
        """Functions of which instances are missing there, once for each."""
        wanted = self.sizes[gpu.index]
        return [function for function, count in enumerate(gpu.count) for _ in range(wanted[function] - count)]

    def preload(self, gpu: SimulatedGpu) -> None:
        """Its instances stand already: at the beginning, and when a GPU instance comes back."""
        for function in self.missing(gpu):
            gpu.free_mib -= self._need_mib[function]
            gpu.count[function] += 1
            gpu.instances += 1
            gpu.idle[function].append(gpu.at)

    def trim(self, gpu: SimulatedGpu, now: float) -> bool:
        """Offload what has been idle for longer than its keep-alive; returns whether anything was."""
        changed = False
        for index, function in enumerate(self._world.functions):
            idle = gpu.idle[index]
            while (
                function.keep_alive_s >= 0
                and idle
                and now - idle[0] > function.keep_alive_s
                and gpu.count[index] > max(self.sizes[gpu.index][index], gpu.kept(index, now))
            ):
                self.offload(gpu, index)
                changed = True
        return changed

    def shrink(self, gpu: SimulatedGpu, function: int, keep: int, now: float) -> None:
        """Offload idle instances of a function until ``keep`` are left, and keep no more of them than that."""
        gpu.advance(now)
        instances, until = gpu.leased.get(function, (0, 0.0))
        gpu.leased[function] = (min(instances, keep), until)
        while gpu.idle[function] and gpu.count[function] > keep:
            self.offload(gpu, function)

    def make_room(self, gpu: SimulatedGpu, function: int, now: float) -> bool:
        """Memory for one more instance, if need be by offloading idle ones, least recently used first."""
        need = self._need_mib[function]
        if gpu.free_mib + sum(len(idle) * self._need_mib[other] for other, idle in enumerate(gpu.idle)) < need:
            return False
        gpu.advance(now)
        while gpu.free_mib < need:
            oldest = min((idle[0], other) for other, idle in enumerate(gpu.idle) if idle)
            self.offload(gpu, oldest[1])
        return True

    def offload(self, gpu: SimulatedGpu, function: int) -> None:
        """The longest idle instance of a function goes. The GPU instance must have been advanced to now."""
        gpu.idle[function].pop(0)
        gpu.count[function] -= 1
        gpu.instances -= 1
        gpu.free_mib += self._need_mib[function]
