"""
How many deadlines anybody could have met in a small case: the offline upper bound.

It knows every arrival, deadline and run time before the run begins. Searched are all assignments of invocations to GPU
instances; whether a set can be on time on one GPU instance is a linear programme over how long each subset of it runs
between two releases or deadlines, at the speeds that the ground truth gives that subset. That lets a run be paused,
which no policy can: so nothing that starts and stops runs in whatever way meets more, and what runs besides only slows
the others down. Loads, memory for instances and slots bind as they do in the simulator; failures and throttles do not.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Final

import numpy as np
from scipy.optimize import linprog  # type: ignore[import-untyped]

from scheduler.simulation.traces import Trace
from scheduler.simulation.world import Gpu, World, bad

#: Beyond these a search takes too long.
MOST_INVOCATIONS: Final = 12
MOST_GPUS: Final = 4
#: Milliseconds of work that may be missing: what the solver leaves.
_SLACK_MS: Final = 1e-3


def small(world: World, trace: Trace) -> bool:
    """Whether :func:`upper_bound` is for this case: few invocations, few GPU instances, one invocation in a batch."""
    one = all(function.max_batch == 1 for function in world.functions)
    return 0 < len(trace) <= MOST_INVOCATIONS and len(world.gpus) <= MOST_GPUS and one


def upper_bound(world: World, trace: Trace, seed: int) -> int:
    """
    The most deadlines that can be met, with the run times that ``simulate`` draws for this seed. Raises BadWorld where
    not small.
    """
    if not small(world, trace):
        raise bad(
            "trace",
            f"at most {MOST_INVOCATIONS} invocations, {MOST_GPUS} GPU instances and one invocation a batch are"
            " expected",
        )
    order = np.argsort(trace.deadlines_in(world), kind="stable").tolist()
    places: dict[tuple[object, ...], _Place] = {}
    on = []
    for gpu in world.gpus:
        alike = (gpu.sevenths, gpu.training, gpu.memory_mib, gpu.slots)
        if alike not in places:
            places[alike] = _Place(world, gpu, trace, seed)
        on.append(places[alike])
    best = 0

    def search(position: int, given: tuple[frozenset[int], ...], count: int) -> None:
        nonlocal best
        best = max(best, count)
        if count + len(order) - position <= best:
            return
        tried = set()
        for index, place in enumerate(on):
            if (id(place), given[index]) in tried:
                continue
            tried.add((id(place), given[index]))
            with_it = given[index] | {order[position]}
            if place.feasible(with_it):
                search(position + 1, (*given[:index], with_it, *given[index + 1 :]), count + 1)
        search(position + 1, given, count)

    search(0, (frozenset(),) * len(on), 0)
    return best


class _Place:
    """One GPU instance: which sets of invocations can all be on time there."""

    def __init__(self, world: World, gpu: Gpu, trace: Trace, seed: int) -> None:
        self._contention = world.contention(gpu)
        index = trace.index_in([function.name for function in world.functions])[trace.function].tolist()
        functions = [world.functions[one] for one in index]
        rows = trace.rows_in(world).tolist()
        self._kind = [
            self._contention.kind(function.model, size) for function, size in zip(functions, rows, strict=True)
        ]
        alone = np.array([self._contention.alone(kind).seconds for kind in self._kind])
        self._work_ms = 1e3 * alone * world.noise(len(trace), seed)
        # Who knows what comes has loaded it before; nothing can be loaded before the beginning.
        loaded = [0.0 if world.keep_warm or world.burst else world.load_s(function) for function in functions]
        self._release = np.maximum(trace.arrival_s, loaded) + world.dispatch_s
        self._deadline = trace.deadlines_in(world)
        self._function = index
        self._need = [world.memory_mib(function) for function in functions]
        self._free = gpu.memory_mib - world.training_mib(gpu)
        self._slots = gpu.slots
        self._known: dict[frozenset[int], bool] = {}

    def feasible(self, chosen: frozenset[int]) -> bool:
        found = self._known.get(chosen)
        if found is None:
            found = self._known[chosen] = all(self._on_time(part) for part in self._apart(chosen))
        return found

    def _apart(self, chosen: frozenset[int]) -> list[list[int]]:
        """Parts that no time connects."""
        parts: list[list[int]] = []
        until = -np.inf
        for one in sorted(chosen, key=lambda one: float(self._release[one])):
            if self._release[one] >= until or not parts:
                parts.append([])
            parts[-1].append(one)
            until = max(until, float(self._deadline[one]))
        return parts

    def _together(self, active: Sequence[int]) -> bool:
        """Whether they may run at the same time: a slot each, and memory for an instance each."""
        counts = Counter(self._function[one] for one in active)
        need = {self._function[one]: self._need[one] for one in active}
        return (
            len(active) <= self._slots
            and sum(need[function] * count for function, count in counts.items()) <= self._free + 1e-6
        )

    def _on_time(self, part: list[int]) -> bool:
        times = sorted({float(time) for one in part for time in (self._release[one], self._deadline[one])})
        columns: list[tuple[int, list[tuple[int, float]]]] = []
        for interval, (begin, end) in enumerate(pairwise(times)):
            there = [one for one in part if self._release[one] <= begin and end <= self._deadline[one]]
            for size in range(1, min(len(there), self._slots) + 1):
                for active in combinations(there, size):
                    if self._together(active):
                        _, slow = self._contention.slowdowns([self._kind[one] for one in active])
                        columns.append(
                            (interval, [(part.index(one), 1.0 / by) for one, by in zip(active, slow, strict=True)])
                        )
        spans = 1e3 * np.diff(times)
        n, width = len(part), len(columns)
        # At most the span of each interval is used; what is done and what is missing make up each one's work; little
        # may be missing.
        limits = np.zeros((len(spans) + n, width + n))
        for column, (interval, speeds) in enumerate(columns):
            limits[interval, column] = 1.0
            for row, speed in speeds:
                limits[len(spans) + row, column] = -speed
        limits[len(spans) :, width:] = -np.eye(n)
        bounds = np.concatenate([spans, -self._work_ms[part]])
        cost = np.concatenate([np.zeros(width), np.ones(n)])
        solved = linprog(cost, A_ub=limits, b_ub=bounds, method="highs")
        return bool(solved.success) and float(solved.fun) <= _SLACK_MS
