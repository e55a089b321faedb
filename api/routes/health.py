"""
Whether this process answers and the platform can work, without a key, for load balancers have none; and this process's
metrics.
"""

import asyncio
import os
from typing import Literal

import redis
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api import readiness
from api.auth import is_operator
from api.deps import Gateway, Scraper, TheGateway, caller_of
from api.schemas.fields import Schema
from api.server.bodies import BoundedRoute
from smore.domain.access import Scope
from smore.domain.errors import Forbidden, Unauthorised
from smore.process.observability import GATEWAY

router = APIRouter(tags=["health"], route_class=BoundedRoute)

#: The process id of the supervisor that started this process, if one did (it says so in the environment). Once it is
#: gone this process is another one's child.
_SUPERVISOR = os.getppid() if "SUPERVISOR_ENABLED" in os.environ else None


class Alive(Schema):
    """That this process answers."""

    status: Literal["ok"] = "ok"
    """Always ``ok``: else there is no answer"""
    instance: str = ""
    """The id of the installation: who asks for its own platform can tell it from a stranger on the same port"""


class Readiness(Schema):
    """Whether the platform can run an invocation."""

    ready: bool
    """Whether every check but ``postgres`` succeeds"""
    instance: str = ""
    """The id of the installation, as in ``/healthz``"""
    gpus: list[str] = []
    """The GPU instances that report"""
    checks: dict[str, readiness.Check]
    """What was checked, by part. ``postgres`` alone keeps the platform from nothing that an invocation needs"""
    job_leader: str = ""
    """The process that leads the queue of trainings; '' = none does. Functions run without it"""
    job_leader_fails: str = ""
    """What goes wrong with that process, so that trainings may not start or end; '' = nothing"""
    warnings: list[str] = []
    """Problems that keep nothing from being served"""


@router.get("/healthz")
async def healthz(gateway: TheGateway) -> Alive:
    """Say that this process answers, and for which installation."""
    return Alive(instance=gateway.instance)


@router.get("/readyz", responses={503: {"model": Readiness}})
async def readyz(gateway: TheGateway, request: Request, response: Response) -> Readiness:
    """
    Say whether the platform can run an invocation: Redis answers and takes writes, a leader holds the lease, and a GPU
    instance has reported. `warnings` say which GPU instances are silent, and what is paused or drained; to an operator's
    key also which functions, and by whom. Without Postgres it is ready, with a warning: functions can be called.
    """
    checks, postgres = await asyncio.gather(readiness.checks(gateway), readiness.postgres(gateway))
    ready = all(check.ok for check in checks.values())
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = "1"
    if postgres is not None:
        checks["postgres"] = postgres
    unrecorded = [readiness.POSTGRES_AWAY] if postgres is not None and not postgres.ok else []
    gpus, beside = checks["gpus"], await readiness.beside(gateway, named=await _operates(gateway, request))
    reporting = gpus.detail.split(", ") if gpus.ok else []
    if reporting:
        states = ((name, beside.held.get(name)) for name in reporting)
        gpus.detail = ", ".join(name if state is None else f"{name} ({state})" for name, state in states)
    return Readiness(
        ready=ready,
        instance=gateway.instance,
        gpus=reporting,
        checks=checks,
        job_leader=beside.job_leader,
        job_leader_fails=beside.job_leader_fails,
        warnings=[*_warnings(), *unrecorded, *beside.warnings],
    )


async def _operates(gateway: Gateway, request: Request) -> bool:
    """Whether the request, which needs no key, has an operator's key or session."""
    try:
        return is_operator(await caller_of(gateway, request.scope, Scope.ADMIN))
    except (Unauthorised, Forbidden, redis.RedisError, OSError):
        return False


def _warnings() -> list[str]:
    if _SUPERVISOR is None or os.getppid() == _SUPERVISOR:
        return []
    return ["the supervisor was killed, so no process that ends is restarted; run `smore up`"]


@router.get("/metrics", response_class=Response, dependencies=[Scraper])
async def metrics() -> Response:
    """
    Read this gateway's metrics in Prometheus' text form. They name the functions of all projects, so they need a key of
    the project `default` with the scope `read`; `SMORE_API__METRICS=open` needs no key.
    """
    return Response(generate_latest(GATEWAY), media_type=CONTENT_TYPE_LATEST)
