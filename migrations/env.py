"""
Alembic's environment. The database is SMORE_POSTGRES__URL's, or the engine that the caller put into the configuration's
attributes.
"""

from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import MigrationScript
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, Enum, text

from smore.postgres.connection import make_engine
from smore.postgres.locks import Lock
from smore.postgres.rows import Base
from smore.postgres.schema import head
from smore.process.environment import settings


def number_it(_context: MigrationContext, _revision: object, scripts: list[MigrationScript]) -> None:
    """Number a new version after the last one: 0001, 0002…"""
    for script in scripts:
        script.rev_id = f"{int(head()) + 1:04d}"


def render_item(kind: str, item: object, _context: AutogenContext) -> str | Literal[False]:
    """An enum's column is text: its members may grow without a new version."""
    return f"sa.String({item.length})" if kind == "type" and isinstance(item, Enum) else False


def run(engine: Engine) -> None:
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            process_revision_directives=number_it,
            render_item=render_item,
        )
        with context.begin_transaction():
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            # The lock comes before the version is read: a process that waited for it has nothing left to do.
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": Lock.MIGRATIONS.value})
            # An ALTER TABLE that waits for a long query makes all later queries wait for itself.
            connection.execute(text("SET LOCAL lock_timeout = '10s'"))
            context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("SQL without a database is not offered: a version may have to look at the data it changes")
given = context.config.attributes.get("engine")
if given is not None:
    run(given)
else:
    url = settings().postgres.url
    if url is None:
        raise SystemExit("SMORE_POSTGRES__URL is not set")
    run(make_engine(url, "migrate"))
