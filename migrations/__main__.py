"""
``python -m migrations [--bootstrap-key FILE]``: bring the database to the newest schema, and Redis' mirror of the
catalog up to date.

It runs at every start, before anything else, so it does only what is needed: Alembic and SQLAlchemy are imported only
where there is a version to apply or a key to create. Any number of these processes may run at once.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psycopg
import redis

from smore.domain.access import Scope
from smore.postgres import mirror
from smore.postgres.locks import Lock
from smore.postgres.schema import FOLDER, PROJECT, has_key, head, version
from smore.process.environment import settings
from smore.process.settings import Settings
from smore.process.vault import make_key
from smore.redis.catalog import Catalog

#: Seconds that the two servers may take to start.
PATIENCE_S = 10.0

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m migrations", description="Bring the database to the newest version: no way back."
    )
    parser.add_argument(
        "--bootstrap-key",
        type=Path,
        metavar="FILE",
        help=(
            "write an API key of the project default, with every scope, to this file (mode 0600) unless it holds a"
            " valid one, and make the key that secrets are sealed with where there is none"
        ),
    )
    arguments = parser.parse_args()
    config = settings()
    if config.postgres.url is None:
        sys.exit("SMORE_POSTGRES__URL is not set")
    if arguments.bootstrap_key is not None:
        make_key(config.secrets_file)
    try:
        prepare(config, config.postgres.url, arguments.bootstrap_key)
    except (psycopg.OperationalError, redis.ConnectionError, redis.TimeoutError) as error:
        sys.exit(f"after {PATIENCE_S:g} s: {error}")


def prepare(config: Settings, url: str, bootstrap_key: Path | None) -> None:
    """Migrate, mirror, create the key. Raises psycopg's OperationalError or redis-py's ConnectionError without a server."""
    until = time.monotonic() + PATIENCE_S
    dsn = url.replace("postgresql+psycopg://", "postgresql://", 1)
    connection = _patiently(
        lambda: psycopg.connect(dsn, connect_timeout=3, application_name="smore-migrate", autocommit=True),
        psycopg.OperationalError,
        until,
    )
    with connection:
        if version(connection) != head():
            _upgrade(url)
        connection.execute("INSERT INTO projects (name) VALUES (%s) ON CONFLICT DO NOTHING", (PROJECT,))
        if config.redis.url is None:
            if bootstrap_key is not None:
                sys.exit("a key is of no use before it is mirrored: SMORE_REDIS__URL is not set")
            return
        client = redis.Redis.from_url(config.redis.url)
        catalog = Catalog(client, config.redis.prefix)
        _patiently(client.ping, redis.ConnectionError, until)
        if bootstrap_key is not None:
            _ensure_key(connection, url, catalog, bootstrap_key)
        mirror.refresh(connection, catalog)


def _patiently(call: Callable[[], T], refused: type[Exception], until: float) -> T:
    while True:
        try:
            return call()
        except refused:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _upgrade(url: str) -> None:
    """An empty database gets the tables of the code at once, another one the versions that it lacks."""
    from alembic import command
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import text

    from smore.postgres.connection import make_engine
    from smore.postgres.rows import Base

    alembic = Config()
    alembic.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    engine = make_engine(url, "migrate")
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": Lock.MIGRATIONS.value})
        schema = MigrationContext.configure(connection)
        if schema.get_current_revision() is None:
            Base.metadata.create_all(connection)
            schema.stamp(ScriptDirectory.from_config(alembic), "head")
    alembic.attributes["engine"] = engine
    command.upgrade(alembic, "head")
    engine.dispose()


def _ensure_key(connection: mirror.Connection, url: str, catalog: Catalog, path: Path) -> None:
    connection.execute("SELECT pg_advisory_lock(%s)", (Lock.BOOTSTRAP_KEY.value,))
    try:
        if not has_key(connection, path):
            _make_key(url, catalog, path)
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (Lock.BOOTSTRAP_KEY.value,))


def _make_key(url: str, catalog: Catalog, path: Path) -> None:
    from smore.postgres.catalog import Store
    from smore.postgres.connection import make_engine

    engine = make_engine(url, "migrate")
    _, token = Store(engine, catalog).create_key(PROJECT, "bootstrap", list(Scope))
    engine.dispose()
    # Replaced atomically: no reader sees half a key, and the mode of an old file is not kept.
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600, exist_ok=False)
    new.write_text(f"{token}\n")
    new.replace(path)


if __name__ == "__main__":
    main()
