"""Whether the platform can run an invocation, check by check; used by both REST interfaces."""

import time
from typing import Any

import redis

from api.deps import Gateway
from api.schemas.fields import Schema
from smore.messages.overrides import pauses
from smore.messages.reports import readable
from smore.messages.wording import paused, silent
from smore.postgres.answering import answers
from smore.redis import fleet
from smore.redis.job_queue import failing, health_keys, no_leader

#: Seconds after which a check counts as failed.
_PATIENCE_S = 2.0
#: Seconds between two test writes, however often readiness is asked: a synced write costs the disk.
_WRITE_EVERY_S = 1.0
#: Seconds between two questions to Postgres, which starts a process for each, and how long it may take.
_ASK_POSTGRES_EVERY_S, _POSTGRES_PATIENCE_S = 1.0, 1.0

#: The warning while Postgres is away.
POSTGRES_AWAY = (
    "Postgres does not answer. Functions can be called. What changes something, and what reads keys, trainings or the"
    " history, is refused with 503 (unavailable, part postgres) until it is back."
)


class Check(Schema):
    """Whether a part of the platform works."""

    ok: bool
    """Whether this part is there and works"""
    detail: str = ""
    """What was found, or what is the matter, in words"""


class Beside(Schema):
    """What keeps no invocation from being served, or what people have decided."""

    job_leader: str = ""
    """The process that leads the queue of trainings; '' = none"""
    job_leader_fails: str = ""
    """What goes wrong with that process; '' = nothing"""
    warnings: list[str] = []
    """Problems that keep nothing from being served"""
    held: dict[str, str] = {}
    """GPU instance → ``paused`` or ``drained``"""


async def beside(gateway: Gateway, *, named: bool) -> Beside:
    """
    Who leads the queue of trainings, what is paused or drained, and which GPU instances are silent. ``named``: whether
    functions and keys may be named.
    """
    prefix = gateway.settings.redis.prefix
    try:
        pipe = gateway.redis.pipeline(transaction=False)
        pipe.mget([f"{prefix}job:leader", f"{prefix}job:refused", *health_keys(prefix)])
        pipe.smembers(f"{prefix}paused")
        pipe.hgetall(f"{prefix}paused:by")
        pipe.hgetall(f"{prefix}seen")
        (leader, refused, *health), members, by, raw = await pipe.execute()
        seen = fleet.seen_at(raw)
        reports: list[Any] = await gateway.redis.mget([f"{prefix}gpu:{gpu}" for gpu in seen]) if seen else []
    except (redis.RedisError, OSError):
        return Beside()
    reporting = {gpu for gpu, report in zip(seen, reports, strict=True) if report is not None}
    unreadable = [gpu for gpu, report in zip(seen, reports, strict=True) if report is not None and not readable(report)]
    fails = failing(*health) if leader is not None else ""
    unled = [no_leader(refused.decode() if refused is not None else "")] if leader is None else []
    by_people = pauses(members, by)
    # Paused and drained is drained.
    held = sorted((pause.drains, pause.name) for pause in by_people if pause.scope == "gpu")
    return Beside(
        job_leader=leader.decode() if leader is not None else "",
        job_leader_fails=fails,
        warnings=[
            *unled,
            *([f"The leader of the queue of trainings fails: {fails}. See `smore logs control`."] if fails else []),
            *(
                f"The report of {gpu} cannot be read, so it counts as silent: restart its GPU worker."
                for gpu in unreadable
            ),
            *silent(fleet.silent(seen, reporting, time.time())),
            *paused(by_people, named=named),
        ],
        held={name: "drained" if drains else "paused" for drains, name in held},
    )


async def postgres(gateway: Gateway) -> Check | None:
    """
    Whether Postgres answers, asked at most once a second; None = none is configured, or only the driver knows where it
    is. Not one of :func:`checks`: invocations run without it.
    """
    url, now = gateway.settings.postgres.url, time.perf_counter()
    if url is None:
        return None
    if now - gateway.asked_postgres_at >= _ASK_POSTGRES_EVERY_S:
        gateway.asked_postgres_at = now
        gateway.postgres_answers = await answers(url, _POSTGRES_PATIENCE_S)
    if gateway.postgres_answers is None:
        return None
    return Check(ok=gateway.postgres_answers, detail="" if gateway.postgres_answers else "it does not answer")


async def checks(gateway: Gateway) -> dict[str, Check]:
    """Redis answers and takes writes, a leader holds the lease, a GPU instance has reported, the replies arrive."""
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
        found: list[Any] = await gateway.redis.mget(
            [f"{prefix}leader:process", f"{prefix}leader:refused", *(f"{prefix}gpu:{name}" for name in names)]
        )
        (process, refused), reports = found[:2], found[2:]
    except (redis.RedisError, OSError) as error:
        away = Check(ok=False, detail="not known")
        return {
            "redis": Check(ok=False, detail=type(error).__name__),
            "leader": away,
            "gpus": away,
            "subscription": away,
        }
    alive = [name for name, report in zip(names, reports, strict=True) if report is not None and readable(report)]
    if leader is not None:
        leads = process.decode() if process is not None else ""
    else:
        leads = f"no scheduler may lead: {refused.decode()}" if refused is not None else "no scheduler holds the lease"
    return {
        "redis": Check(
            ok=took_s < _PATIENCE_S and not refusal,
            detail=f"Redis refuses writes: {refusal}" if refusal else f"{took_s * 1000:.1f} ms",
        ),
        "leader": Check(ok=leader is not None, detail=leads),
        "gpus": Check(ok=bool(alive), detail=", ".join(alive) or "no GPU instance reports"),
        "subscription": Check(ok=gateway.waiters.connected.is_set()),
    }
