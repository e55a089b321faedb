"""The REST page of docs/reference from the OpenAPI document: each operation, and a table for each schema."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from api.server.description import EXAMPLE
from bench.markdown import NONE, Incomplete, prose, table
from smore.domain.invocation import TERMINAL, State

_SCHEMA: Final = "#/components/schemas/"
#: Where a parameter stands, in words.
_WHERE: Final[Mapping[str, str]] = {"path": "path", "query": "query", "header": "header"}
#: A schema of an error, which every operation answers with.
_PROBLEM: Final = "Problem"
#: Bounds of a value → how they are said.
_BOUNDS: Final[Mapping[str, str]] = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "exclusiveMinimum": "> {}",
    "exclusiveMaximum": "< {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxLength": "at most {} characters",
}


def _named(states: Iterable[State]) -> str:
    *first, last = [f"`{state}`" for state in states]
    return f"{', '.join(first)} and {last}"


INTRODUCTION: Final = (
    "The API of the gateway, as `/openapi.json` describes it; `/docs` of a running gateway tries it out. `SMORE_URL` is the"
    " gateway, and the key is one of `smore keys create`.",
    "## A call from start to end",
    "A call that waits for its result:",
    "```bash\n"
    'curl -X POST "$SMORE_URL/v1/functions/echo/invocations" \\\n'
    '  -H "Authorization: Bearer $SMORE_API_KEY" -H "Content-Type: application/json" \\\n'
    '  -d \'{"input": {"x": [1, 2]}, "deadline_ms": 2000}\'\n'
    "```",
    'The answer is `{"id": …, "state": "succeeded", "late_ms": 0, "output": {"x": [1, 2]}, …}`. The same without waiting: submit,'
    " poll, cancel.",
    "```bash\n"
    'auth="Authorization: Bearer $SMORE_API_KEY"\n'
    '# Submit: 202 with {"id": …, "state": "queued", "durability": …}\n'
    'id=$(curl -s -X POST "$SMORE_URL/v1/functions/echo/invocations" -H "$auth" \\\n'
    '  -H "Content-Type: application/json" -H "Prefer: respond-async" -H "Idempotency-Key: order-17" \\\n'
    '  -d \'{"input": {"x": [1, 2]}}\' | python3 -c \'import json, sys; print(json.load(sys.stdin)["id"])\')\n'
    "# Poll: waits up to 10 s for the end; ask again while the state is queued, dispatched or running\n"
    'curl -s "$SMORE_URL/v1/invocations/$id?wait=10" -H "$auth"\n'
    "# The result as the waiting call would have got it; 202 while there is none\n"
    'curl -s "$SMORE_URL/v1/invocations/$id/result" -H "$auth"\n'
    "# Cancel: 200 with the state cancelled, or 409 `conflict` where it has ended in another way\n"
    'curl -s -X POST "$SMORE_URL/v1/invocations/$id/cancel" -H "$auth"\n'
    "```",
    f"**States.** {_named(state for state in State if state in TERMINAL)} are final and change no more;"
    f" {_named(state for state in State if state not in TERMINAL)} are not ([how they follow each other](states.md)). Submitting"
    " and cancelling need the scope `invoke`; polling and the result need `read`. A key with `invoke` alone can submit and cancel,"
    " but gets 403 when it asks for its own invocation.",
    "**Key.** Every operation needs an API key, but `/healthz`, `/readyz` and `/v2/health`: `Authorization: Bearer smk_…`, or"
    " `X-API-Key: smk_…`. A 401 has `WWW-Authenticate: Bearer`.",
    "**Request id.** Every answer has `X-Request-Id`: the caller's own where the request has that header (1 to 128 visible ASCII"
    " characters), else a new one.",
    f"**Errors** are problem documents ([{_PROBLEM}](#problem-schema), `application/problem+json`) with a stable"
    " [`code`](errors.md); under /v2 they are `application/json` and have the additional member `error`. A status that is not"
    " listed has the same form.",
    "**Repeating.** 503 and 429 have `Retry-After`: the seconds after which the same request may be accepted. The exception is 429"
    " `slo_infeasible` where waiting helps nothing: the deadline is shorter than what the call takes with nothing before it (a run,"
    " and the load where no instance stands ready), or the function fits no GPU instance. It has no `Retry-After`, and a client"
    " should not repeat it with the same deadline but with `earliest_deadline_ms`, if that is there. A POST that has no"
    " `Idempotency-Key` may run twice when it is repeated after a broken connection. An answer about the invocation of an earlier"
    " request with the key has `Idempotency-Replayed: true`, errors included.",
)


def parts(document: Mapping[str, Any]) -> Iterator[str]:
    """The paragraphs of the page."""
    yield from INTRODUCTION
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            group = operation.get("tags", ["platform"])[0]
            groups.setdefault(group, []).append((f"{method.upper()} {path}", operation))
    for group, operations in groups.items():
        yield f"## {group}"
        yield table(
            ("operation", "what it does"),
            [(f"[`{name}`](#{_anchor(name)})", _first_sentence(operation)) for name, operation in operations],
        )
        for name, operation in operations:
            yield from _operation(name, operation)
    yield "## Schemas"
    yield "Bodies and answers by name. A field without a default is always there, in a body it is required."
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"### {name} (schema)"
        yield from _paragraphs(schema.get("description", ""))
        if "enum" in schema:
            yield f"One of {', '.join(f'`{each}`' for each in schema['enum'])}."
        else:
            yield _fields(schema)


def _operation(name: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield from _paragraphs(operation["description"].partition(EXAMPLE)[0])
    parameters = [
        (
            f"`{each['name']}`",
            _WHERE[each["in"]] + (", required" if each.get("required") and each["in"] != "path" else ""),
            _type(each["schema"]),
            _meaning(each) or _meaning(each["schema"]),
        )
        for each in operation.get("parameters", [])
    ]
    if parameters:
        yield table(("parameter", "in", "type", "meaning"), parameters)
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from _content("Body", media_type, content.get("schema", {}))
    yield table(("status", "answer", "meaning"), [_answer(status, each) for status, each in _listed(operation)])
    headers = [
        (f"`{header}`", ", ".join(statuses), meaning) for (header, meaning), statuses in _headers(operation).items()
    ]
    if headers:
        yield table(("header of the answer", "with", "meaning"), headers)
    for status, answer in _listed(operation):
        for media_type, content in answer.get("content", {}).items():
            schema = content.get("schema", {})
            if status.startswith("2") and schema.get("properties"):
                yield from _content(f"Answer {status}", media_type, schema)


def _content(what: str, media_type: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """A body: a link to its schema, or its fields, or what its bytes are."""
    if schema.get("properties"):
        yield f"{what}, `{media_type}`:"
        yield _fields(schema)
    else:
        described = _meaning(schema)
        yield f"{what}, `{media_type}`: {_type(schema)}{f'. {described}' if described else ''}."


def _listed(operation: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(status, answer) for status, answer in operation["responses"].items() if status.isdecimal()]


def _answer(status: str, answer: Mapping[str, Any]) -> tuple[str, str, str]:
    kinds = []
    for media_type, content in answer.get("content", {}).items():
        schema = content.get("schema", {})
        plain = media_type in ("application/json", "application/problem+json")
        named = "below" if schema.get("properties") else _type(schema)
        kinds.append(named if plain else f"`{media_type}`")
    return status, " or ".join(kinds) or NONE, answer["description"]


def _headers(operation: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """(header, its meaning) → the statuses that have it; without those that the introduction explains."""
    headers: dict[tuple[str, str], list[str]] = {}
    for status, answer in _listed(operation):
        for name, header in answer.get("headers", {}).items():
            # What is always there is explained in the introduction.
            if "$ref" not in header and not header.get("required"):
                headers.setdefault((name, header.get("description", "")), []).append(status)
    return headers


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    rows = []
    for name, shape in schema.get("properties", {}).items():
        default = "" if name in required else _default(shape)
        if not _meaning(shape):
            raise Incomplete(f"{name}: say what it means in the docstring of its class, or in api/server/meanings.py")
        rows.append((f"`{name}`", _type(shape), default or NONE, _meaning(shape)))
    return table(("field", "type", "default", "meaning"), rows) if rows else "An object of any members."


def _default(shape: Mapping[str, Any]) -> str:
    if "default" not in shape:
        return "may be absent"
    return f"`{json.dumps(shape['default'])}`"


def _type(schema: Mapping[str, Any]) -> str:
    """The type of a value in words, with its bounds."""
    match schema:
        case {"$ref": str(target)}:
            if not target.startswith(_SCHEMA):
                return "object"
            name = target.removeprefix(_SCHEMA)
            return f"[{name}](#{_anchor(f'{name} (schema)')})"
        case {"anyOf": list(options)} | {"oneOf": list(options)}:
            return " or ".join(dict.fromkeys(_type(each) for each in options))
        case {"allOf": [{"$ref": str()} as first, *_]}:
            return _type(first)
        case {"enum": list(values)}:
            return " or ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"type": "array"}:
            return f"list of {_type(schema['items'])}{_bounds(schema)}" if schema.get("items") else "list"
        case {"type": "object", "additionalProperties": dict(values)} if values:
            return f"object of {_type(values)}"
        case {"type": "string", "format": "date-time"}:
            return "time (RFC 3339)"
        case {"type": "string", "format": "binary"}:
            return "bytes"
        case {"type": str(kind)}:
            return f"{kind}{_bounds(schema)}"
        case {"type": list(kinds)}:
            return " or ".join(kinds)
    return "any JSON value"


def _bounds(schema: Mapping[str, Any]) -> str:
    said = [words.format(f"{schema[name]:.15g}") for name, words in _BOUNDS.items() if name in schema]
    return f", {', '.join(said)}" if said else ""


def _meaning(shape: Mapping[str, Any]) -> str:
    return prose(str(shape.get("description", "")))


def _paragraphs(docstring: str) -> Iterator[str]:
    """A text with one line for each paragraph: a piece of code must not be broken."""
    return (" ".join(paragraph.split()) for paragraph in prose(docstring).split("\n\n"))


def _first_sentence(operation: Mapping[str, Any]) -> str:
    text = " ".join(prose(operation["description"].partition(EXAMPLE)[0]).split())
    return re.split(r"(?<=\.) (?=[A-Z`])", text)[0]


def _anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
