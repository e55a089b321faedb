"""
Files of the Azure Functions trace of 2019 as their publisher wrote them: requests per minute, run times, memory.

Gzip or not; what cannot be used raises :class:`BadTrace` with file, line and field.
"""

import csv
import gzip
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from smore.domain.errors import InvalidSpec


class BadTrace(InvalidSpec):
    """A row or file that cannot be used: the message names file, line and field; ``field`` names the field."""


def refuse(path: Path, line: int, field: str, message: str) -> BadTrace:
    where = f"{path.name}:{line}" if line else path.name
    return BadTrace(f"{where}: {field}: {message}", field=field, line=line)


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """A text file, gzip or not. BadTrace for one that is cut or not text."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rt", newline="") if packed else path.open(newline="") as file:
        try:
            yield file
        except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
            raise refuse(path, 0, "file", f"cut or damaged: {error}") from error


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a CSV with a header that has at least ``needed``."""
    with opened(path) as file:
        reader = csv.reader(file)
        header = next(reader, [])
        for name in needed:
            if name not in header:
                raise refuse(path, 1, name, "no column of this name")
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                raise refuse(path, reader.line_num, "row", f"{len(header)} columns are expected, not {len(values)}")
            yield reader.line_num, dict(zip(header, values, strict=True))


def read_number(path: Path, line: int, field: str, text: object, low: float = 0.0) -> float:
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise refuse(path, line, field, f"a number is expected, not {text!r}") from None
    if not math.isfinite(value) or value < low:
        raise refuse(path, line, field, f"a number of at least {low:g} is expected, not {text!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Invocations:
    """``counts`` [F, T] of ``names`` [F] in the minutes of these numbers [T]."""

    names: tuple[str, ...]
    counts: NDArray[np.float64]
    minutes: NDArray[np.int64]


def invocations(path: Path, key: str = "HashFunction") -> Invocations:
    """A column per minute, whichever there are; ``key`` names a row."""
    names: list[str] = []
    counts: list[list[float]] = []
    minutes: list[str] = []
    for line, row in read_rows(path, (key,)):
        if not minutes:
            minutes = sorted((name for name in row if name.isdecimal()), key=int)
            if not minutes:
                raise refuse(path, 1, "minutes", "no column of a minute")
        names.append(row[key])
        counts.append([read_number(path, line, minute, row[minute]) for minute in minutes])
    return Invocations(
        names=tuple(names), counts=np.array(counts, float).reshape(len(names), len(minutes)),
        minutes=np.array([int(minute) for minute in minutes], np.int64),
    )  # fmt: skip


def by_function(path: Path, field: str) -> dict[str, float]:
    """One number of each function (``HashFunction``) of a file of run times or memory."""
    return {row["HashFunction"]: read_number(path, line, field, row[field]) for line, row in read_rows(path, ("HashFunction", field))}
