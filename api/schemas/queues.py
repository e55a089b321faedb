"""What waits, and what people decide about it."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from api.schemas.fields import STORABLE, Body, For, Number, Schema


class BoostBody(Body):
    """A higher or lower priority for a function."""

    factor: Number = Field(ge=0.001, le=1000, allow_inf_nan=False)
    """By what the function's priority is multiplied"""
    for_s: For = None
    """For how many seconds; null = until it is taken back"""


class PinBody(Body):
    """The only places of a function."""

    gpus: list[Annotated[str, Field(min_length=1, max_length=128, pattern=STORABLE)]] = Field(
        min_length=1, max_length=64
    )
    """The GPU instances that the function may go to, those that are away now too"""
    for_s: For = None
    """For how many seconds; null = until it is taken back"""


class Queue(Schema):
    """The invocations of one function that wait."""

    function: str
    """The name of the function"""
    project: str = ""
    """The project that the function belongs to"""
    depth: int
    """How many invocations wait"""
    batch: int = 0
    """How many of those are of class batch"""
    oldest_wait_s: float
    """The longest wait, in seconds, among the hundred with the nearest deadlines"""
    priority: float
    """The function's priority as the scheduler published it last; 0 = it has none"""
    paused: bool
    """Whether nothing of it is dispatched"""
    draining: bool
    """Whether nothing new is accepted; what waits is served"""
    boost: float = 1.0
    """By what the priority is multiplied until ``boost_until``"""
    boost_until: datetime | None = None
    """Until when the boost holds; null = until it is ended"""
    pinned_to: list[str] = []
    """The only GPU instances that it may go to; none = to any"""
    pinned_until: datetime | None = None
    """Until when the pin holds; null = until it is ended"""
    deadline_ms: float | None = None
    """The function's own deadline, from arrival; null = no revision of it takes traffic yet"""
    earliest_deadline_ms: int | None = None
    """The earliest deadline of one row that would be accepted now, with a margin; null = not known, or it is paused"""


class Purged(Schema):
    """What the emptying of a queue has done."""

    cancelled: int
    """How many invocations were cancelled"""


class Queues(Schema):
    """The queues of a project's functions."""

    queues: list[Queue]
    """The queues in the order of the functions' names"""
