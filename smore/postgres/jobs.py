"""
Serverful jobs in the catalog: what was asked for, and what became of it. Used by :class:`smore.postgres.catalog.Store`
and by the job scheduler (smore/postgres/job_ledger.py).

A job is not mirrored to Redis: GPU workers report what runs, and no hot path reads the rest.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
from sqlalchemy import Engine, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from smore.domain.errors import Conflict, IdempotencyMismatch, NotFound
from smore.domain.function import parse_name
from smore.domain.ids import new_id
from smore.domain.job import (
    OVER,
    PLACED,
    STARTED,
    TRANSITIONS,
    WAITING,
    Action,
    JobDecision,
    JobRequest,
    JobSource,
    JobState,
    Outcome,
    outcome_of,
)
from smore.domain.loss import DEFAULT_BUDGET
from smore.domain.spelling import did_you_mean
from smore.postgres.job_pairs import JobPair, end_pairs, pairs_of
from smore.postgres.job_promises import JobPromise, promises_of
from smore.postgres.locks import Lock
from smore.postgres.rows import JobAttemptRow, JobDecisionRow, JobRow, ProjectRow, require_project, value_of
from smore.process.observability import logger

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    See :class:`smore.postgres.rows.JobRow`; times are epoch seconds. ``request``: what is asked for now; of one that runs
    elsewhere, what was said of it.
    """

    id: str
    project: str
    name: str
    request: JobRequest
    gpus: Sequence[str]
    state: JobState
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    source: JobSource = STARTED
    past_budgets: Sequence[tuple[float, float]] = ()
    asked: bool = False
    reason: str = ""
    outcome: Outcome | None = None
    attempt: int = 0
    queued_at: float | None = None
    waited_s: float = 0.0
    ran_s: float = 0.0
    lost_s: float = 0.0
    not_before: float | None = None
    moved: int = 0
    restarts: int = 0
    short_ends: int = 0
    iterations: int = 0
    home: str = ""
    reached: int = 0
    began_with: int = 0
    estimate_s: float | None = None
    estimate_90_s: float | None = None
    estimate_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """See :class:`smore.postgres.rows.JobAttemptRow`; times are epoch seconds."""

    attempt: int
    gpus: Sequence[str]
    nodes: Sequence[str]
    started_at: float
    up_at: float | None
    ended_at: float | None
    why: str
    message: str
    exit_code: int | None
    iterations_from: int
    iterations: int
    micro_batches: int = 1
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """
    What comes with an action. ``gpus`` and ``nodes`` of a start; ``exit_code``, ``reason`` (why the platform refused it or
    let it go), ``why`` and ``message`` of an attempt's end; ``not_before`` (epoch seconds), ``restarts`` and
    ``short_ends`` of a job that waits again. ``asked``: its owner wants it. ``micro_batches``: in how many parts a start is to
    run its batch. ``memory_mib`` of one that waits again because it took more than was said of it: from now on that is said,
    and nobody trains beside it; 0 = it did not.
    """

    gpus: Sequence[str] = ()
    nodes: Sequence[str] = ()
    exit_code: int | None = None
    reason: str = ""
    why: str = ""
    message: str = ""
    not_before: float | None = None
    restarts: int = 0
    short_ends: int = 0
    asked: bool = False
    micro_batches: int = 1
    memory_mib: float = 0.0


#: Gets the jobs of a project that have not ended, and raises where there is no room for one more.
Admit = Callable[[Sequence[Job]], None]


