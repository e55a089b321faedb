"""
The past, in Postgres: the event stream written down in bulk, read back by row.

:class:`Recorder` is the only writer. A batch of stream entries is folded in memory (an invocation that arrived and
ended in it is one row), copied into temporary tables and merged from there; the cursor moves in the same transaction.
Merging never replaces a later state by an earlier one, and an arrival counts when its row first appears, so that
reading entries again (a wiped Redis, a restored database) is harmless. Only then is the stream cut, and never ahead of
the leader. Postgres away: the stream waits.
"""

# ruff: noqa: S608 - every SQL text is put together from names and expressions of this module

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from math import inf
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
import psycopg
import redis
from psycopg.rows import TupleRow
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Engine, RowMapping, Select, func, select, tuple_
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from smore.domain.errors import InvocationNotFound
from smore.domain.function import FunctionSpec, spec_from_dict
from smore.domain.invocation import State
from smore.domain.loss import Sums
from smore.messages import stream
from smore.postgres.rows import (
    Base,
    BudgetStepRow,
    DecisionRow,
    ExecutionRow,
    FunctionTotalRow,
    GpuSampleRow,
    InvocationRow,
    JobHarvestRow,
    JobRow,
    JobWindowRow,
    LossWindowRow,
    ProfileRow,
    RevisionRow,
)
from smore.process.observability import HISTORY_BYTES, RECORD_LAG, RECORD_SKIPPED, RECORDED, RETIRED, logger
from smore.redis import fleet

log = logger(__name__)

#: Name of the event stream's row in ``stream_cursor``.
CURSOR = "ev"

#: A serverful job has one row for this many seconds: its last report in them.
JOB_WINDOW_S = 10

#: Entries of one read. Of longer answers the nested lists set the garbage collector off: six times the time an entry
#: (measured).
_PAGE = 1000

#: Rows that one transaction of :meth:`Recorder.retain` deletes.
RETAIN_CHUNK = 10_000
#: To what part of its bound a history that has become too large is cut.
_ROOM = 0.95
#: A line pointer, a row's header and what aligning its columns costs, bytes.
_ROW_BYTES = 36

GIB = 1 << 30
DAY_S = 86_400.0

Connection: TypeAlias = "psycopg.Connection[TupleRow]"


# ---- rows on their way -----------------------------------------------------------------------------------------------
#
# 0 and '' stand for what is not known; times are microseconds. The garbage collector is not told of them: they would
# keep it busy.


class _Invocation(msgspec.Struct, gc=False):
    id: str
    project: str
    function: str
    revision: int = 0
    state: str = ""
    cause: str = ""
    attempt: int = 0
    starts: int = 0
    arrival: int = 0
    deadline: int = 0
    claimed: int = 0
    started: int = 0
    finished: int = 0
    gpu: str = ""
    rows: int = 0
    key_id: str = ""
    trace: str = ""
    gate: int = 0
    # Of its last run, for what is counted.
    cold: str = ""
    load: float = 0.0
    run_s: float = 0.0
    batch: int = 0
    batch_rows: int = 0
    jobs: str = ""


class _Execution(msgspec.Struct, gc=False):
    invocation: str
    attempt: int
    project: str
    function: str
    gpu: str
    decision_id: int = 0
    state: str = ""
    cause: str = ""
    cold: str = ""
    load_s: str = ""
    run_s: float = 0.0
    batch: int = 0
    rows: int = 0
    co_runners: str = ""
    jobs: str = ""
    predicted: str = ""
    claimed: int = 0
    started: int = 0
    finished: int = 0
    device: str = ""
    sharing_mode: str = ""
    unforeseen: str = ""


class _Decision(msgspec.Struct, gc=False):
    id: int
    project: str
    function: str
    gpu: str
    at: int
    decision: str


class _Minute(msgspec.Struct, gc=False):
    minute: int
    seconds: int


class _Instance(msgspec.Struct, gc=False):
    id: str
    gpu: str
    boot: str
    project: str
    function: str
    revision: int
    prewarmed: str
    outcome: str
    why: str
    asked: int
    ready: int
    used: int
    ended: int
    told: int
    load_s: float
    busy_s: float
    idle_s: float
    uses: int
    saved: int
    memory_mib: float
    host: str


class _Boot(msgspec.Struct, gc=False):
    gpu: str
    boot: str
    at: int


class _GpuSample(msgspec.Struct, gc=False):
    gpu: str
    at: int
    utilisation: float
    function_utilisation: float
    memory_used_mib: float
    memory_total_mib: float
    running: int
    counter: str
    device: str
    sharing_mode: str


class _JobWindow(msgspec.Struct, gc=False):
    job: str
    at: int
    project: str
    gpu: str
    iterations: int
    window_s: float
    solo_s: float
    solo_count: int
    shared_s: float
    shared_count: int
    device: str
    sharing_mode: str


class _LossWindow(msgspec.Struct, gc=False):
    job: str
    gpu: str
    start: int
    end: int
    project: str
    before_s: float
    before_n: int
    closed_s: float
    closed_n: int
    closed_sd: float
    after_s: float
    after_n: int


class _BudgetStep(msgspec.Struct, gc=False):
    id: int
    job: str
    gpu: str
    at: int
    step: str
    duty: float
    factor: float


_Row: TypeAlias = (
    _Invocation
    | _Execution
    | _Decision
    | _GpuSample
    | _JobWindow
    | _LossWindow
    | _BudgetStep
    | _Minute
    | _Instance
    | _Boot
)

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": ""}
_ESCAPED = re.compile(r"[\\\t\n\r\0]")
_TYPES = {str: "text", int: "bigint", float: "float8"}


class _Stage:
    """
    A temporary table, emptied by every commit, with a column for each field of ``row``; ``merges`` carry it into the
    history.
    """

    def __init__(self, row: type[_Row], *merges: str) -> None:
        self.name = f"stage{row.__name__.lower()}"
        columns = ", ".join(f'"{field.name}" {_TYPES[field.type]}' for field in msgspec.structs.fields(row))
        self.create = f"CREATE TEMPORARY TABLE IF NOT EXISTS {self.name} ({columns}) ON COMMIT DELETE ROWS"
        self.copy = f"COPY {self.name} FROM STDIN"
        self.merges = [merge.replace("STAGE", self.name) for merge in merges]
        self._cells = attrgetter(*row.__struct_fields__)
        self._tabs = len(row.__struct_fields__) - 1
        self._form = "\t".join(["%s"] * len(row.__struct_fields__))

    def line(self, row: _Row) -> str:
        """COPY's text form. Postgres' text cannot hold NUL: it is left out."""
        cells = self._cells(row)
        line = self._form % cells
        # Nearly no row needs an escape, so that is found out for the row as a whole.
        if line.count("\t") != self._tabs or "\\" in line or "\n" in line or "\r" in line or "\0" in line:
            line = "\t".join(_ESCAPED.sub(lambda found: _ESCAPES[found[0]], str(cell)) for cell in cells)
        return line


def _at(column: str) -> str:
    """A timestamp from microseconds, exact: a double holds 2^53 of them."""
    return f"CASE WHEN {column} > 0 THEN to_timestamp({column}::float8 / 1e6) END"


def _progress(table: str) -> str:
    """
    Grows with every step of an invocation that has not ended: dispatched, running, and queued again, attempt by
    attempt.
    """
    return f"{table}.attempt * 4 + CASE {table}.state WHEN 'dispatched' THEN 1 WHEN 'running' THEN 2 ELSE 3 END"


