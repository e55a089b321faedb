"""
The Open Inference Protocol's bytes, against what tritonclient itself builds and reads: client → gateway → runner →
gateway → client, with no process between them.
"""

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult

from api.errors import Malformed, Unsupported
from api.openinference import codec
from smore.domain import tensors
from smore.domain.errors import CallerError, InvalidInput, PayloadTooLarge
from smore.domain.function import FunctionSpec, TensorSpec
from smore.domain.invocation import Encoding
from smore.messages.results import Result
from worker.runner.arrays import DTYPES, read_raw, write_raw

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]

FIXED = sorted(set(DTYPES) - {tensors.BYTES})


def tensor(name: str, datatype: str, *axes: int) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=(-1, *axes))


def function(
    *inputs: TensorSpec, outputs: Sequence[TensorSpec] | None = None, payload_bytes: int = 8 << 20
) -> FunctionSpec:
    return FunctionSpec(
        entrypoint="a:B",
        inputs=inputs or None,
        outputs=tuple(outputs) if outputs is not None else None,
        payload_bytes=payload_bytes,
    )


PAIR = function(tensor("a", "FP32", 3), tensor("k", "INT64", -1))


def sent(
    arrays: Arrays, spec: FunctionSpec, binary: Sequence[bool] | bool = True, **more: Any
) -> tuple[bytes, int | None]:
    """As tritonclient sends it."""
    datatypes = {one.name: one.datatype for one in spec.inputs or codec.JSON_INPUTS}
    inputs = []
    for position, (name, array) in enumerate(arrays.items()):
        one = InferInput(name, list(array.shape), datatypes[name])
        one.set_data_from_numpy(array, binary_data=binary if isinstance(binary, bool) else binary[position])
        inputs.append(one)
    body, size = InferenceServerClient.generate_request_body(inputs, **more)
    return body, size


def run(payload: bytes, example: Arrays) -> Result:
    """A runner that answers what it got."""
    chunks, shapes = write_raw(read_raw(payload, example))
    return Result(form="raw", body=b"".join(chunks), shapes=shapes)


def answered(result: Result, inference: codec.Inference) -> InferResult:
    body, size = codec.write(result, inference, "model", 7)
    return InferResult.from_response_body(body, header_length=size)


# ---- what a client sends arrives, and what it gets is what was meant -------------------------------------------------


def arrays_of(datatype: str, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray[Any, np.dtype[Any]]]:
    if datatype == tensors.BYTES:
        # Not NUL at the end: numpy's own fixed-size bytes would drop it, and so it would be numpy that is tested.
        return npst.arrays(object, shape, elements=st.text(max_size=5).map(str.encode))
    dtype = DTYPES[datatype]
    elements = npst.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    return npst.arrays(dtype, shape, elements=elements)


@st.composite
def requests(draw: st.DrawFn) -> tuple[FunctionSpec, Arrays, list[bool]]:
    rows = draw(st.integers(0, 3))
    declared, arrays = [], {}
    for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)):
        datatype = draw(st.sampled_from(tensors.DATATYPES))
        axes = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
        free = draw(st.lists(st.booleans(), min_size=len(axes), max_size=len(axes)))
        declared.append(
            tensor(name, datatype, *(-1 if any_ or not size else size for size, any_ in zip(axes, free, strict=True)))
        )
        arrays[name] = draw(arrays_of(datatype, (rows, *axes)))
    in_json = draw(st.lists(st.booleans(), min_size=len(declared), max_size=len(declared)))
    return function(*declared), dict(draw(st.permutations(list(arrays.items())))), in_json


@settings(max_examples=60, deadline=None)
@given(requests(), st.booleans())
def test_tensors_go_round(request: tuple[FunctionSpec, Arrays, list[bool]], wanted_binary: bool) -> None:
    spec, arrays, binary = request
    assert spec.inputs is not None
    outputs = [InferRequestedOutput(name, binary_data=wanted_binary) for name in arrays]
    body, size = sent(arrays, spec, binary, request_id="again", outputs=outputs)

    inference = codec.read(body, size, spec)
    example = {one.name: np.empty([1] * len(one.shape), DTYPES[one.datatype]) for one in spec.inputs}
    got = read_raw(inference.payload.body, example)
    result = answered(run(inference.payload.body, example), inference)

    assert (inference.payload.encoding, inference.payload.rows) == (
        Encoding.RAW,
        max(1, next(iter(arrays.values())).shape[0]),
    )
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)
        back = result.as_numpy(name)
        if not wanted_binary and array.dtype.kind == "O":
            back = np.fromiter((text.encode() for text in back.flat), object, back.size).reshape(back.shape)
        assert back is not None and back.shape == array.shape
        np.testing.assert_array_equal(back, array)
    assert result.get_response()["id"] == "again"


