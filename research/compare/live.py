"""
The same arrivals through a real platform and through the simulator: what ``smore compare --live`` does.

A :class:`Platform` is the port to the devices at hand (``bench/live.py`` stands behind it; tests have a fake). It is
calibrated once: what one run of each function takes alone, what an answer takes beyond its run, and looks at rising
rates without a budget, whose best rate of deadline-met completions is the capacity; the preset's trace is scaled to a
multiple of it. Then every policy serves every trace, repeat by repeat, so that a slow minute of the machine falls on
all of them; each repeat begins with another policy.

The simulator gets the same arrivals, deadlines, functions, trainings and budgets, the degradation table that the
platform's leader had, and the preset's ground truth with two things of calibration put in: the times alone, and a
*drag*, by which every run takes longer, so that as many deadlines are met at the rates of the looks. It stands for what
the fitted rows do not know: the platform's own processes and the client on the same cores, and whatever else the
machine does. Nothing is fitted to the runs that the simulator is held against.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from research.compare.agreement import Agreement, agreement
from research.compare.comparison import quiet
from scheduler.policy.degradation import Table
from scheduler.simulation import metrics, policies, traces
from scheduler.simulation.archive import archive
from scheduler.simulation.interference import Truth, Use
from scheduler.simulation.metrics import Interval, interval
from scheduler.simulation.predictor import Belief, table
from scheduler.simulation.result import GPU_COLUMNS, SUCCEEDED, Result
from scheduler.simulation.simulator import simulate
from scheduler.simulation.traces import Trace
from scheduler.simulation.world import Preset, World, bad
from smore.domain.loss import Loss, Window, estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Figures that both sides have, and in which agreement is stated; of the others only one side knows.
SHARED: Final = ("dsr", "dsr_admitted", "admission", "gui", "sfd", "sld")
#: HTTP: well; come back later.
_OK, _LATER = 200, 429
#: Of calibration: no budget, so that the devices are what limits.
CALIBRATED_WITH: Final = "random"
#: Simulated looks are as long as measured ones, and their first part does not count either.
LOOK_S, WARMUP_S = 18.0, 8.0
#: Halvings (of the logarithm) of the bounds between which the drag is looked for.
HALVINGS, DRAGS = 8, (0.25, 16.0)
_ALIVE, _WORK, _SOLO = (GPU_COLUMNS.index(name) for name in ("alive_s", "work_s", "training_u"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """
    Poisson arrivals at a rate, trainings running, policy :data:`CALIBRATED_WITH`; ``met``: share of the deadlines that
    were met.
    """

    rate_per_s: float
    met: float

    @property
    def good_per_s(self) -> float:
        return self.rate_per_s * self.met


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """
    What was measured of the devices at hand before anything was compared.

    ``device`` and ``sharing_mode`` as the GPU workers name them; ``solo_s``: function → seconds of one warm run of one
    row with nothing beside it; ``hop_s``: seconds that an answer takes beyond its run, alone; ``looks``: at least one,
    and ``deadline_s`` by function in them. ``table``: the degradations that the leader is told, None = none is
    published for such a device.
    """

    device: str
    sharing_mode: str
    solo_s: Mapping[str, float]
    hop_s: float
    looks: Sequence[Look]
    deadline_s: Mapping[str, float]
    table: Table | None = None

    @property
    def capacity_per_s(self) -> float:
        """The highest rate of deadline-met completions that was found."""
        return max(look.good_per_s for look in self.looks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """
    What a platform did with a trace under one policy.

    Per invocation [n], in order of arrival: ``status`` (HTTP, 0 = no answer) and ``latency_s`` from the instant it was
    due to its answer (inf: none came). By the platform: ``dispatched``: function → invocations that were sent to a GPU
    instance at least once; ``on_time``: those that ended well before their deadline by its clock, from the gate to the
    result; ``runs``: (function, seconds of the run that it was part of) of each that ended well. ``utilisation``,
    ``alone``: mean over GPU instances with functions and just before, NaN where no counter tells it. ``windows``:
    training → the closed windows of this run. ``load``: mean load of the machine meanwhile.
    """

    status: Ints
    latency_s: Floats
    dispatched: Mapping[str, int]
    on_time: int
    runs: Sequence[tuple[str, float]]
    utilisation: float
    alone: float
    windows: Mapping[str, Sequence[Window]]
    load: float = math.nan

    def write(self, path: Path, trace: Trace) -> None:
        """The rows of the invocations beside those of the trace, one file."""
        path.write_bytes(
            archive(
                {
                    "arrival_s": trace.arrival_s,
                    "function": trace.function,
                    "deadline_s": trace.deadline_s,
                    "status": self.status,
                    "latency_s": self.latency_s,
                    "run_s": np.array([seconds for _, seconds in self.runs]),
                }
            )
        )


class Platform(Protocol):
    """
    The devices at hand. Both methods raise RuntimeError where the platform does not come up or gives no good answer.
    """

    def calibrate(self) -> Calibration: ...

    def run(self, policy: str, trace: Trace) -> Run:
        """``policy``: a setting with knobs (``policies.py``); ``trace``: deadlines in ``deadline_s``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    ``load``: the traces' rate as a multiple of the capacity; ``seconds``: of each run; ``data``: folder of outside
    data.
    """

    preset: Preset
    policies: tuple[str, ...]
    repeats: int
    load: float
    seconds: float
    data: Path | None = None

    @property
    def world(self) -> World:
        """
        Raises BadWorld where the preset is none that can be run live: several configurations, slices, batches of
        several rows.
        """
        if len(self.preset.worlds) != 1:
            raise bad("configurations", "a live comparison runs one configuration")
        world = next(iter(self.preset.worlds.values()))
        for position, gpu in enumerate(world.gpus):
            if gpu.sevenths != 7:
                raise bad(f"gpus[{position}].sevenths", "GPU instances are as they are at hand: no slices")
        for position, function in enumerate(world.functions):
            if function.batch != 1 or function.name != function.model:
                raise bad(
                    f"functions[{position}]",
                    "a live comparison sends one row each to functions named like their models",
                )
        return world


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    ``drag`` of the simulated world. ``measured`` and ``simulated``: policy → metric → one value for each repeat.
    ``losses``: policy → training → what its closed windows of all repeats together say (None: too few). ``rates``:
    arrivals per second by repeat; ``loads``: policy → the machine's load by repeat.
    """

    plan: Plan
    calibration: Calibration
    drag: float
    measured: Mapping[str, Mapping[str, Sequence[float]]]
    simulated: Mapping[str, Mapping[str, Sequence[float]]]
    losses: Mapping[str, Mapping[str, Loss | None]]
    rates: Sequence[float]
    loads: Mapping[str, Sequence[float]]

    def intervals(self, side: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Interval]:
        """``<metric>.<policy>`` over repeats, Student."""
        return {f"{metric}.{policy}": interval(values) for policy, by in side.items() for metric, values in by.items()}

    def agreements(self) -> list[Agreement]:
        def of(side: Mapping[str, Mapping[str, Sequence[float]]], metric: str) -> dict[str, Sequence[float]]:
            return {policy: by[metric] for policy, by in side.items()}

        return [agreement(metric, of(self.measured, metric), of(self.simulated, metric)) for metric in SHARED]


