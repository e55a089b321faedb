"""Inputs against declarations: what is wrong is named by its place, and what is right becomes the right bytes."""

import struct

import orjson
import pytest

from smore.definition.inputs import from_json, from_raw
from smore.domain.errors import InvalidInput, PayloadTooLarge
from smore.domain.function import FunctionSpec, TensorSpec
from smore.domain.invocation import Encoding


def tensor(name: str = "x", datatype: str = "FP32", *axes: int) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=(-1, *axes))


def spec(*inputs: TensorSpec, payload_bytes: int = 8 << 20) -> FunctionSpec:
    return FunctionSpec(entrypoint="a:B", inputs=inputs or None, payload_bytes=payload_bytes)


FIXED = spec(tensor("x", "FP32", 3))
IMAGE = spec(tensor("x", "UINT8", 2, 2))
TEXT = spec(tensor("tokens", "INT64", -1), tensor("mask", "BOOL", -1))


@pytest.mark.parametrize(
    "value",
    [None, 0, "text", [1, [2]], {"x": [1, 2, 3, 4, 5, 6, 7, 8], "id": "abc"}, {"": {"\u0000": "é"}}, 1e308, -0.0],
)
def test_a_json_function_takes_any_value(value: object) -> None:
    payload = from_json(value, spec(), "input")

    assert orjson.loads(payload.body) == value
    assert (payload.encoding, payload.rows, payload.shape) == (Encoding.JSON, 1, "")


@pytest.mark.parametrize(
    ("value", "rows", "shape"),
    [
        (({"x": [[1, 2.5, -3]]}, FIXED), 1, "x:FP32:"),
        (({"x": [[1, 2, 3], [4, 5, 6]]}, FIXED), 2, "x:FP32:"),
        (({"x": [[[0, 255], [1, 2]]]}, IMAGE), 1, "x:UINT8:"),
        (({"mask": [[True, False]], "tokens": [[1, -(2**63)]]}, TEXT), 1, "tokens:INT64:2;mask:BOOL:2"),
        (({"mask": [[True]], "tokens": [[1, 2, 3]]}, TEXT), 1, "tokens:INT64:3;mask:BOOL:1"),
        (({"x": [1, 2, 3]}, spec(tensor("x", "FP16"))), 3, "x:FP16:"),
    ],
)
def test_tensors_in_json(value: tuple[object, FunctionSpec], rows: int, shape: str) -> None:
    payload = from_json(*value, "input")

    assert (payload.rows, payload.shape, payload.encoding) == (rows, shape, Encoding.JSON)
    assert orjson.loads(payload.body) == value[0]


