"""Functions: deploy (a first run decides), rollback, deadline, scaling, loading and unloading."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import placing
from api.address import base_url
from api.auth import is_operator, project_of
from api.deps import (
    AdminKey,
    DeployKey,
    DeployOrAdminKey,
    Gateway,
    Listed,
    OfProject,
    ReadKey,
    ReadOrInvokeKey,
    TheGateway,
    TheTrail,
    Trail,
)
from api.errors import SOON_S, TRACEBACK, CanaryFailed, Malformed, NotReady, UnsupportedMediaType
from api.invoke.admit import refusal
from api.invoke.request import read_body
from api.pauses import pauses_of, set_for
from api.schemas import functions as schemas
from api.server.bodies import BoundedRoute, read_json
from api.server.function_description import describe_function
from smore.blobs import archive
from smore.definition.document import read_document
from smore.definition.outputs import changes, misfit
from smore.domain.artifact import Artifact
from smore.domain.errors import Conflict, Forbidden, InvalidSpec, PayloadTooLarge, QueueFull, SmoreError
from smore.domain.function import NEAR_BOUND, FunctionSpec
from smore.domain.ids import new_id
from smore.domain.invocation import Cause, Encoding, State
from smore.messages.commands import ALL_REVISIONS, Fetch, Offload, Respecify
from smore.messages.results import decode_result
from smore.messages.specs import unpack_tensors
from smore.messages.wording import in_force
from smore.process.observability import logger
from smore.redis.catalog import FunctionEntry, KeyEntry
from smore.redis.submission import Submission

if TYPE_CHECKING:
    from smore.postgres.catalog import Store

log = logger("api.functions")
router = APIRouter(prefix="/v1/functions", tags=["functions"], route_class=BoundedRoute)

#: Seconds in which a canary must have got a GPU instance, loaded and run.
CANARY_S = 120.0
#: The same for an uploaded function, whose blobs may have to be fetched and whose environment may have to be built.
UPLOADED_CANARY_S = 600.0
#: Seconds that the gateway waits beyond that: the platform ends an overdue invocation itself.
_CANARY_MARGIN_S = 5.0
#: Most bytes of a function.yaml as JSON and as YAML; YAML is read slowly, a quarter of a megabyte in about a second.
_MAX_DOCUMENT, _MAX_YAML = 1 << 20, 1 << 18

_YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
_DEPLOY_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"$ref": "#/components/schemas/FunctionBody"}}
            for kind in ("application/json", "application/yaml")
        },
    }
}


# ---- deploying -------------------------------------------------------------------------------------------------------


@router.put(
    "/{function}",
    response_model=schemas.Deployed,
    openapi_extra=_DEPLOY_BODY,
    responses={201: {"model": schemas.Deployed}},
)
async def deploy(
    gateway: TheGateway, caller: DeployKey, trail: TheTrail, request: Request, response: Response, function: str
) -> schemas.Deployed:
    """
    Register a revision of a function, and run its handler's example through the ordinary queue, then two of them
    together where `batching.max_size` allows it. Where that succeeds the revision takes the traffic (201). Where it
    fails (422 `canary_failed`, with the log) the function stays as it was. While it or the platform is paused no first
    run can begin (409). A revision that takes the traffic already is not run again (200).

    `spec.artifact` names an uploaded folder, whose blobs must have been sent (`/v1/blobs`). Deploying is running code:
    the scope `deploy` equals a shell on the GPU workers.
    """
    body = await read_body(request, _MAX_DOCUMENT)
    name, spec = await run_in_threadpool(_read, request.headers.get("content-type", ""), body)
    if name != function:
        raise InvalidSpec.at("metadata.name", f"{name} is not {function}, as in the path")
    if spec.precedence and not is_operator(caller):
        raise Forbidden("spec.slo.precedence: only operators put a function before trainings.")
    if spec.artifact is not None:
        await run_in_threadpool(_check_artifact, gateway, caller.project, spec.artifact)
    store = await run_in_threadpool(gateway.store)
    revision, created = await run_in_threadpool(store.register, caller.project, function, spec)
    measured: dict[str, Any] | None = None
    changed: list[str] = []
    if created:
        try:
            measured = await _canary(gateway, caller.project, caller.id, function, revision, spec)
        except SmoreError as error:
            error.details["serving"] = await run_in_threadpool(
                _settle_failed, gateway, store, caller.project, function, revision, str(error)
            )
            raise
        before = await run_in_threadpool(_activate, store, trail, caller, function, revision, measured)
        changed = changes(before, measured)
        if spec.artifact is not None:
            await run_in_threadpool(_spread, gateway, f"{caller.project}/{function}", revision)
        response.status_code = 201
    now = await run_in_threadpool(store.get_function, caller.project, function)
    log.info("deployed", function=f"{caller.project}/{function}", revision=revision, created=created, key=caller.id)
    shown = _shown(
        FunctionEntry(project=caller.project, name=function, revision=now.revision, deadline_s=now.deadline_s), now.spec
    )
    pauses = await run_in_threadpool(pauses_of, gateway.fleet(), f"{caller.project}/{function}")
    return schemas.Deployed(
        **shown.model_dump(),
        created=created,
        measured=_measured(measured),
        changed=changed,
        warnings=[*map(in_force, pauses), *_scarce(measured or {})],
    )


def _scarce(measured: Mapping[str, Any]) -> list[str]:
    """That the first run came near what an instance may hold of the machine's memory."""
    peak, limit = measured.get("peak_mib") or 0.0, measured.get("limit_mib") or 0.0
    if not limit or peak < NEAR_BOUND * limit:
        return []
    return [
        f"The first run held up to {peak:.0f} of the {limit:.0f} MiB that the instance may hold: a call that needs more"
        " fails with out_of_memory. Raise `resources.gpu_memory`."
    ]


