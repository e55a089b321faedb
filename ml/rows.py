"""
Measured rows: the file format of a profiling run, one JSON object a line.

A **solo** row is one workload alone, a **co-location** row several workloads on one device at the same time. Every row
names its :class:`DeviceMode`; rows of different device modes are never combined. Standard library only, because rows are written
on bare GPU machines.

Degradation (Eq. 1) is computed when a row is read, never stored: ``co-located time / reference time - 1``, see
:func:`degradation`.
"""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

VERSION: Final = 1

Role: TypeAlias = Literal["training", "function"]
Metric: TypeAlias = Literal["mean", "p50", "p95", "p99"]

_WAIT: Final = "-wait-"

#: Table III of the paper, in its order: twelve numbers of a workload.
FEATURES: Final = (
    "flops",
    "parameters",
    "memory_bytes",
    "activations",
    "conv",
    "linear",
    "norm",
    "relu",
    "embedding",
    "pooling",
    "dropout",
    "batch",
)


class BadRow(ValueError):
    """A row that cannot be used; the message names file and line if they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMode:
    """
    The device of a row and how its processes share it. The key keeps rows, predictors and tables apart.

    ``counter`` names the source of utilisations, ``sharing_mode`` how co-located work shares the device.
    """

    device: str
    sharing_mode: str
    driver: str
    counter: str

    @property
    def key(self) -> tuple[str, str]:
        return self.device, self.sharing_mode


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Workload:
    """
    A configuration: model, preset, role and batch.

    ``preset`` is the model's size. A training that waits for its input for another share of its iterations than its
    model card says names it there: ``cpu-wait-0.6``.
    """

    model: str
    preset: str
    role: Role
    batch: int

    @property
    def size(self) -> str:
        """The preset without the wait for input."""
        return self.preset.partition(_WAIT)[0]

    @property
    def wait(self) -> str | None:
        """Share of an undisturbed iteration that waits for input, None = as the model card says."""
        return self.preset.partition(_WAIT)[2] or None

    def __str__(self) -> str:
        return f"{self.model}/{self.preset}/{self.role}/{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of ``n`` whole iterations (training) or runs (function), seconds."""

    n: int
    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Timing":
        """Nearest-rank percentiles. Raises BadRow without a value."""
        ordered = sorted(seconds)
        if not ordered:
            raise BadRow("no run finished within the window")

        def rank(percent: int) -> float:
            return ordered[-(-len(ordered) * percent // 100) - 1]

        return cls(n=len(ordered), mean=math.fsum(ordered) / len(ordered), p50=rank(50), p95=rank(95), p99=rank(99))


@dataclass(frozen=True, slots=True, kw_only=True)
class Solo:
    """
    A workload alone for ``seconds``.

    ``features``: :data:`FEATURES`. ``utilisation`` and ``memory_utilisation``: shares of the device's time, None = no
    counter. ``input_wait_s``: the part of an iteration in which it waits for its input. ``cold_s``: seconds by phase
    (import, context, weights, first_run). ``kernels``: figures of a kernel profile (count per run, mean and longest
    microseconds). ``device_memory_bytes``: the most device memory that torch's allocator held at this batch.
    ``counters``: further figures of the device by name, where available: shares of the time by GPM (``sm``,
    ``occupancy``, ``tensor``, ``dram``, ``graphics``) and by NVML (``nvml``), ``process_memory_bytes`` (of the whole
    process, context included), ``power_limit_w``, ``sm_clock_mhz``.
    """

    place: DeviceMode
    workload: Workload
    features: Mapping[str, float]
    timing: Timing
    utilisation: float | None
    memory_utilisation: float | None
    device_memory_bytes: float | None
    input_wait_s: float
    cold_s: Mapping[str, float]
    kernels: Mapping[str, float]
    seconds: float
    at: str
    command: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)
    row: Literal["solo"] = "solo"
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """
    One side of a co-location.

    ``timing`` is measured in the window, ``control`` in a short run alone just before it, in the same process; for two
    trainings, in runs alone just before and just after it. ``solo`` is the reference: a long run alone, which gives a
    better tail.
    """

    workload: Workload
    timing: Timing
    control: Timing
    solo: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocation:
    """
    Several workloads on one device for ``seconds``: two trainings, or functions with at most one training, which is then
    the first.

    ``repeat`` counts measurements of the same members. ``disturbance`` is the share of the cores that foreign work took
    in the window (two trainings: the largest of the window and the runs alone around it), None = unknown.
    """

    place: DeviceMode
    members: tuple[Member, ...]
    utilisation: float | None
    disturbance: float | None
    seconds: float
    at: str
    repeat: int = 0
    command: str = ""
    row: Literal["colocation"] = "colocation"
    version: int = VERSION

    @property
    def kind(self) -> Literal["pair", "functions", "trainings", "several"]:
        """A training with one function, two functions, two trainings, or more than two members."""
        if len(self.members) > 2:
            return "several"
        first, second = (member.workload.role for member in self.members)
        return "trainings" if second == "training" else "pair" if first == "training" else "functions"


Row: TypeAlias = Solo | Colocation


def degradation(member: Member, metric: Metric) -> float:
    """
    Eq. 1 as a raw fraction: time in co-location over time alone, minus one. Noise may make it negative.

    The reference is the workload alone (``solo``), scaled halfway to the speed of the control just before the window
    (by medians). The control sees the drift of a machine's speed over an hour, but it is short; using all or nothing of
    it made repeated measurements differ more (docs/research/predictor.md has the figures).
    """
    drift = math.sqrt(member.control.p50 / member.solo.p50)
    reference: float = getattr(member.solo, metric) * drift
    measured: float = getattr(member.timing, metric)
    return measured / reference - 1.0


def write(path: Path, row: Row) -> None:
    """Append one row. A reader sees the whole row, or a truncated last line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(row), separators=(",", ":")) + "\n")


def read(path: Path) -> list[Row]:
    """
    Every row of a file. Raises BadRow, with file and line, for a row that is truncated, of another version, or has a
    NaN or a time that is not positive; OSError if the file cannot be read.
    """
    return list(_rows(path))


def _rows(path: Path) -> Iterator[Row]:
    with path.open() as file:
        for number, line in enumerate(file, 1):
            try:
                yield parse(json.loads(line))
            except (BadRow, KeyError, TypeError, ValueError) as error:
                raise BadRow(f"{path.name}:{number}: {_why(error)}") from error


def _why(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def parse(document: Mapping[str, Any]) -> Row:
    """A row from its JSON form. Raises BadRow, KeyError or TypeError for anything else."""
    if document.get("version") != VERSION:
        raise BadRow(f"version {document.get('version')!r}, {VERSION} is expected")
    values = dict(document)
    values["place"] = DeviceMode(**values["place"])
    kind = values.get("row")
    if kind == "solo":
        values["workload"] = Workload(**values["workload"])
        values["timing"] = _timing(values["timing"])
        missing = set(FEATURES) - set(values["features"])
        if missing:
            raise BadRow(f"features without {', '.join(sorted(missing))}")
        _finite(values["features"])
        _finite(values["cold_s"])
        _finite(values["kernels"])
        # Older rows have no counters.
        _finite(values.get("counters", {}))
        return Solo(**values)
    if kind == "colocation":
        members = tuple(
            Member(
                workload=Workload(**member["workload"]),
                **{name: _timing(member[name]) for name in ("timing", "control", "solo")},
            )
            for member in values["members"]
        )
        trainings = [member.workload.role == "training" for member in members]
        if len(members) < 2 or (any(trainings[1:]) and trainings != [True, True]):
            raise BadRow("a co-location has at least two members, and only the first may be a training, or both of two")
        return Colocation(**(values | {"members": members}))
    raise BadRow(f"unknown kind of row {kind!r}")


def _timing(values: Mapping[str, Any]) -> Timing:
    timing = Timing(**values)
    _finite(values)
    if timing.n < 1 or min(timing.mean, timing.p50, timing.p95, timing.p99) <= 0:
        raise BadRow("times must be positive, with at least one sample")
    return timing


def _finite(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise BadRow(f"{name} is {value!r}")


@dataclass(slots=True)
class PlaceProfile:
    """
    All rows of one device and sharing mode: the newest solo row of each workload, and co-locations in order of
    measurement.

    The times alone of a workload are pooled over its solo row and its members of co-locations (:func:`pooled`), for each
    run of the profiler by itself: a machine's speed is not the same on two days. Rows of one run name the same solo
    timing.
    """

    place: DeviceMode
    solo: dict[Workload, Solo] = field(default_factory=dict)
    colocations: list[Colocation] = field(default_factory=list)


def profiles(rows: Iterable[Row]) -> list[PlaceProfile]:
    """Rows grouped by device and sharing mode."""
    by_place: dict[tuple[str, str], PlaceProfile] = {}
    for row in rows:
        profile = by_place.setdefault(row.place.key, PlaceProfile(place=row.place))
        if isinstance(row, Solo):
            if row.workload not in profile.solo or profile.solo[row.workload].at <= row.at:
                profile.solo[row.workload] = row
        else:
            profile.colocations.append(row)
    for profile in by_place.values():
        _pool(profile)
    return list(by_place.values())


#: Least number of runs at which a control's tail is used.
_TAIL_RUNS = 20


def pooled(alone: Sequence[Timing]) -> Timing:
    """
    One reference from all timings of a workload alone: the median of the medians, and the median ratios of mean and
    tail to it. The tail is taken from runs of at least :data:`_TAIL_RUNS` if there are any.
    """
    long = [timing for timing in alone if timing.n >= _TAIL_RUNS] or alone
    p50 = statistics.median(timing.p50 for timing in alone)

    def from_median(metric: Metric) -> float:
        ratios: list[float] = [getattr(timing, metric) / timing.p50 for timing in long]
        return p50 * statistics.median(ratios)

    total = sum(timing.n for timing in alone)
    return Timing(n=total, mean=from_median("mean"), p50=p50, p95=from_median("p95"), p99=from_median("p99"))


def _pool(profile: PlaceProfile) -> None:
    alone = {(workload, solo.timing): [solo.timing] for workload, solo in profile.solo.items()}
    for row in profile.colocations:
        for key, member in {(member.workload, member.solo): member for member in row.members}.items():
            alone.setdefault(key, [member.solo]).append(member.control)
    reference = {key: pooled(timings) for key, timings in alone.items()}
    profile.solo = {
        workload: replace(solo, timing=reference[workload, solo.timing]) for workload, solo in profile.solo.items()
    }
    profile.colocations = [
        replace(
            row,
            members=tuple(replace(member, solo=reference[member.workload, member.solo]) for member in row.members),
        )
        for row in profile.colocations
    ]
