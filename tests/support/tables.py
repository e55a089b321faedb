"""Degradation tables made by hand."""

from collections.abc import Mapping, Sequence

import numpy as np

from smore.messages.degradation import PlaceTable, Table, Weight
from smore.messages.reports import Report

DEVICE, MODE = "a device", "time-slice"


def place(
    training: Sequence[Sequence[float]],
    function: Sequence[Sequence[float]],
    functions: Sequence[Sequence[float]],
    *,
    weights: Sequence[Weight] = (),
    trainings: Sequence[Sequence[float]] = (),
    upper: float = 0.5,
    device: str = DEVICE,
) -> PlaceTable:
    """Trainings t0/s/training/8 ..., functions f0/s/function/1 ...; every upper bound is ``upper`` more."""
    j, f = len(training), len(functions)

    def raw(values: object, more: float = 0.0) -> bytes:
        return (np.array(values, "<f8") + more).tobytes()

    return PlaceTable(
        device=device,
        sharing_mode=MODE,
        trainings=[f"t{i}/s/training/8" for i in range(j)],
        functions=[f"f{i}/s/function/1" for i in range(f)],
        training=raw(training),
        training_upper=raw(training, upper),
        function=raw(function),
        function_upper=raw(function, upper),
        function_on_function=raw(functions),
        function_on_function_upper=raw(functions, upper),
        measured=bytes(j * f),
        solo_s=raw([0.01] * f),
        usage_gain=raw([0.4] * f),
        degradation=raw([0.2] * f),
        weights=list(weights),
        training_on_training=raw(trainings) if trainings else b"",
        training_on_training_upper=raw(trainings, upper) if trainings else b"",
        measured_trainings=bytes(j * j) if trainings else b"",
    )


def of_trainings(
    report: Report,
    costs: Mapping[tuple[str, str], float],
    upper: float = 0.05,
    *,
    alone_s: Mapping[str, float] | None = None,
) -> Table:
    """
    A table of the place of a report with trainings alone: (training, beside) → degradation; pairs that are not named cost
    so much that nobody forms them. ``alone_s``: seconds of an iteration alone, of every training; None = the table has none.
    """
    names = sorted({name for pair in costs for name in pair})
    cells = np.array([[costs.get((row, column), 99.0) for column in names] for row in names], "<f8")
    none = b""
    place = PlaceTable(
        device=report.device,
        sharing_mode=report.sharing_mode,
        trainings=names,
        functions=[],
        training=none,
        training_upper=none,
        function=none,
        function_upper=none,
        function_on_function=none,
        function_on_function_upper=none,
        measured=none,
        solo_s=none,
        usage_gain=none,
        degradation=none,
        training_on_training=cells.tobytes(),
        training_on_training_upper=(cells + upper).tobytes(),
        measured_trainings=bytes([1] * cells.size),
        training_solo_s=np.array([alone_s[name] for name in names], "<f8").tobytes() if alone_s else none,
    )
    return Table(version=1, source="tests", created_at=0.0, places=[place])
