"""
The OpenAPI document of ``GET /openapi.json``: what FastAPI derives from the routes, corrected where the gateway answers
otherwise, with an introduction and examples (api/server/examples.py).
"""

from collections.abc import Mapping
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from api.schemas.fields import describe_parts
from api.schemas.functions import FunctionBody
from api.server.examples import BODIES, PARAMETERS, command, example_of
from api.server.invocation_description import (
    ENDINGS,
    MAYBE_RETRY_AFTER,
    REPLAYED,
    REQUEST_ID,
    ROWS,
    call_schemas,
)
from api.server.statuses import refusals, routes_by_name

INTRODUCTION: Final = """
Call functions in the idle part of GPUs that train, and administer the platform that runs them.

**The key.** Every operation needs an API key, but `/healthz`, `/readyz` and `/v2/health`. Send it as `Authorization:
Bearer smk_...`, or as `X-API-Key: smk_...`. `smore up` writes the first key to `.smore/key`; `smore keys create NAME`, or
`POST /v1/keys`, makes others, with the scopes that they need: `invoke` (run functions), `read` (see), `deploy`, `jobs` and
`admin`. On this page, *Authorize* keeps a key for the operations that you try.

**Pages of the gateway** have a session of a key in its place (`POST /v1/session`), with fewer scopes.

**Examples** take the platform and the key from the environment: `export SMORE_URL=http://127.0.0.1:8400
SMORE_API_KEY=smk_...`.

**Deadlines.** An invocation has a deadline: its function's own, or `deadline_ms`. The platform refuses at once (429
`slo_infeasible`) what it cannot finish in time, and names the earliest deadline that it can.

**Errors** are problem documents (RFC 9457, `application/problem+json`) with a stable `code`. 429 and 503 say in
`Retry-After` when to try again; a 429 without it is refused again however often it is repeated. With an
`Idempotency-Key` a repeated invocation runs once.

**Every answer** has `X-Request-Id`: the caller's own where the request has that header (1 to 128 visible ASCII
characters), else a new one. An error repeats it as `request_id`, and the gateway's log has a line of every request that
was refused or failed under it.
""".strip()
#: The gateway of the examples, in whose place :func:`at` puts another one.
GATEWAY: Final = "http://127.0.0.1:8400"
#: Begins the example at the end of an operation's description.
EXAMPLE: Final = "```shell"
_PROBLEM: Final = "#/components/schemas/Problem"
#: What every operation may answer. FastAPI would make a validator of it for each.
_DEFAULT: Final[Mapping[str, Any]] = {
    "description": "RFC 9457: what went wrong, under a stable `code`",
    "content": {"application/json": {"schema": {"$ref": _PROBLEM}}},
}
#: Schemas of FastAPI's own answer to an invalid input; the gateway answers with a problem document like every error.
_FOREIGN: Final = ("HTTPValidationError", "ValidationError")
#: What FastAPI says of an answer of which nothing was said, and what is said in its place, by status.
_UNSAID: Final = "Successful Response"
_SAID: Final[Mapping[str, str]] = {"201": "Made", "202": "Accepted: it goes on", "204": "Done; there is no body"}
_RETRY_AFTER: Final = {"Retry-After": {"required": True, "schema": {"type": "integer"}, "description": "Seconds"}}
#: What a parameter in a path names, the same in every operation.
_NAMED: Final[Mapping[str, str]] = {
    "digest": "The SHA-256 of the blob, lower-case hex",
    "function": "The name of the function",
    "gpu": "The name of the GPU instance",
    "invocation": "The id of the invocation",
    "job": "The id or the name of the job",
    "key": "The id of the API key",
    "model": "The name of the function that serves as the model",
    "project": "The name of the project",
    "secret": "The name of the secret",
    "trace": "The number of the trace",
    "version": "The number of the revision",
}
#: Headers of every answer, and of every 401.
_HEADERS: Final[Mapping[str, Any]] = {
    **REQUEST_ID,
    "WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}, "description": "How a key is sent"},
}