def _measured(measured: Mapping[str, Any] | None) -> schemas.Measured | None:
    return None if measured is None else schemas.Measured.model_validate(measured)


def _settle_failed(gateway: Gateway, store: "Store", project: str, function: str, revision: int, log_text: str) -> int:
    """Nothing of the revision stays loaded. Returns the revision that has the traffic still, 0 = none."""
    _unload(gateway, f"{project}/{function}", revision)
    store.fail_revision(project, function, revision, log_text)
    return store.get_function(project, function).revision


def _unload(gateway: Gateway, function: str, revision: int) -> None:
    """No call of the revision comes any more."""
    fleet = gateway.fleet()
    for report in fleet.reports():
        fleet.send(report.gpu, Offload(version=1, function=function, revision=revision, gone=True))


def _activate(
    store: "Store", trail: Trail, caller: KeyEntry, function: str, revision: int, measured: dict[str, Any]
) -> Mapping[str, Any]:
    """What the first run of the revision that had the traffic before has measured, {} = there was none."""
    before = store.get_function(caller.project, function).revision
    with trail.change(caller, f"function/{function}", {"revision": before}) as change:
        store.activate(caller.project, function, revision, measured)
        change.after = {"revision": revision}
    earlier = store.revisions(caller.project, function)
    return next((each.measured or {} for each in earlier if each.number == before), {})


def _check_artifact(gateway: Gateway, project: str, artifact: Artifact) -> None:
    """Raises InvalidSpec for a blob that is not there, InvalidArtifact for an archive that no worker would unpack."""
    blobs = gateway.blobs()
    missing = sorted(digest for digest in artifact.blobs if blobs.size(project, digest) is None)
    if missing:
        raise InvalidSpec.at("spec.artifact", f"{len(missing)} of its blobs were not uploaded", missing=missing)
    for digest in artifact.blobs:
        blobs.keep(project, digest)
    with blobs.open(project, artifact.code) as file:
        entries = {entry.filename for entry in archive.check(file)}
    if both := sorted(entries & artifact.files.keys()):
        raise InvalidSpec.at("spec.artifact.files", f"{both[0]} is in the code's archive too")


def _spread(gateway: Gateway, function: str, revision: int) -> None:
    """Let the other nodes fetch what the canary has fetched to one, before a caller has to wait for it."""
    fleet = gateway.fleet()
    for report in fleet.reports():
        fleet.send(report.gpu, Fetch(version=1, function=function, revision=revision))


def _read(content_type: str, body: bytes) -> tuple[str, FunctionSpec]:
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _YAML:
        from smore.definition.plain_yaml import read_yaml

        if len(body) > _MAX_YAML:
            what = f"A YAML document may have {_MAX_YAML} bytes; this one has {len(body)}."
            raise PayloadTooLarge(what, limit=_MAX_YAML, size=len(body))
        try:
            raw = read_yaml(body)
        except ValueError as error:
            raise Malformed(f"The body is not YAML that this platform accepts: {error}") from error
    elif kind in ("", "application/json"):
        raw = read_json(body)
    else:
        raise UnsupportedMediaType("Content-Type: application/json or application/yaml is expected.")
    return read_document(raw)


