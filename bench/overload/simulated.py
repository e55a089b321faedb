"""
The points of ``bench.overload`` under the policy once more, in the simulator: the same arrivals, functions, deadlines
and trainings.

The world is the preset ``overload`` (gate, closed windows, truth fitted to measured rows) with calibration's times
alone, hop and drag put in and the degradation table that the leader had (``research/compare/live.py``). Nothing is
fitted to the points it is held against.

What both sides mean: ``refused`` by the gate, over submitted; ``met`` over let in; ``goodput`` met per second;
``harvest``: the seconds alone of what was met, per second; ``loss``: added iteration time with the gate open over that
with it closed, mean of the trainings.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from research.compare.live import Calibration, calibrated_world, fitted_slowdown
from scheduler.simulation import policies
from scheduler.simulation.result import GPU_COLUMNS, REFUSED, SUCCEEDED
from scheduler.simulation.simulator import simulate
from scheduler.simulation.traces import Trace
from scheduler.simulation.world import World, load

if TYPE_CHECKING:
    from bench.overload.points import Point

SHARED: Final = ("refused", "met", "goodput", "harvest", "loss")
POLICY: Final = "smore-product"
#: With which the looks of calibration were taken.
CALIBRATED_WITH: Final = "smore-product:budget_rule=none"
_ALIVE, _WORK = (GPU_COLUMNS.index(name) for name in ("alive_s", "work_s"))


def replay(points: Sequence["Point"], found: Calibration) -> list[dict[str, float]]:
    """One row of :data:`SHARED` for each point, the mean of its turns, and the ``rate`` and ``drag``."""
    world = next(iter(load("overload").worlds.values()))
    drag = fitted_slowdown(world, found, CALIBRATED_WITH)
    here = calibrated_world(world, found, drag)
    told = []
    for point in points:
        turns = [_simulated(here, point, due, function, found) for due, function in point.arrivals]
        told.append({name: fmean(one[name] for one in turns) for name in SHARED} | {"rate": point.rate, "drag": drag})
    return told


def _simulated(
    world: World, point: "Point", due: NDArray[np.float64], function: NDArray[np.int64], found: Calibration
) -> dict[str, float]:
    names = list(found.deadline_s)
    trace = Trace(
        name=f"{point.rate:.1f}/s",
        functions=tuple(names),
        duration_s=float(due.max()) + 0.1,
        arrival_s=due,
        function=function,
        rows=np.zeros(len(due), np.int64),
        factor=np.full(len(due), np.nan),
        deadline_s=np.array(list(found.deadline_s.values()))[function],
    )
    result = simulate(world, trace, policies.factory(POLICY), seed=0, table=found.table, name=POLICY)
    counted = result.arrival_s >= due.max() - point.seconds
    met = counted & (result.status == SUCCEEDED) & (result.end_s <= result.deadline_s)
    refused = counted & (result.status == REFUSED)
    # Over all the time; nothing is lost in closed windows.
    lost = result.gpus[:, _ALIVE] / result.gpus[:, _WORK] - 1.0
    alone = np.array([found.solo_s[name] for name in result.functions])
    return {
        "refused": float(refused.sum() / counted.sum()),
        "met": float(met.sum() / max(1, (counted & ~refused).sum())),
        "goodput": float(met.sum() / point.seconds),
        "harvest": float(alone[result.function[met]].sum() / point.seconds),
        "loss": float(lost.mean()) / (1.0 - world.probe_share),
    }


def measured(point: "Point") -> dict[str, float]:
    losses = [loss.mean for loss in point.losses.values() if loss is not None]
    return {
        "refused": point.refused / point.submitted,
        "met": point.met / point.admitted,
        "goodput": point.goodput.value,
        "harvest": point.harvest.value,
        "loss": fmean(losses) if losses and len(losses) == len(point.losses) else math.nan,
    }


def figures(points: Sequence["Point"], simulated: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """
    ``replay_error.<figure>``, ``replay_spearman.<figure>`` over the points where it was measured, and ``replay_drag``.
    """
    ours = [measured(point) for point in points]
    found = {"replay_drag": simulated[0]["drag"]}
    for name in SHARED:
        pairs = [
            (one[name], other[name]) for one, other in zip(ours, simulated, strict=True) if math.isfinite(one[name])
        ]
        if not pairs:
            continue
        found[f"replay_error.{name}"] = fmean(abs(one - other) for one, other in pairs)
        if all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            found[f"replay_spearman.{name}"] = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return found
