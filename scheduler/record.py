"""``scheduler.record`` and ``scheduler.retain``: the event stream into Postgres, old rows out of it."""

import gc
import threading

import redis
from celery import Celery
from sqlalchemy.exc import OperationalError

from smore import observability as metrics
from smore.celery_app import RECORD, RETAIN
from smore.db import make_engine
from smore.history import Recorder
from smore.queue import connect
from smore.settings import Settings

log = metrics.logger(__name__)

#: Stream entries in one transaction.
PAGE = 5000


def register_record(app: Celery, config: Settings) -> None:
    """Make this app's worker write history."""
    if config.postgres.url is None:
        raise ValueError("SMORE_POSTGRES__URL is not set")
    recorder = Recorder(make_engine(config.postgres.url, "control"), connect(config), config.redis.prefix)
    recording = threading.Lock()
    # What was imported stays: a collection need not look at it again (measured: a third of the Python time of recording).
    gc.collect()
    gc.freeze()

    @app.task(name=RECORD)
    def record() -> None:
        if not recording.acquire(blocking=False):
            return
        try:
            # A short page is the end of the stream; one more look would cost as much as the page.
            while recorder.drain(PAGE) == PAGE:
                pass
        except OperationalError as error:
            # Postgres is away: the stream waits, and so do we.
            log.warning("history waits for Postgres", error=str(error.orig))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            log.warning("history waits for Redis", error=str(error))
        finally:
            recording.release()

    @app.task(name=RETAIN)
    def retain() -> None:
        recorder.retain(config.postgres.retention_days)
