"""
Traces: when which function is asked for, kept on disk and replayed, never drawn while a run goes on.

A trace file is an ``.npz`` of plain arrays; the same source, options and seed give the same bytes. Sources:

* **Azure Functions 2019** in the publisher's CSV (gzip or not): invocations per minute, any columns of minutes, and
  durations beside it. Minute m becomes second s, each class's share of the minute times the target rate, Poisson within
  the second (A49); the trace's functions by mean duration in as many classes of equal count as there are functions, the
  slowest class to the slowest function (A50).
* **Azure LLM** CSV: its time stamps, compressed to a target rate.
* generators: Poisson, Gamma (by the coefficient of variation of the gaps), periodic, bursty.
* the platform's **history** as CSV or JSON lines.
* **a user's own CSV**: function, arrival_s and, where they are known, deadline_s and rows.

What cannot be used raises :class:`BadTrace` with file, line and field.
"""

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lab.simulation.archive import archive
from lab.simulation.azure import by_function
from lab.simulation.azure import invocations as invocations_of
from lab.simulation.rows import locate, read_number, read_rows
from lab.simulation.world import Reader, World, bad
from smore.domain.errors import NotFound
from smore.traces import public
from smore.traces.recorded import BadTrace, opened, refuse

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VERSION: Final = 1
#: The column of days in which minutes are counted: a minute of the trace becomes a second (A49).
COMPRESSION: Final = 60
#: From the beginning to the deadline of what is of class batch, seconds.
BULK_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """
    ``n`` invocations in order of arrival.

    ``arrival_s`` [n] from the beginning, ``function`` [n] an index into ``functions``, ``rows`` [n] (0: the function's
    own batch). The deadline is ``factor`` [n] times the function's P99 alone (A30), or, where that is NaN,
    ``deadline_s`` [n] after the arrival. ``duration_s``: the span over which rates and utilisation are meant. ``name``
    says where it is from, compression included.
    """

    name: str
    functions: tuple[str, ...]
    duration_s: float
    arrival_s: Floats
    function: Ints
    rows: Ints
    factor: Floats
    deadline_s: Floats

    def __post_init__(self) -> None:
        n = len(self.arrival_s)
        for name in ("function", "rows", "factor", "deadline_s"):
            if len(getattr(self, name)) != n:
                raise BadTrace(f"{name}: {n} values are expected", field=name)
        if n and (
            (np.diff(self.arrival_s) < 0).any() or self.arrival_s[0] < 0 or not np.isfinite(self.arrival_s).all()
        ):
            raise BadTrace("arrival_s: times from 0 on in ascending order are expected", field="arrival_s")
        if n and (self.function.min() < 0 or self.function.max() >= len(self.functions)):
            raise BadTrace("function: an index beyond the functions", field="function")
        if (self.rows < 0).any():
            raise BadTrace("rows: at least 0 rows are expected", field="rows")
        given = np.where(np.isnan(self.factor), self.deadline_s, self.factor)
        if not (given > 0).all() or not np.isfinite(given).all():
            raise BadTrace("deadline_s: a deadline after the arrival is expected", field="deadline_s")
        if not (self.duration_s > 0 and math.isfinite(self.duration_s)):
            raise BadTrace("duration_s: more than 0 is expected", field="duration_s")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate_per_s(self) -> float:
        return len(self) / self.duration_s

    def index_in(self, names: Sequence[str]) -> Ints:
        """The place of each of its functions among ``names``. Raises BadTrace for one that is not there."""
        column = {name: index for index, name in enumerate(names)}
        missing = next((name for name in self.functions if name not in column), None)
        if missing is not None:
            raise BadTrace(
                f"function: {missing!r} is none of the world's functions ({', '.join(names)})", field="function"
            )
        return np.array([column[name] for name in self.functions], np.int64)

    def rows_in(self, world: World) -> Ints:
        """[n], with the function's own batch where none was given."""
        own = np.array([function.batch for function in world.functions])
        return np.where(
            self.rows > 0, self.rows, own[self.index_in([function.name for function in world.functions])[self.function]]
        )

    def deadlines_in(self, world: World) -> Floats:
        """[n], on the trace's clock."""
        index = self.index_in([function.name for function in world.functions])[self.function]
        keys = np.stack([index, self.rows_in(world)], axis=1)
        sizes, which = np.unique(keys, axis=0, return_inverse=True)
        p99 = np.array([world.p99_s(world.functions[function], rows) for function, rows in sizes.tolist()])
        relative = np.where(
            np.isnan(self.factor), self.deadline_s, self.factor * p99[which.reshape(-1)] if len(self) else self.factor
        )
        return np.asarray(self.arrival_s + relative)

    def none(self) -> "Trace":
        """The same span without a single arrival: what an exclusive run is."""
        empty, whole = np.zeros(0), np.zeros(0, np.int64)
        return Trace(
            name=f"{self.name} without functions",
            functions=self.functions,
            duration_s=self.duration_s,
            arrival_s=empty,
            function=whole,
            rows=whole,
            factor=empty,
            deadline_s=empty,
        )

    def write(self, path: Path) -> None:
        path.write_bytes(self.encode())

    def encode(self) -> bytes:
        meta = {"version": VERSION, "name": self.name, "functions": list(self.functions), "duration_s": self.duration_s}
        return archive(
            {
                "meta": np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8),
                "arrival_s": self.arrival_s.astype("<f8"),
                "function": self.function.astype("<i4"),
                "rows": self.rows.astype("<i4"),
                "factor": self.factor.astype("<f8"),
                "deadline_s": self.deadline_s.astype("<f8"),
            }
        )


