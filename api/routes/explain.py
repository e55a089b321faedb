"""Why an invocation went as it did, and what would become of one, over HTTP: see api/invoke/explain.py."""

from fastapi import APIRouter, Request

from api.auth import project_of
from api.deps import InvokeKey, OfProject, ReadKey, TheGateway
from api.invoke import explain as explanations
from api.invoke.admit import admit
from api.invoke.request import check_id, read_dry_run
from api.schemas import explain as schemas
from api.server.bodies import BoundedRoute
from api.server.invocation_description import CALL_OR_ROWS, DEADLINES, SHAPE
from smore.domain.errors import CallerError, Draining, LimitReached
from smore.domain.limits import NO_LIMITS

router = APIRouter(prefix="/v1", tags=["invocations"], route_class=BoundedRoute)

_DRY_RUN: dict[str, object] = {
    "parameters": [*DEADLINES, SHAPE],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": CALL_OR_ROWS},
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary", "description": "Tensors, as they would be sent"}
            },
        },
    },
}


@router.post("/functions/{function}/invocations:dryRun", openapi_extra=_DRY_RUN, response_model_exclude_none=True)
async def dry_run(gateway: TheGateway, caller: InvokeKey, request: Request, function: str) -> schemas.DryRun:
    """
    Predict what would become of an invocation, and queue nothing: whether it would be admitted, where it would run,
    when it would start and finish, and what it would cost the training. The body and the headers are those of an
    invocation.

    All gateways together let `SMORE_QUEUE__ASKS_PER_S` questions a second through; further ones get 429. The answer is
    503 while no scheduler leads.
    """
    entry, spec = await gateway.function(caller.project, function)
    limits = NO_LIMITS
    held: CallerError | None = None
    try:
        limits = admit(gateway, entry, spec)
    except (Draining, LimitReached) as error:
        held = error
    asked = await read_dry_run(request, gateway, entry, spec)
    return await explanations.dry_run(gateway, entry, spec, asked, limits, held)


@router.get("/invocations/{invocation}/explain", response_model_exclude_none=True)
async def explain(
    gateway: TheGateway, caller: ReadKey, invocation: str, project: OfProject = None
) -> schemas.Explanation:
    """
    Explain why an invocation went as it did. For each attempt: the GPU instances that were considered, their numbers
    and why each was refused, what was predicted and what was measured, and where the time went. For an invocation that
    waits: what it waits for.

    Attempts come from the history, which is a second behind. The answer waits that long for them, and `complete` is
    false where that was not enough.
    """
    check_id(invocation)
    return await explanations.explain(gateway, project_of(caller, project), invocation)
