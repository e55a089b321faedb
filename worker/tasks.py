"""
The Celery task ``worker.run``: takes a batch that ``claim.lua`` has put on this GPU instance's list to the executor.

Registered by the composition root (worker/app.py). What must stay true: no error of a batch ends a thread of the pool.
"""

from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.signals import worker_shutting_down

from smore.process import observability
from smore.redis.celery import RUN
from worker.batches import Executor

log = observability.logger(__name__)

Handle = Callable[[Any, Any, Any, Any, Any], None]


def register_run(app: Celery, executor: Executor, stopping: Callable[[], None]) -> None:
    """Make this app's worker run batches; ``stopping`` is called when it begins to shut down."""

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        stopping()

    @app.task(name=RUN, ignore_result=True, Strategy="worker.tasks:straight")
    def run(function: str, revision: int, attempts: list[list[str | int]], ahead_s: float = 0.0) -> None:
        executor.run(function, revision, [(str(id_), int(attempt)) for id_, attempt in attempts], ahead_s)


def straight(task: "Task[Any, Any]", app: Celery, consumer: Any, **_: object) -> Handle:  # noqa: ARG001 - Celery's signature
    """
    Celery's strategy for this task: straight from the consumer into the thread pool.

    Celery's default makes a request object, traces it for retries, results and events, and acknowledges. That costs
    half of a message's CPU time in this process and a round trip to Redis, for what leases and attempts do here.
    """

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:  # noqa: ARG001 - Celery's signature
        try:
            (function, revision, attempts), options, *_rest = message.payload
        except (ValueError, TypeError) as error:
            # It is off the list already; its invocations come back by their leases.
            log.error("unreadable message dropped", error=str(error))
            return
        consumer.pool.apply_async(_guarded, (task.run, function, revision, attempts), options, callback=_done)

    return handle


def _guarded(run: Callable[..., None], *args: object, **options: object) -> None:
    try:
        run(*args, **options)
    except Exception:
        # A defect of the platform: it is logged, and the batch's leases run out. The thread goes on.
        log.exception("batch failed")


def _done(_: object) -> None:
    """Celery's pool requires a callback."""
