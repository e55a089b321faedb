"""
The Open Inference Protocol v2: a function is a model, a revision its version; unmodified clients of Triton and KServe
can call it.

The protocol's REST paths, with Triton's extensions for binary tensors, the model repository, model configuration and
statistics. An answer is 200 or an error, whose body serves both protocols (api/errors.py: hybrid). ``infer`` is a plain
handler, like the native ``invoke``, and uses the same steps in api/invoke; its OpenAPI description is written by hand
below.
"""

import asyncio
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import placing, readiness
from api.deps import AdminKey, Gateway, ReadKey, TheGateway, TheTrail, caller_of
from api.errors import NotReady, StillRunning, Unsupported
from api.invoke.admit import afterwards, authenticate
from api.invoke.request import Call, read_body
from api.invoke.response import JSON_TYPE, RAW_TYPE, BytesResponse, late_header, result_of, server_timing
from api.invoke.submit import Submitted, submit_and_wait
from api.openinference import codec
from api.openinference.request import read_inference
from api.schemas.fields import Schema
from api.schemas.problem import Problem
from api.server.bodies import BoundedRoute, read_json
from api.server.invocation_description import DEADLINES, HEADERS, header, idempotency_key
from smore.domain.access import Scope
from smore.domain.errors import InvalidInput, NotFound, Unavailable
from smore.domain.function import FunctionSpec, RevisionState, TensorSpec
from smore.domain.invocation import Cause
from smore.domain.tensors import BYTES, DATATYPES
from smore.messages.reports import WarmState
from smore.redis.catalog import FunctionEntry

if TYPE_CHECKING:
    from smore.postgres.history.values import Totals

router = APIRouter(prefix="/v2", tags=["open inference protocol"], route_class=BoundedRoute)

EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)
#: Seconds after which the caller of a load that has not ended gets 503, and seconds between two looks at the reports of
#: the GPU instances.
LOAD_S = 60.0
_LOOK_S = 0.1
#: Largest body of a call to the model repository, bytes.
_MAX_DOCUMENT = 1 << 20
#: A larger answer is made in a worker thread, unless making it only joins bytes.
_LARGE_ANSWER = 256 << 10

_MODEL = "/models/{model}"
_VERSION = "/models/{model}/versions/{version}"


# ---- the server ------------------------------------------------------------------------------------------------------


class Server(Schema):
    """What this server is."""

    name: str
    """The name of the software: ``smore``"""
    version: str
    """The version of the installed package"""
    extensions: list[str]
    """Extensions of the protocol that it speaks"""


class Live(Schema):
    """That this process answers."""

    live: bool
    """Always ``true``: else there is no answer"""


class Ready(Schema):
    """That the platform can run an invocation."""

    ready: bool
    """Always ``true``: else the answer is a 503"""


@router.get("")
async def server_metadata() -> Server:
    """Read the name, the version and the extensions of this server."""
    try:
        version = installed("smore-platform")
    except PackageNotFoundError:
        version = "unknown"
    return Server(name="smore", version=version, extensions=list(EXTENSIONS))


@router.get("/health/live")
async def server_live() -> Live:
    """Say that this process answers. It needs no key."""
    return Live(live=True)


@router.get("/health/ready", responses={503: {"model": Problem}})
async def server_ready(gateway: TheGateway) -> Ready:
    """Say whether the platform can run an invocation. It needs no key."""
    failed = [(name, check) for name, check in (await readiness.checks(gateway)).items() if not check.ok]
    if failed:
        raise Unavailable("; ".join(f"{name}: {check.detail}" for name, check in failed), part=failed[0][0])
    return Ready(ready=True)


# ---- models ----------------------------------------------------------------------------------------------------------


class Model(Schema):
    """A function as a model of the protocol."""

    name: str
    """The name of the function that serves as the model"""
    versions: list[str]
    """The revision that takes the traffic. Earlier ones whose first run succeeded can be named too"""
    platform: str
    """Always ``smore``, which runs it"""
    inputs: tuple[TensorSpec, ...]
    """The tensors that it takes"""
    outputs: tuple[TensorSpec, ...]
    """The tensors that it returns"""


