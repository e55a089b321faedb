"""Retention of the history: deletion by age and by size, and the measured size."""

# ruff: noqa: S608 - every SQL text is put together from names and expressions of this module

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final, TypeAlias

from sqlalchemy import Engine

from smore.postgres.driver import Connection, driver
from smore.postgres.history.minutes import HOUR, fill
from smore.process.observability import HISTORY_BYTES, RETIRED, logger

log = logger(__name__)

GIB: Final = 1 << 30
DAY_S: Final = 86_400.0
#: Rows that one transaction of :func:`retain` deletes.
RETAIN_CHUNK: Final = 10_000
#: Part of the bound down to which a history that is too large is deleted.
_ROOM: Final = 0.95
#: Bytes that a row's line pointer, its header and the alignment of its columns take.
_ROW_BYTES: Final = 36
#: Minutes that must have passed since the first counted one for a day's growth to be stated.
_LEAST_MINUTES: Final = 10.0

#: A table, the statement that deletes a chunk of its rows, and the bound for the statement.
_Retirement: TypeAlias = tuple[str, str, datetime | int]

#: The tables with a row for every invocation, sample or report: what retention by size measures.
_ROWS = (
    "invocations",
    "executions",
    "decisions",
    "job_decisions",
    "gpu_samples",
    "job_windows",
    "loss_windows",
    "budget_steps",
    "instances",
)


def retain(
    engine: Engine,
    days: float,
    *,
    most_bytes: float = inf,
    minutes_days: float = 400.0,
    seconds_hours: float = 48.0,
) -> int:
    """
    Make the minutes that are missing, and delete rows that are older than ``days``, then the oldest of those that take more
    than ``most_bytes``; minutes when they are older than ``minutes_days``, seconds of GPU instances when they are older than
    ``seconds_hours``. Each transaction makes or deletes one chunk, so that no other one waits for long.

    Returns how many rows were deleted, without the executions of the invocations.
    """
    now = datetime.now(UTC)
    with driver(engine) as connection:
        fill(connection)
        deleted = _retire(connection, rows_before(now - timedelta(days=days)), "age")
        deleted += _retire(connection, _minutes_before(now - timedelta(days=minutes_days)), "age")
        deleted += _retire_seconds(connection, now - timedelta(days=days), now - timedelta(hours=seconds_hours))
        for table in _ROWS:
            with connection.transaction():
                connection.execute(f"ANALYZE {table}")
        size = measure(connection)
        if size.bytes > most_bytes:
            surplus = int(size.invocations * (1 - _ROOM * most_bytes / size.bytes))
            with connection.transaction():
                newest = connection.execute(
                    "SELECT arrival_at FROM invocations ORDER BY arrival_at LIMIT 1 OFFSET %s", (surplus,)
                ).fetchone()
            if newest is not None:
                deleted += _retire(connection, rows_before(newest[0]), "size")
    HISTORY_BYTES.set(size.bytes)
    return deleted


def _retire(connection: Connection, retirements: Iterable[_Retirement], why: str) -> int:
    """Delete rows and return how many; the log and the metrics name the tables."""
    deleted: dict[str, int] = {}
    for table, statement, bound in retirements:
        while True:
            with connection.transaction():
                chunk = connection.execute(statement, {"before": bound, "chunk": RETAIN_CHUNK}).fetchone()
            count = chunk[0] if chunk else 0
            RETIRED.labels(table).inc(count)
            deleted[table] = deleted.get(table, 0) + count
            if count < RETAIN_CHUNK:
                break
    counts = {table: count for table, count in deleted.items() if count}
    if counts:
        log.info("rows of the history deleted", why=why, rows=counts)
    return sum(counts.values())


def _retire_seconds(connection: Connection, since: datetime, before: datetime) -> int:
    """
    Delete the samples of [since, before), all of which are in minutes. An hour at a time: to find the oldest ones of a table
    without an index in their order takes as long as reading all that are old.
    """
    with connection.transaction():
        first = connection.execute("SELECT min(minute) FROM gpu_minutes").fetchone()
    begin, deleted = max(since, first[0]) if first is not None and first[0] is not None else before, 0
    while begin < before:
        end = min(begin + HOUR, before)
        with connection.transaction():
            done = connection.execute("DELETE FROM gpu_samples WHERE at >= %s AND at < %s", (begin, end))
        deleted, begin = deleted + done.rowcount, end
    RETIRED.labels("gpu_samples").inc(deleted)
    if deleted:
        log.info("rows of the history deleted", why="age", rows={"gpu_samples": deleted})
    return deleted


