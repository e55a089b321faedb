"""Why an invocation went as it did, and what would become of one, over HTTP: see api/invoke/explain.py."""

from fastapi import APIRouter, Request

from api.deps import InvokeKey, ReadKey, TheGateway
from api.invoke import explain as explanations
from api.invoke.admit import admit
from api.invoke.request import check_id, read_dry_run
from api.schemas import explain as schemas
from api.server.bodies import BoundedRoute
from smore.domain.errors import CallerError, Draining, LimitReached
from smore.domain.limits import NO_LIMITS

router = APIRouter(prefix="/v1", tags=["invocations"], route_class=BoundedRoute)

_DRY_RUN: dict[str, object] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "input": {"description": "The input, as it would be sent"},
                        "rows": {
                            "type": "integer",
                            "minimum": 1,
                            "description": "In place of `input`: how many rows it would have",
                        },
                        "deadline_ms": {
                            "type": "number",
                            "exclusiveMinimum": 0,
                            "description": "From now; default: the function's",
                        },
                    },
                }
            },
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary", "description": "Tensors, as they would be sent"}
            },
        },
    }
}


@router.post("/functions/{function}/invocations:dryRun", openapi_extra=_DRY_RUN, response_model_exclude_none=True)
async def dry_run(gateway: TheGateway, caller: InvokeKey, request: Request, function: str) -> schemas.DryRun:
    """
    Would it be taken, where would it run, when would it start and finish, what would it cost? Takes the body and the
    headers of an invocation, and places nothing.

    Over all gateways so many questions a second as `SMORE_QUEUE__ASKS_PER_S` says, then 429; 503 while no scheduler
    leads.
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
async def explain(gateway: TheGateway, caller: ReadKey, invocation: str) -> schemas.Explanation:
    """
    Why it went as it did: for each attempt the GPU instances that were considered, their numbers and why they were
    refused, what was predicted against what was measured, and where the time went; for one that waits, what it waits
    for.

    Attempts come from the history, which is a second behind: the answer waits for it as long, and says so where it is
    not `complete`.
    """
    check_id(invocation)
    return await explanations.explain(gateway, caller.project, invocation)