@pytest.mark.parametrize("datatype", [*FIXED, tensors.BYTES])
@pytest.mark.parametrize("binary", [True, False])
def test_every_datatype(datatype: str, binary: bool) -> None:
    array = (
        np.array([[b"", b"x\xc3\xa9"]], object) if datatype == tensors.BYTES else np.array([[1, 0]], DTYPES[datatype])
    )
    spec = function(tensor("x", datatype, 2))
    body, size = sent({"x": array}, spec, binary)

    got = read_raw(codec.read(body, size, spec).payload.body, {"x": array})["x"]

    assert got.dtype == array.dtype and got.tolist() == array.tolist()


def test_bytes_need_not_be_text_in_a_binary_answer() -> None:
    array = np.array([[b"\xff\x00"]], object)
    spec = function(tensor("x", tensors.BYTES, 1))
    body, size = sent({"x": array}, spec)
    inference = codec.read(body, size, spec)
    result = run(inference.payload.body, {"x": array})

    assert answered(result, inference).as_numpy("x").tolist() == [[b"\xff\x00"]]
    with pytest.raises(InvalidInput, match="binary_data"):
        codec.write(
            result,
            codec.read(*sent({"x": array}, spec, outputs=[InferRequestedOutput("x", binary_data=False)]), spec),
            "m",
            1,
        )


