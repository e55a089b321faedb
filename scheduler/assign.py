"""
``scheduler.assign``, the deciding task.

It is fired every second and is the leader: the firing that finds the lease free keeps deciding until it loses the lease or the
worker shuts down; every other returns at once. So beat is a safety net, not a tick that requests wait for.
"""

import threading

import redis
from celery import Celery
from celery.signals import worker_shutting_down

from scheduler.live import Leader
from scheduler.policy.core import Knobs, Spine
from smore import observability as metrics
from smore.celery_app import ASSIGN
from smore.queue import connect
from smore.settings import Settings

log = metrics.logger(__name__)


def register_assign(app: Celery, config: Settings) -> None:
    """Make this app's worker able to lead."""
    stop = threading.Event()
    leading = threading.Lock()

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        # Without it a warm shutdown would wait for a task that has no end.
        stop.set()

    def policy() -> Spine:
        return Spine(knobs=Knobs(ageing_per_s=config.scheduler.ageing_per_s, seed=config.scheduler.seed))

    @app.task(name=ASSIGN)
    def assign() -> None:
        if not leading.acquire(blocking=False):
            return
        client = connect(config)
        try:
            Leader(client, config, stop, policy).lead()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            log.warning("leader lost Redis", error=str(error))
        finally:
            client.close()
            leading.release()