def describe(*, title: str, summary: str, version: str, routes: list[BaseRoute]) -> dict[str, Any]:
    """
    The OpenAPI document. Errors are ``application/problem+json``; under /v2 they are ``application/json`` with the
    additional member ``error``. Each operation names the errors that it answers with (api/server/statuses.py); 429 and 503
    have ``Retry-After``, but for a deadline that no waiting would help.
    """
    document = get_openapi(title=title, summary=summary, version=version, routes=routes)
    document["info"]["description"] = INTRODUCTION
    function = FunctionBody.model_json_schema(ref_template="#/components/schemas/{model}")
    document["components"]["schemas"] |= {
        **call_schemas({}, {}),
        "Rows": ROWS,
        **function.pop("$defs"),
        FunctionBody.__name__: function,
    }
    named = routes_by_name(routes)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            _illustrate(method.upper(), path, operation, document["components"]["schemas"])
        standard = path == "/v2" or path.startswith("/v2/")
        for method, operation in item.items():
            answers: dict[str, Any] = {"default": dict(_DEFAULT), **operation["responses"]}
            if _is_foreign(answers.get("422")):
                del answers["422"]
            name = f"{method.upper()} {path}"
            for status, text in refusals(name, operation, named.get(name)).items():
                if status not in answers:
                    answers[status] = {**answers["default"], "description": text}
            operation["responses"] = answers = dict(sorted(answers.items()))
            for status, answer in answers.items():
                if answer["description"] == _UNSAID:
                    answer["description"] = _SAID.get(status, "Done")
                if _is_problem(answer):
                    media_type = "application/json" if standard else "application/problem+json"
                    answer["content"] = {media_type: {"schema": _problem(standard)}}
                repeatable = any(each["name"] == "Idempotency-Key" for each in operation.get("parameters", []))
                answer["headers"] = _headers(status, answer, repeatable=repeatable)
    for name in _FOREIGN:
        document["components"]["schemas"].pop(name, None)
    document["components"]["headers"] = dict(_HEADERS)
    describe_parts(document["components"]["schemas"])
    return document


def at(document: Mapping[str, Any], url: str) -> dict[str, Any]:
    """The document as the gateway at ``url`` serves it."""
    info = {**document["info"], "description": document["info"]["description"].replace(GATEWAY, url)}
    return {**document, "info": info, "servers": [{"url": url}]}


def _illustrate(method: str, path: str, operation: dict[str, Any], schemas: Mapping[str, Any]) -> None:
    """Add the examples of an operation: a command, its parameters, its body, its answer."""
    name = f"{method} {path}"
    shell = command(method, path, key="security" in operation)
    operation["description"] = f"{operation['description']}\n\n{EXAMPLE}\n{shell}\n```"
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            parameter["example"] = PARAMETERS[parameter["name"]]
            parameter["description"] = _NAMED[parameter["name"]]
    bodies = operation.get("requestBody", {}).get("content", {})
    if "application/json" in bodies and name in BODIES:
        bodies["application/json"]["example"] = BODIES[name]
    for status, answered in operation["responses"].items():
        content = answered.get("content", {}).get("application/json", {})
        if status.startswith("2") and "$ref" in content.get("schema", {}):
            content["example"] = example_of(content["schema"], schemas)
    if path.endswith("/{invocation}/cancel"):
        given = operation["responses"]["200"]["content"]["application/json"]["example"]
        given |= {"state": "cancelled", "cause": "cancelled"}
        del given["output"]


def _headers(status: str, answer: Mapping[str, Any], *, repeatable: bool) -> dict[str, Any]:
    """The headers of an answer. ``repeatable``: of an operation that takes an Idempotency-Key."""
    headers = dict(answer.get("headers", {}))
    if status in ("429", "503"):
        headers |= MAYBE_RETRY_AFTER if "`slo_infeasible`" in answer["description"] else _RETRY_AFTER
    if repeatable and status in ENDINGS:
        headers |= REPLAYED
    always = ["X-Request-Id", *(["WWW-Authenticate"] if status == "401" else [])]
    return headers | {name: {"$ref": f"#/components/headers/{name}"} for name in always}


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
