"""
What the platform knows over time: GPU instances, functions, trainings, the predictor, the harvest.

``since`` and ``until`` are moments; without them a series ends now. What is older than what is kept is left out, and the answer
says where it begins.
"""

import math
import time
from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query

from api.auth import project_of
from api.dates import moment
from api.deps import Gateway, Listed, OfProject, PageLimit, ReadKey, TheGateway
from api.schemas import series as schemas
from api.schemas.fields import Moment, Word
from api.server.zipped import ZippedRoute
from api.trainings.statements import lost_of
from smore.domain.errors import InvalidInput, NotFound
from smore.domain.loss import estimate_of
from smore.domain.quote import quoted
from smore.domain.spelling import nothing_named
from smore.messages.forecasts import BadForecast, Forecasts
from smore.redis.forecasts import PublishedForecasts

if TYPE_CHECKING:
    from smore.postgres.history.series import Part, StepGrid
    from smore.postgres.history.values import Closed

router = APIRouter(prefix="/v1", tags=["history"], route_class=ZippedRoute)

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
#: Executions of a calibration.
COMPARED: Final = 2000
#: GPU instances that one request may name.
MOST_GPUS: Final = 256

Since = Annotated[Moment | None, Query(description="What happened at this moment or later")]
Until = Annotated[Moment | None, Query(description="What happened before this moment; without it until now")]
Step = Annotated[
    int | None,
    Query(ge=1, le=366 * DAY_S, description="Seconds of a step; without it such that there are about 360 of them"),
]


@router.get("/gpus:series")
def get_gpu_series(
    gateway: TheGateway,
    _caller: ReadKey,
    gpu: Annotated[
        list[Word] | None, Query(max_length=MOST_GPUS, description="Only this GPU instance; may be repeated")
    ] = None,
    since: Since = None,
    until: Until = None,
    step: Step = None,
) -> schemas.GpuSeries:
    """
    Read how busy GPU instances were, by whom, and how much memory was taken; by default over the last hour. Steps are whole
    minutes; those of one GPU instance over at most an hour may be seconds, while these are kept.
    """
    series, kept = gateway.series(), gateway.settings.postgres
    for one in gpu or ():
        _check_gpu(gateway, one)
    from_s, until_s = _span(since, until, HOUR_S, kept.minutes_days * DAY_S)
    seconds = gpu is not None and len(gpu) == 1 and until_s - from_s <= HOUR_S
    seconds = seconds and from_s >= time.time() - min(kept.seconds_hours * HOUR_S, kept.retention_days * DAY_S)
    window = _window(from_s, until_s, step, 1 if seconds else MINUTE_S)
    columns = series.gpus(window, gpu, seconds=seconds)
    return schemas.GpuSeries(**_steps(window), gpus={name: schemas.GpuColumns(**of) for name, of in columns.items()})


def _check_gpu(gateway: Gateway, gpu: str) -> None:
    """Raises NotFound for a GPU instance that never was."""
    if not gateway.series().has_gpu(gpu) and gpu not in (known := gateway.fleet().known()):
        raise NotFound(nothing_named("GPU instance", gpu, known))


@router.get("/gpus/{gpu}/lanes")
def get_gpu_lanes(
    gateway: TheGateway,
    of_project: Listed,
    gpu: Word,
    since: Since = None,
    until: Until = None,
    step: Step = None,
) -> schemas.GpuLanes:
    """
    Read what was on a GPU instance beside its trainings: the project's warm instances and invocations, closed windows and steps
    of budgets; by default over the last hour. Steps are whole minutes.
    """
    _check_gpu(gateway, gpu)
    window = _window(*_span(since, until, HOUR_S, gateway.settings.postgres.retention_days * DAY_S), step)
    warm, columns = gateway.series().lanes(window, gpu, of_project)
    lives = [schemas.WarmLife(**life) for life in warm]
    return schemas.GpuLanes(**(_steps(window) | columns), gpu=gpu, warm=lives)


