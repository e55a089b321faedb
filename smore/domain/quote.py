"""Quotes of a caller's values in messages, of bounded length."""

import reprlib
from typing import Final

#: Characters of a quoted value.
MOST_QUOTED: Final = 120
#: Bits of a whole number that is written out: the time for decimal digits grows with the square of their number.
_MOST_BITS: Final = 128


class _Repr(reprlib.Repr):
    """Looks at a few items of each level only, so that the work is bounded as well as the text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxstring = self.maxother = 80
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 4

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002 - as the base class calls it
        return repr(x) if x.bit_length() <= _MOST_BITS else f"a whole number of {x.bit_length()} bits"

    def repr_bytes(self, x: bytes, level: int) -> str:  # noqa: ARG002
        return repr(x) if len(x) <= self.maxstring else f"{x[: self.maxstring]!r}…"


_REPR: Final = _Repr()


def quoted(value: object) -> str:
    """``repr`` of a value of plain types, of at most :data:`MOST_QUOTED` characters."""
    return cut(_REPR.repr(value), MOST_QUOTED)


def cut(text: str, most: int) -> str:
    """The text, of at most ``most`` characters: a longer one keeps its beginning and its last quarter."""
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail - 1]}…{text[len(text) - tail :]}"
