"""Revisions that no GPU instance runs."""

from datetime import datetime

from pydantic import BaseModel


class Quarantined(BaseModel):
    """A revision that no GPU instance runs: its last fault, where and when."""

    function: str
    revision: int
    cause: str
    gpu: str
    at: datetime


class Quarantine(BaseModel):
    revisions: list[Quarantined]


class Lifted(BaseModel):
    """``revisions``: the revisions that may run again."""

    function: str
    revisions: list[int]
