"""
Arrivals that were recorded elsewhere: forecasters learn from them until the platform has counted a function for long
enough.
"""

import hashlib
import tempfile
import time
from datetime import datetime
from math import floor
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import StringConstraints

from api.dates import moment
from api.deps import AdminKey, Gateway, ReadKey, TheGateway, TheTrail, Trail
from api.schemas import traces as schemas
from api.schemas.fields import Moment
from api.server.bodies import BoundedRoute
from smore.domain.errors import FunctionNotFound, InvalidInput, NotFound, PayloadTooLarge
from smore.domain.quote import quoted
from smore.domain.spelling import nothing_named
from smore.redis.catalog import KeyEntry
from smore.redis.forecasts import PublishedForecasts
from smore.traces.recorded import MINUTE_S, MOST_CHARACTERS, Trace, read_trace

if TYPE_CHECKING:
    from smore.postgres.arrivals import Imported

router = APIRouter(prefix="/v1/traces", tags=["prewarming"], route_class=BoundedRoute)

#: Most bytes of a request, packed or not; what they unpack to is bounded too.
MOST_BYTES = MOST_CHARACTERS
#: Most functions that one trace is given to.
MOST_FUNCTIONS = 1000

_FILES = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("text/csv", "application/gzip")}
Name = Annotated[str, StringConstraints(min_length=1, max_length=512)]


