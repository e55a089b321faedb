"""A Postgres that is there and says nothing: its processes are really stopped."""

from collections.abc import Iterator

import psutil
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from smore.postgres.connection import make_engine
from smore.process.settings import Settings


@pytest.fixture
def impatient(config: Settings, migrated: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """
    Waits a second for a statement, of which Postgres may work half a second, and a second for the test of a connection.
    """
    monkeypatch.setattr("smore.postgres.connection._SILENCE_S", 0.5)
    monkeypatch.setattr("smore.postgres.connection._CONNECT_S", 1)
    assert config.postgres.url is not None
    engine = make_engine(config.postgres.url, "tests", statement_timeout_s=0.5)
    yield engine
    engine.dispose()


def serving(connection: Connection) -> psutil.Process:
    """Its process at Postgres."""
    return psutil.Process(connection.scalar(text("SELECT pg_backend_pid()")))


def test_a_statement_that_is_not_answered_ends(impatient: Engine) -> None:
    with impatient.connect() as connection:
        stopped = serving(connection)
        stopped.suspend()
        try:
            with pytest.raises(OperationalError) as raised:
                connection.execute(text("SELECT 1"))
        finally:
            stopped.resume()
        # Nobody gets the late answer for their own: the connection is not used again.
        assert raised.value.connection_invalidated
    with impatient.connect() as connection:
        assert connection.scalar(text("SELECT 2")) == 2
        assert serving(connection).pid != stopped.pid


def test_a_connection_that_fell_silent_in_the_pool_is_replaced(impatient: Engine) -> None:
    with impatient.connect() as connection:
        stopped = serving(connection)
    stopped.suspend()
    try:
        with impatient.connect() as connection:
            assert serving(connection).pid != stopped.pid
    finally:
        stopped.resume()


def test_a_statement_that_takes_too_long_costs_no_connection(impatient: Engine) -> None:
    with impatient.connect() as connection:
        before = serving(connection).pid
        with pytest.raises(OperationalError, match="statement timeout"):
            connection.execute(text("SELECT pg_sleep(5)"))
        connection.rollback()
        assert serving(connection).pid == before
