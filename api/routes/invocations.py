"""
Invocations over HTTP: the hot path (:func:`invoke`), and what became of an invocation.

``invoke`` is the pass of a call through api/invoke: request, admission, submission, wait, response. It is a plain
handler, from headers and bytes to bytes, without pydantic; its description for OpenAPI is written by hand below.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.auth import listed_projects
from api.dates import moment
from api.deps import CURSOR, AllProjects, Gateway, InvokeKey, OfProject, PageLimit, ReadKey, TheGateway, caller_of
from api.errors import ResultDropped
from api.invoke.admit import afterwards, authenticate
from api.invoke.request import check_id, read, wait_s
from api.invoke.response import (
    JSON_TYPE,
    AnsweredRun,
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
from api.schemas.fields import Moment, Word
from api.schemas.problem import Problem
from api.server.bodies import BoundedRoute
from api.server.invocation_description import (
    ACCEPTED_HEADERS,
    ACCEPTED_OR_SEVERAL,
    CALL,
    ENDED_HEADERS,
    HEADERS,
    MAX_WAIT_S,
    PARAMETERS,
    RAW_HEADERS,
    RESULT_OR_RESULTS,
    header,
)
from smore.domain.access import Scope
from smore.domain.errors import Conflict, InvalidInput
from smore.domain.invocation import TERMINAL, State
from smore.messages.results import decode_result
from smore.redis.records import InvocationRecord, Reply

if TYPE_CHECKING:
    from smore.postgres.history.values import Execution, PastInvocation

router = APIRouter(prefix="/v1", tags=["invocations"], route_class=BoundedRoute)

#: Seconds between two looks at invocations of which any may end, at least and for each of them.
_LOOK_S = 0.05
_LOOK_EACH_S = 0.0005
#: Bytes of invocations in the answer to a wait for any, beyond the first.
_MOST_SHOWN = 8 << 20


# ---- running a function ----------------------------------------------------------------------------------------------


async def invoke(request: Request, function: str) -> Response:
    """
    Run a function. It waits for the result and answers 200. It answers 202 with `Location` where `Prefer:
    respond-async` asks for that, or where the wait ends before the invocation does.

    Tensors and sizes are checked before anything is queued. The records that a handler of JSON values declares are
    checked where it runs, after the invocation has waited, and before the handler gets it. Either way the error is
    `invalid_input`, and `field` names the place.

    `inputs` in place of `input` makes an invocation of each of its values, and each is admitted or refused by itself:
    the answer is a list in their order, 200 where all have ended, 202 where one goes on. One that was refused has no id
    there, the `state` `rejected`, its `cause`, and `earliest_deadline_ms` where its deadline was too early. Where all
    were refused the answer is the first one's refusal.

    A key with the scope `invoke` alone may submit with `respond-async` and cancel; it cannot ask what became of its
    invocations, which needs the scope `read` as well (403 otherwise).
    """
    began = time.perf_counter()
    gateway: Gateway = request.scope["app"].state.gateway
    key = authenticate(gateway, request.scope) or await caller_of(gateway, request.scope, Scope.INVOKE)
    entry, spec = await gateway.function(key.project, function)
    with gateway.refused.counted(entry.key):
        call = await read(request, gateway, key, entry, spec)
        if call.several:
            return await respond_several(call, await submit_several(call))
        submitted = await (submit(call) if call.wait_s is None else submit_and_wait(call, call.wait_s, began))
        return await respond(call, submitted)


_DESCRIPTION: dict[str, object] = {
    "parameters": list(PARAMETERS),
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": CALL},
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
            "headers": {**HEADERS, **RAW_HEADERS},
            "content": {
                "application/json": {"schema": RESULT_OR_RESULTS},
                "application/octet-stream": {
                    "schema": {
                        "type": "string",
                        "format": "binary",
                        "description": "The tensors of the output, as `Smore-Outputs` names them",
                    }
                },
            },
        },
        "202": {
            "description": "It goes on; ask at `Location`. With `inputs`: `invocations`, of which at least one goes on",
            "headers": ACCEPTED_HEADERS,
            "content": {"application/json": {"schema": ACCEPTED_OR_SEVERAL}},
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


@router.get(
    "/invocations/{invocation}",
    response_model=schemas.Invocation,
    response_model_exclude_none=True,
    responses={200: {"headers": ENDED_HEADERS}},
    openapi_extra={"parameters": [header("Prefer", "`wait=N`: as the parameter `wait`; the longer of both counts")]},
)
async def get_invocation(
    gateway: TheGateway,
    caller: ReadKey,
    request: Request,
    invocation: str,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for its end", allow_inf_nan=False)
    ] = 0.0,
) -> Response | schemas.Invocation:
    """
    Read one invocation: its present state, or from the history what became of it. `wait` holds the answer until the
    invocation ends, or so many seconds are over.
    """
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
        if result.run_us:
            document["cold"] = result.cold
        if result.form == "json":
            document["output"] = orjson.Fragment(result.body)
        elif result.form == "error":
            document["detail"] = result.message
            if result.traceback:
                document["traceback"] = result.traceback
            if result.field:
                document["field"] = result.field
    return orjson.dumps(document)


@router.get(
    "/invocations/{invocation}/result",
    response_model=schemas.Invocation,
    responses={
        200: {"headers": {**ENDED_HEADERS, **RAW_HEADERS}},
        202: {
            "description": "It has not ended",
            "headers": ACCEPTED_HEADERS,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Accepted"}}},
        },
        410: {"model": Problem, "description": "`result_dropped`: its result was kept for its time and then dropped"},
    },
)
async def get_result(gateway: TheGateway, caller: ReadKey, request: Request, invocation: str) -> Response:
    """
    Read the result as a synchronous call would have got it. The answer is 202 while there is none, and 410 where the
    platform keeps it no longer.
    """
    record = await _record(gateway, caller.project, invocation)
    if record is None:
        past = await run_in_threadpool(_past, gateway, caller.project, invocation)
        raise ResultDropped(id=invocation, state=past.state.value)
    reply = await gateway.queue.reply(caller.project, invocation)
    request_id: str = request.scope["request_id"]
    if reply is None:
        return accepted(AnsweredRun.of(record), record.state, gateway.durability, request_id)
    return settled(reply, AnsweredRun.of(record), request_id, await afterwards(gateway, record.function, reply))


@router.get("/invocations/{invocation}/executions", response_model_exclude_none=True)
async def get_executions(gateway: TheGateway, caller: ReadKey, invocation: str) -> schemas.Executions:
    """
    List the attempts of an invocation, each with the degradation that was predicted and the one that was measured. They
    come from the history, which is a second behind.
    """
    check_id(invocation)
    executions = await run_in_threadpool(lambda: gateway.reader().executions(caller.project, invocation))
    if not executions and await _record(gateway, caller.project, invocation) is None:
        await run_in_threadpool(_past, gateway, caller.project, invocation)
    return schemas.Executions(executions=[_execution(execution) for execution in executions])


def _execution(run: "Execution") -> schemas.Execution:
    predicted = run.predicted
    return schemas.Execution.of(
        run,
        co_runners=run.co_runners or [],
        jobs=run.jobs or [],
        predicted=None
        if predicted is None
        else schemas.Degradation(
            function=predicted.get("function_degradation", 0.0),
            function_upper=predicted.get("function_degradation_upper", 0.0),
            training=predicted.get("training_degradation", 0.0),
            training_upper=predicted.get("training_degradation_upper", 0.0),
            known=predicted.get("known", False),
        ),
    )


@router.post("/invocations/{invocation}/cancel", response_model=schemas.Invocation, response_model_exclude_none=True)
async def cancel(
    gateway: TheGateway, caller: InvokeKey, request: Request, invocation: str
) -> Response | schemas.Invocation:
    """
    Cancel an invocation. One that runs alone is stopped; of one that runs in a batch the result is discarded. The
    answer is 409 where it has already ended in another way.
    """
    check_id(invocation)
    project, past = caller.project, None
    outcome, state = await gateway.queue.cancel(project, invocation)
    if outcome == "absent":
        past = await run_in_threadpool(_past, gateway, project, invocation)
        state = past.state.value
    if outcome != "cancelled" and state != State.CANCELLED:
        raise Conflict(f"The invocation has ended: {state}.", id=invocation, state=state)
    record = await _record(gateway, project, invocation)
    if record is None:
        return past if past is not None else await run_in_threadpool(_past, gateway, project, invocation)
    reply = await gateway.queue.reply(project, invocation)
    return BytesResponse(200, _shown(record, reply), request.scope["request_id"], [JSON_TYPE])


@router.post("/invocations:wait", response_model=schemas.Invocations, response_model_exclude_none=True)
async def wait_for_any(gateway: TheGateway, caller: ReadKey, request: Request, body: schemas.WaitBody) -> Response:
    """
    Wait until at least one of several invocations has ended, or until `wait_s` is over, and return those that have
    ended. A caller who removes them from the list and asks again gets all in the order in which they end.

    One answer holds about 8 MiB of outputs; further ended invocations are in the next one. The answer is 404 where one
    of the ids is not known.
    """
    project, until = caller.project, time.monotonic() + body.wait_s
    invocations = [(project, id_) for id_ in dict.fromkeys(body.ids)]
    # The more are read at a time, the less often.
    pause_s = max(_LOOK_S, len(invocations) * _LOOK_EACH_S)
    while True:
        states = await gateway.queue.states(invocations)
        gone = [id_ for (_, id_), (record, _) in zip(invocations, states, strict=True) if record is None]
        ended = [_shown(record, reply) for record, reply in states if record is not None and reply is not None]
        past = await run_in_threadpool(_pasts, gateway, project, gone) if gone else []
        ended += [each.model_dump_json(exclude_none=True).encode() for each in past if each.state.value in TERMINAL]
        left_s = until - time.monotonic()
        if ended or left_s <= 0:
            break
        await asyncio.sleep(min(pause_s, left_s))
    size, shown = 0, list[bytes]()
    for document in ended:
        size += len(document)
        if shown and size > _MOST_SHOWN:
            break
        shown.append(document)
    return BytesResponse(200, b'{"invocations":[%b]}' % b",".join(shown), request.scope["request_id"], [JSON_TYPE])


@router.get("/invocations", response_model_exclude_none=True)
def list_invocations(
    gateway: TheGateway,
    caller: ReadKey,
    function: Annotated[
        str | None, Query(pattern=r"^[a-z0-9-]{1,63}$", description="Only invocations of this function")
    ] = None,
    state: Annotated[State | None, Query(description="Only invocations in this state")] = None,
    limit: PageLimit = 100,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9a-f]{32}$", description=CURSOR)] = None,
    project: OfProject = None,
    all_projects: AllProjects = False,
    since: Annotated[Moment | None, Query(description="Only those that arrived at this moment or later")] = None,
    until: Annotated[Moment | None, Query(description="Only those that arrived before this moment")] = None,
    gpu: Annotated[Word | None, Query(description="Only those whose last attempt was on this GPU instance")] = None,
    cause: Annotated[Word | None, Query(description="Only those with this cause")] = None,
) -> schemas.Invocations:
    """
    List the invocations, the newest first. They come from the history: one that has just arrived may be missing for a
    second, and one that runs is shown as dispatched until it ends.
    """
    of = listed_projects(caller, project, all_projects=all_projects)
    if since is not None and until is not None and since >= until:
        raise InvalidInput.at("since", "it is not before until")
    page, next_cursor = gateway.reader().invocations(
        of,
        function=function,
        state=state,
        gpu=gpu,
        cause=cause,
        since=since.timestamp() if since is not None else None,
        until=until.timestamp() if until is not None else None,
        limit=limit,
        cursor=cursor,
    )
    cold = gateway.reader().cold_starts(of, [past.id for past in page])
    return schemas.Invocations(
        invocations=[_from_past(past, cold.get(past.id)) for past in page], next_cursor=next_cursor
    )


async def _record(gateway: Gateway, project: str, id_: str) -> InvocationRecord | None:
    check_id(id_)
    return await gateway.queue.record(project, id_)


def _past(gateway: Gateway, project: str, id_: str) -> schemas.Invocation:
    reader = gateway.reader()
    return _from_past(reader.invocation(project, id_), reader.cold_starts(project, [id_]).get(id_))


def _pasts(gateway: Gateway, project: str, ids: Sequence[str]) -> list[schemas.Invocation]:
    return [_past(gateway, project, id_) for id_ in ids]


def _from_past(past: "PastInvocation", cold: bool | None = None) -> schemas.Invocation:
    return schemas.Invocation.of(
        past,
        late_ms=0.0 if past.finished_at is None else round(max(0.0, past.finished_at - past.deadline_at) * 1e3, 3),
        cold=cold,
    )
