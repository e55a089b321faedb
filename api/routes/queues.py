"""
Queues: what waits for each function, and what people decide about it.

A pause stops dispatch: invocations are accepted and their deadlines run. A drain refuses new invocations and serves
those that wait. A purge cancels those that wait. A boost multiplies a function's priority, a pin restricts it to some
GPU instances: both cost other functions something, so only operators may set them.
"""

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from api import rows
from api.auth import require_operator
from api.deps import (
    AdminKey,
    Anyway,
    Gateway,
    Listed,
    OfProject,
    OperatorKey,
    TheGateway,
    TheTrail,
    Trail,
)
from api.pauses import set_pauses
from api.schemas import queues as schemas
from api.server.bodies import BoundedRoute
from api.trainings.promises import check_breaks
from smore.domain.errors import NotFound
from smore.domain.override import Override
from smore.domain.spelling import nothing_named
from smore.redis.catalog import KeyEntry
from smore.redis.queue import Queue

router = APIRouter(prefix="/v1/queues", tags=["queues"], route_class=BoundedRoute)


@router.get("")
async def list_queues(gateway: TheGateway, of: Listed) -> schemas.Queues:
    """List the queues of the project's functions: what waits, for how long, and what people have decided about it."""
    fleet, now = gateway.fleet(), time.time()
    paused, overrides = await run_in_threadpool(lambda: (fleet.paused(), fleet.overrides(now)))
    waiting = await rows.queues(gateway, of, paused, overrides)
    return schemas.Queues(queues=[schemas.Queue(**each.row(now)) for each in waiting.values()])


# ---- pause, drain ----------------------------------------------------------------------------------------------------


@router.post("/pause", status_code=204)
def pause_all(gateway: TheGateway, caller: OperatorKey, trail: TheTrail, anyway: Anyway = False) -> None:
    """
    Stop dispatching the invocations of all projects, and starting trainings. Invocations are still accepted, and their
    deadlines run. 409 with the jobs (`breaks`) whose promised ends would not be kept, unless `anyway`.
    """
    if not anyway:
        check_breaks(gateway, caller, closed=[report.gpu for report in gateway.fleet().reports()])
    set_pauses(gateway, trail, caller, "platform", "*", on=("paused",))


@router.post("/drain", status_code=202)
def drain_all(gateway: TheGateway, caller: OperatorKey, trail: TheTrail) -> None:
    """Accept no new invocation in any project (503 `draining`). Those that wait are served."""
    set_pauses(gateway, trail, caller, "platform", "*", on=("draining",))


@router.post("/resume", status_code=204)
def resume_all(gateway: TheGateway, caller: OperatorKey, trail: TheTrail) -> None:
    """
    End a pause and a drain of the platform. Functions and GPU instances that were paused or drained by name stay so.
    """
    set_pauses(gateway, trail, caller, "platform", "*", on=())


@router.post("/{function}/pause", status_code=204)
def pause(gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str, project: OfProject = None) -> None:
    """Stop dispatching a function's invocations. They are still accepted, and their deadlines run."""
    _set(gateway, trail, caller, function, project, on=("paused",))


@router.post("/{function}/drain", status_code=202)
def drain(gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str, project: OfProject = None) -> None:
    """Accept no new invocation of a function (503 `draining`). Those that wait are served."""
    _set(gateway, trail, caller, function, project, on=("draining",))


@router.post("/{function}/resume", status_code=204)
def resume(gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str, project: OfProject = None) -> None:
    """End a pause and a drain of a function."""
    _set(gateway, trail, caller, function, project, on=())


def _set(
    gateway: Gateway, trail: Trail, caller: KeyEntry, function: str, project: str | None, *, on: Sequence[str]
) -> None:
    key = _key(gateway, caller, function, project)
    set_pauses(gateway, trail, caller, f"function/{function}", f"f:{key}", on=on, project=key.partition("/")[0])


def _key(gateway: Gateway, caller: KeyEntry, function: str, project: str | None) -> str:
    if project not in (None, caller.project):
        require_operator(caller)
    return gateway.known_function(project or caller.project, function).key


# ---- purge -----------------------------------------------------------------------------------------------------------


@router.post("/{function}/purge")
def purge(
    gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str, project: OfProject = None
) -> schemas.Purged:
    """Cancel every waiting invocation of a function. Running ones go on."""
    home, _, name = _key(gateway, caller, function, project).partition("/")
    queue = Queue(gateway.client(), gateway.settings.redis.prefix, gateway.settings.queue)
    with trail.change(caller, f"function/{function}", project=home) as change:
        gone = queue.purge(home, name)
        change.before, change.after = {"waiting": gone}, {"waiting": 0}
    return schemas.Purged(cancelled=gone)


# ---- boost, pin ------------------------------------------------------------------------------------------------------


def _override(gateway: Gateway, trail: Trail, caller: KeyEntry, key: str, **changed: Any) -> None:
    fleet = gateway.fleet()
    now = fleet.overrides(time.time()).get(key, Override(function=key))
    fields = {name: getattr(now, name) for name in ("boost", "boost_until", "gpus", "pin_until")}
    home, _, function = key.partition("/")
    with trail.change(caller, f"function/{function}", {name: fields[name] for name in changed}, project=home) as change:
        fleet.set_override(Override(function=key, **(fields | changed)))
        change.after = changed


def _until(for_s: float | None) -> float | None:
    return None if for_s is None else time.time() + for_s


@router.put("/{function}/boost", status_code=204)
def boost(
    gateway: TheGateway,
    caller: OperatorKey,
    trail: TheTrail,
    function: str,
    body: schemas.BoostBody,
    project: OfProject = None,
) -> None:
    """
    Multiply a function's priority, for a time or until the boost is ended. It has no effect under a policy that orders
    by deadline or by arrival.
    """
    key = _key(gateway, caller, function, project)
    _override(gateway, trail, caller, key, boost=body.factor, boost_until=_until(body.for_s))


@router.delete("/{function}/boost", status_code=204)
def unboost(
    gateway: TheGateway, caller: OperatorKey, trail: TheTrail, function: str, project: OfProject = None
) -> None:
    """End the boost of a function's priority."""
    _override(gateway, trail, caller, _key(gateway, caller, function, project), boost=1.0, boost_until=None)


@router.put("/{function}/pin", status_code=204)
def pin(
    gateway: TheGateway,
    caller: OperatorKey,
    trail: TheTrail,
    function: str,
    body: schemas.PinBody,
    project: OfProject = None,
) -> None:
    """
    Place a function on these GPU instances only, for a time or until the pin is ended. What runs elsewhere goes on. A
    GPU instance that has never reported is refused.
    """
    key, known = _key(gateway, caller, function, project), gateway.fleet().known()
    for name in body.gpus:
        if name not in known:
            raise NotFound(nothing_named("GPU instance", name, known), field="gpus")
    _override(gateway, trail, caller, key, gpus=tuple(sorted(set(body.gpus))), pin_until=_until(body.for_s))


@router.delete("/{function}/pin", status_code=204)
def unpin(gateway: TheGateway, caller: OperatorKey, trail: TheTrail, function: str, project: OfProject = None) -> None:
    """End the pin of a function: it may be placed on any GPU instance again."""
    _override(gateway, trail, caller, _key(gateway, caller, function, project), gpus=(), pin_until=None)