def read(path: Path) -> Trace:
    """A trace file. Raises BadTrace for one that is damaged or of another version, OSError where there is none."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        meta = json.loads(arrays["meta"].tobytes())
        if meta["version"] != VERSION:
            raise refuse(path, 0, "version", f"{VERSION} is expected, not {meta['version']!r}")
        return Trace(
            name=meta["name"],
            functions=tuple(meta["functions"]),
            duration_s=float(meta["duration_s"]),
            arrival_s=arrays["arrival_s"].astype(float),
            function=arrays["function"].astype(np.int64),
            rows=arrays["rows"].astype(np.int64),
            factor=arrays["factor"].astype(float),
            deadline_s=arrays["deadline_s"].astype(float),
        )
    except BadTrace as error:
        raise BadTrace(
            f"{path.name}: {error}" if path.name not in str(error) else str(error), **error.details
        ) from error
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise refuse(path, 0, "file", f"not a trace: {error}") from error


# ---- CSV -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Azure:
    """
    The publisher's functions: ``counts`` [n, minutes], ``duration_s`` [n] mean run time, ``minutes`` the numbers of the
    columns.
    """

    counts: Floats
    duration_s: Floats
    minutes: Ints


def azure(invocations: Path, durations: Path) -> Azure:
    """
    The Azure Functions trace of 2019: ``invocations`` with a column per minute, ``durations`` with ``Average`` in ms,
    joined on ``HashFunction``. Functions without a duration are left out.
    """
    known = by_function(durations, "Average")
    table = invocations_of(invocations)
    kept = [row for row, name in enumerate(table.names) if name in known]
    if not kept:
        raise refuse(invocations, 0, "HashFunction", "no function has a duration")
    seconds = np.array([known[table.names[row]] / 1000.0 for row in kept])
    return Azure(counts=table.counts[kept], duration_s=seconds, minutes=table.minutes)


def classes(duration_s: Floats, amount: int) -> Ints:
    """A50: class 0..amount-1 of each function by mean duration, slowest last, of equal count as nearly as can be."""
    order = np.argsort(duration_s, kind="stable")
    numbers = np.empty(len(duration_s), np.int64)
    for number, part in enumerate(np.array_split(order, amount)):
        numbers[part] = number
    return numbers


def scaled(
    source: Azure, world: World, *, rate_per_s: float, seconds: int, seed: int, first: int | None = None
) -> Trace:
    """
    A49 and A50: ``seconds`` consecutive minutes from column ``first`` on (None: drawn), one a second.

    A minute without a single invocation is a second without one. Raises BadTrace where the source is too short.
    """
    random = np.random.default_rng([seed, 3])
    width = source.counts.shape[1]
    if not 0 < seconds <= width:
        raise BadTrace(f"seconds: the trace has {width} minutes, {seconds} are asked for", field="seconds")
    begin = int(random.integers(0, width - seconds + 1)) if first is None else first
    if not 0 <= begin <= width - seconds:
        raise BadTrace(f"first: column {begin} leaves no {seconds} minutes", field="first")
    speed = np.argsort([world.use(function, function.batch).seconds for function in world.functions], kind="stable")
    amount = len(world.functions)
    of = classes(source.duration_s, amount)
    counts = np.stack([source.counts[of == number, begin : begin + seconds].sum(axis=0) for number in range(amount)])
    total = counts.sum(axis=0)
    share = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    drawn = random.poisson(share * rate_per_s)
    arrivals, functions = [], []
    for second in range(seconds):
        for number in range(amount):
            amount_now = int(drawn[number, second])
            arrivals.append(second + random.random(amount_now))
            functions.append(np.full(amount_now, speed[number]))
    name = (
        f"azure2019 minutes {source.minutes[begin]}..{source.minutes[begin + seconds - 1]} x{COMPRESSION} at"
        f" {rate_per_s * 60:g}/min"
    )
    return _made(
        name, world, float(seconds), np.concatenate(arrivals), np.concatenate(functions).astype(np.int64), random, seed
    )


def _made(
    name: str,
    world: World,
    duration_s: float,
    arrival_s: Floats,
    function: Ints,
    random: np.random.Generator,
    seed: int,
) -> Trace:
    """In order of arrival, every deadline factor drawn from the world's bounds; of class batch :data:`BULK_S`."""
    order = np.argsort(arrival_s, kind="stable")
    n = len(arrival_s)
    bulk = np.array([one.bulk > 0 for one in world.functions])[function[order]]
    return Trace(
        name=f"{name} seed {seed}",
        functions=tuple(one.name for one in world.functions),
        duration_s=duration_s,
        arrival_s=arrival_s[order],
        function=function[order],
        rows=np.zeros(n, np.int64),
        factor=np.where(bulk, np.nan, random.uniform(*world.deadline, n)),
        deadline_s=np.where(bulk, BULK_S, np.nan),
    )


