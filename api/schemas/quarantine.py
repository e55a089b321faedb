"""Revisions that no GPU instance runs."""

from datetime import datetime

from api.schemas.fields import Schema


class Quarantined(Schema):
    """A revision that no GPU instance runs, with its last fault."""

    function: str
    """The name of the function"""
    revision: int
    """The number of the revision"""
    cause: str
    """The code of the fault"""
    gpu: str
    """The GPU instance on which it occurred"""
    at: datetime
    """When the fault occurred"""


class Quarantine(Schema):
    """The revisions of a project that no GPU instance runs."""

    revisions: list[Quarantined]
    """The revisions, each with its last fault"""


class Lifted(Schema):
    """The revisions that may run again."""

    function: str
    """The name of the function"""
    revisions: list[int]
    """The numbers of the revisions"""