@router.post("", status_code=201, openapi_extra={"requestBody": {"required": True, "content": _FILES}})
async def import_trace(
    gateway: TheGateway,
    caller: AdminKey,
    trail: TheTrail,
    request: Request,
    name: Annotated[
        str,
        Query(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$", description="The file's name, for people and messages"),
    ] = "trace.csv",
    give: Annotated[
        list[Name] | None,
        Query(
            alias="map",
            max_length=MOST_FUNCTIONS,
            description="`NAME=FUNCTION`: arrivals of NAME in the file are those of FUNCTION",
        ),
    ] = None,
    deal: Annotated[
        list[Name] | None,
        Query(max_length=MOST_FUNCTIONS, description="Functions that get the busiest names of the file, in this order"),
    ] = None,
    end: Annotated[
        Moment | None,
        Query(description="When its last minute ended; default: as the file's dates say, else now"),
    ] = None,
) -> schemas.Trace:
    """
    Add recorded arrivals to the past of this project's functions. Where neither `map` nor `deal` is given, the names in
    the file are those of functions.

    The body is a CSV file, gzip or not: a row for each function and a column for each minute of the day, as in the
    Azure Functions trace of 2019 (`HashFunction`, `1` to `1440`), or a row for each arrival (`function`, `timestamp`).
    A row that cannot be used is refused with its line and field, and nothing is kept. Forecasters learn from the trace
    when the next minute begins. Minutes that the platform has counted itself take precedence; no counter and no limit
    contains imported arrivals.
    """
    with tempfile.TemporaryDirectory(prefix="smore-trace-") as folder:
        file = File(folder) / name
        digest = await _receive(request, file)
        chosen, from_at = await run_in_threadpool(_choose, gateway, caller.project, file, give or [], deal or [], end)
        return await run_in_threadpool(_keep, gateway, caller, trail, name, digest, from_at, chosen)


async def _receive(request: Request, file: File) -> str:
    """Write the body into a file and return its SHA-256. Raises PayloadTooLarge."""
    digest, size = hashlib.sha256(), 0
    with file.open("wb") as target:
        async for piece in request.stream():
            size += len(piece)
            if size > MOST_BYTES:
                raise PayloadTooLarge(f"A trace has {MOST_BYTES >> 20} MiB at most.", limit=MOST_BYTES)
            digest.update(piece)
            await run_in_threadpool(target.write, piece)
    return digest.hexdigest()


def _choose(
    gateway: Gateway, project: str, file: File, give: list[str], deal: list[str], end: datetime | None
) -> tuple[dict[str, tuple[str, list[int]]], int]:
    """
    Function → (name in the file, arrivals per minute), and where they begin. Raises BadTrace, InvalidInput,
    FunctionNotFound.
    """
    trace = read_trace(file)
    mine = {key.partition("/")[2] for key in list(gateway.catalog.functions) if key.partition("/")[0] == project}
    names = _given(trace, mine, give, deal)
    from_at = _begin(trace, end)
    counts = trace.counts(names.values())
    return {function: (source, counts[source]) for function, source in names.items()}, from_at


def _given(trace: Trace, mine: set[str], give: list[str], deal: list[str]) -> dict[str, str]:
    """Function → name in the file."""
    names: dict[str, str] = {}
    for each in give:
        source, _, function = each.rpartition("=")
        if source not in trace.totals:
            raise InvalidInput.at("map", f"{quoted(source)} is not in the file")
        names[_new(function, mine, names, "map")] = source
    dealt = trace.busiest(len(deal), without=names.values())
    if len(dealt) < len(deal):
        raise InvalidInput.at("deal", f"the file has {len(dealt)} names left for {len(deal)} functions")
    for function, source in zip(deal, dealt, strict=True):
        names[_new(function, mine, names, "deal")] = source
    if not give and not deal:
        names = {name: name for name in trace.totals if name in mine}
        if not names:
            raise InvalidInput.at(
                "map", "the file names no function of this project; say by `map` or `deal` whose arrivals these are"
            )
    if len(names) > MOST_FUNCTIONS:
        raise InvalidInput.at("map", f"a trace is given to {MOST_FUNCTIONS} functions at most")
    return names


def _new(function: str, mine: set[str], names: dict[str, str], field: str) -> str:
    if function not in mine:
        raise FunctionNotFound.at(field, nothing_named("function", function, mine, "in this project"))
    if function in names:
        raise InvalidInput.at(field, f"{quoted(function)} is named twice")
    return function


def _begin(trace: Trace, end: datetime | None) -> int:
    """Epoch seconds of the trace's first minute. Raises InvalidInput where forecasters would not see it."""
    from smore.postgres.arrivals import SPAN_MIN

    now = floor(time.time() / MINUTE_S) * MINUTE_S
    length = trace.minutes * MINUTE_S
    laid = trace.from_at + length if trace.dated else now
    until = floor(end.timestamp() / MINUTE_S) * MINUTE_S if end is not None else laid
    if until > now:
        raise InvalidInput.at("end", "the trace would end in the future")
    if until <= now - SPAN_MIN * MINUTE_S:
        raise InvalidInput.at(
            "end", f"the trace ends before the last {SPAN_MIN} minutes, which forecasters look at; give a later `end`"
        )
    return until - length


def _keep(
    gateway: Gateway,
    caller: KeyEntry,
    trail: Trail,
    name: str,
    digest: str,
    from_at: int,
    chosen: dict[str, tuple[str, list[int]]],
) -> schemas.Trace:
    with trail.change(caller, f"trace/{name}") as change:
        made = gateway.prewarming().import_trace(
            caller.project, name=name, digest=digest, from_at=from_at, counts=chosen
        )
        change.after = {
            "id": made.id,
            "digest": digest,
            "functions": {function: source for function, (source, _) in made.functions.items()},
        }
    _changed(gateway)
    return _shown(made)


def _changed(gateway: Gateway) -> None:
    PublishedForecasts(gateway.client(), gateway.settings.redis.prefix).imports_changed()


@router.get("")
def list_traces(gateway: TheGateway, caller: ReadKey) -> schemas.Traces:
    """List the traces that were imported into this project, the newest first."""
    return schemas.Traces(traces=[_shown(trace) for trace in gateway.prewarming().traces(caller.project)])


@router.delete("/{trace}")
def remove_trace(
    gateway: TheGateway, caller: AdminKey, trail: TheTrail, trace: Annotated[int, Path(ge=1, le=2**63 - 1)]
) -> schemas.TraceRemoved:
    """Remove an imported trace. Forecasters are fitted without it when the next minute begins."""
    with trail.change(caller, f"trace/{trace}") as change:
        if not gateway.prewarming().remove_trace(caller.project, trace):
            raise NotFound(f"There is no trace {trace}.")
        change.after = {"removed": trace}
    _changed(gateway)
    return schemas.TraceRemoved(id=trace)


def _shown(trace: "Imported") -> schemas.Trace:
    return schemas.Trace.of(
        trace,
        since=moment(trace.from_at),
        until=moment(trace.until_at),
        functions=[
            schemas.TraceFunction(function=function, source=source, arrivals=arrivals)
            for function, (source, arrivals) in sorted(trace.functions.items())
        ],
    )
