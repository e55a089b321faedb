"""What trainings were promised of their ends, and what became of it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from smore.domain.job import PromiseState
from smore.postgres.rows import JobPromiseRow, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPromise:
    """
    See :class:`smore.postgres.rows.JobPromiseRow`; times are epoch seconds.
    """

    by: float | None
    latest_start_at: float | None = None
    earliest: float | None = None
    outcome: PromiseState
    why: str = ""
    message: str = ""


def promises_of(session: Session, jobs: Collection[str]) -> dict[str, JobPromise]:
    """Those of the jobs that have asked for one, and of which it is decided."""
    rows = session.scalars(select(JobPromiseRow).where(JobPromiseRow.job.in_(jobs)))
    return {row.job: value_of(JobPromise, row) for row in rows}


def add_promise(session: Session, job: str, promise: JobPromise) -> None:
    times = {
        name: datetime.fromtimestamp(at, UTC) if (at := getattr(promise, name)) is not None else None
        for name in ("by", "latest_start_at", "earliest")
    }
    session.add(JobPromiseRow(job=job, outcome=promise.outcome, why=promise.why, message=promise.message, **times))


def write_promise(session: Session, job: str, outcome: PromiseState, why: str) -> None:
    """What has become of it."""
    session.execute(update(JobPromiseRow).where(JobPromiseRow.job == job).values({"outcome": outcome, "why": why}))
