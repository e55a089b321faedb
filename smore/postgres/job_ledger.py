"""
What the job scheduler reads and writes in Postgres. Each write is one transaction that checks the fencing token, the
job's state and its attempt: what a former leader still wants is refused.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, func, select, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from smore.domain.job import OVER, PLACED, REFUSED, STARTED, WAITING, Action, Outcome, PastRun, PromiseState
from smore.postgres.job_pairs import JobPair, add_pairs, pairs_of, worse_since, write_pairs
from smore.postgres.job_promises import JobPromise, add_promise, promises_of, write_promise
from smore.postgres.jobs import JobChange, PastAttempt, change
from smore.postgres.rows import JobAttemptRow, JobDecisionRow, JobLeaderRow, JobRow, ProjectRow, value_of

#: Runs that lengths are learnt from when a leader begins.
RUNS: Final = 500
#: Attempts of a workload that the time of its iterations is the median of.
FORMER: Final = 20
#: The one row of job_leader.
_ROW: Final = 1


class Fenced(Exception):
    """Another job scheduler leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    Of an attempt: ``iterations`` of the job done in all; those that it ``began_with``; ``checkpoint``: those that its last
    complete checkpoint holds, on the node ``home`` ('' = every node sees it). ``lost_s``: what other trainings beside it
    have cost it so far.
    """

    job: str
    attempt: int
    iterations: int
    began_with: int
    checkpoint: int
    home: str
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What is remembered of a decision: ``kind`` start, stop, requeue, finish, promise or budget, why in words, reasons of a start."""

    kind: str
    message: str = ""
    gpus: Sequence[str] = ()
    reasons: Mapping[str, Any] | None = None


