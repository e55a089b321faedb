"""
Recorded traces of arrivals: CSV files, with gzip or without. Forecasters learn from them until the platform has counts of
its own.

The header decides between two formats. **Per minute**, the format of the Azure Functions trace of 2019: one row for each
function, named by ``HashFunction``, and one column for each minute of the day, named by its number. **Arrivals**: one row
for each arrival, with ``function`` and ``timestamp`` (epoch seconds or RFC 3339). Rows of the same name are added up. A
file or row that cannot be used raises :class:`BadTrace`.
"""

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Final

from smore.domain.errors import InvalidSpec
from smore.domain.quote import quoted

MINUTE_S: Final = 60
#: Characters of an imported file, unpacked: reading them takes some seconds of a gateway's thread.
MOST_CHARACTERS: Final = 64 << 20
#: Characters of one line: 14 days of minutes in numbers of seven digits have 160,000.
MOST_LINE: Final = 1 << 20
#: Minutes between the first and the last arrival; in a longer trace one of the two dates is taken to be wrong.
MOST_MINUTES: Final = 14 * 1440
#: Arrivals of a function in a minute.
MOST_ARRIVALS: Final = 1_000_000
#: Characters of a name.
MOST_NAME: Final = 256

PER_MINUTE: Final = "HashFunction"
ARRIVALS: Final = ("function", "timestamp")


class BadTrace(InvalidSpec):
    """A row or file that cannot be used: the message names file, line and field; ``field`` names the field."""


