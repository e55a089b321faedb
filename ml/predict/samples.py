"""Training data of a predictor: arrays of pairs in one direction on one device and sharing mode, from measured rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ml.rows import FEATURES, BadRow, Colocation, Member, Metric, Solo

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

#: Victim and aggressor: a training slowed by a function (D_tr), a function by a training (D_fn), a function by a
#: function (D_ff), a training by a training.
Direction: TypeAlias = Literal["training", "function", "functions", "trainings"]
DIRECTIONS: tuple[Direction, ...] = ("training", "function", "functions", "trainings")

#: The metric of each direction: mean iteration time of a training, P99 of a function (Eq. 1, section II-B).
METRICS: dict[Direction, Metric] = {"training": "mean", "function": "p99", "functions": "p99", "trainings": "mean"}
#: The kind of the rows that hold a direction.
_KINDS: dict[Direction, str] = {
    "training": "pair",
    "function": "pair",
    "functions": "functions",
    "trainings": "trainings",
}

#: Solo measurements of one side beside table III: shares of the device's time, seconds, and figures of the kernel
#: profile. NaN = unknown.
SOLO: tuple[str, ...] = (
    "utilisation",
    "memory_utilisation",
    "busy_s",
    "wait_s",
    "mean_s",
    "p50_s",
    "p99_s",
    "kernels_per_run",
    "kernel_mean_us",
    "kernel_longest_us",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """
    ``n`` pairs of one direction on one device and sharing mode.

    ``victim`` and ``aggressor``: table III [n, 12] in the order of :data:`ml.rows.FEATURES`. ``victim_solo``
    and ``aggressor_solo``: [n, len(SOLO)] in the order of :data:`SOLO`, NaN = unknown. ``target``: raw degradation of
    the victim [n], a fraction (Eq. 1). ``victims`` and ``aggressors``: the model of each side. ``pair``: a number for
    the unordered pair of configurations. Repeats of a pair and its other direction have the same number; a split must
    keep them together.
    """

    name: str
    direction: Direction
    victim: Floats
    aggressor: Floats
    victim_solo: Floats
    aggressor_solo: Floats
    target: Floats
    victims: Sequence[str]
    aggressors: Sequence[str]
    pair: Ints

    def __post_init__(self) -> None:
        n = len(self.target)
        for name, array, shape in (
            ("victim", self.victim, (n, len(FEATURES))),
            ("aggressor", self.aggressor, (n, len(FEATURES))),
            ("victim_solo", self.victim_solo, (n, len(SOLO))),
            ("aggressor_solo", self.aggressor_solo, (n, len(SOLO))),
            ("pair", self.pair, (n,)),
        ):
            if array.shape != shape:
                raise BadRow(f"{name} has the shape {array.shape}, {shape} is expected")
        if len(self.victims) != n or len(self.aggressors) != n:
            raise BadRow(f"{n} samples need as many names of models")
        for name, array in (("victim", self.victim), ("aggressor", self.aggressor), ("target", self.target)):
            if not np.isfinite(array).all():
                raise BadRow(f"{name} of {self.name} holds a value that is not a number")
        if (self.target <= -1).any():
            raise BadRow("a degradation of -1 or less would mean a time of 0 or less")

    def __len__(self) -> int:
        return len(self.target)

    def take(self, index: "Ints | NDArray[np.bool_]") -> "Samples":
        """The samples at ``index`` (positions or a mask)."""
        positions = np.flatnonzero(index) if index.dtype == bool else index
        return replace(
            self,
            victim=self.victim[positions],
            aggressor=self.aggressor[positions],
            victim_solo=self.victim_solo[positions],
            aggressor_solo=self.aggressor_solo[positions],
            target=self.target[positions],
            victims=[self.victims[i] for i in positions],
            aggressors=[self.aggressors[i] for i in positions],
            pair=self.pair[positions],
        )


def features(solo: Solo) -> Floats:
    """Table III of a measured workload, [12]."""
    return np.array([solo.features[name] for name in FEATURES])


def solo_features(solo: Solo) -> Floats:
    """:data:`SOLO` of a measured workload; NaN = unknown."""
    timing, kernels = solo.timing, solo.kernels

    def or_nan(value: float | None) -> float:
        return np.nan if value is None else value

    return np.array(
        [
            or_nan(solo.utilisation),
            or_nan(solo.memory_utilisation),
            max(0.0, timing.mean - solo.input_wait_s),
            solo.input_wait_s,
            timing.mean,
            timing.p50,
            timing.p99,
            *(or_nan(kernels.get(name)) for name in ("per_run", "mean_us", "longest_us")),
        ]
    )


def sides(row: Colocation, direction: Direction) -> list[tuple[Member, Member]]:
    """The (victim, aggressor) pairs of a row of two members in a direction; empty if the row has none."""
    if row.kind != _KINDS[direction]:
        return []
    first, second = row.members
    match direction:
        case "training":
            return [(first, second)]
        case "function":
            return [(second, first)]
        case "functions" | "trainings":
            return [(first, second), (second, first)]
