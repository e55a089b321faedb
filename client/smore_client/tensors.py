"""
Bodies of requests and results: values as JSON, and arrays in the raw encoding.

Raw bytes are the tensors one after the other, row-major and little-endian. An element of BYTES is its length (u32) and
so many bytes; every other datatype has a fixed size. Datatypes are the Open Inference Protocol's. numpy is imported
only where there are arrays.
"""

import math
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from smore_client.generated import TensorSpec

if TYPE_CHECKING:
    import numpy

BYTES: Final = "BYTES"
#: numpy's names of the other datatypes.
NUMPY_TYPES: Final[Mapping[str, str]] = {
    "BOOL": "|b1",
    "UINT8": "|u1",
    "INT8": "|i1",
    "UINT16": "<u2",
    "INT16": "<i2",
    "FP16": "<f2",
    "UINT32": "<u4",
    "INT32": "<i4",
    "FP32": "<f4",
    "UINT64": "<u8",
    "INT64": "<i8",
    "FP64": "<f8",
}
_LENGTH: Final = struct.Struct("<I")


def encode_json(value: object) -> bytes:
    """
    JSON; numpy arrays and numbers become nested lists and numbers. TypeError for what JSON cannot hold, ValueError with
    its place for a number that is not finite.
    """
    encoded = msgspec.json.encode(value, enc_hook=_plain)
    # msgspec writes null for a number that is not finite.
    if b"null" in encoded and (wrong := _not_finite(value, "")) is not None:
        path, number = wrong
        raise ValueError(f"{path.removeprefix('.') or 'the value'}: {number} cannot be sent as JSON")
    return encoded


def _plain(other: object) -> object:
    tolist = getattr(other, "tolist", None)
    if tolist is None:
        raise TypeError(f"a {type(other).__name__} cannot be sent as JSON")
    return tolist()


def _not_finite(value: object, path: str) -> tuple[str, float] | None:
    """The first number in a JSON value that is not finite, and where it stands; None = all are."""
    match value:
        case float():
            return None if math.isfinite(value) else (path, value)
        case dict():
            parts: Iterable[tuple[str, object]] = ((f"{path}.{name}", part) for name, part in value.items())
        case list() | tuple():
            parts = ((f"{path}[{position}]", part) for position, part in enumerate(value))
        case None | str() | int() | msgspec.Raw():
            return None
        case _:
            return _not_finite(msgspec.to_builtins(value, enc_hook=_plain), path)
    return next((wrong for at, part in parts if (wrong := _not_finite(part, at)) is not None), None)


def is_arrays(value: object) -> bool:
    """Whether ``value`` is a mapping of names to numpy arrays and nothing else."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(array, numpy.ndarray) for array in value.values())
    )


def numpy_type(datatype: str) -> str:
    """numpy's little-endian name of a datatype; KeyError for an unknown one."""
    return "object" if datatype == BYTES else NUMPY_TYPES[datatype]


def encode_raw(arrays: Mapping[str, "numpy.ndarray[Any, Any]"], declared: Sequence[TensorSpec]) -> tuple[bytes, str]:
    """
    The raw body and its ``Smore-Shape``, ``name=d0,d1;…``: the arrays in the declared order and datatypes.

    Raises ValueError where the names are not the declared ones, or where the datatype's kind would lose a value (a
    float for an integer).
    """
    import numpy as np

    names = [tensor.name for tensor in declared]
    if set(names) != set(arrays):
        raise ValueError(f"the function takes {', '.join(names)}, not {', '.join(map(str, arrays))}")
    parts, shapes = [], []
    for tensor in declared:
        array = arrays[tensor.name]
        target = np.dtype(numpy_type(tensor.datatype))
        texts = tensor.datatype == BYTES
        if not np.can_cast(array.dtype, target, casting="same_kind") or (texts and array.dtype.kind not in "OSU"):
            raise ValueError(f"{tensor.name}: {tensor.datatype} is expected, not {array.dtype}")
        if texts:
            for element in array.reshape(-1).tolist():
                text = element.encode() if isinstance(element, str) else bytes(element)
                parts += [_LENGTH.pack(len(text)), text]
        else:
            parts.append(np.ascontiguousarray(array, dtype=target).tobytes())
        shapes.append(f"{tensor.name}={','.join(map(str, array.shape))}")
    return b"".join(parts), ";".join(shapes)


def decode_raw(body: bytes, outputs: str) -> dict[str, "numpy.ndarray[Any, Any]"]:
    """
    The arrays of a raw result, which are read-only views of ``body`` but for BYTES. ``outputs`` is its
    ``Smore-Outputs``, ``name:datatype:d0,d1;…``. Raises ValueError where the two do not fit.
    """
    import numpy as np

    arrays, start = {}, 0
    for part in outputs.split(";"):
        name, datatype, sizes = part.rsplit(":", 2)
        shape = tuple(int(size) for size in sizes.split(","))
        count = math.prod(shape)
        try:
            if min(shape) < 0:
                raise ValueError("a size is negative")
            if datatype == BYTES:
                texts = list(_elements(body, start, count))
                flat = np.empty(count, dtype=object)
                flat[:] = texts
                start += sum(_LENGTH.size + len(text) for text in texts)
            else:
                flat = (
                    np.frombuffer(body, NUMPY_TYPES[datatype], count, start)
                    if count
                    else np.empty(0, NUMPY_TYPES[datatype])
                )
                start += flat.nbytes
        except (KeyError, ValueError, struct.error) as error:
            raise ValueError(f"{part!r} does not describe the body of {len(body)} bytes") from error
        arrays[name] = flat.reshape(shape)
    if start != len(body):
        raise ValueError(f"the body has {len(body)} bytes, its tensors {start}")
    return arrays


def _elements(body: bytes, start: int, count: int) -> Iterator[bytes]:
    """``count`` elements of BYTES from ``start`` on. Raises ValueError, struct.error where the body is too short."""
    for _ in range(count):
        first = start + _LENGTH.size
        start = first + _LENGTH.unpack_from(body, start)[0]
        if start > len(body):
            raise ValueError("the body is too short")
        yield body[first:start]
