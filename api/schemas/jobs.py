"""Serverful jobs: how they are started and watched, what they lost to functions."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, FiniteFloat

from api.schemas.fields import STORABLE, Body, Flag, Name, Number, Text, Variable, Whole, Word
from smore.domain.job import GRACE_S, MOST_MICRO_BATCHES, MOST_SHARE, JobPlace, Outcome
from smore.domain.loss import DEFAULT_BUDGET, LEAST_BUDGET, Verdict

#: api/budgets.py refuses others, and says why.
Budget = Annotated[Number, Field(json_schema_extra={"minimum": LEAST_BUDGET, "maximum": 1})]


class BudgetBody(Body):
    """``budget``: the most that the job may lose to functions, a fraction of its iteration time (0.01 to 1)."""

    budget: Budget


class SecretOf(Body):
    """The value of one of the project's secrets, which the worker puts in place."""

    secret: str


class JobBody(Body):
    """
    A training. ``argv``: an allowed entry point and its arguments; with an operator's key any program (``cwd``: the
    folder that it starts in, an absolute path on the GPU worker's machine). ``env``: its variables; ``{"secret":
    "NAME"}`` names a secret of the project.

    ``count``: on how many GPU instances of one kind it runs, 1 to 1024; ``gpus``: on exactly these, for which it waits;
    one of both. ``device``: the kind that it needs, as ``GET /v1/gpus`` names it. ``memory``: kept for it on each, with
    5 % more (``12GiB``); without it, and without a profile of its workload, it gets a GPU instance whose memory no other
    training has reserved.

    ``iterations`` or ``duration`` (``2h``, or seconds): how long it is; without either that is learned from former runs
    of its name. ``restarts``: how often it is started again, from its last checkpoint, after it has failed or its host
    is gone; ``grace``: from SIGTERM to SIGKILL (10 s, up to an hour).

    ``workload``: which profiled training it is, ``model/size/training/batch``; without it nobody can predict what slows
    it down. ``budget``: the most that it may lose to functions, a fraction of its iteration time (0.01 to 1, default
    0.1).

    ``share``: an iteration may take up to 1 + ``share`` times as long because of another training on its GPU instances (0
    to 10); 0 = none trains beside it. Without it the project's default holds, which is 0 unless an operator has set it.
    ``micro_batches``: in how many parts its loop can run a batch where memory is short, rising from 1 (``[1, 2, 4]``).
    """

    name: Name
    argv: list[Text] = Field(min_length=1, max_length=256)
    count: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    gpus: list[str] | None = Field(default=None, min_length=1, max_length=64)
    device: Word | None = None
    env: dict[Variable, Text | SecretOf] = Field(default={}, max_length=64)
    cwd: Text | None = None
    workload: str | None = None
    budget: Budget | None = None
    memory: str | None = None
    iterations: Annotated[Whole, Field(ge=1, le=10**12)] | None = None
    duration: Number | str | None = None
    restarts: Annotated[Whole, Field(ge=0, le=1000)] = 0
    grace: Number | str | None = None
    share: Annotated[Number, Field(ge=0, le=MOST_SHARE, allow_inf_nan=False)] | None = None
    micro_batches: list[Annotated[Whole, Field(ge=1, le=MOST_MICRO_BATCHES)]] = Field(default=[], max_length=16)


class MoveBody(Body):
    """``first``: before all others that wait."""

    first: Literal[True]


class AttachBody(Body):
    """
    A training that runs already. ``gpu``: where it trains; needed where the platform cannot find out.

    ``pid``, ``start`` (clock ticks since boot) and ``boot`` (``/proc/sys/kernel/random/boot_id``) name its process as
    its machine does; ``pid`` alone is looked for on the machine of the GPU instance, whose worker may refuse it: then
    the job ends at once with a ``reason``. ``tracked``: it will tell its steps; else nothing it loses is measured.

    Ranks of one training have one ``group``, and make one job; the same process twice is the same job. ``former``: the
    job that it was until the platform lost it. ``workload`` and ``budget`` as of a job that is started.
    """

    name: Name
    gpu: str | None = None
    pid: Whole = Field(ge=1, le=2**31 - 1)
    start: Whole = Field(default=0, ge=0, le=2**62)
    boot: str = Field(default="", max_length=64, pattern=STORABLE)
    tracked: Flag = False
    group: Annotated[str, Field(min_length=1, max_length=256, pattern=STORABLE)] | None = None
    former: str | None = Field(default=None, max_length=64, pattern=STORABLE)
    workload: str | None = None
    budget: Budget | None = None


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


