"""
Which version of the schema this code wants (the newest one in the folder ``migrations`` beside it), and what a database
has: its version, its first key.
"""

from pathlib import Path
from typing import Final

from smore.domain.access import read_token
from smore.postgres.mirror import Connection
from smore.process.root import ROOT

#: Alembic's folder.
FOLDER: Final = ROOT / "migrations"
#: The project that every platform has.
PROJECT: Final = "default"


def head() -> str:
    """The newest version, by the names of the files: Alembic itself costs half a second to import."""
    return max((path.stem for path in (FOLDER / "versions").glob("[0-9]*.py")), default="0000").partition("_")[0]


def version(connection: Connection) -> str | None:
    # A select from a table that is missing would be an ERROR line in Postgres' log.
    there = connection.execute("SELECT to_regclass('alembic_version')").fetchone()
    if there is None or there[0] is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else None


def has_key(connection: Connection, path: Path) -> bool:
    """Whether a file holds a valid key of :data:`PROJECT`."""
    token = read_token(path.read_text().strip()) if path.exists() else None
    if token is None:
        return False
    known = connection.execute(
        "SELECT FROM api_keys WHERE id = %s AND digest = %s AND project = %s AND revoked_at IS NULL", (*token, PROJECT)
    )
    return known.fetchone() is not None
