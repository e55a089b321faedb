"""
The catalog in Postgres: projects, API keys, functions with their revisions, secrets, and serverful jobs
(:mod:`smore.postgres.jobs`). No other module writes these tables.

Every change but those of jobs is committed in Postgres first and then mirrored to Redis (``smore/postgres/mirror.py``),
where all hot paths read. Where Redis is away the change stands, and redis-py's error reaches the caller. The next change
of the same row, or :func:`smore.postgres.mirror.refresh`, brings the mirror up to date.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import Engine, func, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from smore.domain.access import Key, Scope, new_token, read_token
from smore.domain.artifact import parse_artifact
from smore.domain.errors import Conflict, FunctionNotFound, InvalidSpec, NotFound
from smore.domain.function import FunctionSpec, RevisionState, parse_name
from smore.domain.limits import Limits
from smore.domain.secret import Secret
from smore.domain.spelling import nothing_named
from smore.messages.specs import pack_spec, unpack_spec, unpack_tensors
from smore.postgres import mirror
from smore.postgres.driver import driver
from smore.postgres.jobs import JobStore
from smore.postgres.rows import ApiKeyRow, FunctionRow, ProjectRow, RevisionRow, SecretRow, require_project, value_of
from smore.redis.catalog import Catalog, KeyEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    name: str
    created_at: float
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """
    ``revision`` takes the traffic, 0 = none yet; ``spec`` is that revision's (None: none yet); ``deadline_s`` overrides
    the spec's.
    """

    project: str
    name: str
    revision: int
    deadline_s: float | None
    spec: FunctionSpec | None
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """``measured``: the canary's answer; ``log``: why it failed."""

    number: int
    state: RevisionState
    spec: FunctionSpec
    measured: Mapping[str, Any] | None
    log: str
    created_at: float