def compare(
    platform: Platform, plan: Plan, progress: Callable[[str], None], keep: Callable[[str, Run, Trace], None]
) -> Outcome:
    """
    Calibrate, serve, simulate. ``progress`` gets a line for each step; ``keep`` the raw rows of each run with a name
    for them.

    Raises BadWorld or BadTrace for a preset that cannot be run, RuntimeError where the platform fails.
    """
    world = plan.world
    for name in plan.policies:
        policies.factory(name)
    found = platform.calibrate()
    if not found.capacity_per_s > 0:
        raise RuntimeError("calibration: at no rate was a deadline met")
    told = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in found.solo_s.items())
    progress(f"{found.device}: {told}, hop {1e3 * found.hop_s:.1f} ms, capacity {found.capacity_per_s:.1f}/s")
    drag = dragged(world, found)
    progress(f"in the simulator a run takes {drag:.2f} times as long as its work alone")
    world = at_hand(world, found, drag)
    traced = [
        scaled(plan, at_hand(plan.world, found), repeat, plan.load * found.capacity_per_s)
        for repeat in range(plan.repeats)
    ]
    runs: dict[str, list[Run]] = {name: [] for name in plan.policies}
    for repeat, trace in enumerate(traced):
        first = repeat % len(plan.policies)
        for name in (*plan.policies[first:], *plan.policies[:first]):
            run = platform.run(name, trace)
            runs[name].append(run)
            keep(f"repeat{repeat}-{name.replace('/', '_')}", run, trace)
            said = measured_figures(run, trace, found.solo_s)
            progress(
                f"repeat {repeat} {name}: "
                + ", ".join(f"{metric} {said[metric]:.3f}" for metric in (*SHARED, "refused"))
            )
    return Outcome(
        plan=plan,
        calibration=found,
        drag=drag,
        measured={
            name: _columns([measured_figures(run, trace, found.solo_s) for run, trace in zip(of, traced, strict=True)])
            for name, of in runs.items()
        },
        simulated=_simulated(plan, world, found, drag, traced),
        losses={
            name: {
                training: estimate([one for run in of for one in run.windows[training]]) for training in of[0].windows
            }
            for name, of in runs.items()
        },
        rates=[trace.rate_per_s for trace in traced],
        loads={name: [run.load for run in of] for name, of in runs.items()},
    )


