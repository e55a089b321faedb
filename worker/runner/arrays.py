"""
Tensors of a function: from the bytes of an invocation to numpy arrays and back.

Used in the runner's process alone, which has no other place where inputs are read and outputs written. What must stay
true: what is wrong with an input raises InvalidInput, the caller's fault, and what is wrong with an output BadOutput,
the function's.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from smore.domain import tensors
from smore.domain.function import TensorSpec
from worker.frames import Chunk

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

#: Open Inference Protocol datatype → numpy's, little-endian. An element of BYTES is a bytes object.
DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "INT8": np.dtype("i1"),
    "UINT16": np.dtype("<u2"),
    "INT16": np.dtype("<i2"),
    "FP16": np.dtype("<f2"),
    "UINT32": np.dtype("<u4"),
    "INT32": np.dtype("<i4"),
    "FP32": np.dtype("<f4"),
    "UINT64": np.dtype("<u8"),
    "INT64": np.dtype("<i8"),
    "FP64": np.dtype("<f8"),
    tensors.BYTES: np.dtype(object),
}
_DATATYPES: Final = {dtype: name for name, dtype in DTYPES.items()}


class InvalidInput(ValueError):
    """The payload does not have the tensors of the handler's example, or is not its record. ``field``: the first place."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class BadOutput(Exception):
    """What predict returned is not what smore/handler.py asks for."""


def is_tensors(example: object) -> bool:
    """Whether a handler with this example takes arrays (smore/handler.py)."""
    return (
        isinstance(example, dict) and bool(example) and all(isinstance(value, np.ndarray) for value in example.values())
    )


def read_raw(payload: Chunk, example: Arrays) -> Arrays:
    """
    Tensors as the gateway frames them (smore/definition/inputs.py): two bytes, big-endian, with the length of the text that
    describes them, that text, the tensors (smore/domain/tensors.py).

    Views of the payload where alignment allows. Raises InvalidInput.
    """
    start = 2 + int.from_bytes(payload[:2], "big")
    body = payload[start:]
    try:
        sections = tensors.sections(bytes(payload[2:start]).decode(), body)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return _like({section.name: _array(section, body) for section in sections}, example)


def _array(section: tensors.Section, body: Chunk) -> Array:
    dtype = DTYPES[section.datatype]
    if section.datatype == tensors.BYTES:
        return np.fromiter(tensors.elements(body[section.start : section.stop]), object).reshape(section.shape)
    # numpy has no view of an empty buffer.
    array = (
        np.frombuffer(body[section.start : section.stop], dtype) if section.stop > section.start else np.empty(0, dtype)
    )
    array = array.reshape(section.shape)
    return array if array.flags.aligned else array.copy()


def as_texts(array: Array) -> Array:
    """An array of datatype BYTES for JSON: every element as text. Raises UnicodeDecodeError."""
    return np.fromiter((element.decode() for element in array.flat), object).reshape(array.shape)


def _bytes(array: Array) -> Array:
    """An array of datatype BYTES from texts and bytes. Raises TypeError for any other element."""
    flat = np.fromiter((element.encode() if isinstance(element, str) else element for element in array.flat), object)
    for element in flat:
        if not isinstance(element, bytes):
            raise TypeError(f"an element is {type(element).__name__}, neither bytes nor str")
    return flat.reshape(array.shape)


def read_json(body: Chunk, example: Arrays) -> Arrays:
    """
    Tensors as JSON has them: ``{"name": nested lists}``, each with its axis of rows, in the example's types. Raises
    InvalidInput, ValueError, TypeError, OverflowError.
    """
    values = orjson.loads(body)
    if not isinstance(values, dict):
        raise InvalidInput("an object of tensors by name is expected")
    arrays = {}
    for name, value in values.items():
        if name not in example:
            raise InvalidInput(f"there is no input {name!r}")
        array = np.asarray(value, dtype=example[name].dtype)
        arrays[name] = _bytes(array) if array.dtype.kind == "O" else array
    return _like(arrays, example)


def _like(arrays: Arrays, example: Arrays) -> Arrays:
    """
    The arrays in the example's order. Raises InvalidInput where one is missing or too many, where one has other axes or
    another type than in the example, or where they differ in their rows.
    """
    for name, wanted in example.items():
        if name not in arrays:
            raise InvalidInput(f"the input {name!r} is missing")
        if arrays[name].ndim != wanted.ndim:
            raise InvalidInput(
                f"the input {name!r} has the shape {list(arrays[name].shape)}, one like {list(wanted.shape)} is"
                " expected"
            )
        if arrays[name].dtype != wanted.dtype:
            raise InvalidInput(f"the input {name!r} is {arrays[name].dtype}, {wanted.dtype} is expected")
    if len(arrays) != len(example):
        raise InvalidInput(f"there is no input {next(name for name in arrays if name not in example)!r}")
    if len({array.shape[0] for array in arrays.values()}) != 1:
        raise InvalidInput("the inputs differ in their number of rows")
    return {name: arrays[name] for name in example}


def checked_outputs(output: object, rows: int) -> Arrays:
    """
    What predict of a tensor function returned, contiguous and little-endian; each array has ``rows`` rows. Raises
    BadOutput.
    """
    if not isinstance(output, dict) or not output:
        raise BadOutput(f"predict returned {type(output).__name__}, a dict of arrays is expected")
    arrays: Arrays = {}
    for name, value in output.items():
        array = np.asarray(value)
        if array.ndim == 0 or array.shape[0] != rows:
            raise BadOutput(f"the output {name!r} has the shape {list(array.shape)}, {rows} rows are expected")
        dtype = array.dtype.newbyteorder("<")
        if dtype not in _DATATYPES:
            raise BadOutput(f"the output {name!r} is {array.dtype}, which has no datatype")
        if ";" in str(name) or not str(name).isprintable():
            raise BadOutput("the name of an output has ';' or a character that cannot be printed")
        array = np.ascontiguousarray(array, dtype)
        try:
            arrays[str(name)] = _bytes(array) if dtype.kind == "O" else array
        except TypeError as error:
            raise BadOutput(f"the output {name!r}: {error}") from error
    return arrays


def write_raw(arrays: Arrays) -> tuple[list[Chunk], str]:
    """(bytes of the tensors one after the other, their description), see smore/domain/tensors.py."""
    chunks: list[Chunk] = []
    for array in arrays.values():
        flat = array.reshape(-1)
        chunks.append(tensors.join(flat.tolist()) if array.dtype.kind == "O" else flat.view(np.uint8).data)
    return chunks, ";".join(
        tensors.describe(name, _DATATYPES[array.dtype], array.shape) for name, array in arrays.items()
    )


def raw_bytes(arrays: Arrays) -> int:
    """The length of what :func:`write_raw` gives, without writing it."""
    return sum(
        sum(4 + len(element) for element in array.flat) if array.dtype.kind == "O" else array.nbytes
        for array in arrays.values()
    )


def specs(arrays: Arrays) -> list[TensorSpec]:
    """Their names, datatypes and shapes, with any number of rows (-1)."""
    return [
        TensorSpec(name=name, datatype=_DATATYPES[array.dtype.newbyteorder("<")], shape=(-1, *array.shape[1:]))
        for name, array in arrays.items()
    ]