class Store:
    """
    Reads and writes of the catalog; ``jobs`` has those of serverful jobs. Thread-safe; every method is one transaction,
    and then one refresh of the mirror.

    Where Postgres is away they raise SQLAlchemy's OperationalError.
    """

    def __init__(self, engine: Engine, catalog: Catalog) -> None:
        self._engine = engine
        self._catalog = catalog
        self.jobs = JobStore(engine)

    # ---- projects and keys -------------------------------------------------------------------------------------------

    def create_project(self, name: str) -> Project:
        """Raises InvalidSpec for a bad name, Conflict for one that is taken."""
        parse_name(name)
        with Session(self._engine) as session:
            row = ProjectRow(name=name)
            session.add(row)
            try:
                session.commit()
            except IntegrityError as error:
                raise Conflict(f"The project {name} exists.") from error
            return _project(row)

    def list_projects(self) -> list[Project]:
        with Session(self._engine) as session:
            return [_project(row) for row in session.scalars(select(ProjectRow).order_by(ProjectRow.name))]

    def get_project(self, name: str) -> Project:
        """Raises NotFound."""
        with Session(self._engine) as session:
            return _project(require_project(session, name))

    def change_limits(self, name: str, changes: Mapping[str, Any]) -> Limits:
        """
        Change those limits of a project that are named, None = no limit any more; returns all. Raises NotFound, InvalidSpec.
        """
        with Session(self._engine) as session, session.begin():
            row = require_project(session, name)
            session.refresh(row, with_for_update=True)
            limits = Limits(**(row.limits | dict(changes)))
            if limits.burst is not None and limits.rate_per_s is None:
                raise InvalidSpec.at("burst", "it needs a rate_per_s")
            row.limits = limits.to_dict()
        self._mirror(mirror.refresh_project, name)
        return limits

    def create_key(self, project: str, name: str, scopes: Collection[Scope]) -> tuple[KeyEntry, str]:
        """
        The new key and its token, which is not stored. Raises NotFound without the project, InvalidSpec without a scope.
        """
        if not scopes:
            raise InvalidSpec.at("scopes", "at least one is expected")
        token = new_token()
        id_, digest = cast("tuple[str, str]", read_token(token))
        held = sorted(Scope(scope).value for scope in scopes)
        entry = KeyEntry(id=id_, project=project, digest=digest, scopes=held, name=name)
        with Session(self._engine) as session, session.begin():
            require_project(session, project)
            session.add(ApiKeyRow(id=id_, project=project, name=name, digest=digest, scopes=held))
        self._mirror(mirror.refresh_key, id_)
        return entry, token

    def list_keys(self, project: str) -> list[Key]:
        """Revoked ones too, the newest first."""
        with Session(self._engine) as session:
            rows = session.scalars(
                select(ApiKeyRow)
                .where(ApiKeyRow.project == project)
                .order_by(ApiKeyRow.created_at.desc(), ApiKeyRow.id)
            )
            return [value_of(Key, row, scopes=[Scope(one) for one in row.scopes], key=None) for row in rows]

    def revoke_key(self, project: str, id_: str) -> None:
        """Revoke a key, at once for every gateway; a revoked key stays revoked. Raises NotFound."""
        with Session(self._engine) as session, session.begin():
            row = session.get(ApiKeyRow, id_, with_for_update=True)
            if row is None or row.project != project:
                raise NotFound(f"There is no API key {id_} in this project.")
            if row.revoked_at is None:
                row.revoked_at = datetime.now(UTC)
        self._mirror(mirror.refresh_key, id_)

    # ---- functions ---------------------------------------------------------------------------------------------------

    def register(self, project: str, name: str, spec: FunctionSpec) -> tuple[int, bool]:
        """
        Register a new revision, which is pending until its canary has passed: (number, True).

        A spec that equals the one of the current revision registers nothing: (that revision's number, False). Raises
        NotFound without the project, InvalidSpec for a bad name.
        """
        parse_name(name)
        with Session(self._engine) as session, session.begin():
            require_project(session, project)
            session.execute(upsert(FunctionRow).values(project=project, name=name).on_conflict_do_nothing())
            # Locked: two registrations must not get one number.
            function = session.get_one(FunctionRow, (project, name), with_for_update=True)
            if function.deleted_at is not None:
                function.deleted_at, function.revision, function.deadline_s = None, 0, None
            if function.revision:
                current = session.get_one(RevisionRow, (project, name, function.revision))
                if unpack_spec(current.declared) == spec:
                    return current.number, False
            of_function = (RevisionRow.project == project, RevisionRow.function == name)
            number = (
                1 + session.scalars(select(func.coalesce(func.max(RevisionRow.number), 0)).where(*of_function)).one()
            )
            declared = pack_spec(spec)
            session.add(
                RevisionRow(
                    project=project,
                    function=name,
                    number=number,
                    state=RevisionState.PENDING,
                    declared=declared,
                    spec=declared,
                )
            )
        self._mirror(mirror.refresh_function, project, name, number)
        return number, True

    def activate(self, project: str, name: str, revision: int, measured: Mapping[str, Any]) -> None:
        """
        The canary has passed: the revision takes the traffic, unless a later one has it already.

        ``measured`` is the canary's answer (smore/domain/invocation.py: ``Encoding.CANARY``). It gives the inputs and
        outputs that the spec left out, and the profile's times; run times of other batch sizes keep their ratio.

        Raises FunctionNotFound, NotFound.
        """
        with Session(self._engine) as session, session.begin():
            function = _function_row(session, project, name)
            row = _revision_row(session, project, name, revision)
            if row.state is not RevisionState.ACTIVE:
                row.spec = pack_spec(_with_measured(unpack_spec(row.declared), measured))
                row.state, row.measured, row.log, row.settled_at = (
                    RevisionState.ACTIVE,
                    dict(measured),
                    "",
                    datetime.now(UTC),
                )
                # Canaries of two registrations may end in either order.
                function.revision = max(function.revision, revision)
        self._mirror(mirror.refresh_function, project, name, revision)

    def fail_revision(self, project: str, name: str, revision: int, log: str) -> None:
        """
        The canary has failed; the function stays as it was. Raises FunctionNotFound, NotFound, and Conflict where the
        revision is active.
        """
        with Session(self._engine) as session, session.begin():
            _function_row(session, project, name)
            row = _revision_row(session, project, name, revision)
            if row.state is RevisionState.ACTIVE:
                raise Conflict(f"Revision {revision} of {name} is active.")
            row.state, row.log, row.settled_at = RevisionState.FAILED, _text(log), datetime.now(UTC)

    def get_function(self, project: str, name: str) -> Function:
        """Raises FunctionNotFound."""
        functions = self._functions(FunctionRow.project == project, FunctionRow.name == name)
        if not functions:
            with Session(self._engine) as session:
                raise _no_function(session, project, name)
        return functions[0]

    def revisions(self, project: str, name: str) -> list[Revision]:
        """The newest first. Raises FunctionNotFound."""
        with Session(self._engine) as session:
            _function_row(session, project, name)
            of_function = (RevisionRow.project == project, RevisionRow.function == name)
            return [
                value_of(Revision, row, spec=unpack_spec(row.spec))
                for row in session.scalars(select(RevisionRow).where(*of_function).order_by(RevisionRow.number.desc()))
            ]

    def named_blobs(self) -> set[tuple[str, str]]:
        """
        (project, digest) of all blobs of revisions that have the traffic, may get it, or may get it back.
        """
        query = (
            select(RevisionRow.project, RevisionRow.declared["artifact"])
            .join(
                FunctionRow, (FunctionRow.project == RevisionRow.project) & (FunctionRow.name == RevisionRow.function)
            )
            .where(FunctionRow.deleted_at.is_(None), RevisionRow.state != RevisionState.FAILED)
        )
        with Session(self._engine) as session:
            return {
                (project, digest)
                for project, raw in session.execute(query)
                if (artifact := parse_artifact(raw, "artifact")) is not None
                for digest in artifact.blobs
            }

    def rollback(self, project: str, name: str, revision: int) -> None:
        """
        Give the traffic to a revision that was active before. Raises FunctionNotFound, NotFound, and Conflict for a
        revision that was never active.
        """
        with Session(self._engine) as session, session.begin():
            function = _function_row(session, project, name)
            if _revision_row(session, project, name, revision).state is not RevisionState.ACTIVE:
                raise Conflict(f"Revision {revision} of {name} was never active.")
            function.revision = revision
        self._mirror(mirror.refresh_function, project, name, revision)

    def set_deadline(self, project: str, name: str, deadline_s: float | None) -> None:
        """
        Override the revisions' deadline (seconds from arrival), None = no more. Raises FunctionNotFound, InvalidSpec.
        """
        if deadline_s is not None and not 0.001 <= deadline_s <= 86_400:
            raise InvalidSpec.at("deadline_s", f"must be within 0.001..86400 s, not {deadline_s:g}")
        with Session(self._engine) as session, session.begin():
            _function_row(session, project, name).deadline_s = deadline_s
        self._mirror(mirror.refresh_function, project, name)

    def set_scaling(self, project: str, name: str, changes: Mapping[str, Any]) -> FunctionSpec:
        """
        Change ``min_warm``, ``max_warm``, ``keep_alive_s`` or ``prewarm`` of the revision that takes the traffic, until
        another revision takes it.

        The registered spec stays, so the same spec deployed again changes nothing. Raises FunctionNotFound, Conflict
        where no revision takes traffic.
        """
        with Session(self._engine) as session, session.begin():
            function = _function_row(session, project, name)
            if not function.revision:
                raise Conflict(f"No revision of {name} takes traffic yet.")
            row = _revision_row(session, project, name, function.revision)
            spec = replace(unpack_spec(row.spec), **changes)
            row.spec = pack_spec(spec)
            revision = function.revision
        self._mirror(mirror.refresh_function, project, name, revision)
        return spec

    def delete_function(self, project: str, name: str) -> None:
        """Delete a function. If its name is registered again, its revisions continue to count. Raises FunctionNotFound."""
        with Session(self._engine) as session, session.begin():
            _function_row(session, project, name).deleted_at = datetime.now(UTC)
        self._mirror(mirror.refresh_function, project, name)

    def _functions(self, *which: Any) -> list[Function]:
        current = (
            (RevisionRow.project == FunctionRow.project)
            & (RevisionRow.function == FunctionRow.name)
            & (RevisionRow.number == FunctionRow.revision)
        )
        query = (
            select(FunctionRow, RevisionRow.spec)
            .outerjoin(RevisionRow, current)
            .where(FunctionRow.deleted_at.is_(None), *which)
        ).order_by(FunctionRow.name)
        with Session(self._engine) as session:
            return [
                value_of(Function, row, spec=unpack_spec(spec) if spec is not None else None)
                for row, spec in session.execute(query)
            ]

    # ---- secrets -----------------------------------------------------------------------------------------------------

    def put_secret(self, project: str, name: str, sealed: bytes) -> Secret:
        """Set or replace a secret. Raises NotFound without the project."""
        with Session(self._engine) as session, session.begin():
            require_project(session, project)
            insert = upsert(SecretRow).values(project=project, name=name, sealed=sealed)
            session.execute(
                insert.on_conflict_do_update(
                    index_elements=["project", "name"], set_={"sealed": sealed, "updated_at": func.now()}
                )
            )
            secret = value_of(Secret, session.get_one(SecretRow, (project, name)))
        self._mirror(mirror.refresh_secret, project, name)
        return secret

    def list_secrets(self, project: str) -> list[Secret]:
        """By name."""
        with Session(self._engine) as session:
            rows = session.scalars(select(SecretRow).where(SecretRow.project == project).order_by(SecretRow.name))
            return [value_of(Secret, row) for row in rows]

    def delete_secret(self, project: str, name: str) -> None:
        """Raises NotFound."""
        with Session(self._engine) as session, session.begin():
            row = session.get(SecretRow, (project, name), with_for_update=True)
            if row is None:
                raise NotFound(f"There is no secret {name} in this project.")
            session.delete(row)
        self._mirror(mirror.refresh_secret, project, name)

    # ---- the mirror --------------------------------------------------------------------------------------------------

    def _mirror(self, refresh: Callable[..., None], *which: object) -> None:
        with driver(self._engine) as connection:
            refresh(connection, self._catalog, *which)


