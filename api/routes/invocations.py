"""
Invocations: the hot path (:func:`invoke`), and what became of one.

``invoke`` is a plain handler, from headers and bytes to bytes, with no model on the way; its description for OpenAPI
stands beside it.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import orjson
import redis
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from prometheus_client import Counter, Histogram

from api import schemas
from api.deps import Gateway, InvokeKey, ReadKey, TheGateway
from api.errors import Ended, ResultDropped, explain
from api.invoke.request import MAX_WAIT_S, Call, read, wait_s
from api.invoke.response import JSON_TYPE, Answer, accepted, item, moment, refusal, server_timing, settled
from api.server.bodies import BoundedRoute
from smore.domain.access import Scope
from smore.domain.errors import CallerError, Conflict, InvocationNotFound
from smore.domain.invocation import TERMINAL, State
from smore.messages.stream import decode_result
from smore.process.observability import E2E_SECONDS, INVOCATIONS, REFUSALS
from smore.process.settings import QueueSettings
from smore.redis.gateway_queue import AdmissionCheck, Question
from smore.redis.records import InvocationRecord, Reply

if TYPE_CHECKING:
    from smore.postgres.history import Execution, PastInvocation

router = APIRouter(prefix="/v1", tags=["invocations"], route_class=BoundedRoute)

_ID = re.compile(r"[0-9a-f]{32}")


# ---- running a function ----------------------------------------------------------------------------------------------


async def invoke(request: Request, function: str) -> Response:
    """
    Run a function. Waits for the result (200), or answers 202 with `Location` when `Prefer: respond-async` asks for it
    or the wait ends.

    An error in the input is found before anything is queued, and names its place.
    """
    began = time.perf_counter()
    scope = request.scope
    gateway: Gateway = scope["app"].state.gateway
    authorization = api_key = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = value
        elif name == b"x-api-key":
            api_key = value
    key = gateway.access.caller(authorization, api_key, Scope.INVOKE)
    entry, spec = await gateway.function(key.project, function)
    try:
        call = await read(request, gateway, key, entry, spec)
        if call.several:
            return await _invoke_several(call)
        return await (_submit(call) if call.wait_s is None else _invoke_one(call, call.wait_s, began))
    except Ended:
        raise
    except CallerError as error:
        REFUSALS.labels(entry.key, error.code).inc()
        raise


async def _invoke_one(call: Call, wait_s: float, began: float) -> Response:
    told = await run(call, wait_s, began)
    if told.replayed:
        return await _replayed(call, told)
    if told.reply is None:
        return accepted(told.id, told.state, call.gateway.durability, call.request_id)
    return settled(told.reply, call.request_id, await gate_now(call.gateway, call.entry.key, told.reply))


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """
    What a caller who waited is to be told: of the invocation ``id`` how it ended, or where it stood when the wait did.

    ``replayed``: an earlier request with this Idempotency-Key made it.
    """

    id: str
    reply: Reply | None
    state: str
    replayed: bool = False


async def run(call: Call, wait_s: float, began: float) -> Told:
    """Queue the call's one input and wait. Raises what the gate refuses it with, ResultDropped."""
    gateway, project, wanted = call.gateway, call.key.project, call.wanted(0)
    waiter = gateway.waiters.expect(project, wanted.id, wait_s, told=True)
    try:
        admission = await gateway.queue.enqueue(wanted)
        if admission.status == "replay":
            return await _earlier(call, admission.known_id)
        if admission.status != "ok":
            raise refusal(admission, wanted.slo_us)
        reply, state = await waiter.future, ""
    finally:
        gateway.waiters.forget(waiter)
    if reply is None:
        reply, state = await _keep(gateway, project, wanted.id)
    if reply is not None:
        if wanted.volatile:
            gateway.queue.forget_payload(wanted.function, wanted.id)
        _e2e(call.entry.key).observe(time.perf_counter() - began)
        _ends(call.entry.key, reply.state).inc()
    return Told(id=wanted.id, reply=reply, state=state)


async def _submit(call: Call) -> Response:
    wanted = call.wanted(0)
    admission = await call.gateway.queue.enqueue(wanted)
    if admission.status == "replay":
        return await _replayed(call, await _earlier(call, admission.known_id))
    if admission.status != "ok":
        raise refusal(admission, wanted.slo_us)
    response = accepted(wanted.id, State.QUEUED, call.gateway.durability, call.request_id)
    response.headers["Preference-Applied"] = "respond-async"
    return response


