"""
``scheduler.assign``, the deciding task.

It has no end: it stands by, leads whenever it finds the lease free, and waits while Redis does not serve.
"""

import subprocess
import sys
import threading
from contextlib import closing
from functools import cache, partial
from typing import IO, Final

import redis
from celery import Celery
from celery.signals import worker_ready

from scheduler.leader.foresight import prewarm_knobs
from scheduler.leader.leader import Leader
from scheduler.policy import kernel
from scheduler.policy.engine import Engine, prepare
from scheduler.policy.knobs import Knobs, preset
from scheduler.policy.prewarm import kernel as prewarm
from scheduler.policy.prewarm import rules
from scheduler.policy.prewarm.prewarmer import Prewarmer
from scheduler.schedule import SCHEDULER_QUEUE
from scheduler.tasks.endless import register_endless
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.redis.celery import ASSIGN
from smore.redis.connection import connect
from smore.redis.outage import is_outage

log = metrics.logger(__name__)

#: How often the standby looks whether the lease is free, and Redis whether it serves again, seconds.
LOOK_S: Final = 0.2
#: The knob ``ahead_s`` of a platform: in no preset, for what is simulated has no way to a worker.
AHEAD_S: Final = 0.005


def register_assign(app: Celery, config: Settings, turn: IO[str]) -> None:
    """Make this app's worker able to lead. ``turn`` is closed once it is."""
    # All that leading needs is loaded before it is needed: it takes seconds where the processor is busy.
    compile_before()
    load_compiled()

    @worker_ready.connect(weak=False)
    def _close(**_: object) -> None:
        turn.close()

    def assign(stop: threading.Event) -> None:
        with closing(connect(config)) as client:
            _stand_by(client, config, stop)

    register_endless(app, ASSIGN, SCHEDULER_QUEUE, assign)


def _is_compiled() -> bool:
    return kernel.is_kept(kernel.begin) and kernel.is_kept(prewarm.wanted)


@cache
def load_compiled() -> None:
    """Load what leading needs; in a fork of a process that has done it there is nothing left to do."""
    prepare()
    rules.prepare()


def prepare_compiled() -> None:
    """Load what leading needs where it is compiled already."""
    if _is_compiled():
        load_compiled()


def compile_before() -> None:
    """Compile what is not there yet, in a process that ends. Where that fails, what loads it compiles it."""
    if not _is_compiled():
        subprocess.run([sys.executable, "-m", "scheduler.policy"], check=False)


def _stand_by(client: "redis.Redis", config: Settings, stop: threading.Event) -> None:
    warm = prewarm_knobs(config.prewarm)

    def knobs(name: str = config.policy.name) -> Knobs:
        return preset(name, **{"seed": config.policy.seed, "ahead_s": AHEAD_S} | config.policy.knobs)

    def engine(name: str = config.policy.name) -> Engine:
        # A placement rule of one's own begins anew with each leader.
        shadow = preset(config.policy.shadow) if config.policy.shadow else None
        return Engine(knobs(name), shadow, Prewarmer(warm))

    leader = Leader(client, config, stop, engine, knobs(), prewarms=True, without_rule=partial(engine, "smore-product"))
    logged = False
    while not stop.is_set():
        try:
            leader.lead()
            logged = False
        except redis.RedisError as error:
            if not is_outage(error):
                raise
            if not logged:
                log.warning("leading waits for Redis", error=str(error))
            logged = True
        stop.wait(LOOK_S)
