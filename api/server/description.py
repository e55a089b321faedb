"""
The OpenAPI document of ``GET /openapi.json``: what FastAPI derives from the routes, corrected where the gateway answers
otherwise, with an introduction and examples (api/server/examples.py).
"""

from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from api.server.examples import ANSWERS, BODIES, PARAMETERS, command

INTRODUCTION: Final = """
Call functions in the idle part of GPUs that train, and administer the platform that runs them.

**The key.** Every operation needs an API key, but `/healthz`, `/readyz` and `/v2/health`. Send it as `Authorization:
Bearer smk_...`, or as `X-API-Key: smk_...`. `smore up` writes the first key to `.smore/key`; `smore keys create NAME`, or
`POST /v1/keys`, makes others, with the scopes that they need: `invoke` (run functions), `read` (see), `deploy`, `jobs` and
`admin`. On this page, *Authorize* keeps a key for the operations that you try.

**Examples** take the platform and the key from the environment: `export SMORE_URL=http://127.0.0.1:8400
SMORE_API_KEY=$(cat .smore/key)`.

**Deadlines.** An invocation has a deadline: its function's own, or `deadline_ms`. The platform refuses at once (429
`slo_infeasible`) what it cannot finish in time, and names the earliest deadline that it can.

**Errors** are problem documents (RFC 9457, `application/problem+json`) with a stable `code`; `request_id` finds the
request in the platform's log. 429 and 503 say in `Retry-After` when to try again. With an `Idempotency-Key` a repeated
invocation runs once.
""".strip()
#: Begins the example at the end of an operation's description.
EXAMPLE: Final = "```shell"
_PROBLEM: Final = "#/components/schemas/Problem"
#: Schemas of FastAPI's own answer to an invalid input; the gateway answers with a problem document like every error.
_FOREIGN: Final = ("HTTPValidationError", "ValidationError")
_RETRY_AFTER: Final = {"Retry-After": {"required": True, "schema": {"type": "integer"}, "description": "Seconds"}}


def describe(*, title: str, summary: str, version: str, routes: list[BaseRoute]) -> dict[str, Any]:
    """
    The OpenAPI document. Errors are ``application/problem+json``; under /v2 they are ``application/json`` with the
    additional member ``error``. Every operation may answer 503 with ``Retry-After`` while a part that it needs is away.
    """
    document = get_openapi(title=title, summary=summary, version=version, routes=routes)
    document["info"]["description"] = INTRODUCTION
    for path, item in document["paths"].items():
        for method, operation in item.items():
            _illustrate(method.upper(), path, operation)
        standard = path == "/v2" or path.startswith("/v2/")
        for operation in item.values():
            answers: dict[str, Any] = operation["responses"]
            if _is_foreign(answers.get("422")):
                del answers["422"]
            if "503" not in answers:
                answers["503"] = {
                    **answers["default"],
                    "description": "A part of the platform is away, or takes nothing new",
                }
            for status, answer in answers.items():
                if _is_problem(answer):
                    media_type = "application/json" if standard else "application/problem+json"
                    answer["content"] = {media_type: {"schema": _problem(standard)}}
                if status == "503":
                    answer["headers"] = _RETRY_AFTER
    for name in _FOREIGN:
        document["components"]["schemas"].pop(name, None)
    return document


def _illustrate(method: str, path: str, operation: dict[str, Any]) -> None:
    """Add the examples of an operation: a command, its parameters, its body, its answer."""
    name = f"{method} {path}"
    shell = command(method, path, key="security" in operation)
    operation["description"] = f"{operation['description']}\n\n{EXAMPLE}\n{shell}\n```"
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            parameter["example"] = PARAMETERS[parameter["name"]]
    bodies = operation.get("requestBody", {}).get("content", {})
    if "application/json" in bodies and name in BODIES:
        bodies["application/json"]["example"] = BODIES[name]
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json", {})
        schema = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if status.startswith("2") and schema in ANSWERS:
            content["example"] = ANSWERS[schema]


def _problem(standard: bool) -> dict[str, Any]:
    if not standard:
        return {"$ref": _PROBLEM}
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {"allOf": [{"$ref": _PROBLEM}, error]}


def _schemas(answer: dict[str, Any] | None) -> list[str]:
    return [one.get("schema", {}).get("$ref", "") for one in (answer or {}).get("content", {}).values()]


def _is_problem(answer: dict[str, Any]) -> bool:
    return _PROBLEM in _schemas(answer)


def _is_foreign(answer: dict[str, Any] | None) -> bool:
    return any(one.endswith(_FOREIGN) for one in _schemas(answer))
