"""Files of data sets: where they lie, the rows of a CSV file by the names of its columns, and numbers in them."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from smore.domain.errors import NotFound
from smore.domain.quote import quoted
from smore.traces.public import BUNDLED, DATA_SETS
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


def locate(path: str, among: Sequence[Path]) -> Path:
    """
    The file at ``path``, or its packed form ``path``.gz, in the first of the folders that has it. Raises NotFound,
    which says how to get it.
    """
    for folder in among:
        for file in (folder / f"{path}.gz", folder / path):
            if file.is_file():
                return file
    name = path.partition("/")[0]
    hint = f"; `smore data fetch {name}` brings all of it" if name in DATA_SETS and BUNDLED in among else ""
    raise NotFound(f"no {path} in {' or in '.join(map(str, among))}{hint}")
