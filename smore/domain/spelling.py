"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

from smore.domain.quote import quoted

#: Names that are compared, and characters of the misspelt one: a request must not cost a gateway its time.
_MOST_NAMES: Final = 256
_MOST_LETTERS: Final = 64


def nothing_named(kind: str, name: str, names: Iterable[str], where: str = "") -> str:
    """``There is no function 'ehco' in this project; did you mean echo?``"""
    return f"There is no {kind} {quoted(name)}{where and f' {where}'}{did_you_mean(name, names) or '.'}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``; did you mean a or b?`` with the names that are spelt like ``name``, "" where none is."""
    matches = get_close_matches(name[:_MOST_LETTERS], list(islice(names, _MOST_NAMES)), 3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
