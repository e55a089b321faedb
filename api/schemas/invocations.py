"""Invocations and their attempts."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from api.schemas.fields import Body, Number
from smore.domain.invocation import State


class Invocation(BaseModel):
    """
    One request to run a function. ``cause``: the code of why it ended as it did, ``ok`` = it succeeded, '' = it has not
    ended; of one that waits again, why its last attempt ended. ``attempt``: how often it was started;
    ``output``: only where it succeeded with a JSON result that is still kept; ``late_ms``: milliseconds from its
    deadline to its end, 0 = it was in time, or has not ended; ``traceback``: where its handler raised an error, the
    frames of the handler's own code as Python prints them; ``field``: where its input is not what the handler takes,
    the first place in it. ``cold``: whether its last attempt had to load the handler, null = it has not run, or that is
    not known; ``project``: only in lists.
    """

    id: str
    state: State
    function: str = ""
    revision: int = 0
    cause: str = ""
    detail: str = ""
    traceback: str = ""
    field: str = ""
    attempt: int = 0
    gpu: str = ""
    rows: int = 1
    arrival_at: datetime | None = None
    deadline_at: datetime | None = None
    finished_at: datetime | None = None
    late_ms: float = 0.0
    cold: bool | None = None
    project: str | None = None
    output: Any = None


class Degradation(BaseModel):
    """
    Fractions: 0.1 = ten per cent slower. ``function``: of the invocation; ``training``: of the training by all
    functions beside it; ``*_upper``: the bound that holds for 90 %. ``known``: from the degradation table, not declared
    or assumed.
    """

    function: float
    function_upper: float
    training: float
    training_upper: float
    known: bool


class Execution(BaseModel):
    """
    One attempt of an invocation. ``predicted``: what the decision expected; ``degradation``: what was measured, against
    the run time that was expected of it alone, null where it was cold, did not run to the end, or that time was assumed.
    """

    attempt: int
    gpu: str
    state: State
    cause: str = ""
    cold: bool | None = None
    run_s: float | None = None
    batch: int | None = None
    rows: int | None = None
    co_runners: list[str] = []
    jobs: list[str] = []
    predicted: Degradation | None = None
    degradation: float | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Executions(BaseModel):
    executions: list[Execution]


class WaitBody(Body):
    """``ids``: of invocations, each once; ``wait_s``: seconds to wait for the first of them to end."""

    ids: list[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]] = Field(min_length=1, max_length=1000)
    wait_s: Number = Field(default=0.0, ge=0, le=60, allow_inf_nan=False)


class Invocations(BaseModel):
    """``next_cursor`` asks for the next page, null = this is the last."""

    invocations: list[Invocation]
    next_cursor: str | None = None
