"""The published degradation table and what it predicts."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class PredictorPlace(BaseModel):
    """
    What the degradation table holds for one device and sharing mode; ``measured``: how many of its training × function
    cells are measured rows; ``measured_trainings``: how many of its training × training cells are, null = it has none.
    """

    device: str
    sharing_mode: str
    trainings: list[str]
    functions: list[str]
    measured: int
    weights: int
    measured_trainings: int | None = None


class Predictor(BaseModel):
    """
    The published table and the predictor behind it. ``version`` 0: nothing was published. ``data``, ``errors`` and
    ``calibration``: see the manifest in docs/research/predictor.md.
    """

    version: int
    source: str = ""
    created_at: datetime | None = None
    reason: str = ""
    manifest: dict[str, Any] = {}
    places: list[PredictorPlace] = []


class PlacePrediction(BaseModel):
    """
    The degradation of both sides when ``k`` invocations of ``function`` at a time run beside ``training`` on one
    device; ``measured``: a measured row, not a prediction. Where ``known`` is false both degradations are assumed, from
    what the function declares or 1.0 for each invocation, and ``*_upper``, which hold for 90 %, are null.
    """

    device: str
    sharing_mode: str
    training: str
    function: str
    k: int
    known: bool
    measured: bool
    training_degradation: float
    training_degradation_upper: float | None
    function_degradation: float
    function_degradation_upper: float | None


class PairPrediction(BaseModel):
    """
    What two trainings on one GPU instance of one device cost each other, as fractions: an iteration takes 1 + that times
    as long as alone. ``*_upper``: the bound that holds for 90 %; ``measured``: a measured row, not a prediction. All are
    null where ``known`` is false: the two are never put together.
    """

    device: str
    sharing_mode: str
    training: str
    beside: str
    known: bool
    measured: bool = False
    training_degradation: float | None = None
    training_degradation_upper: float | None = None
    beside_degradation: float | None = None
    beside_degradation_upper: float | None = None


class Predictions(BaseModel):
    """
    ``version``: of the degradation table. ``predictions``: of a training and a function; ``pairs``: of two trainings.
    """

    version: int
    predictions: list[PlacePrediction] = []
    pairs: list[PairPrediction] = []
