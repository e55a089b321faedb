"""
Which errors each operation answers with, for the OpenAPI document: by what it takes (a key, a name in its path, a body, a
query), and by :data:`ALSO`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from api.deps import Caller, operator
from api.server.invocation_description import REFUSALS
from api.session import FORBIDDEN
from smore.domain.access import Scope

_INVOKE: Final = "POST /v1/functions/{function}/invocations"
_INFER: Final = ("POST /v2/models/{model}/infer", "POST /v2/models/{model}/versions/{version}/infer")
_STILL: Final = "; `still_running`: the wait has ended, the invocation (`id`) goes on"
#: Operations that read the key themselves → the scope that they ask for.
_OWN: Final[Mapping[str, Scope]] = {
    _INVOKE: Scope.INVOKE,
    **dict.fromkeys(_INFER, Scope.INVOKE),
    "GET /v1/blobs/{digest}": Scope.DEPLOY,
}
#: Operations that make what their path names where there is none.
_MAKES: Final = (
    "PUT /v1/functions/{function}",
    "PUT /v1/secrets/{secret}",
    "GET /v1/blobs/{digest}/state",
    "PATCH /v1/blobs/{digest}",
)
#: Name in a path → the code where there is no such thing.
_ABSENT: Final[Mapping[str, str]] = {
    "function": "function_not_found",
    "model": "function_not_found",
    "invocation": "invocation_not_found",
    "digest": "blob_not_found",
}
_STATE: Final = "`conflict`: its state does not allow it"
_LIMIT: Final = "`limit_reached`: a limit of the project (`field`, `limit`)"
#: What an operation answers besides, by status.
ALSO: Final[Mapping[str, Mapping[str, str]]] = {
    _INVOKE: REFUSALS,
    **{name: {**REFUSALS, "504": REFUSALS["504"] + _STILL} for name in _INFER},
    "POST /v1/functions/{function}/invocations:dryRun": {
        "409": "`not_ready`: no revision of the function has passed its first run",
        "415": REFUSALS["415"],
        "429": "`queue_full` (`limit: asks`): too many questions within this second",
        "503": "`unavailable`: no scheduler leads, or a part of the platform is away",
    },
    "GET /v1/invocations/{invocation}/result": {
        status: text for status, text in REFUSALS.items() if status in ("409", "422", "429", "502", "503", "504")
    },
    "GET /v1/gpus:series": {"404": "`not_found`: one of the GPU instances has never reported"},
    "POST /v1/invocations/{invocation}/cancel": {"409": "`conflict`: it has ended in another way (`state`)"},
    "POST /v1/invocations:wait": {"404": "`invocation_not_found`: one of the ids is not known"},
    "PUT /v1/functions/{function}": {
        "409": "`conflict`: it was changed meanwhile",
        "413": "`payload_too_large`; `storage_full`: the project's blobs take up all the room that they may have",
        "422": "`invalid_spec`: `field` names the place. `invalid_artifact`. `canary_failed`: the first run failed (its log in"
        " `detail`)",
    },
    "GET /v1/functions/{function}/openapi.json": {"409": "`not_ready`: no revision of it takes traffic yet"},
    "POST /v1/functions/{function}/rollback": {"409": "`conflict`: the first run of that revision did not succeed"},
    "PATCH /v1/blobs/{digest}": {
        "409": "`conflict`: the upload stands elsewhere (`offset`)",
        "413": "`payload_too_large`, `storage_full`: there is no room for it",
        "422": "`wrong_digest`: what came has another SHA-256. `invalid_input`: `field` names the place",
    },
    "POST /v1/jobs": {
        "422": "`invalid_input`: it could never start on the GPU instances that there are (`field`, `largest`), or `field` names"
        " the place of another mistake. `idempotency_mismatch`",
        "429": f"{_LIMIT}. `slo_infeasible`: no end can be promised by then (`earliest`)",
    },
    "POST /v1/jobs:dryRun": {"429": _LIMIT},
    "POST /v1/jobs/attach": {"409": _STATE, "429": _LIMIT},
    "POST /v1/jobs/{job}/steps": {"429": "`limit_reached`: more steps than are taken of one training"},
    "POST /v1/jobs/{job}/hold": {"409": "`conflict`: it does not wait"},
    "POST /v1/jobs/{job}/release": {"409": "`conflict`: it is not held"},
    "POST /v1/jobs/{job}/restart": {"409": "`conflict`: it is not over, or was started elsewhere"},
    "POST /v1/jobs/{job}/allow": {"409": "`conflict`: it is over, or tells no steps from elsewhere"},
    "POST /v1/jobs/{job}/move": {"409": "`conflict`: it does not wait"},
    "POST /v1/session": {
        "401": "`unauthorised`: the key or the code is not valid",
        "403": "`forbidden`: the key lacks the scope `read`, or the request comes from another page than the gateway's",
    },
    "GET /v1/session": {"404": "`not_found`: the request has an API key"},
    "DELETE /v1/session": {"404": "`not_found`: the request has an API key"},
    "DELETE /v1/sessions": {"404": "`not_found`: there is no such key in this project"},
    "POST /v1/projects": {"409": "`conflict`: there is one of that name"},
    "GET /v1/functions/{function}/logs": {"429": "`limit_reached`: as many follow logs at this gateway as may"},
    "GET /v1/jobs/{job}/logs": {"429": "`limit_reached`: as many follow logs at this gateway as may"},
    "GET /v2/models/{model}/ready": {"409": "`not_ready`: no revision of it has passed its first run"},
}
AWAY: Final = "`unavailable`, `writes_refused`: a part of the platform is away, or takes nothing new"


def refusals(name: str, operation: Mapping[str, Any], route: APIRoute | None) -> dict[str, str]:
    """Status → codes of the errors of an operation (``GET /path``) and what they mean."""
    found: dict[str, str] = {}
    parameters = operation.get("parameters", [])
    inside = [each["name"] for each in parameters if each["in"] == "path"]
    if "security" in operation:
        found["401"] = "`unauthorised`: no API key, or one that is not valid"
        found["403"] = f"`forbidden`: {_needed(name, route)}"
        if name in FORBIDDEN or name.partition(" /v2")[1]:
            found["403"] += ". `session_forbidden`: a session of a browser may not"
    if "requestBody" in operation:
        found["400"] = "`malformed`: the body cannot be read"
        found["413"] = "`payload_too_large`: the body is larger than it may be"
        found["422"] = "`invalid_input`: `field` names the place"
    if inside and name not in _MAKES:
        codes = dict.fromkeys(_ABSENT.get(each, "not_found") for each in inside)
        found["404"] = f"{', '.join(f'`{code}`' for code in codes)}: there is none in this project"
    if any(each["in"] == "query" for each in parameters):
        found["422"] = "`invalid_input`: `field` names the place"
    found["503"] = AWAY
    return dict(sorted({**found, **ALSO.get(name, {})}.items()))


def _needed(name: str, route: APIRoute | None) -> str:
    if name in _OWN:
        return f"the key lacks the scope `{_OWN[name]}`"
    calls = list(_calls([route.dependant])) if route is not None else []
    callers = [call for call in calls if isinstance(call, Caller)]
    if not callers:
        return "the key may not do this"
    scopes = " or ".join(f"`{scope}`" for scope in callers[0].scopes)
    needed = f"the key lacks the scope {scopes}"
    return f"{needed}, or is no operator's" if operator in calls else needed


def _calls(dependants: Sequence[Dependant]) -> Iterator[object]:
    for dependant in dependants:
        yield dependant.call
        yield from _calls(dependant.dependencies)


def routes_by_name(routes: Sequence[BaseRoute]) -> dict[str, APIRoute]:
    """``GET /path`` → its route."""
    return {
        f"{method} {route.path}": route
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
