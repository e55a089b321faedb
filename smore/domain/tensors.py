"""
Tensors as bytes: how they lie in a raw payload or result, read and written with the standard library alone.

One format from the gateway through Redis to the runner and back: a text ``name:datatype:d0,d1;…`` and, in its order,
one section of bytes for each tensor, row-major and little-endian, nothing between them. Datatypes are the Open
Inference Protocol's. An element of ``BYTES`` is its length (u32) and so many bytes; every other datatype has a fixed
size (:data:`ITEM_BYTES`).
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from smore.domain.quote import quoted

#: What a section may lie in.
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
    """A tensor's place in a body: the bytes from ``start`` up to ``stop``."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def describe(name: str, datatype: str, shape: Sequence[int]) -> str:
    """One tensor's part of the text."""
    return f"{name}:{datatype}:{','.join(map(str, shape))}"


def sections(text: str, body: Buffer) -> list[Section]:
    """
    Where the tensors of ``text`` lie in ``body``. Raises ValueError where the text cannot be read or does not fit it.
    """
    found, at = [], 0
    for part in text.split(";"):
        name, datatype, sizes = part.rsplit(":", 2)
        shape = tuple(int(size) for size in sizes.split(","))
        if datatype not in DATATYPES or min(shape) < 0:
            raise ValueError(f"{quoted(part)} does not describe a tensor")
        stop = section_stop(body, at, datatype, math.prod(shape))
        found.append(Section(name, datatype, shape, at, stop))
        at = stop
    if at != len(body):
        raise ValueError(f"the body has {len(body)} bytes, its tensors {at}")
    return found


def section_stop(body: Buffer, at: int, datatype: str, count: int) -> int:
    """The end of ``count`` elements from ``at`` on. Raises ValueError where the body ends before."""
    if datatype == BYTES:
        # Every turn takes four bytes at least, so that the body's size bounds them, whatever the count.
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
    """The elements of a section of BYTES that :func:`sections` has found."""
    found, at = [], 0
    while at < len(section):
        stop = at + 4 + _LENGTH.unpack_from(section, at)[0]
        found.append(bytes(section[at + 4 : stop]))
        at = stop
    return found


def join(parts: Iterable[bytes]) -> bytes:
    """Inverse of :func:`elements`."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))