async def _canary(
    gateway: Gateway, project: str, key_id: str, function: str, revision: int, spec: FunctionSpec
) -> dict[str, Any]:
    """
    The measurements of the first run. Raises CanaryFailed with the platform's or the function's message, QueueFull,
    NoLeader, and Conflict while a pause would let it wait.
    """
    pauses = await run_in_threadpool(pauses_of, gateway.fleet(), f"{project}/{function}")
    if paused := [in_force(pause) for pause in pauses if not pause.drains]:
        raise Conflict(f"The first run of the revision cannot begin. {' '.join(paused)} Deploy it again then.")
    within_s = CANARY_S if spec.artifact is None else UPLOADED_CANARY_S
    wanted = Submission(
        id=new_id(),
        function=f"{project}/{function}",
        revision=revision,
        payload=b"",
        slo_us=int(within_s * 1e6),
        channel=gateway.waiters.channel,
        encoding=Encoding.CANARY,
        sync=True,
        key_id=key_id,
        max_pending=max(1, spec.max_pending),
        max_attempts=spec.max_attempts,
        led=True,
    )
    waiter = gateway.waiters.expect(project, wanted.id, within_s + _CANARY_MARGIN_S, told=True)
    try:
        admission = await gateway.queue.enqueue(wanted)
        if admission.status == "no_leader":
            raise refusal(admission, wanted.slo_us)
        if admission.status != "ok":
            raise QueueFull(
                "The queue is full, so the first run of the revision was refused; deploy it again later.",
                retry_after_s=SOON_S,
            )
        reply = await waiter.future
    finally:
        gateway.waiters.forget(waiter)
    if reply is None:
        await gateway.queue.cancel(project, wanted.id)
        raise CanaryFailed(f"It did not end within {within_s:g} s.", cause="timed_out", revision=revision)
    result = decode_result(reply.result)
    if reply.state != State.SUCCEEDED:
        traceback = {TRACEBACK: result.traceback} if result.traceback else {}
        raise CanaryFailed(result.message or None, cause=reply.cause, revision=revision, **traceback)
    measured: dict[str, Any] = orjson.loads(result.body)
    if spec.outputs is not None and "outputs" in measured:
        words = misfit(spec.outputs, unpack_tensors(measured["outputs"]))
        if words:
            raise CanaryFailed(words, cause=Cause.BAD_OUTPUT, revision=revision)
    return measured


# ---- reading, from the mirror in Redis, so that it works while Postgres is away --------------------------------------------


def _shown(entry: FunctionEntry, spec: FunctionSpec | None) -> schemas.Function:
    if spec is None:
        return schemas.Function(name=entry.name, project=entry.project, revision=entry.revision)
    deadline_s = spec.deadline_s if entry.deadline_s is None else entry.deadline_s
    return schemas.Function(
        name=entry.name,
        project=entry.project,
        revision=entry.revision,
        entrypoint=spec.entrypoint,
        deadline_ms=deadline_s * 1000,
        precedence=spec.precedence,
        inputs=spec.inputs,
        outputs=spec.outputs,
        scaling=schemas.Scaling.of(spec),
    )


async def _now(gateway: Gateway, entry: FunctionEntry) -> schemas.Function:
    return _shown(entry, await gateway.catalog.revision(entry.key, entry.revision) if entry.revision else None)


@router.get("")
async def list_functions(gateway: TheGateway, of: Listed) -> schemas.Functions:
    """List the functions of the project, by name."""
    entries = sorted(
        (entry for entry in list(gateway.catalog.functions.values()) if of in (None, entry.project)),
        key=lambda entry: (entry.project, entry.name),
    )
    return schemas.Functions(functions=[await _now(gateway, entry) for entry in entries])


@router.get("/{function}")
async def get_function(
    gateway: TheGateway, caller: ReadKey, function: str, project: OfProject = None
) -> schemas.Function:
    """Read one function: the revision that takes its traffic, its tensors, deadline and scaling."""
    return await _now(gateway, gateway.known_function(project_of(caller, project), function))


@router.get("/{function}/openapi.json", response_model=None)
def get_openapi(gateway: TheGateway, caller: ReadOrInvokeKey, request: Request, function: str) -> dict[str, Any]:
    """
    Describe one function as an OpenAPI document: its input and output, as far as its tensors or the types of its handler
    say them, with the address at which the caller reached the gateway. A key with the scope `read` or `invoke` will do.
    409 where no revision of it takes traffic yet.
    """
    gateway.known_function(caller.project, function)
    now = gateway.store().get_function(caller.project, function)
    if now.spec is None:
        raise NotReady
    revisions = gateway.store().revisions(caller.project, function)
    measured = next((each.measured for each in revisions if each.number == now.revision), None)
    return describe_function(function, now.revision, now.spec, measured or {}, base_url(request))


