"""
Encodes a function's result as JSON of bounded size: a result that is too large is refused before it is encoded. Used in
the runner's process.

orjson writes into one buffer that it doubles, allocates many times the size of a text, a list or a dict beforehand, and
does not check whether the allocation succeeded: at a runner's memory limit the process ends by SIGSEGV. So a value that
is not small is measured first, which bounds its JSON from below and from above, and encoded if there is memory for the
upper bound. Otherwise long texts, lists and dicts are encoded in parts, which takes less. What must stay true: no result
of a function ends its runner.
"""

import ctypes
import dataclasses
import enum
from collections.abc import Iterable
from itertools import accumulate
from operator import mul
from typing import Any, Final

import numpy as np
import orjson

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
#: Most bytes of a number or a constant with its comma; of a date or a UUID; of a character (``\u0001``).
_NUMBER: Final = 25
_OTHER: Final = 41
_CHARACTER: Final = 6
#: Bytes that orjson (3.13) allocates beforehand for each byte of a text; for each item of a list and of a dict (measured:
#: 146 and 292).
_AHEAD: Final = 8
_AHEAD_ITEM: Final = 160
_AHEAD_ENTRY: Final = 320
#: A longer text, a list or dict of more items, is encoded in parts of this length.
_LONG: Final = 1 << 16
_LONG_LIST: Final = 1 << 12
#: Values, and characters of texts, for which memory is taken for granted.
_FEW: Final = 1 << 12
#: Depth of nesting that orjson refuses.
_DEEPEST: Final = 256
_NUMBERS: Final = frozenset({int, float})
_PLAIN: Final = frozenset({int, float, bool, type(None)})


#: A bytes object that nobody has written to takes address space and no memory. It comes from orjson's own allocator, whose
#: free memory counts.
_unwritten = ctypes.pythonapi.PyBytes_FromStringAndSize
_unwritten.argtypes, _unwritten.restype = (ctypes.c_char_p, ctypes.c_ssize_t), ctypes.py_object


class ResultTooLarge(Exception):
    """A result, or a batch's results together, are larger than they may be."""


def amount(size: int) -> str:
    """A number of bytes in words."""
    return f"{size / 2**20:.3g} MiB"


def bound(size: int, most: int) -> None:
    """Raises ResultTooLarge where ``size`` bytes are more than ``most``."""
    if size > most:
        raise ResultTooLarge(f"a result may take {amount(most)}, this one takes more")


def json(value: object, most: int) -> bytes:
    """The value as JSON, at most ``most`` bytes. Raises ResultTooLarge, and TypeError where it cannot be JSON."""
    if not _is_small(value):
        measured = _Measured(most)
        measured.add(value)
        if not measured.has_room():
            largest = amount(measured.most)
            measured = _Measured(most, in_parts=True)
            try:
                value = measured.add(value)
                if not measured.has_room():
                    raise MemoryError
            except MemoryError as error:
                message = (
                    f"the result may take up to {largest} as JSON, and less than what that needs is left of the memory"
                )
                raise ResultTooLarge(message) from error
    encoded = orjson.dumps(value, option=_OPTIONS)
    bound(len(encoded), most)
    return encoded


def _is_small(value: object) -> bool:
    """Whether it need not be measured: most results need not."""
    budget = _FEW
    left: list[Any] = [value]
    while left and budget >= 0:
        item = left.pop()
        kind = type(item)
        if kind is str:
            budget -= len(item)
        elif kind is list:
            budget -= len(item)
            if budget >= 0 and not (item and type(item[0]) in _NUMBERS and _are_numbers(item)):
                left += item
        elif kind is dict:
            budget -= 2 * len(item)
            if budget >= 0:
                left += item
                left += item.values()
        elif kind not in _PLAIN:
            return False
    return budget >= 0


def _are_numbers(values: Iterable[Any]) -> bool:
    """Whether all are numbers, by adding them up: the fastest way that Python has."""
    try:
        return type(sum(values)) in _NUMBERS
    except Exception:  # noqa: BLE001 - whatever is among them
        return False


