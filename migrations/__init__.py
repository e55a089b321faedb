"""
The schema's history. ``python -m migrations`` brings a database to its newest version (``__main__.py``).

A new version: change ``smore/db.py``, then ``alembic revision --autogenerate -m "what it does"``, then read every line of what came out.
Versions only go forward: each must leave the processes of the version before it working, since they run on while it is applied.
There is no downgrade; going back means restoring a backup.
"""

from pathlib import Path

#: Alembic's folder.
FOLDER = Path(__file__).parent


def head() -> str:
    """The newest version, by the names of the files: Alembic itself costs half a second to import."""
    return max((path.stem for path in (FOLDER / "versions").glob("[0-9]*.py")), default="0000").partition("_")[0]
