"""The demo's traffic: which function is called when, and with what input."""

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smore.traces import public
from smore_client.types import Function

#: The bundled excerpt of the published trace.
TRACE = public.BUNDLED / "azure2019" / "invocations.csv.gz"
#: Functions that are deployed and called, from the fastest to the slowest: the trace's slowest class goes to the
#: slowest function (assumption A50).
FUNCTIONS = ("echo", "silero", "deepfm", "mobilenet", "bert", "resnet50")
#: Length of a free axis of a tensor: one second of sound, the only such axis here.
FREE_AXIS = 16_000
Counts = NDArray[np.float64]


def trace_counts(path: Path, functions: int, seconds: int) -> Counts:
    """
    Shares [functions, seconds] of the invocations of the Azure Functions trace in its published format. Minute m of the
    trace becomes second m (assumption A49).

    Takes the first consecutive minutes. The trace's functions are sorted by mean duration (``durations.csv.gz`` beside
    the file, otherwise by name) and divided into as many equal classes as there are functions here (assumption A50).
    Raises OSError; ValueError for another format or too few minutes.
    """
    rows = _rows(path)
    minutes = sorted((name for name in rows[0] if name.isdigit()), key=int)[:seconds] if rows else []
    if len(minutes) < seconds:
        raise ValueError(f"{path}: {seconds} columns of minutes are needed, the file has {len(minutes)}")
    durations_file = path.with_name(path.name.replace("invocations", "durations"))
    durations: dict[str, float] = {}
    if durations_file != path and durations_file.exists():
        durations = {row["HashFunction"]: float(row["Average"]) for row in _rows(durations_file)}
    rows.sort(key=lambda row: (durations.get(row["HashFunction"], 0.0), row["HashFunction"]))
    counts = np.zeros((functions, seconds))
    for position, row in enumerate(rows):
        counts[position * functions // len(rows)] += [float(row[minute] or 0) for minute in minutes]
    if counts.sum() == 0:
        raise ValueError(f"{path}: no invocation in these minutes")
    shares: Counts = counts / counts.sum()
    return shares


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """One request: when it is due, seconds from the start, and the index of its function."""

    at_s: float
    function: int


def arrivals(counts: Counts, rate: float, seed: int) -> list[Due]:
    """
    Poisson arrivals within each second. Each function's rate is its share of all counts, times ``rate`` requests/s on
    average (assumption A49).
    """
    rng = np.random.default_rng((seed, 1))
    functions, seconds = counts.shape
    drawn = rng.poisson(counts / counts.sum() * rate * seconds)
    due = [
        Due(at_s=second + offset, function=function)
        for function in range(functions)
        for second in range(seconds)
        for offset in rng.random(int(drawn[function, second])).tolist()
    ]
    return sorted(due, key=lambda request: request.at_s)


def typical_part(plan: Sequence[Due], seconds: float, length_s: float) -> list[Due]:
    """
    The part of the plan of ``length_s`` (from a whole second) whose number of requests is nearest to the average, moved
    to time zero.
    """
    if length_s >= seconds:
        return list(plan)
    wanted = len(plan) * length_s / seconds

    def part(start: int) -> list[Due]:
        return [request for request in plan if start <= request.at_s < start + length_s]

    start = min(range(int(seconds - length_s) + 1), key=lambda start: abs(len(part(start)) - wanted))
    return [Due(at_s=request.at_s - start, function=request.function) for request in part(start)]


def sample_input(function: Function, rng: np.random.Generator) -> object:
    """
    One row of what a function takes: small noise for floats, 0 and 1 for integers (every index exists), a small
    document for JSON.
    """
    if function.inputs is None:
        return {"x": [1, 2, 3, 4, 5, 6, 7, 8], "id": "abc"}
    arrays: dict[str, Any] = {}
    for tensor in function.inputs:
        shape = [1, *(size if size > 0 else FREE_AXIS for size in tensor.shape[1:])]
        if tensor.datatype.startswith("FP"):
            arrays[tensor.name] = rng.normal(scale=0.1, size=shape).astype(f"f{int(tensor.datatype[2:]) // 8}")
        else:
            arrays[tensor.name] = rng.integers(0, 2, size=shape, dtype=np.uint8)
    return arrays
