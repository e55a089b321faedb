"""
Who changed what: the append-only table ``audit``.

A change is made between asking whether Postgres is there and writing the row, so nothing is changed that could not be
recorded; only a Postgres that goes away in between leaves a change without its row, and then the row is in the log.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from smore.domain.audit import AuditEntry
from smore.postgres.rows import AuditRow
from smore.process import observability

log = observability.logger(__name__)


@dataclass(slots=True, kw_only=True)
class Change:
    """What is being changed; ``after`` is filled in by whoever changes it."""

    project: str
    key_id: str
    route: str
    target: str
    request_id: str
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """
    What to look for; None = any. ``route``: a part of it, ``since`` and ``until`` in epoch seconds, the latter not
    included.
    """

    project: str | None = None
    key_id: str | None = None
    route: str | None = None
    target: str | None = None
    since: float | None = None
    until: float | None = None


class Audit:
    """Thread-safe. Postgres being away is SQLAlchemy's OperationalError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def recorded(self, change: Change) -> Iterator[Change]:
        """What is done within the ``with`` is recorded when it has succeeded; where Postgres is away nothing begins."""
        with self._engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        yield change
        try:
            self.write(change)
        except Exception:
            log.exception("a change without its audit row", change=change)
            raise

    def write(self, change: Change) -> None:
        with Session(self._engine) as session:
            session.add(
                AuditRow(
                    project=change.project,
                    key_id=change.key_id,
                    route=change.route,
                    target=change.target,
                    before=dict(change.before) if change.before is not None else None,
                    after=dict(change.after) if change.after is not None else None,
                    request_id=change.request_id,
                )
            )
            session.commit()

    def read(
        self, wanted: Wanted, *, limit: int = 100, cursor: int | None = None
    ) -> tuple[list[AuditEntry], int | None]:
        """The newest first, and the cursor of the next page, None after the last."""
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
            found = [_entry(row) for row in session.scalars(query)]
        return found[:limit], found[limit - 1].id if len(found) > limit else None


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at.astimezone(UTC),
        project=row.project,
        key_id=row.key_id,
        route=row.route,
        target=row.target,
        before=row.before,
        after=row.after,
        request_id=row.request_id,
    )