class JobStore:
    """
    Reads and writes of jobs. Thread-safe; every method is one transaction.

    Where Postgres is away they raise SQLAlchemy's OperationalError.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # ---- begin -------------------------------------------------------------------------------------------------------

    def submit(
        self,
        project: str,
        name: str,
        request: JobRequest,
        env: bytes | None = None,
        *,
        admit: Admit | None = None,
        key: str | None = None,
        digest: str | None = None,
    ) -> Job:
        """
        A job that waits (``queued``). ``env``: its variables, sealed (smore/process/vault.py: seal_env). ``key``: of a request
        that may be repeated, and ``digest`` of its body. Raises NotFound without the project, InvalidSpec for a bad name, and
        what ``admit`` raises.
        """
        parse_name(name)
        with Session(self._engine) as session:
            require_project(session, project)
            _admit_job(session, project, admit)
            row = JobRow(
                id=new_id(),
                project=project,
                name=name,
                argv=list(request.argv),
                gpus=[],
                state=JobState.QUEUED,
                spec=asdict(request),
                env=env,
                workload=request.workload,
                budget=request.budget,
                memory_mib=request.memory_mib,
                queued_at=datetime.now(UTC),
                request_key=key,
                request_digest=digest,
            )
            session.add(row)
            try:
                session.commit()
            except IntegrityError:
                # The same request came twice at once.
                session.rollback()
                first = self.repeated(project, key, digest) if key is not None and digest is not None else None
                if first is None:
                    raise
                return first
            return job_of(row)

    def attach(
        self,
        project: str,
        name: str,
        gpu: str,
        *,
        source: JobSource,
        group: str,
        rank: str,
        workload: str = "",
        budget: float = DEFAULT_BUDGET,
        former: str | None = None,
        admit: Admit | None = None,
    ) -> Job:
        """
        A training that runs elsewhere (``starting``, until its worker reports it); ``source``: tracked or attached.

        The first rank of a ``group`` creates the job; the others add their GPU instance to it. The job with the id
        ``former`` becomes lost. Raises NotFound without the project, InvalidSpec for a bad name, Conflict where another
        rank reports the same GPU instance, and what ``admit`` raises for a new job.
        """
        parse_name(name)
        with Session(self._engine) as session:
            require_project(session, project)
            # Ranks register at the same moment.
            session.execute(select(func.pg_advisory_xact_lock(Lock.RANKS.value, func.hashtext(f"{project}/{group}"))))
            going_on = JobRow.state.in_((JobState.STARTING, JobState.RUNNING))
            of_group = (JobRow.project == project, going_on, JobRow.rank_group == group)
            row = session.scalars(
                select(JobRow).where(*of_group).order_by(JobRow.id.desc()).limit(1).with_for_update()
            ).first()
            if row is not None and row.id == former:
                change(session, row, Action.LOSE)
                row = None
            if row is None:
                _admit_job(session, project, admit)
                row = JobRow(id=new_id(), project=project, name=name, argv=[], gpus=[], state=JobState.STARTING)
                row.source, row.rank_group, row.ranks = source, group, {}
                row.workload, row.budget = workload, budget
                session.add(row)
            if row.ranks.get(gpu, rank) != rank:
                raise Conflict(f"Another rank of this training tells of {gpu} already.")
            row.gpus = sorted({*row.gpus, gpu})
            row.ranks = {**row.ranks, gpu: rank}
            session.commit()
            return job_of(row)

    # ---- change ------------------------------------------------------------------------------------------------------

    def move(self, id_: str, action: Action, details: JobChange | None = None) -> Job | None:
        """
        Change a job's state by an action of :data:`~smore.domain.job.TRANSITIONS`. None where its state does not allow it.
        Raises NotFound.
        """
        with Session(self._engine) as session:
            row = session.get(JobRow, id_, with_for_update=True)
            if row is None:
                raise NotFound(f"There is no job {id_}.")
            if not change(session, row, action, details):
                return None
            session.commit()
            return job_of(row)

    def stop(self, project: str, id_: str) -> Job:
        """Its owner wants it to end: one that waits ends at once; one that is over stays as it is. Raises NotFound."""
        with Session(self._engine) as session:
            row = _job_row(session, project, id_)
            wanted = JobChange(asked=True)
            if not change(session, row, Action.STOP, wanted) and row.state in WAITING:
                change(session, row, Action.END, wanted)
            session.commit()
            return job_of(row)

    def hold(self, project: str, id_: str) -> Job:
        """A job that waits is not started before it is released. Raises NotFound, Conflict."""
        return self._wanted(project, id_, Action.HOLD, "only a job that waits can be held")

    def release(self, project: str, id_: str) -> Job:
        """Raises NotFound, Conflict."""
        return self._wanted(project, id_, Action.RELEASE, "only a job that is held can be released")

    def restart(self, project: str, id_: str) -> Job:
        """A job that is over waits again, for another attempt. Raises NotFound, Conflict."""
        return self._wanted(project, id_, Action.RESTART, "only a job that is over can be started again")

    def put_first(self, project: str, id_: str) -> Job:
        """A job that waits is before all others; of two the later one. Raises NotFound, Conflict."""
        with Session(self._engine) as session:
            row = _job_row(session, project, id_)
            if row.state not in WAITING:
                raise Conflict(f"The job {id_} is {row.state.value}: only a job that waits can be put first.")
            row.moved = (session.scalar(select(func.max(JobRow.moved))) or 0) + 1
            session.commit()
            return job_of(row)

    def set_budget(self, project: str, id_: str, budget: float) -> Job:
        """Set the degradation budget, a fraction. Raises NotFound, Conflict for a job that is over."""
        with Session(self._engine) as session:
            row = _job_row(session, project, id_)
            if row.state in OVER:
                raise Conflict(f"The job {id_} is over.")
            if row.budget != budget:
                row.past_budgets = [*row.past_budgets, [datetime.now(UTC).timestamp(), row.budget]]
            row.budget = budget
            session.commit()
            return job_of(row)

    def remove(self, project: str, id_: str) -> None:
        """Forget a job that was attached and never reported. Raises NotFound, Conflict."""
        with Session(self._engine) as session, session.begin():
            row = _job_row(session, project, id_)
            if row.source == STARTED or row.started_at is not None:
                raise Conflict(f"The job {id_} has run, or waits.")
            session.execute(delete(JobRow).where(JobRow.id == id_))

    def _wanted(self, project: str, id_: str, action: Action, rule: str) -> Job:
        with Session(self._engine) as session:
            row = _job_row(session, project, id_)
            if row.source != STARTED or not change(session, row, action):
                state = row.state.value if row.source == STARTED else f"{row.source}, not the platform's"
                raise Conflict(f"The job {id_} is {state}: {rule}.")
            session.commit()
            return job_of(row)

    # ---- read --------------------------------------------------------------------------------------------------------

    def get(self, project: str, id_: str) -> Job:
        """Raises NotFound."""
        with Session(self._engine) as session:
            return job_of(_job_row(session, project, id_, lock=False))

    def repeated(self, project: str, key: str, digest: str) -> Job | None:
        """
        The job that an earlier request with this key made; None = there was none. Raises IdempotencyMismatch where that one
        had another body.
        """
        query = select(JobRow).where(JobRow.project == project, JobRow.request_key == key)
        with Session(self._engine) as session:
            row = session.scalars(query).first()
            if row is None:
                return None
            if row.request_digest != digest:
                raise IdempotencyMismatch(
                    "This Idempotency-Key was used with another body.", id=row.id, differs=["body"]
                )
            return job_of(row)

    def promises(self, jobs: Collection[str]) -> dict[str, JobPromise]:
        """What was promised to those of the jobs that have asked for it, and what became of it."""
        with Session(self._engine) as session:
            return promises_of(session, jobs) if jobs else {}

    def find(self, project: str, reference: str) -> Job:
        """
        By id or name: of several jobs of one name the one that is not over, else the newest. Raises NotFound, and Conflict
        (``ids``) where several are not over.
        """
        with Session(self._engine) as session:
            row = session.get(JobRow, reference)
            if row is not None and row.project == project:
                return job_of(row)
            named = (JobRow.project == project, JobRow.name == reference)
            going_on = session.scalars(
                select(JobRow).where(*named, JobRow.state.not_in(OVER)).order_by(JobRow.id)
            ).all()
            if len(going_on) > 1:
                ids = [row.id for row in going_on]
                raise Conflict(f"The name {reference} is ambiguous: {', '.join(ids)}.", field="job", ids=ids)
            row = (
                next(iter(going_on), None)
                or session.scalars(select(JobRow).where(*named).order_by(JobRow.id.desc()).limit(1)).first()
            )
            if row is None:
                names = session.scalars(select(JobRow.name).where(JobRow.project == project).distinct().limit(1000))
                hint = did_you_mean(reference, list(names))
                raise NotFound(f"There is no job {reference} in this project{hint or '.'}")
            return job_of(row)

    def unfinished(self) -> list[Job]:
        """The jobs of all projects that are not over."""
        query = select(JobRow).where(JobRow.state.not_in(OVER)).order_by(JobRow.id)
        with Session(self._engine) as session:
            return _readable(session.scalars(query))

    def page(
        self,
        project: str | None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        states: Collection[JobState] | None = None,
    ) -> tuple[list[Job], str | None]:
        """The newest first, and the cursor of the next page, None after the last. ``project`` None = of all projects."""
        query = select(JobRow).order_by(JobRow.id.desc()).limit(limit + 1)
        if project is not None:
            query = query.where(JobRow.project == project)
        if cursor is not None:
            query = query.where(JobRow.id < cursor)
        if states is not None:
            query = query.where(JobRow.state.in_(states))
        with Session(self._engine) as session:
            rows = list(session.scalars(query))
            return _readable(rows[:limit]), rows[limit - 1].id if len(rows) > limit else None

    def attempts(self, id_: str) -> list[PastAttempt]:
        """The first one first."""
        with Session(self._engine) as session:
            rows = session.scalars(
                select(JobAttemptRow).where(JobAttemptRow.job == id_).order_by(JobAttemptRow.attempt)
            )
            return [value_of(PastAttempt, row) for row in rows]

    def pairs(self, id_: str) -> list[JobPair]:
        """With which other jobs it shared GPU instances, and what it lost to them; the first ones first."""
        with Session(self._engine) as session:
            return pairs_of(session, [id_])

    def names(self, jobs: Collection[str], project: str | None = None) -> dict[str, str]:
        """The names of those that there are, in one project (None = in any)."""
        query = select(JobRow.id, JobRow.name).where(JobRow.id.in_(jobs))
        if project is not None:
            query = query.where(JobRow.project == project)
        with Session(self._engine) as session:
            return {row.id: row.name for row in session.execute(query)} if jobs else {}

    def decisions(self, id_: str, limit: int = 100) -> list[JobDecision]:
        """The newest first."""
        query = select(JobDecisionRow).where(JobDecisionRow.job == id_).order_by(JobDecisionRow.id.desc()).limit(limit)
        with Session(self._engine) as session:
            return [value_of(JobDecision, row) for row in session.scalars(query)]


def change(session: Session, row: JobRow, action: Action, details: JobChange | None = None) -> bool:
    """
    Change a row that is locked, and its attempt with it; nothing else writes a job's state. False where its state does
    not allow the action.
    """
    before, after = row.state, TRANSITIONS[action].get(row.state)
    if after is None:
        return False
    details, now = details or JobChange(), datetime.now(UTC)
    row.state = after
    row.asked = row.asked or details.asked
    row.reason = details.reason or row.reason
    if details.exit_code is not None:
        row.exit_code = details.exit_code
    if before is JobState.QUEUED and row.queued_at is not None:
        row.waited_s += max(0.0, (now - row.queued_at).total_seconds())
        row.queued_at = None
    if action is Action.START:
        _start(session, row, details, now)
    elif before in PLACED and after not in PLACED and row.source == STARTED:
        _end_attempt(session, row, details, now)
    if after is JobState.RUNNING:
        row.started_at = row.started_at or now
        attempt = session.get(JobAttemptRow, (row.id, row.attempt))
        if attempt is not None:
            attempt.up_at = now
    if after is JobState.QUEUED:
        _queue(row, action, details, now)
    if after in OVER:
        row.ended_at = row.ended_at or now
        row.outcome = outcome_of(after, row.exit_code, asked=row.asked, reason=row.reason)
    return True


def _start(session: Session, row: JobRow, details: JobChange, now: datetime) -> None:
    row.attempt += 1
    row.gpus, row.not_before, row.moved, row.exit_code = list(details.gpus), None, 0, None
    attempt = JobAttemptRow(
        job=row.id, attempt=row.attempt, gpus=list(details.gpus), nodes=list(details.nodes), started_at=now
    )
    attempt.iterations_from = attempt.iterations = row.iterations
    attempt.micro_batches = details.micro_batches
    session.add(attempt)


def _end_attempt(session: Session, row: JobRow, details: JobChange, now: datetime) -> None:
    attempt = session.get(JobAttemptRow, (row.id, row.attempt))
    if attempt is not None and attempt.ended_at is None:
        row.ran_s += max(0.0, (now - attempt.started_at).total_seconds())
        row.lost_s += attempt.lost_s
        end_pairs(session, row.id, row.attempt, now)
        attempt.ended_at, attempt.exit_code = now, details.exit_code
        attempt.why, attempt.message = details.why, details.message


def _queue(row: JobRow, action: Action, details: JobChange, now: datetime) -> None:
    row.queued_at, row.gpus = now, []
    if action is Action.REQUEUE:
        row.restarts, row.short_ends = details.restarts, details.short_ends
        if details.not_before is not None:
            row.not_before = datetime.fromtimestamp(details.not_before, UTC)
            row.queued_at = max(now, row.not_before)
        if details.memory_mib:
            row.memory_mib = details.memory_mib
            row.spec = row.spec | {"memory_mib": details.memory_mib, "share": 0.0, "micro_batches": []}
    if action is Action.RESTART:
        row.restarts = row.short_ends = 0
        row.asked, row.reason, row.outcome, row.ended_at, row.exit_code = False, "", None, None, None


def _job_row(session: Session, project: str, id_: str, *, lock: bool = True) -> JobRow:
    row = session.get(JobRow, id_, with_for_update=lock)
    if row is None or row.project != project:
        raise NotFound(f"There is no job {id_} in this project.")
    return row


def _admit_job(session: Session, project: str, admit: Admit | None) -> None:
    """
    Call ``admit`` with the project's jobs. The project is locked, so jobs that begin at the same moment are admitted one
    after the other.
    """
    if admit is None:
        return
    # FOR NO KEY UPDATE: under FOR UPDATE every insert of a row that names the project would wait.
    session.execute(select(ProjectRow.name).where(ProjectRow.name == project).with_for_update(key_share=True))
    rows = session.scalars(select(JobRow).where(JobRow.project == project, JobRow.state.not_in(OVER)))
    admit([job_of(row) for row in rows])


#: What was asked for and has a column of its own, which holds where something else was asked for since.
_OF_REQUEST: Final = ("argv", "workload", "budget", "memory_mib")


def job_of(row: JobRow) -> Job:
    request = msgspec.convert(row.spec | {name: getattr(row, name) for name in _OF_REQUEST}, JobRequest)
    return value_of(Job, row, request=request)


def _readable(rows: Iterable[JobRow]) -> list[Job]:
    """A row that cannot be read is passed over: it stands for no other job."""
    jobs = []
    for row in rows:
        try:
            jobs.append(job_of(row))
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            log.warning("unreadable job passed over", job=row.id, error=str(error))
    return jobs
