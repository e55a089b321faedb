"""
The operations that read the past, for both clients; see :mod:`smore_client.requests`.

``since`` and ``until`` are moments with their zones. A series is columns: the n-th value of each belongs to the n-th moment of
``at``. The platform chooses the step where ``step_s`` is None, and a longer one where there would be more than 1,500.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

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


class SeriesRequests:
    """Reads what the platform knows over time."""

    @operation
    def gpu_series(
        self,
        gpus: Sequence[str] = (),
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: int | None = None,
    ) -> Flow[GpuSeries]:
        """
        How busy GPU instances were, all or these, by default over the last hour; None = it did not report.

        >>> client.gpu_series(["cpu0"]).gpus["cpu0"].used[-3:]
        [0.93, 0.95, 0.94]
        """
        call = request("GET", "gpus:series", query=_window(since, until, step_s))
        named = tuple(("gpu", gpu) for gpu in gpus)
        return (yield from fetch(GpuSeries, replace(call, query=call.query + named)))

    @operation
    def gpu_lanes(
        self,
        gpu: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: int | None = None,
        project: str | None = None,
        all_projects: bool = False,
    ) -> Flow[GpuLanes]:
        """
        What was on a GPU instance beside its trainings, by default over the last hour: warm instances, closed windows, steps of
        budgets, invocations that ended.

        >>> [(life.function, life.until) for life in client.gpu_lanes("cpu0").warm]
        [('echo', None)]
        """
        query = {**_window(since, until, step_s), "project": project, "all_projects": _flag(all_projects)}
        return (yield from fetch(GpuLanes, request("GET", "gpus", gpu, "lanes", query=query)))

    @operation
    def function_series(
        self,
        function: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: int | None = None,
        revision: int | None = None,
        project: str | None = None,
    ) -> Flow[FunctionSeries]:
        """
        How a function, or one revision of it, was called and served, by default over the last day.

        >>> client.function_series("echo", step_s=3600).p99[-1]
        0.0055
        """
        query = {**_window(since, until, step_s), "revision": revision, "project": project}
        return (yield from fetch(FunctionSeries, request("GET", "functions", function, "series", query=query)))

    @operation
    def served(
        self,
        function: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: int | None = None,
        project: str | None = None,
        all_projects: bool = False,
    ) -> Flow[ServedFunctions]:
        """
        How the functions of a project, or the revisions of one ``function``, were served in a span; by default in the last
        hour. With ``step_s`` each function has its arrivals and ends over time too.

        >>> [(each.revision, each.p99) for each in client.served("echo").served]
        [(3, 0.031)]
        """
        whose = {"project": project, "all_projects": _flag(all_projects)}
        query = {**_window(since, until, step_s), "function": function, **whose}
        return (yield from fetch(ServedFunctions, request("GET", "functions:served", query=query)))

    @operation
    def job_series(
        self,
        id_: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: int | None = None,
        project: str | None = None,
    ) -> Flow[JobSeries]:
        """
        How a training went, by default over the last day.

        >>> client.job_series("train").lost_high[-1]
        0.031
        """
        query = {**_window(since, until, step_s), "project": project}
        return (yield from fetch(JobSeries, request("GET", "jobs", id_, "series", query=query)))

    @operation
    def past_attempts(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        project: str | None = None,
        all_projects: bool = False,
    ) -> Flow[PastAttempts]:
        """
        The attempts of all jobs that were going on in a span, by default in the last week, the newest first.

        >>> [(attempt.name, attempt.gpus, attempt.told_s) for attempt in client.past_attempts().attempts]
        [('night', ['cpu0'], 7200.0)]
        """
        query = {**_window(since, until), "limit": limit, "project": project, "all_projects": _flag(all_projects)}
        return (yield from fetch(PastAttempts, request("GET", "jobs", "attempts", query=query)))

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
    def calibration(self, *, project: str | None = None, all_projects: bool = False) -> Flow[Calibration]:
        """
        What was told of functions' degradation against what was measured, over the newest warm runs.

        >>> client.calibration().within
        0.91
        """
        query = {"project": project, "all_projects": _flag(all_projects)}
        return (yield from fetch(Calibration, request("GET", "predictor", "calibration", query=query)))

    @operation
    def harvest(
        self,
        by: str = "project",
        *,
        step: str = "day",
        since: datetime | None = None,
        until: datetime | None = None,
        price: str | None = None,
        project: str | None = None,
        all_projects: bool = False,
    ) -> Flow[Harvest]:
        """
        What functions got out of the GPU instances ``by`` project, function or gpu, each ``step`` (hour or day) and in all, and
        what that cost the trainings; by default over the last week. ``price``: of an hour of a GPU instance, by a part of its
        device's name: ``h100=2.5,a100=1.8``.

        >>> [(part.key, part.run_s) for part in client.harvest(by="function").parts]
        [('default/echo', 5310.5)]
        """
        query = {
            **_window(since, until),
            "by": by,
            "step": step,
            "price": price,
            "project": project,
            "all_projects": _flag(all_projects),
        }
        return (yield from fetch(Harvest, request("GET", "harvest", query=query)))


def _window(since: datetime | None, until: datetime | None, step_s: int | None = None) -> dict[str, object | None]:
    """The query of a span of time."""
    return {
        "since": since.isoformat() if since is not None else None,
        "until": until.isoformat() if until is not None else None,
        "step": step_s,
    }


def _flag(value: bool) -> str | None:
    return "true" if value else None