class ModelReady(Schema):
    """That a model can be called."""

    name: str
    """The name of the function that serves as the model"""
    ready: bool
    """Always ``true``: else the answer is an error"""


async def _revision(
    gateway: Gateway, project: str, model: str, version: str | None
) -> tuple[FunctionEntry, FunctionSpec]:
    """
    The function with the spec of the named revision (None = the one that takes its traffic). Raises FunctionNotFound,
    NotFound, NotReady.
    """
    entry, spec = await gateway.function(project, model)
    if version is None or version == str(entry.revision):
        return entry, spec
    absent = NotFound(f"There is no revision {version[:20]} of {model}.")
    if not (version.isascii() and version.isdigit() and len(version) < 10):
        raise absent
    number = int(version)
    states = await run_in_threadpool(
        lambda: {stored.number: stored.state for stored in gateway.store().revisions(project, model)}
    )
    if number not in states:
        raise absent
    named = await gateway.catalog.revision(entry.key, number)
    if states[number] is not RevisionState.ACTIVE or named is None:
        raise NotReady(f"The first run of revision {number} has not succeeded.")
    return msgspec.structs.replace(entry, revision=number), named


def _outputs(spec: FunctionSpec) -> tuple[TensorSpec, ...] | None:
    return codec.JSON_OUTPUTS if spec.inputs is None else spec.outputs


@router.get("/models/stats")
async def statistics(gateway: TheGateway, caller: ReadKey) -> dict[str, Any]:
    """Read the statistics of all functions, as `/v2/models/{model}/stats` gives them for one."""
    totals = await run_in_threadpool(lambda: gateway.reader().totals(caller.project))
    return {"model_stats": [_statistics(revision) for revision in totals]}


@router.get(_MODEL)
async def model_metadata(gateway: TheGateway, caller: ReadKey, model: str) -> Model:
    """Read the tensors of a function."""
    return _metadata(model, *await _revision(gateway, caller.project, model, None))


@router.get(_VERSION)
async def version_metadata(gateway: TheGateway, caller: ReadKey, model: str, version: str) -> Model:
    """Read the tensors of one revision of a function."""
    return _metadata(model, *await _revision(gateway, caller.project, model, version))


def _metadata(model: str, entry: FunctionEntry, spec: FunctionSpec) -> Model:
    inputs = codec.JSON_INPUTS if spec.inputs is None else spec.inputs
    return Model(
        name=model,
        versions=[str(entry.revision)],
        platform="smore",
        inputs=inputs or (),
        outputs=_outputs(spec) or (),
    )


@router.get(_MODEL + "/ready")
async def model_ready(gateway: TheGateway, caller: ReadKey, model: str) -> ModelReady:
    """
    A function is ready once the first run of a revision has succeeded, warm or cold: a cold one loads when it is
    called. 409 before.
    """
    await _revision(gateway, caller.project, model, None)
    return ModelReady(name=model, ready=True)


@router.get(_VERSION + "/ready")
async def version_ready(gateway: TheGateway, caller: ReadKey, model: str, version: str) -> ModelReady:
    """Say whether the first run of a revision has succeeded."""
    await _revision(gateway, caller.project, model, version)
    return ModelReady(name=model, ready=True)


@router.get(_MODEL + "/config")
async def model_config(gateway: TheGateway, caller: ReadKey, model: str) -> dict[str, Any]:
    """
    Read what Triton's model configuration can say of a function. `dims` leave out the rows, of which a batch may have
    `max_batch_size`.
    """
    return _config(model, *await _revision(gateway, caller.project, model, None))


@router.get(_VERSION + "/config")
async def version_config(gateway: TheGateway, caller: ReadKey, model: str, version: str) -> dict[str, Any]:
    """Read the model configuration of one revision of a function."""
    return _config(model, *await _revision(gateway, caller.project, model, version))


