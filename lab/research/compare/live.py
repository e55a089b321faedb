"""
Runs the same arrivals on a real platform and in the simulator: the comparison of ``smore compare --live``.

A :class:`Platform` is the port to the present devices (``lab/bench/live.py`` implements it; tests have a fake). Calibration
comes first: the time of one run of each function alone, the time of a response beyond its run, and load probes at
rising rates without a budget. The best rate of completions within their deadlines is the capacity, and the preset's
trace is scaled to a multiple of it. Then every policy serves every trace, repeat by repeat, so that a slow minute of
the machine affects all policies; each repeat begins with another policy.

The simulator gets the same arrivals, deadlines, functions, trainings and budgets, the degradation table of the
platform's leader, and the preset's interference model with two calibrated values: the times alone, and a *slowdown factor*,
by which every run takes longer, so that as many deadlines are met at the rates of the load probes. The factor stands
for what the fitted rows do not contain: the platform's own processes and the client on the same cores, and the
machine's other work. Nothing is fitted to the runs that are compared.
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

from lab.research.compare.agreement import Agreement, agreement
from lab.research.compare.comparison import quiet
from lab.research.compare.measures import interval_of
from lab.simulation import metrics, policies, traces
from lab.simulation.archive import archive
from lab.simulation.interference import InterferenceModel, Use
from lab.simulation.metrics import Interval
from lab.simulation.predictor import Belief, table
from lab.simulation.result import GPU_COLUMNS, SUCCEEDED, Result
from lab.simulation.simulator import simulate
from lab.simulation.traces import Trace
from lab.simulation.world import Preset, World, bad
from scheduler.policy.degradation import PolicyTable
from smore.domain.loss import ClosedWindow, Loss, Verdict, estimate, judge
from smore.traces import public

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Figures that both sides have and that are compared.
SHARED: Final = ("dsr", "dsr_admitted", "admission", "gui", "sfd", "sld")
#: HTTP: success; too many requests.
_OK, _LATER = 200, 429
#: Policy of the calibration: it has no budget, so the devices are the limit.
CALIBRATED_WITH: Final = "random"
#: Length and warm-up of a simulated load probe, as measured, seconds.
LOOK_S, WARMUP_S = 18.0, 8.0
#: Bisection steps (of the logarithm) and bounds of the slowdown factor.
HALVINGS, SLOWDOWN_BOUNDS = 8, (0.25, 16.0)
_ALIVE, _WORK, _SOLO = (GPU_COLUMNS.index(name) for name in ("alive_s", "work_s", "training_u"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """
    A load probe: Poisson arrivals at a rate, beside the trainings, under the policy :data:`CALIBRATED_WITH`. ``met``:
    share of the deadlines met.
    """

    rate_per_s: float
    met: float

    @property
    def good_per_s(self) -> float:
        return self.rate_per_s * self.met


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """
    Measurements of the present devices before the comparison.

    ``device`` and ``sharing_mode``: as the GPU workers name them. ``solo_s``: function to seconds of one warm run of
    one row alone. ``network_s``: seconds of a response beyond its run, alone. ``looks``: at least one load probe;
    ``deadline_s``: the deadlines in them, by function. ``table``: the leader's degradations, None = none is published
    for this device.
    """

    device: str
    sharing_mode: str
    solo_s: Mapping[str, float]
    network_s: float
    looks: Sequence[Look]
    deadline_s: Mapping[str, float]
    table: PolicyTable | None = None

    @property
    def capacity_per_s(self) -> float:
        """The highest rate of completions within their deadlines."""
        return max(look.good_per_s for look in self.looks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """
    A platform's results on a trace under one policy.

    Per invocation [n], in order of arrival: ``status`` (HTTP, 0 = no response) and ``latency_s`` from the instant it
    was due to its response (inf = none). From the platform: ``dispatched``: function to invocations that were sent to a
    GPU instance at least once; ``on_time``: invocations that succeeded before their deadline by its clock, from the
    gateway to the result; ``runs``: (function, seconds of its run) of each success. ``utilisation``, ``alone``: mean
    over GPU instances during the run and just before it, NaN = no counter. ``windows``: training to the closed windows
    of this run. ``load``: mean load of the machine.
    """

    status: Ints
    latency_s: Floats
    dispatched: Mapping[str, int]
    on_time: int
    runs: Sequence[tuple[str, float]]
    utilisation: float
    alone: float
    windows: Mapping[str, Sequence[ClosedWindow]]
    load: float = math.nan

    def write(self, path: Path, trace: Trace) -> None:
        """Write the trace and the results of its invocations into one file."""
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
    """The present devices. Both methods raise RuntimeError if the platform does not start or respond correctly."""

    def calibrate(self) -> Calibration: ...

    def run(self, policy: str, trace: Trace) -> Run:
        """``policy``: a setting with knobs (``policies.py``); ``trace``: deadlines in ``deadline_s``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    ``load``: the rate of the traces as a multiple of the capacity. ``seconds``: length of each run. ``data``: folders of
    public traces.
    """

    preset: Preset
    policies: tuple[str, ...]
    repeats: int
    load: float
    seconds: float
    data: Sequence[Path] = (public.BUNDLED,)

    @property
    def world(self) -> World:
        """
        The preset's only configuration. Raises BadWorld for a preset that cannot run live: several configurations,
        slices, or batches of several rows.
        """
        if len(self.preset.worlds) != 1:
            raise bad("configurations", "a live comparison runs one configuration")
        world = next(iter(self.preset.worlds.values()))
        for position, gpu in enumerate(world.gpus):
            if gpu.sevenths != 7:
                raise bad(f"gpus[{position}].sevenths", "a live comparison uses whole GPU instances: no slices")
        for position, function in enumerate(world.functions):
            if function.batch != 1 or function.name != function.model:
                raise bad(
                    f"functions[{position}]",
                    "a live comparison sends one row each to functions named like their models",
                )
        return world


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveComparison:
    """
    The result of a comparison. ``slowdown_factor``: of the simulated world. ``measured`` and ``simulated``: policy to
    metric to one value for each repeat. ``losses``: policy to training to the loss by its closed windows of all repeats
    (None = too few). ``rates``: arrivals per second by repeat. ``loads``: policy to the machine's load by repeat.
    """

    plan: Plan
    calibration: Calibration
    slowdown_factor: float
    measured: Mapping[str, Mapping[str, Sequence[float]]]
    simulated: Mapping[str, Mapping[str, Sequence[float]]]
    losses: Mapping[str, Mapping[str, Loss | None]]
    rates: Sequence[float]
    loads: Mapping[str, Sequence[float]]

    def intervals(self, side: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Interval]:
        """``<metric>.<policy>``: Student intervals over repeats, cut off at what the figure can be."""
        return {
            f"{metric}.{policy}": interval_of(metric, values)
            for policy, by in side.items()
            for metric, values in by.items()
        }

    @property
    def statements_proven(self) -> float:
        """Part of all policies' trainings of which the windows prove that the budget was kept, or that it was not."""
        verdicts = [
            judge(loss, budget(self.plan.world, policy)) for policy, by in self.losses.items() for loss in by.values()
        ]
        return fmean(verdict is not Verdict.NOT_PROVEN for verdict in verdicts) if verdicts else math.nan

    def agreements(self) -> list[Agreement]:
        def of(side: Mapping[str, Mapping[str, Sequence[float]]], metric: str) -> dict[str, Sequence[float]]:
            return {policy: by[metric] for policy, by in side.items()}

        return [agreement(metric, of(self.measured, metric), of(self.simulated, metric)) for metric in SHARED]


