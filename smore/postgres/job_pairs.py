"""What trainings on one GPU instance cost each other, in the catalog. See :class:`smore.postgres.rows.JobPairRow`."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Double, cast, func, insert, or_, select, update
from sqlalchemy.orm import Session, aliased

from smore.postgres.rows import JobPairRow, JobRow, value_of

_KEY: Final = ("job", "attempt", "other", "other_attempt")
_MEASURED: Final = ("measured", "loss", "loss_low", "loss_high", "alone_s", "beside_s", "held_s")


@dataclass(slots=True, kw_only=True)
class JobPair:
    """See :class:`smore.postgres.rows.JobPairRow`; times are epoch seconds."""

    job: str
    attempt: int
    other: str
    other_attempt: int
    guest: bool
    gpus: Sequence[str]
    device: str
    sharing_mode: str
    from_at: float
    until_at: float | None = None
    predicted: float | None = None
    predicted_90: float | None = None
    measured: float | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    alone_s: float | None = None
    beside_s: float | None = None
    held_s: float = 0.0


def add_pairs(session: Session, pairs: Sequence[JobPair]) -> None:
    """Those that an attempt forms with others when it is placed."""
    if pairs:
        rows = [
            asdict(pair) | {"gpus": list(pair.gpus), "from_at": datetime.fromtimestamp(pair.from_at, UTC)}
            for pair in pairs
        ]
        session.execute(insert(JobPairRow), rows)


def write_pairs(session: Session, pairs: Sequence[JobPair]) -> None:
    """What was measured of them."""
    for pair in sorted(pairs, key=lambda pair: (pair.job, pair.other)):
        which = [getattr(JobPairRow, name) == getattr(pair, name) for name in _KEY]
        session.execute(update(JobPairRow).where(*which).values({name: getattr(pair, name) for name in _MEASURED}))


def end_pairs(session: Session, job: str, attempt: int, now: datetime) -> None:
    """An attempt is over."""
    row = JobPairRow
    mine = (row.job == job) & (row.attempt == attempt)
    its = (row.other == job) & (row.other_attempt == attempt)
    session.execute(update(row).where(or_(mine, its), row.until_at.is_(None)).values(until_at=now))


def worse_since(session: Session, since: float) -> set[tuple[str, str, str]]:
    """
    (device, workload, the other's workload) of pairs that began after ``since`` (epoch seconds) and were measured to cost
    the first one more than its owner allows.
    """
    job, other = aliased(JobRow), aliased(JobRow)
    share = cast(func.coalesce(job.spec["share"].astext, "0"), Double)
    query = (
        select(JobPairRow.device, job.workload, other.workload)
        .join(job, job.id == JobPairRow.job)
        .join(other, other.id == JobPairRow.other)
        .where(JobPairRow.from_at > datetime.fromtimestamp(since, UTC), JobPairRow.measured - 1 > share)
    )
    return {(device, workload, beside) for device, workload, beside in session.execute(query)}


def pairs_of(session: Session, jobs: Collection[str]) -> list[JobPair]:
    """What these jobs lost to others, the first ones first."""
    query = select(JobPairRow).where(JobPairRow.job.in_(jobs)).order_by(JobPairRow.from_at, JobPairRow.other)
    return [value_of(JobPair, row) for row in session.scalars(query)]
