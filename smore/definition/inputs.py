"""
Inputs against what a function declares: everything that is wrong with one is found here, before anything is queued, and
named by its path.

No numpy: a gateway holds no tensors. Rows of numbers are checked by C-speed built-ins and searched one by one only when
something is wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from smore.domain.errors import InvalidInput, PayloadTooLarge
from smore.domain.function import FunctionSpec, TensorSpec
from smore.domain.invocation import Encoding
from smore.domain.quote import quoted
from smore.domain.tensors import BYTES, Buffer, describe, section_stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """
    One invocation's input as it is queued.

    JSON: the bytes of the input value. RAW: two bytes (big-endian) with the length of the shapes text, that text
    (``name:datatype:d0,d1;…``, declared order), then the tensors. ``shape`` is the batching key: only invocations with
    equal ones can be concatenated on axis 0; '' for JSON functions.
    """

    body: bytes
    encoding: Encoding
    rows: int = 1
    shape: str = ""


#: Largest magnitude of each float datatype, and the range of each integer one.
_FLOATS = {"FP16": 65504.0, "FP32": 3.4028234663852886e38, "FP64": 1.7976931348623157e308}
_INTS = {f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}
_INTS |= {f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)}


def from_json(value: object, spec: FunctionSpec, path: str) -> Payload:
    """A JSON value as a payload. Raises InvalidInput that names the place, PayloadTooLarge."""
    rows, shape = (1, "") if spec.inputs is None else _check_tensors(value, spec.inputs, path)
    try:
        body = orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise InvalidInput.at(path, "nested too deeply") from error
    check_size(len(body), spec, path)
    return Payload(body=body, encoding=Encoding.JSON, rows=rows, shape=shape)


def from_raw(body: bytes, header: str | None, spec: FunctionSpec) -> Payload:
    """
    Concatenated little-endian tensors in declared order as a payload.

    ``header`` is ``Smore-Shape`` (``name=d0,d1;…``); without it the rows follow from the size, where no other axis is
    free.
    """
    if spec.inputs is None:
        raise InvalidInput.at("body", "this function takes JSON, not tensors")
    check_size(len(body), spec, "body")
    shapes = _shapes_of_size(len(body), spec.inputs) if header is None else _shapes_of_header(header, spec.inputs)
    stop = 0
    for tensor, shape in zip(spec.inputs, shapes, strict=True):
        try:
            stop = section_stop(body, stop, tensor.datatype, math.prod(shape))
        except ValueError as error:
            raise InvalidInput.at("body", f"{len(body)} bytes are too few for these shapes") from error
    if stop != len(body):
        raise InvalidInput.at("body", f"{stop} bytes are expected for these shapes, not {len(body)}")
    described = [(tensor.name, tensor.datatype, shape) for tensor, shape in zip(spec.inputs, shapes, strict=True)]
    rows = rows_of(spec.inputs, shapes, "Smore-Shape")
    return raw_payload(described, [body], rows, batching_key(spec.inputs, shapes))


def raw_payload(
    described: Sequence[tuple[str, str, Sequence[int]]], parts: Sequence[Buffer], rows: int, shape: str
) -> Payload:
    """
    Sections of checked tensors, in the order in which (name, datatype, shape) describe them, as a payload. Raises
    InvalidInput.
    """
    text = ";".join(describe(*tensor) for tensor in described).encode()
    if len(text) > 0xFFFF:
        raise InvalidInput("Too many tensors, or too many axes.", field="inputs")
    return Payload(
        body=b"".join((len(text).to_bytes(2, "big"), text, *parts)), encoding=Encoding.RAW, rows=rows, shape=shape
    )


def check_size(size: int, spec: FunctionSpec, path: str) -> None:
    if size > spec.payload_bytes:
        raise PayloadTooLarge(
            f"{path}: {size} bytes are more than the {spec.payload_bytes} of this function",
            limit=spec.payload_bytes,
            size=size,
        )


def batching_key(declared: Sequence[TensorSpec], shapes: Sequence[Sequence[int]]) -> str:
    """Names, datatypes and the sizes of the free axes: with those equal, all axes but the first are."""
    parts = []
    for tensor, shape in zip(declared, shapes, strict=True):
        free = ",".join(str(size) for size, wanted in zip(shape[1:], tensor.shape[1:], strict=True) if wanted < 0)
        parts.append(f"{tensor.name}:{tensor.datatype}:{free}")
    return ";".join(parts)


def rows_of(declared: Sequence[TensorSpec], shapes: Sequence[Sequence[int]], path: str) -> int:
    rows = shapes[0][0]
    for tensor, shape in zip(declared, shapes, strict=True):
        if shape[0] != rows:
            raise InvalidInput.at(f"{path}.{tensor.name}", f"{shape[0]} rows, but {declared[0].name} has {rows}")
    return rows


# ---- nested lists ----------------------------------------------------------------------------------------------------


def _check_tensors(value: object, declared: Sequence[TensorSpec], path: str) -> tuple[int, str]:
    """(rows, batching key) of ``{name: nested lists}``."""
    if not isinstance(value, dict):
        raise InvalidInput.at(path, f"an object with an array for each of {_names(declared)} is expected")
    for name in value:
        if all(name != tensor.name for tensor in declared):
            raise InvalidInput.at(f"{path}.{name}", f"unknown input; this function takes {_names(declared)}")
    shapes = []
    for tensor in declared:
        where = f"{path}.{tensor.name}"
        if tensor.name not in value:
            raise InvalidInput.at(where, "missing")
        shape = _first_shape(value[tensor.name], tensor, where)
        _check_level(value[tensor.name], shape, 0, tensor.datatype, where)
        shapes.append(shape)
    return rows_of(declared, shapes, path), batching_key(declared, shapes)


def _names(declared: Sequence[TensorSpec]) -> str:
    return ", ".join(tensor.name for tensor in declared)


def _first_shape(value: object, tensor: TensorSpec, path: str) -> list[int]:
    """The shape as the first element of each axis tells it, against the declared one."""
    shape: list[int] = []
    for wanted in tensor.shape:
        where = path + "[0]" * len(shape)
        if not isinstance(value, list):
            raise InvalidInput.at(where, f"a list is expected ({len(tensor.shape)} axes), not {kind_of(value)}")
        if not value:
            raise InvalidInput.at(where, "empty")
        if wanted >= 0 and len(value) != wanted:
            raise InvalidInput.at(where, f"{wanted} elements are expected, not {len(value)}")
        shape.append(len(value))
        value = value[0]
    return shape


def _check_level(value: list[object], shape: Sequence[int], axis: int, datatype: str, path: str) -> None:
    if axis == len(shape) - 1:
        check_elements(value, datatype, path)
        return
    size = shape[axis + 1]
    for position, item in enumerate(value):
        # The path is a string only where it is needed: this runs once for every row of numbers.
        if not isinstance(item, list):
            where = f"{path}[{position}]"
            raise InvalidInput.at(where, f"a list is expected, not {kind_of(item)}")
        if len(item) != size:
            where = f"{path}[{position}]"
            raise InvalidInput.at(where, f"{size} elements are expected, not {len(item)}")
        _check_level(item, shape, axis + 1, datatype, f"{path}[{position}]")


def check_elements(row: Sequence[object], datatype: str, path: str) -> None:
    """Raises InvalidInput that names the first element that is not of the datatype."""
    kinds = set(map(type, row))
    if datatype == "BOOL":
        allowed: set[type] = {bool}
    elif datatype == BYTES:
        allowed = {str}
    elif datatype in _FLOATS:
        allowed = {int, float}
    else:
        allowed = {int}
    if not kinds <= allowed:
        position = next(i for i, item in enumerate(row) if type(item) not in allowed)
        _refuse(row[position], datatype, f"{path}[{position}]")
    if not row or datatype in ("BOOL", BYTES):
        return
    bound = _FLOATS.get(datatype)
    low, high = (-bound, bound) if bound is not None else _INTS[datatype]
    numbers: Sequence[float] = row  # type: ignore[assignment]  # the kinds have just been checked
    if min(numbers) < low or max(numbers) > high:
        position = next(i for i, number in enumerate(numbers) if not low <= number <= high)
        _refuse(row[position], datatype, f"{path}[{position}]")


def _refuse(value: object, datatype: str, path: str) -> None:
    shown = quoted(value) if isinstance(value, int | float | bool) else kind_of(value)
    raise InvalidInput.at(path, f"{shown} is not {datatype}")


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


# ---- raw bodies ------------------------------------------------------------------------------------------------------


def _shapes_of_size(size: int, declared: Sequence[TensorSpec]) -> list[list[int]]:
    row_bytes = 0
    for tensor in declared:
        tensor_bytes = tensor.row_bytes()
        if tensor_bytes is None:
            raise InvalidInput.at("Smore-Shape", f"needed, because a row of {tensor.name} has no fixed size")
        row_bytes += tensor_bytes
    if size == 0 or size % row_bytes:
        raise InvalidInput.at("body", f"a multiple of {row_bytes} bytes (one row) is expected, not {size}")
    return [[size // row_bytes, *tensor.shape[1:]] for tensor in declared]


def _shapes_of_header(header: str, declared: Sequence[TensorSpec]) -> list[list[int]]:
    given: dict[str, list[int]] = {}
    for entry in header.split(";"):
        name, equals, sizes = entry.strip().rpartition("=")
        texts = sizes.split(",")
        if (
            not equals
            or name in given
            or not all(text.isascii() and text.isdigit() and len(text) < 16 for text in texts)
        ):
            raise InvalidInput.at("Smore-Shape", f"{quoted(entry.strip())} is not name=size,size")
        given[name] = [int(text) for text in texts]
    shapes = []
    for tensor in declared:
        where = f"Smore-Shape.{tensor.name}"
        shape = given.pop(tensor.name, None)
        if shape is None:
            raise InvalidInput.at(where, "missing")
        fits = len(shape) == len(tensor.shape) and all(
            size > 0 and (wanted < 0 or size == wanted) for size, wanted in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            raise InvalidInput.at(where, f"{shape} does not fit {list(tensor.shape)}")
        shapes.append(shape)
    if given:
        where = f"Smore-Shape.{next(iter(given))}"
        raise InvalidInput.at(where, f"unknown input; this function takes {_names(declared)}")
    return shapes
