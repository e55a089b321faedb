"""Functions of JSON values that declare their records: what they get, what becomes of their outputs, how they are described."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict

import msgspec
import numpy as np
import orjson
import pytest
from pydantic import BaseModel, ConfigDict, Field

from api.server.function_description import describe_function
from smore.domain.function import FunctionSpec, TensorSpec
from smore.handler import Handler
from worker import frames
from worker.frames import SCHEMA_BYTES, Answer, BadFrame, Item, Results
from worker.runner import mistakes
from worker.runner.answers import describe, results
from worker.runner.arrays import BadOutput
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


RESULTS = Results(one=1 << 20, together=1 << 21)


def answers(handler: Handler, *values: Any) -> list[tuple[Answer, bytes]]:
    """The answer to each of a batch, and its bytes."""
    loaded = Resident(handler, "cpu", RESULTS)
    loaded.first_run()
    bodies = [orjson.dumps(value) for value in values]
    items = [Item(encoding="json", accept="json", rows=1, length=len(body)) for body in bodies]
    predicted, chunks = loaded.predict(items, memoryview(b"".join(bodies)))
    results(items, predicted.answers, bytearray(b"".join(chunks)))
    parts = iter(chunks)
    return [(each, bytes(next(parts)) if each.form == "json" else b"") for each in predicted.answers]


def described(handler: Handler, copies: int = 1) -> Answer:
    """The answer to a canary."""
    answer, _ = Resident(handler, "cpu", RESULTS).canary(copies)
    return answer


@pytest.mark.parametrize(
    ("handler", "value", "output"),
    [
        (Models, {"text": "a b c", "limit": {"most": 2}}, {"words": ["a", "b"]}),
        (Points, {"x": 1, "y": 2}, {"x": 2.0, "y": 1.0}),
        (Mixed, {"name": "abc"}, {"n": 3}),
    ],
)
def test_an_input_becomes_a_record_and_an_output_json(handler: type[Handler], value: Any, output: Any) -> None:
    answered, refused = answers(handler(), value, {})
    assert orjson.loads(answered[1]) == output
    assert refused[0].form == "error", "the others of a batch run"


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    income: float
    age: int = Field(ge=0)
    name: str | None = None


class People(Handler):
    example: ClassVar = {"income": 1, "age": 1}

    def predict(self, inputs: list[Person]) -> list[Person]:
        return inputs


class Inner(msgspec.Struct):
    size: int


class Outer(msgspec.Struct):
    width: Annotated[float, msgspec.Meta(ge=0)]
    inner: list[Inner]
    name: str = msgspec.field(default="", name="fullName")


class Nested(Handler):
    example: ClassVar = {"width": 1, "inner": []}

    def predict(self, inputs: list[Outer]) -> list[Outer]:
        return inputs


@pytest.mark.parametrize(
    ("handler", "value", "field", "detail"),
    [
        (
            People,
            {"incom": 5, "age": "old"},
            "input.income",
            "input.income: missing; input.age: a whole number is expected, not a string; input.incom: unknown field;"
            " did you mean income?",
        ),
        (People, {"income": 1, "age": -1}, "input.age", "input.age: should be greater than or equal to 0"),
        (People, {"income": 1, "age": 1, "z": 1}, "input.z", "input.z: unknown field"),
        (People, {"income": 1, "age": 1, "name": 3}, "input.name", "input.name: a string is expected, not a number"),
        (People, [1], "input", "input: an object is expected, not a list"),
        (
            Models,
            {"text": "a", "limit": {"mst": 1}},
            "input.limit.most",
            "input.limit.mst: unknown field; did you mean most?",
        ),
        (Points, {"x": "1", "y": None}, "input.x", "input.x: a number is expected, not a string; input.y: a number"),
        (Points, {"z": 1, "y": "a"}, "input.y", "input.x: missing; input.z: unknown field"),
        (Points, 3, "input", "input: an object is expected, not a whole number"),
        (Mixed, {"nam": "a"}, "input.name", "input.name: missing; input.nam: unknown field; did you mean name?"),
        (
            Nested,
            {"width": -1, "inner": [{"size": 1}, {"sise": 2}], "fullName": 3},
            "input.width",
            "input.width: a number >= 0.0 is expected; input.inner[1].size: missing; input.fullName: a string is"
            " expected, not a whole number; input.inner[1].sise: unknown field; did you mean size?",
        ),
        (
            Nested,
            {"width": 1, "inner": [{"size": 1}] * 9 + [{}]},
            "input.inner[9].size",
            "input.inner[9].size: missing",
        ),
    ],
)
def test_all_mistakes_of_an_input_are_named(handler: type[Handler], value: Any, field: str, detail: str) -> None:
    [(answer, _)] = answers(handler(), value)
    assert (answer.cause, answer.field) == ("invalid_input", field)
    assert detail in answer.message and "InvalidInput" not in answer.message


def test_mistakes_beyond_a_bound_are_counted() -> None:
    [(answer, _)] = answers(Models(), {f"f{number}": 1 for number in range(100)} | {"limit": {"most": "x" * 5000}})
    assert answer.message.endswith("; and 2 more") and len(answer.message) < 700


def test_names_are_suggested_for_what_is_shown_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def search(name: str, names: list[str]) -> str:
        searched.append(name)
        return "; did you mean age?"

    monkeypatch.setattr(mistakes, "did_you_mean", search)
    [(answer, _)] = answers(People(), {f"f{number}": 1 for number in range(1000)} | {"income": 1, "age": 1})
    assert answer.message.count("did you mean") == len(searched) == 5 and answer.message.endswith(" and 995 more")


class Score(BaseModel):
    score: float
    words: int


@dataclass
class Plainly:
    score: float
    words: int


class Gives(Handler):
    """Answers what it is asked for; its example is a good one."""

    example: ClassVar[Any] = {"score": 1, "words": 1}
    given: ClassVar[Any] = None

    def predict(self, inputs: list[Any]) -> list[Any]:
        return [each if self.given is None else self.given for each in inputs]


class GivesModel(Gives):
    def predict(self, inputs: list[Any]) -> list[Score]:
        return super().predict(inputs)


class GivesData(Gives):
    def predict(self, inputs: list[Any]) -> list[Plainly]:
        return super().predict(inputs)


WRONG = {"score": "high", "wordz": 3}


@pytest.mark.parametrize("handler", [GivesModel, GivesData])
def test_an_output_is_checked_against_what_is_declared(handler: type[Gives], monkeypatch: pytest.MonkeyPatch) -> None:
    good, wrong, null = answers(handler(), {"score": 0.5, "words": 2, "more": 1}, WRONG, {"score": None, "words": 2})
    assert orjson.loads(good[1]) == {"score": 0.5, "words": 2, "more": 1}, "what the handler gave"
    assert wrong[0].cause == null[0].cause == "bad_output"
    assert wrong[0].message == (
        "output.score: a number is expected, not a string; output.words: missing; output.wordz: unknown field; did you mean"
        " words?"
    )
    assert null[0].message == "output.score: a number is expected, not null (NaN and infinity become null)"
    monkeypatch.setattr(handler, "given", {"score": np.float32(0.5), "words": np.int64(2)})
    assert described(handler()).form == "json", "numpy's numbers are numbers of JSON"
    # Longer answers are checked in the first run alone.
    monkeypatch.setattr(handler, "given", WRONG | {"more": "x" * (64 << 10)})
    assert described(handler()).cause == "bad_output"
    assert [answer.form for answer, _ in answers(handler(), 1)] == ["json"]


def test_a_record_of_another_kind_is_no_declared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GivesModel, "given", Score(score=1, words=1))
    assert described(GivesModel()).form == "json"
    monkeypatch.setattr(GivesModel, "given", Reply(words=["a"]))
    assert "output.words: a whole number is expected, not a list" in described(GivesModel()).message
    monkeypatch.setattr(GivesData, "given", Plainly(score="high", words=1))  # type: ignore[arg-type]
    assert described(GivesData()).message == "output.score: a number is expected, not a string"


def tensors_of(given: Any) -> Handler:
    class Tensors(Gives):
        example: ClassVar = {"x": np.zeros((1, 1), np.float32)}

        def predict(self, inputs: Any) -> Any:
            return {"y": given}

    return Tensors()


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"when": object()}, "bad_output"),
        ({1, 2}, "bad_output"),
        ("x" * (1 << 20), "result_too_large"),
        ({"x": float("nan")}, ""),
    ],
)
def test_a_canary_fails_where_its_output_cannot_be_encoded(
    given: Any, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gives, "given", given)
    answer = described(Gives())
    assert (answer.cause, answer.form) == (cause, "error" if cause else "json")


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (np.zeros((1, (1 << 20) + 1), np.uint8), "result_too_large"),
        # Either is refused as JSON alone.
        (np.zeros((1, 1 << 19), np.uint8), ""),
        (np.array([b"\xff"], object), ""),
    ],
)
def test_a_canary_of_tensors_passes_where_a_call_can_be_answered(given: Any, cause: str) -> None:
    assert described(tensors_of(given)).cause == cause


class GivesRows(Gives):
    """Answers of the first example alone are good."""

    example: ClassVar = {"x": np.zeros((2, 300), np.float32)}

    def predict(self, inputs: Any) -> Any:
        return {"y": np.repeat(inputs["x"], 220, axis=1)[: self.given]}


def test_a_canary_of_several_holds_each_against_what_a_call_can_be_answered_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert described(GivesRows(), 2).form == "json", "each is within the bound, both together are not"
    monkeypatch.setattr(GivesRows, "given", 2)
    assert described(GivesRows()).form == "json"
    with pytest.raises(BadOutput, match="4 rows are expected"):
        described(GivesRows(), 2)

    class SecondIsWrong(GivesData):
        def predict(self, inputs: list[Any]) -> list[Plainly]:
            return [inputs[0], *[WRONG] * (len(inputs) - 1)]

    assert (described(SecondIsWrong()).cause, described(SecondIsWrong(), 2).cause) == ("", "bad_output")


@pytest.mark.parametrize("handler", [Plain, Unresolved])
def test_other_annotations_declare_nothing(handler: type[Handler]) -> None:
    assert [orjson.loads(body) for _, body in answers(handler(), [1], {"a": 2})] == [[1], {"a": 2}]
    assert Declared(handler()).schemas() == (None, None)


def test_a_canary_describes_what_is_declared() -> None:
    loaded = Resident(Models(), "cpu", Results(one=1 << 20, together=1 << 20))
    _, [body] = loaded.canary()
    description = describe(bytes(body))
    assert description.input_schema is not None and description.output_schema is not None
    assert description.input_schema["required"] == ["text"]
    assert description.output_schema["properties"]["words"]["type"] == "array"


def _deep(value: Any) -> Any:
    for _ in range(100):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("example", "shown"),
    [
        ({"text": "a"}, {"text": "a"}),
        ({"x": np.arange(4, dtype=np.float32).reshape(2, 2)}, {"x": [[0, 1], [2, 3]]}),
        ({"x": np.array([["a"], ["b"]], dtype=object)}, {"x": [["a"], ["b"]]}),
        ({"x": np.zeros((1, 2000), np.float32)}, None),
        ({"text": "a" * 5000}, None),
        ("a\0b", None),
        (10**4000, None),
        (_deep(1), None),
    ],
    ids=["JSON", "tensor", "texts", "large tensor", "large", "NUL", "integer", "deep"],
)
def test_a_canary_shows_an_example_that_is_small(example: Any, shown: Any) -> None:
    class Same(Handler):
        def predict(self, inputs: Any) -> Any:
            return inputs if isinstance(inputs, dict) else [1] * len(inputs)

    Same.example = example
    _, [body] = Resident(Same(), "cpu", Results(one=1 << 20, together=1 << 20)).canary()
    assert describe(bytes(body)).example == shown


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
    assert set(call["responses"]["429"]["headers"]) == {"Retry-After", "Idempotency-Replayed", "X-Request-Id"}
    ours = {"$ref": "#/components/schemas/input"}
    assert schemas["Calls"]["properties"]["inputs"]["items"] == ours
    assert ours.items() <= schemas["Call"]["properties"]["input"].items()
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