def _config(model: str, entry: FunctionEntry, spec: FunctionSpec) -> dict[str, Any]:
    rows = spec.inputs is not None

    def tensors(declared: tuple[TensorSpec, ...] | None) -> list[dict[str, object]]:
        return [
            {
                "name": one.name,
                "data_type": _data_type(one.datatype),
                "dims": list(one.shape[1:] if rows else one.shape),
            }
            for one in declared or ()
        ]

    return {
        "name": model,
        "platform": "smore",
        "backend": "smore",
        "max_batch_size": spec.max_batch if rows else 0,
        "version_policy": {"specific": {"versions": [entry.revision]}},
        "input": tensors(codec.JSON_INPUTS if spec.inputs is None else spec.inputs),
        "output": tensors(_outputs(spec)),
        "dynamic_batching": {
            "priority_levels": 0,
            "default_priority_level": 0,
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "allow_timeout_override": True,
                "default_timeout_microseconds": int(_deadline_s(entry, spec) * 1e6),
                "max_queue_size": spec.max_pending,
            },
        },
        "model_transaction_policy": {"decoupled": False},
    }


def _deadline_s(entry: FunctionEntry, spec: FunctionSpec) -> float:
    return spec.deadline_s if entry.deadline_s is None else entry.deadline_s


def _data_type(datatype: str) -> str:
    """The datatype in Triton's configuration, which says STRING for BYTES."""
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


# ---- statistics ------------------------------------------------------------------------------------------------------


@router.get(_MODEL + "/stats")
async def model_statistics(gateway: TheGateway, caller: ReadKey, model: str) -> dict[str, Any]:
    """
    Read the statistics of a function: counts and nanoseconds of all invocations that ever ended, for every revision
    that was called. They are a second behind.

    `queue` ends when a worker starts; `compute_infer` is the run of the batch; the rest (loading, moving tensors) is
    `compute_input`.
    """
    await _revision(gateway, caller.project, model, None)
    totals = await run_in_threadpool(lambda: gateway.reader().totals(caller.project, model))
    return {"model_stats": [_statistics(revision) for revision in totals]}


@router.get(_VERSION + "/stats")
async def version_statistics(gateway: TheGateway, caller: ReadKey, model: str, version: str) -> dict[str, Any]:
    """Read the statistics of one revision of a function."""
    entry, _ = await _revision(gateway, caller.project, model, version)
    totals = await run_in_threadpool(lambda: gateway.reader().totals(caller.project, model))
    return {"model_stats": [_statistics(revision) for revision in totals if revision.revision == entry.revision]}


