"""
Minutes and hours out of the rows of the history.

The recorder adds to them what it inserts (smore/postgres/history/staging.py). :func:`fill` makes those of rows from before the
recorder did so.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from smore.postgres.driver import Connection

GPU_MINUTE_COLUMNS: Final = """
    gpu, minute, samples, utilisation, function_utilisation, memory_used_mib, memory_total_mib, device, sharing_mode, last_at"""
#: The minutes of a table of samples, grouped by the first two columns. In one minute a GPU instance has one device.
GPU_MINUTE: Final = """
    SELECT gpu, date_trunc('minute', at), count(*), sum(utilisation), sum(function_utilisation), max(memory_used_mib),
        max(memory_total_mib), max(device), max(sharing_mode), max(at)"""

LOSS_HOUR_COLUMNS: Final = (
    "hour, job, gpu, project, windows, open_s, closed_s, open_squared, open_closed, closed_squared"
)
#: The hours of a table of closed windows, grouped by the first four columns.
LOSS_HOUR: Final = """
    SELECT date_trunc('hour', start_at, 'UTC'), job, gpu, project, count(*), sum((before_s + after_s) / 2), sum(closed_s),
        sum(((before_s + after_s) / 2) ^ 2), sum((before_s + after_s) / 2 * closed_s), sum(closed_s ^ 2)"""

HOUR: Final = timedelta(hours=1)
#: Seconds between two hours that are made, at most: a recorder looks once a second whether it may write.
_PAUSE_S: Final = 1.0
#: How much longer than it was made the recorder is left to write.
_LEFT: Final = 10
#: The start of the first row that there is, its length, whether there is anything before ``end``, and what makes the rows of
#: [begin, end). A row that the recorder began when its minute or hour was under way is made anew, out of all of it.
_FILLS: Final[Sequence[tuple[str, timedelta, str, str]]] = (
    (
        "SELECT min(minute) FROM gpu_minutes",
        timedelta(minutes=1),
        "SELECT FROM gpu_samples WHERE at < %(end)s LIMIT 1",
        f"""
        INSERT INTO gpu_minutes AS m ({GPU_MINUTE_COLUMNS}) {GPU_MINUTE}
        FROM gpu_samples WHERE at >= %(begin)s AND at < %(end)s GROUP BY 1, 2
        ON CONFLICT (gpu, minute) DO UPDATE SET samples = excluded.samples, utilisation = excluded.utilisation,
            function_utilisation = excluded.function_utilisation, memory_used_mib = excluded.memory_used_mib
        WHERE excluded.samples > m.samples
        """,
    ),
    (
        "SELECT min(hour) FROM function_hours",
        HOUR,
        "SELECT FROM function_minutes WHERE minute < %(end)s LIMIT 1",
        """
        INSERT INTO function_hours AS f (hour, project, function, gpu, succeeded, failed, met, cold, run_s)
        SELECT date_trunc('hour', minute, 'UTC'), project, function, gpu, sum(succeeded), sum(failed), sum(met), sum(cold), sum(run_s)
        FROM function_minutes WHERE minute >= %(begin)s AND minute < %(end)s GROUP BY 1, 2, 3, 4
        ON CONFLICT (hour, project, function, gpu) DO UPDATE SET succeeded = excluded.succeeded, failed = excluded.failed,
            met = excluded.met, cold = excluded.cold, run_s = excluded.run_s
        WHERE excluded.succeeded + excluded.failed > f.succeeded + f.failed
        """,
    ),
    (
        "SELECT min(hour) FROM loss_hours",
        HOUR,
        "SELECT FROM loss_windows WHERE start_at < %(end)s LIMIT 1",
        f"""
        INSERT INTO loss_hours AS l ({LOSS_HOUR_COLUMNS}) {LOSS_HOUR}
        FROM loss_windows WHERE start_at >= %(begin)s AND start_at < %(end)s GROUP BY 1, 2, 3, 4
        ON CONFLICT (hour, job, gpu) DO UPDATE SET windows = excluded.windows, open_s = excluded.open_s, closed_s = excluded.closed_s,
            open_squared = excluded.open_squared, open_closed = excluded.open_closed, closed_squared = excluded.closed_squared
        WHERE excluded.windows > l.windows
        """,
    ),
)


def fill(connection: Connection) -> None:
    """
    Make the minutes and hours from before the first one that there is. Each transaction makes an hour, the latest first, so
    that the next call continues one that was cut off.
    """
    for first, whole, more, statement in _FILLS:
        with connection.transaction():
            row = connection.execute(first).fetchone()
        now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        end = row[0] + whole if row is not None and row[0] is not None else now + HOUR
        left = True
        while left:
            began = time.monotonic()
            with connection.transaction():
                # No recorder adds to a row while it is made.
                connection.execute("SELECT FROM stream_cursor FOR UPDATE")
                connection.execute(statement, {"begin": end - HOUR, "end": end})
                end -= HOUR
                left = connection.execute(more, {"end": end}).fetchone() is not None
            if left:
                time.sleep(min(_PAUSE_S, _LEFT * (time.monotonic() - began)))
