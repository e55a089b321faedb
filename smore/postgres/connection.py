"""Connections to Postgres."""

from collections.abc import Generator
from typing import Any, Final

import psycopg
from sqlalchemy import Engine as Engine
from sqlalchemy import create_engine, event, make_url

#: Timeout of a connection's start and test, seconds.
_CONNECT_S: Final = 3
#: Seconds that a server may stay silent after the time at which it would have ended a statement itself.
_SILENCE_S: Final = 2.0
#: Seconds for which a thread waits for a free connection of the pool.
_POOL_S: Final = 5.0


def make_engine(url: str, process: str, *, statement_timeout_s: float = 30.0) -> Engine:
    """
    The engine of one process, which Postgres lists as ``smore-<process>``.

    A connection may take 3 s to start and is tested before each use, so that a restarted server causes no error. A dead
    host is noticed after 10 s. A server that hangs (stopped, its disk stuck) is noticed 2 s after ``statement_timeout_s``,
    the time after which it would have ended the statement itself. All of these raise SQLAlchemy's OperationalError;
    waiting for more than 5 s for a free connection raises its TimeoutError.
    """
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        pool_timeout=_POOL_S,
        connect_args={
            "application_name": f"smore-{process}",
            "connect_timeout": _CONNECT_S,
            "tcp_user_timeout": 10_000,
            "options": f"-c statement_timeout={int(statement_timeout_s * 1000)}",
        },
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> _Bounded:
        connection = _Bounded.connect(*arguments, **options)
        connection.patience_s = statement_timeout_s + _SILENCE_S
        return connection

    return engine


class _Bounded(psycopg.Connection[Any]):
    """A connection with a time limit for answers: libpq has one for connecting only."""

    patience_s: float = _CONNECT_S

    def wait(self, gen: Generator[Any, Any, Any], interval: float = 0.1, timeout: float | None = None) -> Any:
        # Only the pool's test of a connection runs outside a transaction.
        patience_s = _CONNECT_S if self.autocommit else self.patience_s
        try:
            return super().wait(gen, interval, patience_s if timeout is None else timeout)
        except psycopg.OperationalError:
            # The answer may still come, and the next user of the connection would take it for its own.
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise
