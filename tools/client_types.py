"""
Writes ``smore_client/generated.py``: the answers of the API as msgspec structs, from the gateway's OpenAPI document.

``python -m tools.client_types`` writes (``make fmt``), ``python -m tools.client_types --check`` compares (``make check``):
exit code 1 where the file is not what the document says.

The rules, for a client that must read older and newer platforms:

- A field that the client does not know is ignored, as msgspec does by default.
- A struct extends another one where its class in api/schemas does; the document repeats the fields.
- An enum is open: a value that the document does not name becomes a member of its own.
- A field that the document requires has the empty value of its type as its default, because an older platform may not
  send it: '' 0 False [] {}, an enum's '', an object with all of its defaults, None for a moment. The first required
  field stays required, but not in objects that another one must contain.

A generator of our own, because datamodel-code-generator makes closed enums and copies the document's bounds, and would
bring black, isort and jinja2.
"""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from api.app import create_app
from api.schemas.fields import Schema
from lab.bench.report import ROOT
from smore.process.settings import RedisSettings, Settings

TARGET: Final = ROOT / "client" / "smore_client" / "generated.py"

#: The client's own Invocation extends this one by what headers say and reads a 202 too, and a page of them is read by a
#: struct of its own.
NAMES: Final = {"Invocation": "InvocationRecord"}
LEFT_OUT: Final = {"Accepted", "Invocations"}
#: A shape is a tuple, as numpy has it.
TUPLES: Final = {("TensorSpec", "shape")}

HEADER: Final = '''
"""
What the API answers. Generated from the OpenAPI document by tools/client_types.py: change api/schemas and run `make fmt`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import msgspec


class OpenEnum(StrEnum):
    """A closed set of today: a value that is not in it becomes a member of its own, with the value as its name."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        return member
'''

_PLAIN: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
_EMPTY: Final = {"string": '""', "integer": "0", "number": "0.0", "boolean": "False", "array": "[]", "object": "{}"}


def generate(document: Mapping[str, Any]) -> str:
    """The module's source, formatted."""
    schemas = dict(document["components"]["schemas"])
    for base in filter(None, map(_base, _subclasses(Schema))):
        schemas.setdefault(base.__name__, base.model_json_schema(ref_template="#/components/schemas/{model}"))
    names = list(_in_order(sorted(_answered(document)), schemas))
    parts = [HEADER.lstrip(), *(_class(name, schemas, _contained_whole(schemas)) for name in names)]
    return _formatted("\n\n".join(parts))


