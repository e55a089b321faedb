"""
``scheduler.jobs``, the task that decides over trainings.

It has no end: it leads whenever it finds the lease free.
"""

import threading
from contextlib import closing, suppress

import redis
from celery import Celery

from scheduler.jobs.decider import Decider
from scheduler.policy.jobs.knobs import job_setting
from scheduler.schedule import CONTROL_QUEUE
from scheduler.tasks.endless import register_endless
from smore.postgres.connection import make_engine
from smore.process.settings import Settings
from smore.redis.celery import JOBS
from smore.redis.connection import connect
from smore.redis.job_queue import JobQueue


def refuse(config: Settings, reason: str) -> None:
    """Let it be known why nobody leads the queue of trainings, where Redis answers."""
    with closing(connect(config)) as client, suppress(redis.RedisError):
        JobQueue(client, config.redis.prefix).refuse(reason)


def register_jobs(app: Celery, config: Settings) -> None:
    """Make this app's worker able to lead the queue of trainings."""
    knobs = job_setting(config.jobs.policy, **config.jobs.knobs)
    if config.postgres.url is None:
        raise ValueError("SMORE_POSTGRES__URL is not set")
    engine = make_engine(config.postgres.url, "jobs", statement_timeout_s=10.0)

    def jobs(stop: threading.Event) -> None:
        with closing(connect(config)) as client:
            Decider(client, engine, config, stop, knobs).run()

    register_endless(app, JOBS, CONTROL_QUEUE, jobs)
