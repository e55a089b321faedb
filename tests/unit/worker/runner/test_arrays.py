"""A runner's way into arrays and out of them, and its frames."""

import socket
import threading
from typing import Any

import numpy as np
import pytest

from smore.domain.tensors import ITEM_BYTES
from worker.frames import Channel
from worker.runner.arrays import (
    DTYPES,
    Arrays,
    BadOutput,
    InvalidInput,
    checked_outputs,
    is_tensors,
    read_json,
    read_raw,
    write_raw,
)

EXAMPLE: Arrays = {"a": np.zeros((1, 3), np.float32), "k": np.zeros((1,), np.uint8)}


def raw(shapes: str, *parts: bytes) -> bytes:
    return len(shapes).to_bytes(2, "big") + shapes.encode() + b"".join(parts)


def test_every_datatype_has_its_size() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items() if name != "BYTES"} == ITEM_BYTES


def test_tensors_are_told_from_json() -> None:
    assert is_tensors(EXAMPLE)
    assert not is_tensors({}) and not is_tensors({"x": [1]}) and not is_tensors([1])


def test_raw_arrays_are_usable_wherever_they_lie() -> None:
    for pad in range(8):
        example: Arrays = {"k": np.zeros((1,), np.uint8), "a": np.zeros((1, 3), np.float32)}
        k, a = np.arange(pad + 1, dtype=np.uint8), np.random.default_rng(pad).random((pad + 1, 3), np.float32)
        found = read_raw(raw(f"k:UINT8:{pad + 1};a:FP32:{pad + 1},3", k.tobytes(), a.tobytes()), example)
        assert np.array_equal(found["a"], a) and np.array_equal(found["k"], k) and found["a"].flags.aligned


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        raw("a:FP32:1,3", b"\0" * 12),
        raw("a:FP32:1,3;k:UINT8:1", b"\0" * 12),
        raw("a:FP32:1,3;k:UINT8:1", b"\0" * 14),
        raw("a:FP32:1,3;k:UINT8:2", b"\0" * 14),
        raw("a:FP32:-1,3;k:UINT8:1", b"\0" * 13),
        raw("a:FP64:1,3;k:UINT8:1", b"\0" * 25),
        raw("a:BYTES:1,3;k:UINT8:1", b"\0" * 13),
        raw("a:FP32:1,0;k:UINT8:2", b"\0" * 2),
        raw("a:BF16:1,3;k:UINT8:1", b"\0" * 7),
        raw("nonsense", b"\0" * 13),
    ],
)
def test_a_raw_payload_that_does_not_fit(payload: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_raw(payload, EXAMPLE)


def test_tensors_may_be_empty() -> None:
    found = read_raw(raw("a:FP32:0,3;k:UINT8:0"), EXAMPLE)
    assert (found["a"].shape, found["k"].shape) == ((0, 3), (0,))
    assert write_raw(checked_outputs({"y": found["a"]}, 0))[1] == "y:FP32:0,3"


def test_bytes_are_bytes_in_every_form() -> None:
    example: Arrays = {"s": np.array([[b""]], object)}
    section = b"\x02\0\0\0\xc3\xa9" + b"\0\0\0\0"
    found = read_raw(raw("s:BYTES:2,1", section), example)["s"]
    told = read_json('{"s": [["é"], [""]]}'.encode(), example)["s"]
    assert found.tolist() == told.tolist() == [["é".encode()], [b""]]

    chunks, shapes = write_raw(checked_outputs({"s": found, "t": np.array([["é"], [b"\xff"]], object)}, 2))
    assert (shapes, chunks[0]) == ("s:BYTES:2,1;t:BYTES:2,1", section) and b"\xff" in bytes(chunks[1])
    with pytest.raises(BadOutput):
        checked_outputs({"s": np.array([[b"x"], [7]], object)}, 2)


def test_json_takes_the_types_of_the_example() -> None:
    found = read_json(b'{"k": [3], "a": [[1, 2, 3]]}', EXAMPLE)
    assert list(found) == ["a", "k"] and (found["a"].dtype, found["k"].dtype) == (np.float32, np.uint8)


def test_outputs_are_checked() -> None:
    assert checked_outputs({"x": np.zeros((2, 3), ">f4").T}, 3)["x"].flags.c_contiguous
    wrong: tuple[Any, ...] = (
        None,
        [],
        {},
        {"x": 1},
        {"x": np.zeros(2)},
        {"x": np.zeros(3, complex)},
        {"x": np.array(["a", "b", "c"])},
    )
    for output in wrong:
        with pytest.raises(BadOutput):
            checked_outputs(output, 3)


def test_raw_outputs_name_their_shapes() -> None:
    chunks, shapes = write_raw({"x": np.zeros((2, 3), np.float16), "y": np.ones(2, np.bool_)})
    assert shapes == "x:FP16:2,3;y:BOOL:2" and b"".join(chunks) == bytes(12) + b"\1\1"


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_530, 70_000, 3_000_000])
def test_frames_of_every_size(size: int) -> None:
    left, right = socket.socketpair()
    with left, right:
        body = np.random.default_rng(1).bytes(size)
        meta = b"m" * 1000
        sender = threading.Thread(
            target=Channel(left).send, args=(meta, [body[: size // 3], memoryview(body)[size // 3 :]])
        )
        sender.start()
        got_meta, got_body = Channel(right).receive()
        sender.join()
    assert (bytes(got_meta), bytes(got_body)) == (meta, body)


def test_the_end_of_the_peer_is_told() -> None:
    left, right = socket.socketpair()
    left.close()
    with right, pytest.raises(EOFError):
        Channel(right).receive()
