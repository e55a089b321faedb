"""Outputs of a run against those that a function.yaml declares, and against those of another revision."""

from typing import Any

import pytest

from smore.definition.outputs import changes, misfit
from smore.domain.function import TensorSpec


def tensor(name: str, datatype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape)


DECLARED = [tensor("score", "FP32", -1, 1), tensor("words", "INT64", -1, -1)]


def test_a_free_axis_takes_any_size() -> None:
    assert misfit(DECLARED, [tensor("words", "INT64", -1, 7), tensor("score", "FP32", -1, 1)]) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "outputs: tensors are declared, and the handler gives JSON values"),
        ([tensor("skore", "FP32", -1, 1)], "outputs: score, words are declared, and the handler gives skore"),
        (
            [*DECLARED, tensor("more", "FP32", -1)],
            "outputs: score, words are declared, and the handler gives score, words, more",
        ),
        (
            [tensor("score", "FP64", -1, 1), DECLARED[1]],
            "outputs.score: FP32 is declared, and the handler gives FP64",
        ),
        (
            [tensor("score", "FP32", -1, 2), DECLARED[1]],
            "outputs.score: the shape [-1, 1] is declared, and the handler gives [-1, 2]",
        ),
        (
            [tensor("score", "FP32", -1), DECLARED[1]],
            "outputs.score: the shape [-1, 1] is declared, and the handler gives [-1]",
        ),
    ],
)
def test_what_does_not_fit_is_named(given: list[TensorSpec] | None, words: str) -> None:
    assert misfit(DECLARED, given) == words


def described(outputs: list[dict[str, Any]] | None, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"inputs": None, "outputs": outputs, "input_schema": None, "output_schema": schema, "load_ms": 1.0}


SCORE = {"name": "score", "datatype": "FP32", "shape": [-1, 3]}


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (described([SCORE]), described([SCORE]) | {"load_ms": 2.0}, []),
        ({"load_ms": 1.0}, described([SCORE]), []),
        (described(None, {"type": "object"}), described(None, {"type": "object"}), []),
        (
            described([SCORE]),
            described([SCORE | {"shape": [-1, 5]}]),
            ["outputs.score: FP32 [-1, 5], before: FP32 [-1, 3]"],
        ),
        (
            described([SCORE]),
            described([SCORE | {"name": "scores"}]),
            ["outputs.score: gone, before: FP32 [-1, 3]", "outputs.scores: FP32 [-1, 3], before: not there"],
        ),
        (described([SCORE]), described(None), ["outputs: JSON values, before: tensors"]),
        (
            described(None, {"type": "object"}),
            described(None, {"type": "array"}),
            ["outputs: the types that the handler declares have changed"],
        ),
    ],
)
def test_what_another_revision_changes_is_named(before: dict[str, Any], now: dict[str, Any], words: list[str]) -> None:
    assert changes(before, now) == words


WORD = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def record(required: list[str], word: dict[str, Any] = WORD, **fields: dict[str, Any]) -> dict[str, Any]:
    """As msgspec writes it: the record is a definition too."""
    own = {"title": "Score", "type": "object", "properties": fields, "required": required}
    return {"$ref": "#/$defs/Score", "$defs": {"Score": own, "Word": word}}


NUMBER, TEXT, WORDS = {"type": "number"}, {"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/Word"}}
BASE = record(["score"], score=NUMBER, title=TEXT, words=WORDS)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (record(["score"], score=NUMBER | {"title": "Score"}, title=TEXT, words=WORDS), []),
        (BASE["$defs"]["Score"] | {"$defs": {"Word": WORD}}, []),
        (
            record(["score"], score=TEXT, words=WORDS, more={"anyOf": [NUMBER, {"type": "null"}]}),
            [
                "outputs.score: string, before: number",
                "outputs.title: gone, before: string (optional)",
                "outputs.more: number or null (optional), before: not there",
            ],
        ),
        (
            record([], score=NUMBER, title=TEXT, words={"type": "array", "items": NUMBER}),
            [
                "outputs.score: number (optional), before: number",
                "outputs.words: array of number (optional), before: array of Word (optional)",
            ],
        ),
        (
            record(["score"], WORD | {"required": []}, score=NUMBER, title=TEXT, words=WORDS),
            ["outputs.words: array of Word (optional) as before, but its parts or bounds have changed"],
        ),
        (
            record(["score"], score=NUMBER | {"minimum": 0}, title=TEXT, words=WORDS),
            ["outputs.score: number as before, but its parts or bounds have changed"],
        ),
        (None, ["outputs: types are no longer declared"]),
    ],
)
def test_fields_of_a_record_that_have_changed_are_named(now: dict[str, Any] | None, words: list[str]) -> None:
    assert changes(described(None, BASE), described(None, now)) == words
