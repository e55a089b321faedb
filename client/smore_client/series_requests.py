"""
The operations that read the past, for both clients; see :mod:`smore_client.requests`.

A series is columns: the n-th value of each belongs to the n-th moment of ``at``.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict, Unpack

from smore_client.operation import operation
from smore_client.transport import Flow, fetch, request
from smore_client.types import (
    Calibration,
    FunctionSeries,
    GpuLanes,
    GpuSeries,
    Harvest,
    JobSeries,
    PastAttempts,
    PredictorVersion,
    PredictorVersions,
    ServedFunctions,
)


class Span(TypedDict, total=False):
    """The span that is asked for, by moments with their zones."""

    since: datetime | None
    until: datetime | None


class Steps(Span, total=False):
    """The span of a series."""

    #: None = the platform chooses it; where there would be more than 1,500 steps it takes longer ones.
    step_s: int | None


class Whose(TypedDict, total=False):
    """Of which project, in place of the key's own, for operators."""

    project: str | None
    all_projects: bool


class SpanOf(Span, Whose, total=False):
    """A span, and of which project."""


class StepsOf(Steps, Whose, total=False):
    """The span of a series, and of which project."""


class SeriesRequests:
    """Reads what the platform knows over time."""

    @operation
    def gpu_series(self, gpus: Sequence[str] = (), **span: Unpack[Steps]) -> Flow[GpuSeries]:
        """
        How busy GPU instances were, all or these, by default over the last hour; None = it did not report.

        >>> client.gpu_series(["cpu0"]).gpus["cpu0"].used[-3:]
        [0.93, 0.95, 0.94]
        """
        query = {**_stepped(span), "gpu": list(gpus)}
        return (yield from fetch(GpuSeries, request("GET", "gpus:series", query=query)))

    @operation
    def gpu_lanes(self, gpu: str, **asked: Unpack[StepsOf]) -> Flow[GpuLanes]:
        """
        What was on a GPU instance beside its trainings, by default over the last hour: warm instances, closed windows, steps of
        budgets, invocations that ended.

        >>> [(life.function, life.until) for life in client.gpu_lanes("cpu0").warm]
        [('echo', None)]
        """
        return (yield from fetch(GpuLanes, request("GET", "gpus", gpu, "lanes", query=_stepped(asked))))

    @operation
    def function_series(
        self, function: str, *, revision: int | None = None, project: str | None = None, **span: Unpack[Steps]
    ) -> Flow[FunctionSeries]:
        """
        How a function, or one revision of it, was called and served, by default over the last day.

        >>> client.function_series("echo", step_s=3600).p99[-1]
        0.0055
        """
        query = {**_stepped(span), "revision": revision, "project": project}
        return (yield from fetch(FunctionSeries, request("GET", "functions", function, "series", query=query)))

    @operation
    def served(self, function: str | None = None, **asked: Unpack[StepsOf]) -> Flow[ServedFunctions]:
        """
        How the functions of a project, or the revisions of one ``function``, were served in a span; by default in the last
        hour. With ``step_s`` each function has its arrivals and ends over time too.

        >>> [(each.revision, each.p99) for each in client.served("echo").served]
        [(3, 0.031)]
        """
        query = {**_stepped(asked), "function": function}
        return (yield from fetch(ServedFunctions, request("GET", "functions:served", query=query)))

    @operation
    def job_series(self, id_: str, *, project: str | None = None, **span: Unpack[Steps]) -> Flow[JobSeries]:
        """
        How a training went, by default over the last day.

        >>> client.job_series("train").lost_high[-1]
        0.031
        """
        query = {**_stepped(span), "project": project}
        return (yield from fetch(JobSeries, request("GET", "jobs", id_, "series", query=query)))

    @operation
    def past_attempts(self, *, limit: int | None = None, **asked: Unpack[SpanOf]) -> Flow[PastAttempts]:
        """
        The attempts of all jobs that were going on in a span, by default in the last week, the newest first.

        >>> [(attempt.name, attempt.gpus, attempt.told_s) for attempt in client.past_attempts().attempts]
        [('night', ['cpu0'], 7200.0)]
        """
        return (yield from fetch(PastAttempts, request("GET", "jobs", "attempts", query={**asked, "limit": limit})))

    @operation
    def predictor_versions(self, limit: int | None = None) -> Flow[list[PredictorVersion]]:
        """
        The fits of the predictor, the newest first.

        >>> [(version.version, version.state) for version in client.predictor_versions()]
        [(4, <PredictorState.CHAMPION: 'champion'>)]
        """
        call = request("GET", "predictor", "versions", query={"limit": limit})
        return (yield from fetch(PredictorVersions, call)).versions

    @operation
    def calibration(self, **whose: Unpack[Whose]) -> Flow[Calibration]:
        """
        What was told of functions' degradation against what was measured, over the newest warm runs.

        >>> client.calibration().within
        0.91
        """
        return (yield from fetch(Calibration, request("GET", "predictor", "calibration", query={**whose})))

    @operation
    def harvest(
        self, by: str = "project", *, step: str = "day", price: str | None = None, **asked: Unpack[SpanOf]
    ) -> Flow[Harvest]:
        """
        What functions got out of the GPU instances ``by`` project, function or gpu, each ``step`` (hour or day) and in all, and
        what that cost the trainings; by default over the last week. ``price``: of an hour of a GPU instance, by a part of its
        device's name: ``h100=2.5,a100=1.8``.

        >>> [(part.key, part.run_s) for part in client.harvest(by="function").parts]
        [('default/echo', 5310.5)]
        """
        query = {**asked, "by": by, "step": step, "price": price}
        return (yield from fetch(Harvest, request("GET", "harvest", query=query)))


def _stepped(asked: Steps | StepsOf) -> dict[str, object]:
    """The query of a series."""
    return {"step" if name == "step_s" else name: value for name, value in asked.items()}
