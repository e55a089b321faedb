"""
The API's description as ``GET /openapi.json`` gives it: what FastAPI finds in the routes, corrected where our answers
differ.
"""

from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

_PROBLEM: Final = "#/components/schemas/Problem"
#: FastAPI's own answer to an input that does not fit; ours is a problem document like every other error.
_FOREIGN: Final = ("HTTPValidationError", "ValidationError")
_RETRY_AFTER: Final = {"Retry-After": {"required": True, "schema": {"type": "integer"}, "description": "Seconds"}}


def describe(*, title: str, summary: str, version: str, routes: list[BaseRoute]) -> dict[str, Any]:
    """
    The OpenAPI document. Errors are ``application/problem+json``; under /v2 ``application/json`` with one member more,
    ``error``. Every operation may answer 503 with ``Retry-After`` while something that it needs is away.
    """
    document = get_openapi(title=title, summary=summary, version=version, routes=routes)
    for path, item in document["paths"].items():
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