class Expected(BaseModel):
    """
    What the job scheduler expects of a job that is not over. ``place`` in the queue, from 1; 0 = it is on ``gpus``.

    It starts at ``start_at`` and ends at ``end_at`` if nobody shorter comes, whom the plan does not know; at ``start_late_at``
    and ``end_late_at`` if each training before it takes its ``length_90_s``; null = nobody can say. ``length_s`` is left of
    it, in one case of ten more than ``length_90_s``. ``source`` of that: ``measured`` (iterations left and their time now),
    ``profile`` (iterations and the profile's time), ``declared`` (the duration that its owner said), ``name``, ``project`` or
    ``platform`` (the median of their last runs), ``assumed`` (nothing is known).

    ``waited_s``: so far. ``why`` it waits (``held``, ``back_off``, ``limit``, ``pinned``, ``home``, ``too_few``,
    ``busy``, ``kept``, ``order``, ``stopping``, ``none``), and in words ``message``. ``beside``: the jobs (ids) with which it
    shares GPU instances; it is their ``guest`` where they were there first, else their host.
    """

    place: int
    gpus: list[str] = []
    start_at: datetime | None = None
    start_late_at: datetime | None = None
    end_at: datetime | None = None
    end_late_at: datetime | None = None
    length_s: float
    length_90_s: float
    source: str
    waited_s: float
    why: str
    message: str
    beside: list[str] = []
    guest: bool = False


class Job(BaseModel):
    """
    A serverful job. ``state``: ``queued``, ``held`` (waits until it is released), ``starting``, ``running``, ``stopping``,
    ``ended``, ``lost``. ``count``, ``device``, ``iterations_wanted``, ``duration_s``, ``restarts``, ``grace_s``, ``share`` and
    ``micro_batches`` are what was asked for. ``attempt``: its starts so far, of which ``restarted`` after failures;
    ``expected``: what the job scheduler said of it last, null = nothing, or it is over.

    ``iterations``: done, over all attempts, and never fewer than before: those that an attempt makes again because they
    came after its checkpoint count once. ``checkpoint``: those that its last complete checkpoint holds, with which another
    attempt begins; 0 = it has written none. Iteration times are means in seconds over the last window: ``solo_s`` while
    no function ran beside it, ``shared_s`` while one did; of several GPU instances the slowest counts. ``degradation``
    = shared / solo - 1, null = not known yet.

    ``loss`` is what functions cost it by the last ``loss_windows`` closed windows, with its 95 % interval: a fraction
    like ``budget``, null = not enough data; ``GET /v1/jobs/{id}/statement`` covers its whole life.

    ``suspended``: a signal (SIGSTOP) has stopped it; it lives and makes no steps until it is continued.

    ``unseen``: why it counts for nothing, null = it counts. It says that it runs elsewhere, and no GPU worker sees its
    process: functions run as if it was not there until an operator allows it (``POST /v1/jobs/{id}/allow``).

    ``source``: ``started`` by the platform, ``tracked`` (it runs elsewhere and reports its steps) or ``attached`` (it
    is only watched); ``measured`` false: without steps its loss cannot be measured.

    ``beside_now``: other trainings that train on its GPU instances now, and that nobody placed there; those of other
    projects without their names. A list of jobs leaves it empty.

    ``outcome``, null = it goes on: ``succeeded`` (exit code 0), ``failed`` (another), ``killed`` (by ``signal``;
    ``exit_code`` is minus its number), ``stopped`` (its owner asked for that; what runs elsewhere was let go),
    ``refused`` (it was never started or watched) and ``detached`` (it is watched no longer), both with a ``reason``, or
    ``unknown``: nobody saw how it ended.
    """

    id: str
    name: str
    project: str = ""
    state: str
    argv: list[str]
    gpus: list[str]
    count: int = 1
    device: str | None = None
    workload: str | None = None
    created_at: datetime
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    iterations: int = 0
    checkpoint: int = 0
    iterations_wanted: int | None = None
    duration_s: float | None = None
    restarts: int = 0
    restarted: int = 0
    grace_s: float = GRACE_S
    share: float = 0.0
    micro_batches: list[int] = []
    attempt: int = 0
    expected: Expected | None = None
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
    unseen: str | None = None
    outcome: Outcome | None = None
    signal: str | None = None
    reason: str | None = None
    source: Literal["started", "tracked", "attached"] = "started"
    measured: bool = True
    beside_now: list[str] = []


class Attached(BaseModel):
    """
    The job that a running training has become, and the GPU instance that it counts on. ``beside_now``: other trainings
    that train there now; those of other projects without their names.
    """

    id: str
    gpu: str
    beside_now: list[str] = []


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


class Beside(BaseModel):
    """
    Another training on the same ``gpus``, ``since`` one of the two came ``until`` one of them ended (null = both go on):
    ``seconds`` so far. ``guest``: this job came to the other one.

    ``predicted`` and ``measured`` (its first minute): how many times longer than alone an iteration takes because of it.
    ``loss`` with its 95 % interval: what it cost over the whole time, a fraction of the iteration time alone; without an
    interval it rests on the profile's iteration time, because the job was never alone; null = not measured, and
    ``unmeasured`` says why. ``held_s``: for how long this job was held back for the other one's sake.
    """

    id: str
    name: str
    guest: bool
    gpus: list[str]
    since: datetime
    until: datetime | None = None
    seconds: float
    predicted: float | None = None
    measured: float | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    unmeasured: str | None = None
    held_s: float = 0.0


