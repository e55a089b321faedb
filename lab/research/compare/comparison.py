"""
Compares policies x configurations x seeds in parallel processes, paired: every policy gets the same trace and the same
noise of its runs, and those with the same predictor the same degradation table.

A *cell* is one configuration with one seed and one world; all policies run in it, after the exclusive run. World 0 is
the preset's own. In worlds 1, 2, ... every demand and exponent is drawn at random, and in :data:`CALM` nothing
interferes. Cells are independent, so the figures do not depend on the number of processes.
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

from lab.research.compare import claims, limits
from lab.research.compare.bound import small, upper_bound
from lab.research.compare.claims import JudgedClaim
from lab.research.compare.measures import interval_of
from lab.simulation import metrics, policies, traces
from lab.simulation.metrics import FIGURE_14, Interval
from lab.simulation.predictor import Belief, Tables, table
from lab.simulation.profiler import SIMULATED
from lab.simulation.result import Result
from lab.simulation.simulator import simulate
from lab.simulation.world import Other, Preset, World, load
from scheduler.policy.degradation import PolicyTable
from smore.traces import public

#: Bounds of the random factor on every demand and exponent.
SPREAD: Final = (0.7, 1.3)
#: The world without interference.
CALM: Final = -1
#: What seeds are where the trace is a file.
ONE_TRACE: Final = (
    "Its arrivals are the same in every seed. Seeds change run times, reports, the predictor's errors, the policies' own"
    " chance and the deadlines that the file does not give: intervals cover these, and not what other arrivals would do."
)
#: Name of the upper bound in the results of small cases (bound.py); it is not a policy.
BOUND: Final = "upper-bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    The comparison to run.

    ``worlds`` > 0 adds so many worlds with every demand and exponent times U(0.7, 1.3), and one without interference,
    each with the first ``world_seeds`` seeds. ``truth`` (a name, '' = the preset's), ``factors`` and ``interference``
    change the interference model of all runs. ``data``: folders of public traces. ``out``: folder for the raw rows of the runs
    in the preset's own world, None = not written. ``trace`` overrides fields of the preset's trace.
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
    data: Sequence[Path] = (public.BUNDLED,)
    out: Path | None = None

    def load(self, world: int = 0, other: str = "") -> Preset:
        changed = self.others[other] if other else Other(truth=self.truth, factors=self.factors)
        return load(
            self.preset,
            factors=dict(changed.factors) | self.drawn(world),
            interference=self.interference and world != CALM,
            interference_model=changed.truth,
        )

    @property
    def others(self) -> Mapping[str, Other]:
        """The preset's other worlds, where nothing else is said of the interference model."""
        return {} if self.truth or self.factors or not self.interference else load(self.preset).others

    def belief(self, policy: str) -> Belief:
        return policies.belief(policy, self.load().predictor, self.predictor)

    def drawn(self, world: int) -> dict[str, float]:
        """The random factors of world 1, 2, ...; empty for the others."""
        if world <= 0:
            return {}
        names = varied(next(iter(load(self.preset, interference_model=self.truth).worlds.values())))
        factors = np.random.default_rng([world, 6]).uniform(*SPREAD, len(names))
        return {name: float(factor) * self.factors.get(name, 1.0) for name, factor in zip(names, factors, strict=True)}

    def trace_in_words(self) -> str:
        """What is run in place of the preset's own trace, and what its seeds are then; '' where that is run."""
        if not self.trace:
            return ""
        preset = self.load()
        world, document = next(iter(preset.worlds.values())), traces.changed(preset.trace, self.trace)
        trace = traces.of(document, world, self.seeds[0], data=self.data)
        counts = np.bincount(trace.function, minlength=len(trace.functions))
        by_function = ", ".join(
            f"{name} {count:,}" for name, count in zip(trace.functions, counts, strict=True) if count
        )
        words = f"{trace.name}, {len(trace):,} invocations in {trace.duration_s:g} s ({by_function})"
        if document.get("kind") in traces.WHOLE:
            return f"The trace that was run: {words}. {ONE_TRACE}"
        return f"The trace that was run, in seed {self.seeds[0]}: {words}."

    def cells(self) -> list["Cell"]:
        configurations = list(self.load().worlds)
        cells = [Cell(configuration=name, seed=seed) for seed in self.seeds for name in configurations]
        for world in (CALM, *range(1, self.worlds + 1)) if self.worlds else ():
            cells += [
                Cell(configuration=name, seed=seed, world=world)
                for seed in self.seeds[: self.world_seeds]
                for name in configurations
            ]
        cells += [
            Cell(configuration=name, seed=seed, other=other)
            for other in self.others
            for seed in self.seeds[: self.world_seeds]
            for name in configurations
        ]
        return cells


