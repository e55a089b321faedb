"""
Refreshes of the catalog's mirror in Redis (``smore/redis/catalog.py``) from Postgres.

A refresh reads the rows itself and takes no values from the writer. It holds a lock of Postgres from reading to writing,
so that of two writers the earlier one cannot overwrite the later one's values in Redis. It uses psycopg alone:
``python -m migrations`` runs at every start, and SQLAlchemy would double its time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import psycopg
from psycopg.rows import TupleRow, class_row

from smore.domain.limits import Limits
from smore.messages.specs import unpack_spec
from smore.postgres.locks import Lock
from smore.redis.catalog import Catalog, FunctionEntry, KeyEntry, ProjectEntry

Connection: TypeAlias = "psycopg.Connection[TupleRow]"

_FUNCTIONS = "SELECT project, name, revision, deadline_s FROM functions WHERE deleted_at IS NULL"
_PROJECTS = "SELECT name, limits FROM projects WHERE limits <> '{}'::jsonb"
_KEYS = "SELECT id, project, digest, scopes, name FROM api_keys WHERE revoked_at IS NULL"


@contextmanager
def _locked(connection: Connection) -> Iterator[None]:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (Lock.MIRROR.value,))
        yield


def refresh(connection: Connection, catalog: Catalog) -> int:
    """
    Make the whole mirror equal to Postgres: at a start, and after Redis has lost its data. Returns how many entries
    differed.
    """
    with _locked(connection):
        revisions = connection.execute(
            "SELECT r.project || '/' || r.function, r.number, r.spec FROM revisions r JOIN functions f ON f.project ="
            " r.project AND f.name = r.function WHERE f.deleted_at IS NULL AND r.state <> 'failed'"
        ).fetchall()
        with connection.cursor(row_factory=class_row(FunctionEntry)) as cursor:
            functions = cursor.execute(_FUNCTIONS).fetchall()
        with connection.cursor(row_factory=class_row(KeyEntry)) as cursor:
            keys = cursor.execute(_KEYS).fetchall()
        projects = [
            ProjectEntry(name=name, limits=Limits(**limits))
            for name, limits in connection.execute(_PROJECTS).fetchall()
        ]
        secrets = connection.execute("SELECT project || '/' || name, sealed FROM secrets").fetchall()
        changed = catalog.replace(
            functions, {(key, number): unpack_spec(spec) for key, number, spec in revisions}, keys, projects
        )
        return changed + catalog.replace_secrets({key: bytes(sealed) for key, sealed in secrets})


def refresh_function(connection: Connection, catalog: Catalog, project: str, name: str, revision: int = 0) -> None:
    """Mirror one function. Its ``revision`` (0 = none) comes first, so that whoever reads the function finds it."""
    with _locked(connection):
        of_function = (project, name)
        spec = connection.execute(
            "SELECT spec FROM revisions WHERE project = %s AND function = %s AND number = %s", (*of_function, revision)
        ).fetchone()
        if spec is not None:
            catalog.put_revision(f"{project}/{name}", revision, unpack_spec(spec[0]))
        with connection.cursor(row_factory=class_row(FunctionEntry)) as cursor:
            entry = cursor.execute(f"{_FUNCTIONS} AND project = %s AND name = %s", of_function).fetchone()
        if entry is None:
            catalog.remove_function(f"{project}/{name}")
        else:
            catalog.put_function(entry)


def refresh_key(connection: Connection, catalog: Catalog, id_: str) -> None:
    with _locked(connection):
        with connection.cursor(row_factory=class_row(KeyEntry)) as cursor:
            entry = cursor.execute(f"{_KEYS} AND id = %s", (id_,)).fetchone()
        if entry is None:
            catalog.remove_key(id_)
        else:
            catalog.put_key(entry)


def refresh_project(connection: Connection, catalog: Catalog, name: str) -> None:
    with _locked(connection):
        row = connection.execute("SELECT limits FROM projects WHERE name = %s", (name,)).fetchone()
        catalog.put_project(ProjectEntry(name=name, limits=Limits(**row[0]) if row is not None else Limits()))


def refresh_secret(connection: Connection, catalog: Catalog, project: str, name: str) -> None:
    with _locked(connection):
        row = connection.execute(
            "SELECT sealed FROM secrets WHERE project = %s AND name = %s", (project, name)
        ).fetchone()
        catalog.put_secret(f"{project}/{name}", bytes(row[0]) if row is not None else None)
