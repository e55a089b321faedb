"""The stream of changes that the dashboard reads."""

import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.deps import Listed, ReadKey, TheGateway
from api.live import Live
from api.schemas.live import Topic
from api.server.bodies import BoundedRoute
from api.server.sse import MEDIA_TYPE, Event, event_stream
from api.session import SessionCaller

router = APIRouter(prefix="/v1", tags=["live"], route_class=BoundedRoute)

#: Seconds between two looks whether the session of a viewer goes on.
SESSION_S: Final = 10.0
_TOPIC: Final = f"({'|'.join(Topic)})"
_ROWS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The second, epoch"},
        "event": {"enum": ["snapshot", "change"], "description": "All rows of a topic, or those that differ"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "`topic`, `rows` as their list has them, and `gone`: what identifies those that are no more",
        },
    },
}


@router.get(
    "/live",
    response_class=Response,
    responses={
        200: {
            "content": {
                MEDIA_TYPE: {
                    "schema": _ROWS,
                    "example": 'id: 1769860800\nevent: snapshot\ndata: {"topic":"queues","rows":[],"gone":[]}\n\n',
                }
            }
        }
    },
)
async def watch(
    gateway: TheGateway,
    caller: ReadKey,
    of: Listed,
    request: Request,
    topics: Annotated[str, Query(pattern=f"^{_TOPIC}(,{_TOPIC})*$", description=f"With commas: {', '.join(Topic)}")],
) -> Response:
    """
    Watch GPU instances, queues, trainings and problems, as server-sent events: each topic whole once, then every second
    the rows that have changed. The rows are those of `GET /v1/gpus?silent=true` (known by `id`), `GET /v1/queues` (by
    `PROJECT/FUNCTION`) and `GET /v1/jobs` (by `id`). A problem has `id`, `kind`, `text`, `since`, the `page` of the
    dashboard and the `command` that says more.

    A client that does not read for as long as 256 KiB take is cut off, and connects again.
    """
    live: Live = request.app.state.live
    viewer = live.viewer(caller, of, [Topic(name) for name in topics.split(",")])
    looked_at = time.monotonic()

    async def read() -> list[Event] | None:
        nonlocal looked_at
        if isinstance(caller, SessionCaller) and time.monotonic() - looked_at >= SESSION_S:
            looked_at = time.monotonic()
            if await gateway.sessions.used(caller.session) is None:
                return None
        return await viewer.take()

    def goes_on() -> bool:
        return not viewer.cut and caller.id in gateway.catalog.keys

    return event_stream(request, read, goes_on, live.viewers, caller.project, viewer, zipped=True)
