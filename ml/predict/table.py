"""
The published table of degradations, made of measured rows and fitted predictors: all trainings x all functions of a
place.

What stands in a cell (assumptions A14, A15): where the pair was measured, the mean of its :data:`NEWEST` newest
measurements; elsewhere the prediction. One newest measurement alone would be a single tail with all its noise, and the
mean over all of them would never forget. No degradation is below 0. The upper bounds hold for 90 % of cells: a
predictor's own for a prediction; for a measured cell what the repeats of all cells of this direction say about noise
(see :func:`_bound`).

A table is made whole or not at all. Raises BadRow, with the workload or the direction in its message, for features or
times that are not numbers, for a direction without a predictor (but see below) and for predictions that are not
numbers. Three gaps are filled on purpose:

* A co-location with a member that has no solo row is passed over, as ``ml/predict/samples.py`` does: the table does not
  have that workload, and
  readers take what they do not find as declared, or conservative (``smore/domain/workload.py``).
* Without a predictor of functions by functions, the one of functions by trainings is asked, with the other function in
  the training's place (A7 b); the weights of Eq. 4 correct it as they learn.
* Where no counter tells a utilisation, the usage gain is the mean over the trainings for which it is known, and where
  there is none what a function is taken for that declares nothing (``smore/domain/function.py``).
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.measure.rows import FEATURES, BadRow, Profile, Solo, Workload, degradation
from ml.predict.multiway import PairWise, Weights
from ml.predict.samples import METRICS, SOLO, Direction, Floats, Samples, features, sides, solo_features
from smore.domain.function import Profile as Declared
from smore.messages.degradation import BadTable, PlaceTable, Table, decode, encode
from smore.process.device_name import NVML_COUNTER

COVERAGE: Final = 0.9
#: Measurements of a pair that count; older ones are forgotten.
NEWEST: Final = 5
#: Repeats, less one for each cell that has any, below which the noise is taken as unknown.
ENOUGH: Final = 10


class Predictor(Protocol):
    """What ``ml/predict/pairwise.py`` fits for one place and direction."""

    def predict(self, samples: Samples) -> Floats:
        """Expected degradations [n]; the samples' targets mean nothing."""
        ...

    def upper(self, samples: Samples, coverage: float = COVERAGE) -> Floats:
        """Bounds [n] under which the true values lie in ``coverage`` of all cases."""
        ...


def build(
    profiles: Sequence[Profile],
    predictors: Mapping[tuple[str, str], Mapping[Direction, Predictor]],
    *,
    version: int,
    source: str,
    created_at: float,
    weights: Mapping[tuple[str, str], Weights] | None = None,
) -> Table:
    """
    The table of all places, as a reader will decode it. ``predictors`` and ``weights`` go by
    :attr:`ml.measure.rows.Place.key`; ``created_at`` is in epoch seconds.

    Raises BadRow also for two profiles of one place, and for a place without predictors: leave out its profile to
    publish none.
    """
    keys = [profile.place.key for profile in profiles]
    if len(set(keys)) != len(keys):
        raise BadRow("two profiles of one place: put their rows together first")
    places = [
        place_table(profile, predictors.get(key, {}), weights=(weights or {}).get(key))
        for key, profile in zip(keys, profiles, strict=True)
    ]
    try:
        return decode(encode(Table(version=version, source=source, created_at=created_at, places=places)))
    except BadTable as error:
        raise BadRow(f"not to be published: {error}") from error


def place_table(
    profile: Profile, predictors: Mapping[Direction, Predictor], *, weights: Weights | None = None
) -> PlaceTable:
    """
    The table of one place: every workload of the profile that has a solo row. A place without trainings has no rows in
    two matrices.

    Raises BadRow as the module says, and where there is no function.
    """
    sides_ = {role: sorted(w for w in profile.solo if w.role == role) for role in ("training", "function")}
    trainings, functions = sides_["training"], sides_["function"]
    if not functions:
        raise BadRow(f"{profile.place.device}: no function has a solo row")
    for workload in (*trainings, *functions):
        _check(profile.solo[workload])
    solo = profile.solo
    J, F = _Side(trainings, solo), _Side(functions, solo)  # noqa: N806 - the table's own names
    measured = {direction: _Measured(profile, direction) for direction in METRICS}
    cells: dict[Direction, tuple[Floats, Floats, NDArray[np.bool_]]] = {}
    for direction in METRICS:
        rows, columns = (F if direction == "functions" else J), F
        # A function is the victim of the row's training; elsewhere the row is the victim.
        flip = direction == "function"
        expected, upper = _predicted(predictors, direction, rows, columns, flip=flip)
        known = measured[direction].put(expected, upper, rows, columns, flip=flip)
        cells[direction] = expected, upper, known
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
        weights=weights.published() if weights is not None else [],
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
    for name, value in (*((name, solo.features.get(name)) for name in FEATURES), ("p99", solo.timing.p99)):
        if value is None or not math.isfinite(value):
            raise BadRow(f"{solo.workload}: {name} is {value}")


