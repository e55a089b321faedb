"""
The answers to who reads a log (smore/redis/logs.py): its newest lines, or those that come, as server-sent events.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from fastapi import Request
from starlette.responses import Response

from api.dates import moment
from api.deps import Gateway
from api.invoke.response import JSON_TYPE, BytesResponse
from api.server.invocation_description import header
from api.server.sse import MEDIA_TYPE, Event, event_stream, has_room
from smore.domain.errors import InvalidInput, LimitReached
from smore.messages.logs import LogPiece
from smore.redis.catalog import KeyEntry
from smore.redis.logs import POSITION, LogLine, LogReader, check_position

#: The answer of a route that can be followed, for the API's description.
FOLLOWED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {
            MEDIA_TYPE: {
                # Of each event.
                "schema": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "description": "Where it stands, for `Last-Event-ID`"},
                        "data": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "description": "The line as JSON, as `LogLine` is",
                        },
                        "event": {"const": "end", "description": "Of the last event: there will be no more lines"},
                    },
                },
                "example": 'id: 1769860800000-0.0\ndata: {"id":"1769860800000-0.0","stream":"stdout","text":"hello"}\n\n',
            }
        }
    }
}


#: The header with which a follower goes on, for the same.
CONTINUED: Final[dict[str, Any]] = {
    "parameters": [
        header(
            "Last-Event-ID",
            "With `follow=true`: go on behind this line, by the `id` of its event",
            pattern=f"^({POSITION.pattern})?$",
        )
    ]
}

#: Seconds between two looks whether what is followed is over.
OVER_S: Final = 2.0


class LogRequest:
    """
    What a reader asks for: of the log named ``log`` the newest ``lines`` lines of the ``wanted`` pieces, none older than
    ``since`` (epoch seconds). ``goes_on``: whether the reader may still see it, which is asked while it is followed;
    ``over``: whether nothing more will come, which is asked while nothing comes.
    """

    def __init__(
        self,
        gateway: Gateway,
        caller: KeyEntry,
        log: str,
        *,
        lines: int,
        since: float = 0.0,
        wanted: Callable[[LogPiece], bool] = lambda _: True,
        goes_on: Callable[[], bool] = lambda: True,
        over: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._gateway = gateway
        self._caller = caller
        self._reader = LogReader(gateway.redis, gateway.settings.redis.prefix)
        self._log, self._lines, self._since, self._wanted = log, lines, since, wanted
        self._goes_on = goes_on
        self._over = over

    async def newest(self, request: Request) -> Response:
        """The lines that are there, as JSON. Raises InvalidInput for a ``Last-Event-ID`` that is none."""
        _goes_on_behind(request)
        lines, _ = await self._reader.last(self._log, self._lines, since=self._since, wanted=self._wanted)
        body = b'{"lines":[%b]}' % b",".join(map(_shown, lines))
        return BytesResponse(200, body, request.scope["request_id"], [JSON_TYPE])

    async def follow(self, request: Request) -> Response:
        """
        The lines that are there, then those that come, as events; with ``Last-Event-ID`` those behind that line.

        Raises InvalidInput as :meth:`newest` does, LimitReached where as many follow as may.
        """
        gateway = self._gateway
        position = _goes_on_behind(request)
        if not has_room(gateway.followers, self._caller, gateway.settings.logs.followers):
            raise LimitReached("As many follow logs here as may.", limit="followers", retry_after_s=10)
        looked_at, was_over = time.monotonic(), False

        async def read() -> list[Event] | None:
            nonlocal position, looked_at, was_over
            if position:
                lines, position = await self._reader.after(self._log, position, wanted=self._wanted)
            else:
                lines, position = await self._reader.last(
                    self._log, self._lines, since=self._since, wanted=self._wanted
                )
            if not lines and self._over is not None and time.monotonic() - looked_at >= OVER_S:
                # Its last lines come about when its end is known: only what was over a while ago is.
                if was_over:
                    return None
                looked_at, was_over = time.monotonic(), await self._over()
            return [Event(id=line.position, data=_shown(line)) for line in lines]

        return event_stream(request, read, self._may_go_on, gateway.followers, self._caller.project)

    def _may_go_on(self) -> bool:
        return self._caller.id in self._gateway.catalog.keys and self._goes_on()


def _shown(line: LogLine) -> bytes:
    """A line as JSON, in the form of api/schemas/logs.py."""
    piece = line.piece
    return orjson.dumps(
        {
            "id": line.position,
            "at": moment(piece.at),
            "stream": piece.stream,
            "text": line.text,
            "revision": piece.revision,
            "invocations": piece.invocations,
            "attempt": piece.attempt,
            "gpu": piece.gpu,
            "node": piece.node,
        }
    )


def _goes_on_behind(request: Request) -> str:
    """The position behind which the reader goes on, '' = it begins anew. Raises InvalidInput."""
    last_id = request.headers.get("last-event-id", "")
    try:
        return check_position(last_id) if last_id else ""
    except ValueError as error:
        raise InvalidInput.at("Last-Event-ID", str(error)) from error
