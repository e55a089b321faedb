"""
The tables of the history that hold sums: by minute and hour, and for ever. They stay longer than the rows that they sum up
(smore/postgres/rows.py).
"""

from datetime import datetime

from sqlalchemy import ARRAY, BigInteger, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from smore.postgres.base import Base


class GpuMinuteRow(Base):
    """
    The ``samples`` of a GPU instance in the minute from ``minute``: sums of both utilisations, the most memory, and when
    the last of them was, ``last_at``. It stays when the seconds are deleted.
    """

    __tablename__ = "gpu_minutes"
    __table_args__ = (Index(None, "minute"),)

    gpu: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)
    samples: Mapped[int]
    utilisation: Mapped[float]
    function_utilisation: Mapped[float]
    memory_used_mib: Mapped[float]
    memory_total_mib: Mapped[float]
    device: Mapped[str]
    sharing_mode: Mapped[str]
    last_at: Mapped[datetime]


class ArrivalsMinuteRow(Base):
    """Arrivals in the minute from ``minute``; a minute without any has no row."""

    __tablename__ = "arrivals_minute"

    project: Mapped[str] = mapped_column(primary_key=True)
    function: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)
    n: Mapped[int]


class FunctionMinuteRow(Base):
    """
    Invocations of a revision that ended in the minute from ``minute`` on a GPU instance ('' = never dispatched).

    ``met``: succeeded within their deadlines; ``ran``: those whose run is known, ``cold`` of them after a cold start, of
    ``load_s`` seconds in all; ``rows``: of those that succeeded. Sums in seconds: ``total_s``: arrival to end of those
    that succeeded, ``wait_s``: of that, until the start; ``failed_s``: arrival to end of the others; ``run_s``: of the
    runs, a batch counted once. ``worst_s``: the longest arrival to end of those that succeeded; ``wholes``: the histogram
    of these (smore/postgres/history/histogram.py), null = from before there was one.
    """

    __tablename__ = "function_minutes"
    __table_args__ = (Index(None, "project", "function", "minute"),)

    minute: Mapped[datetime] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(primary_key=True)
    function: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    gpu: Mapped[str] = mapped_column(primary_key=True)
    succeeded: Mapped[int]
    failed: Mapped[int]
    met: Mapped[int]
    ran: Mapped[int]
    cold: Mapped[int]
    rows: Mapped[int] = mapped_column(BigInteger)
    total_s: Mapped[float]
    failed_s: Mapped[float]
    wait_s: Mapped[float]
    run_s: Mapped[float]
    load_s: Mapped[float]
    worst_s: Mapped[float]
    wholes: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))


class FunctionHourRow(Base):
    """Sums of :class:`FunctionMinuteRow` over the hour of UTC from ``hour``, over all revisions of the function."""

    __tablename__ = "function_hours"

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(primary_key=True)
    function: Mapped[str] = mapped_column(primary_key=True)
    gpu: Mapped[str] = mapped_column(primary_key=True)
    succeeded: Mapped[int] = mapped_column(BigInteger)
    failed: Mapped[int] = mapped_column(BigInteger)
    met: Mapped[int] = mapped_column(BigInteger)
    cold: Mapped[int] = mapped_column(BigInteger)
    run_s: Mapped[float]


class RunStartsRow(Base):
    """
    Number ``n`` of runs of one kind that ended in the ``span`` seconds from ``at``: a minute, and again a whole hour.

    ``kind``: ``warm``, or why a cold start was not foreseen (ExecutionRow.unforeseen; ``unknown`` where that is null).
    """

    __tablename__ = "run_starts"

    span: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(primary_key=True)
    function: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    n: Mapped[int] = mapped_column(BigInteger)


class FunctionTotalRow(Base):
    """
    All ended invocations of a revision that ran in batches of ``batch_rows`` rows (0 = it did not run to the end); see
    :class:`smore.postgres.history.values.Totals`. There were ``batches`` such batches, which ran for ``batch_s`` seconds;
    each member of a batch adds its part.
    """

    __tablename__ = "function_totals"

    project: Mapped[str] = mapped_column(primary_key=True)
    function: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    batch_rows: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    succeeded: Mapped[int] = mapped_column(BigInteger)
    failed: Mapped[int] = mapped_column(BigInteger)
    rows: Mapped[int] = mapped_column(BigInteger)
    total_s: Mapped[float]
    failed_s: Mapped[float]
    wait_s: Mapped[float]
    run_s: Mapped[float]
    batches: Mapped[float]
    batch_s: Mapped[float]
    last_at: Mapped[datetime]


class JobHarvestRow(Base):
    """
    Runs of functions beside a serverful job on a GPU instance: seconds, a batch counted once, and invocations.
    """

    __tablename__ = "job_harvest"

    job: Mapped[str] = mapped_column(primary_key=True)
    gpu: Mapped[str] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    invocations: Mapped[int] = mapped_column(BigInteger)


class JobMinuteRow(Base):
    """The part of :class:`JobHarvestRow` that ended in the minute from ``minute``, on all GPU instances of the job."""

    __tablename__ = "job_minutes"
    __table_args__ = (Index(None, "minute"),)

    job: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    invocations: Mapped[int] = mapped_column(BigInteger)


class LossHourRow(Base):
    """
    What an estimate needs of the closed ``windows`` of a job on a GPU instance that began in the hour of UTC from ``hour``
    (smore/domain/loss.py: Sums): sums of ``open_s`` and ``closed_s``, of their squares and of their product.
    """

    __tablename__ = "loss_hours"

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    job: Mapped[str] = mapped_column(primary_key=True)
    gpu: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str]
    windows: Mapped[int]
    open_s: Mapped[float]
    closed_s: Mapped[float]
    open_squared: Mapped[float]
    open_closed: Mapped[float]
    closed_squared: Mapped[float]


class CountedMinuteRow(Base):
    """
    A minute in which the platform was up. Bit s of ``seconds``: there was an entry on the stream in its second s.

    In a minute with a row here, a function without a row in ``arrivals_minute`` had no arrivals. In other minutes its
    arrivals are not known.
    """

    __tablename__ = "counted_minutes"

    minute: Mapped[datetime] = mapped_column(primary_key=True)
    seconds: Mapped[int] = mapped_column(BigInteger)
