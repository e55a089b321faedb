"""
What became of a call as an HTTP answer of the native API. Bytes are concatenated: a JSON result is never parsed on its
way.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import orjson
from starlette.responses import Response

from api.dates import moment
from api.errors import SOON_S, STATUS, TRACEBACK, Ended, outcome
from api.invoke.admit import Afterwards, afterwards, earliest
from api.invoke.request import Call
from api.invoke.submit import Submitted
from api.request_log import inputs_refused
from smore.domain.errors import CallerError
from smore.domain.function import WorkClass
from smore.domain.invocation import State
from smore.messages.results import Result, decode_result
from smore.messages.wording import duration, worker_lost
from smore.redis.catalog import FunctionEntry
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
class AnsweredRun:
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


def _run(call: Call, submitted: Submitted) -> AnsweredRun:
    return AnsweredRun(id=submitted.id, function=call.entry.name, revision=submitted.revision)


async def respond(call: Call, submitted: Submitted) -> Response:
    """The answer to a call with one input. Raises :class:`Ended` for an ending without output."""
    if submitted.reply is None:
        response = accepted(_run(call, submitted), submitted.state, call.gateway.durability, call.request_id)
        if call.wait_s is None and not submitted.replayed:
            response.headers["Preference-Applied"] = "respond-async"
    else:
        after = await afterwards(call.gateway, call.entry.key, submitted.reply)
        run = _run(call, submitted)
        response = settled(submitted.reply, run, call.request_id, after, replayed=submitted.replayed)
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
    finished, replayed = True, False
    parts: list[bytes] = []
    codes: Counter[str] = Counter()
    expired: Afterwards | None = None
    for submitted in submissions:
        if isinstance(submitted, CallerError):
            call.gateway.refused.count(call.entry.key, submitted.code)
            codes[submitted.code] += 1
            parts.append(_refused(submitted, call.entry))
            continue
        replayed = replayed or submitted.replayed
        if submitted.reply is not None:
            reply = submitted.reply
            # The gate's answer is the same for all inputs; only those that a worker was lost with have more to say.
            after = expired if expired is not None and reply.attempt == 0 else None
            after = after or await afterwards(call.gateway, call.entry.key, reply)
            if reply.attempt == 0:
                expired = after
            if reply.state != State.SUCCEEDED:
                codes[outcome(reply.state, reply.cause)[1]] += 1
            parts.append(item(reply, _run(call, submitted), after))
        else:
            finished = False
            parts.append(b'{%b,"state":"%b","status":202}' % (_run(call, submitted).head(), submitted.state.encode()))
    inputs_refused(
        request_id=call.request_id,
        project=call.key.project,
        key_id=call.key.id,
        function=call.entry.name,
        codes=codes,
    )
    headers = [JSON_TYPE, *([(b"idempotency-replayed", b"true")] if replayed else [])]
    work_class = WorkClass.BATCH if call.bulk else WorkClass.STANDARD
    about = work_class.encode(), call.gateway.durability.encode()
    body = b'{"invocations":[%b],"class":"%b","durability":"%b"}' % (b",".join(parts), *about)
    return BytesResponse(200 if finished else 202, body, call.request_id, headers)


def _refused(error: CallerError, entry: FunctionEntry) -> bytes:
    """An input that was not queued: it has no id."""
    details = {key: value for key, value in error.details.items() if key != "retry_after_s"}
    shown = {
        "id": "",
        "function": entry.name,
        "revision": entry.revision,
        "state": State.REJECTED,
        "status": STATUS.get(error.code, 400),
        "code": error.code,
        "cause": error.code,
        "detail": str(error),
    }
    return orjson.dumps(details | shown, default=str)


def settled(
    reply: Reply, run: AnsweredRun, request_id: str, after: Afterwards | None = None, *, replayed: bool = False
) -> Response:
    """
    200 with the output. Raises :class:`Ended` for an ending without one, which says what ``after`` knows and whether it is
    ``replayed``.
    """
    result = result_of(reply, after, replayed=replayed)
    headers = [(b"server-timing", server_timing(reply, result)), *late_header(reply)]
    if result.form == "raw":
        headers = [
            RAW_TYPE,
            *headers,
            (b"smore-outputs", result.shapes.encode()),
            (b"smore-invocation", reply.id.encode()),
            (b"smore-function", run.function.encode()),
            (b"smore-revision", b"%d" % run.revision),
            (
                b"smore-run",
                b"gpu=%b;attempt=%d;arrival=%d;deadline=%d;finished=%d"
                % (reply.gpu.encode(), reply.attempt, reply.arrival_us, reply.deadline_us, reply.finished_us),
            ),
        ]
        return BytesResponse(200, result.body, request_id, headers)
    return BytesResponse(
        200,
        b'{%b,"state":"succeeded",%b,"late_ms":%b,"output":%b}'
        % (run.head(), _members(reply, result), late_ms(reply), result.body),
        request_id,
        [JSON_TYPE, *headers],
    )


def late_ms(reply: Reply) -> bytes:
    """Milliseconds after its deadline at which it ended, as a JSON number; 0 = in time."""
    return b"%.3f" % (reply.late_us / 1000) if reply.late_us else b"0"


def late_header(reply: Reply) -> list[tuple[bytes, bytes]]:
    """``Smore-Late-Ms`` where it ended after its deadline."""
    return [(b"smore-late-ms", late_ms(reply))] if reply.late_us else []


def result_of(reply: Reply, after: Afterwards | None = None, *, replayed: bool = False) -> Result:
    """The result of an invocation that succeeded. Raises as :func:`settled` does."""
    result = decode_result(reply.result)
    if reply.state != State.SUCCEEDED:
        error = _ended(reply, result, after)
        error.details["replayed"] = replayed
        raise error
    return result


def _about(reply: Reply, result: Result) -> dict[str, object]:
    """Which attempt ended, why, where and when, and, of one that ran, whether it was a cold start."""
    ran = reply.state == State.SUCCEEDED or result.run_us
    return {
        "attempt": reply.attempt,
        "cause": reply.cause,
        "gpu": reply.gpu,
        **({"cold": result.cold} if ran else {}),
        "arrival_at": moment(reply.arrival_us / 1e6),
        "deadline_at": moment(reply.deadline_us / 1e6),
        "finished_at": moment(reply.finished_us / 1e6),
    }


def _members(reply: Reply, result: Result) -> bytes:
    """The same as members of a JSON object."""
    return orjson.dumps(_about(reply, result))[1:-1]


def accepted(run: AnsweredRun, state: str, durability: str, request_id: str) -> Response:
    """202: the invocation goes on."""
    body = b'{%b,"state":"%b","durability":"%b"}' % (run.head(), state.encode(), durability.encode())
    return BytesResponse(202, body, request_id, [JSON_TYPE, (b"location", b"/v1/invocations/" + run.id.encode())])


def _ended(reply: Reply, result: Result, after: Afterwards | None) -> Ended:
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
    if result.field:
        details["field"] = result.field
    if status == 503:
        details["retry_after_s"] = SOON_S
    named = _believable(reply, after)
    return Ended(_in_words(reply, result, after, named.get("earliest_deadline_ms")) or None, **details, **named)


def _believable(reply: Reply, after: Afterwards | None) -> dict[str, object]:
    """
    The earliest deadline that would be accepted now, of an invocation that expired. Nothing where it is no longer than
    the one that was just missed, unless a lost worker was the reason.
    """
    if after is None or after.check is None or not after.check.promises or reply.state != State.EXPIRED:
        return {}
    named = earliest(after.check.now_us, after.check.promised_us)
    had_ms = (reply.deadline_us - reply.arrival_us) / 1000
    return named if named and (after.lost_gpu or cast(int, named["earliest_deadline_ms"]) > had_ms) else {}


def _in_words(reply: Reply, result: Result, after: Afterwards | None, named_ms: object) -> str:
    """What the end said, and for an invocation that expired or lost its worker what is known beside it."""
    sentences = [result.message] if result.message else []
    if reply.state == State.EXPIRED:
        allowed, took = reply.deadline_us - reply.arrival_us, reply.finished_us - reply.arrival_us
        waited = f", of which it waited {duration((reply.started_us - reply.arrival_us) / 1e6)}"
        sentences.append(
            f"It was to end {duration(allowed / 1e6)} after its arrival and was given up after {duration(took / 1e6)}"
            f"{waited if reply.started_us else ' of waiting'}."
        )
        if after is not None and after.check is not None and after.check.floor_us:
            sentences.append(f"A run takes {duration(after.check.floor_us / 1e6)} at the least.")
    if after is not None and after.lost_gpu:
        sentences.append(worker_lost(after.lost_gpu, after.lost_us / 1e6))
    if named_ms is not None:
        sentences.append(f"A deadline of {named_ms} ms would be accepted now, as long as nothing more comes before it.")
    return " ".join(sentences)


def item(reply: Reply, run: AnsweredRun, after: Afterwards | None = None) -> bytes:
    """One input of several, as JSON; ``status`` is what a call of its own would have been answered with."""
    result = decode_result(reply.result)
    if reply.state == State.SUCCEEDED:
        parts = (run.head(), _members(reply, result), late_ms(reply), result.body)
        return b'{%b,"state":"succeeded",%b,"status":200,"late_ms":%b,"output":%b}' % parts
    error = _ended(reply, result, after)
    details = {key: value for key, value in error.details.items() if key != "retry_after_s"}
    known = _about(reply, result) | {"function": run.function, "revision": run.revision, "detail": str(error)}
    return orjson.dumps(details | known)


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