@router.get("/functions/{function}/series")
def get_function_series(
    gateway: TheGateway,
    caller: ReadKey,
    function: str,
    since: Since = None,
    until: Until = None,
    step: Step = None,
    revision: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only invocations of this revision")] = None,
    project: OfProject = None,
) -> schemas.FunctionSeries:
    """
    Read how a function was called and served: arrivals, ends, deadlines met, cold starts, times; by default over the last day.
    Steps are whole minutes. One that was deleted keeps its past.
    """
    of_project, series = project_of(caller, project), gateway.series()
    if f"{of_project}/{function}" not in gateway.catalog.functions and not series.has_function(of_project, function):
        raise gateway.unknown_function(of_project, function)
    window = _window(*_span(since, until, DAY_S, gateway.settings.postgres.minutes_days * DAY_S), step)
    columns, reasons = series.function(window, of_project, function, revision)
    return schemas.FunctionSeries(
        **(_steps(window) | columns),
        function=function,
        project=of_project,
        revision=revision,
        cold_reasons=reasons,
        forecast=_forecast(gateway, f"{of_project}/{function}"),
    )


@router.get("/functions:served")
def get_served(
    gateway: TheGateway,
    of_project: Listed,
    function: Annotated[
        Word | None, Query(description="The revisions of this function, in place of all functions")
    ] = None,
    since: Since = None,
    until: Until = None,
    step: Annotated[
        int | None,
        Query(ge=1, le=366 * DAY_S, description="Seconds of a step in which arrivals and ends are counted too"),
    ] = None,
) -> schemas.ServedFunctions:
    """
    Compare how the project's functions, or the revisions of one of them, were served over a span of whole minutes; by default
    over the last hour. With `step` each function has its arrivals and ends over time too.
    """
    series = gateway.series()
    from_s, until_s = _span(since, until, HOUR_S, gateway.settings.postgres.minutes_days * DAY_S)
    if function is not None:
        if of_project is None:
            raise InvalidInput.at("all_projects", "a function is of one project")
        found = series.served(from_s, until_s, of_project, function)
        named: dict[str, Any] = {"project": of_project, "function": function}
        served = [schemas.Served(**named, revision=part, **of) for part, of in found.items()]
        return schemas.ServedFunctions(since=_minute(from_s), until=moment(until_s), served=served)
    window = _window(from_s, until_s, step)
    rates: dict[str, dict[str, Any]] = series.rates(window, of_project) if step is not None else {}
    none: dict[str, Any] = {"succeeded": 0, "failed": 0, "met": 0, "cold": 0}
    found = dict.fromkeys(rates, none) | series.served(from_s, until_s, of_project, None)
    served = [
        schemas.Served(project=part.partition("/")[0], function=part.partition("/")[2], **of, **rates.get(part, {}))
        for part, of in sorted(found.items())
    ]
    at = window.at if step is not None else []
    return schemas.ServedFunctions(since=_minute(from_s), until=moment(until_s), at=at, served=served)


