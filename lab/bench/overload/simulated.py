"""
The points of ``lab.bench.overload`` under the policy in the simulator: the same arrivals, functions, deadlines and
trainings.

The world is the preset ``overload`` (admission gate, closed windows, an interference model fitted to measured rows)
with the run times, the network time and the slowdown factor of the calibration and the leader's degradation table
(``lab/research/compare/live.py``). Nothing is fitted to the points that it is compared with.

Figures of both sides (:data:`SHARED`): ``refused`` over submitted; ``met`` over admitted; ``goodput``: met per second;
``harvest``: solo seconds of the met, per second; ``loss``: iteration time with the run gate open over that with it
closed, minus one, mean of the trainings.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from lab.research.compare.live import Calibration, calibrated_world, fitted_slowdown
from lab.simulation import policies
from lab.simulation.result import GPU_COLUMNS, REFUSED, SUCCEEDED
from lab.simulation.simulator import simulate
from lab.simulation.traces import Trace
from lab.simulation.world import World, load

if TYPE_CHECKING:
    from lab.bench.overload.points import Point

SHARED: Final = ("refused", "met", "goodput", "harvest", "loss")
POLICY: Final = "smore-product"
#: The policy under which the calibration was measured.
CALIBRATED_WITH: Final = "smore-product:budget_rule=none"
_ALIVE, _WORK = (GPU_COLUMNS.index(name) for name in ("alive_s", "work_s"))


def replay(points: Sequence["Point"], calibration: Calibration) -> list[dict[str, float]]:
    """For each point the figures of :data:`SHARED`, mean of its turns, its ``rate`` and the slowdown factor (``drag``)."""
    world = next(iter(load("overload").worlds.values()))
    drag = fitted_slowdown(world, calibration, CALIBRATED_WITH)
    here = calibrated_world(world, calibration, drag)
    rows = []
    for point in points:
        turns = [_simulated(here, point, due, function, calibration) for due, function in point.arrivals]
        rows.append({name: fmean(turn[name] for turn in turns) for name in SHARED} | {"rate": point.rate, "drag": drag})
    return rows


def _simulated(
    world: World, point: "Point", due: NDArray[np.float64], function: NDArray[np.int64], calibration: Calibration
) -> dict[str, float]:
    names = list(calibration.deadline_s)
    trace = Trace(
        name=f"{point.rate:.1f}/s",
        functions=tuple(names),
        duration_s=float(due.max()) + 0.1,
        arrival_s=due,
        function=function,
        rows=np.zeros(len(due), np.int64),
        factor=np.full(len(due), np.nan),
        deadline_s=np.array(list(calibration.deadline_s.values()))[function],
    )
    result = simulate(world, trace, policies.factory(POLICY), seed=0, table=calibration.table, name=POLICY)
    counted = result.arrival_s >= due.max() - point.seconds
    met = counted & (result.status == SUCCEEDED) & (result.end_s <= result.deadline_s)
    refused = counted & (result.status == REFUSED)
    # The mean over all time; in closed windows nothing is lost.
    lost = result.gpus[:, _ALIVE] / result.gpus[:, _WORK] - 1.0
    alone = np.array([calibration.solo_s[name] for name in result.functions])
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
    ``replay_error.<figure>`` and ``replay_spearman.<figure>`` over the points where the figure was measured, and
    ``replay_drag``, the slowdown factor.
    """
    ours = [measured(point) for point in points]
    named = {"replay_drag": simulated[0]["drag"]}
    for name in SHARED:
        pairs = [
            (point[name], row[name]) for point, row in zip(ours, simulated, strict=True) if math.isfinite(point[name])
        ]
        if not pairs:
            continue
        named[f"replay_error.{name}"] = fmean(abs(live - predicted) for live, predicted in pairs)
        if all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            named[f"replay_spearman.{name}"] = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return named
