"""
Whether this process lives and the platform can work, without a key (load balancers have none); and this process's
metrics.
"""

import os
import time
from typing import Any

import redis
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from api.deps import Gateway, Scraper, TheGateway
from api.server.bodies import BoundedRoute

router = APIRouter(tags=["health"], route_class=BoundedRoute)

#: Who started this process, where that is a supervisor (it says so in the environment); it is another process's child
#: once that is gone.
_SUPERVISOR = os.getppid() if "SUPERVISOR_ENABLED" in os.environ else None

#: A check that takes longer counts as failed.
_PATIENCE_S = 2.0
#: However often it is asked, a write is tried once in so many seconds: where every write is synced it costs the disk.
_WRITE_EVERY_S = 1.0


class Check(BaseModel):
    ok: bool
    detail: str = ""


class Readiness(BaseModel):
    ready: bool
    checks: dict[str, Check]
    #: What is not well and keeps nothing from being served.
    warnings: list[str] = []


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"model": Readiness}})
async def readyz(gateway: TheGateway, response: Response) -> Readiness:
    """
    The platform can run an invocation: Redis answers and takes writes, a leader holds the lease, a GPU instance has
    reported.
    """
    checks = await _checks(gateway)
    ready = all(check.ok for check in checks.values())
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = "1"
    return Readiness(ready=ready, checks=checks, warnings=_warnings())


def _warnings() -> list[str]:
    if _SUPERVISOR is None or os.getppid() == _SUPERVISOR:
        return []
    return ["the supervisor was killed: nobody restarts what ends; `smore up` takes over"]


async def _checks(gateway: Gateway) -> dict[str, Check]:
    prefix = gateway.settings.redis.prefix
    try:
        began = time.perf_counter()
        pipe = gateway.redis.pipeline(transaction=False)
        pipe.get(f"{prefix}leader")
        pipe.smembers(f"{prefix}gpus")
        try_write = began - gateway.wrote_at >= _WRITE_EVERY_S
        if try_write:
            pipe.set(f"{prefix}written", b"1", ex=60)
        leader, gpus, *written = await pipe.execute(raise_on_error=False)
        for answer in (leader, gpus):
            if isinstance(answer, Exception):
                raise answer
        took_s = time.perf_counter() - began
        refusal = next((str(answer) for answer in written if isinstance(answer, Exception)), "")
        if try_write and not refusal:
            gateway.wrote_at = began
        names = sorted(gpu.decode() for gpu in gpus)
        reports: list[Any] = await gateway.redis.mget([f"{prefix}gpu:{name}" for name in names]) if names else []
    except (redis.RedisError, OSError) as error:
        away = Check(ok=False, detail="not known")
        return {
            "redis": Check(ok=False, detail=type(error).__name__),
            "leader": away,
            "gpus": away,
            "subscription": away,
        }
    alive = [name for name, report in zip(names, reports, strict=True) if report is not None]
    return {
        "redis": Check(
            ok=took_s < _PATIENCE_S and not refusal,
            detail=f"it refuses writes: {refusal}" if refusal else f"{took_s * 1000:.1f} ms",
        ),
        "leader": Check(ok=leader is not None, detail="" if leader is not None else "no scheduler holds the lease"),
        "gpus": Check(ok=bool(alive), detail=", ".join(alive) or "no GPU instance reports"),
        "subscription": Check(ok=gateway.waiters.connected.is_set()),
    }


@router.get("/metrics", response_class=Response, dependencies=[Scraper])
async def metrics() -> Response:
    """
    This process's metrics in Prometheus' text form, of the functions of all projects: for keys of the project `default`
    with the scope `read`. `SMORE_API__METRICS=open` asks for no key.
    """
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
