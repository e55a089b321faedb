"""
Reads the files of the Azure Functions trace of 2019 as published: requests per minute, run times, memory.

The files may be compressed with gzip. Raises :class:`~smore.traces.recorded.BadTrace` with file, line and field.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.simulation.rows import read_number, read_rows
from smore.traces.recorded import refuse


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Invocations:
    """``counts`` [F, T] of the functions ``names`` [F] in the ``minutes`` [T] (their numbers in the file)."""

    names: tuple[str, ...]
    counts: NDArray[np.float64]
    minutes: NDArray[np.int64]


def invocations(path: Path, key: str = "HashFunction") -> Invocations:
    """The counts of a file with one column per minute; ``key`` is the column that names a row."""
    names: list[str] = []
    counts: list[list[float]] = []
    minutes: list[str] = []
    for line, row in read_rows(path, (key,)):
        if not minutes:
            minutes = sorted((name for name in row if name.isdecimal()), key=int)
            if not minutes:
                raise refuse(path, 1, "minutes", "no column is a minute")
        names.append(row[key])
        counts.append([read_number(path, line, minute, row[minute]) for minute in minutes])
    return Invocations(
        names=tuple(names),
        counts=np.array(counts, float).reshape(len(names), len(minutes)),
        minutes=np.array([int(minute) for minute in minutes], np.int64),
    )


def by_function(path: Path, field: str) -> dict[str, float]:
    """One number of each function (``HashFunction``) from a file of run times or memory."""
    return {
        row["HashFunction"]: read_number(path, line, field, row[field])
        for line, row in read_rows(path, ("HashFunction", field))
    }
