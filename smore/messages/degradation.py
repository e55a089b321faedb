"""
What co-location costs, as the scheduler and the gateway read it: one immutable table with a version.

The ``learn`` worker makes it (``ml/predict/table.py``) and publishes it whole (smore/redis/tables.py): a reader sees the old one or the new
one and never a mixture. The matrices are float64, little-endian, row by row, so that a reader without numpy takes a
cell from the bytes and one with numpy makes an array of them without copying.

Format 2 added the matrices of trainings beside trainings. A table of format 1 is read as one in which no two trainings
were measured.

Degradations are fractions (Eq. 1). Workloads are named as in ``ml/rows.py``:
``<model>/<preset>/<role>/<batch>``.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from smore.domain.degradation import Kind, Neighbour, Weights, of_function, of_training

FORMAT: Final = 2
#: Formats that a reader takes.
READ: Final = (1, FORMAT)


class BadTable(ValueError):
    """The blob is cut, of another format, or its parts do not fit together."""


class Weight(msgspec.Struct, frozen=True, array_like=True):
    """
    One learned weight of Eq. 3 (``kind`` training: gamma) or Eq. 4 (function: alpha, functions: beta) among ``k``
    functions.

    ``victim`` and ``other`` are names of models. A weight that is not listed is 1.
    """

    kind: Kind
    k: int
    victim: str
    other: str
    value: float


class PlaceTable(msgspec.Struct, frozen=True, kw_only=True):
    """
    Degradations on one device with one sharing mode: J trainings, F functions.

    ``training`` [J, F]: of the training by the function; ``function`` [J, F]: of the function by the training;
    ``function_on_function`` [F, F]: of the row by the column. ``*_upper``: the bound that holds for 90 % (conformal).
    ``measured`` [J, F], one byte each: 1 where a measured row stands instead of a prediction. ``solo_s`` [F]: P99 of
    the function alone, seconds. ``usage_gain`` and ``degradation`` [F]: the averages over partners that Eq. 5 takes.
    ``training_on_training`` [J, J]: of the row by the column; ``measured_trainings`` [J, J], as ``measured``. The three
    matrices of trainings are empty if no training beside a training was measured on this device.
    ``training_solo_s`` [J]: mean iteration time of the training alone, seconds; empty in a table of an earlier release.
    """

    device: str
    sharing_mode: str
    trainings: list[str]
    functions: list[str]
    training: bytes
    training_upper: bytes
    function: bytes
    function_upper: bytes
    function_on_function: bytes
    function_on_function_upper: bytes
    measured: bytes
    solo_s: bytes
    usage_gain: bytes
    degradation: bytes
    weights: list[Weight] = []
    training_on_training: bytes = b""
    training_on_training_upper: bytes = b""
    measured_trainings: bytes = b""
    training_solo_s: bytes = b""

    def cell(self, matrix: bytes, row: int, column: int) -> float:
        """One number of a matrix with F columns."""
        return memoryview(matrix).cast("d")[row * len(self.functions) + column]

    def training_pairs(self) -> Iterator["TrainingPair"]:
        """Every training beside every training, in both directions; nothing if no such pair was measured here."""
        if not self.training_on_training:
            return
        expected = memoryview(self.training_on_training).cast("d")
        upper = memoryview(self.training_on_training_upper).cast("d")
        for row, training in enumerate(self.trainings):
            for column, beside in enumerate(self.trainings):
                cell = row * len(self.trainings) + column
                yield TrainingPair(training, beside, expected[cell], upper[cell], self.measured_trainings[cell] == 1)

    def alone_s(self) -> dict[str, float]:
        """Mean iteration time alone of each training for which the table has it, seconds."""
        return dict(zip(self.trainings, memoryview(self.training_solo_s).cast("d"), strict=False))

    def function_rows(self, model: str, preset: str) -> list[tuple[int, int]]:
        """(batch, index) of a function's profiled batches, smallest first."""
        rows = []
        for index, name in enumerate(self.functions):
            other, size, _, batch = name.split("/")
            if (other, size) == (model, preset):
                rows.append((int(batch), index))
        return sorted(rows)

    def learned(self) -> Weights:
        """The weights by which Eq. 3 and 4 are weighed."""
        return Weights({(w.kind, w.k, w.victim, w.other): w.value for w in self.weights})

    def predict(self, training: int, function: int, k: int) -> "Prediction":
        """Eq. 3 and 4 for ``k`` invocations of one function beside one training, by their indices."""
        victim, model = self.trainings[training].split("/")[0], self.functions[function].split("/")[0]
        weight = self.learned().value

        def of(matrix: bytes, row: int, cause: str) -> Neighbour[str]:
            return Neighbour(cause, self.cell(matrix, row, function))

        def lost(matrix: bytes) -> float:
            return of_training(victim, [of(matrix, training, model)] * k).value(weight)

        def slowed(by_training: bytes, by_function: bytes) -> float:
            others = [of(by_function, function, model)] * (k - 1)
            return of_function(model, [of(by_training, training, victim)], others).value(weight)

        return Prediction(
            training=lost(self.training),
            training_upper=lost(self.training_upper),
            function=slowed(self.function, self.function_on_function),
            function_upper=slowed(self.function_upper, self.function_on_function_upper),
            measured=k == 1 and self.measured[training * len(self.functions) + function] == 1,
        )


