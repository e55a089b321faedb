"""
Staging of the history: rows as smore/postgres/history/fold.py makes them, a temporary table for each kind, and the SQL
that merges it into the tables of smore/postgres/rows.py.

Merging never replaces a later state by an earlier one, and an arrival is counted when its row is inserted, so reading
entries again (Redis was reset, the database restored) changes nothing. In staged rows 0 and '' stand for unknown values,
times are microseconds, truths and JSON are text.
"""

# ruff: noqa: S608 - every SQL text is put together from names and expressions of this module

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement

from smore.postgres.base import Base
from smore.postgres.history import histogram
from smore.postgres.history.minutes import GPU_MINUTE, GPU_MINUTE_COLUMNS, LOSS_HOUR, LOSS_HOUR_COLUMNS
from smore.postgres.rows import (
    BudgetStepRow,
    DecisionRow,
    ExecutionRow,
    GpuSampleRow,
    InstanceRow,
    InvocationRow,
    JobWindowRow,
    LossWindowRow,
)
from smore.postgres.sums import CountedMinuteRow

#: JSON's escapes of one letter, and what they stand for.
_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_ESCAPED = re.compile(rb"\\(?:u00(..)|(.))")
_lines = msgspec.json.Encoder().encode_lines
_TYPES = {str: "text", int: "bigint", float: "float8"}


def _at(column: str) -> str:
    """A timestamp from microseconds, exact: a double holds 2^53 of them."""
    return f"CASE WHEN {column} > 0 THEN to_timestamp({column}::float8 / 1e6) END"


def _staged(column: ColumnElement[Any]) -> tuple[type, str]:
    """The type of a column's staged values, and the SQL that makes the column's of them."""
    name, kind = column.name, column.type.python_type
    if kind is datetime:
        return int, _at(name)
    if kind in (bool, object):  # SQLAlchemy knows no type of what JSON holds
        return str, f"nullif({name}, '')::{'boolean' if kind is bool else 'jsonb'}"
    staged = str if issubclass(kind, str) else kind
    return staged, f"nullif({name}, {staged()!r})" if column.nullable else name


class Stage:
    """
    A temporary table that every commit empties, with the columns of ``table`` and those of ``more``; ``row`` makes its
    rows, of which the garbage collector tracks none: it would scan all of them.

    ``merges``: the SQL statements that merge it into the history, where STAGE is its name, COLUMNS are the names of the
    columns of ``table`` and CELLS the values for them.
    """

    def __init__(self, table: type[Base] | None, *merges: str, **more: type) -> None:
        columns = {column.name: _staged(column) for column in table.__table__.columns} if table is not None else {}
        kinds = {name: kind for name, (kind, _) in columns.items()} | more
        self.name = f"stage_{table.__tablename__ if table is not None else '_'.join(more)}"
        fields = [(name, kind, kind()) for name, kind in kinds.items()]
        self.row: Any = msgspec.defstruct(self.name, fields, gc=False, array_like=True)
        created = ", ".join(f'"{name}" {_TYPES[kind]}' for name, kind in kinds.items())
        self.create = f"CREATE TEMPORARY TABLE IF NOT EXISTS {self.name} ({created}) ON COMMIT DELETE ROWS"
        self.copy = f"COPY {self.name} FROM STDIN (FORMAT csv, ESCAPE '\\')"
        cells = ", ".join(cell for _, cell in columns.values())
        self.merges = [
            merge.replace("STAGE", self.name).replace("COLUMNS", ", ".join(columns)).replace("CELLS", cells)
            for merge in merges
        ]

    def of(self, source: object, **given: object) -> Any:
        """A row of what is given, and of what ``source`` has under the names of the other columns."""
        names = self.row.__struct_fields__
        return self.row(**{name: getattr(source, name) for name in names if name not in given}, **given)


def csv(rows: Iterable[Any]) -> bytes:
    """Staged rows for COPY, without NUL, which Postgres' text cannot hold: JSON arrays without their brackets."""
    # A string has no line end of its own, so that these brackets are those between two rows.
    text = _lines(rows)[1:-2].replace(b"]\n[", b"\n")
    # Hardly any row has an escape but that of a quotation mark.
    if b"\\\\" in text or text.count(b"\\") != text.count(b'\\"'):
        text = _ESCAPED.sub(_raw, text)
    return text


