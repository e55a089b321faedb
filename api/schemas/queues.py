"""What waits, and what people decide about it."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from api.schemas.fields import STORABLE, Body, For, Number


class BoostBody(Body):
    """``factor``: what the function's priority is multiplied by; ``for_s``: seconds, null = until it is taken back."""

    factor: Number = Field(ge=0.001, le=1000, allow_inf_nan=False)
    for_s: For = None


class PinBody(Body):
    """
    ``gpus``: the only GPU instances that the function may go to, those that are away now too; ``for_s`` as for a boost.
    """

    gpus: list[Annotated[str, Field(min_length=1, max_length=128, pattern=STORABLE)]] = Field(
        min_length=1, max_length=64
    )
    for_s: For = None


class Queue(BaseModel):
    """
    The invocations of one function that wait. ``oldest_wait_s``: of the hundred with the nearest deadlines;
    ``draining``: nothing new is accepted, what waits is served; ``boost``: what the priority is multiplied by, until
    ``boost_until``, null = until it is ended; ``pinned_to``: the only GPU instances that it may go to, until
    ``pinned_until``.
    """

    function: str
    depth: int
    oldest_wait_s: float
    priority: float
    paused: bool
    draining: bool
    boost: float = 1.0
    boost_until: datetime | None = None
    pinned_to: list[str] = []
    pinned_until: datetime | None = None


class Purged(BaseModel):
    """``cancelled``: how many invocations were cancelled."""

    cancelled: int


class Queues(BaseModel):
    queues: list[Queue]
