"""Functions of JSON values that declare their records: what they get, what becomes of their outputs, how they are described."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import msgspec
import orjson
import pytest
from pydantic import BaseModel, Field

from api.server.function_description import describe_function
from smore.domain.function import FunctionSpec, TensorSpec
from smore.handler import Handler
from worker import frames
from worker.frames import SCHEMA_BYTES, BadFrame, Item, Results
from worker.runner.answers import describe
from worker.runner.declared import Declared
from worker.runner.resident import Resident

URL = "https://gpus.example"


class Limit(BaseModel):
    most: int = Field(ge=1)


class Question(BaseModel):
    text: str
    limit: Limit = Limit(most=3)


class Reply(BaseModel):
    words: list[str]


class Models(Handler):
    example: ClassVar = {"text": "a b"}

    async def predict(self, inputs: list[Question]) -> list[Reply]:
        return [Reply(words=each.text.split()[: each.limit.most]) for each in inputs]


@dataclass
class Point:
    x: float
    y: float = 0.0


class Points(Handler):
    example: ClassVar = {"x": 1.0}

    def predict(self, inputs: list[Point]) -> list[Point]:
        return [Point(each.y, each.x) for each in inputs]


class Count(msgspec.Struct):
    n: int


class Named(TypedDict):
    name: str


class Mixed(Handler):
    example: ClassVar = {"name": "a"}

    def predict(self, inputs: list[Named]) -> list[Count]:
        return [Count(len(each["name"])) for each in inputs]


class Plain(Handler):
    example: ClassVar = {"anything": 1}

    def predict(self, inputs: list[dict[str, Any]]) -> list[Any]:
        return inputs


class Unresolved(Plain):
    def predict(self, inputs: "list[Elsewhere]") -> Any:  # type: ignore[name-defined]  # noqa: F821
        return inputs


def run(handler: Handler, *values: Any) -> list[Any]:
    """The outputs of a batch, or the messages of its errors."""
    loaded = Resident(handler, "cpu", Results(one=1 << 20, together=1 << 20))
    loaded.first_run()
    bodies = [orjson.dumps(value) for value in values]
    items = [Item(encoding="json", accept="json", rows=1, length=len(body)) for body in bodies]
    predicted, chunks = loaded.predict(items, memoryview(b"".join(bodies)))
    parts = iter(chunks)
    return [orjson.loads(next(parts)) if each.form == "json" else each.message for each in predicted.answers]


@pytest.mark.parametrize(
    ("handler", "value", "output", "wrong", "place"),
    [
        (Models, {"text": "a b c", "limit": {"most": 2}}, {"words": ["a", "b"]}, {"limit": {"most": 0}}, "text"),
        (Models, {"text": "a"}, {"words": ["a"]}, {"text": "a", "limit": {"most": 0}}, "limit.most"),
        (Points, {"x": 1, "y": 2}, {"x": 2.0, "y": 1.0}, {"x": "1"}, "$.x"),
        (Mixed, {"name": "abc"}, {"n": 3}, {}, "name"),
        # What is missing is often misspelt: a field that the record does not have is named as well.
        (Models, {"text": "a"}, {"words": ["a"]}, {"txt": "a"}, "text: Field required; unknown: 'txt'"),
        (Points, {"x": 1}, {"x": 0.0, "y": 1.0}, {"z": 1, "y": 2}, "missing required field `x`; unknown: 'z'"),
        (Mixed, {"name": "abc"}, {"n": 3}, {"nam": "a"}, "unknown: 'nam'"),
    ],
)
def test_an_input_is_checked_and_an_output_is_json(
    handler: type[Handler], value: Any, output: Any, wrong: Any, place: str
) -> None:
    answered, refused = run(handler(), value, wrong)
    assert answered == output
    assert refused.startswith("InvalidInput: ") and place in refused


@pytest.mark.parametrize("handler", [Plain, Unresolved])
def test_other_annotations_declare_nothing(handler: type[Handler]) -> None:
    assert run(handler(), [1], {"a": 2}) == [[1], {"a": 2}]
    assert Declared(handler()).schemas() == (None, None)


def test_a_canary_describes_what_is_declared() -> None:
    loaded = Resident(Models(), "cpu", Results(one=1 << 20, together=1 << 20))
    _, [body] = loaded.canary()
    description = describe(bytes(body))
    assert description.input_schema is not None and description.output_schema is not None
    assert description.input_schema["required"] == ["text"]
    assert description.output_schema["properties"]["words"]["type"] == "array"


@pytest.mark.parametrize("schema", [{"x": "y" * SCHEMA_BYTES}, orjson.loads(b'{"a":' * 100 + b"1" + b"}" * 100)])
def test_a_worker_takes_no_schema_that_is_large_or_deep(schema: dict[str, Any]) -> None:
    description = frames.Description(inputs=None, outputs=None, memory_mib=1.0, input_schema=schema)
    with pytest.raises(BadFrame, match="too large"):
        describe(msgspec.json.encode(description))


@pytest.mark.parametrize("handler", [Models, Points, Mixed])
def test_a_functions_document_has_the_schemas_without_dangling_references(handler: type[Handler]) -> None:
    given, returned = Declared(handler()).schemas()
    document = describe_function(
        "f", 2, FunctionSpec(entrypoint="a:B"), {"input_schema": given, "output_schema": returned}, URL
    )
    text = msgspec.json.encode(document).decode()
    assert "$defs" not in text
    schemas = document["components"]["schemas"]
    targets = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert targets <= set(schemas)
    assert {"input", "output"} <= targets
    assert list(document["paths"]) == ["/v1/functions/f/invocations"]
    assert document["servers"] == [{"url": URL}]
    call = document["paths"]["/v1/functions/f/invocations"]["post"]
    assert {each["name"] for each in call["parameters"]} >= {"Prefer", "Idempotency-Key", "Smore-Deadline-Ms"}
    assert {"Location", "Idempotency-Replayed"} <= set(call["responses"]["202"]["headers"])
    assert "Server-Timing" in call["responses"]["200"]["headers"]
    assert "Retry-After" in call["responses"]["429"]["headers"]
    body = call["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["inputs"]["items"] == body["properties"]["input"]
    assert schemas["InputOutcome"]["properties"]["output"]["$ref"].endswith("/output")
    assert schemas["problem"]["properties"]["earliest_deadline_ms"]["description"]


def test_a_functions_document_has_its_tensors() -> None:
    spec = FunctionSpec(
        entrypoint="a:B",
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 3)),),
        outputs=(TensorSpec(name="y", datatype="BYTES", shape=(-1,)),),
    )
    schemas = describe_function("f", 1, spec, {}, URL)["components"]["schemas"]
    x = schemas["input"]["properties"]["x"]
    assert (x["type"], x["items"]["minItems"], x["items"]["items"]["type"]) == ("array", 3, "number")
    assert schemas["output"]["properties"]["y"]["items"] == {"type": "string"}
