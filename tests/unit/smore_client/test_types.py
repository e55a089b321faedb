"""The client's types: generated from the API's description, with the names of before, for older and newer platforms."""

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.app import create_app
from smore.process.settings import RedisSettings, Settings
from smore_client import AsyncClient, Client, admin, types
from smore_client.types import Explanation, Function, Gpu, Invocation, Job, Limits, Scope, State
from tools import client_types

ROOT = Path(__file__).resolve().parents[3]
#: What users could import before the client became a distribution, and the fields and parameters of it.
NAMES: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("names.json").read_text())


def test_the_generated_types_are_the_apis() -> None:
    document = create_app(Settings(redis=RedisSettings(url="redis://nowhere"))).openapi()
    written = (ROOT / "client" / "smore_client" / "generated.py").read_text()
    assert client_types.generate(document) == written, "run `make fmt`"


@pytest.mark.parametrize("name", NAMES["types"])
def test_a_type_keeps_its_name_and_fields(name: str) -> None:
    assert {field.name for field in msgspec.structs.fields(getattr(types, name))} >= set(NAMES["types"][name])


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("name", sorted(NAMES["methods"]))
def test_a_method_keeps_its_name_and_parameters(client: type, name: str) -> None:
    parameters = inspect.signature(getattr(client, name)).parameters.values()
    written = [each.name if each.default is each.empty else f"{each.name}={each.default!r}" for each in parameters]
    assert written == NAMES["methods"][name]


@pytest.mark.parametrize("name", NAMES["admin"])
def test_a_question_of_administrators_keeps_its_parameters(name: str) -> None:
    assert list(inspect.signature(getattr(admin, name)).parameters) == NAMES["admin"][name]


def test_a_newer_platform_is_understood() -> None:
    """A field and a value of an enum that the client does not know."""
    body = b'{"id": "i1", "state": "hibernating", "scent": "rose", "output": 1}'
    invocation = msgspec.json.decode(body, type=Invocation)
    assert (invocation.state, invocation.output, invocation.done) == ("hibernating", 1, False)
    assert isinstance(invocation.state, State)
    assert json.loads(msgspec.json.encode(invocation))["state"] == "hibernating"
    assert Scope("telepathy") not in list(Scope)
    assert msgspec.json.decode(b'"succeeded"', type=State) is State.SUCCEEDED
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b"1", type=State)


def test_what_ended_in_an_unknown_way_is_done() -> None:
    body = b'{"id": "i1", "state": "evaporated", "finished_at": "2026-01-31T12:00:00Z"}'
    assert msgspec.json.decode(body, type=Invocation).done


def test_an_older_platform_is_understood() -> None:
    """What the document requires today may not have been sent before; what names the thing always was."""
    assert msgspec.json.decode(b'{"name": "echo"}', type=Function) == Function(name="echo", revision=0, inputs=None)
    gpu = msgspec.json.decode(b'{"id": "cpu0"}', type=Gpu)
    assert (gpu.warm, gpu.health, gpu.paused, gpu.reported_at) == ([], "", False, None)
    explanation = msgspec.json.decode(b'{"id": "i1"}', type=Explanation)
    assert (explanation.state, explanation.gate.allowed_ms, explanation.attempts) == ("", 0.0, [])
    for kind in (Function, Gpu, Job, Explanation, Invocation):
        with pytest.raises(msgspec.ValidationError, match="missing required field"):
            msgspec.json.decode(b"{}", type=kind)


def test_an_unset_limit_is_sent_as_null() -> None:
    assert json.loads(msgspec.json.encode(Limits(depth=1)))["jobs"] is None


def test_the_generator_reads_every_form_of_a_schema() -> None:
    def document(**schemas: Any) -> dict[str, Any]:
        answer = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}
        paths = {"/v1/things": {"get": {"responses": {"200": answer}}}}
        return {"paths": paths, "components": {"schemas": schemas}}

    forms: dict[str, Any] = {
        "id": {"type": "string", "description": "What names it; null = nothing"},
        "at": {"type": "string", "format": "date-time"},
        "count": {"type": "integer"},
        "share": {"type": "number", "default": 0.5},
        "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Part"}},
        "sizes": {"type": "object", "additionalProperties": {"type": "number"}},
        "whole": {"$ref": "#/components/schemas/Part"},
        "maybe": {"anyOf": [{"$ref": "#/components/schemas/Kind"}, {"type": "null"}]},
        "some": {},
    }
    thing = {
        "type": "object",
        "description": "A thing; ``maybe`` null = unknown.",
        "properties": forms,
        "required": ["id", "at", "count", "parts", "sizes", "whole"],
    }
    part = {
        "type": "object",
        "properties": {"weight": {"type": "number"}, "on": {"type": "boolean", "default": True}},
        "required": ["weight"],
    }
    unread = {"type": "object", "properties": {}}
    source = client_types.generate(
        document(Thing=thing, Part=part, Kind={"type": "string", "enum": ["good", "bad"]}, Unread=unread)
    )
    assert "Unread" not in source
    scope: dict[str, Any] = {}
    exec(source, scope)
    assert '    id: str\n    """What names it; None = nothing"""\n' in source
    assert scope["Thing"].__doc__ == "A thing; ``maybe`` None = unknown."
    read = msgspec.json.decode(b'{"id": "1"}', type=scope["Thing"])
    assert (read.count, read.share, read.parts, read.sizes, read.maybe, read.some) == (0, 0.5, [], {}, None, None)
    assert (read.at, read.whole.on, read.whole.weight) == (None, True, 0.0)
    with pytest.raises(msgspec.ValidationError, match="missing required field `id`"):
        msgspec.json.decode(b"{}", type=scope["Thing"])
