"""
``scheduler.assign``, the deciding task.

It is fired every second and is the leader: the firing that finds the lease free keeps deciding until it loses the lease or the
worker shuts down, and waits while Redis does not serve; every other returns at once. So beat is a safety net, not a tick that requests
wait for.
"""

import threading
from typing import Final

import redis
from celery import Celery
from celery.signals import worker_ready, worker_shutting_down

from scheduler.schedule import SCHEDULER_QUEUE
from smore import observability as metrics
from smore.celery_app import ASSIGN
from smore.outage import is_outage
from smore.queue import connect
from smore.settings import Settings

log = metrics.logger(__name__)

#: Between two tries of a leader that Redis fails, seconds.
RETRY_S: Final = 0.2


def register_assign(app: Celery, config: Settings) -> None:
    """Make this app's worker able to lead."""
    stop = threading.Event()
    leading = threading.Lock()

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        # Without it a warm shutdown would wait for a task that has no end.
        stop.set()

    @app.task(name=ASSIGN)
    def assign() -> None:
        if not leading.acquire(blocking=False):
            return
        client = connect(config)
        try:
            if client.get(f"{config.redis.prefix}leader") is None:
                _lead(client, config, stop)
        except redis.RedisError as error:
            if not is_outage(error):
                raise
            log.warning("nobody is asked to lead: Redis does not serve", error=str(error))
        finally:
            client.close()
            leading.release()

    @worker_ready.connect(weak=False)
    def _fire(**_: object) -> None:
        # Beat may take a while longer to start.
        assign.apply_async(queue=SCHEDULER_QUEUE, expires=1.0)


def _lead(client: "redis.Redis", config: Settings, stop: threading.Event) -> None:
    # Imported by who leads: the standby has no use for numpy's memory.
    from scheduler.foresight import warmth
    from scheduler.live import Leader
    from scheduler.policy.core import Engine, prepare
    from scheduler.policy.knobs import preset
    from scheduler.policy.prewarm import rules
    from scheduler.policy.prewarm.keeper import Keeper

    prepare()
    rules.prepare()
    knobs = preset(config.policy.name, seed=config.policy.seed, **config.policy.knobs)
    shadow = preset(config.policy.shadow) if config.policy.shadow else None
    warm = warmth(config.prewarm)
    leader = Leader(client, config, stop, lambda: Engine(knobs, shadow, Keeper(warm)))
    while not stop.is_set():
        try:
            leader.lead()
            return
        except redis.RedisError as error:
            if not is_outage(error):
                raise
            # Whoever takes the lease first when it serves again leads: this process has all of it loaded.
            log.warning("the leader waits for Redis", error=str(error))
            stop.wait(RETRY_S)
