"""All measured rows, and what of them a challenger is fitted on and judged by."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from ml.learn import live
from ml.learn.live import Cell, Observed
from ml.measure.rows import FEATURES, BadRow, Profile, Row, Workload, degradation, read
from ml.measure.rows import parse as parse_row
from ml.predict.multiway import Observation
from ml.predict.samples import METRICS, SOLO, Direction, Samples, features, sides, solo_features
from smore.postgres.predictors import row_id

#: Newest observed rows of a cell that count (A14); older ones are forgotten. The second is what the champion knew of
#: it.
NEWEST: Final = 2
#: Share of the pairs (or sets of several) that are held back: of those that have something newer than the champion, and
#: of all where there is no champion.
HELD_OF_NEW: Final = 0.5
HELD_OF_ALL: Final = 0.2


@dataclass(slots=True)
class Rows:
    """
    All measured rows, each once, in the order of their measurement. ``counts``: by origin (checkout, stored, observed);
    ``digest`` changes with the files of the checkout; ``passed`` tells which stored rows this version cannot read, and
    why; ``outlived`` are the ids of observed rows that newer ones of their cell have replaced.
    """

    rows: list[Row] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    passed: list[str] = field(default_factory=list)
    outlived: list[str] = field(default_factory=list)

    def manifest(self) -> dict[str, Any]:
        return {**self.counts, "total": self.counts.total(), "digest": self.digest, "passed_over": self.passed[:10]}


def gather(data: Path, stored: Iterable[tuple[str, Mapping[str, Any]]]) -> Rows:
    """
    The rows of every ``*.jsonl`` in ``data``, and the stored ones as (id, document).

    Raises BadRow, with file and line, for a file that is cut or holds a row that cannot be used. A stored row was good
    when it came; one that this version does not understand is passed over.
    """
    found = Rows()
    seen: set[str] = set()

    def add(row: Row, origin: str) -> None:
        id_ = row_id(asdict(row))
        if id_ not in seen:
            seen.add(id_)
            found.rows.append(row)
            found.counts[origin] += 1

    digest = hashlib.sha256()
    cells: dict[Cell, list[tuple[float, str, Observed]]] = {}
    for path in sorted(data.glob("*.jsonl")):
        for measured in read_file(path):
            add(measured, "checkout")
        digest.update(path.read_bytes())
    for id_, document in stored:
        try:
            if document.get("row") == "observed":
                row = live.parse(document)
                cells.setdefault(row.cell, []).append((row.at, id_, row))
            else:
                add(_dated(parse_row(document)), "stored")
        except (KeyError, TypeError, ValueError) as error:
            found.passed.append(f"{id_[:12]}: {error}")
    for of_cell in cells.values():
        of_cell.sort(key=lambda one: one[:2])
        found.outlived += [id_ for _, id_, _ in of_cell[:-NEWEST]]
        found.observed += [row for _, _, row in of_cell[-NEWEST:]]
    found.counts["observed"] = len(found.observed)
    found.digest = digest.hexdigest()[:16]
    found.rows.sort(key=lambda row: _epoch(row.at))
    return found


def read_file(path: Path) -> list[Row]:
    """
    As :func:`ml.measure.rows.read`; a row whose time cannot be read is refused too, because rows are judged by their
    age.
    """
    try:
        return [_dated(row) for row in read(path)]
    except UnicodeDecodeError as error:
        raise BadRow(f"{path.name}: {error}") from error


def _dated(row: Row) -> Row:
    try:
        _epoch(row.at)
    except ValueError as error:
        raise BadRow(f"a row of {row.at!r}: {error}") from error
    return row


def _epoch(at: str) -> float:
    """Seconds; without a zone it is UTC."""
    found = datetime.fromisoformat(at)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


class Measured(Protocol):
    """A measurement of the workloads ``group``, taken ``at`` (epoch seconds)."""

    @property
    def group(self) -> Collection[Workload]: ...

    @property
    def at(self) -> float: ...


_M = TypeVar("_M", bound=Measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured degradation of ``victim`` by ``aggressor``, a raw fraction, measured ``at`` (epoch seconds)."""

    victim: Workload
    aggressor: Workload
    value: float
    at: float

    @property
    def group(self) -> frozenset[Workload]:
        return frozenset((self.victim, self.aggressor))


