"""
Admission: what refuses an invocation before the queue has it, and the errors that a caller gets.

:func:`admit` refuses what the gateway itself decides (a drain, a function larger than its project may keep warm).
The rest is decided with the submission in one call of smore/redis/lua/enqueue.lua; :func:`refusal` says it in the API's
errors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, cast

import redis
from starlette.types import Scope as HttpScope

from api.dates import FIRST_S, LAST_S, moment
from api.deps import Gateway
from api.errors import CHANGED_S, SOON_S, WHERE_LIMITS
from smore.domain.access import Scope
from smore.domain.errors import (
    CallerError,
    DeadlineExpired,
    Draining,
    IdempotencyMismatch,
    LimitReached,
    NoLeader,
    Quarantined,
    QueueFull,
    SloInfeasible,
)
from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause, State
from smore.domain.limits import NO_LIMITS, Limits
from smore.messages.wording import duration
from smore.redis.catalog import FunctionEntry, KeyEntry
from smore.redis.gateway_queue import AdmissionCheck, Question
from smore.redis.records import Reply
from smore.redis.submission import NEVER_S, GateAnswer

#: Causes of a failure that lost workers can have brought about.
_LOST: Final = (Cause.ATTEMPT_LIMIT, Cause.DISPATCH_LIMIT)
#: Parts of a request in ``Submission.request_parts``, as :func:`request_parts` writes them.
_PART: Final = " "
#: Of the hash of a part: requests are told apart by it.
_HASH_BYTES: Final = 12
#: What the gate calls a bound of the queue → what is full, with the bound in place of ``{}``.
_FULL: Final[Mapping[str, str]] = {
    "function": "{} invocations of the function wait, as many as its limits.max_pending allows",
    "pending": "{} invocations wait on the whole platform, as many as SMORE_QUEUE__MAX_PENDING allows",
    "payload_bytes": "the inputs that wait would take more than the {} bytes of SMORE_QUEUE__PAYLOAD_BYTES",
    "result_bytes": "the results that are kept take more than the {} bytes of SMORE_QUEUE__RESULT_BYTES",
    "events": "{} events have not been read, as many as SMORE_QUEUE__EVENTS allows: the leader or the history is behind",
    "keys": "Redis holds {} keys, as many as SMORE_QUEUE__KEYS allows",
}
#: What the gate calls a limit → the field that sets it (smore/domain/limits.py).
_LIMITS: Final = {"rate": "rate_per_s", "depth": "depth", "concurrency": "concurrency"}
#: What is added to the bound by which the gate admits where an earliest deadline is named, a part of it and
#: microseconds: others come and estimates change until the caller has sent again, and messages take their time.
_MARGIN: Final = 0.1
_MARGIN_US: Final = 10_000
#: An estimate from here on says nothing: no GPU instance could run it, microseconds.
_NEVER_US: Final = NEVER_S * 1e6


def authenticate(gateway: Gateway, scope: HttpScope) -> KeyEntry | None:
    """
    The key of a request that invokes, also as ``caller`` of its scope; None = it has no key, and perhaps a session
    (:func:`api.deps.caller_of`). Raises Unauthorised, Forbidden.
    """
    authorization = api_key = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = value
        elif name == b"x-api-key":
            api_key = value
    if authorization is None and api_key is None:
        return None
    key = scope["caller"] = gateway.access.caller(authorization, api_key, Scope.INVOKE)
    return key


def admit(gateway: Gateway, entry: FunctionEntry, spec: FunctionSpec) -> Limits:
    """
    The limits of the function's project. Raises Draining, LimitReached where the function alone needs more memory than
    its project may keep warm.
    """
    for target in gateway.catalog.paused:
        if target == "-*" or target == f"-f:{entry.key}":
            what = "The platform" if target == "-*" else f"The function {entry.name}"
            raise Draining(f"{what} is being drained: nothing new is taken.", retry_after_s=CHANGED_S)
    limits = gateway.catalog.limits.get(entry.project, NO_LIMITS)
    most = limits.warm_memory_mib
    if most is not None and spec.profile.memory_mib > most:
        raise LimitReached(
            f"The function needs {spec.profile.memory_mib:g} MiB and its project may keep {most:g} MiB warm. {WHERE_LIMITS}",
            field="warm_memory_mib",
            limit=most,
            retry_after_s=CHANGED_S,
        )
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Afterwards:
    """
    What is known of an invocation that did not succeed. ``check``: what the gate says now of its function, where its
    deadline passed. ``lost_gpu``: the GPU instance whose worker was lost while it held an attempt, '' = none was;
    ``lost_us``: when that worker had reported last.
    """

    check: AdmissionCheck | None = None
    lost_gpu: str = ""
    lost_us: int = 0


async def afterwards(gateway: Gateway, function: str, reply: Reply) -> Afterwards | None:
    """
    What the answer to a call says beyond its end; None where that is nothing, and while Redis is away. ``function``:
    ``<project>/<name>``.
    """
    expired = reply.state == State.EXPIRED
    if not expired and reply.cause not in _LOST:
        return None
    try:
        check = await gateway.queue.ask(Question(id="", function=function, slo_us=1)) if expired else None
        record = await gateway.queue.record(function.partition("/")[0], reply.id) if reply.attempt else None
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    if record is None:
        return Afterwards(check=check)
    return Afterwards(check=check, lost_gpu=record.lost_gpu, lost_us=record.lost_us)


def refusal(admission: GateAnswer, slo_us: int, parts: str = "") -> CallerError:
    """Why the gate did not take it. ``parts``: the request's own, as :func:`request_parts` writes them."""
    match admission.status:
        case "mismatch":
            return _mismatch(admission, parts)
        case "full":
            return QueueFull(full(admission.limit, admission.bound), limit=admission.limit, retry_after_s=SOON_S)
        case "limited":
            return limit_reached(admission.limit, admission.bound, admission.after_us)
        case "infeasible":
            needed_us = admission.earliest_us - admission.now_us
            # When so much of what waits now will have been worked off.
            later_us = needed_us - slo_us if needed_us < _NEVER_US else 0
            named = earliest(admission.now_us, needed_us)
            detail = _infeasible(admission, slo_us, cast("int | None", named.get("earliest_deadline_ms")))
            # With nothing before it. A deadline that is earlier still would be refused however often it is repeated.
            if max(admission.floor_us, admission.cold_us) <= slo_us:
                named["retry_after_s"] = _after_s(later_us)
            return SloInfeasible(detail, **named)
        case "quarantined":
            return Quarantined(retry_after_s=CHANGED_S)
        case "no_leader":
            return NoLeader(retry_after_s=SOON_S)
        case _:
            return DeadlineExpired()