def at_hand(world: World, found: Calibration, drag: float = 1.0) -> World:
    """
    Times of calibration put in: a run takes what it took alone times ``drag``, larger batches in proportion, a dispatch
    the hop.
    """
    truth = world.truth
    measured: dict[str, Use] = dict(truth.measured)
    for function in world.functions:
        factor = drag * found.solo_s[function.name] / truth.use(function.model, "function", 1).seconds
        for rows in {1, *truth.batches(function.model, "function")}:
            use = truth.use(function.model, "function", rows)
            measured[f"{function.model}/{truth.preset}/function/{rows}"] = replace(use, seconds=use.seconds * factor)
    told: Truth = replace(truth, device=found.device, sharing_mode=found.sharing_mode, measured=measured)
    return replace(world, truth=told, dispatch_s=min(10.0, max(0.0, found.hop_s)))


def dragged(world: World, found: Calibration, policy: str = CALIBRATED_WITH) -> float:
    """
    The drag with which the simulator meets as many deadlines at the looks of calibration, under their ``policy``, as
    the platform did, on average.

    The more of it, the longer every run: the share falls with it and is found by halving.
    """
    wanted = fmean(look.met for look in found.looks)
    low, high = map(math.log, DRAGS)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tried = at_hand(world, found, math.exp(middle))
        met = fmean(_look(tried, found, look.rate_per_s, policy) for look in found.looks)
        low, high = (middle, high) if met > wanted else (low, middle)
    return math.exp((low + high) / 2)


def _look(world: World, found: Calibration, rate_per_s: float, policy: str) -> float:
    """Share of the deadlines that the simulator meets."""
    drawn = traces.generated("poisson", world, rate_per_s=rate_per_s, seconds=LOOK_S, seed=0)
    deadline = np.array([found.deadline_s[name] for name in drawn.functions])[drawn.function]
    trace = replace(drawn, factor=np.full(len(drawn), np.nan), deadline_s=deadline)
    result = simulate(world, trace, policies.factory(policy), seed=0, table=found.table)
    counted = result.arrival_s >= WARMUP_S
    return (
        float(((result.status == SUCCEEDED) & (result.end_s <= result.deadline_s))[counted].mean())
        if counted.any()
        else 1.0
    )


