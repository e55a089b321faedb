"""The published degradation table and what it predicts."""

from datetime import datetime
from typing import Any

from api.schemas.fields import Schema


class DeviceMode(Schema):
    """A device, and how workloads share it."""

    device: str
    """The model of the device, as ``GET /v1/gpus`` names it"""
    sharing_mode: str
    """By what workloads share the device"""


class PredictorPlace(DeviceMode):
    """What the degradation table holds for one device and sharing mode."""

    trainings: list[str]
    """The profiled trainings, as workloads ``model/size/training/batch``"""
    functions: list[str]
    """The profiled functions, as workloads ``model/size/function/rows``"""
    measured: int
    """How many of the training × function cells are measured rows, not predictions"""
    weights: int
    """How many weights were learned for several functions at a time, by which the table corrects their sum"""
    measured_trainings: int | None = None
    """How many of the training × training cells are measured rows; null = it has none"""


class Predictor(Schema):
    """The published degradation table and the predictor behind it."""

    version: int
    """The version of the table; 0 = nothing was published"""
    source: str = ""
    """How the table was made, as a word"""
    created_at: datetime | None = None
    """When the table was published; null = it was not"""
    reason: str = ""
    """Why this predictor was chosen, in words"""
    manifest: dict[str, Any] = {}
    """The data, errors and calibration of the predictor: docs/research/predictor.md explains its members"""
    places: list[PredictorPlace] = []
    """What the table holds, for each device and sharing mode"""


class PlacePrediction(DeviceMode):
    """
    The degradation of both sides when invocations run beside a training on one device. Fractions: 0.1 = ten per cent
    slower.
    """

    training: str
    """The workload of the training"""
    function: str
    """The workload of the function"""
    k: int
    """How many invocations run at a time"""
    known: bool
    """
    Whether the table covers both; false: degradations are assumed, from what the function declares or 1.0 for each
    invocation
    """
    measured: bool
    """Whether this is a measured row, not a prediction"""
    training_degradation: float
    """How much slower the training becomes"""
    training_degradation_upper: float | None
    """The bound of ``training_degradation`` that holds for 90 %; null where ``known`` is false"""
    function_degradation: float
    """How much slower the function runs"""
    function_degradation_upper: float | None
    """The bound of ``function_degradation`` that holds for 90 %; null where ``known`` is false"""


class PairPrediction(DeviceMode):
    """
    What two trainings on one GPU instance of one device cost each other, as fractions: an iteration takes 1 + that
    times as long as alone. null where ``known`` is false: the two are never put together.
    """

    training: str
    """The workload of the one training"""
    beside: str
    """The workload of the other training"""
    known: bool
    """Whether the table covers the pair"""
    measured: bool = False
    """Whether this is a measured row, not a prediction"""
    training_degradation: float | None = None
    """How much slower ``training`` becomes"""
    training_degradation_upper: float | None = None
    """The bound of ``training_degradation`` that holds for 90 %"""
    beside_degradation: float | None = None
    """How much slower ``beside`` becomes"""
    beside_degradation_upper: float | None = None
    """The bound of ``beside_degradation`` that holds for 90 %"""


class Predictions(Schema):
    """What the degradation table says of workloads on each device."""

    version: int
    """The version of the degradation table; 0 = none"""
    predictions: list[PlacePrediction] = []
    """What a training and a function cost each other, device by device"""
    pairs: list[PairPrediction] = []
    """What two trainings cost each other, device by device"""
