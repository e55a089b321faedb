"""
Measured rows and the predictors that were fitted on them, in Postgres. No other module writes these tables.

A row is the JSON of ``ml/rows.py`` or ``ml/learn/live.py``. This module only checks that it names its device mode
and its time, and that its numbers are finite; ``ml`` checks what it means.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from sqlalchemy import Engine, delete, exists, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from smore.domain.errors import Conflict, InvalidInput, NotFound
from smore.domain.predictor import PredictorState, PredictorVersion
from smore.domain.quote import quoted
from smore.postgres.locks import Lock
from smore.postgres.rows import ExecutionRow, JobPairRow, PredictorRow, ProfileRow, value_of

Source: TypeAlias = Literal["imported", "live"]

#: Rows that one statement inserts.
_CHUNK = 500
#: Published versions whose blobs are kept, so that a rollback can publish them again.
KEPT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount:
    """How many rows of one kind and source a device mode has."""

    device: str
    sharing_mode: str
    kind: str
    source: str
    count: int
    newest_at: float


class Profiles:
    """
    Reads and writes of measured rows and predictors. Thread-safe. Raises SQLAlchemy's OperationalError where Postgres is
    away.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def exclusive(self, *, wait: bool) -> Iterator[bool]:
        """
        The lock under which predictors are made and published, for the length of a ``with``.

        Yields False where another process holds it and ``wait`` is not set. The lock ends with the connection, however
        this process ends.
        """
        with self._engine.connect() as connection:
            if wait:
                connection.execute(text("SET statement_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": Lock.PREDICTORS.value})
            held = wait or bool(
                connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": Lock.PREDICTORS.value}).scalar()
            )
            # An open transaction would keep Postgres from vacuuming for as long.
            connection.commit()
            try:
                yield held
            finally:
                with suppress(DBAPIError):
                    # Explicitly: the server releases the lock of a closed connection only when it notices the end.
                    connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": Lock.PREDICTORS.value})
                # The connection has settings of its own, so the pool must not use it again.
                connection.invalidate()

    # ---- rows --------------------------------------------------------------------------------------------------------

    def add(self, documents: Sequence[Mapping[str, Any]], source: Source) -> int:
        """
        Store rows, all or none; a row that is stored already stays. Returns how many were new.

        Raises InvalidInput that names the first invalid row.
        """
        rows = [_row(document, source, f"rows[{position}]") for position, document in enumerate(documents)]
        added = 0
        with Session(self._engine) as session, session.begin():
            for start in range(0, len(rows), _CHUNK):
                statement = (
                    upsert(ProfileRow)
                    .values(rows[start : start + _CHUNK])
                    .on_conflict_do_nothing()
                    .returning(ProfileRow.id)
                )
                added += len(session.scalars(statement).all())
        return added

    def counts(self) -> list[RowCount]:
        by = (ProfileRow.device, ProfileRow.sharing_mode, ProfileRow.kind, ProfileRow.source)
        query = select(*by, func.max(ProfileRow.at).label("newest_at"), func.count()).group_by(*by).order_by(*by)
        with self._engine.connect() as connection:
            return [value_of(RowCount, row, count=row[-1]) for row in connection.execute(query)]

    def documents(self) -> list[tuple[str, dict[str, Any]]]:
        """(id, document) of every row, in the order in which they were measured."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(ProfileRow.id, ProfileRow.document).order_by(ProfileRow.at, ProfileRow.id))
            return [(id_, document) for id_, document in rows]

    def added_since(self, moment: datetime) -> int:
        """How many rows were stored after a moment."""
        with self._engine.connect() as connection:
            which = ProfileRow.recorded_at > moment
            return connection.execute(select(func.count()).where(which)).scalar_one()

    def news(self, since: float) -> bool:
        """
        Whether anything that rows are made of was measured, or a row was stored, after an epoch second: runs that ended,
        trainings beside each other.
        """
        moment = datetime.fromtimestamp(since, UTC)
        sources = (
            ExecutionRow.finished_at > moment,
            or_(JobPairRow.until_at > moment, JobPairRow.until_at.is_(None)),
            ProfileRow.recorded_at > moment,
        )
        with self._engine.connect() as connection:
            return any(connection.execute(select(*(exists().where(source) for source in sources))).one())

    def forget(self, ids: Sequence[str]) -> None:
        """Delete rows."""
        with self._engine.begin() as connection:
            connection.execute(delete(ProfileRow).where(ProfileRow.id.in_(ids)))

    # ---- predictors --------------------------------------------------------------------------------------------------

    def begin(self, manifest: Mapping[str, Any]) -> int:
        """Create a challenger and return its version. Challengers that are left from before were interrupted: rejected."""
        with Session(self._engine) as session:
            session.execute(
                update(PredictorRow)
                .where(PredictorRow.state == PredictorState.CHALLENGER)
                .values(state=PredictorState.REJECTED, reason="Its fit was interrupted.")
            )
            row = PredictorRow(state=PredictorState.CHALLENGER, manifest=dict(manifest))
            session.add(row)
            session.commit()
            return row.version

    def promote(
        self,
        version: int,
        *,
        reason: str,
        manifest: Mapping[str, Any],
        table: bytes,
        artifact: bytes,
        former: PredictorState = PredictorState.RETIRED,
        former_reason: str | None = None,
    ) -> None:
        """
        Make the challenger the champion; the champion gets the state ``former``. Raises NotFound, and Conflict where it is
        no challenger.
        """
        with Session(self._engine) as session, session.begin():
            row = _predictor_row(session, version)
            if row.state is not PredictorState.CHALLENGER:
                raise Conflict(f"Predictor {version} is {row.state.value}.")
            leaving: dict[str, Any] = {"state": former} | (
                {"reason": former_reason} if former_reason is not None else {}
            )
            session.execute(update(PredictorRow).where(PredictorRow.state == PredictorState.CHAMPION).values(leaving))
            row.state, row.reason, row.manifest, row.table, row.artifact = (
                PredictorState.CHAMPION,
                reason,
                dict(manifest),
                table,
                artifact,
            )
            session.flush()
            kept = (
                select(PredictorRow.version)
                .where(PredictorRow.table.is_not(None))
                .order_by(PredictorRow.version.desc())
                .limit(KEPT)
            )
            old = PredictorRow.table.is_not(None) & PredictorRow.version.not_in(kept)
            session.execute(update(PredictorRow).where(old).values(table=None, artifact=None))

    def reject(self, version: int, *, reason: str, manifest: Mapping[str, Any]) -> None:
        """Reject a challenger. Raises NotFound, and Conflict where it is no challenger."""
        with Session(self._engine) as session, session.begin():
            row = _predictor_row(session, version)
            if row.state is not PredictorState.CHALLENGER:
                raise Conflict(f"Predictor {version} is {row.state.value}.")
            row.state, row.reason, row.manifest = PredictorState.REJECTED, reason, dict(manifest)

    def champion(self) -> PredictorVersion | None:
        return self._first(select(*_COLUMNS).where(PredictorRow.state == PredictorState.CHAMPION))

    def last(self) -> PredictorVersion | None:
        """The newest predictor, in whatever state."""
        return self._first(select(*_COLUMNS).order_by(PredictorRow.version.desc()).limit(1))

    def before(self, version: int) -> PredictorVersion | None:
        """The newest former champion before ``version`` that was not rolled back and whose blobs are kept."""
        retired = (PredictorRow.state == PredictorState.RETIRED) & PredictorRow.table.is_not(None)
        return self._first(
            select(*_COLUMNS)
            .where(retired, PredictorRow.version < version)
            .order_by(PredictorRow.version.desc())
            .limit(1)
        )

    def predictors(self, limit: int = 20) -> list[PredictorVersion]:
        """The newest first."""
        with self._engine.connect() as connection:
            query = select(*_COLUMNS).order_by(PredictorRow.version.desc()).limit(limit)
            return [value_of(PredictorVersion, row) for row in connection.execute(query)]

    def blobs(self, version: int) -> tuple[bytes, bytes]:
        """(table, artifact). Raises NotFound where there is no such version, or it was not published."""
        with self._engine.connect() as connection:
            row = connection.execute(
                select(PredictorRow.table, PredictorRow.artifact).where(PredictorRow.version == version)
            ).first()
        if row is None or row[0] is None or row[1] is None:
            raise NotFound(f"There is no predictor {version} that was published.")
        return bytes(row[0]), bytes(row[1])

    def _first(self, query: Any) -> PredictorVersion | None:
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return value_of(PredictorVersion, row) if row is not None else None


_COLUMNS = tuple(getattr(PredictorRow, name) for name in PredictorVersion.__dataclass_fields__)


def _predictor_row(session: Session, version: int) -> PredictorRow:
    row = session.get(PredictorRow, version, with_for_update=True)
    if row is None:
        raise NotFound(f"There is no predictor {version}.")
    return row


def row_id(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON. Raises ValueError where a number is not finite."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _row(document: Mapping[str, Any], source: Source, where: str) -> dict[str, Any]:
    """The columns of a row. Raises InvalidInput."""
    if not isinstance(document, Mapping):
        raise InvalidInput.at(where, "an object is expected")
    _finite(document, where)
    place, kind = document.get("place"), document.get("row")
    if not isinstance(place, Mapping):
        raise InvalidInput.at(f"{where}.place", "an object with device and sharing_mode is expected")
    for name in ("device", "sharing_mode"):
        if not isinstance(place.get(name), str) or not place[name]:
            raise InvalidInput.at(f"{where}.place.{name}", "a text is expected")
    if not isinstance(kind, str) or not kind:
        raise InvalidInput.at(f"{where}.row", "the kind of the row is expected")
    try:
        at = datetime.fromisoformat(str(document.get("at")))
    except ValueError:
        raise InvalidInput.at(
            f"{where}.at", f"{quoted(document.get('at'))} is not a time such as 2026-01-31T12:00:00+00:00"
        ) from None
    return {
        "id": row_id(document),
        "device": place["device"],
        "sharing_mode": place["sharing_mode"],
        "kind": kind,
        "at": at if at.tzinfo is not None else at.replace(tzinfo=UTC),
        "source": source,
        "document": dict(document),
    }


def _finite(value: object, where: str) -> None:
    """Refuse what Postgres' JSON cannot hold: infinities, NaN and the character NUL."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{where} is {value}, a finite number is expected", field=where)
    if isinstance(value, str) and "\0" in value:
        raise InvalidInput(f"{where} holds the character NUL", field=where)
    if isinstance(value, Mapping):
        for key, item in value.items():
            _finite(key, f"{where}, a key")
            _finite(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _finite(item, f"{where}[{position}]")