def _raw(escape: re.Match[bytes]) -> bytes:
    """What an escape of JSON is in CSV."""
    return bytes.fromhex(escape[1].decode()).strip(b"\0") if escape[1] else _ESCAPES.get(escape[2], escape[0])


def _progress(table: str) -> str:
    """
    SQL for a number that grows with every step of an invocation that has not ended: dispatched, running, queued again,
    attempt after attempt.
    """
    return f"{table}.attempt * 4 + CASE {table}.state WHEN 'dispatched' THEN 1 WHEN 'running' THEN 2 ELSE 3 END"


INVOCATIONS = Stage(
    InvocationRow,
    # Invocations whose arrival is known, from any event.
    f"""
    WITH merged AS (
        INSERT INTO invocations AS i (COLUMNS) SELECT CELLS FROM STAGE WHERE arrival_at > 0
        ON CONFLICT (id) DO UPDATE SET state = excluded.state, cause = excluded.cause, attempt = excluded.attempt,
            starts = greatest(excluded.starts, i.starts), claimed_at = coalesce(excluded.claimed_at, i.claimed_at),
            started_at = coalesce(excluded.started_at, i.started_at), finished_at = excluded.finished_at, gpu = excluded.gpu,
            key_id = coalesce(nullif(excluded.key_id, ''), i.key_id), trace = coalesce(nullif(excluded.trace, ''), i.trace)
        WHERE i.finished_at IS NULL AND (excluded.finished_at IS NOT NULL OR {_progress("excluded")} > {_progress("i")})
        RETURNING id, project, function, revision, state, arrival_at, deadline_at, started_at, finished_at, gpu, rows, xmax = 0 AS inserted
    ), arrived AS (
        INSERT INTO arrivals_minute AS a (project, function, minute, n)
        SELECT project, function, date_trunc('minute', arrival_at), count(*) FROM merged WHERE inserted GROUP BY 1, 2, 3
        ON CONFLICT (project, function, minute) DO UPDATE SET n = a.n + excluded.n
    ), ended AS (
        SELECT m.project, m.function, m.revision, m.gpu, m.rows, m.deadline_at, m.finished_at, nullif(s.cold, '')::boolean AS cold,
            s.load_s, nullif(s.run_s, 0) AS run_s, CASE WHEN s.run_s > 0 THEN s.batch_rows ELSE 0 END AS batch_rows,
            1.0::float8 / greatest(s.batch, 1) AS part, nullif(s.jobs, '') AS jobs, m.state = 'succeeded' AS good,
            date_part('epoch', m.finished_at - m.arrival_at) AS whole_s,
            coalesce(date_part('epoch', m.started_at - m.arrival_at), 0) AS waited_s
        FROM merged AS m JOIN STAGE AS s ON s.id = m.id WHERE m.finished_at IS NOT NULL
    ), sums AS (
        SELECT date_trunc('minute', finished_at) AS minute, project, function, revision, gpu, count(*) FILTER (WHERE good) AS succeeded,
            count(*) FILTER (WHERE NOT good) AS failed, count(*) FILTER (WHERE good AND finished_at <= deadline_at) AS met,
            count(cold) AS ran, count(*) FILTER (WHERE cold) AS cold, coalesce(sum(rows) FILTER (WHERE good), 0) AS rows,
            coalesce(sum(whole_s) FILTER (WHERE good), 0) AS total_s, coalesce(sum(whole_s) FILTER (WHERE NOT good), 0) AS failed_s,
            coalesce(sum(waited_s) FILTER (WHERE good), 0) AS wait_s, coalesce(sum(run_s * part), 0) AS run_s, sum(load_s) AS load_s,
            coalesce(max(whole_s) FILTER (WHERE good), 0) AS worst_s,
            {histogram.merged(f"array_agg({histogram.one('whole_s')}) FILTER (WHERE good)")} AS wholes
        FROM ended GROUP BY 1, 2, 3, 4, 5
    ), minutes AS (
        INSERT INTO function_minutes AS f (minute, project, function, revision, gpu, succeeded, failed, met, ran, cold, rows, total_s,
            failed_s, wait_s, run_s, load_s, worst_s, wholes)
        SELECT * FROM sums
        ON CONFLICT (minute, project, function, revision, gpu) DO UPDATE SET succeeded = f.succeeded + excluded.succeeded,
            failed = f.failed + excluded.failed, met = f.met + excluded.met, ran = f.ran + excluded.ran, cold = f.cold + excluded.cold,
            rows = f.rows + excluded.rows, total_s = f.total_s + excluded.total_s, failed_s = f.failed_s + excluded.failed_s,
            wait_s = f.wait_s + excluded.wait_s, run_s = f.run_s + excluded.run_s, load_s = f.load_s + excluded.load_s,
            worst_s = greatest(f.worst_s, excluded.worst_s), wholes = {histogram.merged("f.wholes || excluded.wholes")}
    ), hours AS (
        INSERT INTO function_hours AS f (hour, project, function, gpu, succeeded, failed, met, cold, run_s)
        SELECT date_trunc('hour', minute, 'UTC'), project, function, gpu, sum(succeeded), sum(failed), sum(met), sum(cold), sum(run_s)
        FROM sums GROUP BY 1, 2, 3, 4
        ON CONFLICT (hour, project, function, gpu) DO UPDATE SET succeeded = f.succeeded + excluded.succeeded,
            failed = f.failed + excluded.failed, met = f.met + excluded.met, cold = f.cold + excluded.cold,
            run_s = f.run_s + excluded.run_s
    ), totals AS (
        INSERT INTO function_totals AS t (project, function, revision, batch_rows, succeeded, failed, rows, total_s, failed_s, wait_s,
            run_s, batches, batch_s, last_at)
        SELECT project, function, revision, batch_rows, count(*) FILTER (WHERE good), count(*) FILTER (WHERE NOT good),
            coalesce(sum(rows) FILTER (WHERE good), 0), coalesce(sum(whole_s) FILTER (WHERE good), 0),
            coalesce(sum(whole_s) FILTER (WHERE NOT good), 0), coalesce(sum(waited_s) FILTER (WHERE good), 0),
            coalesce(sum(run_s) FILTER (WHERE good), 0), coalesce(sum(part) FILTER (WHERE run_s IS NOT NULL), 0),
            coalesce(sum(run_s * part), 0), max(finished_at)
        FROM ended GROUP BY 1, 2, 3, 4
        ON CONFLICT (project, function, revision, batch_rows) DO UPDATE SET succeeded = t.succeeded + excluded.succeeded,
            failed = t.failed + excluded.failed, rows = t.rows + excluded.rows, total_s = t.total_s + excluded.total_s,
            failed_s = t.failed_s + excluded.failed_s, wait_s = t.wait_s + excluded.wait_s, run_s = t.run_s + excluded.run_s,
            batches = t.batches + excluded.batches, batch_s = t.batch_s + excluded.batch_s, last_at = greatest(t.last_at, excluded.last_at)
    ), beside AS (
        SELECT job, gpu, minute, seconds, invocations FROM (
            SELECT jobs, gpu, date_trunc('minute', finished_at) AS minute, sum(run_s * part) AS seconds, count(*) AS invocations
            FROM ended WHERE run_s IS NOT NULL GROUP BY 1, 2, 3
        ) AS alike CROSS JOIN LATERAL jsonb_array_elements_text(jobs::jsonb) AS job
    ), harvested AS (
        INSERT INTO job_minutes AS h (job, minute, seconds, invocations)
        SELECT job, minute, sum(seconds), sum(invocations) FROM beside GROUP BY 1, 2
        ON CONFLICT (job, minute) DO UPDATE SET seconds = h.seconds + excluded.seconds, invocations = h.invocations + excluded.invocations
    )
    INSERT INTO job_harvest AS h (job, gpu, seconds, invocations)
    SELECT job, gpu, sum(seconds), sum(invocations) FROM beside GROUP BY 1, 2
    ON CONFLICT (job, gpu) DO UPDATE SET seconds = h.seconds + excluded.seconds, invocations = h.invocations + excluded.invocations
    """,
    # A step of an invocation that arrived in an earlier batch.
    f"""
    UPDATE invocations AS i SET state = s.state, attempt = s.attempt, gpu = s.gpu,
        claimed_at = coalesce({_at("s.claimed_at")}, i.claimed_at), started_at = coalesce({_at("s.started_at")}, i.started_at)
    FROM STAGE AS s WHERE s.arrival_at = 0 AND i.id = s.id AND i.finished_at IS NULL AND {_progress("s")} > {_progress("i")}
    """,
    # Of its last run, for the counters.
    cold=str,
    load_s=float,
    run_s=float,
    batch=int,
    batch_rows=int,
    jobs=str,
)