def _statistics(totals: "Totals") -> dict[str, Any]:
    def spent(count: int, seconds: float) -> dict[str, int]:
        return {"count": count, "ns": max(0, round(seconds * 1e9))}

    nothing = spent(0, 0.0)
    return {
        "name": totals.function,
        "version": str(totals.revision),
        "last_inference": round(totals.last_at * 1000),
        "inference_count": totals.rows,
        "execution_count": sum(batch.batches for batch in totals.batches),
        "inference_stats": {
            "success": spent(totals.succeeded, totals.total_s),
            "fail": spent(totals.failed, totals.failed_s),
            "queue": spent(totals.succeeded, totals.wait_s),
            "compute_infer": spent(totals.succeeded, totals.run_s),
            "compute_input": spent(totals.succeeded, totals.total_s - totals.wait_s - totals.run_s),
            "compute_output": nothing,
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "batch_stats": [
            {
                "batch_size": batch.rows,
                "compute_input": nothing,
                "compute_infer": spent(batch.batches, batch.run_s),
                "compute_output": nothing,
            }
            for batch in totals.batches
        ],
    }


# ---- the repository --------------------------------------------------------------------------------------------------


class IndexEntry(Schema):
    """A function in the list of models."""

    name: str
    """The name of the function that serves as the model"""
    version: str
    """The revision that takes the traffic; '' = none does"""
    state: str
    """``READY``, or ``UNAVAILABLE`` where no revision takes traffic"""
    reason: str
    """Why it is unavailable, in words; '' = it is ready"""


async def _document(request: Request) -> dict[str, Any]:
    """The body, a JSON object; an empty body counts as an empty object."""
    body = await read_body(request, _MAX_DOCUMENT)
    document = read_json(body) if body else {}
    if not isinstance(document, dict):
        raise InvalidInput.at("body", "an object is expected")
    return document


def _parameters(document: dict[str, Any]) -> dict[str, Any]:
    parameters = document.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidInput.at("parameters", "an object is expected")
    return parameters or {}


def _json_body(properties: dict[str, object]) -> dict[str, object]:
    schema = {"type": "object", "properties": properties}
    return {"requestBody": {"required": False, "content": {"application/json": {"schema": schema}}}}


_PARAMETERS = {"type": "object", "description": "Parameters of the protocol's extensions, by name"}
_PLACE: dict[str, object] = {
    "parameters": {
        **_PARAMETERS,
        "properties": {"gpu": {"type": ["string", "null"], "description": "The name of one GPU instance; null = all"}},
    }
}


@router.post(
    "/repository/index",
    openapi_extra=_json_body({"ready": {"type": "boolean", "description": "Only those that are ready"}}),
)
async def repository_index(gateway: TheGateway, caller: ReadKey, request: Request) -> list[IndexEntry]:
    """List the project's functions. One without a revision whose first run succeeded is unavailable."""
    only_ready = (await _document(request)).get("ready", False)
    if not isinstance(only_ready, bool):
        raise InvalidInput.at("ready", "true or false is expected")
    entries = sorted(
        (one for one in gateway.catalog.functions.values() if one.project == caller.project), key=lambda one: one.name
    )
    index = []
    for entry in entries:
        if entry.revision:
            index.append(IndexEntry(name=entry.name, version=str(entry.revision), state="READY", reason=""))
        elif not only_ready:
            index.append(
                IndexEntry(
                    name=entry.name, version="", state="UNAVAILABLE", reason="no revision's first run has succeeded"
                )
            )
    return index


async def _gpu(request: Request) -> str | None:
    """The GPU instance to load or unload on (None = all). Raises Unsupported if the request has a config or files."""
    parameters = _parameters(await _document(request))
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise Unsupported(
                "A model is deployed with `smore deploy`, not by its loading: no config or files are taken.", field=name
            )
    gpu = parameters.get("gpu")
    if gpu is not None and not isinstance(gpu, str):
        raise InvalidInput.at("parameters.gpu", "the name of a GPU instance is expected")
    return gpu


@router.post("/repository" + _MODEL + "/load", openapi_extra=_json_body(_PLACE), response_class=Response)
async def load(gateway: TheGateway, caller: AdminKey, trail: TheTrail, request: Request, model: str) -> Response:
    """
    Load a function before it is called. The answer comes when an instance of it is loaded; it is 503 where none is
    within a minute.
    """
    gpu = await _gpu(request)
    entry, gpus = await placing.warm(gateway, caller, trail, model, gpu)
    until = time.monotonic() + LOAD_S
    while not await run_in_threadpool(_is_warm, gateway, entry, gpus):
        if time.monotonic() > until:
            raise Unavailable
        await asyncio.sleep(_LOOK_S)
    return Response()


def _is_warm(gateway: Gateway, entry: FunctionEntry, gpus: list[str]) -> bool:
    return any(
        (instance.function, instance.revision) == (entry.key, entry.revision)
        and instance.state is not WarmState.LOADING
        for report in gateway.fleet().reports()
        if report.gpu in gpus
        for instance in report.warm
    )


@router.post("/repository" + _MODEL + "/unload", openapi_extra=_json_body(_PLACE), response_class=Response)
async def unload(gateway: TheGateway, caller: AdminKey, trail: TheTrail, request: Request, model: str) -> Response:
    """Unload idle instances of a function. It stays deployed and ready: the next call waits for its load."""
    await placing.offload(gateway, caller, trail, model, await _gpu(request))
    return Response()


# ---- what is not served ----------------------------------------------------------------------------------------------


async def _unsupported() -> None:
    raise Unsupported(
        "This extension (shared memory, trace or log settings, text generation) is not served here; GET /v2 names those"
        " that are."
    )


for _path in (
    "/systemsharedmemory/{rest:path}",
    "/cudasharedmemory/{rest:path}",
    "/trace/setting",
    "/logging",
    _MODEL + "/trace/setting",
    _MODEL + "/generate",
    _MODEL + "/generate_stream",
    _VERSION + "/generate",
    _VERSION + "/generate_stream",
):
    router.add_api_route(_path, _unsupported, methods=["GET", "POST"], include_in_schema=False)


# ---- inference -------------------------------------------------------------------------------------------------------


async def infer(request: Request, model: str, version: str | None = None) -> Response:
    """
    Run the function and wait for its end: at most until its deadline, and at most a minute (504 with the invocation's
    id).

    JSON, or JSON and then raw tensors (`Inference-Header-Content-Length`), `gzip` or `deflate` both ways. `parameters`:
    `timeout` (microseconds) and `smore_deadline_ms` set the deadline; `priority` is taken and has no effect, the
    nearest deadline goes first (there is one level, 0, and the answer to a request that named another says so);
    `binary_data_output` asks for all outputs as bytes. A function of JSON values has one input, `input`, BYTES of shape
    [1]: a JSON text.
    """
    began = time.perf_counter()
    gateway: Gateway = request.scope["app"].state.gateway
    key = authenticate(gateway, request.scope) or await caller_of(gateway, request.scope, Scope.INVOKE)
    entry, spec = await _revision(gateway, key.project, model, version)
    with gateway.refused.counted(entry.key):
        call, inference = await read_inference(request, gateway, key, entry, spec)
        submitted = await _submit(call, began)
        if submitted.reply is None:
            raise StillRunning(
                f"The wait has ended; ask at /v1/invocations/{submitted.id}.",
                id=submitted.id,
                state=submitted.state,
                replayed=submitted.replayed,
            )
        after = await afterwards(gateway, entry.key, submitted.reply)
        result = result_of(submitted.reply, after, replayed=submitted.replayed)
        coding = _coding(next((value for name, value in request.scope["headers"] if name == b"accept-encoding"), b""))
        if (coding or not inference.binary) and len(result.body) > _LARGE_ANSWER:
            body, size = await run_in_threadpool(_written, result, inference, entry, coding)
        else:
            body, size = _written(result, inference, entry, coding)
    headers = [
        RAW_TYPE if size is not None else JSON_TYPE,
        (b"server-timing", server_timing(submitted.reply, result)),
        (b"smore-invocation", submitted.id.encode()),
        *late_header(submitted.reply),
    ]
    if size is not None:
        headers.append((b"inference-header-content-length", b"%d" % size))
    if coding:
        headers.append((b"content-encoding", coding.encode()))
    if submitted.replayed:
        headers.append((b"idempotency-replayed", b"true"))
    return BytesResponse(200, body, call.request_id, headers)


async def _submit(call: Call, began: float) -> Submitted:
    """
    Submit and wait. If Redis lost the input in a restart, it is submitted again with the rest of its deadline.
    """
    wait_s = call.wait_s or 0.0
    submitted = await submit_and_wait(call, wait_s, began)
    while submitted.reply is not None and submitted.reply.cause == Cause.PAYLOAD_LOST:
        waited_s = time.perf_counter() - began
        left_us = call.slo_us - int(waited_s * 1e6)
        if left_us <= 0:
            break
        submitted = await submit_and_wait(replace(call, slo_us=left_us), max(0.0, wait_s - waited_s), began)
    return submitted


def _written(result: Any, inference: codec.Inference, entry: FunctionEntry, coding: str) -> tuple[bytes, int | None]:
    body, size = codec.write(result, inference, entry.name, entry.revision)
    return codec.compress(body, coding) if coding else body, size


def _coding(accepted: bytes) -> str:
    """
    The content coding of the answer, '' = none: the one in ``accepted``, if it names a single one.

    HTTP libraries send a list of several by default, and tensors hardly shrink; such an answer is not compressed.
    """
    wanted = accepted.decode("latin-1").strip().lower()
    return wanted if wanted in codec.CODINGS else ""


# For the API's description only: api/app.py hands these requests to infer() itself.
async def _infer_model(request: Request, model: str) -> Response:
    return await infer(request, model)


async def _infer_version(request: Request, model: str, version: str) -> Response:
    return await infer(request, model, version)


def _object(required: tuple[str, ...], **properties: object) -> dict[str, object]:
    return {"type": "object", "required": list(required), "properties": properties}


_TEXT = {"type": "string"}
_ID = {**_TEXT, "description": "The caller's own id of the request, which the answer repeats"}
_TENSOR = {
    "name": _TEXT,
    "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "datatype": {"type": "string", "enum": list(DATATYPES)},
}
_BINARY = {
    "type": "integer",
    "minimum": 0,
    "description": "Bytes after the JSON that are this tensor; then there is no `data`",
}
_WHOLE = _object(
    ("name", "shape", "datatype"),
    **_TENSOR,
    parameters=_object((), binary_data_size=_BINARY),
    data={"type": "array", "items": {}},
)
_REQUEST = _object(
    ("inputs",),
    id=_ID,
    parameters=_PARAMETERS,
    inputs={
        "type": "array",
        "minItems": 1,
        "description": "The tensors, each with its data or with the number of its bytes behind the JSON",
        "items": _WHOLE,
    },
    outputs={
        "type": "array",
        "description": "The tensors that are wanted; absent = all",
        "items": _object(("name",), name=_TEXT, parameters=_object((), binary_data={"type": "boolean"})),
    },
)
_ANSWER = _object(
    ("model_name", "model_version", "outputs"),
    model_name={**_TEXT, "description": "The name of the function that ran"},
    model_version={**_TEXT, "description": "The number of the revision that ran"},
    id=_ID,
    parameters=_PARAMETERS,
    outputs={
        "type": "array",
        "description": "The tensors that the function returned",
        "items": _WHOLE,
    },
)
_BYTES_BODY = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "The JSON, then the tensors whose `binary_data_size` it names",
    }
}