def llm(path: Path, world: World, *, rate_per_s: float, seconds: float, seed: int) -> Trace:
    """
    The Azure LLM trace: the first arrivals that, compressed to ``rate_per_s``, fill ``seconds``; functions by the
    tokens that were generated, the longest answers to the slowest function.
    """
    stamps, tokens = [], []
    for line, row in read_rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        text = row["TIMESTAMP"]
        try:
            # Seven digits of a second are more than Python reads.
            moment = datetime.fromisoformat(text[:26])
        except ValueError:
            raise refuse(path, line, "TIMESTAMP", f"a date and time are expected, not {text!r}") from None
        stamps.append(moment.timestamp())
        tokens.append(read_number(path, line, "GeneratedTokens", row["GeneratedTokens"]))
        read_number(path, line, "ContextTokens", row["ContextTokens"])
    if len(stamps) < 2:
        raise refuse(path, 0, "TIMESTAMP", "at least two requests are expected")
    at = np.array(stamps) - min(stamps)
    order = np.argsort(at, kind="stable")
    at, size = at[order], np.array(tokens)[order]
    compression = rate_per_s * float(at[-1]) / len(at)
    at = at / compression
    kept = at < seconds
    speed = np.argsort([world.use(function, function.batch).seconds for function in world.functions], kind="stable")
    function = speed[classes(size[kept], len(world.functions))]
    random = np.random.default_rng([seed, 3])
    name = f"azure-llm {path.name.split('.')[0]} x{compression:.4g} at {rate_per_s * 60:g}/min"
    return _made(name, world, float(seconds), at[kept], function.astype(np.int64), random, seed)


# ---- generators ------------------------------------------------------------------------------------------------------