_INVOCATIONS = _Stage(
    _Invocation,
    # Those whose arrival is known, from whatever event.
    f"""
    WITH merged AS (
        INSERT INTO invocations AS i (id, project, function, revision, state, cause, attempt, starts, arrival_at, deadline_at, claimed_at,
            started_at, finished_at, gpu, rows, key_id, trace, gate_s)
        SELECT id, project, function, revision, state, cause, attempt, starts, {_at("arrival")}, {_at("deadline")}, {_at("claimed")},
            {_at("started")}, {_at("finished")}, gpu, rows, key_id, trace, CASE WHEN gate > 0 THEN gate::float8 / 1e6 END
        FROM STAGE WHERE arrival > 0
        ON CONFLICT (id) DO UPDATE SET state = excluded.state, cause = excluded.cause, attempt = excluded.attempt,
            starts = greatest(excluded.starts, i.starts), claimed_at = coalesce(excluded.claimed_at, i.claimed_at),
            started_at = coalesce(excluded.started_at, i.started_at), finished_at = excluded.finished_at, gpu = excluded.gpu,
            key_id = coalesce(nullif(excluded.key_id, ''), i.key_id), trace = coalesce(nullif(excluded.trace, ''), i.trace)
        WHERE i.finished_at IS NULL AND (excluded.finished_at IS NOT NULL OR {_progress("excluded")} > {_progress("i")})
        RETURNING i.*, xmax = 0 AS inserted
    ), arrived AS (
        INSERT INTO arrivals_minute AS a (project, function, minute, n)
        SELECT project, function, date_trunc('minute', arrival_at), count(*) FROM merged WHERE inserted GROUP BY 1, 2, 3
        ON CONFLICT (project, function, minute) DO UPDATE SET n = a.n + excluded.n
    ), ended AS (
        SELECT m.*, nullif(s.cold, '')::boolean AS cold, s.load AS load_s, nullif(s.run_s, 0) AS run_s,
            CASE WHEN s.run_s > 0 THEN s.batch_rows ELSE 0 END AS batch_rows, 1.0::float8 / greatest(s.batch, 1) AS part,
            nullif(s.jobs, '')::jsonb AS jobs, m.state = 'succeeded' AS good,
            extract(epoch FROM m.finished_at - m.arrival_at)::float8 AS whole_s,
            coalesce(extract(epoch FROM m.started_at - m.arrival_at), 0)::float8 AS waited_s
        FROM merged AS m JOIN STAGE AS s ON s.id = m.id WHERE m.finished_at IS NOT NULL
    ), minutes AS (
        INSERT INTO function_minutes AS f (minute, project, function, revision, gpu, succeeded, failed, met, ran, cold, rows, total_s,
            failed_s, wait_s, run_s, load_s, worst_s)
        SELECT date_trunc('minute', finished_at), project, function, revision, gpu, count(*) FILTER (WHERE good),
            count(*) FILTER (WHERE NOT good), count(*) FILTER (WHERE good AND finished_at <= deadline_at), count(cold),
            count(*) FILTER (WHERE cold), coalesce(sum(rows) FILTER (WHERE good), 0), coalesce(sum(whole_s) FILTER (WHERE good), 0),
            coalesce(sum(whole_s) FILTER (WHERE NOT good), 0), coalesce(sum(waited_s) FILTER (WHERE good), 0),
            coalesce(sum(run_s * part), 0), sum(load_s), coalesce(max(whole_s) FILTER (WHERE good), 0)
        FROM ended GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (minute, project, function, revision, gpu) DO UPDATE SET succeeded = f.succeeded + excluded.succeeded,
            failed = f.failed + excluded.failed, met = f.met + excluded.met, ran = f.ran + excluded.ran, cold = f.cold + excluded.cold,
            rows = f.rows + excluded.rows, total_s = f.total_s + excluded.total_s, failed_s = f.failed_s + excluded.failed_s,
            wait_s = f.wait_s + excluded.wait_s, run_s = f.run_s + excluded.run_s, load_s = f.load_s + excluded.load_s,
            worst_s = greatest(f.worst_s, excluded.worst_s)
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
    )
    INSERT INTO job_harvest AS h (job, gpu, seconds, invocations)
    SELECT job, gpu, sum(run_s * part), count(*)
    FROM ended CROSS JOIN LATERAL jsonb_array_elements_text(ended.jobs) AS job WHERE run_s IS NOT NULL GROUP BY 1, 2
    ON CONFLICT (job, gpu) DO UPDATE SET seconds = h.seconds + excluded.seconds, invocations = h.invocations + excluded.invocations
    """,
    # A step of one that arrived in an earlier batch.
    f"""
    UPDATE invocations AS i SET state = s.state, attempt = s.attempt, gpu = s.gpu, claimed_at = coalesce({_at("s.claimed")}, i.claimed_at),
        started_at = coalesce({_at("s.started")}, i.started_at)
    FROM STAGE AS s WHERE s.arrival = 0 AND i.id = s.id AND i.finished_at IS NULL AND {_progress("s")} > {_progress("i")}
    """,
)

#: Why a cold start was not foreseen that the leader took for a warm one: it met an instance that was still loading.
LATE = "late"