def points(profile: Profile, observed: Iterable[Observed], direction: Direction) -> list[Point]:
    """What was measured of one direction on one place, between workloads that have a solo row there."""
    found = [
        Point(
            victim=victim.workload,
            aggressor=aggressor.workload,
            value=degradation(victim, METRICS[direction]),
            at=_epoch(row.at),
        )
        for row in profile.colocations
        for victim, aggressor in sides(row, direction)
    ]
    found += [
        Point(victim=row.victim, aggressor=row.aggressor, value=row.degradation, at=row.at)
        for row in observed
        if row.place == profile.place.key and row.direction == direction and not row.others
    ]
    return [point for point in found if point.victim in profile.solo and point.aggressor in profile.solo]


def observations(profile: Profile, observed: Iterable[Observed]) -> list[Observation]:
    """What was measured of several at a time on one place, between workloads that have a solo row there."""
    found = [
        Observation(
            victim=member.workload,
            beside=tuple(other.workload for other in row.members if other is not member),
            actual=degradation(member, METRICS[member.workload.role]),
            at=_epoch(row.at),
        )
        for row in profile.colocations
        if row.kind == "several"
        for member in row.members
    ]
    found += [
        Observation(victim=row.victim, beside=row.beside, actual=row.degradation, at=row.at)
        for row in observed
        if row.place == profile.place.key and row.others
    ]
    return [one for one in found if set(one.group) <= profile.solo.keys()]


def groups(found: Iterable[Measured]) -> int:
    """How many pairs or sets of workloads there are."""
    return len({one.group for one in found})


def newest(found: Iterable[Measured]) -> float:
    """Epoch seconds; -inf without any."""
    return max((one.at for one in found), default=-math.inf)


def hold_back(found: Sequence[_M], known: float | None) -> tuple[list[_M], list[_M]]:
    """
    (the others, the held-back ones): the newest groups that were measured after ``known``, and of each all the
    measurements after it.

    ``known`` is the newest measurement of the champion's, None where there is no champion.
    """
    after = -math.inf if known is None else known
    last: dict[Collection[Workload], float] = {}
    for one in found:
        if one.at > after:
            last[one.group] = max(one.at, last.get(one.group, after))
    share = HELD_OF_ALL if known is None else HELD_OF_NEW
    chosen = set(
        sorted(last, key=lambda group: (last[group], sorted(group)), reverse=True)[: math.ceil(share * len(last))]
    )
    held = [one for one in found if one.at > after and one.group in chosen]
    rest = [one for one in found if one.at <= after or one.group not in chosen]
    return rest, held


def samples_of(found: Sequence[Point], profile: Profile, direction: Direction) -> Samples:
    """Points as arrays. Raises BadRow for features or degradations that are not numbers."""
    numbers: dict[frozenset[Workload], int] = {}
    victims = [profile.solo[point.victim] for point in found]
    aggressors = [profile.solo[point.aggressor] for point in found]
    return Samples(
        name=f"{profile.place.device}, {profile.place.sharing_mode}",
        direction=direction,
        victim=np.array([features(solo) for solo in victims], float).reshape(-1, len(FEATURES)),
        aggressor=np.array([features(solo) for solo in aggressors], float).reshape(-1, len(FEATURES)),
        victim_solo=np.array([solo_features(solo) for solo in victims], float).reshape(-1, len(SOLO)),
        aggressor_solo=np.array([solo_features(solo) for solo in aggressors], float).reshape(-1, len(SOLO)),
        target=np.array([point.value for point in found], float),
        victims=[point.victim.model for point in found],
        aggressors=[point.aggressor.model for point in found],
        pair=np.array([numbers.setdefault(point.group, len(numbers)) for point in found], np.int64),
    )