def generated(kind: str, world: World, *, rate_per_s: float, seconds: float, seed: int, **options: float) -> Trace:
    """
    ``poisson``; ``gamma`` (``cv``: of the gaps); ``periodic`` (evenly spaced by function, ``jitter`` as a share of the
    gap); ``bursty`` (bursts of ``burst`` times the rate for ``burst_s`` of every ``period_s``, the rest shared out so
    that the mean holds).

    Functions are drawn alike, but those of class batch, all of whose invocations come first. Raises BadTrace for another
    kind or an option out of its range.
    """
    random = np.random.default_rng([seed, 3])
    bulk = [function.bulk for function in world.functions]
    standard = [index for index, waiting in enumerate(bulk) if not waiting]
    count = len(standard)
    if not (rate_per_s > 0 and seconds > 0):
        raise BadTrace("rate: a rate and a span of more than 0 are expected", field="rate")
    make = _GENERATORS.get(kind)
    if make is None:
        raise BadTrace(f"kind: one of {', '.join(_GENERATORS)} is expected, not {kind!r}", field="kind")
    arrival = make(random, rate_per_s, seconds, count, options)
    if options:
        raise BadTrace(f"{next(iter(options))}: no option of a {kind} trace", field=next(iter(options)))
    drawn = np.arange(len(arrival)) % count if kind == "periodic" else random.integers(0, count, len(arrival))
    function = np.concatenate([np.repeat(np.arange(len(bulk)), bulk), np.array(standard)[drawn]])
    arrival = np.concatenate([np.zeros(sum(bulk)), arrival])
    name = f"{kind} at {rate_per_s * 60:g}/min"
    return _made(name, world, float(seconds), arrival, function.astype(np.int64), random, seed)


def _option(options: dict[str, float], name: str, default: float, low: float, high: float) -> float:
    value = options.pop(name, default)
    if not low <= value <= high:
        raise BadTrace(f"{name}: a number in {low:g}..{high:g} is expected, not {value!r}", field=name)
    return value


def _poisson(
    random: np.random.Generator, rate: float, seconds: float, _count: int, _options: dict[str, float]
) -> Floats:
    return np.sort(random.uniform(0.0, seconds, random.poisson(rate * seconds)))


def _gamma(random: np.random.Generator, rate: float, seconds: float, _count: int, options: dict[str, float]) -> Floats:
    cv = _option(options, "cv", 4.0, 0.01, 100.0)
    shape = 1.0 / cv**2
    all_gaps: list[Floats] = []
    at, size = 0.0, max(16, int(1.5 * rate * seconds))
    while at < seconds:
        gaps = at + np.cumsum(random.gamma(shape, 1.0 / (rate * shape), size))
        all_gaps.append(gaps)
        at = float(gaps[-1])
    every = np.concatenate(all_gaps)
    return np.asarray(every[every < seconds])


def _periodic(
    random: np.random.Generator, rate: float, seconds: float, count: int, options: dict[str, float]
) -> Floats:
    jitter = _option(options, "jitter", 0.0, 0.0, 1.0)
    n = int(rate * seconds)
    at = (np.arange(n) + 0.5) / rate
    moved = at + jitter * (random.random(n) - 0.5) * count / rate
    return np.asarray(np.clip(moved, 0.0, np.nextafter(seconds, 0.0)))


def _bursty(random: np.random.Generator, rate: float, seconds: float, _count: int, options: dict[str, float]) -> Floats:
    burst = _option(options, "burst", 5.0, 1.0, 1e3)
    period = _option(options, "period_s", 10.0, 1e-3, 1e6)
    length = _option(options, "burst_s", 1.0, 1e-3, 1e6)
    part = length / period
    if part >= 1 or burst * part > 1:
        raise BadTrace("burst: bursts hold more than the whole rate", field="burst")
    between = rate * (1 - burst * part) / (1 - part)
    highest = rate * burst
    at = _poisson(random, highest, seconds, 0, {})
    allowed = np.where(at % period < length, highest, between)
    return np.asarray(at[random.random(len(at)) * highest < allowed])


_GENERATORS: Final[Mapping[str, Callable[[np.random.Generator, float, float, int, dict[str, float]], Floats]]] = {
    "poisson": _poisson,
    "gamma": _gamma,
    "periodic": _periodic,
    "bursty": _bursty,
}


# ---- the platform's own history --------------------------------------------------------------------------------------

HISTORY: Final = ("function", "revision", "arrival_at", "deadline_at", "rows")


