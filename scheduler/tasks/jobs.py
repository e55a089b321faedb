"""
``scheduler.jobs``, the task that decides over trainings.

It has no end, as ``scheduler.assign``: the first firing in a process leads whenever it finds the lease free, every other
one returns at once.
"""

import threading
from contextlib import suppress

import redis
from celery import Celery
from celery.signals import worker_ready, worker_shutting_down

from scheduler.jobs.decider import Decider
from scheduler.policy.jobs.knobs import job_setting
from scheduler.schedule import CONTROL_QUEUE
from smore.postgres.connection import make_engine
from smore.process.settings import Settings
from smore.redis.celery import JOBS
from smore.redis.connection import connect
from smore.redis.job_queue import JobQueue


def refuse(config: Settings, reason: str) -> None:
    """Let it be known why nobody leads the queue of trainings, where Redis answers."""
    client = connect(config)
    with suppress(redis.RedisError):
        JobQueue(client, config.redis.prefix).refuse(reason)
    client.close()


def register_jobs(app: Celery, config: Settings) -> None:
    """Make this app's worker able to lead the queue of trainings."""
    knobs = job_setting(config.jobs.policy, **config.jobs.knobs)
    if config.postgres.url is None:
        raise ValueError("SMORE_POSTGRES__URL is not set")
    engine = make_engine(config.postgres.url, "jobs", statement_timeout_s=10.0)
    stop = threading.Event()
    deciding = threading.Lock()

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        # Without it a warm shutdown would wait for a task that has no end.
        stop.set()

    @app.task(name=JOBS)
    def jobs() -> None:
        if not deciding.acquire(blocking=False):
            return
        client = connect(config)
        try:
            Decider(client, engine, config, stop, knobs).run()
        finally:
            client.close()
            deciding.release()

    @worker_ready.connect(weak=False)
    def _fire(**_: object) -> None:
        # Beat may take a while longer to start.
        jobs.apply_async(queue=CONTROL_QUEUE, expires=1.0)