async def _invoke_several(call: Call) -> Response:
    """Each input is an invocation with an id and a state of its own; one that was refused has no id."""
    gateway, project = call.gateway, call.key.project
    wanted = [call.wanted(position) for position in range(len(call.payloads))]
    waiters = [gateway.waiters.expect(project, one.id, call.wait_s or 0.0, told=True) for one in wanted]
    refusals: list[CallerError] = []
    known: list[str] = []
    parts: list[bytes] = []
    gate: AdmissionCheck | None = None
    finished = True
    try:
        # In one turn of the event loop, and so in one round trip.
        admissions = await asyncio.gather(*(gateway.queue.enqueue(one) for one in wanted))
        for one, waiter, admission in zip(wanted, waiters, admissions, strict=True):
            id_ = one.id
            reply: Reply | None = None
            state = State.QUEUED.value
            if admission.status == "ok":
                if call.wait_s is not None:
                    reply = await waiter.future
                    if reply is None:
                        reply, state = await _keep(gateway, project, id_)
            elif admission.status == "replay":
                id_ = admission.known_id
                known.append(id_)
                earlier = await _known(call, id_)
                reply, state = (None, earlier) if isinstance(earlier, str) else (earlier, earlier.state)
            else:
                refusals.append(refusal(admission, one.slo_us))
                parts.append(_refused(refusals[-1]))
                continue
            if reply is not None:
                _ends(call.entry.key, reply.state).inc()
                gate = gate or await gate_now(gateway, call.entry.key, reply)
                parts.append(item(reply, gate))
            else:
                finished = False
                parts.append(orjson.dumps({"id": id_, "state": state, "status": 202}))
    finally:
        for waiter in waiters:
            gateway.waiters.forget(waiter)
    if len(refusals) == len(wanted):
        raise refusals[0]
    for error in refusals:
        REFUSALS.labels(call.entry.key, error.code).inc()
    headers = [JSON_TYPE, *([(b"idempotency-replayed", b"true")] if known else [])]
    body = b'{"invocations":[%b],"durability":"%b"}' % (b",".join(parts), gateway.durability.encode())
    return Answer(200 if finished else 202, body, call.request_id, headers)


async def gate_now(gateway: Gateway, function: str, reply: Reply) -> AdmissionCheck | None:
    """
    What the gate says now of a function whose invocation was too late: its answer names a deadline that would be
    accepted.
    """
    if reply.state != State.EXPIRED:
        return None
    try:
        return await gateway.queue.ask(Question(id="", function=function, slo_us=1))
    except (redis.ConnectionError, redis.TimeoutError):
        return None


def _refused(error: CallerError) -> bytes:
    """Nothing was queued, so there is no id."""
    details = {key: value for key, value in error.details.items() if key != "retry_after_s"}
    shown = {
        "id": "",
        "state": State.REJECTED,
        "status": 429,
        "code": error.code,
        "cause": error.code,
        "detail": str(error),
    }
    return orjson.dumps(shown | details, default=str)


async def _keep(gateway: Gateway, project: str, id_: str) -> tuple[Reply | None, str]:
    """The caller goes on without waiting: (the ending, if it came at the last moment, the state)."""
    state = await gateway.queue.keep(project, id_)
    return (
        (await gateway.queue.reply(project, id_), state) if state in TERMINAL else (None, state or State.QUEUED.value)
    )


async def _state(gateway: Gateway, project: str, id_: str) -> str:
    record = await gateway.queue.record(project, id_)
    return record.state if record is not None else State.QUEUED.value


async def _known(call: Call, id_: str) -> Reply | str:
    """How what an earlier request with this Idempotency-Key made has ended, or its state. Raises ResultDropped."""
    gateway, project = call.gateway, call.key.project
    reply = await gateway.queue.reply(project, id_)
    if reply is not None:
        return reply
    record = await gateway.queue.record(project, id_)
    if record is None:
        raise ResultDropped(
            "The first request with this Idempotency-Key was served; its result has been dropped.", id=id_
        )
    if call.wait_s is None:
        return record.state
    # It may have come through another gateway, whose channel it then has.
    return await gateway.waiters.wait(project, id_, call.wait_s, told=False) or await _state(gateway, project, id_)


async def _earlier(call: Call, id_: str) -> Told:
    known = await _known(call, id_)
    if isinstance(known, str):
        return Told(id=id_, reply=None, state=known, replayed=True)
    return Told(id=id_, reply=known, state=known.state, replayed=True)


async def _replayed(call: Call, told: Told) -> Response:
    if told.reply is None:
        response = accepted(told.id, told.state, call.gateway.durability, call.request_id)
    else:
        try:
            response = settled(told.reply, call.request_id, await gate_now(call.gateway, call.entry.key, told.reply))
        except Ended as error:
            response = explain(error, call.request_id)
    response.headers["Idempotency-Replayed"] = "true"
    return response


@lru_cache(maxsize=4096)
def _e2e(function: str) -> Histogram:
    return E2E_SECONDS.labels(function)


@lru_cache(maxsize=4096)
def _ends(function: str, state: str) -> Counter:
    return INVOCATIONS.labels(function, state)