def compare(
    platform: Platform, plan: Plan, progress: Callable[[str], None], keep: Callable[[str, Run, Trace], None]
) -> LiveComparison:
    """
    Calibrate, serve, simulate. ``progress`` gets a line for each step, ``keep`` the raw rows of each run with their
    name.

    Raises BadWorld or BadTrace for a preset that cannot run, RuntimeError if the platform fails.
    """
    world = plan.world
    for name in plan.policies:
        policies.factory(name)
    calibration = platform.calibrate()
    if not calibration.capacity_per_s > 0:
        raise RuntimeError("calibration: no deadline was met at any rate")
    solo_times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in calibration.solo_s.items())
    network_ms, capacity = 1e3 * calibration.network_s, calibration.capacity_per_s
    progress(f"{calibration.device}: {solo_times}, network {network_ms:.1f} ms, capacity {capacity:.1f}/s")
    slowdown_factor = fitted_slowdown(world, calibration)
    progress(f"simulated runs take {slowdown_factor:.2f} times as long as its work alone")
    world = calibrated_world(world, calibration, slowdown_factor)
    traced = [
        scaled(plan, calibrated_world(plan.world, calibration), repeat, plan.load * calibration.capacity_per_s)
        for repeat in range(plan.repeats)
    ]
    runs: dict[str, list[Run]] = {name: [] for name in plan.policies}
    for repeat, trace in enumerate(traced):
        first = repeat % len(plan.policies)
        for name in (*plan.policies[first:], *plan.policies[:first]):
            run = platform.run(name, trace)
            runs[name].append(run)
            keep(f"repeat{repeat}-{name.replace('/', '_')}", run, trace)
            figures = measured_figures(run, trace, calibration.solo_s)
            progress(
                f"repeat {repeat} {name}: "
                + ", ".join(f"{metric} {figures[metric]:.3f}" for metric in (*SHARED, "refused"))
            )
    return LiveComparison(
        plan=plan,
        calibration=calibration,
        slowdown_factor=slowdown_factor,
        measured={
            name: _columns(
                [
                    measured_figures(run, trace, calibration.solo_s)
                    for run, trace in zip(policy_runs, traced, strict=True)
                ]
            )
            for name, policy_runs in runs.items()
        },
        simulated=_simulated(plan, world, calibration, slowdown_factor, traced),
        losses={
            name: {training: _joint_loss(policy_runs, training) for training in policy_runs[0].windows}
            for name, policy_runs in runs.items()
        },
        rates=[trace.rate_per_s for trace in traced],
        loads={name: [run.load for run in policy_runs] for name, policy_runs in runs.items()},
    )