def test_raw_tensors_are_not_touched() -> None:
    """Up to the runner the bytes are the client's own: only the description before them is the gateway's."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    body, size = sent({"a": array}, function(tensor("a", "FP32", 3)))

    payload = codec.read(body, size, function(tensor("a", "FP32", 3))).payload

    assert payload.body == struct.pack(">H", 10) + b"a:FP32:2,3" + array.tobytes()


def test_batches_are_made_of_like_shapes_whatever_their_order() -> None:
    a, k = np.zeros((2, 3), np.float32), np.zeros((2, 4), np.int64)
    orders: tuple[Arrays, Arrays] = ({"a": a, "k": k}, {"k": k, "a": a})
    first, second = (codec.read(*sent(arrays, PAIR), PAIR).payload for arrays in orders)
    other = codec.read(*sent({"a": a, "k": k[:, :3]}, PAIR), PAIR).payload

    assert first.shape == second.shape == "a:FP32:;k:INT64:4" and other.shape != first.shape


def test_subset_of_outputs_each_in_its_form() -> None:
    result = run(
        codec.read(*sent({"a": np.ones((1, 3), np.float32), "k": np.zeros((1, 0), np.int64)}, PAIR), PAIR).payload.body,
        {"a": np.ones((1, 3), np.float32), "k": np.zeros((1, 1), np.int64)},
    )

    def ask(*outputs: InferRequestedOutput) -> InferResult:
        arrays: Arrays = {"a": np.ones((1, 3), np.float32), "k": np.zeros((1, 0), np.int64)}
        return answered(result, codec.read(*sent(arrays, PAIR, outputs=list(outputs)), PAIR))

    one = ask(InferRequestedOutput("k", binary_data=True))
    assert one.as_numpy("a") is None and one.as_numpy("k").shape == (1, 0)
    both = ask(InferRequestedOutput("k", binary_data=False), InferRequestedOutput("a", binary_data=True))
    assert [shown["name"] for shown in both.get_response()["outputs"]] == ["k", "a"]
    assert both.as_numpy("a").tolist() == [[1, 1, 1]] and both.get_output("k")["data"] == []


def test_function_of_json_values() -> None:
    spec = function()
    array = np.array([orjson.dumps({"x": [1, None]})], object)
    for binary in (True, False):
        body, size = sent({"input": array}, spec, binary)
        inference = codec.read(body, size, spec)
        assert (inference.payload.encoding, orjson.loads(inference.payload.body)) == (Encoding.JSON, {"x": [1, None]})
        answer = answered(Result(form="json", body=b'{"y":2}'), inference)
        assert answer.as_numpy("output").tolist() == [b'{"y":2}']
    with pytest.raises(InvalidInput, match="not JSON"):
        codec.read(*sent({"input": np.array([b"{"], object)}, spec), spec)


@pytest.mark.parametrize("priority", [0, 1, 7])
def test_there_is_one_level_of_priority_and_the_answer_says_so(priority: int) -> None:
    array = np.ones((1, 3), np.float32)
    spec = function(tensor("a", "FP32", 3))
    inference = codec.read(*sent({"a": array}, spec, priority=priority, timeout=None), spec)
    got = answered(run(inference.payload.body, {"a": array}), inference).get_response()
    assert got.get("parameters") == ({"priority": 0} if priority else None)


def test_numbers_that_json_has_no_word_for_are_null() -> None:
    result = Result(form="raw", body=struct.pack("<2f", float("nan"), 1), shapes="x:FP32:2")
    document, size = codec.write(
        result, codec.read(*sent({"input": np.array([b"1"], object)}, function(), outputs=None), function()), "m", 1
    )
    assert size is not None and orjson.loads(document[:size])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    plain = codec.read(b'{"inputs":[{"name":"input","shape":[1],"datatype":"BYTES","data":["1"]}]}', None, function())
    assert orjson.loads(codec.write(result, plain, "m", 1)[0])["outputs"][0]["data"] == [None, 1.0]


@pytest.mark.parametrize(
    ("parameters", "deadline_ms"),
    [
        ({}, None),
        ({"timeout": 0}, None),
        ({"timeout": 2500}, 2.5),
        ({"smore_deadline_ms": 40}, 40),
        ({"timeout": 9000, "smore_deadline_ms": 8.5}, 8.5),
    ],
)
def test_deadline(parameters: dict[str, Any], deadline_ms: float | None) -> None:
    assert codec.read(*request_bytes(parameters=parameters), PAIR).deadline_ms == deadline_ms


# ---- what does not fit is refused, with its place --------------------------------------------------------------------

A = {"name": "a", "shape": [1, 3], "datatype": "FP32", "data": [[1, 2.5, -3]]}
K = {"name": "k", "shape": [1, 2], "datatype": "INT64", "parameters": {"binary_data_size": 16}}


def request_bytes(inputs: Any = (A, K), tail: bytes = bytes(16), **more: Any) -> tuple[bytes, int]:
    header = orjson.dumps({"inputs": inputs, **more})
    return header + tail, len(header)


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        (None, "inputs"),
        ([], "inputs"),
        ([7], "inputs[0]"),
        ([A | {"name": 7}, K], "inputs[0].name"),
        ([A | {"name": "b"}, K], "inputs[0].name"),
        ([A, A], "inputs[1].name"),
        ([K], "inputs"),
        ([A | {"datatype": "FP64"}, K], "inputs[0].datatype"),
        ([A | {"datatype": "BF16"}, K], "inputs[0].datatype"),
        ([A | {"datatype": ["FP32"]}, K], "inputs[0].datatype"),
        ([A | {"shape": [3]}, K], "inputs[0].shape"),
        ([A | {"shape": [1, 4]}, K], "inputs[0].shape"),
        ([A | {"shape": [1, -3]}, K], "inputs[0].shape"),
        ([A | {"shape": [1, 3.0]}, K], "inputs[0].shape"),
        ([A | {"shape": [True, 3]}, K], "inputs[0].shape"),
        ([A | {"shape": "1,3"}, K], "inputs[0].shape"),
        ([A | {"data": None}, K], "inputs[0].data"),
        ([A | {"data": 5}, K], "inputs[0].data"),
        ([A | {"data": [1, 2]}, K], "inputs[0].data"),
        ([A | {"data": [[1, 2], 3]}, K], "inputs[0].data"),
        ([A | {"data": [1, [2], 3]}, K], "inputs[0].data[1]"),
        ([A | {"data": [1, 2, "3"]}, K], "inputs[0].data[2]"),
        ([A | {"data": [1, 2, None]}, K], "inputs[0].data[2]"),
        ([A | {"data": [1, 2, 1e39]}, K], "inputs[0].data[2]"),
        ([A | {"shape": [2, 3], "data": [0] * 6}, K], "inputs.k"),
        ([A, K | {"data": [1, 2]}], "inputs[1].data"),
        ([A, K | {"parameters": 7}], "inputs[1].parameters"),
        ([A, K | {"parameters": {"binary_data_size": "16"}}], "inputs[1].parameters.binary_data_size"),
        ([A, K | {"parameters": {"binary_data_size": True}}], "inputs[1].parameters.binary_data_size"),
        ([A, K | {"parameters": {"binary_data_size": -16}}], "inputs[1].parameters.binary_data_size"),
        ([A, K | {"parameters": {"binary_data_size": 8}}], "inputs[1].parameters.binary_data_size"),
        ([A, K | {"parameters": {"binary_data_size": 17}}], "inputs[1].parameters.binary_data_size"),
        ([A, K | {"parameters": {"binary_data_size": 1 << 62}}], "inputs[1].parameters.binary_data_size"),
        ([A, K | {"shape": [1, 1 << 30]}], "inputs[1].parameters.binary_data_size"),
        ([A, K | {"shape": [1, 1], "parameters": {"binary_data_size": 8}}], "body"),
        ([A, K | {"shape": [1, 0], "parameters": {}, "data": []}], "body"),
    ],
)
def test_what_is_wrong_with_an_input_is_named(inputs: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        codec.read(*request_bytes(inputs), PAIR)

    assert refused.value.details["field"] == field


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"id": 7}, "id"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"priority": -1}}, "parameters.priority"),
        ({"parameters": {"priority": "high"}}, "parameters.priority"),
        ({"parameters": {"timeout": "1"}}, "parameters.timeout"),
        ({"parameters": {"timeout": -1}}, "parameters.timeout"),
        ({"parameters": {"timeout": False}}, "parameters.timeout"),
        ({"parameters": {"smore_deadline_ms": 0}}, "parameters.smore_deadline_ms"),
        ({"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output"),
        ({"outputs": {"name": "y"}}, "outputs"),
        ({"outputs": ["y"]}, "outputs[0]"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "outputs[1]"),
        ({"outputs": [{"name": "z"}]}, "outputs[0].name"),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]}, "outputs[0].parameters.binary_data"),
    ],
)
def test_what_is_wrong_beside_the_inputs_is_named(more: dict[str, Any], field: str) -> None:
    spec = function(*(PAIR.inputs or ()), outputs=[tensor("y", "FP32")])
    with pytest.raises(InvalidInput) as refused:
        codec.read(*request_bytes(**more), spec)

    assert refused.value.details["field"] == field


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"sequence_id": 7, "sequence_start": True}},
        {"parameters": {"sequence_id": "abc"}},
        {"inputs": [A, K | {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}}]},
        {"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
        {"outputs": [{"name": "y", "parameters": {"classification": 3}}]},
    ],
)
def test_what_is_not_served_is_said(more: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        codec.read(*request_bytes(**more), PAIR)


def test_headers_that_lie() -> None:
    body, size = request_bytes()
    for wrong in (0, size - 1, size + 1, len(body), None):
        with pytest.raises(Malformed):
            codec.read(body, wrong, PAIR)
    with pytest.raises(Malformed, match="has"):
        codec.read(body, len(body) + 1, PAIR)
    with pytest.raises(InvalidInput, match="no tensor"):
        codec.read(body + b"x", size, PAIR)
    with pytest.raises(InvalidInput):
        codec.read(b"[]", None, PAIR)
    with pytest.raises(PayloadTooLarge):
        codec.read(body, size, function(*(PAIR.inputs or ()), payload_bytes=27))


@pytest.mark.parametrize(
    ("shape", "field"), [([1 << 17, 0], "inputs"), ([1 << 40, 0], "inputs[0].shape"), ([0, 1 << 31], "inputs[0].shape")]
)
def test_what_costs_no_bytes_has_bounds_as_well(shape: list[int], field: str) -> None:
    """Else one request could tell the scheduler of more rows than it can count."""
    spec = function(tensor("x", "FP32", -1))
    empty = {"name": "x", "datatype": "FP32", "parameters": {"binary_data_size": 0}}
    assert codec.read(*request_bytes([empty | {"shape": [1 << 16, 0]}], b""), spec).payload.rows == 1 << 16
    with pytest.raises(InvalidInput) as refused:
        codec.read(*request_bytes([empty | {"shape": shape}], b""), spec)

    assert refused.value.details["field"] == field


@pytest.mark.parametrize(
    "section",
    [
        b"",
        b"\x01",
        b"\x00\x00\x00",
        b"\x02\x00\x00\x00a",
        b"\xff\xff\xff\xffa",
        b"\x01\x00\x00\x00aa",
        b"\x01\x00\x00\x00a" * 2,
    ],
)
def test_lengths_in_bytes_that_lie(section: bytes) -> None:
    header = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(section)}}
    with pytest.raises(InvalidInput) as refused:
        codec.read(*request_bytes([header], section), function(tensor("x", tensors.BYTES)))

    assert refused.value.details["field"] == "inputs[0].parameters.binary_data_size"


# ---- whatever comes, it is read or refused ---------------------------------------------------------------------------

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MAYBE_INPUT = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "k", "x"]) | JUNK,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | JUNK,
        "datatype": st.sampled_from([*tensors.DATATYPES, "BF16"]) | JUNK,
        "data": st.lists(st.integers(-5, 300) | st.floats(-9, 9) | st.text(max_size=3) | st.booleans(), max_size=6)
        | JUNK,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 40) | JUNK}) | JUNK,
    },
)
NEAR = st.fixed_dictionaries(
    {"inputs": st.lists(MAYBE_INPUT, max_size=3) | JUNK},
    optional={
        "id": JUNK,
        "parameters": st.dictionaries(st.sampled_from(["timeout", "priority", "sequence_id"]), JUNK),
        "outputs": JUNK,
    },
)
SPECS = st.sampled_from([PAIR, function(), function(tensor("x", tensors.BYTES)), function(tensor("x", "BOOL", -1, 2))])


def read_or_refused(body: bytes, size: int | None, spec: FunctionSpec) -> None:
    try:
        inference = codec.read(body, size, spec)
    except CallerError:
        return
    if spec.inputs is not None:
        # What is let through can be read by the runner.
        example = {one.name: np.empty([1] * len(one.shape), DTYPES[one.datatype]) for one in spec.inputs}
        read_raw(inference.payload.body, example)


@settings(max_examples=100, deadline=None)
@given(NEAR, st.binary(max_size=40), SPECS)
def test_any_document_is_read_or_refused(document: dict[str, Any], tail: bytes, spec: FunctionSpec) -> None:
    header = orjson.dumps(document)
    read_or_refused(header + tail, len(header), spec)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_damage_is_read_or_refused(data: st.DataObject) -> None:
    spec = function(tensor("x", tensors.BYTES), tensor("a", "FP32", 2))
    arrays = {"x": np.array([b"one", b""], object), "a": np.ones((2, 2), np.float32)}
    body, size = sent(arrays, spec, data.draw(st.lists(st.booleans(), min_size=2, max_size=2)))
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip":
                damaged[at] = data.draw(st.integers(0, 255))
            case "cut" if len(damaged) > 8:
                del damaged[at : at + data.draw(st.integers(1, 4))]
            case _:
                damaged[at:at] = data.draw(st.binary(min_size=1, max_size=4))
    read_or_refused(bytes(damaged), data.draw(st.none() | st.just(size) | st.integers(0, len(body) + 2)), spec)


# ---- content codings -------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.sampled_from(sorted(codec.CODINGS)))
def test_codings_go_round_as_their_own_libraries_have_it(body: bytes, coding: str) -> None:
    library: Any = {"gzip": gzip, "deflate": zlib}[coding]

    assert codec.decompress(library.compress(body), coding, 200) == body
    assert library.decompress(codec.compress(body, coding)) == body


@given(st.binary(max_size=60), st.sampled_from(sorted(codec.CODINGS)))
def test_no_bytes_break_a_coding(body: bytes, coding: str) -> None:
    with pytest.raises(Malformed):
        codec.decompress(body, coding, 1000)


def test_a_small_body_may_not_become_a_large_one() -> None:
    bomb = gzip.compress(bytes(1 << 20))
    with pytest.raises(PayloadTooLarge):
        codec.decompress(bomb, "gzip", (1 << 20) - 1)
    assert len(codec.decompress(bomb, "gzip", 1 << 20)) == 1 << 20
    for wrong in (bomb[:-1], bomb + b"x", b"x" + bomb):
        with pytest.raises(Malformed):
            codec.decompress(wrong, "gzip", 1 << 20)