_INPUT_DOCUMENT = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "input": {"description": "One input: a JSON value, or `{name: nested lists}` for a function of tensors"},
        "inputs": {
            "type": "array",
            "minItems": 1,
            "items": {},
            "description": "Several, in place of `input`; the answer is a list",
        },
        "deadline_ms": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "From arrival; default: the function's",
        },
    },
}


#: Of the API's description, which is made before the settings are known: the default, and where it is set.
IDEMPOTENCY = (
    f"1 to 255 visible ASCII characters; remembered for {QueueSettings().idempotency_ttl_s / 60:g} minutes, or as"
    " `SMORE_QUEUE__IDEMPOTENCY_TTL_S` says"
)


def _header(name: str, description: str, kind: str = "string") -> dict[str, object]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": kind}, "description": description}


_DESCRIPTION: dict[str, object] = {
    "parameters": [
        _header("Prefer", f"`respond-async`, or `wait=<whole seconds>`, of which at most {MAX_WAIT_S:.0f} are waited"),
        _header("Idempotency-Key", IDEMPOTENCY),
        _header("Smore-Deadline-Ms", "Deadline in milliseconds from arrival", "number"),
        _header("Smore-Shape", "Raw bodies: `name=d0,d1;…`; needed where axes other than the first are free"),
        _header("traceparent", "W3C trace context"),
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _INPUT_DOCUMENT},
            "application/octet-stream": {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "Little-endian tensors in declared order, concatenated",
                }
            },
        },
    },
    "responses": {
        "200": {
            "description": "The result; `invocations` where `inputs` were sent",
            "headers": {
                "Server-Timing": {"schema": {"type": "string"}, "description": "queue, schedule, dispatch, load, run"}
            },
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string"},
                            "state": {"type": "string"},
                            "output": {},
                            "invocations": {"type": "array", "items": {"type": "object"}},
                        },
                    }
                },
                "application/octet-stream": {
                    "schema": {
                        "type": "string",
                        "format": "binary",
                        "description": "`Smore-Outputs`: `name:datatype:d0,d1;…`",
                    }
                },
            },
        },
        "202": {
            "description": "It goes on; ask at `Location`",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string"},
                            "state": {"type": "string"},
                            "durability": {"type": "string"},
                        },
                    }
                }
            },
        },
    },
    "security": [{"HTTPBearer": []}, {"APIKeyHeader": []}],
}

router.add_api_route(
    "/functions/{function}/invocations",
    invoke,
    methods=["POST"],
    name="invoke",
    openapi_extra=_DESCRIPTION,
    response_model=None,
)


# ---- what became of one ----------------------------------------------------------------------------------------------


@router.get("/invocations/{invocation}", response_model=schemas.Invocation, response_model_exclude_none=True)
async def get_invocation(
    gateway: TheGateway,
    caller: ReadKey,
    request: Request,
    invocation: str,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for its end", allow_inf_nan=False)
    ] = 0.0,
) -> Response | schemas.Invocation:
    """An invocation: as it stands, or from the history."""
    project = caller.project
    record = await _record(gateway, project, invocation)
    if record is None:
        return await run_in_threadpool(_past, gateway, project, invocation)
    prefer = request.headers.get("prefer")
    wait = max(wait, (wait_s(prefer.encode("latin-1"), 0.0) or 0.0) if prefer is not None else 0.0)
    reply: Reply | None = None
    if record.state in TERMINAL:
        reply = await gateway.queue.reply(project, invocation)
    elif wait:
        reply = await gateway.waiters.wait(project, invocation, wait, told=False)
        record = await _record(gateway, project, invocation) or record
    return Answer(200, _shown(record, reply), request.scope["request_id"], _headers(reply))


def _headers(reply: Reply | None) -> list[tuple[bytes, bytes]]:
    if reply is None:
        return [JSON_TYPE]
    return [JSON_TYPE, (b"server-timing", server_timing(reply, decode_result(reply.result)))]


def _shown(record: InvocationRecord, reply: Reply | None) -> bytes:
    document: dict[str, object] = {
        "id": record.id,
        "state": record.state,
        "function": record.function.partition("/")[2],
        "revision": record.revision,
        "attempt": record.attempt,
        "gpu": record.gpu,
        "rows": record.rows,
        "arrival_at": moment(record.arrival_us / 1e6),
        "deadline_at": moment(record.deadline_us / 1e6),
    }
    if reply is not None:
        # The reply may be newer than the record.
        document |= {
            "state": reply.state,
            "cause": reply.cause,
            "attempt": reply.attempt,
            "gpu": reply.gpu,
            "finished_at": moment(reply.finished_us / 1e6),
        }
        result = decode_result(reply.result)
        if result.form == "json":
            document["output"] = orjson.Fragment(result.body)
        elif result.form == "error":
            document["detail"] = result.message
    return orjson.dumps(document)