def scaled(plan: Plan, world: World, seed: int, rate_per_s: float) -> Trace:
    """The preset's trace at another rate and length, its deadlines in seconds, so that both sides have the same."""
    document = dict(plan.preset.trace) | {"rate_per_min": 60.0 * rate_per_s, "seconds": plan.seconds}
    trace = traces.of(document, world, seed, data=plan.data)
    if not len(trace):
        raise bad("trace", f"no arrival in {plan.seconds:g} s at {rate_per_s:g}/s")
    deadline = trace.deadlines_in(world) - trace.arrival_s
    return replace(trace, factor=np.full(len(trace), np.nan), deadline_s=deadline)


def measured_figures(run: Run, trace: Trace, solo_s: Mapping[str, float]) -> dict[str, float]:
    """
    Of one run; names and meanings as in :func:`scheduler.simulation.metrics.figures`, and what only the platform knows.

    ``dsr`` is by the client, from the instant a request was due; ``dsr_platform`` by the platform's clock.
    ``admission`` is the share that was dispatched, as in the simulator, not what the gate let in: ``refused`` was
    answered 429. ``sfd`` is the mean over trainings of open over closed iteration times of this run's windows, less
    one. ``sld`` is against the time alone of calibration.
    """
    n = len(trace)
    met = (run.status == _OK) & (run.latency_s <= trace.deadline_s)
    sent = sum(run.dispatched.values())
    slowed = [seconds / solo_s[name] - 1.0 for name, seconds in run.runs]
    losses = [
        math.fsum(one.open_s for one in windows) / math.fsum(one.closed_s for one in windows) - 1.0
        for windows in run.windows.values()
        if windows
    ]
    found = {
        "dsr": float(met.sum()) / n,
        "dsr_admitted": float(met.sum()) / sent if sent else math.nan,
        "admission": sent / n,
        "gui": run.utilisation - run.alone,
        "sfd": fmean(losses) if losses and len(losses) == len(run.windows) else math.nan,
        "sld": fmean(slowed) if slowed else math.nan,
        "dsr_platform": run.on_time / n,
        "refused": float((run.status == _LATER).sum()) / n,
        "utilisation": run.utilisation,
    }
    for index, name in enumerate(trace.functions):
        of = int((trace.function == index).sum())
        found[f"admission.{name}"] = run.dispatched.get(name, 0) / of if of else math.nan
    return found


def simulated_figures(result: Result, exclusive: Result, drag: float) -> dict[str, float]:
    """
    As :func:`scheduler.simulation.metrics.figures`, but two as they are measured here.

    ``sfd`` is the mean iteration time over the one alone, as windows measure it: the time lived over the time alone of
    what was done in it (the average of the slowdown over time counts slow moments more). ``sld`` is against the time
    alone of calibration, without the drag.
    """
    found = metrics.figures(result, exclusive)
    training = (result.gpus[:, _SOLO] > 0) & (result.gpus[:, _ALIVE] > 0)
    if training.any():
        found["sfd"] = float((result.gpus[training, _ALIVE] / result.gpus[training, _WORK] - 1.0).mean())
    found["sld"] = drag * (1.0 + found["sld"]) - 1.0
    return found


def _simulated(
    plan: Plan, world: World, found: Calibration, drag: float, traced: Sequence[Trace]
) -> dict[str, dict[str, list[float]]]:
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in plan.policies}
    for seed, trace in enumerate(traced):
        told = found.table if found.table is not None else table(world, Belief.of(plan.preset.predictor), seed)
        exclusive = simulate(world, trace.none(), policies.factory(plan.policies[0]), seed=seed, name="exclusive run")
        for name in plan.policies:
            result = quiet(partial(simulate, world, trace, policies.factory(name), seed=seed, table=told, name=name))
            rows[name].append(simulated_figures(result, exclusive, drag))
    return {name: _columns(of) for name, of in rows.items()}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {metric: [row[metric] for row in rows] for metric in rows[0]}
