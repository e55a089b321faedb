"""Logs line by line: the lines that are there, and those that come, as server-sent events. Without I/O."""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from smore_client.transport import (
    Answer,
    ApiError,
    Broken,
    Item,
    Open,
    Pause,
    ReadLine,
    Stream,
    Unreachable,
    fetch,
    refusal,
    request,
)
from smore_client.types import LogLine, LogLines

#: Seconds without a line after which a connection counts as broken; the platform sends a comment every 15.
SILENCE_S: Final = 45.0
#: Seconds between two tries to go on with a log that is followed, and tries in a row that may fail.
AGAIN_S: Final = 0.5
TRIES: Final = 60

T = TypeVar("T")
_line = msgspec.json.Decoder(LogLine).decode


def read_log(*parts: str, query: Mapping[str, object | None], follow: bool) -> Stream[LogLine]:
    """The lines of the log at a path below /v1; ``follow``: then those that come, until the platform says that there will be no more."""
    if not follow:
        for line in (yield from fetch(LogLines, request("GET", *parts, query=query))).lines:
            yield Item(line)
        return

    def read(_event: str, data: str) -> tuple[str, LogLine]:
        line = _line(data)
        return line.id, line

    yield from events(parts, {**query, "follow": True}, read)


def events(
    parts: tuple[str, ...], query: Mapping[str, object | None], read: Callable[[str, str], tuple[str, T]]
) -> Stream[T]:
    """
    The server-sent events at a path below /v1, until the platform says that there will be no more. ``read``: from what its
    event and its data are to the id after which a connection that broke goes on ('' = from the beginning), and the item.
    """
    last_id, failed, event = "", 0, ""
    while True:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        call = request("GET", *parts, query=query, headers=headers, timeout_s=SILENCE_S)
        head = yield Open(call=call)
        if isinstance(head, Answer) and head.status < 400:
            failed = 0
            while isinstance(text := (yield ReadLine()), str):
                name, _, value = text.partition(": ")
                if name == "event":
                    event = value
                if event == "end":
                    return
                if name == "data":
                    last_id, item = read(event, value)
                    yield Item(item)
        else:
            failed += 1
            error = (
                refusal(head)
                if isinstance(head, Answer)
                else Unreachable(head.reason if isinstance(head, Broken) else None)
            )
            if failed == TRIES or (isinstance(error, ApiError) and error.status != 503):
                raise error
        yield Pause(seconds=AGAIN_S)
