"""Outputs of a run against those that a function.yaml declares."""

import pytest

from smore.definition.outputs import misfit
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