def _function_row(session: Session, project: str, name: str) -> FunctionRow:
    """The row, locked until the transaction ends, so that changes of one function follow each other."""
    row = session.get(FunctionRow, (project, name), with_for_update=True)
    if row is None or row.deleted_at is not None:
        raise _no_function(session, project, name)
    return row


def _no_function(session: Session, project: str, name: str) -> FunctionNotFound:
    names = session.scalars(
        select(FunctionRow.name).where(FunctionRow.project == project, FunctionRow.deleted_at.is_(None))
    )
    return FunctionNotFound(nothing_named("function", name, names, "in this project"))


def _revision_row(session: Session, project: str, name: str, number: int) -> RevisionRow:
    row = session.get(RevisionRow, (project, name, number))
    if row is None:
        raise NotFound(f"There is no revision {number} of {name}.")
    return row


def _with_measured(spec: FunctionSpec, measured: Mapping[str, Any]) -> FunctionSpec:
    """
    The spec with what its canary measured. ``rows``: rows of the canary's example, 1 where it is missing.
    """
    profile = spec.profile
    if load_ms := measured.get("load_ms"):
        profile = replace(profile, load_s=load_ms / 1000)
    if run_ms := measured.get("run_ms"):
        ratio = run_ms / 1000 / profile.run_time_s(measured.get("rows") or 1)
        profile = replace(profile, run_s={rows: seconds * ratio for rows, seconds in profile.run_s.items()})
    return replace(
        spec,
        inputs=spec.inputs if spec.inputs is not None else unpack_tensors(measured.get("inputs")),
        outputs=spec.outputs if spec.outputs is not None else unpack_tensors(measured.get("outputs")),
        profile=profile,
    )


def _text(log: str) -> str:
    """The log without NUL, which Postgres' text cannot hold."""
    return log.replace("\0", "")


def _project(row: ProjectRow) -> Project:
    return value_of(Project, row, limits=Limits(**row.limits))
