"""
The append-only table ``audit``: who changed what.

A change is made after a test that Postgres answers and before its row is written, so no change begins that could not be
recorded. Only where Postgres goes away in between a change has no row; then the log has it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from smore.domain.audit import AuditEntry
from smore.postgres.rows import ApiKeyRow, AuditRow, JobRow, value_of
from smore.process import observability

log = observability.logger(__name__)

#: What begins the target of a job.
_JOB: Final = "job/"


@dataclass(slots=True, kw_only=True)
class AuditedChange:
    """A change that is being made; its maker fills in ``after``."""

    project: str
    key_id: str
    route: str
    target: str
    request_id: str
    session: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """
    A filter; None = any. ``route``: a part of the route; ``since`` and ``until``: epoch seconds, [since, until).
    """

    project: str | None = None
    key_id: str | None = None
    route: str | None = None
    target: str | None = None
    since: float | None = None
    until: float | None = None


class Audit:
    """Writes and reads audit rows. Thread-safe. Raises SQLAlchemy's OperationalError where Postgres is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def recorded(self, change: AuditedChange) -> Iterator[AuditedChange]:
        """Record what the ``with`` block did, if it succeeds. The block does not begin where Postgres is away."""
        with self._engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        yield change
        try:
            self.write(change)
        except Exception:
            log.exception("a change without its audit row", change=change)
            raise

    def write(self, change: AuditedChange) -> None:
        with Session(self._engine) as session, session.begin():
            session.add(AuditRow(**asdict(change)))

    def read(
        self, wanted: AuditFilter, *, limit: int = 100, cursor: int | None = None
    ) -> tuple[list[AuditEntry], int | None]:
        """Entries, the newest first, and the cursor of the next page; None after the last page."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit + 1)
        for column, value in (
            (AuditRow.project, wanted.project),
            (AuditRow.key_id, wanted.key_id),
            (AuditRow.target, wanted.target),
        ):
            if value is not None:
                query = query.where(column == value)
        if wanted.route is not None:
            query = query.where(AuditRow.route.contains(wanted.route, autoescape=True))
        if wanted.since is not None:
            query = query.where(AuditRow.at >= datetime.fromtimestamp(wanted.since, UTC))
        if wanted.until is not None:
            query = query.where(AuditRow.at < datetime.fromtimestamp(wanted.until, UTC))
        if cursor is not None:
            query = query.where(AuditRow.id < cursor)
        with Session(self._engine) as session:
            rows = list(session.scalars(query))
            of_keys = select(ApiKeyRow.id, ApiKeyRow.name).where(ApiKeyRow.id.in_({row.key_id for row in rows}))
            if wanted.project is not None:
                of_keys = of_keys.where(ApiKeyRow.project == wanted.project)
            of_jobs = select(JobRow.id, JobRow.name).where(
                JobRow.id.in_({row.target.removeprefix(_JOB) for row in rows if row.target.startswith(_JOB)})
            )
            keys = {row.id: row.name for row in session.execute(of_keys)}
            jobs = {f"{_JOB}{row.id}": row.name for row in session.execute(of_jobs)}
            entries = [
                value_of(
                    AuditEntry,
                    row,
                    key_name=keys.get(row.key_id),
                    target_name=jobs.get(row.target),
                )
                for row in rows
            ]
        return entries[:limit], entries[limit - 1].id if len(entries) > limit else None
