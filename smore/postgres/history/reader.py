"""
Reads of the history, for the API, for people and for replays.

:class:`Reader` is longer than other classes: each method is one query, and they share nothing but the connection.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Engine, Select, case, func, select
from sqlalchemy import Connection as SqlConnection
from sqlalchemy.orm import Session

from smore.domain.errors import InvocationNotFound
from smore.domain.invocation import State
from smore.domain.job import BudgetStep
from smore.domain.loss import Sums
from smore.domain.workload import ProfiledBatch
from smore.messages.reasons import unpack_reasons
from smore.postgres.history.values import (
    JOB_WINDOW_S,
    BatchTotal,
    Closed,
    Execution,
    Harvest,
    JobWindow,
    PastDecision,
    PastInvocation,
    Totals,
)
from smore.postgres.rows import (
    Base,
    BudgetStepRow,
    DecisionRow,
    ExecutionRow,
    GpuSampleRow,
    InvocationRow,
    JobAttemptRow,
    JobRow,
    JobWindowRow,
    LossWindowRow,
    ProfileRow,
    StreamCursorRow,
    value_of,
)
from smore.postgres.sums import FunctionTotalRow, GpuMinuteRow, JobHarvestRow

_Value = TypeVar("_Value", BudgetStep, PastInvocation, Execution, JobWindow)


class Reader:
    """
    Reads the history. Raises SQLAlchemy's OperationalError where Postgres is away.

    Each method takes a connection of its own, which costs three more round trips; use :meth:`together` for several calls.
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
        past = self._all(
            PastInvocation, InvocationRow, lambda q: q.where(InvocationRow.id == id_, InvocationRow.project == project)
        )
        if not past:
            raise InvocationNotFound
        return past[0]

    def invocations(
        self,
        project: str | None,
        *,
        function: str | None = None,
        state: State | None = None,
        gpu: str | None = None,
        cause: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> tuple[list[PastInvocation], str | None]:
        """
        The newest first, and the cursor of the next page, None after the last. ``project`` None = of all projects;
        ``function`` is the name without the project; ``since`` (included) and ``until`` (not) in epoch seconds, by the time
        in the id, within milliseconds of the arrival.
        """

        same = {"project": project, "function": function, "state": state, "gpu": gpu, "cause": cause}

        def narrow(query: Select[Any]) -> Select[Any]:
            query = query.filter_by(**{name: value for name, value in same.items() if value is not None})
            if since is not None:
                query = query.where(InvocationRow.id >= _first_id(since))
            if until is not None:
                query = query.where(InvocationRow.id < _first_id(until))
            if cursor is not None:
                query = query.where(InvocationRow.id < cursor)
            return query.order_by(InvocationRow.id.desc()).limit(limit + 1)

        page = self._all(PastInvocation, InvocationRow, narrow)
        return page[:limit], page[limit - 1].id if len(page) > limit else None

    def cold_starts(self, project: str | None, ids: Sequence[str]) -> dict[str, bool]:
        """
        Whether the last attempt of each invocation was a cold start; without those of which that is not known.
        ``project`` None = of any.
        """
        query = (
            select(ExecutionRow.invocation, ExecutionRow.cold)
            .where(ExecutionRow.invocation.in_(ids), ExecutionRow.cold.is_not(None))
            .order_by(ExecutionRow.attempt)
        )
        if project is not None:
            query = query.where(ExecutionRow.project == project)
        with self._connect() as connection:
            return {invocation: bool(cold) for invocation, cold in connection.execute(query)}

    def executions(self, project: str, id_: str) -> list[Execution]:
        """By attempt."""
        which = (ExecutionRow.invocation == id_, ExecutionRow.project == project)
        return self._all(Execution, ExecutionRow, lambda q: q.where(*which).order_by(ExecutionRow.attempt))

    def with_runs(self, ids: Collection[str]) -> list[tuple[PastInvocation, list[Execution]]]:
        """Invocations of any project, each with its executions by attempt."""
        with self.together() as reader:
            found = reader._all(PastInvocation, InvocationRow, lambda q: q.where(InvocationRow.id.in_(ids)))
            runs: dict[str, list[Execution]] = {past.id: [] for past in found}
            row = ExecutionRow
            for run in reader._all(Execution, row, lambda q: q.where(row.invocation.in_(ids)).order_by(row.attempt)):
                runs[run.invocation].append(run)
        return [(past, runs[past.id]) for past in found]

    def decisions(self, project: str, id_: str) -> dict[int, PastDecision]:
        """The decisions that dispatched an invocation, by attempt; those that are known."""
        columns = [ExecutionRow.attempt, *(getattr(DecisionRow, field.name) for field in fields(PastDecision))]
        query = select(*columns).join(DecisionRow, ExecutionRow.decision_id == DecisionRow.id)
        query = query.where(ExecutionRow.invocation == id_, ExecutionRow.project == project)
        with self._connect() as connection:
            return {
                row.attempt: value_of(PastDecision, row, decision=unpack_reasons(row.decision))
                for row in connection.execute(query)
            }

    def windows_around(self, job: str, gpu: str, start: float, end: float) -> list[JobWindow]:
        """
        The last window of a job's iterations on a GPU instance that was reported between ``start`` and ``end`` (epoch
        seconds); empty where there was none.
        """
        row = JobWindowRow
        which = (row.job == job, row.gpu == gpu, row.at > _moment(start - JOB_WINDOW_S), row.at <= _moment(end))
        return self._all(JobWindow, row, lambda q: q.where(*which).order_by(row.at.desc()).limit(1))

    def closed(
        self, jobs: Collection[str], since: float | None = None, until: float | None = None
    ) -> dict[str, dict[int, Closed]]:
        """
        The closed windows of jobs that began in [since, until), on whatever GPU instances, by job and rank (from 1). A job
        on one GPU instance has one rank; of others the attempt says which rank was where.
        """
        row, told = LossWindowRow, closed_windows(jobs)
        if since is not None:
            told = told.where(row.start_at >= _moment(since))
        if until is not None:
            told = told.where(row.start_at < _moment(until))
        one = told.subquery().c
        sum_of = [func.sum(each).over(partition_by=(one.job, one.rank)) for each in (one.open_s, one.closed_s)]
        window = select(*one, (sum_of[0] / sum_of[1]).label("ratio")).subquery().c
        rest = window.open_s - window.ratio * window.closed_s
        ends = (func.min(window.start_at), func.max(window.start_at))
        sums = (func.sum(window.open_s), func.sum(window.closed_s), func.sum(rest * rest))
        query = select(window.job, window.rank, func.count(), *ends, *sums).group_by(window.job, window.rank)
        found: dict[str, dict[int, Closed]] = {}
        with self._connect() as connection:
            for id_, rank, windows, first, last, *of_them in connection.execute(query):
                found.setdefault(id_, {})[rank] = Closed(
                    first_at=first.timestamp(), last_at=last.timestamp(), sums=Sums(windows, *of_them)
                )
        return found

    def last_iterations(self, jobs: Collection[str]) -> dict[str, int]:
        """The iterations that each job reported last."""
        row = JobWindowRow
        last = (
            select(row.iterations)
            .where(row.job == JobRow.id)
            .order_by(row.at.desc(), row.iterations)
            .limit(1)
            .scalar_subquery()
        )
        with self._connect() as connection:
            told = connection.execute(select(JobRow.id, last).where(JobRow.id.in_(jobs)))
            return {id_: iterations for id_, iterations in told if iterations is not None}

    def harvested(self, jobs: Collection[str]) -> set[str]:
        """Those of the jobs beside which a function has run."""
        with self._connect() as connection:
            return set(connection.scalars(select(JobHarvestRow.job).where(JobHarvestRow.job.in_(jobs))))

    def budget_steps(self, job: str, limit: int) -> list[BudgetStep]:
        """The last ``limit`` steps of the closed loop that were taken for a job, the newest first."""
        return self._all(
            BudgetStep,
            BudgetStepRow,
            lambda q: q.where(BudgetStepRow.job == job).order_by(BudgetStepRow.id.desc()).limit(limit),
        )

    def harvest(self, job: str) -> Harvest:
        """All runs beside a job, over all its attempts, those that failed included."""
        row = JobHarvestRow
        sums = (func.coalesce(func.sum(row.seconds), 0.0), func.coalesce(func.sum(row.invocations), 0))
        with self._connect() as connection:
            seconds, invocations = connection.execute(select(*sums).where(row.job == job)).one()
        return Harvest(seconds=float(seconds), invocations=int(invocations))

    def totals(self, project: str, function: str | None = None) -> list[Totals]:
        """Totals of all ended invocations by function and revision; of all functions of the project where none is named."""
        row = FunctionTotalRow
        query = select(row).where(row.project == project).order_by(row.function, row.revision, row.batch_rows)
        if function is not None:
            query = query.where(row.function == function)
        by_revision: dict[tuple[str, int], list[FunctionTotalRow]] = {}
        with self._connect() as connection, Session(connection) as session:
            for total in session.scalars(query):
                by_revision.setdefault((total.function, total.revision), []).append(total)
        return [_totals(name, revision, rows) for (name, revision), rows in by_revision.items()]

    def solo_timings(self, workload: str, place: tuple[str, str]) -> list[dict[str, float]]:
        """
        Iteration times (n, mean, p50, p95, p99) of a profiled workload alone at a (device, sharing mode), newest first.
        """
        parts = dict(zip(("model", "preset", "role", "batch"), workload.split("/"), strict=True))
        query = select(ProfileRow.document["timing"]).where(*_solo(parts, place)).order_by(ProfileRow.at.desc())
        with self._connect() as connection:
            return list(connection.scalars(query))

    def training_batches(self, workload: str, place: tuple[str, str]) -> list[ProfiledBatch]:
        """A profiled training (its model and preset) alone at a (device, sharing mode), at each batch, smallest first."""
        model, preset, role, _ = workload.split("/")
        which = _solo({"model": model, "preset": preset, "role": role}, place)
        with self._connect() as connection:
            solos = list(connection.scalars(select(ProfileRow.document).where(*which).order_by(ProfileRow.at)))
        rows = {
            int(solo["workload"]["batch"]): ProfiledBatch(
                batch=int(solo["workload"]["batch"]),
                seconds=solo["timing"]["mean"],
                input_wait_s=solo["input_wait_s"],
                memory_mib=(solo["device_memory_bytes"] or solo["features"]["memory_bytes"]) / 2**20,
            )
            for solo in solos
        }
        return [rows[batch] for batch in sorted(rows)]

    def last_report(self, gpu: str, until: float) -> float | None:
        """The second in which a worker last reported before ``until``, of those that were recorded; epoch seconds."""
        row, minute = GpuSampleRow, GpuMinuteRow
        by_second = select(func.max(row.at)).where(row.gpu == gpu, row.at <= _moment(until))
        # Of what is longer ago the minutes alone are kept.
        by_minute = select(minute.last_at).where(minute.gpu == gpu, minute.minute <= _moment(until))
        by_minute = by_minute.where(minute.last_at <= _moment(until)).order_by(minute.minute.desc()).limit(1)
        with self._connect() as connection:
            found = (connection.scalar(by_second), connection.scalar(by_minute))
        return max((at.timestamp() for at in found if at is not None), default=None)

    def recorded(self) -> str:
        """The id of the last entry of the event stream that is in Postgres; '' = none is."""
        with self._connect() as connection:
            return str(connection.execute(select(StreamCursorRow.last_id)).scalar() or "")

    def _all(self, value: type[_Value], row: type[Base], narrow: Callable[[Select[Any]], Select[Any]]) -> list[_Value]:
        """Values whose fields are the columns of the same name, times as epoch seconds."""
        query = narrow(select(*(getattr(row, field.name) for field in fields(value))))
        with self._connect() as connection:
            return [value_of(value, cells) for cells in connection.execute(query)]


def closed_windows(jobs: Collection[str]) -> Select[Any]:
    """The closed windows of jobs: job, rank (from 1), start_at, closed_s, open_s."""
    row, job, attempt = LossWindowRow, JobRow, JobAttemptRow
    meanwhile = (attempt.started_at <= row.start_at) & (attempt.ended_at.is_(None) | (attempt.ended_at > row.start_at))
    alone = (func.cardinality(job.gpus) < 2) & (func.coalesce(job.spec["count"].as_integer(), 1) < 2)
    there = (func.array_position(of.gpus, row.gpu) for of in (attempt, job))
    return (
        select(
            row.job,
            case((alone, 1), else_=func.coalesce(*there, 1)).label("rank"),
            row.start_at,
            row.closed_s,
            ((row.before_s + row.after_s) / 2).label("open_s"),
        )
        .outerjoin(job, job.id == row.job)
        .outerjoin(attempt, (attempt.job == row.job) & meanwhile)
        .where(row.job.in_(jobs))
    )


def _solo(parts: Mapping[str, str], place: tuple[str, str]) -> list[ColumnElement[bool]]:
    """Of measurements of a workload, by parts of its name, alone at a (device, sharing mode)."""
    same = [ProfileRow.document["workload"][name].astext == part for name, part in parts.items()]
    return [ProfileRow.kind == "solo", ProfileRow.device == place[0], ProfileRow.sharing_mode == place[1], *same]


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


def _first_id(at: float) -> str:
    """What no id of an earlier moment is behind (smore/domain/ids.py)."""
    return f"{min(max(0, int(at * 1000)), (1 << 48) - 1):012x}"


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
