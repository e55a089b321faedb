"""
Server-sent events (the HTML standard's ``text/event-stream``). A client that was disconnected continues after the last
event that it has read.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import redis
from fastapi import Request
from starlette.responses import StreamingResponse

from api.auth import is_operator
from api.server.zipped import BEGIN, deflated, takes_gzip
from smore.redis.catalog import KeyEntry

MEDIA_TYPE: Final = "text/event-stream"
#: Seconds between two looks for events.
LOOK_S: Final = 0.25
#: Seconds between two looks while Redis is away.
AWAY_S: Final = 1.0
#: Seconds without an event after which a comment is sent, so that proxies and clients know that the connection is open.
BEAT_S: Final = 15.0
#: Key in a request's scope: the asyncio event that ends its answer when the server stops (api/server/connections.py).
STOPPING: Final = "smore.stopping"
NOTHING: Final = nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """
    One event. ``id``: without a line end; a client that continues sends it as ``Last-Event-ID``. ``data``: JSON in one
    line; ``kind``: its type, "" = ``message``.
    """

    id: str
    data: bytes
    kind: str = ""

    def written(self) -> bytes:
        """The event as a stream has it."""
        kind = b"event: %b\n" % self.kind.encode() if self.kind else b""
        return b"id: %b\n%bdata: %b\n\n" % (self.id.encode(), kind, self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedEvent(Event):
    """An event of many readers. ``zipped``: as a compressed stream has it."""

    zipped: bytes


def has_room(followers: Mapping[asyncio.Event, str], caller: KeyEntry, most: int) -> bool:
    """
    Whether the caller may follow, beside these. A project's keys get a quarter of the places and leave the last eighth
    free, which operators may take.
    """
    if not is_operator(caller):
        if sum(project == caller.project for project in followers.values()) >= math.ceil(most / 4):
            return False
        most -= most // 8
    return len(followers) < most


def event_stream(
    request: Request,
    read: Callable[[], Awaitable[Sequence[Event] | None]],
    goes_on: Callable[[], bool],
    followers: dict[asyncio.Event, str],
    project: str,
    within: AbstractContextManager[None] = NOTHING,
    *,
    zipped: bool = False,
) -> StreamingResponse:
    """
    An answer with the events that ``read`` returns. ``read`` is called again and again until the client leaves, the
    server stops, ``goes_on`` is false, or it returns None: there will be no more, which an event of the type ``end``
    says. It is called also while Redis is away. ``followers`` holds the answer's stop event and ``project`` meanwhile;
    ``within`` is entered. ``zipped``: in gzip where the client takes it.
    """
    zipped = zipped and takes_gzip(request)
    stopping = request.scope[STOPPING] = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        followers[stopping] = project
        try:
            with within:
                async for piece in _encoded(read, goes_on, stopping, zipped):
                    yield piece
        finally:
            followers.pop(stopping, None)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return StreamingResponse(events(), 200, headers, MEDIA_TYPE)


async def _encoded(
    read: Callable[[], Awaitable[Sequence[Event] | None]],
    goes_on: Callable[[], bool],
    stopping: asyncio.Event,
    zipped: bool,
) -> AsyncIterator[bytes]:
    said: Callable[[bytes], bytes] = deflated if zipped else bytes
    # The headers are sent with the first bytes, so the client knows at once that it is connected.
    yield (BEGIN if zipped else b"") + said(b": connected\n\n")
    said_at = time.monotonic()
    while goes_on() and not stopping.is_set():
        pause_s = LOOK_S
        events: Sequence[Event] | None
        try:
            events = await read()
        except (redis.RedisError, OSError):
            events, pause_s = [], AWAY_S
        if events is None:
            yield said(b"event: end\ndata: {}\n\n")
            return
        if events:
            yield b"".join(
                event.zipped if zipped and isinstance(event, SharedEvent) else said(event.written()) for event in events
            )
            said_at = time.monotonic()
            continue
        if time.monotonic() - said_at >= BEAT_S:
            yield said(b":\n\n")
            said_at = time.monotonic()
        try:
            await asyncio.wait_for(stopping.wait(), pause_s)
        except TimeoutError:
            continue
