"""Logs of functions: what their handlers print."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.auth import project_of
from api.deps import OfProject, ReadKey, TheGateway
from api.logs import CONTINUED, FOLLOWED, LogRequest
from api.schemas import logs as schemas
from api.server.bodies import BoundedRoute
from smore.messages.logs import LogPiece
from smore.redis.logs import function_log

router = APIRouter(prefix="/v1/functions", tags=["functions"], route_class=BoundedRoute)

#: Most lines of one answer.
MOST_LINES = 10_000


@router.get("/{function}/logs", response_model=schemas.LogLines, responses=FOLLOWED, openapi_extra=CONTINUED)
async def get_logs(
    gateway: TheGateway,
    caller: ReadKey,
    request: Request,
    function: str,
    invocation: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{32}$", description="Only lines of a batch that this invocation was in")
    ] = None,
    since: Annotated[datetime | None, Query(description="Only lines that came at this moment or later")] = None,
    lines: Annotated[int, Query(ge=0, le=MOST_LINES, description="As many of the newest at most")] = 100,
    follow: Annotated[bool, Query(description="Go on with the lines that come, as server-sent events")] = False,
    project: OfProject = None,
) -> Response:
    """
    Read what a function's handler has printed: standard output, standard error and logging, on whatever GPU instance it
    ran.

    With `follow=true` the answer is a `text/event-stream` that goes on: each event is one line as JSON, and a client
    whose connection ends goes on behind the last line that it has with the header `Last-Event-ID`.
    """
    home = project_of(caller, project)
    key = f"{home}/{function}"
    if key not in gateway.catalog.functions:
        raise gateway.unknown_function(home, function)

    def wanted(piece: LogPiece) -> bool:
        return invocation is None or invocation in piece.invocations

    asked = LogRequest(
        gateway,
        caller,
        function_log(key),
        lines=lines,
        since=since.timestamp() if since is not None else 0.0,
        wanted=wanted,
        goes_on=lambda: key in gateway.catalog.functions,
    )
    return await (asked.follow(request) if follow else asked.newest(request))
