"""Rows of CSV files by the names of their columns, and numbers in them."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from smore.domain.quote import quoted
from smore.traces.recorded import read_lists, refuse


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of each row of a CSV file. Raises BadTrace where the header lacks a name of ``needed``."""
    lists = read_lists(path)
    _, header, _ = next(lists)
    for name in needed:
        if name not in header:
            raise refuse(path, 1, name, "no column of this name")
    for line, _, values in lists:
        yield line, dict(zip(header, values, strict=True))


def read_number(path: Path, line: int, field: str, text: object, low: float = 0.0) -> float:
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise refuse(path, line, field, f"a number is expected, not {quoted(text)}") from None
    if not math.isfinite(value) or value < low:
        raise refuse(path, line, field, f"a number of at least {low:g} is expected, not {quoted(text)}")
    return value
