"""
Logs in Redis: what functions and jobs print, as a bounded stream for each of them. GPU workers append, gateways read.

A log is named ``function/<project>/<name>`` or ``job/<id>/<rank>``. It keeps the newest pieces
(``SMORE_LOGS__PIECES``) and is deleted ``SMORE_LOGS__KEEP_S`` after its last one, or earlier where all logs together are
too large (:meth:`LogWriter.trim`). A line has a position: the entry's id in Redis, a dot, and the line's number in the
entry. Positions only grow, so a reader can go on behind the last line that it has.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
import redis
import redis.asyncio

from smore.messages.logs import LogPiece, decode_piece, encode_piece
from smore.process.settings import LogSettings

#: Entries that are read in one round trip.
_PAGE: Final = 200
_FIELD: Final = b"d"
POSITION: Final = re.compile(r"(\d{1,20})-(\d{1,20})\.(\d{1,9})")
#: Behind every line of an entry.
_LAST: Final = 999_999_999
#: The largest number of an entry within a millisecond.
_MOST: Final = (1 << 64) - 1
#: Before every line of a log.
START: Final = "0-0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a log, and the piece that it came in."""

    position: str
    text: str
    piece: LogPiece


def function_log(function: str) -> str:
    """The name of the log of ``<project>/<name>``."""
    return f"function/{function}"


def job_log(job: str, rank: int) -> str:
    """The name of the log of a rank of a job, over all its attempts."""
    return f"job/{job}/{rank}"


def log_key(prefix: str, log: str) -> str:
    """The key of a log."""
    return f"{prefix}log:{log}"


def check_position(text: str) -> str:
    """The position, unchanged. Raises ValueError where it is none."""
    if POSITION.fullmatch(text) is None:
        raise ValueError("a position in a log is expected: <milliseconds>-<number>.<number>")
    return text


class LogWriter:
    """Appends to logs. Thread-safe. Raises redis-py's errors."""

    def __init__(self, client: "redis.Redis", prefix: str, bounds: LogSettings) -> None:
        self._redis = client
        self._prefix = prefix
        self._bounds = bounds
        #: The names of all logs, by when their last line was printed.
        self._names = f"{prefix}logs"

    def append(self, pieces: Iterable[tuple[str, LogPiece]]) -> None:
        """Append pieces to the logs that they are named with, in one round trip."""
        pipe = self._redis.pipeline(transaction=False)
        logs: dict[str, float] = {}
        for log, piece in pieces:
            logs[log] = piece.at
            pipe.xadd(log_key(self._prefix, log), {_FIELD: encode_piece(piece)}, maxlen=self._bounds.pieces)
        for log in logs:
            pipe.pexpire(log_key(self._prefix, log), int(self._bounds.keep_s * 1000))
        pipe.zadd(self._names, logs, gt=True)
        pipe.execute()

    def trim(self) -> int:
        """
        Delete the logs that were not written to for longest until all together have at most ``SMORE_LOGS__BYTES``.
        Returns how many.
        """
        names = [name.decode() for name in cast("list[bytes]", self._redis.zrange(self._names, 0, -1))]
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.memory_usage(log_key(self._prefix, name))
        sizes: list[int | None] = pipe.execute() if names else []
        excess = sum(size or 0 for size in sizes) - self._bounds.bytes
        gone: list[str] = []
        deleted = 0
        for name, size in zip(names, sizes, strict=True):
            if size is None or excess > 0:
                gone.append(name)
                deleted += size is not None
                excess -= size or 0
        if gone:
            pipe.delete(*(log_key(self._prefix, name) for name in gone))
            pipe.zrem(self._names, *gone)
            pipe.execute()
        return deleted

    def newest(self, log: str) -> LogPiece | None:
        """The last piece of a log; None where there is none, or none that can be read."""
        entries = cast("list[Any]", self._redis.xrevrange(log_key(self._prefix, log), count=1))
        try:
            return decode_piece(entries[0][1][_FIELD]) if entries else None
        except (msgspec.MsgspecError, KeyError):
            return None


class LogReader:
    """Reads logs, for an event loop. Raises redis-py's errors."""

    def __init__(self, client: "redis.asyncio.Redis", prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    async def last(
        self, log: str, lines: int, *, since: float = 0.0, wanted: Callable[[LogPiece], bool] = lambda _: True
    ) -> tuple[list[LogLine], str]:
        """
        The newest ``lines`` lines, the oldest of them first, and the position behind everything that was there.

        ``since``: of those that were appended at this instant or later, epoch seconds; ``wanted``: of these pieces.
        """
        since_ms = max(0, int(since * 1000))
        key, least, most = log_key(self._prefix, log), f"{since_ms}-0", "+"
        # Where nothing is there yet: what is older than `since` stays unread.
        end = before = f"{since_ms - 1}-{_MOST}.0" if since_ms else START
        pages: list[list[LogLine]] = []
        left = lines
        while True:
            entries = await self._redis.xrevrange(key, max=most, min=least, count=_PAGE) or []
            if entries and end == before:
                end = f"{_id(entries[0])}.{_LAST}"
            for entry in entries:
                found = [line for line in _lines(entry) if wanted(line.piece)][-left:] if left else []
                left -= len(found)
                pages.append(found)
            if len(entries) < _PAGE or not left:
                break
            most = f"({_id(entries[-1])}"
        return [line for page in reversed(pages) for line in page], end

    async def after(
        self, log: str, position: str, *, wanted: Callable[[LogPiece], bool] = lambda _: True
    ) -> tuple[list[LogLine], str]:
        """The next lines behind a position, and the position behind what was read; the same one where nothing came."""
        read, number = _parts(position)
        entries = await self._redis.xrange(log_key(self._prefix, log), min=read, count=_PAGE) or []
        lines: list[LogLine] = []
        for entry in entries:
            skipped = number + 1 if _id(entry) == read else 0
            lines += [line for line in _lines(entry)[skipped:] if wanted(line.piece)]
        return lines, f"{_id(entries[-1])}.{_LAST}" if entries else position


def _id(entry: Sequence[Any]) -> str:
    return cast(bytes, entry[0]).decode()


def _parts(position: str) -> tuple[str, int]:
    entry, _, number = position.rpartition(".")
    return entry, int(number)


def _lines(entry: Sequence[Any]) -> list[LogLine]:
    """The lines of an entry; none where a newer platform has written it in another form."""
    try:
        piece = decode_piece(entry[1][_FIELD])
    except (msgspec.MsgspecError, KeyError):
        return []
    return [
        LogLine(position=f"{_id(entry)}.{number}", text=text, piece=piece) for number, text in enumerate(piece.lines)
    ]
