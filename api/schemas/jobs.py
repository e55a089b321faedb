"""Serverful jobs: how they are started and watched, what they lost to functions."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field, FiniteFloat

from api.schemas.fields import STORABLE, Body, Flag, Number, Text, Variable, Whole
from smore.domain.job import Outcome
from smore.domain.loss import DEFAULT_BUDGET, Verdict


class BudgetBody(Body):
    """``budget``: the most that the job may lose to functions, a fraction of its iteration time (0.01 to 1)."""

    budget: Number = Field(ge=0, le=1, allow_inf_nan=False)


class JobBody(Body):
    """
    ``argv``: an allowed entry point and its arguments; ``gpus``: default = the least loaded one.

    ``workload``: which profiled training it is, ``model/size/training/batch``; without it nobody can predict what slows
    it down. ``budget``: the most that it may lose to functions, a fraction of its iteration time (0.01 to 1, default
    0.1). ``memory``: kept for it on each GPU instance, with 5 % more (``12GiB``); default = the most that it was seen
    to hold. 422 where it is more than the GPU instance has, 409 where other trainings have reserved too much of that.
    """

    name: str
    argv: list[Text] = Field(min_length=1, max_length=256)
    gpus: list[str] | None = Field(default=None, min_length=1, max_length=64)
    env: dict[Variable, Text] = Field(default={}, max_length=64)
    workload: str | None = None
    budget: Number | None = None
    memory: str | None = None


class AttachBody(Body):
    """
    A training that runs already. ``gpu``: where it trains; needed where the platform cannot find out.

    ``pid``, ``start`` (clock ticks since boot) and ``boot`` (``/proc/sys/kernel/random/boot_id``) name its process as
    its machine does; ``pid`` alone is looked for on the machine of the GPU instance, whose worker may refuse it: then
    the job ends at once with a ``reason``. ``tracked``: it will tell its steps; else nothing it loses is measured.

    Ranks of one training have one ``group``, and make one job; the same process twice is the same job. ``former``: the
    job that it was until the platform lost it. ``workload`` and ``budget`` as of a job that is started.
    """

    name: str
    gpu: str | None = None
    pid: Whole = Field(ge=1, le=2**31 - 1)
    start: Whole = Field(default=0, ge=0, le=2**62)
    boot: str = Field(default="", max_length=64, pattern=STORABLE)
    tracked: Flag = False
    group: Annotated[str, Field(min_length=1, max_length=256, pattern=STORABLE)] | None = None
    former: str | None = Field(default=None, max_length=64, pattern=STORABLE)
    workload: str | None = None
    budget: Number | None = None


class StepsBody(Body):
    """
    Iterations of a training that runs elsewhere: ``first`` is the number of the first one, ``steps`` are [end in epoch
    seconds, duration in seconds], oldest first; ``ended``: they were the last. The same twice counts once. Without any
    it says that the training lives.
    """

    gpu: str = Field(max_length=128)
    first: Whole = Field(default=0, ge=0, le=2**62)
    steps: list[tuple[FiniteFloat, Annotated[FiniteFloat, Field(ge=0)]]] = Field(max_length=8192)
    ended: Flag = False


class Job(BaseModel):
    """
    A serverful job. Iteration times are means in seconds over the last window: ``solo_s`` while no function ran beside
    it, ``shared_s`` while one did; of several GPU instances the slowest counts. ``degradation`` = shared / solo - 1,
    null = not known yet.

    ``loss`` is what functions cost it by the last ``loss_windows`` closed windows, with its 95 % interval: a fraction
    like ``budget``, null = not enough data; ``GET /v1/jobs/{id}/statement`` covers its whole life.

    ``suspended``: a signal (SIGSTOP) has stopped it; it lives and makes no steps until it is continued.

    ``source``: ``started`` by the platform, ``tracked`` (it runs elsewhere and reports its steps) or ``attached`` (it
    is only watched); ``measured`` false: without steps its loss cannot be measured.

    ``outcome``, null = it goes on: ``succeeded`` (exit code 0), ``failed`` (another), ``killed`` (by ``signal``;
    ``exit_code`` is minus its number), ``stopped`` (its owner asked for that; what runs elsewhere was let go),
    ``refused`` (it was never started or watched) and ``detached`` (it is watched no longer), both with a ``reason``, or
    ``unknown``: nobody saw how it ended.
    """

    id: str
    name: str
    state: str
    argv: list[str]
    gpus: list[str]
    workload: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    iterations: int = 0
    solo_s: float | None = None
    shared_s: float | None = None
    degradation: float | None = None
    budget: float = DEFAULT_BUDGET
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    loss_windows: int = 0
    memory_mib: float | None = None
    exit_code: int | None = None
    suspended: bool = False
    outcome: Outcome | None = None
    signal: str | None = None
    reason: str | None = None
    source: Literal["started", "tracked", "attached"] = "started"
    measured: bool = True


class Attached(BaseModel):
    """The job that a running training has become, and the GPU instance that it counts on."""

    id: str
    gpu: str


class BudgetStep(BaseModel):
    """
    One step of the closed loop that keeps a job's budget: from ``at`` on, functions may work for ``duty`` of the time
    on ``gpu``.

    ``step``: open, held (nothing new is placed there), duty_75, duty_50, duty_25, offloaded. ``factor``: what predicted
    losses are multiplied by there.
    """

    at: datetime
    gpu: str
    step: str
    duty: float
    factor: float


class Statement(BaseModel):
    """
    What a job gave and lost, from ``since`` to ``until``.

    ``harvested_s``: seconds of its GPU instances in which functions ran beside it (a batch counts once), for
    ``invocations`` of them. ``loss`` with its 95 % interval rests on ``windows`` closed windows, null = not enough
    data: then ``missing_windows`` more are needed, which takes about ``missing_s`` (null = cannot be told yet). Of
    several GPU instances the one with the highest bound counts. ``kept``: whether the bound is within ``budget``.

    ``verdict``: ``kept`` or ``not_kept``, with 95 % confidence; ``not_proven``: ``windows_to_go`` more closed windows are
    needed, which takes about ``to_go_s`` (null = cannot be told, or the job is over); ``unmeasured``: its iterations
    are not compared.
    ``steps``: the last hundred of the closed loop, the newest first. ``summary`` says it in words.
    """

    id: str
    name: str
    state: str
    budget: float
    since: datetime | None = None
    until: datetime | None = None
    harvested_s: float = 0.0
    harvested_since: datetime | None = None
    invocations: int = 0
    windows: int = 0
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    kept: bool | None = None
    verdict: Verdict
    missing_windows: int = 0
    missing_s: float | None = None
    windows_to_go: int | None = None
    to_go_s: float | None = None
    steps: list[BudgetStep] = []
    summary: str


class Jobs(BaseModel):
    jobs: list[Job]
    next_cursor: str | None = None