def _joint_loss(runs: Sequence[Run], training: str) -> Loss | None:
    """The loss of a training by its closed windows of all runs together."""
    return estimate([window for run in runs for window in run.windows[training]])


def budget(world: World, policy: str) -> float:
    """The budget that all trainings have under a policy: the world's, else the policy's."""
    return next(gpu.budget for gpu in policies.asked(world, policy).gpus if gpu.budget is not None)


def calibrated_world(world: World, calibration: Calibration, slowdown_factor: float = 1.0) -> World:
    """
    The world with the calibrated times: a run takes its time alone times ``slowdown_factor``, larger batches in
    proportion; a dispatch takes the network time.
    """
    original = world.interference_model
    measured: dict[str, Use] = dict(original.measured)
    for function in world.functions:
        factor = (
            slowdown_factor * calibration.solo_s[function.name] / original.use(function.model, "function", 1).seconds
        )
        for rows in {1, *original.batches(function.model, "function")}:
            use = original.use(function.model, "function", rows)
            measured[f"{function.model}/{original.preset}/function/{rows}"] = replace(use, seconds=use.seconds * factor)
    calibrated_model: InterferenceModel = replace(
        original, device=calibration.device, sharing_mode=calibration.sharing_mode, measured=measured
    )
    return replace(world, interference_model=calibrated_model, dispatch_s=min(10.0, max(0.0, calibration.network_s)))


def fitted_slowdown(world: World, calibration: Calibration, policy: str = CALIBRATED_WITH) -> float:
    """
    The slowdown factor with which the simulator meets, on average over the load probes, as many deadlines under their
    ``policy`` as the platform did.

    A larger factor makes every run longer, so the share falls with it, and bisection finds it.
    """
    measured_share = fmean(look.met for look in calibration.looks)
    low, high = map(math.log, SLOWDOWN_BOUNDS)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tried = calibrated_world(world, calibration, math.exp(middle))
        met = fmean(_look(tried, calibration, look.rate_per_s, policy) for look in calibration.looks)
        low, high = (middle, high) if met > measured_share else (low, middle)
    return math.exp((low + high) / 2)


