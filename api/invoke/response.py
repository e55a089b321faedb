"""
What became of a call as an HTTP answer of the native API. Bytes are concatenated: a JSON result is never parsed on its
way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import orjson
from starlette.responses import Response

from api.dates import moment
from api.errors import TRACEBACK, Ended, explain, outcome
from api.invoke.admit import check_after_expiry, earliest
from api.invoke.request import Call
from api.invoke.submit import Submitted
from smore.domain.errors import CallerError
from smore.domain.invocation import State
from smore.messages.results import Result, decode_result
from smore.process.observability import REFUSALS
from smore.redis.catalog import FunctionEntry
from smore.redis.gateway_queue import AdmissionCheck
from smore.redis.records import InvocationRecord, Reply

JSON_TYPE = (b"content-type", b"application/json")
RAW_TYPE = (b"content-type", b"application/octet-stream")


class BytesResponse(Response):
    """A response whose headers are bytes already: Starlette's own would encode them one by one."""

    def __init__(self, status: int, body: bytes, request_id: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [*headers, (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id.encode())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The invocation that an answer is about."""

    id: str
    function: str
    revision: int

    @classmethod
    def of(cls, record: InvocationRecord) -> Self:
        """The invocation of a record."""
        return cls(id=record.id, function=record.function.partition("/")[2], revision=record.revision)

    def head(self) -> bytes:
        """The first members of a JSON object. A function's name needs no escaping."""
        return b'"id":"%b","function":"%b","revision":%d' % (self.id.encode(), self.function.encode(), self.revision)


def _run(call: Call, submitted: Submitted) -> Run:
    return Run(id=submitted.id, function=call.entry.name, revision=submitted.revision)


async def respond(call: Call, submitted: Submitted) -> Response:
    """The answer to a call with one input. Raises :class:`Ended` for an ending without output."""
    if submitted.reply is None:
        response = accepted(_run(call, submitted), submitted.state, call.gateway.durability, call.request_id)
        if call.wait_s is None and not submitted.replayed:
            response.headers["Preference-Applied"] = "respond-async"
    else:
        check = await check_after_expiry(call.gateway, call.entry.key, submitted.reply)
        try:
            response = settled(submitted.reply, _run(call, submitted), call.request_id, check)
        except Ended as error:
            if not submitted.replayed:
                raise
            response = explain(error, call.request_id)
    if submitted.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return response


async def respond_several(call: Call, submissions: Sequence[Submitted | CallerError]) -> Response:
    """
    The answer to a call with several inputs: 200 when all have ended, else 202. Raises the first refusal where all were
    refused.
    """
    refusals = [submitted for submitted in submissions if isinstance(submitted, CallerError)]
    if len(refusals) == len(submissions):
        raise refusals[0]
    check: AdmissionCheck | None = None
    finished, replayed = True, False
    parts: list[bytes] = []
    for submitted in submissions:
        if isinstance(submitted, CallerError):
            REFUSALS.labels(call.entry.key, submitted.code).inc()
            parts.append(_refused(submitted, call.entry))
            continue
        replayed = replayed or submitted.replayed
        if submitted.reply is not None:
            check = check or await check_after_expiry(call.gateway, call.entry.key, submitted.reply)
            parts.append(item(submitted.reply, _run(call, submitted), check))
        else:
            finished = False
            parts.append(b'{%b,"state":"%b","status":202}' % (_run(call, submitted).head(), submitted.state.encode()))
    headers = [JSON_TYPE, *([(b"idempotency-replayed", b"true")] if replayed else [])]
    body = b'{"invocations":[%b],"durability":"%b"}' % (b",".join(parts), call.gateway.durability.encode())
    return BytesResponse(200 if finished else 202, body, call.request_id, headers)


def _refused(error: CallerError, entry: FunctionEntry) -> bytes:
    """An input that was not queued: it has no id."""
    details = {key: value for key, value in error.details.items() if key != "retry_after_s"}
    shown = {
        "id": "",
        "function": entry.name,
        "revision": entry.revision,
        "state": State.REJECTED,
        "status": 429,
        "code": error.code,
        "cause": error.code,
        "detail": str(error),
    }
    return orjson.dumps(shown | details, default=str)


def settled(reply: Reply, run: Run, request_id: str, check: AdmissionCheck | None = None) -> Response:
    """
    200 with the output. Raises :class:`Ended` for an ending without one; ``check``: what the gate says now, where the
    invocation expired.
    """
    result = result_of(reply, check)
    headers = [(b"server-timing", server_timing(reply, result)), *late_header(reply)]
    if result.form == "raw":
        headers = [
            RAW_TYPE,
            *headers,
            (b"smore-outputs", result.shapes.encode()),
            (b"smore-invocation", reply.id.encode()),
            (b"smore-function", run.function.encode()),
            (b"smore-revision", b"%d" % run.revision),
        ]
        return BytesResponse(200, result.body, request_id, headers)
    return BytesResponse(
        200,
        b'{%b,"state":"succeeded",%b,"late_ms":%b,"output":%b}'
        % (run.head(), _when(reply, result), late_ms(reply), result.body),
        request_id,
        [JSON_TYPE, *headers],
    )


def late_ms(reply: Reply) -> bytes:
    """Milliseconds after its deadline at which it ended, as a JSON number; 0 = in time."""
    return b"%.3f" % (reply.late_us / 1000) if reply.late_us else b"0"


def late_header(reply: Reply) -> list[tuple[bytes, bytes]]:
    """``Smore-Late-Ms`` where it ended after its deadline."""
    return [(b"smore-late-ms", late_ms(reply))] if reply.late_us else []


def result_of(reply: Reply, check: AdmissionCheck | None = None) -> Result:
    """The result of an invocation that succeeded. Raises as :func:`settled` does."""
    result = decode_result(reply.result)
    if reply.state != State.SUCCEEDED:
        raise _ended(reply, result, check)
    return result


def _when(reply: Reply, result: Result) -> bytes:
    """Which attempt succeeded, where and when, and whether it was a cold start, as members of a JSON object."""
    about = orjson.dumps(
        {
            "attempt": reply.attempt,
            "gpu": reply.gpu,
            "cold": result.cold,
            "arrival_at": moment(reply.arrival_us / 1e6),
            "deadline_at": moment(reply.deadline_us / 1e6) if reply.deadline_us else None,
            "finished_at": moment(reply.finished_us / 1e6),
        }
    )
    return about[1:-1]


def accepted(run: Run, state: str, durability: str, request_id: str) -> Response:
    """202: the invocation goes on."""
    body = b'{%b,"state":"%b","durability":"%b"}' % (run.head(), state.encode(), durability.encode())
    return BytesResponse(202, body, request_id, [JSON_TYPE, (b"location", b"/v1/invocations/" + run.id.encode())])


def _ended(reply: Reply, result: Result, check: AdmissionCheck | None) -> Ended:
    status, code = outcome(reply.state, reply.cause)
    details: dict[str, object] = {
        "status": status,
        "code": code,
        "id": reply.id,
        "state": reply.state,
        "cause": reply.cause,
    }
    if reply.late_us:
        details["late_ms"] = reply.late_us / 1000
    if result.traceback:
        details[TRACEBACK] = result.traceback
    if status in (429, 503):
        details["retry_after_s"] = 1
    if check is not None and reply.state == State.EXPIRED:
        details |= earliest(check.now_us, check.promised_us)
    return Ended(result.message or None, **details)


def item(reply: Reply, run: Run, check: AdmissionCheck | None = None) -> bytes:
    """One input of several, as JSON; ``status`` is what a call of its own would have been answered with."""
    result = decode_result(reply.result)
    if reply.state == State.SUCCEEDED:
        parts = (run.head(), _when(reply, result), late_ms(reply), result.body)
        return b'{%b,"state":"succeeded",%b,"status":200,"late_ms":%b,"output":%b}' % parts
    error = _ended(reply, result, check)
    details = {key: value for key, value in error.details.items() if key != "retry_after_s"}
    return orjson.dumps(details | {"function": run.function, "revision": run.revision, "detail": str(error)})


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