def varied(world: World) -> list[str]:
    """The names of every demand and exponent of an interference model."""
    return [
        name for name in world.interference_model.knobs() if name in ("exponent", "growth") or name[:2] in ("u.", "b.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    world: int = 0
    other: str = ""
    seed: int
    configuration: str

    @property
    def own(self) -> bool:
        """Whether it is in the world that was asked for."""
        return not self.world and not self.other


#: Policy to metric to value, of one cell.
Row = Mapping[str, Mapping[str, float]]


def run_cell(plan: Plan, cell: Cell) -> tuple[Cell, Row, int]:
    """(cell, figures by policy, invocations simulated)."""
    preset = plan.load(cell.world, cell.other)
    world = preset.worlds[cell.configuration]
    trace = traces.of(traces.changed(preset.trace, plan.trace), world, cell.seed, data=plan.data)
    tables: dict[Belief, PolicyTable | None] = {}
    exclusive = simulate(world, trace.none(), policies.compared(plan.policies[0]), seed=cell.seed, name="exclusive run")
    figures: dict[str, Mapping[str, float]] = {}
    if small(world, trace):
        figures[BOUND] = {"dsr": upper_bound(world, trace, cell.seed) / len(trace)}
    for name in plan.policies:
        belief, asked = policies.belief(name, preset.predictor, plan.predictor), policies.asked(world, name)
        if belief not in tables:
            tables[belief] = table(world, belief, cell.seed)
        told = tables[belief]
        result = quiet(partial(simulate, asked, trace, policies.compared(name), seed=cell.seed, table=told, name=name))
        figures[name] = metrics.figures(result, exclusive) | errors(told)
        if plan.out is not None and cell.own:
            result.write(plan.out / raw_name(cell, name))
    return cell, figures, len(trace) * len(plan.policies)


def errors(table: PolicyTable | None) -> dict[str, float]:
    """The RMSLE of what a policy was told of pairs that the predictor had not seen, by direction and their mean."""
    rmsle = table.rmsle if isinstance(table, Tables) else {}
    by_direction = {
        direction: _mean([value for name, value in rmsle.items() if name.split(".")[0] == direction])
        for direction in SIMULATED
    }
    each = {f"predictor_rmsle_{direction}": value for direction, value in by_direction.items()}
    return {"predictor_rmsle": _mean(list(by_direction.values()))} | each


def raw_name(cell: Cell, policy: str) -> str:
    """The name of the file with the raw rows of one run."""
    return "-".join(filter(None, (cell.configuration, f"seed{cell.seed}", policy.replace("/", "_")))) + ".npz"


def quiet(work: Callable[[], Result]) -> Result:
    """Run without the cycle collector: a run makes millions of small objects, none of them part of a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if enabled:
            gc.enable()


def rows(plan: Plan, workers: int, progress: Callable[[int, int, int], None]) -> dict[Cell, Row]:
    """The figures of all cells. ``progress(done, total, invocations)`` is called after each cell."""
    cells = plan.cells()
    by_cell: dict[Cell, Row] = {}
    count = 0
    for cell, row, invocations in _each(plan, cells, min(workers, len(cells))):
        by_cell[cell] = row
        count += invocations
        progress(len(by_cell), len(cells), count)
    return {cell: by_cell[cell] for cell in sorted(by_cell)}


def _each(plan: Plan, cells: Sequence[Cell], workers: int) -> Iterator[tuple[Cell, Row, int]]:
    if workers <= 1:
        yield from map(partial(run_cell, plan), cells)
        return
    # One thread of linear algebra per process, because the processes use all cores.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(partial(run_cell, plan), cells)


# ---- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    ``values``: policy to metric to one value per seed, the mean over configurations. ``bound``: one value per seed,
    empty unless the case is small. ``configurations``: name to policy to metric to one value per seed. ``worlds``: for
    each changed world, claim to mean advantage of the first policy, positive = better; ``calm``: the same without
    interference. Both are empty without changed worlds. ``others``: name of another world of the preset to what
    ``configurations`` holds, of the first seeds.
    """

    policies: tuple[str, ...]
    values: Mapping[str, Mapping[str, Sequence[float]]]
    bound: Sequence[float]
    configurations: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
    worlds: Sequence[Mapping[str, float]]
    calm: Mapping[str, float]
    others: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]]

    def intervals(self) -> dict[str, Interval]:
        """
        ``<metric>.<policy>``, and ``advantage.<metric>.<policy>``: the advantage of the first policy over each other
        one, paired by seed.
        """
        intervals = {
            f"{metric}.{policy}": interval_of(metric, values)
            for policy, by in self.values.items()
            for metric, values in by.items()
        }
        if self.bound:
            intervals[f"dsr.{BOUND}"] = interval_of("dsr", self.bound)
        for claim in claims.claims(self.policies):
            ours, theirs = (self.values[policy][claim.metric] for policy in (claim.first, claim.other))
            intervals[f"advantage.{claim.name}"] = metrics.advantage(claim.metric, ours, theirs)
        return intervals

    def undefined(self) -> dict[str, int]:
        """The number of seeds without a value, for each name of :meth:`intervals`."""
        counts = {
            f"{metric}.{policy}": count_undefined(values)
            for policy, by in self.values.items()
            for metric, values in by.items()
        }
        for claim in claims.claims(self.policies):
            ours, theirs = (self.values[policy][claim.metric] for policy in (claim.first, claim.other))
            counts[f"advantage.{claim.name}"] = count_undefined(
                [one - other for one, other in zip(ours, theirs, strict=True)]
            )
        return counts

    def same(self) -> list[list[str]]:
        """Policies that have the same figures in every seed and configuration, to the last digit; groups of several."""
        return alike(
            {
                policy: [
                    {name: values for name, values in by[policy].items() if not name.startswith("predictor_rmsle")}
                    for by in self.configurations.values()
                ]
                for policy in self.policies
            }
        )

    def judged(self) -> list[JudgedClaim]:
        """Every claim of figure 14."""
        intervals = self.intervals()
        advantages = {claim.name: intervals[f"advantage.{claim.name}"] for claim in claims.claims(self.policies)}
        return claims.judge(self.policies, advantages, self.worlds, self.calm)


