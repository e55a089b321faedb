"""
The client's types are the API's: what ``api/schemas.py`` promises is what ``smore/client/types.py`` and
``smore/client/admin.py`` read.

They are two because a client must bear an older and a newer platform (defaults, unknown fields), and the API's
description must say what is always there; and because importing the client imports no web framework.
"""

import dataclasses
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from api import schemas
from smore.client import admin, requests, types

#: Of the client alone: what is sent, and pages that are answered under other names.
NOT_ANSWERED = {"Call", "Pause", "Answer", "Broken", "InvocationPage"}
#: In the client alone: from an answer's headers.
FROM_HEADERS = {"Invocation": {"timings_ms", "durability"}}
#: What the client does not read.
UNREAD = {"Predictions": {"version"}}


def shapes(module: ModuleType) -> Iterator[type]:
    for name, kind in vars(module).items():
        if (
            isinstance(kind, type)
            and dataclasses.is_dataclass(kind)
            and kind.__module__ == module.__name__
            and name not in NOT_ANSWERED
        ):
            yield kind


def form(of: Any, named: Any) -> Any:
    """What a JSON schema says of a value's form: neither bounds and words, nor whether it may be missing or null."""
    if "$ref" in of:
        return form(named[of["$ref"].rpartition("/")[2]], named)
    if "anyOf" in of:
        forms = [form(one, named) for one in of["anyOf"] if one.get("type") != "null"]
        return forms[0] if len(forms) == 1 else forms
    if "items" in of:
        return [form(of["items"], named)]
    if "properties" in of:
        return {name: form(one, named) for name, one in of["properties"].items()}
    if isinstance(of.get("additionalProperties"), dict):
        return {"*": form(of["additionalProperties"], named)}
    return of.get("format") or of.get("type") or "any"


def fields(kind: Any) -> dict[str, Any]:
    schema = TypeAdapter(kind).json_schema(mode="serialization")
    found: dict[str, Any] = form({name: of for name, of in schema.items() if name != "$defs"}, schema.get("$defs", {}))
    return found


@pytest.mark.parametrize("kind", [*shapes(types), *shapes(requests), *shapes(admin)], ids=lambda kind: kind.__name__)
def test_the_client_reads_what_the_api_answers(kind: type) -> None:
    name = kind.__name__.lstrip("_")
    promised = getattr(schemas, name)
    assert issubclass(promised, BaseModel)
    read = {field: of for field, of in fields(kind).items() if field not in FROM_HEADERS.get(name, ())}
    assert read == {field: of for field, of in fields(promised).items() if field not in UNREAD.get(name, ())}


def test_most_of_the_api_is_compared() -> None:
    assert len([*shapes(types), *shapes(requests), *shapes(admin)]) > 40