def rows_before(before: datetime) -> Iterator[_Retirement]:
    """The statements that delete the rows from before a moment, the invocations (and their executions) first."""
    rows = "SELECT id FROM invocations WHERE arrival_at < %(before)s ORDER BY arrival_at LIMIT %(chunk)s"
    yield (
        "invocations",
        (
            f"WITH old AS (DELETE FROM invocations WHERE id = ANY(ARRAY({rows})) RETURNING id),"
            " runs AS (DELETE FROM executions USING old WHERE executions.invocation = old.id) SELECT count(*) FROM old"
        ),
        before,
    )
    yield _retirement("decisions", "id", int(before.timestamp() * 1000) << 20)
    for table, column in (
        ("gpu_samples", "at"),
        ("job_windows", "at"),
        ("budget_steps", "at"),
        ("instances", "asked_at"),
        ("traces", "until_at"),
    ):
        yield _retirement(table, column, before)

    # The explanation of a job that is not over needs all of its decisions.
    rows = (
        "SELECT d.ctid FROM job_decisions AS d JOIN jobs AS j ON j.id = d.job WHERE d.at < %(before)s"
        " AND j.ended_at < %(before)s LIMIT %(chunk)s"
    )
    yield "job_decisions", _deletion("job_decisions", rows), before

    # The statement of a job that still runs needs all of its windows.
    rows = (
        "SELECT w.ctid FROM loss_windows AS w LEFT JOIN jobs AS j ON j.id = w.job WHERE w.end_at < %(before)s"
        " AND (j.id IS NULL OR j.ended_at < %(before)s) LIMIT %(chunk)s"
    )
    yield "loss_windows", _deletion("loss_windows", rows), before


def _minutes_before(before: datetime) -> Iterator[_Retirement]:
    for table in ("arrivals_minute", "counted_minutes", "function_minutes", "gpu_minutes", "job_minutes"):
        yield _retirement(table, "minute", before)
    for table in ("function_hours", "loss_hours"):
        yield _retirement(table, "hour", before)
    yield _retirement("run_starts", "at", before)


def _retirement(table: str, column: str, bound: datetime | int) -> _Retirement:
    return (
        table,
        _deletion(table, f"SELECT ctid FROM {table} WHERE {column} < %(before)s ORDER BY {column} LIMIT %(chunk)s"),
        bound,
    )


def _deletion(table: str, rows: str) -> str:
    return f"WITH old AS (DELETE FROM {table} WHERE ctid = ANY(ARRAY({rows})) RETURNING 1) SELECT count(*) FROM old"


# ---- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """
    The size of the history, indices included, as of Postgres' last statistics, which are of ``as_of`` (epoch seconds; None =
    Postgres does not know any more). Of a table without statistics, which is new, it is that of now.

    ``bytes``: of the rows; ``file_bytes``: of the files, in which space that retention frees is used again but not given
    back. ``bytes_per_day``: growth, from the invocations that ended in the last day (or since the first of them); None =
    too few to tell. ``oldest_at``: epoch seconds, None = there is no row.
    """

    bytes: float
    file_bytes: int
    invocations: int
    oldest_at: float | None
    bytes_per_day: float | None
    as_of: float | None


def measure(connection: Connection) -> Size:
    """Measure the size from Postgres' catalogs and a day of minutes, without counting rows of tables with statistics."""
    query = """
        SELECT c.relname, pg_total_relation_size(c.oid), pg_relation_size(c.oid), c.reltuples, coalesce(w.bytes, 0),
        extract(epoch FROM greatest(s.last_vacuum, s.last_autovacuum, s.last_analyze, s.last_autoanalyze))::float8
        FROM pg_class AS c LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid LEFT JOIN (
            SELECT tablename, sum(avg_width * (1 - null_frac)) AS bytes FROM pg_stats WHERE schemaname = current_schema() GROUP BY 1
        ) AS w ON w.tablename = c.relname
        WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(%s)
    """
    invocations, used, files, as_of = 0, 0.0, 0, None
    with connection.transaction():
        for name, total, heap, rows, width, at in connection.execute(query, (list(_ROWS),)).fetchall():
            files += total
            # A table without statistics is new: hardly any row was deleted.
            used += total if rows < 0 else total * min(1.0, rows * (width + _ROW_BYTES) / max(heap, 1))
            if name == "invocations":
                invocations, as_of = int(rows), at
        if invocations < 0:
            now = connection.execute("SELECT count(*), extract(epoch FROM now())::float8 FROM invocations").fetchone()
            invocations, as_of = now if now is not None else (0, None)
        oldest = connection.execute("SELECT min(arrival_at) FROM invocations").fetchone()
        counted = connection.execute(
            "SELECT coalesce(sum(succeeded + failed), 0), extract(epoch FROM now() - min(minute))::float8 FROM"
            " function_minutes WHERE minute > now() - interval '1 day'"
        ).fetchone()
    daily = None
    if counted is not None and counted[1] is not None and counted[1] >= 60 * _LEAST_MINUTES and invocations:
        daily = used / invocations * float(counted[0]) / counted[1] * DAY_S
    return Size(
        bytes=used,
        file_bytes=files,
        invocations=invocations,
        bytes_per_day=daily,
        oldest_at=oldest[0].timestamp() if oldest is not None and oldest[0] is not None else None,
        as_of=as_of,
    )
