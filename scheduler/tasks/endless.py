"""A task without an end: the first firing in a process runs until the worker shuts down, every other one returns at once."""

import threading
from collections.abc import Callable

from celery import Celery
from celery.signals import worker_ready, worker_shutting_down


def register_endless(
    app: Celery, name: str, queue: str, run: Callable[[threading.Event], None], *, expires_s: float = 1.0
) -> None:
    """
    Make ``run`` a task that this app's worker fires when it is ready. It returns when its event is set; beat fires it
    again where it ended with an error.
    """
    stop = threading.Event()
    running = threading.Lock()

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        # Without it a warm shutdown would wait for a task that has no end.
        stop.set()

    @app.task(name=name)
    def endless() -> None:
        if not running.acquire(blocking=False):
            return
        try:
            run(stop)
        finally:
            running.release()

    @worker_ready.connect(weak=False)
    def _fire(**_: object) -> None:
        # Beat may take a while longer to start.
        endless.apply_async(queue=queue, expires=expires_s)
