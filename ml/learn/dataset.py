"""All measured rows, and the training and held-back samples that a challenger is fitted on and judged by."""

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
from ml.predict.multiway import Observation
from ml.predict.samples import METRICS, SOLO, Direction, Samples, features, sides, solo_features
from ml.rows import FEATURES, BadRow, PlaceProfile, Row, Workload, degradation, read
from ml.rows import parse as parse_row
from smore.postgres.predictors import row_id

#: Newest observed rows of a cell that count (assumption A14: the newest row replaces older ones); older ones are
#: deleted. Two are kept because the second newest is the one that the champion was fitted on.
NEWEST: Final = 2
#: Share of the pairs (or sets of several workloads) that are held back: of those with a measurement newer than the
#: champion's, and of all without a champion.
HELD_OF_NEW: Final = 0.5
HELD_OF_ALL: Final = 0.2


@dataclass(slots=True)
class Rows:
    """
    All measured rows, each once, in the order of measurement. ``counts``: rows by origin (checkout, stored, observed).
    ``digest``: hash of the checkout's files. ``passed``: stored rows that this version cannot read, with the reason.
    ``outlived``: ids of observed rows that newer rows of their cell have replaced.
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
    The rows of every ``*.jsonl`` file in ``data``, and the stored rows, given as (id, document).

    Raises BadRow with file and line for a truncated file or an unusable row. A stored row that this version cannot read
    is skipped: it was valid when it was stored.
    """
    rows = Rows()
    seen_ids: set[str] = set()

    def add(row: Row, origin: str) -> None:
        id_ = row_id(asdict(row))
        if id_ not in seen_ids:
            seen_ids.add(id_)
            rows.rows.append(row)
            rows.counts[origin] += 1

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
            rows.passed.append(f"{id_[:12]}: {error}")
    for of_cell in cells.values():
        of_cell.sort(key=lambda entry: entry[:2])
        rows.outlived += [id_ for _, id_, _ in of_cell[:-NEWEST]]
        rows.observed += [row for _, _, row in of_cell[-NEWEST:]]
    rows.counts["observed"] = len(rows.observed)
    rows.digest = digest.hexdigest()[:16]
    rows.rows.sort(key=lambda row: _epoch(row.at))
    return rows


def read_file(path: Path) -> list[Row]:
    """
    As :func:`ml.rows.read`; also refuses a row whose time cannot be read, because rows are judged by their age.
    """
    try:
        return [_dated(row) for row in read(path)]
    except UnicodeDecodeError as error:
        raise BadRow(f"{path.name}: {error}") from error


def _dated(row: Row) -> Row:
    try:
        _epoch(row.at)
    except ValueError as error:
        raise BadRow(f"the time of a row is {row.at!r}: {error}") from error
    return row


def _epoch(at: str) -> float:
    """Epoch seconds of an ISO 8601 time; without a zone it is UTC."""
    time = datetime.fromisoformat(at)
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


class MeasuredGroup(Protocol):
    """A measurement of the workloads ``group``, taken ``at`` (epoch seconds)."""

    @property
    def group(self) -> Collection[Workload]: ...

    @property
    def at(self) -> float: ...


_M = TypeVar("_M", bound=MeasuredGroup)


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


def points(profile: PlaceProfile, observed: Iterable[Observed], direction: Direction) -> list[Point]:
    """The measurements of one direction in a profile and in observed rows, between workloads that have a solo row."""
    measured = [
        Point(
            victim=victim.workload,
            aggressor=aggressor.workload,
            value=degradation(victim, METRICS[direction]),
            at=_epoch(row.at),
        )
        for row in profile.colocations
        for victim, aggressor in sides(row, direction)
    ]
    measured += [
        Point(victim=row.victim, aggressor=row.aggressor, value=row.degradation, at=row.at)
        for row in observed
        if row.place == profile.place.key and row.direction == direction and not row.others
    ]
    return [point for point in measured if point.victim in profile.solo and point.aggressor in profile.solo]


def observations(profile: PlaceProfile, observed: Iterable[Observed]) -> list[Observation]:
    """The measurements of several workloads at a time, between workloads that have a solo row."""
    measured = [
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
    measured += [
        Observation(victim=row.victim, beside=row.beside, actual=row.degradation, at=row.at)
        for row in observed
        if row.place == profile.place.key and row.others
    ]
    return [observation for observation in measured if set(observation.group) <= profile.solo.keys()]


def groups(measured: Iterable[MeasuredGroup]) -> int:
    """Number of distinct pairs or sets of workloads."""
    return len({measurement.group for measurement in measured})


def newest(measured: Iterable[MeasuredGroup]) -> float:
    """Time of the newest measurement, epoch seconds; -inf without any."""
    return max((measurement.at for measurement in measured), default=-math.inf)


def hold_back(measured: Sequence[_M], seen_until: float | None) -> tuple[list[_M], list[_M]]:
    """
    Split measurements into (training part, held-back part). Held back are the newest groups that were measured after
    ``seen_until``, each with all of its measurements after that time.

    ``seen_until`` is the time of the newest measurement that the champion was fitted on, None without a champion.
    """
    after = -math.inf if seen_until is None else seen_until
    last: dict[Collection[Workload], float] = {}
    for measurement in measured:
        if measurement.at > after:
            last[measurement.group] = max(measurement.at, last.get(measurement.group, after))
    share = HELD_OF_ALL if seen_until is None else HELD_OF_NEW
    chosen = set(
        sorted(last, key=lambda group: (last[group], sorted(group)), reverse=True)[: math.ceil(share * len(last))]
    )
    held = [measurement for measurement in measured if measurement.at > after and measurement.group in chosen]
    rest = [measurement for measurement in measured if measurement.at <= after or measurement.group not in chosen]
    return rest, held


def samples_of(measured: Sequence[Point], profile: PlaceProfile, direction: Direction) -> Samples:
    """Points as arrays. Raises BadRow for features or degradations that are not finite."""
    pair_numbers: dict[frozenset[Workload], int] = {}
    victims = [profile.solo[point.victim] for point in measured]
    aggressors = [profile.solo[point.aggressor] for point in measured]
    return Samples(
        name=f"{profile.place.device}, {profile.place.sharing_mode}",
        direction=direction,
        victim=np.array([features(solo) for solo in victims], float).reshape(-1, len(FEATURES)),
        aggressor=np.array([features(solo) for solo in aggressors], float).reshape(-1, len(FEATURES)),
        victim_solo=np.array([solo_features(solo) for solo in victims], float).reshape(-1, len(SOLO)),
        aggressor_solo=np.array([solo_features(solo) for solo in aggressors], float).reshape(-1, len(SOLO)),
        target=np.array([point.value for point in measured], float),
        victims=[point.victim.model for point in measured],
        aggressors=[point.aggressor.model for point in measured],
        pair=np.array([pair_numbers.setdefault(point.group, len(pair_numbers)) for point in measured], np.int64),
    )