def full(limit: str, bound: float) -> str:
    """That the queue's bound that the gate calls ``limit`` is reached, in a sentence."""
    return f"Too much is waiting already: {_FULL.get(limit, limit).format(f'{bound:.0f}')}."


def _infeasible(admission: GateAnswer, slo_us: int, named_ms: int | None) -> str:
    """That a deadline is too early, which would do, and what takes the time."""
    asked = f"The deadline, {duration(slo_us / 1e6)} after arrival, cannot be met"
    if named_ms is None:
        return f"{asked}: as things are, no GPU instance could load and run it."
    needed_us = admission.earliest_us - admission.now_us
    alone_us = max(admission.floor_us, admission.alone_us)
    alone = f"a run takes {duration(admission.floor_us / 1e6)} at the least"
    offer = f"The earliest deadline that would be accepted, with a margin, is {named_ms} ms"
    if admission.cold_us and admission.cold_us >= needed_us:
        why = f"no instance of the function stands ready, so one is loaded first; {alone}"
    elif needed_us > alone_us:
        wait = duration((needed_us - alone_us) / 1e6)
        reason = "for what comes first or for the budget of a training"
        why = f"{alone}; before it are {wait} on its way and in the queue, {reason}"
        offer = f"{offer}, as long as nothing more comes before it"
    elif admission.alone_us > admission.floor_us:
        why = f"{alone}, and {duration(needed_us / 1e6)} as things are, with nothing before it"
    else:
        why = f"{alone}, on a GPU instance with nothing else to do"
    return f"{asked}: as things are it would end after {duration(needed_us / 1e6)} ({why}). {offer}."


def request_parts(parts: Mapping[str, bytes]) -> str:
    """The names of the parts of a request, without spaces, with a hash of each: which differ, :func:`refusal` says."""
    return _PART.join(f"{name}={blake2b(value, digest_size=_HASH_BYTES).hexdigest()}" for name, value in parts.items())


def _mismatch(admission: GateAnswer, parts: str) -> IdempotencyMismatch:
    """
    Which parts of the request differ from those of the first one with its Idempotency-Key. An older version kept none.
    """
    known, given = (
        dict(part.split("=", 1) for part in text.split(_PART) if part) for text in (admission.known_parts, parts)
    )
    differs = [name for name in known | given if known.get(name) != given.get(name)] if known else []
    what = "is another one" if not known else f"differs in: {', '.join(differs)}"
    if known and not differs:
        what = "has the same parts, written differently: a repetition has the same bytes"
    return IdempotencyMismatch(
        f"This Idempotency-Key was used with another request; this one {what}.", id=admission.known_id, differs=differs
    )


def limit_reached(limit: str, bound: float, after_us: int) -> LimitReached:
    """What the gate calls ``limit`` is ``bound`` and reached."""
    field = _LIMITS[limit]
    return LimitReached(
        f"The project has reached its limit {field} ({bound:g}). {WHERE_LIMITS}",
        field=field,
        limit=bound,
        retry_after_s=_after_s(after_us),
    )


def _after_s(wait_us: float) -> int:
    """For Retry-After: whole seconds, from one to a day."""
    return math.ceil(min(max(1e6, wait_us), 86_400e6) / 1e6)


def earliest(now_us: float, needed_us: float) -> dict[str, object]:
    """
    The earliest deadline that is named wherever one is: whoever sends again at once with it is let in, and is usually
    in time. From now, in whole milliseconds, and as an instant; nothing where it is not known.

    ``needed_us``: the bound by which the gate admits, which knows no margin. Any numbers will do.
    """
    if not 0 < needed_us < _NEVER_US:
        return {}
    from_us = min(max(FIRST_S * 1e6, now_us), LAST_S * 1e6)
    named_ms = math.ceil((needed_us * (1 + _MARGIN) + _MARGIN_US) / 1000)
    return {"earliest_deadline_ms": named_ms, "earliest_deadline_at": moment((from_us + named_ms * 1000) / 1e6)}