def _subclasses(kind: type[Schema]) -> Iterator[type[Schema]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _base(kind: type[Schema]) -> type[Schema] | None:
    """The first class with fields that a class of api/schemas extends."""
    return next((base for base in kind.__bases__ if issubclass(base, Schema) and base.model_fields), None)


def _bases() -> dict[str, str]:
    """By name."""
    return {kind.__name__: base.__name__ for kind in _subclasses(Schema) if (base := _base(kind)) is not None}


def _answered(document: Mapping[str, Any]) -> Iterator[str]:
    """Schemas that a successful answer under /v1 has as its whole body."""
    for path, item in document["paths"].items():
        for operation in item.values():
            for status, answer in operation["responses"].items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
                wanted = path.startswith("/v1/") and status.startswith("2") and "$ref" in schema
                if wanted and _name(schema) not in LEFT_OUT:
                    yield _name(schema)


def _in_order(wanted: list[str], schemas: Mapping[str, Any]) -> Iterator[str]:
    """The wanted schemas and those that they contain, each after what it contains."""
    seen: set[str] = set()
    bases = _bases()

    def visit(name: str) -> Iterator[str]:
        if name in seen:
            return
        seen.add(name)
        parts = [bases[name]] if name in bases else []
        for part in (*parts, *_contained(schemas[name])):
            yield from visit(part)
        yield name

    for name in wanted:
        yield from visit(name)


def _contained(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str()}:
            yield _name(value)
        case dict():
            for part in value.values():
                yield from _contained(part)
        case list():
            for part in value:
                yield from _contained(part)


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _class(name: str, schemas: Mapping[str, Any], contained: Set[str]) -> str:
    """The struct or enum of one schema; ``contained``: the objects that another one must contain."""
    schema = schemas[name]
    doc = [*_docstring(schema["description"]), ""] if "description" in schema else []
    if "enum" in schema:
        return "\n".join(
            [f"class {name}(OpenEnum):", *doc, *(f'    {each.upper()} = "{each}"' for each in schema["enum"])]
        )
    base = _bases().get(name)
    inherited = schemas[base]["properties"] if base else {}
    fields = {field: shape for field, shape in schema["properties"].items() if field not in inherited}
    required = [field for field in schema.get("required", []) if field in fields and "anyOf" not in fields[field]]
    first = None if base or name in contained else next(iter(required), None)
    lines = [f"class {NAMES.get(name, name)}({base or 'msgspec.Struct'}, frozen=True, kw_only=True):", *doc]
    for field, shape in fields.items():
        if (name, field) in TUPLES:
            lines.append(f"    {field}: tuple[{_type(shape['items'])}, ...] = ()")
        elif field == first:
            lines.append(f"    {field}: {_type(shape)}")
        elif field in required:
            lines.append(f"    {field}: {_type(shape)}{_empty(shape, schemas)}")
        else:
            default = _empty(shape, schemas) if "$ref" in shape else f" = {shape.get('default')!r}"
            lines.append(f"    {field}: {_type(shape)}{default}")
        lines += _docstring(shape.get("description", ""))
    return "\n".join(lines)


def _contained_whole(schemas: Mapping[str, Any]) -> set[str]:
    """Schemas of which a field of another schema holds exactly one."""
    fields = [field for schema in schemas.values() for field in schema.get("properties", {}).values()]
    return {_name(field) for field in fields if "$ref" in field}


def _empty(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """The default of a field that an older platform may not send, with what stands before it."""
    if "$ref" in schema:
        name = _name(schema)
        return f' = {name}("")' if "enum" in schemas[name] else f" = msgspec.field(default_factory={name})"
    return " | None = None" if schema.get("format") == "date-time" else f" = {_EMPTY[schema['type']]}"


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": str()}:
            return NAMES.get(_name(schema), _name(schema))
        case {"anyOf": list(options)}:
            return " | ".join("None" if each.get("type") == "null" else _type(each) for each in options)
        case {"type": "string", "format": "date-time"}:
            return "datetime"
        case {"type": "array", "items": items}:
            return f"list[{_type(items)}]"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"dict[str, {_type(values)}]"
        case {"type": "object"}:
            return "dict[str, Any]"
        case {"type": str(plain)} if plain in _PLAIN:
            return _PLAIN[plain]
        case _:
            return "Any"


def _docstring(description: str) -> list[str]:
    """The description in Python's words: None for null, True and False."""
    words = {"null": "None", "Null": "None", "true": "True", "false": "False"}
    text = re.sub(r"\b(null|Null|true|false)\b", lambda match: words[match[0]], description.strip())
    paragraphs = [textwrap.fill(" ".join(part.split()), 116) for part in text.split("\n\n") if part]
    if not paragraphs:
        return []
    if len(paragraphs) == 1 and len(paragraphs[0]) <= 110:
        return [f'    """{paragraphs[0]}"""']
    return [textwrap.indent('"""\n' + "\n\n".join(paragraphs) + '\n"""', "    ")]


def _formatted(source: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def main() -> None:
    # No connection is opened: the routes alone are read.
    source = generate(create_app(Settings(redis=RedisSettings(url="redis://unused"))).openapi())
    if "--check" not in sys.argv:
        TARGET.write_text(source)
    elif not TARGET.exists() or TARGET.read_text() != source:
        sys.exit(f"{TARGET.relative_to(ROOT)} is not what the OpenAPI document says: run `make fmt`")


if __name__ == "__main__":
    main()
