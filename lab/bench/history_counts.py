"""What there would be of the history's minutes and totals, counted from all rows at once by statements of SQL."""

from typing import Final

# What ended, as the recorder counts it (smore/postgres/history/recorder.py), of the rows that are there.
_ENDED: Final = """
    SELECT i.*, e.cold AS was_cold, e.run_s AS batch_s, coalesce(e.rows, 0) AS batch_rows, e.jobs AS beside,
        1.0::float8 / greatest(coalesce(e.batch, 1), 1) AS part, i.state = 'succeeded' AS good,
        extract(epoch FROM i.finished_at - i.arrival_at)::float8 AS whole_s,
        coalesce(extract(epoch FROM i.started_at - i.arrival_at), 0)::float8 AS waited_s,
        coalesce((SELECT sum(value::text::float8) FROM jsonb_each(e.load_s)), 0) AS loading_s
    FROM invocations AS i LEFT JOIN executions AS e ON e.invocation = i.id AND e.attempt = i.attempt
    WHERE i.finished_at IS NOT NULL
"""

_MINUTES: Final = f"""
    INSERT INTO function_minutes (minute, project, function, revision, gpu, succeeded, failed, met, ran, cold, rows, total_s, failed_s,
        wait_s, run_s, load_s, worst_s)
    SELECT date_trunc('minute', finished_at), project, function, revision, gpu, count(*) FILTER (WHERE good),
        count(*) FILTER (WHERE NOT good), count(*) FILTER (WHERE good AND finished_at <= deadline_at), count(was_cold),
        count(*) FILTER (WHERE was_cold), coalesce(sum(rows) FILTER (WHERE good), 0), coalesce(sum(whole_s) FILTER (WHERE good), 0),
        coalesce(sum(whole_s) FILTER (WHERE NOT good), 0), coalesce(sum(waited_s) FILTER (WHERE good), 0),
        coalesce(sum(batch_s * part), 0), sum(loading_s), coalesce(max(whole_s) FILTER (WHERE good), 0)
    FROM ({_ENDED}) AS ended GROUP BY 1, 2, 3, 4, 5
    """  # noqa: S608 - texts of this file

_TOTALS: Final = f"""
    INSERT INTO function_totals (project, function, revision, batch_rows, succeeded, failed, rows, total_s, failed_s, wait_s, run_s,
        batches, batch_s, last_at)
    SELECT project, function, revision, CASE WHEN batch_s IS NULL THEN 0 ELSE batch_rows END, count(*) FILTER (WHERE good),
        count(*) FILTER (WHERE NOT good), coalesce(sum(rows) FILTER (WHERE good), 0), coalesce(sum(whole_s) FILTER (WHERE good), 0),
        coalesce(sum(whole_s) FILTER (WHERE NOT good), 0), coalesce(sum(waited_s) FILTER (WHERE good), 0),
        coalesce(sum(batch_s) FILTER (WHERE good), 0), coalesce(sum(part) FILTER (WHERE batch_s IS NOT NULL), 0),
        coalesce(sum(batch_s * part), 0), max(finished_at)
    FROM ({_ENDED}) AS ended GROUP BY 1, 2, 3, 4
    """  # noqa: S608 - texts of this file

_HARVEST: Final = f"""
    INSERT INTO job_harvest (job, gpu, seconds, invocations)
    SELECT job, gpu, sum(batch_s * part), count(*)
    FROM ({_ENDED}) AS ended CROSS JOIN LATERAL jsonb_array_elements_text(ended.beside) AS job
    WHERE batch_s IS NOT NULL GROUP BY 1, 2
    """  # noqa: S608 - texts of this file

# In the order of time, in which it is read.
_STARTS: Final = """
    WITH minutes AS (
        SELECT date_trunc('minute', finished_at) AS at, project, function,
            CASE WHEN cold THEN coalesce(unforeseen, 'unknown') ELSE 'warm' END AS kind, count(*) AS n
        FROM executions WHERE cold IS NOT NULL AND finished_at IS NOT NULL GROUP BY 1, 2, 3, 4
    )
    INSERT INTO run_starts (span, at, project, function, kind, n)
    SELECT 60, at, project, function, kind, n FROM minutes
    UNION ALL SELECT 3600, date_trunc('hour', at, 'UTC'), project, function, kind, sum(n) FROM minutes GROUP BY 1, 2, 3, 4, 5
    ORDER BY 1, 2
    """

#: Each fills an empty table.
COUNTS: Final = (_MINUTES, _TOTALS, _HARVEST, _STARTS)