def exceeded(plan: Plan, compared: Comparison) -> list[str]:
    """Where trainings lost more than a policy's limit, and why: a sentence for each policy and configuration."""
    elsewhere = [
        f"{other}: {words}"
        for other, configurations in compared.others.items()
        for words in limits.exceeded(plan.load(other=other).worlds, configurations)
    ]
    return limits.exceeded(plan.load().worlds, compared.configurations) + elsewhere


def comparison(plan: Plan, by_cell: Mapping[Cell, Row]) -> Comparison:
    own = {cell: row for cell, row in by_cell.items() if cell.own}
    first = next(iter(own.values()))
    names = list(first[plan.policies[0]])

    def by_seed(policy: str, metric: str, configuration: str | None = None) -> list[float]:
        return [
            _mean(
                [
                    row[policy][metric]
                    for cell, row in own.items()
                    if cell.seed == seed
                    and configuration in (None, cell.configuration)
                    and (
                        configuration is not None
                        or all(row[each][metric] == row[each][metric] for each in plan.policies)
                    )
                ]
            )
            for seed in plan.seeds
        ]

    def elsewhere(other: str, policy: str, metric: str, configuration: str) -> list[float]:
        return [
            row[policy][metric]
            for cell, row in by_cell.items()
            if cell.other == other and cell.configuration == configuration
        ]

    def advantages(world: int) -> dict[str, float]:
        in_world = [row for cell, row in by_cell.items() if cell.world == world]
        differences = {}
        for claim in claims.claims(plan.policies):
            ours, theirs = (
                _mean([row[policy][claim.metric] for row in in_world]) for policy in (claim.first, claim.other)
            )
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
        others={
            other: {
                key: {policy: {m: elsewhere(other, policy, m, key) for m in names} for policy in plan.policies}
                for key in dict.fromkeys(cell.configuration for cell in own)
            }
            for other in plan.others
        },
    )


