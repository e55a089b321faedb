"""
Serverful jobs in the catalog: what was asked for, and what became of it. Used by :class:`smore.postgres.catalog.Store`.

A job is not mirrored to Redis: GPU workers report what runs, and no hot path reads the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from smore.domain.errors import Conflict, NotFound
from smore.domain.function import parse_name
from smore.domain.ids import new_id
from smore.domain.job import OVER, JobState
from smore.postgres.locks import Lock
from smore.postgres.rows import JobRow, ProjectRow, epoch_s, require_project


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    id: str
    project: str
    name: str
    argv: Sequence[str]
    gpus: Sequence[str]
    state: JobState
    tags: Mapping[str, Any]
    created_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None


#: Gets the jobs of a project that have not ended, and raises where there is no room for one more.
Admit = Callable[[Sequence[Job]], None]


class JobStore:
    """
    Reads and writes of jobs. Thread-safe; every method is one transaction.

    Where Postgres is away they raise SQLAlchemy's OperationalError.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self,
        project: str,
        name: str,
        argv: Sequence[str],
        gpus: Sequence[str],
        tags: Mapping[str, Any] | None = None,
        *,
        admit: Admit | None = None,
    ) -> Job:
        """
        A job that is about to be started (``starting``). Raises NotFound without the project, InvalidSpec for a bad
        name, and what ``admit`` raises.
        """
        parse_name(name)
        with Session(self._engine) as session:
            require_project(session, project)
            _admit_job(session, project, admit)
            row = JobRow(
                id=new_id(),
                project=project,
                name=name,
                argv=list(argv),
                gpus=list(gpus),
                state=JobState.STARTING,
                tags=dict(tags or {}),
            )
            session.add(row)
            session.commit()
            return _job(row)

    def attach(
        self,
        project: str,
        name: str,
        gpu: str,
        tags: Mapping[str, Any],
        *,
        group: str,
        rank: str,
        former: str | None = None,
        admit: Admit | None = None,
    ) -> Job:
        """
        A training that runs elsewhere (``starting``, until its worker reports it).

        The first rank of a ``group`` creates the job; the others add their GPU instance to it. The job with the id
        ``former`` becomes lost. Raises NotFound without the project, InvalidSpec for a bad name, Conflict where another
        rank reports the same GPU instance, and what ``admit`` raises for a new job.
        """
        parse_name(name)
        with Session(self._engine) as session:
            require_project(session, project)
            # Ranks register at the same moment.
            session.execute(select(func.pg_advisory_xact_lock(Lock.RANKS.value, func.hashtext(f"{project}/{group}"))))
            going_on = JobRow.state.not_in(OVER | {JobState.STOPPING})
            of_group = (JobRow.project == project, going_on, JobRow.tags["group"].astext == group)
            row = session.scalars(
                select(JobRow).where(*of_group).order_by(JobRow.id.desc()).limit(1).with_for_update()
            ).first()
            if row is not None and row.id == former:
                row.state, row.ended_at = JobState.LOST, datetime.now(UTC)
                row = None
            if row is None:
                _admit_job(session, project, admit)
                row = JobRow(id=new_id(), project=project, name=name, argv=[], gpus=[], state=JobState.STARTING)
                row.tags = {**tags, "group": group, "ranks": {}}
                session.add(row)
            if row.tags["ranks"].get(gpu, rank) != rank:
                raise Conflict(f"Another rank of this training tells of {gpu} already.")
            row.gpus = sorted({*row.gpus, gpu})
            row.tags = {**row.tags, "ranks": {**row.tags["ranks"], gpu: rank}}
            session.commit()
            return _job(row)

    def update(self, project: str, id_: str, state: JobState, exit_code: int | None = None, reason: str = "") -> Job:
        """
        Set the job's state and, where they are known, its exit code and the reason why the platform refused it or let it
        go. The first call with a state sets the time of its start or end. ``stopping`` also records that the owner asked
        for it. Raises NotFound.
        """
        with Session(self._engine) as session:
            row = _job_row(session, project, id_)
            now = datetime.now(UTC)
            row.state = state
            if exit_code is not None:
                row.exit_code = exit_code
            if state is JobState.STOPPING:
                row.tags = {**row.tags, "asked": True}
            if reason:
                row.tags = {**row.tags, "reason": reason}
            if state is JobState.RUNNING and row.started_at is None:
                row.started_at = now
            if state in OVER and row.ended_at is None:
                row.ended_at = now
            session.commit()
            return _job(row)

    def set_budget(self, project: str, id_: str, budget: float) -> Job:
        """Set the degradation budget, a fraction. Raises NotFound, Conflict for a job that is over."""
        with Session(self._engine) as session:
            row = _job_row(session, project, id_)
            if row.state in OVER:
                raise Conflict(f"The job {id_} is over.")
            row.tags = {**row.tags, "budget": budget}
            session.commit()
            return _job(row)

    def get(self, project: str, id_: str) -> Job:
        """Raises NotFound."""
        with Session(self._engine) as session:
            return _job(_job_row(session, project, id_))

    def unfinished(self) -> list[Job]:
        """The jobs of all projects whose end was not reported yet."""
        with Session(self._engine) as session:
            return [_job(row) for row in session.scalars(select(JobRow).where(JobRow.state.not_in(OVER)))]

    def page(self, project: str, *, limit: int = 100, cursor: str | None = None) -> tuple[list[Job], str | None]:
        """The newest first, and the cursor of the next page, None after the last."""
        query = select(JobRow).where(JobRow.project == project).order_by(JobRow.id.desc()).limit(limit + 1)
        if cursor is not None:
            query = query.where(JobRow.id < cursor)
        with Session(self._engine) as session:
            jobs = [_job(row) for row in session.scalars(query)]
        return jobs[:limit], jobs[limit - 1].id if len(jobs) > limit else None


def _job_row(session: Session, project: str, id_: str) -> JobRow:
    row = session.get(JobRow, id_, with_for_update=True)
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
    admit([_job(row) for row in rows])


def _job(row: JobRow) -> Job:
    return Job(
        id=row.id,
        project=row.project,
        name=row.name,
        argv=row.argv,
        gpus=row.gpus,
        state=row.state,
        tags=row.tags,
        created_at=row.created_at.timestamp(),
        started_at=epoch_s(row.started_at),
        ended_at=epoch_s(row.ended_at),
        exit_code=row.exit_code,
    )
