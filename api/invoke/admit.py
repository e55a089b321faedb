"""
Admission: what refuses an invocation before the queue has it, and the errors that a caller gets.

:func:`admit` refuses what the gateway itself decides (a drain, a function larger than its project may keep warm).
The rest is decided with the submission in one call of smore/redis/lua/enqueue.lua; :func:`refusal` says it in the API's
errors.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import redis
from starlette.types import Scope as HttpScope

from api.dates import FIRST_S, LAST_S, moment
from api.deps import Gateway
from api.errors import WHERE_LIMITS, Ended
from smore.domain.access import Scope
from smore.domain.errors import (
    CallerError,
    DeadlineExpired,
    Draining,
    IdempotencyMismatch,
    LimitReached,
    NoLeader,
    QueueFull,
    SloInfeasible,
)
from smore.domain.function import FunctionSpec
from smore.domain.invocation import State
from smore.domain.limits import NO_LIMITS, Limits
from smore.process.observability import REFUSALS
from smore.redis.catalog import FunctionEntry, KeyEntry
from smore.redis.gateway_queue import AdmissionCheck, Question
from smore.redis.records import Reply
from smore.redis.submission import NEVER_S, Admission

#: Seconds after which to ask again where a person has to act first.
DRAINING_S: Final = 5
#: What the gate calls a limit → the field that sets it (smore/domain/limits.py).
_LIMITS: Final = {"rate": "rate_per_s", "depth": "depth", "concurrency": "concurrency"}
#: What is added to the bound by which the gate admits where an earliest deadline is named, a part of it and
#: microseconds: others come and estimates change until the caller has sent again, and messages take their time.
_MARGIN: Final = 0.1
_MARGIN_US: Final = 10_000
#: An estimate from here on says nothing: no GPU instance could run it, microseconds.
_NEVER_US: Final = NEVER_S * 1e6


def authenticate(gateway: Gateway, scope: HttpScope) -> KeyEntry:
    """The key of a request that invokes. Raises Unauthenticated, Forbidden."""
    authorization = api_key = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = value
        elif name == b"x-api-key":
            api_key = value
    return gateway.access.caller(authorization, api_key, Scope.INVOKE)


@contextmanager
def refusals_counted(function: str) -> Iterator[None]:
    """Counts what is refused inside; how an accepted invocation ended is no refusal."""
    try:
        yield
    except Ended:
        raise
    except CallerError as error:
        REFUSALS.labels(function, error.code).inc()
        raise


def admit(gateway: Gateway, entry: FunctionEntry, spec: FunctionSpec) -> Limits:
    """
    The limits of the function's project. Raises Draining, LimitReached where the function alone needs more memory than
    its project may keep warm.
    """
    for target in gateway.catalog.paused:
        if target == "-*" or target == f"-f:{entry.key}":
            raise Draining(retry_after_s=DRAINING_S)
    limits = gateway.catalog.limits.get(entry.project, NO_LIMITS)
    most = limits.warm_memory_mib
    if most is not None and spec.profile.memory_mib > most:
        raise LimitReached(
            f"The function needs {spec.profile.memory_mib:g} MiB and its project may keep {most:g} MiB warm. {WHERE_LIMITS}",
            field="warm_memory_mib",
            limit=most,
            retry_after_s=DRAINING_S,
        )
    return limits


async def check_after_expiry(gateway: Gateway, function: str, reply: Reply) -> AdmissionCheck | None:
    """
    What the gate says now of a function whose invocation expired, so that its answer can name a deadline that would be
    accepted; None for any other ending, and while Redis is away.
    """
    if reply.state != State.EXPIRED:
        return None
    try:
        return await gateway.queue.ask(Question(id="", function=function, slo_us=1))
    except (redis.ConnectionError, redis.TimeoutError):
        return None


def refusal(admission: Admission, slo_us: int) -> CallerError:
    """Why the gate did not take it."""
    match admission.status:
        case "mismatch":
            return IdempotencyMismatch(id=admission.known_id)
        case "full":
            return QueueFull(
                f"Too much is waiting already ({admission.limit}).", limit=admission.limit, retry_after_s=1
            )
        case "limited":
            return limit_reached(admission.limit, admission.bound, admission.after_us)
        case "infeasible":
            needed_us = admission.earliest_us - admission.now_us
            # When so much of what waits now will have been worked off.
            later_us = needed_us - slo_us if needed_us < _NEVER_US else 0
            return SloInfeasible(**earliest(admission.now_us, needed_us), retry_after_s=_after_s(later_us))
        case "no_leader":
            return NoLeader(retry_after_s=1)
        case _:
            return DeadlineExpired()


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
