"""Markdown of the reference pages: pages, tables, docstrings."""

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Final

NOTE: Final = (
    "<!-- Written by `make fmt` (python -m tools.reference) from the code. Change the code, not this page. -->"
)

#: The text of an empty cell.
NONE: Final = "none"


class Incomplete(Exception):
    """The code has a name without a description, or a description has no name in the code."""


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTE, *(part.strip() for part in parts if part.strip())]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in which no cell is empty. Raises :class:`Incomplete` otherwise."""
    lines = [heads, ["---"] * len(heads), *rows]
    if empty := [line for line in lines if not all(cell.strip() for cell in line)]:
        raise Incomplete(f"no help text, docstring or comment in the code for: {empty}")
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: single backticks, and the last name of each cross-reference."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", inspect.cleandoc(docstring or ""))
    return text.replace("``", "`")