def _is_room(size: int) -> bool:
    """
    Whether there is memory for a buffer of orjson that holds ``size`` bytes, and for the smaller one that it is copied
    from.
    """
    buffer = 1 << size.bit_length()
    try:
        _unwritten(None, buffer + buffer // 2)
    except MemoryError:
        return False
    return True


class _Measured:
    """
    Bounds on the JSON of values: its bytes at least and at most, and what orjson allocates beforehand for the largest
    part that is still to be encoded. ``in_parts``: encode long texts, lists and dicts on the way.
    """

    def __init__(self, allowed: int, *, in_parts: bool = False) -> None:
        self.least = 0
        self.most = 0
        self.ahead = 0
        self._allowed = allowed
        self._in_parts = in_parts

    def has_room(self) -> bool:
        """Whether there is memory to encode all of it."""
        return _is_room(self.most + self.ahead)

    def _plus(self, least: int, most: int) -> None:
        self.least += least
        self.most += most
        bound(self.least, self._allowed)

    def add(self, value: Any, depth: int = 0) -> Any:
        """
        Measure a value. Returns it, with ``in_parts`` its long parts encoded. Raises ResultTooLarge, and TypeError for
        what is nested too deeply.
        """
        kind = type(value)
        if kind in _PLAIN:
            self._plus(1, _NUMBER)
        elif kind is str and len(value) > _LONG and self._in_parts:
            return self._encoded(value)
        elif isinstance(value, str):
            self._text(value)
        elif depth > _DEEPEST:
            raise TypeError("it is nested too deeply")
        elif isinstance(value, dict):
            return self._dict(value, depth)
        elif isinstance(value, list | tuple):
            return self._list(value, depth)
        elif isinstance(value, np.ndarray):
            lists = sum(accumulate(value.shape[:-1], mul, initial=1))
            self._plus(2 * lists + value.size, 3 * lists + _NUMBER * value.size)
        elif isinstance(value, enum.Enum):
            return self.add(value.value, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
            return self._dict({name: getattr(value, name) for name in names if hasattr(value, name)}, depth)
        else:
            self._plus(1, _OTHER)
        return value

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[Any, Any] | orjson.Fragment:
        if self._in_parts and len(value) > _LONG_LIST:
            items = list(value.items())
            parts = (dict(items[start : start + _LONG_LIST]) for start in range(0, len(items), _LONG_LIST))
            return self._joined(b"{", parts, b"}", depth)
        self.ahead = max(self.ahead, _AHEAD_ENTRY * len(value))
        # Braces and colons.
        self._plus(2 + len(value), 3 + len(value))
        for key in value:
            if isinstance(key, str):
                self._text(key)
            else:
                self._plus(1, _OTHER)
        values = self._many(value.values(), len(value), depth)
        return value if values is None else dict(zip(value, values, strict=True))

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any] | tuple[Any, ...] | orjson.Fragment:
        if self._in_parts and len(value) > _LONG_LIST:
            return self._joined(
                b"[", (value[start : start + _LONG_LIST] for start in range(0, len(value), _LONG_LIST)), b"]", depth
            )
        self.ahead = max(self.ahead, _AHEAD_ITEM * len(value))
        if value and type(value[0]) is list and set(map(type, value)) == {list} and _are_numbers(map(sum, value)):
            rows, count = len(value), sum(map(len, value))
            self.ahead = max(self.ahead, _AHEAD_ITEM * max(map(len, value)))
            self._plus(2 * (rows + count) + 1, 3 * (rows + 1) + _NUMBER * count)
            return value
        self._plus(2, 3)
        values = self._many(value, len(value), depth)
        return value if values is None else values

    def _many(self, values: Iterable[Any], count: int, depth: int) -> list[Any] | None:
        """Measure values with the commas between them. None where all stay as they are."""
        commas = max(0, count - 1)
        if _are_numbers(values):
            self._plus(commas + count, _NUMBER * count)
            return None
        self._plus(commas, count)
        measured, changed = [], False
        for value in values:
            new = self.add(value, depth + 1)
            changed = changed or new is not value
            measured.append(new)
        return measured if changed else None

    def _joined(self, first: bytes, parts: Iterable[Any], last: bytes, depth: int) -> orjson.Fragment:
        """
        A list or dict from its parts, each encoded by itself. Raises MemoryError where there is no memory for a part.
        """
        least, most, ahead = self.least, self.most, self.ahead
        encoded = []
        for part in parts:
            self.ahead = 0
            measured = self.add(part, depth)
            if not _is_room(self.most - most + self.ahead):
                raise MemoryError
            encoded.append(orjson.dumps(measured, option=_OPTIONS)[1:-1])
            # The size of an encoded part is known, and nothing more is allocated for it.
            least, most = least + len(encoded[-1]) + 1, most + len(encoded[-1]) + 1
            self.least, self.most, self.ahead = least, most, ahead
            bound(self.least, self._allowed)
        self._plus(1, 1)
        return orjson.Fragment(b"".join((first, b",".join(encoded), last)))

    def _text(self, text: str) -> None:
        self._plus(len(text) + 2, _CHARACTER * len(text) + 3)
        self.ahead = max(self.ahead, _AHEAD * (len(text) if text.isascii() else 4 * len(text)))

    def _encoded(self, text: str) -> orjson.Fragment:
        self._plus(2, 3)
        parts = [b'"']
        for start in range(0, len(text), _LONG):
            if not _is_room((_CHARACTER + 4 * _AHEAD) * _LONG):
                raise MemoryError
            parts.append(orjson.dumps(text[start : start + _LONG])[1:-1])
            self._plus(len(parts[-1]), len(parts[-1]))
        return orjson.Fragment(b"".join((*parts, b'"')))
