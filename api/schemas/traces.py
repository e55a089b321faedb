"""Imported arrivals."""

from datetime import datetime

from api.schemas.fields import Schema


class TraceFunction(Schema):
    """One function of a trace."""

    function: str
    """The name of the function on the platform"""
    source: str
    """The name that the function has in the file"""
    arrivals: int
    """How many arrivals the file has of it"""


class Trace(Schema):
    """Imported arrivals."""

    id: int
    """The number of the trace, by which it is removed"""
    name: str
    """The name of the file that was imported"""
    digest: str
    """The SHA-256 of the file"""
    created_at: datetime
    """When the trace was imported"""
    since: datetime
    """From when on the arrivals count as having come"""
    until: datetime
    """Until when the arrivals count as having come"""
    functions: list[TraceFunction]
    """The functions of the trace, by name"""


class Traces(Schema):
    """The traces of a project."""

    traces: list[Trace]
    """The traces, the newest first"""


class TraceRemoved(Schema):
    """The trace that is gone."""

    id: int
    """The number of the removed trace"""
