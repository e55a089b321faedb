"""
The offline upper bound: the most deadlines that any schedule can meet in a small case.

Every arrival, deadline and run time is known in advance. The search goes over all assignments of invocations to GPU
instances. Whether a set can be on time on one GPU instance is a linear programme over the time that each subset of it
runs between two releases or deadlines, at the speeds that the interference model gives the subset. Runs may be paused in it,
which no policy can do, so no schedule meets more deadlines. Load times, memory and slots limit as in the simulator;
failures and throttles do not.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Final

import numpy as np
from scipy.optimize import linprog

from lab.simulation.traces import Trace
from lab.simulation.world import Gpu, World, bad

#: Largest case; a search of larger ones takes too long.
MOST_INVOCATIONS: Final = 12
MOST_GPUS: Final = 4
#: Tolerance of the solver: milliseconds of work that may be missing.
_SLACK_MS: Final = 1e-3


def small(world: World, trace: Trace) -> bool:
    """Whether :func:`upper_bound` applies: few invocations, few GPU instances, one invocation in a batch."""
    single_rows = all(function.max_batch == 1 for function in world.functions)
    return 0 < len(trace) <= MOST_INVOCATIONS and len(world.gpus) <= MOST_GPUS and single_rows


def upper_bound(world: World, trace: Trace, seed: int) -> int:
    """
    The most deadlines that can be met, with the run times that ``simulate`` draws for this seed. Raises BadWorld if the
    case is not small.
    """
    if not small(world, trace):
        raise bad(
            "trace",
            f"at most {MOST_INVOCATIONS} invocations, {MOST_GPUS} GPU instances and one invocation a batch are"
            " expected",
        )
    order = np.argsort(trace.deadlines_in(world), kind="stable").tolist()
    instances: dict[tuple[object, ...], _GpuInstance] = {}
    by_gpu = []
    for gpu in world.gpus:
        kind = (gpu.sevenths, gpu.training, gpu.memory_mib, gpu.slots)
        if kind not in instances:
            instances[kind] = _GpuInstance(world, gpu, trace, seed)
        by_gpu.append(instances[kind])
    best = 0

    def search(position: int, assigned: tuple[frozenset[int], ...], count: int) -> None:
        nonlocal best
        best = max(best, count)
        if count + len(order) - position <= best:
            return
        tried = set()
        for index, instance in enumerate(by_gpu):
            if (id(instance), assigned[index]) in tried:
                continue
            tried.add((id(instance), assigned[index]))
            with_it = assigned[index] | {order[position]}
            if instance.feasible(with_it):
                search(position + 1, (*assigned[:index], with_it, *assigned[index + 1 :]), count + 1)
        search(position + 1, assigned, count)

    search(0, (frozenset(),) * len(by_gpu), 0)
    return best


class _GpuInstance:
    """One GPU instance: decides which sets of invocations can all be on time on it."""

    def __init__(self, world: World, gpu: Gpu, trace: Trace, seed: int) -> None:
        self._contention = world.contention(gpu)
        index = trace.index_in([function.name for function in world.functions])[trace.function].tolist()
        functions = [world.functions[number] for number in index]
        rows = trace.rows_in(world).tolist()
        self._kind = [
            self._contention.kind(function.model, size) for function, size in zip(functions, rows, strict=True)
        ]
        alone = np.array([self._contention.alone(kind).seconds for kind in self._kind])
        self._work_ms = 1e3 * alone * world.noise(len(trace), seed)
        # With known arrivals the load comes first, but no load can begin before the trace does.
        loaded = [0.0 if world.keep_warm or world.burst else world.load_s(function) for function in functions]
        self._release = np.maximum(trace.arrival_s, loaded) + world.dispatch_s
        self._deadline = trace.deadlines_in(world)
        self._function = index
        self._need = [world.memory_mib(function) for function in functions]
        self._free = gpu.memory_mib - world.training_mib(gpu)
        self._slots = gpu.slots
        self._answers: dict[frozenset[int], bool] = {}

    def feasible(self, chosen: frozenset[int]) -> bool:
        answer = self._answers.get(chosen)
        if answer is None:
            answer = self._answers[chosen] = all(self._on_time(part) for part in self._apart(chosen))
        return answer

    def _apart(self, chosen: frozenset[int]) -> list[list[int]]:
        """Groups of invocations whose spans from release to deadline do not overlap."""
        parts: list[list[int]] = []
        until = -np.inf
        for invocation in sorted(chosen, key=lambda invocation: float(self._release[invocation])):
            if self._release[invocation] >= until or not parts:
                parts.append([])
            parts[-1].append(invocation)
            until = max(until, float(self._deadline[invocation]))
        return parts

    def _together(self, active: Sequence[int]) -> bool:
        """Whether they may run at the same time: each needs a slot and memory for an instance."""
        counts = Counter(self._function[invocation] for invocation in active)
        need = {self._function[invocation]: self._need[invocation] for invocation in active}
        return (
            len(active) <= self._slots
            and sum(need[function] * count for function, count in counts.items()) <= self._free + 1e-6
        )

    def _on_time(self, part: list[int]) -> bool:
        times = sorted(
            {float(time) for invocation in part for time in (self._release[invocation], self._deadline[invocation])}
        )
        columns: list[tuple[int, list[tuple[int, float]]]] = []
        for interval, (begin, end) in enumerate(pairwise(times)):
            present = [
                invocation
                for invocation in part
                if self._release[invocation] <= begin and end <= self._deadline[invocation]
            ]
            for size in range(1, min(len(present), self._slots) + 1):
                for active in combinations(present, size):
                    if self._together(active):
                        _, slow = self._contention.slowdowns([self._kind[invocation] for invocation in active])
                        columns.append(
                            (
                                interval,
                                [
                                    (part.index(invocation), 1.0 / by)
                                    for invocation, by in zip(active, slow, strict=True)
                                ],
                            )
                        )
        spans = 1e3 * np.diff(times)
        n, width = len(part), len(columns)
        # Constraints: at most the span of each interval is used; work done and work missing add up to each invocation's
        # work. The objective is the missing work.
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
