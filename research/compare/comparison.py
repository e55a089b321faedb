"""
Policies x configurations x seeds, in parallel processes, paired: every policy meets the same trace, the same noise and
the same table.

A *cell* is one configuration with one seed and one world: all policies run in it, after the exclusive run. World 0 is
the preset's own; in worlds 1, 2, … every demand and exponent is drawn, and in :data:`CALM` nothing interferes. Cells
are independent, so the figures do not depend on how many processes there are.
"""

import csv
import gc
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from research.compare import claims
from research.compare.bound import small, upper_bound
from research.compare.claims import Judged
from scheduler.simulation import metrics, policies, traces
from scheduler.simulation.metrics import FIGURE_14, Interval
from scheduler.simulation.predictor import Belief, table
from scheduler.simulation.result import Result
from scheduler.simulation.simulator import simulate
from scheduler.simulation.world import Preset, World, load

#: Bounds of the factor on every demand and exponent of a changed world.
SPREAD: Final = (0.7, 1.3)
#: The world without interference.
CALM: Final = -1
#: What a small case is held against (bound.py): it is no policy.
BOUND: Final = "upper-bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    What to compare.

    ``worlds`` > 0: besides the preset's own truth so many with every demand and exponent drawn x U(0.7, 1.3), and one
    without interference, each with the first ``world_seeds`` seeds. ``truth`` (a name, '' = the preset's), ``factors``
    and ``interference`` change the truth of all runs. ``data``: folder of outside data. ``out``: where the raw rows of
    every run of the preset's own world are written, None: nowhere. ``trace`` overrides fields of the preset's trace.
    """

    preset: str
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    worlds: int = 0
    world_seeds: int = 1
    truth: str = ""
    factors: Mapping[str, float] = field(default_factory=dict)
    interference: bool = True
    predictor: Mapping[str, object] = field(default_factory=dict)
    trace: Mapping[str, object] = field(default_factory=dict)
    data: Path | None = None
    out: Path | None = None

    def load(self, world: int = 0) -> Preset:
        factors = dict(self.factors) | self.drawn(world)
        return load(self.preset, factors=factors, interference=self.interference and world != CALM, truth=self.truth)

    def drawn(self, world: int) -> dict[str, float]:
        """The factors of world 1, 2, …; the others have none."""
        if world <= 0:
            return {}
        names = varied(next(iter(load(self.preset, truth=self.truth).worlds.values())))
        factors = np.random.default_rng([world, 6]).uniform(*SPREAD, len(names))
        return {name: float(factor) * self.factors.get(name, 1.0) for name, factor in zip(names, factors, strict=True)}

    def cells(self) -> list["Cell"]:
        configurations = list(self.load().worlds)
        found = [Cell(configuration=name, seed=seed) for seed in self.seeds for name in configurations]
        for world in (CALM, *range(1, self.worlds + 1)) if self.worlds else ():
            found += [
                Cell(configuration=name, seed=seed, world=world)
                for seed in self.seeds[: self.world_seeds]
                for name in configurations
            ]
        return found


def varied(world: World) -> list[str]:
    """Every demand and exponent of a truth."""
    return [name for name in world.truth.knobs() if name in ("exponent", "growth") or name[:2] in ("u.", "b.")]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    world: int = 0
    seed: int
    configuration: str


#: Policy → metric → value, of one cell.
Row = Mapping[str, Mapping[str, float]]


def run_cell(plan: Plan, cell: Cell) -> tuple[Cell, Row, int]:
    """(cell, figures by policy, invocations simulated)."""
    preset = plan.load(cell.world)
    world = preset.worlds[cell.configuration]
    trace = traces.of(dict(preset.trace) | dict(plan.trace), world, cell.seed, data=plan.data)
    belief = table(world, Belief.of(dict(preset.predictor) | dict(plan.predictor)), cell.seed)
    exclusive = simulate(world, trace.none(), policies.factory(plan.policies[0]), seed=cell.seed, name="exclusive run")
    found: dict[str, Mapping[str, float]] = {}
    if small(world, trace):
        found[BOUND] = {"dsr": upper_bound(world, trace, cell.seed) / len(trace)}
    for name in plan.policies:
        result = quiet(partial(simulate, world, trace, policies.factory(name), seed=cell.seed, table=belief, name=name))
        found[name] = metrics.figures(result, exclusive)
        if plan.out is not None and not cell.world:
            result.write(plan.out / raw_name(cell, name))
    return cell, found, len(trace) * len(plan.policies)


def raw_name(cell: Cell, policy: str) -> str:
    """Of the file with the raw rows of one run."""
    return "-".join(filter(None, (cell.configuration, f"seed{cell.seed}", policy.replace("/", "_")))) + ".npz"


def quiet(work: Callable[[], Result]) -> Result:
    """Without the collector of cycles: a run makes millions of small objects and none of them is part of a cycle."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        return work()
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def rows(plan: Plan, workers: int, progress: Callable[[int, int, int], None]) -> dict[Cell, Row]:
    """All cells. ``progress(done, total, invocations)`` is called as they come."""
    cells = plan.cells()
    found: dict[Cell, Row] = {}
    count = 0
    for cell, row, invocations in _each(plan, cells, min(workers, len(cells))):
        found[cell] = row
        count += invocations
        progress(len(found), len(cells), count)
    return {cell: found[cell] for cell in sorted(found)}


def _each(plan: Plan, cells: Sequence[Cell], workers: int) -> Iterator[tuple[Cell, Row, int]]:
    if workers <= 1:
        yield from map(partial(run_cell, plan), cells)
        return
    # One thread of linear algebra in each process: they share the cores already.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(partial(run_cell, plan), cells)


# ---- what comes out --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    ``values``: policy → metric → one value per seed, the mean over configurations; ``bound`` per seed, empty where the
    case is not small. ``configurations``: name → policy → metric → one value per seed. ``worlds``: of each changed
    world claim → mean advantage of the first policy, positive = better; ``calm`` without interference. Both are empty
    without worlds.
    """

    policies: tuple[str, ...]
    values: Mapping[str, Mapping[str, Sequence[float]]]
    bound: Sequence[float]
    configurations: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
    worlds: Sequence[Mapping[str, float]]
    calm: Mapping[str, float]

    def intervals(self) -> dict[str, Interval]:
        """
        ``<metric>.<policy>``, and ``advantage.<metric>.<policy>`` of the first policy over each other one, paired by
        seed.
        """
        found = {
            f"{metric}.{policy}": metrics.interval(list(values))
            for policy, by in self.values.items()
            for metric, values in by.items()
        }
        if self.bound:
            found[f"dsr.{BOUND}"] = metrics.interval(self.bound)
        for claim in claims.claims(self.policies):
            ours, theirs = (self.values[policy][claim.metric] for policy in (claim.first, claim.other))
            found[f"advantage.{claim.name}"] = metrics.advantage(claim.metric, ours, theirs)
        return found

    def judged(self) -> list[Judged]:
        """Every claim of figure 14."""
        intervals = self.intervals()
        advantages = {claim.name: intervals[f"advantage.{claim.name}"] for claim in claims.claims(self.policies)}
        return claims.judge(self.policies, advantages, self.worlds, self.calm)


def comparison(plan: Plan, found: Mapping[Cell, Row]) -> Comparison:
    own = {cell: row for cell, row in found.items() if not cell.world}
    first = next(iter(own.values()))
    names = list(first[plan.policies[0]])

    def by_seed(policy: str, metric: str, configuration: str | None = None) -> list[float]:
        return [
            _mean(
                [
                    row[policy][metric]
                    for cell, row in own.items()
                    if cell.seed == seed and configuration in (None, cell.configuration)
                ]
            )
            for seed in plan.seeds
        ]

    def advantages(world: int) -> dict[str, float]:
        here = [row for cell, row in found.items() if cell.world == world]
        differences = {}
        for claim in claims.claims(plan.policies):
            ours, theirs = (_mean([row[policy][claim.metric] for row in here]) for policy in (claim.first, claim.other))
            differences[claim.name] = ours - theirs if FIGURE_14[claim.metric] else theirs - ours
        return differences

    return Comparison(
        policies=plan.policies,
        values={policy: {metric: by_seed(policy, metric) for metric in names} for policy in plan.policies},
        bound=by_seed(BOUND, "dsr") if all(BOUND in row for row in own.values()) else [],
        configurations={
            key: {policy: {metric: by_seed(policy, metric, key) for metric in names} for policy in plan.policies}
            for key in dict.fromkeys(cell.configuration for cell in own)
        },
        worlds=[advantages(world) for world in range(1, plan.worlds + 1)],
        calm=advantages(CALM) if plan.worlds else {},
    )


def write_rows(found: Mapping[Cell, Row], path: Path) -> None:
    """One line for each run: world, seed, configuration, policy, then its figures; nothing where there is none."""
    names = list(dict.fromkeys(metric for row in found.values() for by in row.values() for metric in by))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["world", "seed", "configuration", "policy", *names])
        for cell, row in found.items():
            world = "calm" if cell.world == CALM else cell.world
            for policy, by in row.items():
                cells = [repr(by[name]) if name in by and math.isfinite(by[name]) else "" for name in names]
                writer.writerow([world, cell.seed, cell.configuration, policy, *cells])


def _mean(values: Sequence[float]) -> float:
    """Over what is a number: a configuration without a single finished function has no ``sld``."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")


class Progress:
    """
    A bar with an estimate of what is left, on a terminal one line that is written over, elsewhere a line for every
    tenth.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = -1

    def __call__(self, done: int, total: int, invocations: int) -> None:
        spent = time.monotonic() - self._began
        left = spent * (total - done) / done
        text = (
            f"{done}/{total} cells, {invocations:,} invocations, {invocations / max(spent, 1e-9):,.0f}/s, {left:.0f} s"
            " left"
        )
        if sys.stderr.isatty():
            bar = "#" * (30 * done // total)
            sys.stderr.write(f"\r[{bar:<30}] {text} " + ("\n" if done == total else ""))
        elif 10 * done // total > self._shown:
            self._shown = 10 * done // total
            sys.stderr.write(text + "\n")
        sys.stderr.flush()