def alike(by_policy: Mapping[str, object]) -> list[list[str]]:
    """The policies whose figures are equal, a list for each group of several."""
    groups: dict[str, list[str]] = {}
    for policy, figures in by_policy.items():
        # As text, in which an undefined figure is equal to another one.
        groups.setdefault(repr(figures), []).append(policy)
    return [policies for policies in groups.values() if len(policies) > 1]


def alike_in_words(groups: Sequence[Sequence[str]]) -> str:
    """A sentence, '' where all policies differ."""
    named = "; ".join(", ".join(policies) for policies in groups)
    return f"The same decisions in every seed (all figures are equal to the last digit): {named}." if named else ""


def count_undefined(values: Sequence[float]) -> int:
    """How many of the values are NaN."""
    return sum(math.isnan(value) for value in values)


def write_rows(by_cell: Mapping[Cell, Row], path: Path) -> None:
    """One line for each run: world, seed, configuration, policy, figures; empty where a figure is unknown."""
    names = list(dict.fromkeys(metric for row in by_cell.values() for by in row.values() for metric in by))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["world", "seed", "configuration", "policy", *names])
        for cell, row in by_cell.items():
            world = "calm" if cell.world == CALM else cell.other or cell.world
            for policy, by in row.items():
                cells = [repr(by[name]) if name in by and math.isfinite(by[name]) else "" for name in names]
                writer.writerow([world, cell.seed, cell.configuration, policy, *cells])


def _mean(values: Sequence[float]) -> float:
    """The mean without NaN: a configuration without a finished function has no ``sld``."""
    numbers = [value for value in values if value == value]
    return sum(numbers) / len(numbers) if numbers else float("nan")


class Progress:
    """
    A progress bar with the estimated time left. On a terminal it is one line that is overwritten, elsewhere one line
    for every tenth.
    """

    def __init__(self, parts: str = "cells (configuration and seed)", simulated: str = "invocations") -> None:
        self._parts, self._simulated = parts, simulated
        self._began = time.monotonic()
        self._shown = -1

    def __call__(self, done: int, total: int, count: int) -> None:
        spent = time.monotonic() - self._began
        left = spent * (total - done) / done
        text = (
            f"{done}/{total} {self._parts}, {count:,} {self._simulated}, {count / max(spent, 1e-9):,.0f}/s, {left:.0f} s"
            " left"
        )
        if sys.stderr.isatty():
            bar = "#" * (30 * done // total)
            sys.stderr.write(f"\r[{bar:<30}] {text} " + ("\n" if done == total else ""))
        elif 10 * done // total > self._shown:
            self._shown = 10 * done // total
            sys.stderr.write(text + "\n")
        sys.stderr.flush()
