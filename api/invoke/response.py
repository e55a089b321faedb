"""
Endings as bytes: an invocation's reply turned into an HTTP answer, by concatenation (a JSON result is never parsed on
its way).
"""

import math
from datetime import UTC, datetime

import orjson
from starlette.responses import Response

from api.errors import Ended, outcome
from smore.domain.errors import (
    CallerError,
    DeadlineExpired,
    IdempotencyMismatch,
    LimitReached,
    QueueFull,
    SloInfeasible,
)
from smore.domain.invocation import State
from smore.messages.stream import Result, decode_result
from smore.redis.gateway_queue import AdmissionCheck
from smore.redis.records import Reply
from smore.redis.submission import Admission

JSON_TYPE = (b"content-type", b"application/json")
#: What the gate calls a limit → the field that sets it (smore/domain/limits.py).
_LIMITS = {"rate": "rate_per_s", "depth": "depth", "concurrency": "concurrency"}
RAW_TYPE = (b"content-type", b"application/octet-stream")
#: An estimate from here on says nothing: a thousand years, in microseconds.
_NEVER_US = 1e9 * 365.25 * 86_400 * 1000
#: The first and the last second that a date can be of, epoch.
_FIRST_S, _LAST_S = -62_135_596_800.0, 253_402_300_799.0


class Answer(Response):
    """A response whose headers are bytes already: Starlette's own would encode them one by one."""

    def __init__(self, status: int, body: bytes, request_id: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [*headers, (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id.encode())]


def settled(reply: Reply, request_id: str, gate: AdmissionCheck | None = None) -> Response:
    """
    200 with the output. Raises :class:`Ended` for an ending without one; ``gate``: what it says now, of one that was
    too late.
    """
    result = result_of(reply, gate)
    timing = (b"server-timing", server_timing(reply, result))
    if result.form == "raw":
        headers = [
            RAW_TYPE,
            timing,
            (b"smore-outputs", result.shapes.encode()),
            (b"smore-invocation", reply.id.encode()),
        ]
        return Answer(200, result.body, request_id, headers)
    return Answer(
        200,
        b'{"id":"%b","state":"succeeded","output":%b}' % (reply.id.encode(), result.body),
        request_id,
        [JSON_TYPE, timing],
    )


def result_of(reply: Reply, gate: AdmissionCheck | None = None) -> Result:
    """What it came to. Raises as :func:`settled` does."""
    result = decode_result(reply.result)
    if reply.state != State.SUCCEEDED:
        raise _ended(reply, result, gate)
    return result


def accepted(id_: str, state: str, durability: str, request_id: str) -> Response:
    """202: it goes on."""
    body = b'{"id":"%b","state":"%b","durability":"%b"}' % (id_.encode(), state.encode(), durability.encode())
    return Answer(202, body, request_id, [JSON_TYPE, (b"location", b"/v1/invocations/" + id_.encode())])


def _ended(reply: Reply, result: Result, gate: AdmissionCheck | None) -> Ended:
    status, code = outcome(reply.state, reply.cause)
    details: dict[str, object] = {
        "status": status,
        "code": code,
        "id": reply.id,
        "state": reply.state,
        "cause": reply.cause,
    }
    if status in (429, 503):
        details["retry_after_s"] = 1
    if gate is not None and reply.state == State.EXPIRED:
        details |= earliest(gate.now_us, gate.needed_us)
    return Ended(result.message or None, **details)


def item(reply: Reply, gate: AdmissionCheck | None = None) -> bytes:
    """One of several, as JSON; ``status`` is what a call of its own would have been answered with."""
    result = decode_result(reply.result)
    if reply.state == State.SUCCEEDED:
        return b'{"id":"%b","state":"succeeded","status":200,"output":%b}' % (reply.id.encode(), result.body)
    error = _ended(reply, result, gate)
    return orjson.dumps(
        {key: value for key, value in error.details.items() if key != "retry_after_s"} | {"detail": str(error)}
    )


def earliest(now_us: float, needed_us: float) -> dict[str, object]:
    """
    The earliest deadline that would be accepted, from now and as an instant; nothing where it is not known. Any numbers
    will do.
    """
    if not 0 < needed_us < _NEVER_US:
        return {}
    from_us = min(max(_FIRST_S * 1e6, now_us), _LAST_S * 1e6)
    return {
        "earliest_deadline_ms": math.ceil(needed_us / 1000),
        "earliest_deadline_at": moment((from_us + needed_us) / 1e6),
    }


def server_timing(reply: Reply, result: Result) -> bytes:
    """Milliseconds by phase; a phase that did not happen is 0."""
    claimed, started = reply.claimed_us or reply.finished_us, reply.started_us
    return b"queue;dur=%.3f, schedule;dur=%.3f, dispatch;dur=%.3f, load;dur=%.3f, run;dur=%.3f" % (
        max(0, claimed - reply.arrival_us - reply.schedule_us) / 1000,
        reply.schedule_us / 1000,
        max(0, started - claimed) / 1000 if started else 0.0,
        result.load_us / 1000,
        result.run_us / 1000,
    )


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
            return SloInfeasible(**earliest(admission.now_us, needed_us), retry_after_s=_after_s(needed_us - slo_us))
        case _:
            return DeadlineExpired()


def limit_reached(limit: str, bound: float, after_us: int) -> LimitReached:
    """What the gate calls ``limit`` is ``bound`` and reached."""
    field = _LIMITS[limit]
    return LimitReached(
        f"The project has reached its limit {field} ({bound:g}).",
        field=field,
        limit=bound,
        retry_after_s=_after_s(after_us),
    )


def _after_s(wait_us: float) -> int:
    """For Retry-After: whole seconds, from one to a day."""
    return math.ceil(min(max(1e6, wait_us), 86_400e6) / 1e6)


def moment(at: float) -> datetime:
    """Epoch seconds as what JSON writes in RFC 3339; the first or the last date that there is for what lies beyond."""
    return datetime.fromtimestamp(min(max(_FIRST_S, at), _LAST_S), UTC)
