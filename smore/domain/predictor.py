"""States of a predictor: it begins as a challenger and becomes the champion, whose table is published, or is rejected."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class PredictorState(StrEnum):
    """At most one is the champion; ``rejected`` never was, ``retired`` and ``rolled_back`` were."""

    CHALLENGER = "challenger"
    CHAMPION = "champion"
    RETIRED = "retired"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorVersion:
    """One fit of the predictor."""

    version: int
    """The number of the version"""
    created_at: datetime
    """When it was begun"""
    state: PredictorState
    """What became of it"""
    reason: str
    """Why it is in that state, in words"""
    manifest: Mapping[str, Any]
    """Its data, errors and calibration, as ``Predictor`` has them"""