_DESCRIPTION: dict[str, Any] = {
    "parameters": [
        header(
            "Inference-Header-Content-Length",
            "Bytes of the body that are JSON; default: all",
            type="integer",
            minimum=0,
        ),
        header("Content-Encoding", "How the body is compressed: `gzip` or `deflate`"),
        header("Accept-Encoding", "How the answer is to be compressed: `gzip` or `deflate`, alone"),
        idempotency_key("The same body has the same bytes"),
        *DEADLINES,
        header("traceparent", "W3C trace context, kept with the invocation"),
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _REQUEST}, "application/octet-stream": _BYTES_BODY},
    },
    "responses": {
        "200": {
            "description": "The outputs",
            "headers": {
                **HEADERS,
                "Smore-Invocation": {"schema": _TEXT, "description": "The invocation's id"},
                "Inference-Header-Content-Length": {
                    "schema": {"type": "integer"},
                    "description": "Bytes of the body that are JSON, where tensors follow as bytes; absent otherwise",
                },
                "Content-Encoding": {"schema": _TEXT, "description": "As `Accept-Encoding` asked; absent otherwise"},
            },
            "content": {"application/json": {"schema": _ANSWER}, "application/octet-stream": _BYTES_BODY},
        },
        "default": {
            "description": "What went wrong: RFC 9457 and `error`",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        },
    },
    "security": [{"HTTPBearer": []}, {"APIKeyHeader": []}],
}
_HOW: dict[str, Any] = {"methods": ["POST"], "openapi_extra": _DESCRIPTION, "response_model": None}
_HOW["description"] = cleandoc(infer.__doc__ or "")
router.add_api_route(_MODEL + "/infer", _infer_model, name="infer_model", **_HOW)
router.add_api_route(_VERSION + "/infer", _infer_version, name="infer_version", **_HOW)
