"""Queues: what waits for each function, and pausing its dispatch (enqueueing goes on, deadlines run)."""

import time
from typing import cast

from fastapi import APIRouter

from api import schemas
from api.deps import AdminKey, Gateway, OperatorKey, ReadKey, TheGateway
from smore.domain.errors import FunctionNotFound

router = APIRouter(prefix="/v1/queues", tags=["queues"])

#: Waiting invocations looked at for the oldest: with one SLO for all, the nearest deadline is the oldest arrival.
_LOOKED_AT = 100


@router.get("")
def list_queues(gateway: TheGateway, caller: ReadKey) -> schemas.Queues:
    """Of every function of the project."""
    client, prefix = gateway.client(), gateway.settings.redis.prefix
    entries = sorted((e for e in list(gateway.catalog.functions.values()) if e.project == caller.project), key=lambda entry: entry.name)
    pipe = client.pipeline(transaction=False)
    for entry in entries:
        pipe.zcard(f"{prefix}q:{entry.key}")
        pipe.zrange(f"{prefix}q:{entry.key}", 0, _LOOKED_AT - 1)
        pipe.hget(f"{prefix}prio", entry.key)
    answers = pipe.execute()
    paused = gateway.fleet().paused()
    now_ms = time.time() * 1000
    queues = []
    for position, entry in enumerate(entries):
        depth, ids, priority = answers[3 * position : 3 * position + 3]
        # An id begins with the milliseconds of its making (smore.queue.new_id).
        oldest_ms = min((int(id_[:12], 16) for id_ in cast("list[bytes]", ids)), default=now_ms)
        queues.append(
            schemas.Queue(
                function=entry.name, depth=depth, oldest_wait_s=max(0.0, now_ms - oldest_ms) / 1000, priority=float(priority or 0.0),
                paused="*" in paused or f"f:{entry.key}" in paused,
            )
        )  # fmt: skip
    return schemas.Queues(queues=queues)


@router.post("/pause", status_code=204)
def pause_all(gateway: TheGateway, _caller: OperatorKey) -> None:
    """Stop dispatch of everything, in all projects."""
    gateway.fleet().pause("*")


@router.post("/resume", status_code=204)
def resume_all(gateway: TheGateway, _caller: OperatorKey) -> None:
    """End that; functions and GPU instances that were paused by name stay so."""
    gateway.fleet().resume("*")


@router.post("/{function}/pause", status_code=204)
def pause(gateway: TheGateway, caller: AdminKey, function: str) -> None:
    gateway.fleet().pause(_target(gateway, caller.project, function))


@router.post("/{function}/resume", status_code=204)
def resume(gateway: TheGateway, caller: AdminKey, function: str) -> None:
    gateway.fleet().resume(_target(gateway, caller.project, function))


def _target(gateway: Gateway, project: str, function: str) -> str:
    key = f"{project}/{function}"
    if key not in gateway.catalog.functions:
        raise FunctionNotFound
    return f"f:{key}"
