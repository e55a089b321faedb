"""The task ``worker.run``: what ``claim.lua`` puts on this GPU instance's list."""

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
    """Make this app's worker run batches; ``stopping`` is called when it is told to end."""

    @worker_shutting_down.connect(weak=False)
    def _stop(**_: object) -> None:
        stopping()

    @app.task(name=RUN, ignore_result=True, Strategy="worker.tasks:straight")
    def run(function: str, revision: int, attempts: list[list[str | int]]) -> None:
        executor.run(function, revision, [(str(id_), int(attempt)) for id_, attempt in attempts])


def straight(task: "Task[Any, Any]", app: Celery, consumer: Any, **_: object) -> Handle:  # noqa: ARG001 - Celery's signature
    """
    Celery's strategy for this task: from the consumer into the pool, nothing between.

    Its default makes a request object, traces it for retries, results and events, and acknowledges: half of a message's
    CPU time in this process and a round trip to Redis, for things that leases and attempts do here.
    """

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:  # noqa: ARG001 - Celery's signature
        try:
            (function, revision, attempts), *_rest = message.payload
        except (ValueError, TypeError) as error:
            # It is off the list already; what it claimed comes back by its lease.
            log.error("unreadable message dropped", error=str(error))
            return
        consumer.pool.apply_async(_guarded, (task.run, function, revision, attempts), callback=_done)

    return handle


def _guarded(run: Callable[..., None], *args: object) -> None:
    try:
        run(*args)
    except Exception:
        # A defect of ours: told, and the batch's leases run out. The thread goes on.
        log.exception("batch failed")


def _done(_: object) -> None:
    """Celery's pool insists on being able to tell somebody."""