@router.get("/{function}/revisions")
def list_revisions(gateway: TheGateway, caller: ReadKey, function: str, project: OfProject = None) -> schemas.Revisions:
    """List the revisions of a function, the newest first, with the log of a first run that failed."""
    revisions = gateway.store().revisions(project_of(caller, project), function)
    return schemas.Revisions(
        revisions=[
            schemas.Revision.of(
                revision,
                revision=revision.number,
                entrypoint=revision.spec.entrypoint,
                error=revision.log or None,
                measured=_measured(revision.measured),
                artifact=revision.spec.artifact.digest if revision.spec.artifact is not None else None,
                requirements=list(revision.spec.requirements),
            )
            for revision in revisions
        ]
    )


# ---- changing --------------------------------------------------------------------------------------------------------


def _stored(gateway: Gateway, project: str, name: str) -> schemas.Function:
    now = gateway.store().get_function(project, name)
    return _shown(FunctionEntry(project=project, name=name, revision=now.revision, deadline_s=now.deadline_s), now.spec)


@router.post("/{function}/rollback")
def rollback(
    gateway: TheGateway, caller: DeployOrAdminKey, trail: TheTrail, function: str, body: schemas.RollbackBody
) -> schemas.Function:
    """
    Give the traffic to an earlier revision, of which the first run succeeded. It brings no new code in, so a key with the
    scope `deploy` or `admin` will do.
    """
    before = gateway.store().get_function(caller.project, function).revision
    with trail.change(caller, f"function/{function}", {"revision": before}) as change:
        gateway.store().rollback(caller.project, function, body.revision)
        change.after = {"revision": body.revision}
    return _stored(gateway, caller.project, function)


@router.put("/{function}/slo")
def set_slo(
    gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str, body: schemas.SloBody
) -> schemas.Function:
    """Set the deadline of a function for all of its revisions; null restores the revision's own."""
    before = gateway.store().get_function(caller.project, function).deadline_s
    with trail.change(
        caller, f"function/{function}", {"deadline_ms": None if before is None else before * 1000}
    ) as change:
        gateway.store().set_deadline(
            caller.project, function, None if body.deadline_ms is None else body.deadline_ms / 1000
        )
        change.after = {"deadline_ms": body.deadline_ms}
    return _stored(gateway, caller.project, function)


@router.patch("/{function}")
def change(
    gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str, body: schemas.FunctionChanges
) -> schemas.Function:
    """
    Change how many instances of a function stay loaded, and which rule decides. The change holds until another revision
    takes the traffic; GPU workers learn of it at once.
    """
    changes = body.scaling.model_dump(exclude_none=True)
    with trail.change(caller, f"function/{function}") as changed:
        gateway.store().set_scaling(caller.project, function, changes)
        changed.after = {"scaling": changes}
    now = gateway.store().get_function(caller.project, function)
    fleet = gateway.fleet()
    for report in fleet.reports():
        fleet.send(report.gpu, Respecify(version=1, function=f"{caller.project}/{function}", revision=now.revision))
    return _shown(
        FunctionEntry(project=caller.project, name=function, revision=now.revision, deadline_s=now.deadline_s), now.spec
    )


@router.delete("/{function}", status_code=204)
def delete_function(gateway: TheGateway, caller: DeployKey, trail: TheTrail, function: str) -> None:
    """
    Delete a function with its revisions, its instances and what people have set for it: pauses, drains, a boost, a pin.
    Its waiting invocations fail with `function_deleted`; running ones end.
    """
    fleet, key = gateway.fleet(), f"{caller.project}/{function}"
    before = gateway.store().get_function(caller.project, function).revision
    with trail.change(caller, f"function/{function}", {"revision": before, **set_for(fleet, key)}):
        gateway.store().delete_function(caller.project, function)
        fleet.release(key)
    _unload(gateway, key, ALL_REVISIONS)


@router.post("/{function}/warm", status_code=202)
async def warm(
    gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str, body: schemas.PlaceBody
) -> schemas.Placed:
    """Load a function before it is called, on one GPU instance or on all. The answer names those that were told to."""
    _, gpus = await placing.warm(gateway, caller, trail, function, body.gpu)
    return schemas.Placed(gpus=gpus)


@router.post("/{function}/offload", status_code=202)
async def offload(
    gateway: TheGateway, caller: AdminKey, trail: TheTrail, function: str, body: schemas.PlaceBody
) -> schemas.Placed:
    """
    Unload idle instances of all revisions of a function, on one GPU instance or on all. The answer names those that were
    told to.
    """
    _, gpus = await placing.offload(gateway, caller, trail, function, body.gpu)
    return schemas.Placed(gpus=gpus)