class TrainingPair(NamedTuple):
    """
    The degradation of ``training`` by ``beside``, as a fraction: an iteration takes 1 + ``degradation`` times as long as
    alone. ``upper``: the bound that holds for 90 %. ``measured``: a measured row stands behind it, not a prediction.
    """

    training: str
    beside: str
    degradation: float
    upper: float
    measured: bool


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """
    Degradations as fractions: of the training and of each function, expected and with the bound that holds for 90 %.
    """

    training: float
    training_upper: float
    function: float
    function_upper: float
    #: A measured row stands behind it, not a prediction.
    measured: bool


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """
    ``version`` grows with every one published, roll backs included; ``source`` names the predictor it was made from.
    """

    format: int = FORMAT
    version: int
    source: str
    created_at: float
    places: list[PlaceTable]

    def place(self, device: str, sharing_mode: str) -> PlaceTable | None:
        """The table of a place; None where nothing was measured there: tables of other places say nothing about it."""
        return next(
            (place for place in self.places if (place.device, place.sharing_mode) == (device, sharing_mode)), None
        )


class _Header(msgspec.Struct):
    """What every format has. Read first: of another format it is all that can be trusted."""

    format: int


_OF_TRAININGS: Final = ("training_on_training", "training_on_training_upper")
_ROLES: Final = {"trainings": "training", "functions": "function"}
_header = msgspec.msgpack.Decoder(_Header).decode
_decode = msgspec.msgpack.Decoder(Table).decode
encode = msgspec.msgpack.Encoder().encode


def decode(raw: bytes) -> Table:
    """
    Raises BadTable for a blob that is cut, of another format, whose matrices have other sizes than its names say or
    hold what is no degradation, or whose names are not those of workloads.
    """
    if sys.byteorder != "little":
        raise BadTable("the table's matrices are little-endian, this machine is not")
    try:
        header = _header(raw)
        if header.format not in READ:
            raise BadTable(f"format {header.format}, {' or '.join(map(str, READ))} is expected")
        table = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadTable(f"not a degradation table: {error}") from error
    for place in table.places:
        _check(place)
    return table


def _check(place: PlaceTable) -> None:
    for field, role in _ROLES.items():
        names: list[str] = getattr(place, field)
        if len(set(names)) != len(names):
            raise BadTable(f"{field} names a workload twice")
        for name in names:
            _, _, said, batch = name.split("/") if name.count("/") == 3 else ("", "", "", "")
            if said != role or not (batch.isascii() and batch.isdecimal()):
                raise BadTable(f"{name!r} in {field} is not of the form model/size/{role}/batch")
    j, f = len(place.trainings), len(place.functions)
    sizes: Sequence[tuple[str, int]] = (
        ("training", j * f),
        ("training_upper", j * f),
        ("function", j * f),
        ("function_upper", j * f),
        ("function_on_function", f * f),
        ("function_on_function_upper", f * f),
        ("solo_s", f),
        ("usage_gain", f),
        ("degradation", f),
        *((name, j * j) for name in _OF_TRAININGS if place.training_on_training or place.training_on_training_upper),
        ("training_solo_s", j if place.training_solo_s else 0),
    )
    for name, count in sizes:
        raw: bytes = getattr(place, name)
        if len(raw) != 8 * count:
            raise BadTable(f"{name} has {len(raw)} bytes, {8 * count} are expected for {j} trainings and {f} functions")
        values = memoryview(raw).cast("d")
        if not all(map(math.isfinite, values)) or min(values, default=0.0) < 0:
            raise BadTable(f"{name} holds a value that is not a number of at least 0")
    if len(place.measured) != j * f:
        raise BadTable(f"measured has {len(place.measured)} bytes, {j * f} are expected")
    pairs = j * j if place.training_on_training else 0
    if len(place.measured_trainings) != pairs:
        raise BadTable(f"measured_trainings has {len(place.measured_trainings)} bytes, {pairs} are expected")
    for weight in place.weights:
        if weight.k < 1 or not 0 <= weight.value < math.inf:
            raise BadTable(f"{weight} is not a weight")
