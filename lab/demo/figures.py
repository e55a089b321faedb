"""The demo's figures: what became of the requests, of the GPU instances and of the trainings' iteration times."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from smore_client import ApiError, ClientError
from smore_client.types import Gpu, Invocation, State, Statement, Verdict

Step = tuple[float, float]


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
    functions' and whatever else has changed between the phases. ``loss`` with its 95 % interval, of the whole life of
    the job, is the platform's: of closed windows. ``verdict``: in words, with the reason where nothing is proven.
    """

    job: str
    gpu: str
    alone: Iterations | None
    control: Iterations | None
    functions: Iterations | None
    tax: float | None
    degradation: float | None
    budget: float
    loss: float | None
    loss_low: float | None
    loss_high: float | None
    verdict: str


def job_figures(
    job: str,
    gpu: str,
    alone: Iterations | None,
    control: Iterations | None,
    functions: Iterations | None,
    statement: Statement,
) -> JobFigures:
    return JobFigures(
        job=job,
        gpu=gpu,
        alone=alone,
        control=control,
        functions=functions,
        tax=slower(control, alone),
        degradation=slower(functions, control),
        budget=statement.budget,
        loss=statement.loss,
        loss_low=statement.loss_low,
        loss_high=statement.loss_high,
        verdict=verdict(statement, control, functions),
    )


def verdict(statement: Statement, control: Iterations | None, functions: Iterations | None) -> str:
    """The statement's, unless the job's own log of iterations says that it lost more than a budget that was kept."""
    least = slower_at_least(functions, control)
    if statement.verdict == Verdict.KEPT and least is not None and least > statement.budget:
        return (
            f"not proven: closed windows say kept, but iterations were at least {100 * least:.1f} % slower than under"
            " platform control; something else slowed them, or windows miss it"
        )
    # What stands before is what functions have got.
    return statement.summary.partition("; ")[2]


def slower(now: Iterations | None, before: Iterations | None) -> float | None:
    """(P_now - P_before) / P_before, P the mean iteration time (the paper's Eq. 1)."""
    return None if now is None or before is None else now.mean_s / before.mean_s - 1


def slower_at_least(now: Iterations | None, before: Iterations | None) -> float | None:
    """:func:`slower` where both intervals lie as near to each other as they may."""
    if now is None or before is None:
        return None
    return (now.mean_s - now.half_width_s) / (before.mean_s + before.half_width_s) - 1


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
            figures[f"{job.job}_budget"] = job.budget
            for name in ("loss", "loss_low", "loss_high"):
                figures[f"{job.job}_{name}"] = getattr(job, name)
            for phase, measured in (("alone", job.alone), ("control", job.control), ("functions", job.functions)):
                figures[f"{job.job}_iteration_{phase}_ms"] = None if measured is None else measured.mean_s * 1e3
        return {name: float(value) for name, value in figures.items() if value is not None}
