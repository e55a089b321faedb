"""
The recorder writes the event stream into Postgres in bulk. Nothing else writes the history.

It turns a batch of entries into rows in memory, copies them into temporary tables, and merges those into the history; the
cursor changes in the same transaction. Then it trims the stream, but never entries that the leader has not read. While
Postgres is away the stream keeps its entries.
"""

import gc
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, cast

import psycopg
import redis
from sqlalchemy import Engine

from smore.domain.invocation import TERMINAL
from smore.messages import stream
from smore.postgres.driver import Connection, driver
from smore.postgres.history.fold import Fold, Tally, stream_number
from smore.postgres.history.staging import CREATE, EMPTY, Stage, csv
from smore.process.observability import (
    DEADLINES_MISSED,
    INVOCATIONS_ENDED,
    RECORD_LAG,
    RECORD_SKIPPED,
    RECORDED,
    logger,
)
from smore.redis import fleet
from smore.redis.catalog import Catalog

log = logger(__name__)

#: Name of the event stream's row in ``stream_cursor``.
CURSOR: Final = "ev"
#: Makes the row of a cursor, given its name and the version of the stream, where there is none.
FIRST: Final = "INSERT INTO stream_cursor (name, last_id, version) VALUES (%s, '0-0', %s) ON CONFLICT DO NOTHING"
#: Entries of one read: Redis does nothing else meanwhile.
_PAGE: Final = 1000