#: The reason of a cold start where the leader expected a warm one: the instance was still loading.
LATE = "late"

EXECUTIONS = Stage(
    ExecutionRow,
    # States are compared as text: running comes after dispatched in the alphabet, too.
    f"""
    WITH merged AS (
        INSERT INTO executions AS e (COLUMNS) SELECT CELLS FROM STAGE
        ON CONFLICT (invocation, attempt) DO UPDATE SET decision_id = coalesce(e.decision_id, excluded.decision_id), state = excluded.state,
            cause = excluded.cause, cold = excluded.cold, load_s = excluded.load_s, run_s = excluded.run_s,
            batch = coalesce(excluded.batch, e.batch), rows = excluded.rows, co_runners = excluded.co_runners, jobs = excluded.jobs,
            device = excluded.device, sharing_mode = excluded.sharing_mode,
            unforeseen = CASE WHEN excluded.cold IS FALSE THEN NULL
                ELSE coalesce(e.unforeseen, excluded.unforeseen, CASE WHEN excluded.cold THEN '{LATE}' END) END,
            predicted = coalesce(e.predicted, excluded.predicted), claimed_at = coalesce(e.claimed_at, excluded.claimed_at),
            started_at = coalesce(e.started_at, excluded.started_at), finished_at = excluded.finished_at
        WHERE e.finished_at IS NULL AND (excluded.finished_at IS NOT NULL OR excluded.state > e.state)
        RETURNING e.project, e.function, e.cold, e.unforeseen, e.finished_at
    ), minutes AS (
        SELECT date_trunc('minute', finished_at) AS at, project, function,
            CASE WHEN cold THEN coalesce(unforeseen, 'unknown') ELSE 'warm' END AS kind, count(*) AS n
        FROM merged WHERE cold IS NOT NULL AND finished_at IS NOT NULL GROUP BY 1, 2, 3, 4
    )
    INSERT INTO run_starts AS r (span, at, project, function, kind, n)
    SELECT 60, at, project, function, kind, n FROM minutes
    UNION ALL SELECT 3600, date_trunc('hour', at, 'UTC'), project, function, kind, sum(n) FROM minutes GROUP BY 1, 2, 3, 4, 5
    ON CONFLICT (span, at, project, function, kind) DO UPDATE SET n = r.n + excluded.n
    """,
)