def history(path: Path, models: Sequence[str] | None = None) -> Trace:
    """
    What the platform served: CSV or JSON lines of :data:`HISTORY`, times in epoch seconds, in any order. A function's
    revisions are one.

    ``models``: the functions that may be named; None: any.
    """
    names: dict[str, int] = {}
    rows_read: list[tuple[float, int, int, float]] = []
    for line, row in _json_lines(path) if path.suffix in (".jsonl", ".ndjson") else read_rows(path, HISTORY):
        for field in HISTORY:
            if field not in row:
                raise refuse(path, line, field, "is missing")
        name = row["function"]
        if not isinstance(name, str) or not name or (models is not None and name not in models):
            raise refuse(path, line, "function", f"{name!r} is not known")
        arrival = read_number(path, line, "arrival_at", row["arrival_at"])
        deadline = read_number(path, line, "deadline_at", row["deadline_at"])
        if deadline <= arrival:
            raise refuse(path, line, "deadline_at", f"{deadline:g} is not after the arrival at {arrival:g}")
        for field in ("revision", "rows"):
            value = read_number(path, line, field, row[field], 1)
            if value != int(value):
                raise refuse(path, line, field, f"a whole number is expected, not {row[field]!r}")
        rows_read.append((arrival, names.setdefault(name, len(names)), int(float(row["rows"])), deadline - arrival))
    if not rows_read:
        raise refuse(path, 0, "file", "no row")
    rows_read.sort()
    columns = np.array(rows_read, float)
    arrival_s = columns[:, 0] - columns[0, 0]
    return Trace(
        name=f"history {path.name}",
        functions=tuple(names),
        duration_s=float(arrival_s[-1]) + 1.0,
        arrival_s=arrival_s,
        function=columns[:, 1].astype(np.int64),
        rows=columns[:, 2].astype(np.int64),
        factor=np.full(len(rows_read), np.nan),
        deadline_s=columns[:, 3],
    )


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with opened(path) as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                raise refuse(path, line, "row", f"not JSON: {error}") from None
            if not isinstance(row, dict):
                raise refuse(path, line, "row", "an object is expected")
            yield line, row


# ---- a user's own CSV ------------------------------------------------------------------------------------------------

#: The columns of a trace of one's own that must be there; deadline_s and rows may be.
OWN: Final = ("function", "arrival_s")
#: The longest trace, and the longest run of one invocation, seconds: beyond them a simulation hardly ends.
LONGEST_S: Final = 1e7
LONGEST_RUN_S: Final = 600.0


def own(path: Path, world: World, seed: int) -> Trace:
    """
    A CSV file with a row for each invocation, in any order: ``function``, ``arrival_s`` (seconds from the beginning),
    ``deadline_s`` (seconds after the arrival) and ``rows``.

    Where a deadline is missing, its factor on the function's P99 is drawn as for other traces; where rows are missing,
    the function's own batch is taken. Raises BadTrace with file, line and field.
    """
    names = [function.name for function in world.functions]
    invocations: list[tuple[float, int, int, float]] = []
    for line, row in read_rows(path, OWN):
        if row["function"] not in names:
            raise refuse(path, line, "function", f"{row['function']!r} is none of {', '.join(names)}")
        deadline, rows = row.get("deadline_s", ""), row.get("rows", "")
        deadline_s = read_number(path, line, "deadline_s", deadline) if deadline else math.nan
        if deadline_s <= 0:
            raise refuse(
                path, line, "deadline_s", f"more than 0 seconds after the arrival are expected, not {deadline}"
            )
        amount = read_number(path, line, "rows", rows, 1) if rows else 0.0
        if amount != int(amount):
            raise refuse(path, line, "rows", f"a whole number is expected, not {rows!r}")
        run_s = world.p99_s(world.functions[names.index(row["function"])], int(amount)) if rows else 0.0
        if run_s > LONGEST_RUN_S:
            words = f"{int(amount)} rows would run for {run_s:.0f} s alone, more than {LONGEST_RUN_S:.0f} s"
            raise refuse(path, line, "rows", words)
        arrival_s = read_number(path, line, "arrival_s", row["arrival_s"])
        if arrival_s > LONGEST_S:
            words = (
                f"seconds from the beginning of the trace are expected, at most {LONGEST_S:.0f}, not {arrival_s:.0f}"
            )
            raise refuse(path, line, "arrival_s", words)
        invocations.append((arrival_s, names.index(row["function"]), int(amount), deadline_s))
    if not invocations:
        raise refuse(path, 0, "file", "no row")
    invocations.sort(key=lambda invocation: invocation[0])
    columns = np.array(invocations, float)
    drawn = np.random.default_rng([seed, 3]).uniform(*world.deadline, len(columns))
    return Trace(
        name=f"csv {path.name}",
        functions=tuple(names),
        duration_s=float(columns[-1, 0]) + 1.0,
        arrival_s=columns[:, 0],
        function=columns[:, 1].astype(np.int64),
        rows=columns[:, 2].astype(np.int64),
        factor=np.where(np.isnan(columns[:, 3]), drawn, np.nan),
        deadline_s=columns[:, 3],
    )