def _minute(at: float) -> datetime:
    return moment(at // MINUTE_S * MINUTE_S)


def _forecast(gateway: Gateway, function: str) -> schemas.FunctionForecast | None:
    """From now on; None where there is no forecast that can be read."""
    try:
        forecasts = PublishedForecasts(gateway.client(), gateway.settings.redis.prefix).current()
    except BadForecast:
        return None
    if forecasts is None or function not in forecasts.functions:
        return None
    past = max(0, int((time.time() - forecasts.from_at) // MINUTE_S))
    return schemas.FunctionForecast(
        since=moment(forecasts.from_at + past * MINUTE_S),
        step_s=MINUTE_S,
        source=forecasts.sources[forecasts.functions.index(function)],
        mean=_numbers(forecasts, forecasts.mean, function)[past:],
        any=_numbers(forecasts, forecasts.any, function)[past:],
    )


def _numbers(forecasts: Forecasts, blob: bytes, function: str) -> list[float | None]:
    """The row of a function, NaN = None."""
    begin = forecasts.functions.index(function) * forecasts.horizon
    row = memoryview(blob).cast("f")[begin : begin + forecasts.horizon]
    return [value if value == value else None for value in row]


@router.get("/jobs/attempts")
def list_all_attempts(
    gateway: TheGateway,
    of_project: Listed,
    since: Since = None,
    until: Until = None,
    limit: PageLimit = 200,
) -> schemas.PastAttempts:
    """
    List the attempts of the project's jobs that were going on between two moments, the newest first, each with what was
    expected of its job when it started; by default of the last week.
    """
    from_s, until_s = _span(since, until, 7 * DAY_S)
    found = gateway.series().attempts(from_s, until_s, of_project, limit + 1)
    return schemas.PastAttempts(attempts=[schemas.PastAttempt(**row) for row in found[:limit]], more=len(found) > limit)


@router.get("/jobs/{job}/series")
def get_job_series(
    gateway: TheGateway,
    caller: ReadKey,
    job: str,
    since: Since = None,
    until: Until = None,
    step: Step = None,
    project: OfProject = None,
) -> schemas.JobSeries:
    """
    Read how a job went: iteration times alone and beside functions, iterations, what it had lost by each step, and what was
    harvested beside it; by default over the last day. Steps are whole minutes. One that is over keeps its past.
    """
    record = gateway.store().jobs.find(project_of(caller, project), job)
    window = _window(*_span(since, until, DAY_S, gateway.settings.postgres.retention_days * DAY_S), step)
    series = gateway.series()
    columns = series.job(window, record.id)
    harvested = bool(gateway.reader().harvested([record.id]))
    known = []
    for at, ranks in series.job_lost(window, record.id):
        lost = lost_of(record, {rank: _closed(at, sums) for rank, sums in ranks.items()}, harvested=harvested)
        known += [(at, lost.mean, lost.low, lost.high)] if lost is not None else []
    for name, column in window.columns(("lost", "lost_low", "lost_high"), known).items():
        # What was known last holds on.
        columns[name] = list(accumulate(column, lambda before, now: before if now is None else now))
    return schemas.JobSeries(**(_steps(window) | columns), id=record.id, name=record.name, budget=record.request.budget)


def _closed(at: float, sums: Any) -> "Closed":
    from smore.postgres.history.values import Closed

    return Closed(first_at=at, last_at=at, sums=sums)


@router.get("/predictor/versions")
def list_predictor_versions(gateway: TheGateway, _caller: ReadKey, limit: PageLimit = 20) -> schemas.PredictorVersions:
    """List the fits of the predictor with what became of each and how far it errs, the newest first."""
    return schemas.PredictorVersions(versions=gateway.profiles().predictors(limit))


@router.get("/predictor/calibration")
def get_calibration(
    gateway: TheGateway,
    of_project: Listed,
    limit: Annotated[int, Query(ge=1, le=COMPARED, description="The most runs that are compared")] = COMPARED,
) -> schemas.Calibration:
    """
    Compare what was told of functions' degradation with what was measured, over the newest warm runs. A run whose time alone
    was assumed is not compared.
    """
    found = gateway.series().calibration(of_project, limit)
    known = [run for run in found if run["known"]][:limit]
    columns = {name: [run[name] for run in known] for name in ("at", "function", "device", "told", "bound", "measured")}
    within = sum(run["measured"] <= run["bound"] for run in known)
    return schemas.Calibration(
        **columns, within=within / len(known) if known else None, assumed=sum(not run["known"] for run in found)
    )


@router.get("/harvest")
def get_harvest(
    gateway: TheGateway,
    of_project: Listed,
    by: Annotated[Literal["project", "function", "gpu"], Query(description="What it is summed up by")] = "project",
    step: Annotated[Literal["hour", "day"], Query(description="How much a step is, of UTC")] = "day",
    since: Since = None,
    until: Until = None,
    price: Annotated[
        Word | None,
        Query(description="Prices of an hour of a GPU instance by a part of its device's name, as `h100=2.5,a100=1.8`"),
    ] = None,
) -> schemas.Harvest:
    """
    Read what the project's functions got out of the GPU instances and what its trainings lost to functions, by hour or day and
    in all; by default over the last week. A training loses to whatever runs beside it, so that nothing is said of it by
    function. Of several prices that name a device the first one counts.
    """
    span = _span(since, until, 7 * DAY_S, gateway.settings.postgres.minutes_days * DAY_S)
    window = _window(*span, DAY_S if step == "day" else HOUR_S, HOUR_S)
    series, named = gateway.series(), _prices(price)
    devices = series.devices(window, of_project) if named else {}
    priced = {gpu: _price(device or "", named) for gpu, device in devices.items()}
    found = series.harvest(window, by, of_project, {gpu: of for gpu, of in priced.items() if of is not None})
    steps = _steps(window)
    return schemas.Harvest(
        since=steps["since"],
        until=steps["until"],
        step_s=window.step_s,
        parts=[schemas.HarvestPart(at=part.at, **_harvested(part)) for part in found if part.at is not None],
        totals=[_total(part) for part in found if part.at is None],
        unpriced=sorted({devices[gpu] or "" for gpu, of in priced.items() if of is None}),
    )


def _prices(given: str | None) -> dict[str, float]:
    """By a part of the device's name, in small letters. Raises InvalidInput."""
    prices = {}
    for one in given.split(",") if given else ():
        name, _, amount = one.strip().rpartition("=")
        try:
            prices[name.strip().lower()] = price = float(amount)
        except ValueError:
            price = math.nan
        if not name.strip() or not 0 <= price < math.inf:
            raise InvalidInput.at("price", f"{quoted(one)} is no price; one is h100=2.5")
    return prices


def _price(device: str, prices: Mapping[str, float]) -> float | None:
    """The first one whose name is a part of the device's."""
    return next((price for name, price in prices.items() if name in device.lower()), None)


def _harvested(part: "Part") -> dict[str, Any]:
    lost = estimate_of(part.lost) if part.lost is not None else None
    return schemas.Harvested.row(
        part,
        lost=lost.mean if lost is not None else None,
        lost_low=lost.low if lost is not None else None,
        lost_high=lost.high if lost is not None else None,
        windows=part.lost.windows if part.lost is not None else 0,
    )


def _total(part: "Part") -> schemas.HarvestTotal:
    of = _harvested(part)
    # A loss is a part of the time without it.
    lost_s = part.trained_s * of["lost"] / (1 + of["lost"]) if of["lost"] is not None else None
    return schemas.HarvestTotal(**of, trained_s=part.trained_s, lost_s=lost_s)


def _span(
    since: datetime | None, until: datetime | None, usual_s: float, kept_s: float = math.inf
) -> tuple[float, float]:
    """
    The span that is asked for, epoch seconds, without what is older than what is kept. Raises InvalidInput for one that begins
    in the future or does not begin before it ends.
    """
    now = time.time()
    if since is not None and since.timestamp() > now:
        raise InvalidInput.at("since", "it lies in the future")
    if since is not None and until is not None and since >= until:
        raise InvalidInput.at("since", "it is not before until")
    until_s = min(now, until.timestamp()) if until is not None else now
    since_s = max(since.timestamp() if since is not None else until_s - usual_s, now - kept_s)
    return max(0.0, min(since_s, until_s)), max(0.0, until_s)


def _window(since_s: float, until_s: float, step: int | None, least_s: int = MINUTE_S) -> "StepGrid":
    from smore.postgres.history.series import StepGrid

    return StepGrid.over(since_s, until_s, step, least_s=least_s)


def _steps(window: "StepGrid") -> dict[str, Any]:
    return {
        "since": moment(window.since),
        "until": moment(window.until),
        "step_s": window.step_s,
        "at": window.at,
    }
