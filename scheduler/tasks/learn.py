"""
``scheduler.retrain``, ``scheduler.rollback`` and ``scheduler.republish``: the commands of ``ml/learn/learning.py`` as
tasks; those of ``scheduler/tasks/forecasting.py`` as ``scheduler.forecast`` and ``scheduler.refit``.

Each runs in a child process. A fit takes hundreds of MiB, and only the end of a process gives all of them back; this
one imports nothing for it. Whether anything is due is asked here, so that mostly no child is started.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import redis
from celery import Celery
from celery.signals import worker_ready, worker_shutting_down
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from scheduler.schedule import LEARN_QUEUE
from smore.postgres.arrivals import ArrivalStore
from smore.postgres.predictors import Profiles
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.redis.celery import FORECAST, REFIT, REPUBLISH, RETRAIN, ROLLBACK
from smore.redis.connection import connect
from smore.redis.forecasts import PublishedForecasts
from smore.redis.tables import Tables

log = metrics.logger(__name__)

#: Nothing is said of it: every other process says so, and beat asks again.
_OUTAGE = (redis.ConnectionError, redis.TimeoutError, OperationalError)

#: Nice value of the children: training and functions come first.
NICE: Final = 10
#: A fit that takes longer is ended.
LIMIT_S: Final = 900.0
#: Children at a time.
AT_ONCE: Final = 2
#: A start has the cores to itself for so long, seconds: nothing that is learned is needed at once.
START_S: Final = 60.0
#: What happened up to so many seconds before a look is recorded, and settled, after it.
SETTLED_S: Final = 120.0


class Children:
    """
    Processes of ``python -m ml.learn.learning`` and ``scheduler.tasks.forecasting``, :data:`AT_ONCE` at a time; safe from
    any thread. After :meth:`stop` none is started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, *words: str, module: str = "ml.learn.learning", asked: bool = False) -> bool:
        """
        Returns when it has ended, whether it did its work; what it says on stdout goes to the log, its own log is this
        process's. Where no place is free it waits if somebody has ``asked``, else it does nothing: beat asks again.
        """
        if not self._places.acquire(blocking=asked):
            return False
        try:
            return self._run(words, module)
        finally:
            self._places.release()

    def _run(self, words: Sequence[str], module: str) -> bool:
        with self._lock:
            if self._stopped:
                return False
            # One thread: the fits are small, and the cores belong to others. The gateway's port is this process's.
            env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "SMORE_METRICS_PORT": "0"}
            child = subprocess.Popen([sys.executable, "-m", module, *words], env=env, stdout=subprocess.PIPE, text=True)
            # From here, not by itself: what it imports takes a second.
            os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
            self._running.add(child)
        try:
            said, _ = child.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
        finally:
            with self._lock:
                self._running.discard(child)
        say = log.info if child.returncode == 0 else log.error
        say("learning", command=words[0], exit=child.returncode, outcome=said.strip().rpartition("\n")[2])
        return child.returncode == 0

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for child in self._running:
                child.terminate()


def register_learn(app: Celery, config: Settings, engine: Engine) -> None:
    """Make this app's worker learn."""
    client, children = connect(config), Children()
    tables, forecasts = Tables(client, config.redis.prefix), PublishedForecasts(client, config.redis.prefix)
    profiles, history = Profiles(engine), ArrivalStore(engine)
    seen, failed = threading.Event(), threading.Event()
    #: When a child has looked at the history last; none has since the start, and the checkout's rows may be others.
    looked_at = 0.0

    def published() -> bool:
        """
        Whether Redis has a table. A process that has never seen one does not look for one in Postgres: mostly there is
        none.
        """
        if tables.version():
            seen.set()
            return True
        return False

    @app.task(name=RETRAIN)
    def retrain(asked: bool = False) -> None:
        nonlocal looked_at
        now = time.time()
        try:
            if not (asked or not looked_at or profiles.news(looked_at - SETTLED_S)):
                return
        except OperationalError:
            failed.set()
            return
        if children.run("retrain", *([] if asked else ["--if-due"]), asked=asked):
            looked_at = now
            failed.clear()
        else:
            failed.set()
        with suppress(*_OUTAGE):
            published()

    @app.task(name=ROLLBACK)
    def rollback() -> None:
        children.run("rollback", asked=True)

    @app.task(name=REPUBLISH)
    def republish() -> None:
        with suppress(*_OUTAGE):
            if published():
                return
            if seen.is_set():
                children.run("restore")
            elif failed.is_set():
                # A store was away when the first table was to be made. Beat would ask again after 600 s.
                retrain()

    @app.task(name=FORECAST)
    def forecast() -> None:
        with suppress(*_OUTAGE):
            if not config.prewarm.on:
                return
            if forecasts.unlearned():
                children.run("fit", module="scheduler.tasks.forecasting")
            # Mostly a small platform has nothing to forecast from, and then no process is started for it.
            if forecasts.model():
                children.run("forecast", module="scheduler.tasks.forecasting")

    @app.task(name=REFIT)
    def refit(asked: bool = False) -> None:
        with suppress(*_OUTAGE):
            # Redis may have lost which fit is in use.
            old_s = config.prewarm.refit_s if forecasts.model() else 0.0
            if config.prewarm.on and (asked or history.fit_due(time.time(), old_s)):
                children.run("fit", *([] if asked else ["--if-due"]), module="scheduler.tasks.forecasting", asked=asked)

    def first() -> None:
        if looked_at:
            return  # somebody has asked meanwhile
        with suppress(*_OUTAGE):
            retrain.apply_async(queue=LEARN_QUEUE)
            refit.apply_async(queue=LEARN_QUEUE)

    # A new platform has rows in its checkout and no table yet, a restarted one counts; beat would come after 600 s.
    start = threading.Timer(START_S, first)
    start.daemon = True

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        start.cancel()
        children.stop()

    @worker_ready.connect(weak=False)
    def _start(**_: object) -> None:
        start.start()
