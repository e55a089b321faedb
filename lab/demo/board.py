"""What the demo shows: the live display while it runs, and the tables of its report."""

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rich import box
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from lab.demo.figures import DemoReport, Iterations, Sample, Sent, function_figures
from lab.demo.traffic import FUNCTIONS


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
    budgets = Table(
        Column("job", no_wrap=True),
        "budget",
        "loss to functions",
        "verdict",
        title="Budgets, by closed windows, with 95 % intervals",
        box=box.SIMPLE_HEAD,
    )
    for job in report.jobs:
        interval = "" if job.loss_low is None else f" ({signed(job.loss_low)} to {signed(job.loss_high)})"
        budgets.add_row(job.job, share(job.budget), signed(job.loss) + interval, job.verdict)
    refused = Text(
        f"Platform control: {report.control.rejected} of {report.control.submitted} requests refused. "
        "DSR: finished within the deadline over submitted; latencies from the instant a request was due."
    )
    return Group(functions, gpus, jobs, budgets, refused)


def took(measured: Iterations | None) -> str:
    return "-" if measured is None else f"{measured.mean_s * 1e3:.1f} ± {measured.half_width_s * 1e3:.1f} ms"