def _look(world: World, calibration: Calibration, rate_per_s: float, policy: str) -> float:
    """Share of the deadlines that the simulator meets at a load probe's rate."""
    probe_trace = traces.generated("poisson", world, rate_per_s=rate_per_s, seconds=LOOK_S, seed=0)
    deadline = np.array([calibration.deadline_s[name] for name in probe_trace.functions])[probe_trace.function]
    trace = replace(probe_trace, factor=np.full(len(probe_trace), np.nan), deadline_s=deadline)
    result = simulate(world, trace, policies.factory(policy), seed=0, table=calibration.table)
    scored = result.arrival_s >= WARMUP_S
    return (
        float(((result.status == SUCCEEDED) & (result.end_s <= result.deadline_s))[scored].mean())
        if scored.any()
        else 1.0
    )


def scaled(plan: Plan, world: World, seed: int, rate_per_s: float) -> Trace:
    """The preset's trace at another rate and length, with deadlines in seconds for both sides."""
    document = dict(plan.preset.trace) | {"rate_per_min": 60.0 * rate_per_s, "seconds": plan.seconds}
    trace = traces.of(document, world, seed, data=plan.data)
    if not len(trace):
        raise bad("trace", f"no arrival in {plan.seconds:g} s at {rate_per_s:g}/s")
    deadline = trace.deadlines_in(world) - trace.arrival_s
    return replace(trace, factor=np.full(len(trace), np.nan), deadline_s=deadline)


def measured_figures(run: Run, trace: Trace, solo_s: Mapping[str, float]) -> dict[str, float]:
    """
    The figures of one run; names and meanings as in :func:`lab.simulation.metrics.figures`, and further ones of
    the platform.

    ``dsr`` is by the client, from the instant a request was due; ``dsr_platform`` by the platform's clock.
    ``admission`` is the share that was dispatched, as in the simulator, not the share admitted by the gateway;
    ``refused`` is the share with status 429. ``sfd`` is the mean over trainings of open over closed iteration times of
    this run's windows, less one. ``sld`` is against the calibrated time alone.
    """
    n = len(trace)
    met = (run.status == _OK) & (run.latency_s <= trace.deadline_s)
    sent = sum(run.dispatched.values())
    slowed = [seconds / solo_s[name] - 1.0 for name, seconds in run.runs]
    losses = [
        math.fsum(window.open_s for window in windows) / math.fsum(window.closed_s for window in windows) - 1.0
        for windows in run.windows.values()
        if windows
    ]
    figures = {
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
        arrivals = int((trace.function == index).sum())
        figures[f"admission.{name}"] = run.dispatched.get(name, 0) / arrivals if arrivals else math.nan
    return figures


def simulated_figures(result: Result, exclusive: Result, slowdown_factor: float) -> dict[str, float]:
    """
    The figures of :func:`lab.simulation.metrics.figures`, with two of them as they are measured here.

    ``sfd`` is the mean iteration time over the one alone, as windows measure it: the time lived over the time alone of
    the work done (a time average of the slowdown would count slow moments more). ``sld`` is against the calibrated time
    alone, without the slowdown factor.
    """
    figures = metrics.figures(result, exclusive)
    training = (result.gpus[:, _SOLO] > 0) & (result.gpus[:, _ALIVE] > 0)
    if training.any():
        figures["sfd"] = float((result.gpus[training, _ALIVE] / result.gpus[training, _WORK] - 1.0).mean())
    figures["sld"] = slowdown_factor * (1.0 + figures["sld"]) - 1.0
    return figures


def _simulated(
    plan: Plan, world: World, calibration: Calibration, slowdown_factor: float, traced: Sequence[Trace]
) -> dict[str, dict[str, list[float]]]:
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in plan.policies}
    for seed, trace in enumerate(traced):
        degradations = (
            calibration.table if calibration.table is not None else table(world, Belief.of(plan.preset.predictor), seed)
        )
        exclusive = simulate(world, trace.none(), policies.factory(plan.policies[0]), seed=seed, name="exclusive run")
        for name in plan.policies:
            asked, make = policies.asked(world, name), policies.factory(name)
            result = quiet(partial(simulate, asked, trace, make, seed=seed, table=degradations, name=name))
            rows[name].append(simulated_figures(result, exclusive, slowdown_factor))
    return {name: _columns(figure_rows) for name, figure_rows in rows.items()}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {metric: [row[metric] for row in rows] for metric in rows[0]}
