"""
Invocations over HTTP: the hot path (:func:`invoke`), and what became of an invocation.

``invoke`` is the pass of a call through api/invoke: request, admission, submission, wait, response. It is a plain
handler, from headers and bytes to bytes, without pydantic; its description for OpenAPI is written by hand below.
"""

import time
from typing import TYPE_CHECKING, Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.dates import moment
from api.deps import Gateway, InvokeKey, ReadKey, TheGateway
from api.errors import ResultDropped
from api.invoke.admit import authenticate, check_after_expiry, refusals_counted
from api.invoke.request import IDEMPOTENCY, MAX_WAIT_S, check_id, read, wait_s
from api.invoke.response import (
    JSON_TYPE,
    BytesResponse,
    accepted,
    late_header,
    respond,
    respond_several,
    server_timing,
    settled,
)
from api.invoke.submit import submit, submit_and_wait, submit_several
from api.schemas import invocations as schemas
from api.schemas.problem import Problem
from api.server.bodies import BoundedRoute
from smore.domain.errors import Conflict
from smore.domain.invocation import TERMINAL, State
from smore.messages.results import decode_result
from smore.redis.records import InvocationRecord, Reply

if TYPE_CHECKING:
    from smore.postgres.history.values import Execution, PastInvocation

router = APIRouter(prefix="/v1", tags=["invocations"], route_class=BoundedRoute)


# ---- running a function ----------------------------------------------------------------------------------------------


async def invoke(request: Request, function: str) -> Response:
    """
    Run a function. Waits for the result (200), or answers 202 with `Location` when `Prefer: respond-async` asks for it
    or the wait ends.

    An error in the input is found before anything is queued, and names its place.
    """
    began = time.perf_counter()
    gateway: Gateway = request.scope["app"].state.gateway
    key = authenticate(gateway, request.scope)
    entry, spec = await gateway.function(key.project, function)
    with refusals_counted(entry.key):
        call = await read(request, gateway, key, entry, spec)
        if call.several:
            return await respond_several(call, await submit_several(call))
        submitted = await (submit(call) if call.wait_s is None else submit_and_wait(call, call.wait_s, began))
        return await respond(call, submitted)


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
                "Server-Timing": {"schema": {"type": "string"}, "description": "queue, schedule, dispatch, load, run"},
                "Smore-Late-Ms": {
                    "schema": {"type": "number"},
                    "description": "Milliseconds after its deadline at which it ended; absent where it was in time",
                },
            },
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string"},
                            "state": {"type": "string"},
                            "late_ms": {"type": "number"},
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
    return BytesResponse(200, _shown(record, reply), request.scope["request_id"], _headers(reply))


def _headers(reply: Reply | None) -> list[tuple[bytes, bytes]]:
    if reply is None:
        return [JSON_TYPE]
    timing = (b"server-timing", server_timing(reply, decode_result(reply.result)))
    return [JSON_TYPE, timing, *late_header(reply)]


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
            "late_ms": max(0, reply.finished_us - record.deadline_us) / 1000,
        }
        result = decode_result(reply.result)
        if result.form == "json":
            document["output"] = orjson.Fragment(result.body)
        elif result.form == "error":
            document["detail"] = result.message
    return orjson.dumps(document)


@router.get("/invocations/{invocation}/result", response_model=schemas.Invocation, responses={410: {"model": Problem}})
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
    return settled(reply, request_id, await check_after_expiry(gateway, record.function, reply))


@router.get("/invocations/{invocation}/executions", response_model_exclude_none=True)
async def get_executions(gateway: TheGateway, caller: ReadKey, invocation: str) -> schemas.Executions:
    """
    Its attempts, each with the degradation that was predicted and the one that was measured. From the history: a second
    behind.
    """
    check_id(invocation)
    executions = await run_in_threadpool(lambda: gateway.reader().executions(caller.project, invocation))
    if not executions and await _record(gateway, caller.project, invocation) is None:
        await run_in_threadpool(_past, gateway, caller.project, invocation)
    return schemas.Executions(executions=[_execution(execution) for execution in executions])


def _execution(run: "Execution") -> schemas.Execution:
    predicted = run.predicted
    return schemas.Execution(
        attempt=run.attempt,
        gpu=run.gpu,
        state=run.state,
        cause=run.cause,
        cold=run.cold,
        run_s=run.run_s,
        batch=run.batch,
        rows=run.rows,
        co_runners=run.co_runners or [],
        jobs=run.jobs or [],
        degradation=run.degradation,
        predicted=None
        if predicted is None
        else schemas.Degradation(
            function=predicted.get("function_degradation", 0.0),
            function_upper=predicted.get("function_degradation_upper", 0.0),
            training=predicted.get("training_degradation", 0.0),
            training_upper=predicted.get("training_degradation_upper", 0.0),
            known=predicted.get("known", False),
        ),
        started_at=moment(run.started_at) if run.started_at is not None else None,
        finished_at=moment(run.finished_at) if run.finished_at is not None else None,
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
    page, next_cursor = gateway.reader().invocations(
        caller.project, function=function, state=state, limit=limit, cursor=cursor
    )
    return schemas.Invocations(invocations=[_from_past(past) for past in page], next_cursor=next_cursor)


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
        late_ms=0.0 if past.finished_at is None else round(max(0.0, past.finished_at - past.deadline_at) * 1e3, 3),
    )