@router.get(
    "/invocations/{invocation}/result", response_model=schemas.Invocation, responses={410: {"model": schemas.Problem}}
)
async def get_result(gateway: TheGateway, caller: ReadKey, request: Request, invocation: str) -> Response:
    """The result as a synchronous call would have got it; 202 while there is none, 410 when it has been dropped."""
    record = await _record(gateway, caller.project, invocation)
    if record is None:
        past = await run_in_threadpool(_past, gateway, caller.project, invocation)
        raise ResultDropped(id=invocation, state=past.state.value)
    reply = await gateway.queue.reply(caller.project, invocation)
    request_id: str = request.scope["request_id"]
    if reply is None:
        return accepted(invocation, record.state, gateway.durability, request_id)
    return settled(reply, request_id, await gate_now(gateway, record.function, reply))


@router.get("/invocations/{invocation}/executions", response_model_exclude_none=True)
async def get_executions(gateway: TheGateway, caller: ReadKey, invocation: str) -> schemas.Executions:
    """
    Its attempts, each with the degradation that was predicted and the one that was measured. From the history: a second
    behind.
    """
    check_id(invocation)
    found = await run_in_threadpool(lambda: gateway.reader().executions(caller.project, invocation))
    if not found and await _record(gateway, caller.project, invocation) is None:
        await run_in_threadpool(_past, gateway, caller.project, invocation)
    return schemas.Executions(executions=[_execution(one) for one in found])


def _execution(one: "Execution") -> schemas.Execution:
    predicted = one.predicted
    return schemas.Execution(
        attempt=one.attempt,
        gpu=one.gpu,
        state=one.state,
        cause=one.cause,
        cold=one.cold,
        run_s=one.run_s,
        batch=one.batch,
        rows=one.rows,
        co_runners=one.co_runners or [],
        jobs=one.jobs or [],
        degradation=one.degradation,
        predicted=None
        if predicted is None
        else schemas.Degradation(
            function=predicted.get("function_degradation", 0.0),
            function_upper=predicted.get("function_degradation_upper", 0.0),
            training=predicted.get("training_degradation", 0.0),
            training_upper=predicted.get("training_degradation_upper", 0.0),
            known=predicted.get("known", False),
        ),
        started_at=moment(one.started_at) if one.started_at is not None else None,
        finished_at=moment(one.finished_at) if one.finished_at is not None else None,
    )


@router.post("/invocations/{invocation}/cancel", response_model=schemas.Invocation, response_model_exclude_none=True)
async def cancel(gateway: TheGateway, caller: InvokeKey, invocation: str) -> schemas.Invocation:
    """Cancel. What runs alone is stopped; what runs in a batch is discarded. 409 when it has ended otherwise."""
    check_id(invocation)
    outcome, state = await gateway.queue.cancel(caller.project, invocation)
    if outcome == "absent":
        state = (await run_in_threadpool(_past, gateway, caller.project, invocation)).state.value
    if outcome != "cancelled" and state != State.CANCELLED:
        raise Conflict(f"The invocation has ended: {state}.", id=invocation, state=state)
    return schemas.Invocation(id=invocation, state=State.CANCELLED, cause="cancelled")


@router.get("/invocations", response_model_exclude_none=True)
def list_invocations(
    gateway: TheGateway,
    caller: ReadKey,
    function: Annotated[str | None, Query(pattern=r"^[a-z0-9-]{1,63}$")] = None,
    state: State | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9a-f]{32}$")] = None,
) -> schemas.Invocations:
    """
    The history, the newest first. What has just arrived may be missing for a second; what runs is told as dispatched
    until it ends.
    """
    found, next_cursor = gateway.reader().invocations(
        caller.project, function=function, state=state, limit=limit, cursor=cursor
    )
    return schemas.Invocations(invocations=[_from_past(one) for one in found], next_cursor=next_cursor)


def check_id(id_: str) -> None:
    if _ID.fullmatch(id_) is None:
        raise InvocationNotFound


async def _record(gateway: Gateway, project: str, id_: str) -> InvocationRecord | None:
    check_id(id_)
    return await gateway.queue.record(project, id_)


def _past(gateway: Gateway, project: str, id_: str) -> schemas.Invocation:
    return _from_past(gateway.reader().invocation(project, id_))


def _from_past(past: "PastInvocation") -> schemas.Invocation:
    return schemas.Invocation(
        id=past.id,
        state=past.state,
        function=past.function,
        revision=past.revision,
        cause=past.cause,
        attempt=past.attempt,
        gpu=past.gpu,
        rows=past.rows,
        arrival_at=moment(past.arrival_at),
        deadline_at=moment(past.deadline_at),
        finished_at=moment(past.finished_at) if past.finished_at is not None else None,
    )
