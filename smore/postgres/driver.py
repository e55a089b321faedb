"""psycopg's own connection under SQLAlchemy's, for COPY and for statements in bulk."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, cast

import psycopg
from psycopg.rows import TupleRow
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

Connection: TypeAlias = "psycopg.Connection[TupleRow]"


@contextmanager
def driver(engine: Engine) -> Iterator[Connection]:
    """psycopg's connection from the engine's pool. Raises SQLAlchemy's OperationalError where Postgres is away."""
    with engine.connect() as connection:
        try:
            yield cast(Connection, connection.connection.driver_connection)
        except psycopg.OperationalError as error:
            raise OperationalError(None, None, error) from error