def refuse(path: Path, line: int, field: str, message: str) -> BadTrace:
    where = f"{path.name}:{line}" if line else path.name
    return BadTrace(f"{where}: {field}: {message}", field=field, line=line)


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """The open text file, gzip or not. Raises BadTrace where it is truncated or not text."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with (
        gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        if packed
        else path.open(encoding="utf-8-sig", newline="") as file
    ):
        try:
            yield file
        except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
            raise refuse(path, 0, "file", f"cut or damaged: {error}") from error


def read_lists(path: Path, most: float = math.inf) -> Generator[tuple[int, Sequence[str], list[str]], None, None]:
    """(line, header, values) of each row of a CSV file, the header first. Raises BadTrace beyond ``most`` characters."""
    read = 0

    def bounded(file: IO[str]) -> Iterator[str]:
        nonlocal read
        # Reading is bounded, since gzip packs gigabytes of one byte into megabytes.
        while line := file.readline(MOST_LINE + 1):
            read += len(line)
            if len(line) > MOST_LINE:
                raise refuse(path, 0, "file", f"a line of more than {MOST_LINE:,} characters")
            if read > most:
                raise refuse(path, 0, "file", f"more than {most:,} characters, unpacked")
            yield line

    with opened(path) as file:
        reader = csv.reader(bounded(file))
        try:
            header = next(reader, [])
            yield reader.line_num, header, header
            for values in reader:
                if not values:
                    continue
                if len(values) != len(header):
                    raise refuse(path, reader.line_num, "row", f"{len(header)} columns are expected, not {len(values)}")
                yield reader.line_num, header, values
        except csv.Error as error:
            raise refuse(path, reader.line_num, "row", str(error)) from error


# ---- what is imported ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """
    A recorded trace. ``totals``: arrivals by name. ``minutes``: its length. ``from_at``: its first minute, in epoch
    seconds where the trace is ``dated``, otherwise in seconds since midnight.
    """

    path: Path
    dated: bool
    from_at: int
    minutes: int
    totals: Mapping[str, int]

    def busiest(self, number: int, without: Iterable[str] = ()) -> list[str]:
        """The ``number`` busiest names, the busiest first; among equals the first in the file. ``without`` are left out."""
        excluded = set(without)
        return [name for name, _ in Counter(self.totals).most_common() if name not in excluded][:number]

    def counts(self, names: Iterable[str]) -> dict[str, list[int]]:
        """Name → arrivals in each of the minutes."""
        counts = {name: [0] * self.minutes for name in names}
        if not counts:
            return counts
        for name, minute, count in _read(self.path):
            if name in counts:
                counts[name][(minute * MINUTE_S - self.from_at) // MINUTE_S] += count
        return counts


def read_trace(path: Path) -> Trace:
    """Read and check the whole file. Raises BadTrace."""
    totals: Counter[str] = Counter()
    first, last = math.inf, -math.inf
    for name, minute, count in _read(path):
        totals[name] += count
        first, last = min(first, minute), max(last, minute)
        if last - first >= MOST_MINUTES:
            raise refuse(
                path, 0, "timestamp", f"the first and the last arrival are more than {MOST_MINUTES} minutes apart"
            )
    if not totals:
        raise refuse(path, 0, "file", "it has no rows")
    with closing(read_lists(path)) as lists:
        _, header, _ = next(lists)
    return Trace(
        path=path,
        dated=PER_MINUTE not in header,
        from_at=int(first) * MINUTE_S,
        minutes=int(last - first) + 1,
        totals=totals,
    )


def _read(path: Path) -> Iterator[tuple[str, int, int]]:
    """
    (name, number of the minute, arrivals), in the order of the file. A file per minute yields its first and its last
    minute always, other minutes only where they have arrivals.
    """
    lists = read_lists(path, MOST_CHARACTERS)
    _, header, _ = next(lists)
    if PER_MINUTE in header:
        yield from _per_minute(path, header, lists)
    elif all(name in header for name in ARRIVALS):
        yield from _arrivals(path, header, lists)
    else:
        raise refuse(path, 1, PER_MINUTE, f"neither this column nor the columns {' and '.join(ARRIVALS)}")


def _per_minute(
    path: Path, header: Sequence[str], lists: Iterator[tuple[int, Sequence[str], list[str]]]
) -> Iterator[tuple[str, int, int]]:
    key = header.index(PER_MINUTE)
    places = sorted((int(name), place) for place, name in enumerate(header) if name.isdecimal() and len(name) < 6)
    numbers = [number for number, _ in places]
    if not places:
        raise refuse(path, 1, "minutes", "no column of a minute")
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or len(numbers) > MOST_MINUTES:
        raise refuse(
            path,
            1,
            "minutes",
            f"{len(numbers)} columns from {numbers[0]} to {numbers[-1]}, one for each minute is expected",
        )
    for line, _, values in lists:
        name = _name(path, line, PER_MINUTE, values[key])
        # Most minutes have no arrival.
        counted = [
            (number, _count(path, line, number, values[place])) for number, place in places if values[place] != "0"
        ]
        for number in {numbers[0], numbers[-1]} - {number for number, _ in counted}:
            yield name, number, 0
        for number, count in counted:
            yield name, number, count


def _arrivals(
    path: Path, header: Sequence[str], lists: Iterator[tuple[int, Sequence[str], list[str]]]
) -> Iterator[tuple[str, int, int]]:
    key, stamp = (header.index(name) for name in ARRIVALS)
    for line, _, values in lists:
        yield _name(path, line, "function", values[key]), _minute(path, line, values[stamp]), 1


def _name(path: Path, line: int, field: str, text: str) -> str:
    if not text or len(text) > MOST_NAME or not text.isprintable():
        raise refuse(path, line, field, f"a name of 1 to {MOST_NAME} printable characters is expected")
    return text


def _count(path: Path, line: int, number: int, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text) <= MOST_ARRIVALS):
        raise refuse(
            path, line, str(number), f"a number of arrivals from 0 to {MOST_ARRIVALS} is expected, not {quoted(text)}"
        )
    return int(text)


def _minute(path: Path, line: int, text: str) -> int:
    try:
        at = float(text) if text.replace(".", "", 1).isdecimal() else _moment(text)
    except (ValueError, OverflowError):
        message = f"epoch seconds or RFC 3339 with its zone is expected, not {quoted(text)}"
        raise refuse(path, line, "timestamp", message) from None
    # Year 9999: later dates cannot be represented.
    if not 0 <= at < 253_402_300_800:
        raise refuse(path, line, "timestamp", f"{quoted(text)} is not between the years 1970 and 9999")
    return int(at // MINUTE_S)


def _moment(text: str) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no zone")
    return moment.timestamp()