DECISIONS = Stage(DecisionRow, "INSERT INTO decisions (COLUMNS) SELECT CELLS FROM STAGE ON CONFLICT DO NOTHING")

GPU_SAMPLES = Stage(
    GpuSampleRow,
    f"""
    WITH samples AS (
        INSERT INTO gpu_samples (COLUMNS) SELECT CELLS FROM STAGE ON CONFLICT DO NOTHING RETURNING *
    )
    INSERT INTO gpu_minutes AS m ({GPU_MINUTE_COLUMNS}) {GPU_MINUTE} FROM samples GROUP BY 1, 2
    ON CONFLICT (gpu, minute) DO UPDATE SET samples = m.samples + excluded.samples, utilisation = m.utilisation + excluded.utilisation,
        function_utilisation = m.function_utilisation + excluded.function_utilisation,
        memory_used_mib = greatest(m.memory_used_mib, excluded.memory_used_mib),
        memory_total_mib = greatest(m.memory_total_mib, excluded.memory_total_mib), device = greatest(m.device, excluded.device),
        sharing_mode = greatest(m.sharing_mode, excluded.sharing_mode), last_at = greatest(m.last_at, excluded.last_at)
    """,
)

JOB_WINDOWS = Stage(
    JobWindowRow,
    """
    INSERT INTO job_windows AS w (COLUMNS) SELECT CELLS FROM STAGE
    ON CONFLICT (job, at, gpu) DO UPDATE SET iterations = excluded.iterations, window_s = excluded.window_s, solo_s = excluded.solo_s,
        solo_count = excluded.solo_count, shared_s = excluded.shared_s, shared_count = excluded.shared_count
    WHERE excluded.iterations >= w.iterations
    """,
)