class Recorder:
    """
    Writes the event stream into Postgres. Several processes may call it: each batch locks the cursor's row.

    Raises redis-py's errors where Redis is away, and SQLAlchemy's OperationalError where Postgres is. Nothing is lost, and
    the call may be repeated.
    """

    def __init__(
        self,
        engine: Engine,
        client: "redis.Redis",
        prefix: str,
        traced: Callable[[Sequence[str]], object] | None = None,
        every: int = 0,
    ) -> None:
        """
        ``traced`` is told which invocations with a trace have ended, once that is in Postgres, and of one in ``every``
        others (0 = none).
        """
        self._engine = engine
        self._traced = traced
        self._every = every
        self._redis = client
        self._stream = f"{prefix}ev"
        self._leader = f"{prefix}leader:cursor"
        self._catalog = Catalog(client, prefix)
        #: Whether the counters of the functions that there were at the start exist.
        self._counts = False
        #: As of the last drain.
        self._cursor = "0-0"

    def drain(self, limit: int = 5000) -> int:
        """
        Write at most ``limit`` entries, and trim the stream up to them.

        Returns how many were written. Fewer than ``limit``: the stream has no more entries, or another recorder works.
        """
        tally = Tally()
        if not self._counts:
            _begin(self._catalog.functions())
            self._counts = True
        # Nothing here refers to itself: a collection would look at all of the batch and free nothing.
        gc.disable()
        try:
            with driver(self._engine) as connection:
                count = self._drain(connection, limit, tally)
            RECORDED.inc(count)
            _begin(tally.changed)
            for counter, numbers in ((INVOCATIONS_ENDED, tally.ended), (DEADLINES_MISSED, tally.missed)):
                for (function, outcome), number in numbers.items():
                    counter.labels(function, outcome).inc(number)
            if self._traced is not None and tally.traced:
                self._traced(tally.traced)
            self._trim()
        finally:
            gc.enable()
            # While Postgres is away too.
            RECORD_LAG.set(self.lag_s())
        return count

    def lag_s(self) -> float:
        """Age of the oldest entry that is not in Postgres yet, in seconds; 0 where there is none."""
        oldest = cast("list[tuple[bytes, object]]", self._redis.xrange(self._stream, min=f"({self._cursor}", count=1))
        if not oldest:
            return 0.0
        seconds, micros = self._redis.time()
        return max(0.0, seconds + micros / 1e6 - int(oldest[0][0].partition(b"-")[0]) / 1000)

    def _drain(self, connection: Connection, limit: int, tally: Tally) -> int:
        """As :meth:`drain`, in a transaction; ``tally`` is filled."""
        with connection.transaction():
            connection.execute(FIRST, (CURSOR, stream.VERSION))
            row = connection.execute(
                "SELECT last_id FROM stream_cursor WHERE name = %s FOR UPDATE SKIP LOCKED", (CURSOR,)
            ).fetchone()
            if row is None:
                return 0
            cursor = row[0]
            entries = self._read(cursor, limit)
            if not entries and cursor != "0-0" and stream_number(self._last()) < stream_number(cursor):
                log.warning(
                    "the event stream was reset; recording starts at its beginning", cursor=cursor, last=self._last()
                )
                cursor = "0-0"
                entries = self._read(cursor, limit)
            if entries:
                connection.execute(CREATE)
                self._write(connection, entries, tally)
                cursor = entries[-1][0]
            if cursor != row[0]:
                connection.execute(
                    "UPDATE stream_cursor SET last_id = %s, version = %s, updated_at = now() WHERE name = %s",
                    (cursor, stream.VERSION, CURSOR),
                )
        self._cursor = cursor
        return len(entries)

    def _read(self, cursor: str, limit: int) -> list[tuple[str, bytes]]:
        entries: list[tuple[str, bytes]] = []
        while len(entries) < limit:
            size = min(_PAGE, limit - len(entries))
            answer = self._redis.xread({self._stream: cursor}, count=size)
            page = [(entry, values[b"e"]) for entry, values in fleet.stream_entries(answer)]
            entries += page
            if len(page) < size:
                break
            cursor = page[-1][0]
        return entries

    def _last(self) -> str:
        """Id of the last entry that the stream ever had."""
        if not self._redis.exists(self._stream):
            return "0-0"
        return cast("dict[str, bytes]", self._redis.xinfo_stream(self._stream))["last-generated-id"].decode()

    def _write(self, connection: Connection, entries: Sequence[tuple[str, bytes]], tally: Tally) -> None:
        """
        Write rows. An entry that Postgres refuses (a value that it cannot hold) is found by bisection and skipped, so that
        it does not block the others.
        """
        fold = Fold(self._every)
        for entry, raw in entries:
            try:
                fold.add(entry, raw)
            except ValueError as error:
                _skipped(entry, error)
        try:
            with connection.transaction():
                for stage, rows in fold.rows().items():
                    if rows:
                        _merge(connection, stage, rows.values())
            tally.add(fold.tally)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            if len(entries) == 1:
                _skipped(entries[0][0], error)
                return
            middle = len(entries) // 2
            for half in (entries[:middle], entries[middle:]):
                # Without the rows of the other half, which would be merged again.
                connection.execute(EMPTY)
                self._write(connection, half, tally)

    def _trim(self) -> None:
        """Trim the entries before the cursor, but none that the leader has not read."""
        leader = cast("bytes | None", self._redis.get(self._leader))
        seen = min(self._cursor, leader.decode() if leader else self._cursor, key=stream_number)
        self._redis.xtrim(self._stream, minid=seen, approximate=False)


def _begin(functions: Iterable[str]) -> None:
    """Let their counters begin at 0: what first appears as 1 is no increase, and no alert sees it."""
    for function in functions:
        for state in TERMINAL:
            INVOCATIONS_ENDED.labels(function, state.value)
            DEADLINES_MISSED.labels(function, state.value)


def _merge(connection: Connection, stage: Stage, rows: Collection[object]) -> None:
    with connection.cursor() as cursor:
        with cursor.copy(stage.copy) as copy:
            copy.write(csv(rows))
        for merge in stage.merges:
            cursor.execute(merge)


def _skipped(entry: str, error: Exception) -> None:
    RECORD_SKIPPED.inc()
    log.warning("stream entry skipped", entry=entry, error=str(error))