_EXECUTIONS = _Stage(
    _Execution,
    # Alphabetically, too, running comes after dispatched.
    f"""
    WITH merged AS (
        INSERT INTO executions AS e (invocation, attempt, project, function, gpu, decision_id, state, cause, cold, load_s, run_s, batch,
            rows, co_runners, jobs, predicted, device, sharing_mode, unforeseen, claimed_at, started_at, finished_at)
        SELECT invocation, attempt, project, function, gpu, nullif(decision_id, 0), state, cause, nullif(cold, '')::boolean,
            nullif(load_s, '')::jsonb, nullif(run_s, 0), nullif(batch, 0), nullif(rows, 0), nullif(co_runners, '')::jsonb,
            nullif(jobs, '')::jsonb, nullif(predicted, '')::jsonb, nullif(device, ''), nullif(sharing_mode, ''),
            nullif(unforeseen, ''), {_at("claimed")}, {_at("started")}, {_at("finished")}
        FROM STAGE
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

_DECISIONS = _Stage(
    _Decision,
    f"""
    INSERT INTO decisions (id, project, function, gpu, at, decision)
    SELECT id, project, function, gpu, {_at("at")}, decision::jsonb FROM STAGE ON CONFLICT DO NOTHING
    """,
)

_GPU_SAMPLES = _Stage(
    _GpuSample,
    f"""
    INSERT INTO gpu_samples (gpu, at, utilisation, function_utilisation, memory_used_mib, memory_total_mib, running, counter,
        device, sharing_mode)
    SELECT gpu, {_at("at")}, utilisation, function_utilisation, memory_used_mib, memory_total_mib, running, counter, device, sharing_mode
    FROM STAGE ON CONFLICT DO NOTHING
    """,
)

_JOB_WINDOWS = _Stage(
    _JobWindow,
    f"""
    INSERT INTO job_windows AS w (job, at, project, gpu, iterations, window_s, solo_s, solo_count, shared_s, shared_count, device,
        sharing_mode)
    SELECT job, {_at("at")}, project, gpu, iterations, window_s, solo_s, solo_count, shared_s, shared_count, device, sharing_mode FROM STAGE
    ON CONFLICT (job, at, gpu) DO UPDATE SET iterations = excluded.iterations, window_s = excluded.window_s, solo_s = excluded.solo_s,
        solo_count = excluded.solo_count, shared_s = excluded.shared_s, shared_count = excluded.shared_count
    WHERE excluded.iterations >= w.iterations
    """,
)

_LOSS_WINDOWS = _Stage(
    _LossWindow,
    # A window never changes, and comes with many reports.
    f"""
    INSERT INTO loss_windows (job, gpu, start_at, end_at, project, before_s, before_n, closed_s, closed_n, closed_sd, after_s, after_n)
    SELECT job, gpu, {_at("start")}, {_at('"end"')}, project, before_s, before_n, closed_s, closed_n, closed_sd, after_s, after_n FROM STAGE
    ON CONFLICT DO NOTHING
    """,
)

_BUDGET_STEPS = _Stage(
    _BudgetStep,
    f"""
    INSERT INTO budget_steps (id, job, gpu, at, step, duty, factor)
    SELECT id, job, gpu, {_at("at")}, step, duty, factor FROM STAGE ON CONFLICT DO NOTHING
    """,
)

_MINUTES = _Stage(
    _Minute,
    # Bits, so that reading entries again changes nothing.
    f"""
    INSERT INTO counted_minutes AS m (minute, seconds) SELECT {_at("minute")}, bit_or(seconds) FROM STAGE GROUP BY 1
    ON CONFLICT (minute) DO UPDATE SET seconds = m.seconds | excluded.seconds
    """,
)

_INSTANCES = _Stage(
    _Instance,
    f"""
    INSERT INTO instances AS i (id, gpu, boot, project, function, revision, prewarmed, outcome, why, asked_at, ready_at, used_at, ended_at,
        told_at, load_s, busy_s, idle_s, uses, saved, memory_mib, host)
    SELECT DISTINCT ON (id) id, gpu, boot, project, function, revision, prewarmed::boolean, outcome, why, {_at("asked")}, {_at("ready")},
        {_at("used")}, {_at("ended")}, {_at("told")}, load_s, busy_s, idle_s, uses, saved, memory_mib, host::boolean
    FROM STAGE ORDER BY id, told DESC
    ON CONFLICT (id) DO UPDATE SET outcome = excluded.outcome, why = excluded.why, ready_at = excluded.ready_at, used_at = excluded.used_at,
        ended_at = excluded.ended_at, told_at = excluded.told_at, load_s = excluded.load_s, busy_s = excluded.busy_s,
        idle_s = excluded.idle_s, uses = excluded.uses, saved = excluded.saved, memory_mib = excluded.memory_mib
    WHERE i.ended_at IS NULL AND excluded.told_at >= i.told_at
    """,
)

#: An instance whose worker is gone has ended when it was last heard of; one that nothing has used was for nothing.
_LOST = """
    UPDATE instances AS i SET ended_at = greatest(i.told_at, i.asked_at), why = 'worker_lost',
        outcome = CASE WHEN i.outcome <> 'open' THEN i.outcome WHEN i.ready_at IS NULL THEN 'failed' ELSE 'wasted' END
"""

_BOOTS = _Stage(
    _Boot,
    # A worker that has started anew has none of what its former self had.
    f"{_LOST} FROM STAGE AS s WHERE i.ended_at IS NULL AND i.gpu = s.gpu AND i.boot <> s.boot AND i.told_at <"
    f" {_at('s.at')}",
)

_STAGES = (
    _INVOCATIONS,
    _EXECUTIONS,
    _DECISIONS,
    _GPU_SAMPLES,
    _JOB_WINDOWS,
    _LOSS_WINDOWS,
    _BUDGET_STEPS,
    _MINUTES,
    _INSTANCES,
    _BOOTS,
)
_CREATE = "; ".join(stage.create for stage in _STAGES)
_EMPTY = f"TRUNCATE {', '.join(stage.name for stage in _STAGES)}"


# ---- what a batch of entries comes to --------------------------------------------------------------------------------


#: Of a candidate of a decision (smore/messages/reasons.py): in this order the values are kept, without their names,
#: which were most of the bytes.
_CANDIDATE = (
    "gpu",
    "warm",
    "delay_s",
    "run_s",
    "finish_at",
    "impact",
    "function_degradation",
    "function_degradation_upper",
    "training_degradation",
    "training_degradation_upper",
    "known",
    "refusal",
)
#: What is kept with the execution of what a decision expected of its GPU instance, where it is not 0.
_EXPECTED = (
    "run_s",
    "function_degradation",
    "function_degradation_upper",
    "training_degradation",
    "training_degradation_upper",
    "known",
)

_NO_RUN = stream.Execution()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def stream_number(entry: str) -> int:
    """A stream id as one number of the same order: milliseconds << 20 | sequence."""
    milliseconds, _, sequence = entry.partition("-")
    return int(milliseconds) << 20 | int(sequence)


class _Fold:
    """The rows that a run of entries comes to."""

    def __init__(self) -> None:
        self.invocations: dict[str, _Invocation] = {}
        self.executions: dict[tuple[str, int], _Execution] = {}
        self.decisions: list[_Decision] = []
        self.gpu_samples: dict[tuple[str, int], _GpuSample] = {}
        self.job_windows: dict[tuple[str, str, int], _JobWindow] = {}
        self.loss_windows: dict[tuple[str, str, int], _LossWindow] = {}
        self.budget_steps: list[_BudgetStep] = []
        self.minutes: dict[int, _Minute] = {}
        self.instances: dict[str, _Instance] = {}
        self.boots: dict[str, _Boot] = {}

    def add(self, entry: str, raw: bytes) -> None:
        """Raises ValueError where the entry cannot be read."""
        event = stream.decode(raw)
        self._counted(entry)
        match event:
            case stream.Arrived() as event:
                self._arrived(event)
            case stream.Dispatched() as event:
                self._dispatched(entry, event)
            case stream.Settled() as event:
                self._settled(event)
            case stream.Returned() as event:
                self._returned(event)
            case stream.Reported() as event:
                self._reported(event)
            case stream.Stepped() as event:
                number = stream_number(entry)
                self.budget_steps.append(
                    _BudgetStep(number, event.job, event.gpu, event.at_us, event.step, event.duty, event.factor)
                )
            case stream.Warmed() as event:
                self._warmed(event)
            case stream.CatalogChanged() | stream.Asked():
                pass

    def stages(self) -> Sequence[tuple[_Stage, Collection[_Row]]]:
        return (
            (_INVOCATIONS, self.invocations.values()),
            (_EXECUTIONS, self.executions.values()),
            (_DECISIONS, self.decisions),
            (_GPU_SAMPLES, self.gpu_samples.values()),
            (_JOB_WINDOWS, self.job_windows.values()),
            (_LOSS_WINDOWS, self.loss_windows.values()),
            (_BUDGET_STEPS, self.budget_steps),
            (_MINUTES, self.minutes.values()),
            (_INSTANCES, self.instances.values()),
            (_BOOTS, self.boots.values()),
        )

    def _counted(self, entry: str) -> None:
        """The platform was up in the second of an entry: what did not arrive then did not come."""
        second = int(entry.partition("-")[0]) // 1000
        minute = second // 60
        row = self.minutes.get(minute)
        if row is None:
            row = self.minutes[minute] = _Minute(minute * 60_000_000, 0)
        row.seconds |= 1 << second % 60

    def _invocation(self, function: str, id_: str) -> _Invocation:
        row = self.invocations.get(id_)
        if row is None:
            project, _, name = function.partition("/")
            row = self.invocations[id_] = _Invocation(id_, project, name)
        return row

    def _execution(self, function: str, id_: str, attempt: int, gpu: str) -> _Execution:
        row = self.executions.get((id_, attempt))
        if row is None:
            project, _, name = function.partition("/")
            row = self.executions[id_, attempt] = _Execution(id_, attempt, project, name, gpu)
        return row

    def _arrived(self, event: stream.Arrived) -> None:
        project, _, name = event.function.partition("/")
        self.invocations[event.id] = _Invocation(
            event.id,
            project,
            name,
            event.revision,
            "queued",
            "",
            0,
            0,
            event.arrival_us,
            event.deadline_us,
            0,
            0,
            0,
            "",
            event.rows,
            event.key_id,
            event.trace,
            event.gate_us,
        )

    def _dispatched(self, entry: str, event: stream.Dispatched) -> None:
        project, _, name = event.function.partition("/")
        number = stream_number(entry)
        reasons = _reasons(event.decision)
        decision = event.decision if reasons is None else _json(_packed(reasons))
        self.decisions.append(_Decision(number, project, name, event.gpu, event.at_us, decision))
        (predicted, unforeseen), batch = _predicted(reasons or {}, event.gpu), len(event.attempts)
        for id_, attempt in event.attempts:
            row = self._invocation(event.function, id_)
            row.state, row.cause, row.attempt, row.gpu, row.claimed, row.started = (
                "dispatched",
                "",
                attempt,
                event.gpu,
                event.at_us,
                0,
            )
            self.executions[id_, attempt] = _Execution(
                id_,
                attempt,
                project,
                name,
                event.gpu,
                number,
                "dispatched",
                "",
                "",
                "",
                0.0,
                batch,
                0,
                "",
                "",
                predicted,
                event.at_us,
                unforeseen=unforeseen,
            )

    def _warmed(self, event: stream.Warmed) -> None:
        project, _, name = event.function.partition("/")
        known = self.instances.get(event.id)
        if known is not None and known.told > event.at_us:
            return
        self.instances[event.id] = _Instance(
            event.id,
            event.gpu,
            event.boot,
            project,
            name,
            event.revision,
            str(bool(event.prewarmed)),
            event.outcome,
            event.why,
            event.asked_us,
            event.ready_us,
            event.used_us,
            event.ended_us,
            event.at_us,
            event.load_us / 1e6,
            event.busy_us / 1e6,
            event.idle_us / 1e6,
            event.uses,
            event.saved,
            event.memory_kib / 1024,
            str(bool(event.host)),
        )

    def _returned(self, event: stream.Returned) -> None:
        row = self._invocation(event.function, event.id)
        row.revision, row.state, row.cause, row.attempt = event.revision, "queued", event.cause, event.attempt
        row.arrival, row.deadline, row.gpu, row.rows = event.arrival_us, event.deadline_us, "", event.rows
        run = self._execution(event.function, event.id, event.attempt, event.gpu)
        run.state, run.cause, run.finished = "queued", event.cause, event.at_us

    def _settled(self, event: stream.Settled) -> None:
        project, _, name = event.function.partition("/")
        # The start of an earlier attempt stands in the record until the next one starts.
        started = event.started_us if event.started_us >= event.claimed_us else 0
        known = self.invocations.get(event.id)
        self.invocations[event.id] = ended = _Invocation(
            event.id,
            project,
            name,
            event.revision,
            event.state,
            event.cause,
            event.attempt,
            event.starts,
            event.arrival_us,
            event.deadline_us,
            event.claimed_us,
            started,
            event.finished_us,
            event.gpu,
            event.rows,
            event.key_id,
            event.trace,
            known.gate if known is not None else 0,
        )
        if not event.gpu:
            return  # it ended while it waited
        row = self._execution(event.function, event.id, event.attempt, event.gpu)
        row.state, row.cause, row.claimed, row.started, row.finished = (
            event.state,
            event.cause,
            event.claimed_us,
            started,
            event.finished_us,
        )
        if event.meta:
            run = _run(event.meta)
            row.cold, row.run_s, row.rows = str(run.cold), (run.run_ms or 0.0) / 1000, run.rows
            row.unforeseen = (
                (row.unforeseen or LATE) if run.cold and row.decision_id else row.unforeseen if run.cold else ""
            )
            row.batch = run.batch or row.batch
            row.load_s = (
                _json({phase: milliseconds / 1000 for phase, milliseconds in run.load_ms.items()})
                if run.load_ms
                else ""
            )
            row.co_runners, row.jobs = _json(run.co), _json(run.jobs)
            row.device, row.sharing_mode = run.device, run.sharing_mode
            ended.cold, ended.run_s, ended.batch, ended.batch_rows, ended.jobs = (
                row.cold,
                row.run_s,
                row.batch,
                run.rows,
                row.jobs,
            )
            ended.load = sum(run.load_ms.values()) / 1000

    def _reported(self, event: stream.Reported) -> None:
        report = fleet.decode_report(event.report)
        second = event.at_us // 1_000_000 * 1_000_000
        self.gpu_samples[report.gpu, second] = _GpuSample(
            report.gpu,
            second,
            report.utilisation,
            report.function_utilisation,
            report.memory_used_mib,
            report.memory_total_mib,
            report.running,
            report.utilisation_counter,
            report.device,
            report.sharing_mode,
        )
        window = event.at_us // (JOB_WINDOW_S * 1_000_000) * (JOB_WINDOW_S * 1_000_000)
        self.boots[report.gpu] = _Boot(report.gpu, report.boot, event.at_us)
        for job in report.jobs:
            self.job_windows[job.id, report.gpu, window] = _JobWindow(
                job.id,
                window,
                job.project,
                report.gpu,
                job.iterations,
                job.window_s,
                job.solo_s,
                job.solo_count,
                job.shared_s,
                job.shared_count,
                report.device,
                report.sharing_mode,
            )
            for found in job.windows:
                start = int(found.start * 1e6)
                self.loss_windows[job.id, report.gpu, start] = _LossWindow(
                    job.id,
                    report.gpu,
                    start,
                    int(found.end * 1e6),
                    job.project,
                    found.before_s,
                    found.before_n,
                    found.closed_s,
                    found.closed_n,
                    found.closed_sd,
                    found.after_s,
                    found.after_n,
                )


def _reasons(decision: str) -> dict[str, Any] | None:
    """A decision's JSON, None where it is none of ours."""
    try:
        found = msgspec.json.decode(decision)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    candidates = found.get("candidates", [])
    return found if isinstance(candidates, list) and all(isinstance(one, dict) for one in candidates) else None


def _packed(reasons: dict[str, Any]) -> dict[str, Any]:
    """As it is kept: nothing that is null or empty, candidates as the values of :data:`_CANDIDATE`."""
    kept = {name: value for name, value in reasons.items() if value not in (None, {}, [], "")}
    if "candidates" in kept:
        kept["candidates"] = [[one.get(name) for name in _CANDIDATE] for one in kept["candidates"]]
    return kept


def unpacked(kept: dict[str, Any]) -> dict[str, Any]:
    """A decision as it was told, without what was null; rows from before candidates were packed are that already."""
    candidates = [
        (
            {name: value for name, value in zip(_CANDIDATE, one, strict=False) if value is not None}
            if isinstance(one, list)
            else one
        )
        for one in kept.get("candidates", [])
    ]
    return kept | {"candidates": candidates}


def _predicted(reasons: dict[str, Any], gpu: str) -> tuple[str, str]:
    """What the decision expected of the GPU instance, and why it is a cold start."""
    chosen = next((one for one in reasons.get("candidates", ()) if one.get("gpu") == gpu), None)
    expected = "" if chosen is None else _json({name: chosen[name] for name in _EXPECTED if chosen.get(name)})
    return expected, str(reasons.get("unforeseen") or "")


def _run(meta: str) -> stream.Execution:
    try:
        return stream.decode_execution(meta)
    except ValueError as error:
        log.warning("unreadable execution record passed over", error=str(error))
        return _NO_RUN


# ---- writing ---------------------------------------------------------------------------------------------------------


class Recorder:
    """
    Writes the event stream into Postgres. Any number may run: the cursor's row is locked while one of them works.

    Redis away is redis-py's error, Postgres away SQLAlchemy's OperationalError; either way nothing is lost and the call
    may be repeated.
    """

    def __init__(self, engine: Engine, client: "redis.Redis", prefix: str) -> None:
        self._engine = engine
        self._redis = client
        self._stream = f"{prefix}ev"
        self._leader = f"{prefix}leader:cursor"
        #: As of the last drain.
        self._cursor = "0-0"

    def drain(self, limit: int = 5000) -> int:
        """
        Write at most ``limit`` entries and cut the stream behind them.

        Returns how many there were. Fewer than ``limit``: the stream is at its end for now, or another recorder is at
        work.
        """
        with _driver(self._engine) as connection:
            count = self._drain(connection, limit)
        self._trim()
        RECORDED.inc(count)
        RECORD_LAG.set(self.lag_s())
        return count

    def lag_s(self) -> float:
        """Seconds since the oldest entry that is not in Postgres yet, 0 where there is none."""
        oldest = cast("list[tuple[bytes, object]]", self._redis.xrange(self._stream, min=f"({self._cursor}", count=1))
        if not oldest:
            return 0.0
        seconds, micros = self._redis.time()
        return max(0.0, seconds + micros / 1e6 - int(oldest[0][0].partition(b"-")[0]) / 1000)

    def retain(self, days: float, *, most_bytes: float = inf, minutes_days: float = 400.0) -> int:
        """
        Delete rows that are older than ``days``, then the oldest of those that take more than ``most_bytes``; minutes
        when they are older than ``minutes_days``. A chunk a transaction, so that nobody waits for long.

        Returns how many rows (executions, which go with their invocations, not counted).
        """
        now = datetime.now(UTC)
        with _driver(self._engine) as connection:
            deleted = _retire(connection, rows_before(now - timedelta(days=days)), "age")
            deleted += _retire(connection, _minutes_before(now - timedelta(days=minutes_days)), "age")
            for table in _ROWS:
                with connection.transaction():
                    connection.execute(f"ANALYZE {table}")
            size = measure(connection)
            if size.bytes > most_bytes:
                surplus = int(size.invocations * (1 - _ROOM * most_bytes / size.bytes))
                with connection.transaction():
                    found = connection.execute(
                        "SELECT arrival_at FROM invocations ORDER BY arrival_at LIMIT 1 OFFSET %s", (surplus,)
                    ).fetchone()
                if found is not None:
                    deleted += _retire(connection, rows_before(found[0]), "size")
        HISTORY_BYTES.set(size.bytes)
        return deleted

    def _drain(self, connection: Connection, limit: int) -> int:
        with connection.transaction():
            connection.execute(
                "INSERT INTO stream_cursor (name, last_id, version) VALUES (%s, '0-0', %s) ON CONFLICT DO NOTHING",
                (CURSOR, stream.VERSION),
            )
            row = connection.execute(
                "SELECT last_id FROM stream_cursor WHERE name = %s FOR UPDATE SKIP LOCKED", (CURSOR,)
            ).fetchone()
            if row is None:
                return 0
            cursor = row[0]
            entries = self._read(cursor, limit)
            if not entries and cursor != "0-0" and stream_number(self._last()) < stream_number(cursor):
                log.warning("the event stream began anew, so does the history", cursor=cursor, last=self._last())
                cursor = "0-0"
                entries = self._read(cursor, limit)
            if entries:
                connection.execute(_CREATE)
                self._write(connection, entries)
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
            asked = min(_PAGE, limit - len(entries))
            answer = self._redis.xread({self._stream: cursor}, count=asked)
            page = [(entry, values[b"e"]) for entry, values in fleet.stream_entries(answer)]
            entries += page
            if len(page) < asked:
                break
            cursor = page[-1][0]
        return entries

    def _last(self) -> str:
        """Id of the last entry that the stream ever had."""
        if not self._redis.exists(self._stream):
            return "0-0"
        return cast("dict[str, bytes]", self._redis.xinfo_stream(self._stream))["last-generated-id"].decode()

    def _write(self, connection: Connection, entries: Sequence[tuple[str, bytes]]) -> None:
        """
        Entries that Postgres refuses (a value that it cannot hold) are narrowed down and passed over: none may block
        the others.
        """
        fold = _Fold()
        for entry, raw in entries:
            try:
                fold.add(entry, raw)
            except ValueError as error:
                _skipped(entry, error)
        try:
            with connection.transaction():
                for stage, rows in fold.stages():
                    if rows:
                        _merge(connection, stage, rows)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            if len(entries) == 1:
                _skipped(entries[0][0], error)
                return
            middle = len(entries) // 2
            for half in (entries[:middle], entries[middle:]):
                # What the half before has left there would be merged again.
                connection.execute(_EMPTY)
                self._write(connection, half)

    def _trim(self) -> None:
        """Entries before the cursor go; the one at it stays. What the leader has not seen stays too."""
        leader = cast("bytes | None", self._redis.get(self._leader))
        seen = min(self._cursor, leader.decode() if leader else self._cursor, key=stream_number)
        self._redis.xtrim(self._stream, minid=seen, approximate=False)


def _merge(connection: Connection, stage: _Stage, rows: Collection[_Row]) -> None:
    with connection.cursor() as cursor:
        with cursor.copy(stage.copy) as copy:
            copy.write("\n".join(map(stage.line, rows)) + "\n")
        for merge in stage.merges:
            cursor.execute(merge)


def _skipped(entry: str, error: Exception) -> None:
    RECORD_SKIPPED.inc()
    log.warning("stream entry passed over", entry=entry, error=str(error))


#: A table, the statement that deletes a chunk of it, and the bound that it is given.
_Retirement: TypeAlias = tuple[str, str, datetime | int]

#: The tables with a row for every invocation, sample or report: what retention by size measures.
_ROWS = (
    "invocations",
    "executions",
    "decisions",
    "gpu_samples",
    "job_windows",
    "loss_windows",
    "budget_steps",
    "instances",
)


def _retire(connection: Connection, retirements: Iterable[_Retirement], why: str) -> int:
    """Rows that were deleted; they are told in the log and in the metrics."""
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
    told = {table: count for table, count in deleted.items() if count}
    if told:
        log.info("rows of the history deleted", why=why, rows=told)
    return sum(told.values())


def rows_before(before: datetime) -> Iterator[_Retirement]:
    """What deletes the rows from before a moment, the invocations (and their executions) first."""
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

    # The statement of a job that still runs rests on all of its windows.
    rows = (
        "SELECT w.ctid FROM loss_windows AS w LEFT JOIN jobs AS j ON j.id = w.job WHERE w.end_at < %(before)s"
        " AND (j.id IS NULL OR j.ended_at < %(before)s) LIMIT %(chunk)s"
    )
    yield "loss_windows", _deletion("loss_windows", rows), before


def _minutes_before(before: datetime) -> Iterator[_Retirement]:
    for table in ("arrivals_minute", "counted_minutes", "function_minutes"):
        yield _retirement(table, "minute", before)
    yield _retirement("run_starts", "at", before)


def _retirement(table: str, column: str, bound: datetime | int) -> _Retirement:
    return (
        table,
        _deletion(table, f"SELECT ctid FROM {table} WHERE {column} < %(before)s ORDER BY {column} LIMIT %(chunk)s"),
        bound,
    )


def _deletion(table: str, rows: str) -> str:
    return f"WITH old AS (DELETE FROM {table} WHERE ctid = ANY(ARRAY({rows})) RETURNING 1) SELECT count(*) FROM old"


# ---- measuring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """
    What the rows of the history take, indices included, as of Postgres' last statistics of them.

    ``bytes`` hold rows; ``file_bytes`` are the files: what retention frees in them is written again, not given back.
    ``bytes_per_day``: how fast it grows, by the invocations that ended in the last day (or since the first of them);
    None = too few to tell. ``oldest_at`` in epoch seconds, None = there is no row.
    """

    bytes: float
    file_bytes: int
    invocations: int
    oldest_at: float | None
    bytes_per_day: float | None


#: Minutes that must have passed since the first counted one for a day's growth to be said.
_LEAST_MINUTES = 10.0


def measure(connection: Connection) -> Size:
    """Reads catalogs and a day of minutes; no row of the big tables is counted."""
    query = """
        SELECT c.relname, pg_total_relation_size(c.oid), pg_relation_size(c.oid), c.reltuples, coalesce(w.bytes, 0)
        FROM pg_class AS c LEFT JOIN (
            SELECT tablename, sum(avg_width * (1 - null_frac)) AS bytes FROM pg_stats WHERE schemaname = current_schema() GROUP BY 1
        ) AS w ON w.tablename = c.relname
        WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(%s)
    """
    invocations, used, files = 0, 0.0, 0
    with connection.transaction():
        for name, total, heap, rows, width in connection.execute(query, (list(_ROWS),)).fetchall():
            files += total
            # Without statistics there were no deletions to speak of either.
            used += total if rows < 0 else total * min(1.0, rows * (width + _ROW_BYTES) / max(heap, 1))
            if name == "invocations":
                invocations = max(0, int(rows))
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
    )


@contextmanager
def _driver(engine: Engine) -> Iterator[Connection]:
    """psycopg's connection, out of the engine's pool."""
    with engine.connect() as connection:
        try:
            yield cast(Connection, connection.connection.driver_connection)
        except psycopg.OperationalError as error:
            raise OperationalError(None, None, error) from error


# ---- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PastInvocation:
    """
    An invocation as the stream told it, finished or not. ``gate_s``: what the gate held against its deadline, from
    arrival.
    """

    id: str
    function: str
    revision: int
    state: State
    cause: str
    attempt: int
    starts: int
    arrival_at: float
    deadline_at: float
    claimed_at: float | None
    started_at: float | None
    finished_at: float | None
    gpu: str
    rows: int
    key_id: str
    trace: str
    gate_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One attempt on a GPU instance; see :class:`smore.postgres.rows.ExecutionRow`. None = not known (yet)."""

    invocation: str
    attempt: int
    function: str
    gpu: str
    state: State
    cause: str
    cold: bool | None
    load_s: dict[str, float] | None
    run_s: float | None
    batch: int | None
    rows: int | None
    co_runners: list[str] | None
    jobs: list[str] | None
    predicted: dict[str, Any] | None
    claimed_at: float | None
    started_at: float | None
    finished_at: float | None

    @property
    def degradation(self) -> float | None:
        """
        Measured: its run time over what the decision expected of it alone, minus one. None where it was cold, or not
        run to the end.
        """
        alone_s = (self.predicted or {}).get("run_s")
        return self.run_s / alone_s - 1 if self.run_s is not None and alone_s and not self.cold else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDecision:
    """A dispatch; ``decision``: its reasons (smore/messages/reasons.py), without what is null."""

    id: int
    function: str
    gpu: str
    at: float
    decision: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWindow:
    """See :class:`smore.postgres.rows.JobWindowRow`."""

    job: str
    at: float
    gpu: str
    iterations: int
    window_s: float
    solo_s: float
    solo_count: int
    shared_s: float
    shared_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """
    The closed windows of a job on a GPU instance; ``first_at``, ``last_at``: when the first and the last began, epoch
    seconds.
    """

    first_at: float
    last_at: float
    sums: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStep:
    """See :class:`smore.postgres.rows.BudgetStepRow`; ``at`` in epoch seconds."""

    gpu: str
    at: float
    step: str
    duty: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """
    What functions have got beside a job: seconds of device time (a batch counts once) and the invocations that they
    served.
    """

    seconds: float
    invocations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    gpu: str
    at: float
    utilisation: float
    function_utilisation: float
    memory_used_mib: float
    memory_total_mib: float
    running: int
    counter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """
    An invocation that has ended, with its last attempt: what a replay needs. ``function`` is ``<project>/<name>``;
    epoch seconds.

    ``attempt`` 0 = never dispatched. ``run_s`` is that of the whole batch of ``batch`` invocations with ``batch_rows``
    rows (None: not run to the end), ``slowdown`` the degradation that the decision expected of it; ``load_s`` a cold
    start, all phases. ``wait_s``: from the dispatch to the start.
    """

    id: str
    function: str
    revision: int
    state: State
    attempt: int
    arrival_at: float
    deadline_at: float
    finished_at: float
    rows: int
    gpu: str
    run_s: float | None
    batch: int | None
    batch_rows: int | None
    cold: bool | None
    load_s: float | None
    slowdown: float
    wait_s: float | None

    @property
    def met(self) -> bool:
        return self.state is State.SUCCEEDED and self.finished_at <= self.deadline_at


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """A GPU instance over a span: means of its samples, and what it was at the last one."""

    gpu: str
    device: str
    sharing_mode: str
    memory_total_mib: float
    utilisation: float
    function_utilisation: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """
    A serverful job on a GPU instance over a span: mean seconds of an iteration alone, and of any (None: there was
    none).
    """

    job: str
    gpu: str
    windows: int
    solo_s: float | None
    mean_s: float | None


_Value = TypeVar("_Value", BudgetStep, PastInvocation, Execution, JobWindow, GpuSample)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotal:
    """``batches`` of ``rows`` rows that ran, for ``run_s`` seconds in all."""

    rows: int
    batches: int
    run_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """
    What became of a revision's invocations, all that ever ended; seconds are sums over them.

    ``total_s``: arrival to end of those that succeeded, of which ``wait_s`` until they were started and ``run_s`` in
    their batch's run; ``failed_s``: arrival to end of the others. ``rows``: of those that succeeded. ``last_at``: the
    newest end, epoch seconds.
    """

    function: str
    revision: int
    succeeded: int
    failed: int
    rows: int
    total_s: float
    failed_s: float
    wait_s: float
    run_s: float
    last_at: float
    batches: tuple[BatchTotal, ...]


class Reader:
    """
    Reads the history, for the API and for people. Postgres away is SQLAlchemy's OperationalError.

    Each method takes a connection of its own, which costs three round trips more: who calls several uses
    :meth:`together`.
    """

    def __init__(self, engine: Engine) -> None:
        self._connect: Callable[[], AbstractContextManager[SqlConnection]] = engine.connect

    @contextmanager
    def together(self) -> Iterator["Reader"]:
        """A reader, for one thread, that reads over one connection."""
        reader = copy(self)
        with self._connect() as connection:
            reader._connect = lambda: nullcontext(connection)
            yield reader

    def invocation(self, project: str, id_: str) -> PastInvocation:
        """Raises InvocationNotFound."""
        found = self._all(
            PastInvocation, InvocationRow, lambda q: q.where(InvocationRow.id == id_, InvocationRow.project == project)
        )
        if not found:
            raise InvocationNotFound
        return found[0]

    def invocations(
        self,
        project: str,
        *,
        function: str | None = None,
        state: State | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> tuple[list[PastInvocation], str | None]:
        """
        The newest first, and the cursor of the next page, None after the last. ``function`` is the name without the
        project.
        """

        def narrow(query: Select[Any]) -> Select[Any]:
            query = query.where(InvocationRow.project == project)
            if function is not None:
                query = query.where(InvocationRow.function == function)
            if state is not None:
                query = query.where(InvocationRow.state == state)
            if cursor is not None:
                query = query.where(InvocationRow.id < cursor)
            return query.order_by(InvocationRow.id.desc()).limit(limit + 1)

        found = self._all(PastInvocation, InvocationRow, narrow)
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    def executions(self, project: str, id_: str) -> list[Execution]:
        """By attempt."""
        which = (ExecutionRow.invocation == id_, ExecutionRow.project == project)
        return self._all(Execution, ExecutionRow, lambda q: q.where(*which).order_by(ExecutionRow.attempt))

    def decisions(self, project: str, id_: str) -> dict[int, PastDecision]:
        """The decisions that dispatched an invocation, by attempt; those that are known."""
        columns = [ExecutionRow.attempt, *(getattr(DecisionRow, field.name) for field in fields(PastDecision))]
        query = select(*columns).join(DecisionRow, ExecutionRow.decision_id == DecisionRow.id)
        query = query.where(ExecutionRow.invocation == id_, ExecutionRow.project == project)
        with self._connect() as connection:
            return {
                attempt: PastDecision(
                    id=number, function=function, gpu=gpu, at=at.timestamp(), decision=unpacked(decision)
                )
                for attempt, number, function, gpu, at, decision in connection.execute(query)
            }

    def windows_around(self, job: str, gpu: str, start: float, end: float) -> list[JobWindow]:
        """
        What a job's iterations on a GPU instance took as last reported while something ran there, epoch seconds; at
        most one window.
        """
        row = JobWindowRow
        which = (row.job == job, row.gpu == gpu, row.at > _moment(start - JOB_WINDOW_S), row.at <= _moment(end))
        return self._all(JobWindow, row, lambda q: q.where(*which).order_by(row.at.desc()).limit(1))

    def job_windows(self, job: str) -> list[JobWindow]:
        return self._all(JobWindow, JobWindowRow, lambda q: q.where(JobWindowRow.job == job).order_by(JobWindowRow.at))

    def closed(self, job: str) -> dict[str, Closed]:
        """The closed windows of a job by GPU instance."""
        row = LossWindowRow
        open_s = (row.before_s + row.after_s) / 2
        ratio = func.sum(open_s).over(partition_by=row.gpu) / func.sum(row.closed_s).over(partition_by=row.gpu)
        one = (
            select(row.gpu, row.start_at, row.closed_s, open_s.label("open_s"), ratio.label("ratio"))
            .where(row.job == job)
            .subquery()
            .c
        )
        rest = one.open_s - one.ratio * one.closed_s
        sums = (func.sum(one.open_s), func.sum(one.closed_s), func.sum(rest * rest))
        query = select(one.gpu, func.count(), func.min(one.start_at), func.max(one.start_at), *sums).group_by(one.gpu)
        with self._connect() as connection:
            return {
                gpu: Closed(first_at=first.timestamp(), last_at=last.timestamp(), sums=Sums(windows, *of_them))
                for gpu, windows, first, last, *of_them in connection.execute(query)
            }

    def budget_steps(self, job: str, limit: int) -> list[BudgetStep]:
        """The last ``limit`` steps of the closed loop that were taken for a job, the newest first."""
        return self._all(
            BudgetStep,
            BudgetStepRow,
            lambda q: q.where(BudgetStepRow.job == job).order_by(BudgetStepRow.id.desc()).limit(limit),
        )

    def harvest(self, job: str, gpus: Sequence[str]) -> Harvest:
        """What ran beside a job on its GPU instances, to the end or not, since it began."""
        row = JobHarvestRow
        sums = (func.coalesce(func.sum(row.seconds), 0.0), func.coalesce(func.sum(row.invocations), 0))
        with self._connect() as connection:
            seconds, invocations = connection.execute(select(*sums).where(row.job == job, row.gpu.in_(gpus))).one()
        return Harvest(seconds=float(seconds), invocations=int(invocations))

    def totals(self, project: str, function: str | None = None) -> list[Totals]:
        """By function and revision, of all that ever ended; all functions of the project where none is named."""
        row = FunctionTotalRow
        query = select(row).where(row.project == project).order_by(row.function, row.revision, row.batch_rows)
        if function is not None:
            query = query.where(row.function == function)
        found: dict[tuple[str, int], list[FunctionTotalRow]] = {}
        with self._connect() as connection, Session(connection) as session:
            for one in session.scalars(query):
                found.setdefault((one.function, one.revision), []).append(one)
        return [_totals(name, revision, rows) for (name, revision), rows in found.items()]

    def solo_timings(self, workload: str, place: tuple[str, str]) -> list[dict[str, float]]:
        """
        Iteration times (n, mean, p50, p95, p99) of a profiled workload alone at a (device, sharing mode), newest first.
        """
        names = ("model", "preset", "role", "batch")
        document = ProfileRow.document
        which = (ProfileRow.kind == "solo", ProfileRow.device == place[0], ProfileRow.sharing_mode == place[1])
        same = [
            document["workload"][name].astext == part for name, part in zip(names, workload.split("/"), strict=True)
        ]
        query = select(document["timing"]).where(*which, *same).order_by(ProfileRow.at.desc())
        with self._connect() as connection:
            return list(connection.scalars(query))

    def gpu_samples(self, gpu: str, since: float) -> list[GpuSample]:
        """From the epoch second ``since`` on."""
        which = (GpuSampleRow.gpu == gpu, GpuSampleRow.at >= datetime.fromtimestamp(since, UTC))
        return self._all(GpuSample, GpuSampleRow, lambda q: q.where(*which).order_by(GpuSampleRow.at))

    # -- what a replay reads: all projects
    # ---------------------------------------------------------------------------------------------

    def served(self, since: float, until: float, most: int) -> tuple[list[Served], int]:
        """
        Invocations that arrived in [since, until) and have ended, in order of arrival, and how many there were; the
        newest ``most``.

        Cancelled ones are left out, and counted with neither.
        """
        row, run = InvocationRow, ExecutionRow
        ended = (State.SUCCEEDED, State.FAILED, State.REJECTED, State.EXPIRED)
        which = (
            row.arrival_at >= _moment(since),
            row.arrival_at < _moment(until),
            row.state.in_(ended),
            row.finished_at.is_not(None),
        )
        columns = (
            row.id,
            row.project,
            row.function,
            row.revision,
            row.state,
            row.attempt,
            row.arrival_at,
            row.deadline_at,
            row.finished_at,
            row.rows,
            row.gpu,
            run.run_s,
            run.batch,
            run.rows.label("batch_rows"),
            run.cold,
            run.load_s,
            run.predicted,
            run.claimed_at,
            run.started_at,
        )
        query = select(*columns).outerjoin(run, (run.invocation == row.id) & (run.attempt == row.attempt))
        query = query.where(*which).order_by(row.arrival_at.desc(), row.id.desc()).limit(most)
        with self._connect() as connection:
            count = connection.execute(select(func.count()).select_from(row).where(*which)).scalar_one()
            found = [_served(one) for one in connection.execution_options(yield_per=_PAGE).execute(query).mappings()]
        found.reverse()
        return found, count

    def gpu_use(self, since: float, until: float) -> list[GpuUse]:
        """Of every GPU instance that reported in [since, until), by name."""
        row = GpuSampleRow
        which = (row.at >= _moment(since), row.at < _moment(until))
        means = (func.avg(row.utilisation), func.avg(row.function_utilisation), func.count(), func.max(row.at))
        query = select(row.gpu, *means).where(*which).group_by(row.gpu).order_by(row.gpu)
        with self._connect() as connection:
            found = connection.execute(query).all()
            newest = tuple_(row.gpu, row.at).in_([(gpu, last) for gpu, *_, last in found])
            columns = (row.gpu, row.device, row.sharing_mode, row.memory_total_mib)
            last = {one.gpu: one for one in connection.execute(select(*columns).where(newest))}
        return [
            GpuUse(
                gpu=gpu,
                device=last[gpu].device,
                sharing_mode=last[gpu].sharing_mode,
                memory_total_mib=last[gpu].memory_total_mib,
                utilisation=float(busy),
                function_utilisation=float(part),
                samples=samples,
            )
            for gpu, busy, part, samples, _ in found
        ]

    def job_use(self, since: float, until: float) -> list[JobUse]:
        """Of every job on every GPU instance in [since, until), those of most windows first."""
        row = JobWindowRow

        # Numbers of iterations weigh: a window without any has 0 seconds.
        alone, beside = func.sum(row.solo_count), func.sum(row.shared_count)
        spent = func.sum(row.solo_s * row.solo_count), func.sum(row.shared_s * row.shared_count)
        columns = (
            func.count(),
            spent[0] / func.nullif(alone, 0),
            (spent[0] + spent[1]) / func.nullif(alone + beside, 0),
        )
        query = select(row.job, row.gpu, *columns).where(row.at >= _moment(since), row.at < _moment(until))
        query = query.group_by(row.job, row.gpu).order_by(func.count().desc(), row.job, row.gpu)
        with self._connect() as connection:
            return [
                JobUse(job=job, gpu=gpu, windows=windows, solo_s=_float(solo), mean_s=_float(mean))
                for job, gpu, windows, solo, mean in connection.execute(query)
            ]

    def policies(self, since: float, until: float) -> dict[str, int]:
        """
        How many dispatches each policy decided in [since, until), the busiest first; '' where a decision does not say.
        """
        name = func.coalesce(DecisionRow.decision["policy"].astext, "")
        query = (
            select(name, func.count())
            .where(DecisionRow.at >= _moment(since), DecisionRow.at < _moment(until))
            .group_by(name)
        )
        with self._connect() as connection:
            return {str(policy): int(n) for policy, n in connection.execute(query.order_by(func.count().desc(), name))}

    def specs(self, revisions: Collection[tuple[str, int]]) -> dict[tuple[str, int], FunctionSpec]:
        """The catalog's word on (``<project>/<name>``, revision), with what their canaries found; those it knows."""
        wanted = [(*function.split("/", 1), number) for function, number in revisions]
        row = RevisionRow
        query = select(row.project, row.function, row.number, row.spec)
        query = query.where(tuple_(row.project, row.function, row.number).in_(wanted))
        with self._connect() as connection:
            return {
                (f"{project}/{function}", number): spec_from_dict(spec)
                for project, function, number, spec in connection.execute(query)
            }

    def job_tags(self, jobs: Collection[str]) -> dict[str, dict[str, Any]]:
        """What was said of jobs when they were started (``workload``, ``budget``), by id."""
        with self._connect() as connection:
            return {
                str(job): dict(tags)
                for job, tags in connection.execute(select(JobRow.id, JobRow.tags).where(JobRow.id.in_(jobs)))
            }

    def _all(self, value: type[_Value], row: type[Base], narrow: Callable[[Select[Any]], Select[Any]]) -> list[_Value]:
        """Values whose fields are the columns of the same name, times as epoch seconds."""
        names = [field.name for field in fields(value)]
        query = narrow(select(*(getattr(row, name) for name in names)))
        with self._connect() as connection:
            return [value(**dict(zip(names, map(_plain, one), strict=True))) for one in connection.execute(query)]


def _totals(function: str, revision: int, rows: Sequence[FunctionTotalRow]) -> Totals:
    return Totals(
        function=function,
        revision=revision,
        succeeded=sum(row.succeeded for row in rows),
        failed=sum(row.failed for row in rows),
        rows=sum(row.rows for row in rows),
        total_s=sum(row.total_s for row in rows),
        failed_s=sum(row.failed_s for row in rows),
        wait_s=sum(row.wait_s for row in rows),
        run_s=sum(row.run_s for row in rows),
        last_at=max(row.last_at for row in rows).timestamp(),
        batches=tuple(
            BatchTotal(rows=row.batch_rows, batches=round(row.batches), run_s=row.batch_s)
            for row in rows
            if row.batch_rows
        ),
    )


def _served(row: RowMapping) -> Served:
    started, claimed, load = row["started_at"], row["claimed_at"], row["load_s"]
    return Served(
        id=row["id"],
        function=f"{row['project']}/{row['function']}",
        revision=row["revision"],
        state=State(row["state"]),
        attempt=row["attempt"],
        arrival_at=row["arrival_at"].timestamp(),
        deadline_at=row["deadline_at"].timestamp(),
        finished_at=row["finished_at"].timestamp(),
        rows=row["rows"],
        gpu=row["gpu"] or "",
        run_s=row["run_s"],
        batch=row["batch"],
        batch_rows=row["batch_rows"],
        cold=row["cold"],
        load_s=sum(load.values()) if load else None,
        slowdown=float((row["predicted"] or {}).get("function_degradation") or 0.0),
        wait_s=(started - claimed).total_seconds() if started is not None and claimed is not None else None,
    )


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _plain(cell: Any) -> Any:
    return cell.timestamp() if isinstance(cell, datetime) else cell