class _Side:
    """Workloads as arrays: table III [n, 12], solo measurements [n, len(SOLO)] and each one's index."""

    def __init__(self, workloads: Sequence[Workload], solo: Mapping[Workload, Solo]) -> None:
        self.workloads = workloads
        self.index = {workload: index for index, workload in enumerate(workloads)}
        self.models = [workload.model for workload in workloads]
        self.features = np.array([features(solo[w]) for w in workloads]).reshape(-1, len(FEATURES))
        self.solo = np.array([solo_features(solo[w]) for w in workloads]).reshape(-1, len(SOLO))

    def __len__(self) -> int:
        return len(self.workloads)


def _predicted(
    predictors: Mapping[Direction, Predictor], direction: Direction, rows: _Side, columns: _Side, *, flip: bool
) -> tuple[Floats, Floats]:
    """Expected values and bounds of all rows x columns; ``flip``: the column is the victim."""
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
    The newest measurements of one direction by (victim, aggressor), oldest first, and their noise.

    ``noise``: pooled deviation of repeats in log space, of ``freedom`` degrees.
    """

    def __init__(self, profile: Profile, direction: Direction) -> None:
        self._cells: dict[tuple[Workload, Workload], list[float]] = {}
        # Rows are dated by ISO 8601 in UTC, which sorts as text.
        for row in sorted(profile.colocations, key=lambda row: row.at):
            here: dict[tuple[Workload, Workload], list[float]] = {}
            for victim, aggressor in sides(row, direction):
                key = victim.workload, aggressor.workload
                here.setdefault(key, []).append(degradation(victim, METRICS[direction]))
            for key, values in here.items():
                # Two functions of one kind are both sides of one cell, seen in one window: one measurement, not two.
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
        """Replace predictions in place; True where a measurement stands now."""
        known = np.zeros(expected.shape, bool)
        for (victim, aggressor), values in self._cells.items():
            row, column = (aggressor, victim) if flip else (victim, aggressor)
            if row not in rows.index or column not in columns.index:
                continue
            cell = rows.index[row], columns.index[column]
            mean = max(0.0, math.fsum(values) / len(values))
            expected[cell] = mean
            upper[cell] = _bound(mean, len(values), self) if self.freedom >= ENOUGH else max(mean, upper[cell])
            known[cell] = True
        return known


def _bound(mean: float, n: int, noise: _Measured) -> float:
    """
    What the next measurement of a cell with ``n`` of them stays under in 90 % of cases, if the noise is normal in log
    space.

    The noise of the mean and of the next one add up. Student's quantile to first order, for few degrees of freedom.
    """
    z = NormalDist().inv_cdf(COVERAGE)
    t = z + (z**3 + z) / (4 * noise.freedom)
    return math.expm1(math.log1p(mean) + t * noise.noise * math.sqrt(1 + 1 / n))


def _usage_gain(profile: Profile, trainings: _Side, functions: _Side) -> Floats:
    """
    A16 [F]: how much of the device a function puts to use beside a training, mean over all trainings, 0..1.

    Measured: utilisation together less the training's alone. Elsewhere the function's share times what the training
    leaves. Without any training it is the function's share. Utilisations by different counters are not compared. NVML's
    counter, the time in which any kernel ran, is near 1 beside every training whatever a function adds: by it the gain
    is the function's share as it was profiled alone.
    """

    def utilisation(side: _Side) -> tuple[Floats, "NDArray[np.str_]"]:
        found = [profile.solo[w].utilisation for w in side.workloads]
        counters = [profile.solo[w].place.counter for w in side.workloads]
        return np.array([np.nan if value is None else value for value in found], float), np.array(counters, str)

    (busy, busy_counter), (share, share_counter) = utilisation(trainings), utilisation(functions)
    blind = busy_counter == NVML_COUNTER
    gain = share[None, :] * np.where(blind, 1.0, 1.0 - busy)[:, None]
    gain[busy_counter[:, None] != share_counter[None, :]] = np.nan
    if not len(trainings):
        gain = share[None, :]
    seen: dict[tuple[int, int], list[float]] = {}
    for row in profile.colocations:
        for training, function in sides(row, "training"):
            i, j = trainings.index.get(training.workload), functions.index.get(function.workload)
            if (
                i is None
                or j is None
                or row.utilisation is None
                or np.isnan(busy[i])
                or row.place.counter != busy_counter[i]
                or blind[i]
            ):
                continue
            seen.setdefault((i, j), []).append(row.utilisation - busy[i])
    for cell, values in seen.items():
        gain[cell] = math.fsum(values) / len(values)
    known = ~np.isnan(gain)
    total = np.where(known, np.clip(gain, 0.0, 1.0), 0.0).sum(axis=0)
    partners = known.sum(axis=0)
    return np.where(partners > 0, total / np.maximum(partners, 1), Declared().usage_gain)


def _bytes(values: Floats) -> bytes:
    return values.astype("<f8").tobytes()
