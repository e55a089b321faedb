"""
The published table of degradations, from measured rows and fitted predictors: all trainings x all functions of one
device and sharing mode.

A cell holds a measurement where the pair was measured: the mean of its :data:`NEWEST` newest measurements (assumptions
A14 and A15: newest measurements replace older ones). Elsewhere it holds the prediction. One measurement alone would be
a single tail with all its noise; the mean over all of them would never follow a change. No degradation is below 0. The
upper bounds hold for 90 % of cells: a prediction has its predictor's bound; a measured cell has a bound from the noise
of repeats over all cells of its direction (see :func:`_bound`).

A table is complete or an error is raised: BadRow, with the workload or the direction in its message, for features or
times that are not finite, for a direction without a predictor (with two exceptions below) and for predictions that are
not finite. Four gaps are allowed:

* A co-location with a member that has no solo row is skipped, as in ``ml/learn/dataset.py``. The table lacks that
  workload, and readers take its declared values or the conservative rule (``smore/domain/workload.py``).
* Without a predictor of trainings by trainings, the table has no matrix of them: nobody is paired.
* Without a predictor of functions by functions, the predictor of functions by trainings is used, with the other
  function in the training's place (assumption A7 b). The weights of Eq. 4 correct it as they learn.
* Where no counter gives a utilisation, the usage gain is the mean over the trainings for which it is known; if there is
  none, the value for a function without a declaration (``smore/domain/function.py``).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.predict.multiway import PairWise, published
from ml.predict.samples import METRICS, SOLO, Direction, Floats, Samples, features, sides, solo_features
from ml.rows import FEATURES, BadRow, PlaceProfile, Solo, Workload, degradation
from smore.domain.degradation import Weights
from smore.domain.function import Profile
from smore.domain.loss import student
from smore.messages.degradation import PlaceTable
from smore.process.device_name import NVML_COUNTER

COVERAGE: Final = 0.9
#: Newest measurements of a pair that count; older ones are ignored.
NEWEST: Final = 5
#: Least degrees of freedom (repeats, less one for each cell) at which the noise estimate is used.
ENOUGH: Final = 10


class BoundedPredictor(Protocol):
    """A predictor of one direction with bounds, as ``ml/predict/pairwise.py`` fits it."""

    def predict(self, samples: Samples) -> Floats:
        """Expected degradations [n], fractions; the targets of the samples are ignored."""
        ...

    def upper(self, samples: Samples, coverage: float = COVERAGE) -> Floats:
        """Bounds [n] that are not exceeded in ``coverage`` of all cases."""
        ...


def place_table(
    profile: PlaceProfile, predictors: Mapping[Direction, BoundedPredictor], *, weights: Weights | None = None
) -> PlaceTable:
    """
    The table of one device and sharing mode: every workload of the profile that has a solo row. Without trainings, the
    two matrices of trainings have no rows.

    Raises BadRow as the module describes, and if there is no function.
    """
    sides_ = {role: sorted(w for w in profile.solo if w.role == role) for role in ("training", "function")}
    trainings, functions = sides_["training"], sides_["function"]
    if not functions:
        raise BadRow(f"{profile.place.device}: no function has a solo row")
    for workload in (*trainings, *functions):
        _check(profile.solo[workload])
    solo = profile.solo
    J, F = _Side(trainings, solo), _Side(functions, solo)  # noqa: N806 - the table's own names
    sides_of: dict[Direction, tuple[_Side, _Side]] = {
        "training": (J, F),
        "function": (J, F),
        "functions": (F, F),
        "trainings": (J, J if "trainings" in predictors else _Side((), solo)),
    }
    cells: dict[Direction, tuple[Floats, Floats, NDArray[np.bool_]]] = {}
    for direction, (rows, columns) in sides_of.items():
        # A function is the victim of the row's training; elsewhere the row is the victim.
        flip = direction == "function"
        expected, upper = _predicted(predictors, direction, rows, columns, flip=flip)
        is_measured = _Measured(profile, direction).put(expected, upper, rows, columns, flip=flip)
        cells[direction] = expected, upper, is_measured
    gain = _usage_gain(profile, J, F)
    cost = (cells["training"][0] + cells["function"][0]).mean(axis=0) if trainings else np.zeros(len(functions))
    return PlaceTable(
        device=profile.place.device,
        sharing_mode=profile.place.sharing_mode,
        trainings=[str(w) for w in trainings],
        functions=[str(w) for w in functions],
        training=_bytes(cells["training"][0]),
        training_upper=_bytes(cells["training"][1]),
        function=_bytes(cells["function"][0]),
        function_upper=_bytes(cells["function"][1]),
        function_on_function=_bytes(cells["functions"][0]),
        function_on_function_upper=_bytes(cells["functions"][1]),
        measured=(cells["training"][2] & cells["function"][2]).astype(np.uint8).tobytes(),
        solo_s=_bytes(np.array([solo[w].timing.p99 for w in functions])),
        usage_gain=_bytes(gain),
        degradation=_bytes(cost),
        weights=published(weights) if weights is not None else [],
        training_on_training=_bytes(cells["trainings"][0]),
        training_on_training_upper=_bytes(cells["trainings"][1]),
        measured_trainings=cells["trainings"][2].astype(np.uint8).tobytes(),
        training_solo_s=_bytes(np.array([solo[w].timing.mean for w in trainings])),
    )


def pair_wise(table: PlaceTable) -> dict[Direction, PairWise]:
    """
    The three matrices as functions of (victim, other), for ``ml/predict/multiway.py``. They raise KeyError for an
    unknown workload.
    """
    rows = {name: index for index, name in enumerate(table.trainings)}
    columns = {name: index for index, name in enumerate(table.functions)}
    return {
        "training": lambda i, j: table.cell(table.training, rows[str(i)], columns[str(j)]),
        "function": lambda j, i: table.cell(table.function, rows[str(i)], columns[str(j)]),
        "functions": lambda j, w: table.cell(table.function_on_function, columns[str(j)], columns[str(w)]),
    }


def _check(solo: Solo) -> None:
    times = ("p99", solo.timing.p99), ("mean", solo.timing.mean)
    for name, value in (*((name, solo.features.get(name)) for name in FEATURES), *times):
        if value is None or not math.isfinite(value):
            raise BadRow(f"{solo.workload}: {name} is {value}")


class _Side:
    """Workloads as arrays: table III [n, 12], solo measurements [n, len(SOLO)], and the index of each."""

    def __init__(self, workloads: Sequence[Workload], solo: Mapping[Workload, Solo]) -> None:
        self.workloads = workloads
        self.index = {workload: index for index, workload in enumerate(workloads)}
        self.models = [workload.model for workload in workloads]
        self.features = np.array([features(solo[w]) for w in workloads]).reshape(-1, len(FEATURES))
        self.solo = np.array([solo_features(solo[w]) for w in workloads]).reshape(-1, len(SOLO))

    def __len__(self) -> int:
        return len(self.workloads)


def _predicted(
    predictors: Mapping[Direction, BoundedPredictor], direction: Direction, rows: _Side, columns: _Side, *, flip: bool
) -> tuple[Floats, Floats]:
    """Expected values and bounds of all rows x columns. ``flip``: the column is the victim."""
    shape = (len(rows), len(columns))
    if 0 in shape:
        return np.zeros(shape), np.zeros(shape)
    used: Direction = "function" if direction == "functions" and "functions" not in predictors else direction
    if used not in predictors:
        raise BadRow(f"no predictor of the direction {direction}: nothing was measured there")
    row = np.repeat(np.arange(len(rows)), len(columns))
    column = np.tile(np.arange(len(columns)), len(rows))
    (victims, victim), (aggressors, aggressor) = (
        ((columns, column), (rows, row)) if flip else ((rows, row), (columns, column))
    )
    pairs = Samples(
        name="table",
        direction=used,
        victim=victims.features[victim],
        aggressor=aggressors.features[aggressor],
        victim_solo=victims.solo[victim],
        aggressor_solo=aggressors.solo[aggressor],
        target=np.zeros(len(row)),
        victims=[victims.models[index] for index in victim.tolist()],
        aggressors=[aggressors.models[index] for index in aggressor.tolist()],
        pair=np.arange(len(row)),
    )
    expected = _sound(predictors[used].predict(pairs), pairs, "predictions")
    upper = _sound(predictors[used].upper(pairs, COVERAGE), pairs, "bounds")
    return expected.reshape(shape), np.maximum(expected, upper).reshape(shape)


def _sound(values: Floats, pairs: Samples, what: str) -> Floats:
    if values.shape != (len(pairs),):
        raise BadRow(
            f"{what} of the direction {pairs.direction}: the shape is {values.shape}, ({len(pairs)},) is expected"
        )
    if not np.isfinite(values).all():
        bad = int(np.flatnonzero(~np.isfinite(values))[0])
        raise BadRow(
            f"{what} of the direction {pairs.direction}: {values[bad]} for {pairs.victims[bad]} beside"
            f" {pairs.aggressors[bad]}"
        )
    return np.maximum(values, 0.0)


class _Measured:
    """
    The newest measurements of one direction by (victim, aggressor), oldest first.

    ``noise``: pooled deviation of repeats in log space, with ``freedom`` degrees of freedom.
    """

    def __init__(self, profile: PlaceProfile, direction: Direction) -> None:
        self._cells: dict[tuple[Workload, Workload], list[float]] = {}
        # Times are ISO 8601 in UTC, which sort as text.
        for row in sorted(profile.colocations, key=lambda row: row.at):
            cell_values: dict[tuple[Workload, Workload], list[float]] = {}
            for victim, aggressor in sides(row, direction):
                key = victim.workload, aggressor.workload
                cell_values.setdefault(key, []).append(degradation(victim, METRICS[direction]))
            for key, values in cell_values.items():
                # A function beside itself is both sides of one cell in one window: one measurement, not two.
                self._cells.setdefault(key, []).append(math.fsum(values) / len(values))
        squares, self.freedom = 0.0, 0
        for key, values in self._cells.items():
            if not all(map(math.isfinite, values)):
                raise BadRow(f"the measured degradation of {key[0]} by {key[1]} is not a number")
            del values[:-NEWEST]
            logs = np.log1p(np.maximum(values, 0.0))
            squares += float(((logs - logs.mean()) ** 2).sum())
            self.freedom += len(values) - 1
        self.noise = math.sqrt(squares / self.freedom) if self.freedom else math.nan

    def put(self, expected: Floats, upper: Floats, rows: _Side, columns: _Side, *, flip: bool) -> NDArray[np.bool_]:
        """Replace predictions in place; return a mask [rows, columns] of the measured cells."""
        is_measured = np.zeros(expected.shape, bool)
        for (victim, aggressor), values in self._cells.items():
            row, column = (aggressor, victim) if flip else (victim, aggressor)
            if row not in rows.index or column not in columns.index:
                continue
            cell = rows.index[row], columns.index[column]
            mean = max(0.0, math.fsum(values) / len(values))
            expected[cell] = mean
            upper[cell] = _bound(mean, len(values), self) if self.freedom >= ENOUGH else max(mean, upper[cell])
            is_measured[cell] = True
        return is_measured


def _bound(mean: float, n: int, noise: _Measured) -> float:
    """
    The value that the next measurement of a cell with ``n`` measurements stays under in 90 % of cases, for noise that
    is normal in log space.

    The noise of the mean and of the next measurement add up.
    """
    t = student(COVERAGE, noise.freedom)
    return math.expm1(math.log1p(mean) + t * noise.noise * math.sqrt(1 + 1 / n))


def _usage_gain(profile: PlaceProfile, trainings: _Side, functions: _Side) -> Floats:
    """
    The usage gain of each function [F] (assumption A16): the added utilisation of the device by the function beside a
    training, 0..1, mean over all trainings.

    Where measured, it is the utilisation together less the training's alone. Elsewhere it is the function's utilisation
    alone times the share that the training leaves; without any training, the function's utilisation alone. Utilisations
    by different counters are not compared. NVML's counter (the time in which any kernel ran) is near 1 beside every
    training, so with it the gain is the function's utilisation alone.
    """

    def utilisation(side: _Side) -> tuple[Floats, "NDArray[np.str_]"]:
        utilisations = [profile.solo[w].utilisation for w in side.workloads]
        counters = [profile.solo[w].place.counter for w in side.workloads]
        return np.array([np.nan if value is None else value for value in utilisations], float), np.array(counters, str)

    (busy, busy_counter), (share, share_counter) = utilisation(trainings), utilisation(functions)
    nvml_only = busy_counter == NVML_COUNTER
    gain = share[None, :] * np.where(nvml_only, 1.0, 1.0 - busy)[:, None]
    gain[busy_counter[:, None] != share_counter[None, :]] = np.nan
    if not len(trainings):
        gain = share[None, :]
    measured_gains: dict[tuple[int, int], list[float]] = {}
    for row in profile.colocations:
        for training, function in sides(row, "training"):
            i, j = trainings.index.get(training.workload), functions.index.get(function.workload)
            if (
                i is None
                or j is None
                or row.utilisation is None
                or np.isnan(busy[i])
                or row.place.counter != busy_counter[i]
                or nvml_only[i]
            ):
                continue
            measured_gains.setdefault((i, j), []).append(row.utilisation - busy[i])
    for cell, values in measured_gains.items():
        gain[cell] = math.fsum(values) / len(values)
    has_gain = ~np.isnan(gain)
    total = np.where(has_gain, np.clip(gain, 0.0, 1.0), 0.0).sum(axis=0)
    partners = has_gain.sum(axis=0)
    return np.where(partners > 0, total / np.maximum(partners, 1), Profile().usage_gain)


def _bytes(values: Floats) -> bytes:
    return values.astype("<f8").tobytes()
