"""One function as an OpenAPI document: what ``GET /v1/functions/{function}/openapi.json`` answers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.schemas.problem import Problem
from api.server.invocation_description import (
    ACCEPTED_HEADERS,
    ACCEPTED_OR_SEVERAL,
    CALL,
    ENDINGS,
    HEADERS,
    MAYBE_RETRY_AFTER,
    PARAMETERS,
    REFUSALS,
    REPLAYED,
    REQUEST_ID,
    RESULT_OR_RESULTS,
    call_schemas,
)
from smore.domain.function import FunctionSpec, TensorSpec

#: JSON types of the elements of tensors.
_ELEMENTS: Final[Mapping[str, str]] = {
    "BOOL": "boolean",
    "BYTES": "string",
    "FP16": "number",
    "FP32": "number",
    "FP64": "number",
}
_DEFINITIONS: Final = "#/$defs/"
#: Status → headers of the refusals that have some of their own.
_REFUSAL_HEADERS: Final[Mapping[str, Any]] = {
    "429": MAYBE_RETRY_AFTER,
    "503": {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds"}},
}


def describe_function(
    name: str, revision: int, spec: FunctionSpec, measured: Mapping[str, Any], url: str
) -> dict[str, Any]:
    """
    The document of a function, with the spec of the revision that takes its traffic. ``measured``: what its canary
    found, with ``input_schema`` and ``output_schema`` where the handler declares them. ``url``: of the gateway.
    """
    schemas: dict[str, Any] = {}
    if spec.inputs is not None:
        given, returned = _tensors(spec.inputs), _tensors(spec.outputs or ())
    else:
        given = _hoisted(measured.get("input_schema") or {}, "input", schemas)
        returned = _hoisted(measured.get("output_schema") or {}, "output", schemas)
    schemas |= {"input": given, "output": returned}
    refs = {each: {"$ref": f"#/components/schemas/{each}"} for each in ("input", "output")}
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/problem"}}}
    operation = {
        "operationId": name,
        "summary": f"Run {name}",
        "parameters": [each for each in PARAMETERS if each["name"] != "Smore-Shape"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": CALL}}},
        "responses": {
            "200": {
                "description": "The result; `invocations` where `inputs` were sent",
                "headers": {**HEADERS, **REQUEST_ID},
                "content": {"application/json": {"schema": RESULT_OR_RESULTS}},
            },
            "202": {
                "description": "It goes on; ask at `Location`",
                "headers": {**ACCEPTED_HEADERS, **REQUEST_ID},
                "content": {"application/json": {"schema": ACCEPTED_OR_SEVERAL}},
            },
            **{
                status: {"description": text, "content": problem, "headers": _refusal_headers(status)}
                for status, text in REFUSALS.items()
            },
            "default": {"description": "What went wrong, under a stable `code`", "content": problem},
        },
        "security": [{"key": []}],
    }
    schemas |= {"problem": Problem.model_json_schema(), **call_schemas(refs["input"], refs["output"])}
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": str(revision)},
        "servers": [{"url": url}],
        "paths": {f"/v1/functions/{name}/invocations": {"post": operation}},
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _refusal_headers(status: str) -> dict[str, Any]:
    replayed = REPLAYED if status in ENDINGS else {}
    return {**_REFUSAL_HEADERS.get(status, {}), **replayed, **REQUEST_ID}


def _tensors(declared: Sequence[TensorSpec]) -> dict[str, Any]:
    """Tensors by name, as nested lists."""
    return {
        "type": "object",
        "required": [tensor.name for tensor in declared],
        "properties": {tensor.name: _nested(tensor) for tensor in declared},
    }


def _nested(tensor: TensorSpec) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _ELEMENTS.get(tensor.datatype, "integer")}
    for size in reversed(tensor.shape):
        bounds = {} if size < 0 else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **bounds}
    return {**schema, "description": f"{tensor.datatype}, axis 0 is the rows"}


def _hoisted(schema: Mapping[str, Any], side: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema, its definitions moved to ``schemas`` under the names ``input.NAME`` or ``output.NAME``."""

    def moved(value: Any) -> Any:
        match value:
            case {"$ref": str(target)} if target.startswith(_DEFINITIONS):
                return {**value, "$ref": f"#/components/schemas/{side}.{target.removeprefix(_DEFINITIONS)}"}
            case dict():
                return {name: moved(part) for name, part in value.items()}
            case list():
                return [moved(part) for part in value]
            case _:
                return value

    definitions = schema.get("$defs")
    for name, definition in (definitions if isinstance(definitions, Mapping) else {}).items():
        schemas[f"{side}.{name}"] = moved(definition)
    root: dict[str, Any] = moved({name: part for name, part in schema.items() if name != "$defs"})
    return root
