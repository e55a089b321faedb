"""Invocations and their attempts."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from api.schemas.fields import Body, Number, Schema
from smore.domain.invocation import State


class Invocation(Schema):
    """One request to run a function."""

    id: str
    """The id under which it is asked for"""
    state: State
    """Where it stands, or how it ended"""
    function: str = ""
    """The name of the called function"""
    revision: int = 0
    """The number of the revision that runs, or ran"""
    cause: str = ""
    """
    The code of why it ended as it did, ``ok`` = it succeeded, '' = it has not ended; of one that waits again, why its
    last attempt ended
    """
    detail: str = ""
    """What ``cause`` means, in words"""
    traceback: str = ""
    """Where its handler raised an error: the frames of the handler's own code, as Python prints them"""
    field: str = ""
    """Where its input is not what the handler takes: the first such place in it"""
    attempt: int = 0
    """How often it was started"""
    gpu: str = ""
    """The GPU instance of its last attempt; '' = it has not been started"""
    rows: int = 1
    """How many rows its input has; of JSON values 1"""
    arrival_at: datetime | None = None
    """When the request reached the gateway"""
    deadline_at: datetime | None = None
    """Until when it must have ended"""
    finished_at: datetime | None = None
    """When it ended; null = it has not"""
    late_ms: float = 0.0
    """Milliseconds from its deadline to its end; 0 = it was in time, or has not ended"""
    cold: bool | None = None
    """Whether its last attempt had to load the handler; null = it has not run, or that is not known"""
    project: str | None = None
    """The project that it was made in; only in lists"""
    output: Any = None
    """What the function returned; only where it succeeded with a JSON result that is still kept"""


class Degradation(Schema):
    """What an invocation and the training beside it cost each other. Fractions: 0.1 = ten per cent slower."""

    function: float
    """How much slower the function runs than alone"""
    function_upper: float
    """The bound of ``function`` that holds for 90 %"""
    training: float
    """How much slower the training becomes because of all functions beside it"""
    training_upper: float
    """The bound of ``training`` that holds for 90 %"""
    known: bool
    """Whether this is from the degradation table, not declared or assumed"""


class Tried(Schema):
    """What is known of any attempt."""

    attempt: int
    """The number of the attempt, from 1"""
    gpu: str
    """The GPU instance that it was sent to"""
    state: State
    """Where it stands, or how it ended; ``queued`` = the invocation waited again then"""
    cause: str = ""
    """The code of why it ended as it did; '' = it has not ended"""
    cold: bool | None = None
    """Whether the function had to be loaded first; null = not known"""
    batch: int | None = None
    """How many invocations ran in one batch with it, itself included; null = not known"""
    rows: int | None = None
    """Rows of the whole batch; null = not known"""
    co_runners: list[str] = []
    """Functions that ran on the GPU instance at the same time"""
    jobs: list[str] = []
    """The ids of the trainings that ran beside it"""
    finished_at: datetime | None = None
    """When it ended; null = it has not"""


class Execution(Tried):
    """One attempt of an invocation."""

    run_s: float | None = None
    """Seconds of the handler's run; null = it did not run to its end"""
    predicted: Degradation | None = None
    """What the decision expected of it; null = nothing"""
    degradation: float | None = None
    """
    How much longer it ran than was expected of it alone, a fraction; null where it was cold, did not run to the end, or
    that time was assumed
    """
    started_at: datetime | None = None
    """When its batch started; null = it has not"""


class Executions(Schema):
    """All attempts of an invocation."""

    executions: list[Execution]
    """The attempts of the invocation, the first one first"""


class WaitBody(Body):
    """Invocations of which one is waited for."""

    ids: list[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]] = Field(min_length=1, max_length=1000)
    """The ids of the invocations, each once"""
    wait_s: Number = Field(default=0.0, ge=0, le=60, allow_inf_nan=False)
    """Seconds to wait for the first of them to end"""


class Invocations(Schema):
    """A page of invocations."""

    invocations: list[Invocation]
    """The invocations, the newest first"""
    next_cursor: str | None = None
    """The ``cursor`` that asks for the next page; null = this is the last one"""
