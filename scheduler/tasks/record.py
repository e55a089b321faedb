"""
``scheduler.record`` and ``scheduler.retain``: the event stream into Postgres, old rows and unneeded blobs out.

``scheduler.record`` has no end.
"""

import threading
import time
from typing import Final

import redis
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from scheduler.schedule import CONTROL_QUEUE
from scheduler.tasks.endless import register_endless
from scheduler.tasks.sweep import sweep
from smore.blobs.store import open_blobs
from smore.postgres.catalog import Store
from smore.postgres.history import retention
from smore.postgres.history.recorder import Recorder
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.celery import RECORD, RETAIN
from smore.redis.connection import connect
from smore.redis.outage import is_outage

log = metrics.logger(__name__)

#: Stream entries in one transaction.
PAGE: Final = 5000
#: Seconds between two drains. Each is a transaction, which costs as much as many entries.
EVERY_S: Final = 1.0


def register_record(app: Celery, config: Settings, engine: Engine) -> None:
    """Make this app's worker write history."""
    client = connect(config)
    traced = None
    if config.otel.endpoint:
        from scheduler.tasks.spans import Spans

        traced = Spans(engine, config.otel.endpoint).add
    recorder = Recorder(engine, client, config.redis.prefix, traced, config.otel.every)
    store = Store(engine, Catalog(client, config.redis.prefix))

    def drain() -> None:
        try:
            # A short page is the end of the stream; one more look would cost as much as the page.
            while recorder.drain(PAGE) == PAGE:
                pass
        except OperationalError as error:
            # Postgres is away: the stream waits, and so do we.
            log.warning("history waits for Postgres", error=str(error.orig))
        except redis.RedisError as error:
            if not is_outage(error):
                raise
            log.warning("history waits for Redis", error=str(error))

    def record(stop: threading.Event) -> None:
        while not stop.is_set():
            drain()
            stop.wait(EVERY_S)

    register_endless(app, RECORD, CONTROL_QUEUE, record, expires_s=5.0)

    @app.task(name=RETAIN)
    def retain() -> None:
        kept = config.postgres
        most_bytes = kept.retention_gib * retention.GIB
        retention.retain(
            engine,
            kept.retention_days,
            most_bytes=most_bytes,
            minutes_days=kept.minutes_days,
            seconds_hours=kept.seconds_hours,
        )
        sweep(open_blobs(config), store, now=time.time(), grace_s=config.blobs.grace_s)
