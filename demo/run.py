"""
``python -m smore.demo``: runs the platform on this machine under a minute of traffic beside training, and measures what
each side loses.

Phases, each with its own figures:

1. *alone*: the training commands run on their partitions without a platform. They run all at once, as in the later
   phases: where two partitions share a core, the jobs disturb each other in every phase, and this is not counted as a
   cost of the platform.
2. the platform starts, the functions are deployed, and the jobs start through the API.
3. *platform control*: the load of phase 4, but every request has a deadline that cannot be met and is refused. The
   slowdown of the jobs against *alone* is the platform's own tax.
4. *with functions*: the traffic. The slowdown of the jobs against *platform control* is their degradation.

Iteration times come from the jobs' own track files in every phase. The load is open loop: a latency starts at the
instant at which the request was due.

The module is longer than 500 lines: the phases share the figures and the screen that they fill.
"""

import argparse
import asyncio
import csv
import gzip
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from smore import local
from smore.process.settings import Settings
from smore.tracking.ring import TrackReader
from smore_client import ApiError, AsyncClient, ClientError
from smore_client.types import Function, Gpu, Invocation, State

#: The checkout, which has ``zoo`` and from which the jobs run.
ROOT = Path(__file__).resolve().parents[1]
#: The published trace, if it is present.
TRACE = ROOT.parent / "shared" / "data" / "azure2019" / "invocations.csv.gz"

#: Functions that are deployed and called, from the fastest to the slowest: the trace's slowest class goes to the
#: slowest function (assumption A50).
FUNCTIONS = ("echo", "silero", "deepfm", "mobilenet", "bert", "resnet50")
#: Models that are trained, one on each of the first GPU instances.
MODELS = ("resnet50", "mobilenet")
#: Batches of the trainings by preset; both were profiled.
BATCHES = {"cpu": 8, "paper": 64}
#: Steps of a job before it is measured: it calibrates its input wait first.
SETTLE_STEPS = 12
#: Requests per second for each core of the partitions.
RATE_PER_CORE = 20.0
MOST_RATE = 100.0

ALONE_S = 8.0
CONTROL_S = 15.0
#: Below the run time of every function, so that every request is refused; the fastest function takes about a
#: millisecond.
CONTROL_DEADLINE_MS = 0.001
#: Longest wait for jobs to iterate and for functions to be ready, seconds.
PATIENCE_S = 90.0
SAMPLE_S = 0.5
#: Length of a free axis of a tensor: one second of sound, the only such axis here.
FREE_AXIS = 16_000

Counts = NDArray[np.float64]
Step = tuple[float, float]


# ---- the traffic -----------------------------------------------------------------------------------------------------


def synthetic_counts(functions: int, seconds: int, seed: int) -> Counts:
    """
    Synthetic traffic in the shape of the Azure trace: shares [functions, seconds] of all invocations; a second stands
    for a minute of the trace.

    It imitates three properties of the published trace: a few functions get most of the calls (log-normal shares, none
    under 2 %), one function in three is a timer (equal counts at equal intervals), the others vary slowly (a daily
    wave, each with its own phase) and burst (a few times, for some seconds, to a multiple).
    """
    rng = np.random.default_rng(seed)
    shares = np.maximum(rng.lognormal(sigma=1.3, size=functions), 1e-9)
    shares = np.maximum(shares / shares.sum(), 0.02)
    second = np.arange(seconds)
    counts = np.empty((functions, seconds))
    for row in range(functions):
        if row % 3 == 2:
            period = int(rng.integers(2, 6))
            shape = (second % period == int(rng.integers(period))).astype(float)
        else:
            shape = 1 + 0.5 * np.sin(2 * np.pi * (second / max(seconds, 1) + rng.random()))
            for _ in range(rng.poisson(seconds / 20)):
                start, length = int(rng.integers(seconds)), 1 + int(rng.geometric(0.4))
                shape[start : start + length] *= 1 + rng.exponential(3.0)
        # A window shorter than a timer's period may have no call of it.
        counts[row] = shares[row] * (shape / shape.mean() if shape.any() else np.ones(seconds))
    return _normal(counts)


def _normal(counts: Counts) -> Counts:
    shares: Counts = counts / counts.sum()
    return shares


def trace_counts(path: Path, functions: int, seconds: int) -> Counts:
    """
    Shares [functions, seconds] of the invocations of the Azure Functions trace in its published format. Minute m of the
    trace becomes second m (assumption A49).

    Takes the first consecutive minutes. The trace's functions are sorted by mean duration (``durations.csv.gz`` beside
    the file, otherwise by name) and divided into as many equal classes as there are functions here (assumption A50).
    Raises OSError; ValueError for another format or too few minutes.
    """
    rows = _rows(path)
    minutes = sorted((name for name in rows[0] if name.isdigit()), key=int)[:seconds] if rows else []
    if len(minutes) < seconds:
        raise ValueError(f"{path}: {seconds} columns of minutes are needed, the file has {len(minutes)}")
    durations_file = path.with_name(path.name.replace("invocations", "durations"))
    durations: dict[str, float] = {}
    if durations_file != path and durations_file.exists():
        durations = {row["HashFunction"]: float(row["Average"]) for row in _rows(durations_file)}
    rows.sort(key=lambda row: (durations.get(row["HashFunction"], 0.0), row["HashFunction"]))
    counts = np.zeros((functions, seconds))
    for position, row in enumerate(rows):
        counts[position * functions // len(rows)] += [float(row[minute] or 0) for minute in minutes]
    if counts.sum() == 0:
        raise ValueError(f"{path}: no invocation in these minutes")
    return _normal(counts)


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """One request: when it is due, seconds from the start, and the index of its function."""

    at_s: float
    function: int


def arrivals(counts: Counts, rate: float, seed: int) -> list[Due]:
    """
    Poisson arrivals within each second. Each function's rate is its share of all counts, times ``rate`` requests/s on
    average (assumption A49).
    """
    rng = np.random.default_rng((seed, 1))
    functions, seconds = counts.shape
    drawn = rng.poisson(counts / counts.sum() * rate * seconds)
    due = [
        Due(at_s=second + offset, function=function)
        for function in range(functions)
        for second in range(seconds)
        for offset in rng.random(int(drawn[function, second])).tolist()
    ]
    return sorted(due, key=lambda request: request.at_s)


def typical_part(plan: Sequence[Due], seconds: float, length_s: float) -> list[Due]:
    """
    The part of the plan of ``length_s`` (from a whole second) whose number of requests is nearest to the average, moved
    to time zero.
    """
    if length_s >= seconds:
        return list(plan)
    wanted = len(plan) * length_s / seconds

    def part(start: int) -> list[Due]:
        return [request for request in plan if start <= request.at_s < start + length_s]

    start = min(range(int(seconds - length_s) + 1), key=lambda start: abs(len(part(start)) - wanted))
    return [Due(at_s=request.at_s - start, function=request.function) for request in part(start)]


# ---- results ---------------------------------------------------------------------------------------------------------


class RequestOutcome(StrEnum):
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request and its outcome; ``latency_s`` from the instant it was due."""

    function: str
    latency_s: float
    outcome: RequestOutcome
    cold: bool = False


def outcome_of(result: Invocation | ClientError) -> RequestOutcome:
    """The outcome of a request. A refusal at the gateway and a later rejection count alike."""
    match result:
        case Invocation():
            return RequestOutcome.SUCCEEDED if result.state == State.SUCCEEDED else RequestOutcome.FAILED
        case ApiError() if result.code == "deadline_expired" or result.body.get("state") == State.EXPIRED:
            return RequestOutcome.EXPIRED
        case ApiError() if result.status == 429 or result.body.get("state") == State.REJECTED:
            return RequestOutcome.REJECTED
        case _:
            return RequestOutcome.FAILED


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation; None without values."""
    return float(np.percentile(values, percent)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFigures:
    """
    Of one function. submitted = succeeded + rejected + expired + failed.

    ``dsr``: finished within the deadline, over submitted. Latencies over what succeeded, milliseconds. ``cold_starts``:
    invocations that waited for a load.
    """

    function: str
    submitted: int
    succeeded: int
    rejected: int
    expired: int
    failed: int
    dsr: float | None
    p50_ms: float | None
    p99_ms: float | None
    cold_starts: int


def function_figures(name: str, sent: Sequence[Sent], deadlines_s: Mapping[str, float]) -> FunctionFigures:
    """Over ``sent``, whose functions need not all be one: then it is the line of the totals."""
    good = [request for request in sent if request.outcome is RequestOutcome.SUCCEEDED]
    latencies_ms = [request.latency_s * 1e3 for request in good]
    in_time = sum(request.latency_s <= deadlines_s.get(request.function, math.inf) for request in good)
    count = {outcome: sum(request.outcome is outcome for request in sent) for outcome in RequestOutcome}
    return FunctionFigures(
        function=name,
        submitted=len(sent),
        succeeded=count[RequestOutcome.SUCCEEDED],
        rejected=count[RequestOutcome.REJECTED],
        expired=count[RequestOutcome.EXPIRED],
        failed=count[RequestOutcome.FAILED],
        dsr=in_time / len(sent) if sent else None,
        p50_ms=percentile(latencies_ms, 50),
        p99_ms=percentile(latencies_ms, 99),
        cold_starts=sum(request.cold for request in good),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterations:
    """Mean iteration time with the half-width of its 95 % interval (normal), over ``count`` iterations."""

    count: int
    mean_s: float
    half_width_s: float


def iterations(steps: Sequence[Step], begin: float, end: float) -> Iterations | None:
    """Over the steps (end in epoch seconds, duration) that lie wholly in the window; None with fewer than two."""
    within = [duration for at, duration in steps if at - duration >= begin and at <= end]
    if len(within) < 2:
        return None
    half_width_s = 1.96 * statistics.stdev(within) / math.sqrt(len(within))
    return Iterations(count=len(within), mean_s=statistics.fmean(within), half_width_s=half_width_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """
    Of one job. ``tax`` = control / alone - 1, the platform's; ``degradation`` = with functions / control - 1, the
    functions'.
    """

    job: str
    gpu: str
    alone: Iterations | None
    control: Iterations | None
    functions: Iterations | None
    tax: float | None
    degradation: float | None


def job_figures(
    job: str, gpu: str, alone: Iterations | None, control: Iterations | None, functions: Iterations | None
) -> JobFigures:
    return JobFigures(
        job=job,
        gpu=gpu,
        alone=alone,
        control=control,
        functions=functions,
        tax=slower(control, alone),
        degradation=slower(functions, control),
    )


def slower(now: Iterations | None, before: Iterations | None) -> float | None:
    """(P_now - P_before) / P_before, P the mean iteration time (the paper's Eq. 1)."""
    return None if now is None or before is None else now.mean_s / before.mean_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The GPU instances at an instant, epoch seconds."""

    at: float
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """
    Mean utilisation of a GPU instance (0..1, by the counter named) without and with functions; of the latter the
    functions' part.
    """

    gpu: str
    counter: str
    without_functions: float | None
    with_functions: float | None
    by_functions: float | None


Window = tuple[float, float]


def gpu_figures(samples: Sequence[Sample], control: Window, functions: Window) -> list[GpuFigures]:
    def mean(gpu: str, window: Window, of: Callable[[Gpu], float]) -> float | None:
        seen = [
            of(sampled)
            for sample in samples
            if window[0] <= sample.at <= window[1]
            for sampled in sample.gpus
            if sampled.id == gpu
        ]
        return statistics.fmean(seen) if seen else None

    counters = {sampled.id: sampled.utilisation_counter for sample in samples for sampled in sample.gpus}
    return [
        GpuFigures(
            gpu=gpu,
            counter=counter,
            without_functions=mean(gpu, control, lambda sampled: sampled.utilisation),
            with_functions=mean(gpu, functions, lambda sampled: sampled.utilisation),
            by_functions=mean(gpu, functions, lambda sampled: sampled.function_utilisation),
        )
        for gpu, counter in sorted(counters.items())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The figures of a run. ``control``: the totals of the refused load."""

    traffic: str
    seconds: float
    rate: float
    seed: int
    functions: list[FunctionFigures]
    total: FunctionFigures
    control: FunctionFigures
    gpus: list[GpuFigures]
    jobs: list[JobFigures]

    def figures(self) -> dict[str, float]:
        """The figures by name, without those that could not be measured."""
        figures: dict[str, float | None] = {
            name: getattr(self.total, name)
            for name in (
                "submitted",
                "succeeded",
                "rejected",
                "expired",
                "failed",
                "dsr",
                "p50_ms",
                "p99_ms",
                "cold_starts",
            )
        }
        figures["control_refused"] = self.control.rejected / self.control.submitted if self.control.submitted else None
        for gpu in self.gpus:
            figures[f"{gpu.gpu}_utilisation_without_functions"] = gpu.without_functions
            figures[f"{gpu.gpu}_utilisation_with_functions"] = gpu.with_functions
        for job in self.jobs:
            figures[f"{job.job}_tax"] = job.tax
            figures[f"{job.job}_degradation"] = job.degradation
            for phase, measured in (("alone", job.alone), ("control", job.control), ("functions", job.functions)):
                figures[f"{job.job}_iteration_{phase}_ms"] = None if measured is None else measured.mean_s * 1e3
        return {name: float(value) for name, value in figures.items() if value is not None}


# ---- what is seen ----------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    ALONE = "training alone"
    UP = "platform starts"
    DEPLOY = "functions are deployed"
    JOBS = "training starts"
    CONTROL = "platform control: every request refused"
    TRAFFIC = "traffic"
    DOWN = "platform stops"


class Progress:
    """How far the run is, from what each phase is expected to take, seconds."""

    def __init__(self, expected: Mapping[Phase, float]) -> None:
        self._expected = expected
        self.phase = next(iter(expected))
        self._began = time.monotonic()

    def enter(self, phase: Phase) -> None:
        self.phase, self._began = phase, time.monotonic()

    @property
    def total_s(self) -> float:
        return sum(self._expected.values())

    def done_s(self, now: float) -> float:
        """Seconds' worth done. A phase that takes longer than expected holds it; none ever takes it back."""
        phases = list(self._expected)
        before = sum(self._expected[phase] for phase in phases[: phases.index(self.phase)])
        return before + min(now - self._began, self._expected[self.phase])


@dataclass(slots=True, kw_only=True)
class Board:
    """What the live display shows; the run writes into it."""

    progress: Progress
    note: str = ""
    sent: list[Sent] = field(default_factory=list)
    in_flight: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    #: Job name → its last iteration times, seconds.
    recent: dict[str, list[float]] = field(default_factory=dict)

    def __rich__(self) -> RenderableType:
        now = time.monotonic()
        done_s, total_s = self.progress.done_s(now), self.progress.total_s
        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True)
        left = Text(f"about {math.ceil(max(0.0, total_s - done_s))} s to go")
        head.add_row(Text(self.progress.phase, "bold"), ProgressBar(total=total_s, completed=done_s), left)
        parts: list[RenderableType] = [head, Text(self.note, "dim")]
        if self.sent or self.waiting:
            parts.append(self._functions())
        if self.samples:
            parts.append(self._gpus(self.samples[-1]))
        if self.recent:
            parts.append(self._jobs())
        return Group(*parts)

    def _functions(self) -> Table:
        table = Table(
            "function", "waiting", "sent", "succeeded", "refused", "other", "cold", "p50 ms", "p99 ms", box=None
        )
        for name in FUNCTIONS:
            of_it = function_figures(name, [request for request in self.sent if request.function == name], {})
            table.add_row(
                name,
                str(self.waiting.get(name, 0)),
                str(of_it.submitted),
                str(of_it.succeeded),
                str(of_it.rejected),
                str(of_it.expired + of_it.failed),
                str(of_it.cold_starts),
                number(of_it.p50_ms),
                number(of_it.p99_ms),
            )
        return table

    def _gpus(self, sample: Sample) -> Table:
        table = Table("GPU instance", "used", "", "functions", "memory MiB", "warm", box=None)
        for gpu in sample.gpus:
            warm = " ".join(
                f"{one.function.rpartition('/')[2]}{'*' if one.state == 'busy' else ''}" for one in gpu.warm
            )
            bar = Bar(size=1, begin=0, end=min(gpu.utilisation, 1.0), width=20)
            memory = f"{gpu.memory_used_mib:.0f}/{gpu.memory_total_mib:.0f}"
            table.add_row(gpu.id, share(gpu.utilisation), bar, share(gpu.function_utilisation), memory, warm)
        return table

    def _jobs(self) -> Table:
        table = Table("job", "iteration ms (last 20)", box=None)
        for name, durations in self.recent.items():
            table.add_row(name, number(statistics.fmean(durations[-20:]) * 1e3) if durations else "starting")
        return table


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


def signed(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:+.1f} %"


def tables(report: DemoReport) -> Group:
    """The report for people."""
    functions = Table(
        Column("function", no_wrap=True),
        "submitted",
        "succeeded",
        "rejected",
        "expired",
        "failed",
        "DSR",
        "p50 ms",
        "p99 ms",
        "cold starts",
        title=f"{report.traffic}: {report.rate:.0f} requests/s for {report.seconds:.0f} s, seed {report.seed}",
        box=box.SIMPLE_HEAD,
    )
    for row in (*report.functions, report.total):
        dsr = "-" if row.dsr is None else f"{row.dsr:.3f}"
        counts = (row.submitted, row.succeeded, row.rejected, row.expired, row.failed)
        functions.add_row(
            row.function, *map(str, counts), dsr, number(row.p50_ms), number(row.p99_ms), str(row.cold_starts)
        )
    gpus = Table(
        "GPU instance",
        "without functions",
        "with functions",
        "by functions",
        "counter",
        title="Utilisation",
        box=box.SIMPLE_HEAD,
    )
    for gpu in report.gpus:
        gpus.add_row(
            gpu.gpu, share(gpu.without_functions), share(gpu.with_functions), share(gpu.by_functions), gpu.counter
        )
    jobs = Table(
        Column("job", no_wrap=True),
        "GPU instance",
        "alone",
        "platform control",
        "with functions",
        "platform's tax",
        "degradation",
        title="Iteration time, mean and 95 % interval",
        box=box.SIMPLE_HEAD,
    )
    for job in report.jobs:
        times = (took(measured) for measured in (job.alone, job.control, job.functions))
        jobs.add_row(job.job, job.gpu, *times, signed(job.tax), signed(job.degradation))
    refused = Text(
        f"Platform control: {report.control.rejected} of {report.control.submitted} requests refused. "
        "DSR: finished within the deadline over submitted; latencies from the instant a request was due."
    )
    return Group(functions, gpus, jobs, refused)


def took(measured: Iterations | None) -> str:
    return "-" if measured is None else f"{measured.mean_s * 1e3:.1f} ± {measured.half_width_s * 1e3:.1f} ms"


# ---- doing it --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One job of the demo."""

    name: str
    partition: local.Partition
    argv: tuple[str, ...]
    workload: str


def trainings(partitions: Sequence[local.Partition], lasting_s: float) -> list[Training]:
    """A job for each of the first partitions; they end by themselves after ``lasting_s`` should nobody end them."""
    return [
        Training(
            name=f"train-{model}",
            partition=partition,
            argv=(
                "zoo.train",
                "--model",
                model,
                "--preset",
                preset_of(partition),
                "--batch",
                str(BATCHES[preset_of(partition)]),
                "--seconds",
                f"{lasting_s:.0f}",
                "--device",
                "cpu" if partition.kind == "cpu" else "cuda",
            ),
            workload=f"{model}/{preset_of(partition)}/training/{BATCHES[preset_of(partition)]}",
        )
        for model, partition in zip(MODELS, partitions, strict=False)
    ]


def preset_of(partition: local.Partition) -> str:
    """The size of the models on it: the paper's on a GPU."""
    return "cpu" if partition.kind == "cpu" else "paper"


class DemoFailed(Exception):
    """The demo cannot go on."""


async def until(met: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; raises DemoFailed."""
    deadline = time.monotonic() + patience_s
    while not met():
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what}: not within {patience_s:.0f} s")
        await asyncio.sleep(0.1)


class Track:
    """The steps of a job, gathered as they come."""

    def __init__(self, path: Path) -> None:
        self._reader = TrackReader(str(path))
        self.steps: list[Step] = []

    def look(self) -> int:
        """Take in what came; how many steps there are."""
        self.steps += self._reader.read_new()
        return len(self.steps)


@contextmanager
def running_alone(training: Training, folder: Path) -> Iterator[Track]:
    """The training command on its partition, as the worker would start it, but without a platform."""
    file = folder / f"{training.name}.track"
    file.unlink(missing_ok=True)
    device = {"CUDA_VISIBLE_DEVICES": training.partition.device} if training.partition.kind != "cpu" else {}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SMORE_TRACK": str(file)} | device
    with (folder / f"{training.name}.log").open("wb") as log, pinned(training.partition):
        process = subprocess.Popen(
            (sys.executable, "-m", *training.argv),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Track(file)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def pinned(partition: local.Partition) -> Iterator[None]:
    """What is started inside keeps to the partition's cores."""
    before = os.sched_getaffinity(0)
    if partition.kind == "cpu":
        os.sched_setaffinity(0, {int(core) for core in partition.device.split(",")})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def sample_input(function: Function, rng: np.random.Generator) -> object:
    """
    One row of what a function takes: small noise for floats, 0 and 1 for integers (every index exists), a small
    document for JSON.
    """
    if function.inputs is None:
        return {"x": [1, 2, 3, 4, 5, 6, 7, 8], "id": "abc"}
    arrays: dict[str, Any] = {}
    for tensor in function.inputs:
        shape = [1, *(size if size > 0 else FREE_AXIS for size in tensor.shape[1:])]
        if tensor.datatype.startswith("FP"):
            arrays[tensor.name] = rng.normal(scale=0.1, size=shape).astype(f"f{int(tensor.datatype[2:]) // 8}")
        else:
            arrays[tensor.name] = rng.integers(0, 2, size=shape, dtype=np.uint8)
    return arrays


async def offer(
    client: AsyncClient,
    plan: Sequence[Due],
    inputs: Sequence[object],
    board: Board,
    *,
    deadline_ms: float | None = None,
) -> list[Sent]:
    """Send every request when it is due, whatever the platform does; their ends, when all have one."""
    done: list[Sent] = []
    began = time.monotonic()

    async def send(due: Due) -> None:
        result: Invocation | ClientError
        board.in_flight += 1
        try:
            result = await client.invoke(FUNCTIONS[due.function], inputs[due.function], deadline_ms=deadline_ms)
        except ClientError as error:
            result = error
        board.in_flight -= 1
        end = Sent(
            function=FUNCTIONS[due.function],
            latency_s=time.monotonic() - began - due.at_s,
            outcome=outcome_of(result),
            cold=isinstance(result, Invocation) and result.timings_ms.get("load", 0.0) > 0,
        )
        done.append(end)
        board.sent.append(end)

    async with asyncio.TaskGroup() as group:
        for due in plan:
            await asyncio.sleep(began + due.at_s - time.monotonic())
            group.create_task(send(due))
    return done


async def watch(client: AsyncClient, tracks: Mapping[str, Track], board: Board) -> None:
    """Keep the board up to date until cancelled."""
    while True:
        with suppress(ClientError):
            board.samples.append(Sample(at=time.time(), gpus=tuple(await client.gpus())))
            board.waiting = {queue.function.rpartition("/")[2]: queue.depth for queue in await client.queues()}
        for name, track in tracks.items():
            track.look()
            board.recent[name] = [duration for _, duration in track.steps[-20:]]
        await asyncio.sleep(SAMPLE_S)


class Demo:
    """One run."""

    def __init__(
        self,
        *,
        home: Path,
        config: Settings,
        seconds: int,
        seed: int,
        rate: float | None,
        trace: Path | None,
        console: Console,
    ) -> None:
        self._home = home.resolve()
        self._config = config
        self._seconds = seconds
        self._seed = seed
        self._console = console
        cores = sorted(os.sched_getaffinity(0))
        self._cores = cores
        self._partitions = local.gpu_partitions() or local.plan_partitions(cores)
        self._rate = rate or min(MOST_RATE, RATE_PER_CORE * max(1, len(cores) - 1))
        if trace is None:
            self._traffic, counts = "Azure-shaped synthetic traffic", synthetic_counts(len(FUNCTIONS), seconds, seed)
        else:
            self._traffic = "Azure Functions 2019 trace, a minute as a second"
            counts = trace_counts(trace, len(FUNCTIONS), seconds)
        self._plan = arrivals(counts, self._rate, seed)
        self._trainings = trainings(self._partitions, lasting_s=300 + 3 * seconds)
        self._was_up = local.endpoints(self._home) is not None
        expected = {
            Phase.ALONE: 20.0,
            Phase.UP: 6.0,
            Phase.DEPLOY: 15.0,
            Phase.JOBS: 15.0,
            Phase.CONTROL: CONTROL_S,
            Phase.TRAFFIC: float(seconds),
            Phase.DOWN: 3.0,
        }
        if self._was_up:
            # Its processes would be there in "alone"; and it stays.
            expected = {
                phase: took_s for phase, took_s in expected.items() if phase not in (Phase.ALONE, Phase.UP, Phase.DOWN)
            }
        self._board = Board(progress=Progress(expected))

    def run(self) -> DemoReport:
        """
        All phases. Raises DemoFailed, ClientError, local.ServerMissing, local.StartFailed; what was started is stopped
        in any case.
        """
        affinity = os.sched_getaffinity(0)
        with Live(self._board, console=self._console, refresh_per_second=2, transient=True):
            try:
                return asyncio.run(self._run())
            finally:
                os.sched_setaffinity(0, affinity)
                if not self._was_up:
                    self._enter(Phase.DOWN)
                    local.down(self._home)

    def _enter(self, phase: Phase, note: str = "") -> None:
        self._board.progress.enter(phase)
        self._board.note = note
        if not self._console.is_terminal:
            self._console.print(f"{phase}{f': {note}' if note else ''}", highlight=False)

    async def _run(self) -> DemoReport:
        alone: dict[str, Iterations | None] = {}
        if not self._was_up:
            alone = await self._alone()
            self._enter(Phase.UP)
            await asyncio.to_thread(local.up, self._home, config=self._config)
            if self._partitions[0].kind == "cpu":
                # The load generator belongs to the platform's side, not to a partition.
                os.sched_setaffinity(0, {self._cores[0]})
        reached = local.endpoints(self._home)
        if reached is None:
            raise DemoFailed("the platform went down")
        async with AsyncClient(reached.gateway_url, (self._home / "key").read_text().strip()) as client:
            return await self._measure(client, alone)

    async def _alone(self) -> dict[str, Iterations | None]:
        self._enter(
            Phase.ALONE, ", ".join(f"{training.name} on {training.partition.gpu}" for training in self._trainings)
        )
        folder = self._home / "demo"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as stack:
            tracks = {
                training.name: stack.enter_context(running_alone(training, folder)) for training in self._trainings
            }
            await until(
                lambda: all(track.look() >= SETTLE_STEPS for track in tracks.values()),
                f"training (its logs are in {folder})",
            )
            begin = time.time()
            while time.time() < begin + ALONE_S:
                for name, track in tracks.items():
                    track.look()
                    self._board.recent[name] = [duration for _, duration in track.steps[-20:]]
                await asyncio.sleep(SAMPLE_S)
            for track in tracks.values():
                track.look()
            return {name: iterations(track.steps, begin, time.time()) for name, track in tracks.items()}

    async def _measure(self, client: AsyncClient, alone: Mapping[str, Iterations | None]) -> DemoReport:
        deployed = await self._deploy(client)
        rng = np.random.default_rng((self._seed, 2))
        inputs = [sample_input(deployed[name], rng) for name in FUNCTIONS]
        deadlines_s = {
            name: function.deadline_ms / 1e3 for name, function in deployed.items() if function.deadline_ms is not None
        }
        self._enter(Phase.JOBS)
        jobs = {
            training.name: await client.start_job(
                training.name, training.argv, [training.partition.gpu], workload=training.workload
            )
            for training in self._trainings
        }
        tracks = {name: Track(self._home / "run" / "jobs" / f"{job.id}.track") for name, job in jobs.items()}
        watching = asyncio.create_task(watch(client, tracks, self._board))
        try:
            await until(
                lambda: all(len(track.steps) >= SETTLE_STEPS for track in tracks.values()), "the jobs' first iterations"
            )
            self._enter(Phase.CONTROL, "the same load as later, with a deadline that nothing can meet")
            part = typical_part(self._plan, self._seconds, CONTROL_S)
            refused = offer(client, part, inputs, self._board, deadline_ms=CONTROL_DEADLINE_MS)
            control_load, control = await self._window(refused, CONTROL_S)
            self._board.sent.clear()
            self._enter(Phase.TRAFFIC, f"{self._traffic}, {self._rate:.0f} requests/s")
            sent, traffic = await self._window(offer(client, self._plan, inputs, self._board), self._seconds)
        finally:
            watching.cancel()
            for job in jobs.values():
                with suppress(ClientError):
                    await client.stop_job(job.id)
        for track in tracks.values():
            track.look()
        return DemoReport(
            traffic=self._traffic,
            seconds=self._seconds,
            rate=self._rate,
            seed=self._seed,
            functions=[
                function_figures(name, [request for request in sent if request.function == name], deadlines_s)
                for name in FUNCTIONS
            ],
            total=function_figures("all", sent, deadlines_s),
            control=function_figures("control", control_load, {}),
            gpus=gpu_figures(self._board.samples, control, traffic),
            jobs=[
                job_figures(
                    training.name,
                    training.partition.gpu,
                    alone.get(training.name),
                    iterations(tracks[training.name].steps, *control),
                    iterations(tracks[training.name].steps, *traffic),
                )
                for training in self._trainings
            ],
        )

    async def _deploy(self, client: AsyncClient) -> dict[str, Function]:
        # A checkout's: the zoo is no part of the package.
        from zoo import documents

        deployed: dict[str, Function] = {}
        for name in FUNCTIONS:
            self._enter(Phase.DEPLOY, name)
            deployed[name] = await client.deploy(documents.document(name, preset_of(self._partitions[0])))
        deadline = time.monotonic() + PATIENCE_S
        while any(function.revision == 0 for function in deployed.values()):
            if time.monotonic() > deadline:
                raise DemoFailed(
                    "no canary has passed yet:"
                    f" {', '.join(name for name, function in deployed.items() if function.revision == 0)}"
                )
            await asyncio.sleep(0.2)
            deployed = {name: await client.function(name) for name in FUNCTIONS}
        # The derived inputs stand in the function, not in the answer to its deploy.
        return {name: await client.function(name) for name in FUNCTIONS}

    async def _window(self, load: Awaitable[list[Sent]], seconds: float) -> tuple[list[Sent], Window]:
        """
        Carry a load out; its requests and the time it was offered in (not the time until the last of it was answered).
        """
        begin = time.time()
        sent = await load
        await asyncio.sleep(begin + seconds - time.time())
        return sent, (begin, begin + seconds)


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m smore.demo", description="A minute of traffic next to training.")
    parser.add_argument("--seconds", type=int, default=60, help="of traffic; a second stands for a minute of the trace")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rate", type=float, help=f"requests per second on average (default: {RATE_PER_CORE:.0f} a core)"
    )
    parser.add_argument(
        "--trace", type=Path, help="invocations per minute in the Azure Functions 2019 format (default: synthetic)"
    )
    parser.add_argument("--json", action="store_true", help="end the output with one line of JSON")
    parsed = parser.parse_args(words)
    if parsed.seconds < 1 or (parsed.rate is not None and parsed.rate <= 0):
        parser.error("--seconds must be at least 1 and --rate above 0")
    return parsed


def main(words: Sequence[str]) -> int:
    asked = arguments(words)
    from bench import report as bench

    console = Console(stderr=True)
    config = Settings()
    trace = asked.trace or (TRACE if TRACE.exists() else None)
    try:
        demo = Demo(
            home=config.home,
            config=config,
            seconds=asked.seconds,
            seed=asked.seed,
            rate=asked.rate,
            trace=trace,
            console=console,
        )
        report = demo.run()
    except (DemoFailed, ClientError, OSError, ValueError, local.ServerMissing, local.StartFailed) as error:
        console.print(f"demo: {error}", style="red", highlight=False, markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    file = config.home / "demo-report.json"
    whole = bench.result("python -m smore.demo", report.figures(), report=asdict(report))
    file.write_text(json.dumps(whole, indent=2))
    # Into a file or a pipe the tables keep their width: there is no screen to fit.
    width = None if (sys.stderr if asked.json else sys.stdout).isatty() else 130
    Console(stderr=asked.json, width=width).print(tables(report), Text(f"All figures: {file}"))
    if asked.json:
        print(json.dumps(whole, allow_nan=False), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
