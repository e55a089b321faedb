"""
``scheduler.retrain``, ``scheduler.rollback`` and ``scheduler.republish``: the commands of ``ml/learn/learning.py`` as
tasks; those of ``scheduler/tasks/forecasting.py`` as ``scheduler.forecast`` and ``scheduler.refit``.

Each runs in a child process. A fit takes hundreds of MiB, and only the end of a process gives all of them back; this
one imports nothing for it and stays as small as Celery is.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress

import redis
from celery import Celery
from celery.signals import worker_ready, worker_shutting_down

from scheduler.schedule import LEARN_QUEUE
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.redis.celery import FORECAST, REFIT, REPUBLISH, RETRAIN, ROLLBACK
from smore.redis.connection import connect
from smore.redis.forecasts import PublishedForecasts
from smore.redis.tables import Tables

log = metrics.logger(__name__)

#: Nothing is said of it: every other process says so, and beat asks again.
_OUTAGE = (redis.ConnectionError, redis.TimeoutError)

#: Nice value of this process and its children: training and functions come first.
NICE = 10
#: A fit that takes longer is ended.
LIMIT_S = 900.0


class Children:
    """
    Processes of ``python -m ml.learn.learning`` and ``scheduler.tasks.forecasting``; safe from any thread. After
    :meth:`stop` none is started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, *words: str, module: str = "ml.learn.learning") -> bool:
        """
        Returns when it has ended, whether it did its work; what it says on stdout goes to the log, its own log is this
        process's.
        """
        with self._lock:
            if self._stopped:
                return False
            # One thread: the fits are small, and the cores belong to others. The gateway's port is this process's.
            env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "SMORE_METRICS_PORT": "0"}
            child = subprocess.Popen([sys.executable, "-m", module, *words], env=env, stdout=subprocess.PIPE, text=True)
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


def register_learn(app: Celery, config: Settings) -> None:
    """Make this app's worker learn."""
    os.nice(max(0, NICE - os.nice(0)))
    client, children = connect(config), Children()
    tables, forecasts = Tables(client, config.redis.prefix), PublishedForecasts(client, config.redis.prefix)
    seen, failed = threading.Event(), threading.Event()

    def published() -> bool:
        """
        Whether Redis has a table. A process that has never seen one does not look for one in Postgres: mostly there is
        none.
        """
        if tables.version():
            seen.set()
            return True
        return False

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        children.stop()

    @app.task(name=RETRAIN)
    def retrain(asked: bool = False) -> None:
        (failed.clear if children.run("retrain", *([] if asked else ["--if-due"])) else failed.set)()
        with suppress(*_OUTAGE):
            published()

    @app.task(name=ROLLBACK)
    def rollback() -> None:
        children.run("rollback")

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
        if config.prewarm.on:
            children.run("fit", *([] if asked else ["--if-due"]), module="scheduler.tasks.forecasting")

    @worker_ready.connect(weak=False)
    def _first(**_: object) -> None:
        # A new platform has rows in its checkout and no table yet, a restarted one counts; beat would come after 600 s.
        retrain.apply_async(queue=LEARN_QUEUE)
        refit.apply_async(queue=LEARN_QUEUE)