# ---- documents -------------------------------------------------------------------------------------------------------

#: Kinds that are read whole from a file of the user's: they have a ``path``, and no rate.
WHOLE: Final = ("csv", "history", "file")


def changed(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A preset's trace with some of its fields changed; the rest of it is dropped for a file that is read whole."""
    kept = {} if overrides.get("kind") in WHOLE else dict(document)
    return kept | dict(overrides)


def of(document: Mapping[str, Any], world: World, seed: int, *, data: Sequence[Path] = (public.BUNDLED,)) -> Trace:
    """
    The trace that a preset describes. ``kind``: azure, llm, csv, history, file, or a generator; ``rate_per_min``,
    ``seconds`` and the kind's own options. ``data``: the folders in which public traces are looked for.

    Raises BadWorld or BadTrace, which name the field; a missing file is a BadTrace too.
    """
    reader = Reader(document, "trace")
    kind = reader.word("kind", "poisson", ("azure", "llm", *WHOLE, *_GENERATORS))
    try:
        if kind in WHOLE:
            if not reader.has("path"):
                raise bad("trace.path", f"a trace of the kind {kind} needs the path of its file")
            path = Path(reader.word("path", ""))
            reader.end()
            return _whole(kind, path, world, seed)
        rate = reader.number("rate_per_min", 12_000, 0.001, 1e9) / 60.0
        seconds = reader.number("seconds", 60, 0.001, LONGEST_S)
        if kind == "azure":
            if seconds != int(seconds):
                raise bad("trace.seconds", "whole seconds are expected: each is a minute of the trace")
            first = reader.whole("first", 0, 0, 10_000_000) if reader.has("first") else None
            folder = reader.word("folder", "azure2019")
            reader.end()
            invocations, durations = (locate(f"{folder}/{name}.csv", data) for name in ("invocations", "durations"))
            source = _azure(_stamped(invocations), _stamped(durations))
            return scaled(source, world, rate_per_s=rate, seconds=int(seconds), seed=seed, first=first)
        if kind == "llm":
            path = locate(reader.word("file", "inference/azure_llm_2023_code.csv.gz"), data)
            reader.end()
            return llm(path, world, rate_per_s=rate, seconds=seconds, seed=seed)
        options = {
            name: reader.number(name, 0, 0, 1e6)
            for name in ("cv", "jitter", "burst", "burst_s", "period_s")
            if reader.has(name)
        }
        reader.end()
        return generated(kind, world, rate_per_s=rate, seconds=seconds, seed=seed, **options)
    except OSError as error:
        raise BadTrace(f"file: {error.filename}: {error.strerror}", field="file") from error
    except NotFound as error:
        raise BadTrace(f"file: {error}", field="file") from error


def _whole(kind: str, path: Path, world: World, seed: int) -> Trace:
    """A trace of the user's. Raises BadTrace, which names the file by the whole path that was given."""
    try:
        match kind:
            case "csv":
                return own(path, world, seed)
            case "history":
                return history(path, [function.name for function in world.functions])
            case _:
                return read(path)
    except BadTrace as error:
        # Readers name a file without its folder, because that of an upload is of no use to who sent it.
        raise BadTrace(str(error).replace(path.name, str(path), 1), **error.details) from error


def _stamped(path: Path) -> tuple[Path, int]:
    """A file, and when it was changed: together the key of what was read of it."""
    return path, path.stat().st_mtime_ns


@lru_cache(maxsize=1)
def _azure(invocations: tuple[Path, int], durations: tuple[Path, int]) -> Azure:
    """Read once for all the seeds of a comparison."""
    return azure(invocations[0], durations[0])
