"""
The Celery app: queue and task names, delivery settings, and the message that ``claim.lua`` pushes.

Celery carries messages and is not the queue of invocations: a GPU instance's Celery queue ``gpu.<id>`` holds only batches
that may start now, and a message has ids, never payloads.
"""

import base64
import encodings.idna  # noqa: F401
import os
import socket
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self, cast

# What serve() loads by its name, or when it starts: here, so that a template has it (smore/local/template.py) and
# processes share it.
import billiard.pool  # noqa: F401
import celery.app.amqp
import celery.app.control
import celery.app.events
import celery.app.log
import celery.apps.worker
import celery.backends.base
import celery.concurrency.thread
import celery.events.dispatcher
import celery.events.receiver
import celery.fixups.django
import celery.worker.autoscale
import celery.worker.components
import celery.worker.consumer.delayed_delivery
import celery.worker.strategy  # noqa: F401
import kombu.transport.redis  # noqa: F401
import orjson
from celery import Celery
from kombu import Connection
from kombu import Queue as CeleryQueue

from smore.process.settings import Settings
from smore.redis.url import celery_url

#: Task names; the modules that implement them are named in each app's ``imports``.
RUN = "worker.run"
ASSIGN = "scheduler.assign"
RECORD = "scheduler.record"
JOBS = "scheduler.jobs"
RETAIN = "scheduler.retain"
RETRAIN = "scheduler.retrain"
ROLLBACK = "scheduler.rollback"
REPUBLISH = "scheduler.republish"
FORECAST = "scheduler.forecast"
REFIT = "scheduler.refit"

#: Above every task's hard limit. Celery uses the shortest of several values, so all of its settings get this one.
VISIBILITY_TIMEOUT_S = 6 * 3600


def gpu_queue(gpu: str) -> str:
    return f"gpu.{gpu}"


class _Connection(Connection):
    """Celery waits 2, 4, 6 … 30 s between attempts, without a setting for it; here it waits half a second."""

    def ensure_connection(
        self,
        errback: Callable[[Exception, float], None] | None = None,
        max_retries: int | None = None,
        interval_start: float = 0.0,
        interval_step: float = 0.5,
        interval_max: float = 0.5,
        callback: Callable[[], None] | None = None,
        reraise_as_library_errors: bool = True,
        timeout: int | None = None,
    ) -> Self:
        # Celery never gives the intervals. Its types know whole seconds alone.
        waits = cast("tuple[int, int, int]", (interval_start, interval_step, interval_max))
        self._ensure_connection(errback, max_retries, *waits, callback, reraise_as_library_errors, timeout)
        return self


def make_app(name: str, config: Settings, queues: Sequence[str]) -> Celery:
    """
    An app that consumes ``queues`` only.

    ``config.redis.url`` must be set.
    """
    if config.redis.url is None:
        raise ValueError("SMORE_REDIS__URL is not set")
    # Celery warns where it runs as root, because a pickled message is code. Here only JSON is accepted.
    warnings.filterwarnings("ignore", message=r"\s*You're running the worker with superuser privileges")
    app = Celery(name, broker=celery_url(config.redis.url), set_as_current=False)
    app.amqp.Connection = _Connection
    transport = {
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        "queue_order_strategy": "priority",
        # One list for each queue: the sorted sets of the queue define the order, not Celery's priorities.
        "priority_steps": [0],
        "global_keyprefix": config.redis.prefix,
        "health_check_interval": 25,
        "socket_keepalive": True,
        # For `CLIENT LIST`, where smore/local/doctor.py counts the control processes.
        "client_name": f"smore-{name}:{socket.gethostname()}:{os.getpid()}",
    }
    app.conf.update(
        task_queues=[CeleryQueue(queue, routing_key=queue) for queue in queues],
        task_default_queue=queues[0] if queues else "celery",
        task_create_missing_queues=False,
        broker_transport_options=transport,
        result_backend_transport_options=transport,
        # Messages are fenced by attempt and leases, so an early acknowledgement loses nothing and nothing waits six
        # hours for redelivery.
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        task_ignore_result=True,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        task_default_delivery_mode=2,
        task_track_started=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_retry=True,
        # Wait for a Redis that refuses writes, as for one that is away: a worker that ended instead would need seconds to
        # start again.
        broker_channel_error_retry=True,
        worker_soft_shutdown_timeout=5,
        timezone="UTC",
        enable_utc=True,
    )
    return app


def serve(app: Celery, name: str, threads: int, queues: Sequence[str] | None = None) -> int:
    """Run this app's worker until a signal ends it; ``queues`` None = all of the app's. Returns the exit status."""
    controller = app.Worker(
        hostname=f"{name}@{socket.gethostname()}",
        queues=queues,
        pool_cls="threads",
        concurrency=threads,
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    controller.start()
    return int(controller.exitcode or 0)


def message(task: str, args: Sequence[Any], queue: str, kwargs: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """
    A protocol-2 message as stock ``apply_async`` would put it on the list of ``queue``.

    tests/contract/test_celery_message.py holds it field by field against one that Celery sends.
    """
    id_ = str(uuid.uuid4())
    body = orjson.dumps([args, dict(kwargs), {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    return orjson.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": task,
                "id": id_,
                "shadow": None,
                "eta": None,
                "expires": None,
                "group": None,
                "group_index": None,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": id_,
                "parent_id": None,
                "argsrepr": "",
                "kwargsrepr": "{}",
                "origin": "scheduler",
                "ignore_result": True,
                "replaced_task_nesting": 0,
                "stamped_headers": None,
                "stamps": {},
            },
            "properties": {
                "correlation_id": id_,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": id_,
            },
        }
    )
