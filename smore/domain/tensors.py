"""
Tensors as bytes: the format of a raw payload or result, with the standard library alone.

Gateway, Redis and runner use the same format: a text ``name:datatype:d0,d1;…`` and, in its order, one section of bytes
for each tensor, row-major and little-endian, without gaps. Datatypes are those of the Open Inference Protocol. An element
of ``BYTES`` is its length (u32) and that many bytes; every other datatype has a fixed size (:data:`ITEM_BYTES`).
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from smore.domain.quote import quoted

#: A body, or a section of it.
Buffer = bytes | bytearray | memoryview

#: struct's code of every datatype of fixed size.
CODES: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "UINT8": "B",
    "INT8": "b",
    "UINT16": "H",
    "INT16": "h",
    "FP16": "e",
    "UINT32": "I",
    "INT32": "i",
    "FP32": "f",
    "UINT64": "Q",
    "INT64": "q",
    "FP64": "d",
}
#: Bytes of one element of each of them.
ITEM_BYTES: Final[Mapping[str, int]] = {datatype: struct.calcsize(f"<{code}") for datatype, code in CODES.items()}
BYTES: Final = "BYTES"
DATATYPES: Final = (*CODES, BYTES)

_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Section:
    """A tensor in a body: the bytes from ``start`` up to ``stop``."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def describe(name: str, datatype: str, shape: Sequence[int]) -> str:
    """The text of one tensor."""
    return f"{name}:{datatype}:{','.join(map(str, shape))}"


def sections(text: str, body: Buffer) -> list[Section]:
    """
    The tensors that ``text`` describes, in ``body``. Raises ValueError where the text cannot be read or does not fit.
    """
    tensors, at = [], 0
    for part in text.split(";"):
        name, datatype, sizes = part.rsplit(":", 2)
        shape = tuple(int(size) for size in sizes.split(","))
        if datatype not in DATATYPES or min(shape) < 0:
            raise ValueError(f"{quoted(part)} does not describe a tensor")
        stop = section_stop(body, at, datatype, math.prod(shape))
        tensors.append(Section(name, datatype, shape, at, stop))
        at = stop
    if at != len(body):
        raise ValueError(f"the body has {len(body)} bytes, its tensors {at}")
    return tensors


def section_stop(body: Buffer, at: int, datatype: str, count: int) -> int:
    """The end of ``count`` elements from ``at`` on. Raises ValueError where the body ends before."""
    if datatype == BYTES:
        # Each turn takes four bytes at least, so the body's size bounds the number of turns, whatever ``count`` says.
        for _ in range(count):
            if at + 4 > len(body):
                raise ValueError(f"the body of {len(body)} bytes is too short")
            at += 4 + _LENGTH.unpack_from(body, at)[0]
    else:
        at += count * ITEM_BYTES[datatype]
    if at > len(body):
        raise ValueError(f"the body of {len(body)} bytes is too short")
    return at


def elements(section: Buffer) -> list[bytes]:
    """The elements of a section of BYTES."""
    parts, at = [], 0
    while at < len(section):
        stop = at + 4 + _LENGTH.unpack_from(section, at)[0]
        parts.append(bytes(section[at + 4 : stop]))
        at = stop
    return parts


def join(parts: Iterable[bytes]) -> bytes:
    """Inverse of :func:`elements`."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))
