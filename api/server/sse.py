"""
Server-sent events (the HTML standard's ``text/event-stream``): an answer that goes on, and that a client resumes behind
the last event that it has read.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import redis
from fastapi import Request
from starlette.responses import StreamingResponse

MEDIA_TYPE: Final = "text/event-stream"
#: Seconds between two looks for events.
LOOK_S: Final = 0.25
#: Seconds between two looks while Redis is away.
AWAY_S: Final = 1.0
#: Seconds without an event after which a comment is sent, so that proxies and clients see that the connection lives.
BEAT_S: Final = 15.0
#: Where a request keeps the event that ends its answer in order (api/server/connections.py).
STOPPING: Final = "smore.stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. ``id`` has no line end; it comes back as ``Last-Event-ID``. ``data``: JSON, in one line."""

    id: str
    data: bytes


def event_stream(
    request: Request,
    read: Callable[[], Awaitable[Sequence[Event] | None]],
    goes_on: Callable[[], bool],
    followers: set[asyncio.Event],
) -> StreamingResponse:
    """
    An answer with the events that ``read`` gives, which is called until the client leaves, the server stops, or
    ``goes_on`` is false; None = there will be no more, which an event of the type ``end`` says. Where Redis is away it is
    called again until Redis is back. While it goes on it is counted among the ``followers``.
    """
    stopping = request.scope[STOPPING] = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        followers.add(stopping)
        try:
            async for piece in _encoded(read, goes_on, stopping):
                yield piece
        finally:
            followers.discard(stopping)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), 200, headers, MEDIA_TYPE)


async def _encoded(
    read: Callable[[], Awaitable[Sequence[Event] | None]], goes_on: Callable[[], bool], stopping: asyncio.Event
) -> AsyncIterator[bytes]:
    # Headers are sent with the first bytes: a client learns at once that it is connected.
    yield b": connected\n\n"
    said_at = time.monotonic()
    while goes_on() and not stopping.is_set():
        pause_s = LOOK_S
        events: Sequence[Event] | None
        try:
            events = await read()
        except (redis.RedisError, OSError):
            events, pause_s = [], AWAY_S
        if events is None:
            yield b"event: end\ndata: {}\n\n"
            return
        if events:
            yield b"".join(b"id: %b\ndata: %b\n\n" % (event.id.encode(), event.data) for event in events)
            said_at = time.monotonic()
            continue
        if time.monotonic() - said_at >= BEAT_S:
            yield b":\n\n"
            said_at = time.monotonic()
        try:
            await asyncio.wait_for(stopping.wait(), pause_s)
        except TimeoutError:
            continue