LOSS_WINDOWS = Stage(
    LossWindowRow,
    # A window never changes, and comes with many reports.
    f"""
    WITH windows AS (
        INSERT INTO loss_windows (COLUMNS) SELECT CELLS FROM STAGE ON CONFLICT DO NOTHING RETURNING *
    )
    INSERT INTO loss_hours AS l ({LOSS_HOUR_COLUMNS}) {LOSS_HOUR} FROM windows GROUP BY 1, 2, 3, 4
    ON CONFLICT (hour, job, gpu) DO UPDATE SET windows = l.windows + excluded.windows, open_s = l.open_s + excluded.open_s,
        closed_s = l.closed_s + excluded.closed_s, open_squared = l.open_squared + excluded.open_squared,
        open_closed = l.open_closed + excluded.open_closed, closed_squared = l.closed_squared + excluded.closed_squared
    """,
)

BUDGET_STEPS = Stage(BudgetStepRow, "INSERT INTO budget_steps (COLUMNS) SELECT CELLS FROM STAGE ON CONFLICT DO NOTHING")

MINUTES = Stage(
    CountedMinuteRow,
    # Bits, so that reading entries again changes nothing.
    f"""
    INSERT INTO counted_minutes AS m (minute, seconds) SELECT {_at("minute")}, bit_or(seconds) FROM STAGE GROUP BY 1
    ON CONFLICT (minute) DO UPDATE SET seconds = m.seconds | excluded.seconds
    """,
)

INSTANCES = Stage(
    InstanceRow,
    """
    INSERT INTO instances AS i (COLUMNS) SELECT DISTINCT ON (id) CELLS FROM STAGE ORDER BY id, told_at DESC
    ON CONFLICT (id) DO UPDATE SET outcome = excluded.outcome, why = excluded.why, ready_at = excluded.ready_at, used_at = excluded.used_at,
        ended_at = excluded.ended_at, told_at = excluded.told_at, load_s = excluded.load_s, busy_s = excluded.busy_s,
        idle_s = excluded.idle_s, uses = excluded.uses, saved = excluded.saved, memory_mib = excluded.memory_mib
    WHERE i.ended_at IS NULL AND excluded.told_at >= i.told_at
    """,
)

#: An instance whose worker is gone ended at its last report. If nothing used it, its load was wasted.
_WORKER_LOST = """
    UPDATE instances AS i SET ended_at = greatest(i.told_at, i.asked_at), why = 'worker_lost',
        outcome = CASE WHEN i.outcome <> 'open' THEN i.outcome WHEN i.ready_at IS NULL THEN 'failed' ELSE 'wasted' END
"""

BOOTS = Stage(
    None,
    # A restarted worker has none of the instances of its former process.
    f"{_WORKER_LOST} FROM STAGE AS s WHERE i.ended_at IS NULL AND i.gpu = s.gpu AND i.boot <> s.boot AND i.told_at <"
    f" {_at('s.at')}",
    gpu=str,
    boot=str,
    at=int,
)

STAGES = (
    INVOCATIONS,
    EXECUTIONS,
    DECISIONS,
    GPU_SAMPLES,
    JOB_WINDOWS,
    LOSS_WINDOWS,
    BUDGET_STEPS,
    MINUTES,
    INSTANCES,
    BOOTS,
)
CREATE = "; ".join(stage.create for stage in STAGES)
EMPTY = f"TRUNCATE {', '.join(stage.name for stage in STAGES)}"
