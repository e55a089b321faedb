"""Imported arrivals."""

from datetime import datetime

from pydantic import BaseModel


class TraceFunction(BaseModel):
    """One function of a trace. ``source``: its name in the file; ``arrivals``: all of them."""

    function: str
    source: str
    arrivals: int


class Trace(BaseModel):
    """Imported arrivals, which count as having come from ``since`` until ``until``; ``digest``: SHA-256 of the file."""

    id: int
    name: str
    digest: str
    created_at: datetime
    since: datetime
    until: datetime
    functions: list[TraceFunction]


class Traces(BaseModel):
    traces: list[Trace]


class TraceRemoved(BaseModel):
    id: int