class JobLedger:
    """Raises SQLAlchemy's OperationalError where Postgres is away, and :class:`Fenced` where another leads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._token = 0

    def lead(self) -> int:
        """Begin to lead: no other job scheduler can write from now on. Returns the fencing token."""
        row = JobLeaderRow
        with Session(self._engine) as session:
            new = upsert(row).values(id=_ROW, token=1)
            grown = new.on_conflict_do_update(index_elements=["id"], set_={"token": row.token + 1})
            self._token = int(session.execute(grown.returning(row.token)).scalar_one())
            session.commit()
        return self._token

    # ---- read --------------------------------------------------------------------------------------------------------

    def under_way(self, jobs: Collection[str]) -> dict[str, PastAttempt]:
        """The last attempt of each job that had one."""
        row = JobAttemptRow
        newest = select(row).where(row.job.in_(jobs)).ext(distinct_on(row.job)).order_by(row.job, row.attempt.desc())
        with Session(self._engine) as session:
            return {each.job: value_of(PastAttempt, each) for each in session.scalars(newest)}

    def pairs(self, jobs: Collection[str]) -> list[JobPair]:
        """All that these jobs have formed, the first ones first."""
        with Session(self._engine) as session:
            return pairs_of(session, jobs)

    def worse_since(self, since: float) -> set[tuple[str, str, str]]:
        """See :func:`smore.postgres.job_pairs.worse_since`."""
        with Session(self._engine) as session:
            return worse_since(session, since)

    def promises(self, jobs: Collection[str]) -> dict[str, JobPromise]:
        """Those of the jobs of whose promises it is decided."""
        with Session(self._engine) as session:
            return promises_of(session, jobs)

    def former(self, workload: str, world: int) -> list[tuple[str, float]]:
        """
        Of the last attempts that succeeded of this workload on so many GPU instances, the newest first: one of these, and
        seconds of an iteration, less what others beside it cost it.
        """
        row, made = JobAttemptRow, JobAttemptRow.iterations - JobAttemptRow.iterations_from
        took_s = func.extract("epoch", row.ended_at - row.up_at) - row.lost_s
        query = select(row.gpus[1], took_s / made).join(JobRow, JobRow.id == row.job)
        query = query.where(JobRow.workload == workload, row.why == Outcome.SUCCEEDED, made > 0, took_s > 0)
        query = query.where(func.cardinality(row.gpus) == world).order_by(row.ended_at.desc()).limit(FORMER)
        with Session(self._engine) as session:
            return [(gpu, float(seconds)) for gpu, seconds in session.execute(query)]

    def env(self, job: str) -> bytes | None:
        """The job's variables, sealed."""
        with Session(self._engine) as session:
            return session.scalar(select(JobRow.env).where(JobRow.id == job))

    def runs(self) -> list[PastRun]:
        """The last jobs that succeeded, oldest first."""
        row = JobRow
        query = select(row.project, row.name, row.ran_s - row.lost_s, row.ratios).where(
            row.outcome == Outcome.SUCCEEDED
        )
        query = query.where(row.source == STARTED).order_by(row.ended_at.desc()).limit(RUNS)
        with Session(self._engine) as session:
            rows = session.execute(query).all()
        return [
            PastRun(project=project, name=name, seconds=seconds, ratios=ratios or {})
            for project, name, seconds, ratios in reversed(rows)
        ]

    def projects(self) -> set[str]:
        """The names of all projects."""
        with Session(self._engine) as session:
            return set(session.scalars(select(ProjectRow.name)))

    def standing(self, jobs: Collection[str]) -> dict[str, tuple[str, int, bool]]:
        """Source, last attempt, and whether an attempt is under way, of those jobs that there are."""
        row = JobRow
        query = select(row.id, row.source, row.attempt, row.state).where(row.id.in_(jobs))
        with Session(self._engine) as session:
            return {id_: (source, attempt, state in PLACED) for id_, source, attempt, state in session.execute(query)}

    def over_since(self, jobs: Collection[str], days: float) -> set[str]:
        """Those of the jobs that have been over for so many days."""
        before = datetime.now(UTC) - timedelta(days=days)
        with Session(self._engine) as session:
            return set(session.scalars(select(JobRow.id).where(JobRow.id.in_(jobs), JobRow.ended_at < before)))

    # ---- write -------------------------------------------------------------------------------------------------------

    def start(
        self,
        job: str,
        attempt: int,
        nodes: Sequence[str],
        decided: Decided,
        length: tuple[float, float, str],
        *,
        micro_batches: int = 1,
        pairs: Sequence[JobPair] = (),
    ) -> bool:
        """
        Place ``attempt`` on ``decided.gpus``; ``length``: expected, longer in one case of ten, source; ``micro_batches``:
        in how many parts it runs its batch; ``pairs`` that it forms with others there. False where the job does not wait
        any more.
        """
        with self._fenced() as session:
            row = session.get(JobRow, job, with_for_update=True)
            if row is None or row.attempt != attempt - 1:
                return False
            placed = JobChange(gpus=decided.gpus, nodes=nodes, micro_batches=micro_batches)
            if not change(session, row, Action.START, placed):
                return False
            add_pairs(session, pairs)
            row.estimate_s, row.estimate_90_s, row.estimate_source = length
            self._note(session, job, attempt, decided)
            return True

    def over(
        self,
        job: str,
        attempt: int,
        action: Action,
        details: JobChange,
        decided: Decided,
        ratios: Mapping[str, float] | None = None,
    ) -> bool:
        """
        The attempt is over, and with it the job, or it waits again (``action``). False where that was written before.
        """
        with self._fenced() as session:
            row = session.get(JobRow, job, with_for_update=True)
            if row is None or row.attempt != attempt or not change(session, row, action, details):
                return False
            if ratios:
                row.ratios = dict(ratios)
            self._note(session, job, attempt, decided)
            return True

    def promise(self, job: str, attempt: int, promise: JobPromise, decided: Decided, *, refuse: bool) -> bool:
        """
        What is promised to a job that waits after so many attempts; ``refuse``: it is nothing, and the job is over. False
        where it does not wait any more, or that was decided before.
        """
        with self._fenced() as session:
            row = session.get(JobRow, job, with_for_update=True)
            if row is None or row.state not in WAITING or row.attempt != attempt or promises_of(session, [job]):
                return False
            add_promise(session, job, promise)
            if refuse:
                change(session, row, Action.END, JobChange(exit_code=REFUSED, reason=promise.message))
            self._note(session, job, attempt, decided)
            return True

    def note_promise(self, job: str, attempt: int, outcome: PromiseState, why: str, decided: Decided) -> None:
        """What has become of a promise."""
        with self._fenced() as session:
            write_promise(session, job, outcome, why)
            self._note(session, job, attempt, decided)

    def run(self, job: str, attempt: int) -> None:
        """All ranks are there."""
        with self._fenced() as session:
            row = session.get(JobRow, job, with_for_update=True)
            if row is not None and row.attempt == attempt:
                change(session, row, Action.RUN)

    def note(self, job: str, attempt: int, decided: Decided) -> None:
        """A decision that changes no state: the ranks are told to end."""
        with self._fenced() as session:
            self._note(session, job, attempt, decided)

    def progress(self, changes: Sequence[Progress]) -> None:
        if not changes:
            return
        with self._fenced() as session:
            for each in sorted(changes, key=lambda each: each.job):
                of_attempt = (JobAttemptRow.job == each.job, JobAttemptRow.attempt == each.attempt)
                # Ranks that a new leader has not heard of yet have made nothing that it knows.
                done = func.greatest(JobAttemptRow.iterations, each.iterations)
                told = {"iterations": done, "iterations_from": each.began_with, "lost_s": each.lost_s}
                session.execute(update(JobAttemptRow).where(*of_attempt).values(told))
                if each.checkpoint:
                    # A checkpoint of an older attempt counts for nothing.
                    of_job = (JobRow.id == each.job, JobRow.attempt == each.attempt)
                    values = {"iterations": each.checkpoint, "home": each.home}
                    session.execute(update(JobRow).where(*of_job).values(values))

    def note_pairs(self, pairs: Sequence[JobPair]) -> None:
        """What was measured of them."""
        if not pairs:
            return
        with self._fenced() as session:
            write_pairs(session, pairs)

    def without_checkpoints(self, jobs: Collection[str]) -> None:
        """The checkpoints of these jobs go: what starts again begins anew, anywhere."""
        with self._fenced() as session:
            over = JobRow.id.in_(jobs), JobRow.state.in_(OVER)
            session.execute(update(JobRow).where(*over).values({"iterations": 0, "home": ""}))

    def set_back(self, seconds: float) -> None:
        """The clock was set back: what is written of jobs that wait is moved with it, so that none has waited less."""
        waits = JobRow.state.in_(WAITING)
        moved = {column: column - timedelta(seconds=seconds) for column in (JobRow.queued_at, JobRow.not_before)}
        with self._fenced() as session:
            session.execute(update(JobRow).where(waits).values(moved))

    @contextmanager
    def _fenced(self) -> Iterator[Session]:
        """A transaction of whoever leads: nobody can take the lead before it has ended."""
        with Session(self._engine) as session, session.begin():
            holder = session.scalar(
                select(JobLeaderRow.token).where(JobLeaderRow.id == _ROW).with_for_update(read=True)
            )
            if holder != self._token:
                raise Fenced
            yield session

    def _note(self, session: Session, job: str, attempt: int, decided: Decided) -> None:
        session.add(
            JobDecisionRow(
                job=job,
                attempt=attempt,
                at=datetime.now(UTC),
                token=self._token,
                kind=decided.kind,
                gpus=list(decided.gpus),
                message=decided.message,
                reasons=dict(decided.reasons) if decided.reasons is not None else None,
            )
        )