class BudgetSpan(BaseModel):
    """
    A budget that held from ``since`` to ``until``, and what functions cost the job then. ``verdict``: whether it was kept,
    as in a statement.
    """

    since: datetime
    until: datetime
    budget: float
    windows: int
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    verdict: Verdict


class Statement(BaseModel):
    """
    What a job gave and lost, from ``since`` to ``until``.

    ``harvested_s``: seconds of its GPU instances in which functions ran beside it (a batch counts once), for
    ``invocations`` of them. ``loss`` with its 95 % interval rests on ``windows`` closed windows of all attempts; where no
    function ran it is 0, and null = not enough data: then ``missing_windows`` more are needed, which takes about
    ``missing_s`` (null = cannot be told yet). Of several ranks the one with the highest bound counts. ``kept``: whether the
    bound is within ``budget``.

    Each budget is judged by the windows of its own time. ``past_budgets``: those that held before, the first one first;
    where one of them was not kept ``verdict`` is ``not_kept`` for good, else it is that of ``budget``, whose windows
    ``missing_windows`` and ``windows_to_go`` count.

    ``verdict``: ``kept`` or ``not_kept``, with 95 % confidence; ``not_proven``: ``windows_to_go`` more closed windows are
    needed, which takes about ``to_go_s`` (null = cannot be told, or the job is over); ``unmeasured``: its iterations
    are not compared.
    ``steps``: the last hundred of the closed loop, the newest first. ``beside``: with which other trainings it shared GPU
    instances, the first ones first; ``loss`` to functions says nothing of those. ``summary`` says it in words.
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
    past_budgets: list[BudgetSpan] = []
    steps: list[BudgetStep] = []
    beside: list[Beside] = []
    summary: str


class Jobs(BaseModel):
    jobs: list[Job]
    next_cursor: str | None = None


class QueuedJob(Expected):
    """A job that is not over, where it stands. ``count``: GPU instances that it asks for."""

    id: str
    name: str
    project: str
    state: str
    count: int
    device: str | None = None


class JobQueue(BaseModel):
    """
    The jobs that are on GPU instances, then those that wait, in their order. A project's key sees its own ones, with
    their places in the whole queue; an operator's key those of all projects.

    ``at``: when the job scheduler published it, null = never; ``leading``: whether one leads now; ``refused``: why none
    can, null = that is not known; ``setting``: the named setting by which it decides. ``kept`` GPU instances are free and
    kept for the job ``kept_for``, null = for none, or for one of another project that the key may not read. ``waiting``:
    jobs of all projects that wait.
    """

    at: datetime | None = None
    leading: bool
    refused: str | None = None
    setting: str = ""
    kept: int = 0
    kept_for: str | None = None
    waiting: int = 0
    jobs: list[QueuedJob]


class JobTrial(BaseModel):
    """
    What would become of a job that came now. ``gpus``: it would start there at once, as the guest of ``beside`` (names of
    the project's jobs, else ids; none = alone); none = it would wait. ``expected``: when it would start and end on GPU
    instances of its own.
    """

    gpus: list[str]
    beside: list[str] = []
    expected: Expected


class JobAttempt(BaseModel):
    """
    One start of all ranks of a job, on ``gpus`` (the rank of each is its place there) of the machines ``nodes``.

    ``up_at``: all ranks ran; ``ended_at``: none of them does any more, null = it goes on. ``micro_batches``: in how many
    parts it ran its batch. ``why`` it ended, and in words ``message``. ``iterations_from`` and ``iterations``: of the job,
    when it began and at its end.
    """

    attempt: int
    gpus: list[str]
    nodes: list[str]
    started_at: datetime
    up_at: datetime | None = None
    ended_at: datetime | None = None
    why: str = ""
    message: str = ""
    exit_code: int | None = None
    iterations_from: int = 0
    iterations: int = 0
    micro_batches: int = 1


class JobAttempts(BaseModel):
    """The attempts of a job, the first one first."""

    id: str
    name: str
    attempts: list[JobAttempt]


class JobDecision(BaseModel):
    """
    What the job scheduler decided of a job: ``kind`` start, stop, requeue or finish, and why. ``reasons`` of a start: its
    place in the order of that round, how many before it did not fit (``passed``), and why other GPU instances were
    refused.
    """

    at: datetime
    attempt: int
    kind: str
    gpus: list[str]
    message: str
    reasons: dict[str, Any] | None = None


class JobExplanation(BaseModel):
    """
    Why a job is where it is: in words ``summary``, for a job that runs beside others with what it has lost to them so far;
    what is ``expected``, what stands against a job that waits on each GPU instance (``places``), and the last ``decisions``,
    newest first.
    """

    id: str
    name: str
    state: str
    summary: str
    expected: Expected | None = None
    places: list[JobPlace] = []
    decisions: list[JobDecision] = []