@pytest.mark.parametrize(
    ("value", "declared", "field"),
    [
        (None, FIXED, "input"),
        ([[1, 2, 3]], FIXED, "input"),
        ({}, FIXED, "input.x"),
        ({"x": [[1, 2, 3]], "y": 1}, FIXED, "input.y"),
        ({"x": None}, FIXED, "input.x"),
        ({"x": 1}, FIXED, "input.x"),
        ({"x": []}, FIXED, "input.x"),
        ({"x": [1, 2, 3]}, FIXED, "input.x[0]"),
        ({"x": [[]]}, FIXED, "input.x[0]"),
        ({"x": [[1, 2]]}, FIXED, "input.x[0]"),
        ({"x": [[1, 2, 3, 4]]}, FIXED, "input.x[0]"),
        ({"x": [[1, 2, 3], [4, 5]]}, FIXED, "input.x[1]"),
        ({"x": [[1, 2, 3], "abc"]}, FIXED, "input.x[1]"),
        ({"x": [[1, 2, "3"]]}, FIXED, "input.x[0][2]"),
        ({"x": [[1, 2, None]]}, FIXED, "input.x[0][2]"),
        ({"x": [[1, 2, True]]}, FIXED, "input.x[0][2]"),
        ({"x": [[1, [2], 3]]}, FIXED, "input.x[0][1]"),
        ({"x": [[1, 1e39, 3]]}, FIXED, "input.x[0][1]"),
        ({"x": [[1, -1e39, 3]]}, FIXED, "input.x[0][1]"),
        ({"x": [[[0, 256], [0, 0]]]}, IMAGE, "input.x[0][0][1]"),
        ({"x": [[[0, 0], [-1, 0]]]}, IMAGE, "input.x[0][1][0]"),
        ({"x": [[[0, 0], [1.0, 0]]]}, IMAGE, "input.x[0][1][0]"),
        ({"x": [[[0, 0], 7]]}, IMAGE, "input.x[0][1]"),
        ({"tokens": [[1, 2], [3]], "mask": [[True], [True]]}, TEXT, "input.tokens[1]"),
        ({"tokens": [[1]], "mask": [[1]]}, TEXT, "input.mask[0][0]"),
        ({"tokens": [[1]], "mask": [[True], [True]]}, TEXT, "input.mask"),
        ({"x": [70000.0]}, spec(tensor("x", "FP16")), "input.x[0]"),
        ({"x": [2**63]}, spec(tensor("x", "INT64")), "input.x[0]"),
    ],
)
def test_what_is_wrong_is_named(value: object, declared: FunctionSpec, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_json(value, declared, "input")

    assert refused.value.details["field"] == field
    assert str(refused.value).startswith(f"{field}: ")


def test_too_deep_and_too_large_values_are_refused() -> None:
    with pytest.raises(InvalidInput, match="deeply"):
        from_json(orjson.loads(b"[" * 600 + b"]" * 600), spec(), "input")
    with pytest.raises(PayloadTooLarge):
        from_json("x" * 100, spec(payload_bytes=100), "input")


RAW_ROW = struct.pack("<3f", 1, 2, 3)


def test_raw_rows_follow_from_the_size() -> None:
    payload = from_raw(RAW_ROW * 2, None, FIXED)

    text = b"x:FP32:2,3"
    assert payload.body == len(text).to_bytes(2, "big") + text + RAW_ROW * 2
    assert (payload.encoding, payload.rows, payload.shape) == (Encoding.RAW, 2, "x:FP32:")


def test_raw_free_axes_come_from_the_header() -> None:
    body = struct.pack("<4q", 1, 2, 3, 4) + bytes([1, 0, 1, 1])

    payload = from_raw(body, "mask=2,2; tokens=2,2", TEXT)

    text = b"tokens:INT64:2,2;mask:BOOL:2,2"
    assert payload.body == len(text).to_bytes(2, "big") + text + body
    assert (payload.rows, payload.shape) == (2, "tokens:INT64:2;mask:BOOL:2")


@pytest.mark.parametrize(
    ("body", "header", "declared", "field"),
    [
        (b"", None, FIXED, "body"),
        (RAW_ROW[:-1], None, FIXED, "body"),
        (RAW_ROW, "x=2,3", FIXED, "body"),
        (RAW_ROW, "x=1,4", FIXED, "Smore-Shape.x"),
        (RAW_ROW, "x=3", FIXED, "Smore-Shape.x"),
        (b"", "x=0,3", FIXED, "Smore-Shape.x"),
        (RAW_ROW, "y=1,3", FIXED, "Smore-Shape.x"),
        (RAW_ROW, "x=1,3;y=1", FIXED, "Smore-Shape.y"),
        (RAW_ROW, "x=1,3;x=1,3", FIXED, "Smore-Shape"),
        (RAW_ROW, "x=1,-3", FIXED, "Smore-Shape"),
        (RAW_ROW, "x=1,²", FIXED, "Smore-Shape"),
        (RAW_ROW, "x", FIXED, "Smore-Shape"),
        (RAW_ROW, "", FIXED, "Smore-Shape"),
        (RAW_ROW, "x=99999999999999999999,3", FIXED, "Smore-Shape"),
        (RAW_ROW, None, TEXT, "Smore-Shape"),
        (bytes(9 + 9), "tokens=1,2;mask=2,1", TEXT, "Smore-Shape.mask"),
        (RAW_ROW, None, spec(), "body"),
    ],
)
def test_wrong_raw_bodies_are_named(body: bytes, header: str | None, declared: FunctionSpec, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_raw(body, header, declared)

    assert refused.value.details["field"] == field


WORDS = spec(tensor("s", "BYTES", 1))


def test_bytes_by_json_and_raw() -> None:
    assert from_json({"s": [["é"], [""]]}, WORDS, "input").rows == 2
    with pytest.raises(InvalidInput, match=r"input\.s\[0\]\[0\]: 7 is not BYTES"):
        from_json({"s": [[7]]}, WORDS, "input")

    section = b"\x01\0\0\0a" + b"\0\0\0\0"
    assert from_raw(section, "s=2,1", WORDS).body == (11).to_bytes(2, "big") + b"s:BYTES:2,1" + section
    for body, header in ((section, None), (section, "s=1,1"), (section, "s=3,1"), (section[:-1], "s=2,1")):
        with pytest.raises(InvalidInput):
            from_raw(body, header, WORDS)
