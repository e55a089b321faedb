"""
What raw rows say over time: requests by second, utilisation, and each GPU instance for itself. Plain arrays for
pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.simulation.interference import mean_over_alone
from lab.simulation.result import GPU_COLUMNS, SUCCEEDED, Result
from lab.simulation.world import World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ALIVE, _SLOW, _BUSY, _SOLO = (GPU_COLUMNS.index(name) for name in ("alive_s", "slow_s", "busy_s", "training_u"))


def requests(result: Result, step_s: float = 1.0) -> tuple[Ints, Ints]:
    """(submitted, admitted) [bins] by arrival; admitted = dispatched at all."""
    edges = _edges(result, step_s)
    submitted, _ = np.histogram(result.arrival_s, edges)
    admitted, _ = np.histogram(result.arrival_s[result.attempts > 0], edges)
    return submitted, admitted


def admission(results: Sequence[Result], step_s: float) -> tuple[Floats, Floats]:
    """
    (shares [functions, bins], over the whole run [functions]) that were admitted, runs pooled; NaN where nothing was
    submitted.
    """
    edges = _edges(results[0], step_s)
    functions = len(results[0].functions)
    counts = np.zeros((2, functions, len(edges) - 1))
    for result in results:
        for function in range(functions):
            of = result.function == function
            counts[0, function] += np.histogram(result.arrival_s[of], edges)[0]
            counts[1, function] += np.histogram(result.arrival_s[of & (result.attempts > 0)], edges)[0]

    def share(sent: Floats, of: Floats) -> Floats:
        return np.asarray(np.divide(sent, of, out=np.full(of.shape, np.nan), where=of > 0))

    return share(counts[1], counts[0]), share(counts[1].sum(axis=1), counts[0].sum(axis=1))


def degradations(result: Result) -> Floats:
    """Of every invocation that ran to its end: its run time over the mean alone, less one, ascending."""
    done = result.status == SUCCEEDED
    return np.sort(result.run_s[done] / (result.alone_s[done] * mean_over_alone(result.p99)) - 1.0)


def utilisation(world: World, result: Result, step_s: float) -> tuple[Floats, Floats]:
    """
    (with functions, exclusive) [bins]: mean over GPU instances of min(1, sum of demands), exact within the bins.

    From starts and ends alone, so attempts that came to nothing are not in it.
    """
    edges = _edges(result, step_s)
    shared, alone = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    ran = np.flatnonzero(~np.isnan(result.run_s))
    for index, gpu in enumerate(world.gpus):
        contention = world.contention(gpu)
        training = contention.training.u if contention.training is not None else 0.0
        batches: dict[tuple[float, float, int], int] = {}
        for one in ran[result.gpu[ran] == index].tolist():
            key = float(result.start_s[one]), float(result.end_s[one]), int(result.function[one])
            batches[key] = batches.get(key, 0) + int(result.rows[one])
        times, demands = [], []
        for (start, end, function), rows in batches.items():
            u = contention.alone(contention.kind(world.functions[function].model, rows)).u
            times += [start, end]
            demands += [u, -u]
        order = np.argsort(np.array(times), kind="stable")
        at = np.concatenate([[0.0], np.array(times)[order], [max(float(edges[-1]), max(times, default=0.0))]])
        level = training + np.concatenate([[0.0], np.cumsum(np.array(demands)[order])])
        # The integral at each edge: whole steps before it, and the part of the one it lies in.
        area = np.concatenate([[0.0], np.cumsum(np.minimum(1.0, level) * np.diff(at))])
        shared += np.diff(np.interp(edges, at, area)) / np.diff(edges)
        alone += min(1.0, training)
    return shared / len(world.gpus), alone / len(world.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """
    Of one GPU instance, as fractions: utilisation exclusive and with functions, degradation of the training and of the
    functions there (NaN: none), and the share of all submitted invocations that ran there.
    """

    exclusive: float
    shared: float
    training: float
    functions: float
    admitted: float


def by_gpu(result: Result) -> list[GpuFigures]:
    rows = []
    for index, row in enumerate(result.gpus):
        there = (result.gpu == index) & (result.status == SUCCEEDED)
        slow = result.run_s[there] / (result.alone_s[there] * mean_over_alone(result.p99)) - 1.0
        alive = float(row[_ALIVE])
        rows.append(
            GpuFigures(
                exclusive=min(1.0, float(row[_SOLO])),
                shared=float(row[_BUSY]) / alive if alive else np.nan,
                training=float(row[_SLOW]) / alive - 1.0 if alive and row[_SOLO] > 0 else np.nan,
                functions=float(slow.mean()) if there.any() else np.nan,
                admitted=float(((result.gpu == index) & (result.attempts > 0)).mean()),
            )
        )
    return rows


def _edges(result: Result, step_s: float) -> Floats:
    duration = float(result.meta["duration_s"])
    return np.linspace(0.0, duration, max(1, round(duration / step_s)) + 1)
