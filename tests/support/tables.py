"""Degradation tables made by hand."""

from collections.abc import Sequence

import numpy as np

from smore.messages.degradation import PlaceTable, Weight

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
