"""The task ``worker.run``: what ``claim.lua`` puts on this GPU instance's list."""

from collections.abc import Callable

from celery import Celery
from celery.signals import worker_shutting_down

from smore.celery_app import RUN
from worker.execution import Executor


def register_run(app: Celery, executor: Executor, stopping: Callable[[], None]) -> None:
    """Make this app's worker run batches; ``stopping`` is called when it is told to end."""

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        stopping()

    @app.task(name=RUN, ignore_result=True, acks_late=False)
    def run(function: str, revision: int, attempts: list[list[str | int]]) -> None:
        executor.run(function, revision, [(str(id_), int(attempt)) for id_, attempt in attempts])
