"""Serverful jobs: how they are started and watched, what they lost to functions."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from api.schemas.fields import STORABLE, Body, Flag, Name, Number, Schema, Text, Variable, Whole, Word
from smore.domain.job import GRACE_S, MOST_MICRO_BATCHES, MOST_SHARE, JobDecision, JobPlace, Outcome, PromiseState
from smore.domain.loss import DEFAULT_BUDGET, LEAST_BUDGET, MOST_BUDGET

#: api/trainings/budgets.py refuses others, and says why.
Budget = Annotated[Number, Field(json_schema_extra={"minimum": LEAST_BUDGET, "maximum": MOST_BUDGET})]


class BudgetBody(Body):
    """What a job may lose to functions."""

    budget: Budget
    """The most that it may lose, a fraction of its iteration time (0.01 to 19)"""


class SecretOf(Body):
    """The value of one of the project's secrets, which the worker puts in place."""

    secret: str
    """The name of a secret of the project"""


class JobBody(Body):
    """
    A training that is to be started. ``count`` or ``gpus`` says where, ``iterations`` or ``duration`` how long; without
    either of these its length is learned from former runs of its name.
    """

    name: Name
    """The name by which the job is found again, also as that of former runs"""
    argv: list[Text] = Field(min_length=1, max_length=256)
    """An allowed entry point and its arguments; with an operator's key any program"""
    count: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    """On how many GPU instances of one kind it runs, 1 to 1024; null = 1, or those of ``gpus``"""
    gpus: list[str] | None = Field(default=None, min_length=1, max_length=64)
    """Exactly these GPU instances, for which it waits; null = any"""
    device: Word | None = None
    """The kind of GPU that it needs, as ``GET /v1/gpus`` names it; null = any"""
    env: dict[Variable, Text | SecretOf] = Field(default={}, max_length=64)
    """Its environment variables; ``{"secret": "NAME"}`` names a secret of the project"""
    cwd: Text | None = None
    """The folder in which an operator's program starts: an absolute path on the GPU worker's machine"""
    workload: str | None = None
    """Which profiled training it is, ``model/size/training/batch``; without it nobody can predict what slows it down"""
    budget: Budget | None = None
    """The most that it may lose to functions, a fraction of its iteration time (0.01 to 19); null = 0.1"""
    memory: str | None = None
    """
    Kept for it on each GPU instance, with 5 % more (``12GiB``); without it, and without a profile of its workload, it
    gets a GPU instance whose memory no other training has reserved
    """
    iterations: Annotated[Whole, Field(ge=1, le=10**12)] | None = None
    """How many iterations it makes in all; null = not said"""
    duration: Number | str | None = None
    """How long it takes: ``2h``, or seconds; null = not said"""
    restarts: Annotated[Whole, Field(ge=0, le=1000)] = 0
    """How often it is started again, from its last checkpoint, after it has failed or its host is gone"""
    grace: Number | str | None = None
    """The time from SIGTERM to SIGKILL: ``30s``, or seconds, up to an hour; null = 10 s"""
    share: Annotated[Number, Field(ge=0, le=MOST_SHARE, allow_inf_nan=False)] | None = None
    """
    An iteration may take up to 1 + ``share`` times as long because of another training on its GPU instances (0 to 10);
    0 = none trains beside it, null = the project's default, which is 0 unless an operator has set it
    """
    micro_batches: list[Annotated[Whole, Field(ge=1, le=MOST_MICRO_BATCHES)]] = Field(default=[], max_length=16)
    """In how many parts its loop can run a batch where memory is short, rising from 1 (``[1, 2, 4]``)"""
    by: Number | str | None = None
    """
    By when its end is to be promised: a date and time with its zone, a duration from now (``18h``, or seconds), or
    ``earliest``; null = nothing is to be promised
    """
    unless: Literal["refuse", "queue"] = "refuse"
    """Where no end can be promised ``by`` then: ``refuse`` the training, or ``queue`` it without a promise"""


class MoveBody(Body):
    """Where a job that waits is to stand in the queue."""

    first: Literal[True]
    """Before all others that wait"""


class AttachBody(Body):
    """
    A training that runs already. ``pid``, ``start`` and ``boot`` name its process as its machine does; ``pid`` alone is
    looked for on the machine of the GPU instance, whose worker may refuse it: then the job ends at once with a
    ``reason``. The same process twice is the same job.
    """

    name: Name
    """The name that the job gets in the project"""
    gpu: str | None = None
    """Where it trains; needed where the platform cannot find out"""
    pid: Whole = Field(ge=1, le=2**31 - 1)
    """The number of its process on its machine"""
    start: Whole = Field(default=0, ge=0, le=2**62)
    """When its process began, clock ticks since boot; 0 = not said"""
    boot: str = Field(default="", max_length=64, pattern=STORABLE)
    """The machine's ``/proc/sys/kernel/random/boot_id``; '' = not said"""
    tracked: Flag = False
    """Whether it will tell its steps; else nothing it loses is measured"""
    group: Annotated[str, Field(min_length=1, max_length=256, pattern=STORABLE)] | None = None
    """What the ranks of one training have in common: they make one job; null = it has one rank"""
    former: str | None = Field(default=None, max_length=64, pattern=STORABLE)
    """The id of the job that it was until the platform lost it; null = none"""
    workload: str | None = None
    """Which profiled training it is, ``model/size/training/batch``; without it nobody can predict what slows it down"""
    budget: Budget | None = None
    """The most that it may lose to functions, a fraction of its iteration time (0.01 to 19); null = 0.1"""


class StepsBody(Body):
    """
    Iterations of a training that runs elsewhere. The same twice counts once. Without any it says that the training
    lives.
    """

    gpu: str = Field(max_length=128)
    """The name of the GPU instance on which it trains"""
    first: Whole = Field(default=0, ge=0, le=2**62)
    """The number of the first of the iterations"""
    steps: list[tuple[FiniteFloat, Annotated[FiniteFloat, Field(ge=0)]]] = Field(max_length=8192)
    """[end in epoch seconds, duration in seconds] of each, the oldest first"""
    ended: Flag = False
    """Whether these were its last iterations"""


class Expected(Schema):
    """What the job scheduler expects of a job that is not over. null = nobody can say."""

    place: int
    """Its place in the queue, from 1; 0 = it is on its GPU instances"""
    gpus: list[str] = []
    """The GPU instances that it is on, or is expected to get"""
    start_at: datetime | None = None
    """When it starts if nobody shorter comes, whom the plan does not know"""
    start_late_at: datetime | None = None
    """As ``start_at``, if each training before it takes its ``length_90_s``"""
    end_at: datetime | None = None
    """When it ends if nobody shorter comes, whom the plan does not know"""
    end_late_at: datetime | None = None
    """
    As ``end_at``, if it and each training before it take their ``length_90_s``; of one that waits stretched by what became of
    the last 100 that were told so
    """
    length_s: float
    """Seconds of training that are left of it"""
    length_90_s: float
    """In one case of ten more than so many seconds are left of it"""
    source: str
    """
    What told the length: ``measured`` (iterations left and their time now), ``former`` (iterations and their time in former
    runs), ``profile`` (iterations and the profile's time), ``declared`` (the duration that its owner said), ``name``,
    ``project`` or ``platform`` (the median of their last runs), ``assumed`` (nothing is known)
    """
    waited_s: float
    """Seconds that it has waited so far, over all its attempts"""
    why: str
    """
    The code of why it waits (``held``, ``back_off``, ``limit``, ``pinned``, ``home``, ``too_few``, ``busy``, ``kept``,
    ``promised``, ``order``, ``stopping``, ``none``)
    """
    message: str
    """Why it waits, or where it is, in words"""
    beside: list[str] = []
    """The ids of the jobs with which it shares GPU instances"""
    guest: bool = False
    """Whether those ``beside`` it were there first; else it is their host"""
    promised_by: datetime | None = None
    """The moment by which its end is promised; null = none is"""
    at_risk: str | None = None
    """
    Why it is expected to end after ``promised_by`` (``held``, ``beside``, ``longer``, ``closed``, ``others``); null = it is
    not
    """


class Promise(Schema):
    """What was promised of the end of a training whose owner asked for it, and what has become of it."""

    by: datetime | None = None
    """The moment by which it is to have ended; null = nothing was promised"""
    latest_start_at: datetime | None = None
    """When it was to start at the latest, as of the promise"""
    earliest: datetime | None = None
    """Where nothing was promised: the first moment that would have been; null = none"""
    outcome: PromiseState
    """
    ``none`` was given, ``kept_so_far``, ``at_risk`` (it is expected to end later), ``broken``, ``kept``, ``withdrawn`` (its
    owner stopped it)
    """
    why: str | None = None
    """
    What has set it back, puts it at risk or broke it (as ``at_risk`` of ``Expected``; ``host_lost``, ``failed``), or why none was given
    (``unknown`` length, ``length``, ``limit``, ``others``, ``setting``)
    """


class Job(Schema):
    """
    A training that the platform starts or watches.

    Iteration times are means in seconds over the last window; of several GPU instances the slowest counts. What
    functions cost it is a fraction of its iteration time, like ``budget``; ``GET /v1/jobs/{id}/statement`` covers its
    whole life.
    """

    id: str
    """The id of the job, which never changes"""
    name: str
    """Its name, for people; former jobs may have had it too"""
    project: str = ""
    """The project that started or attached it"""
    state: str
    """
    ``queued``, ``held`` (waits until it is released), ``starting``, ``running``, ``stopping``, ``ended``, ``lost``
    """
    argv: list[str]
    """The entry point or program, and its arguments"""
    gpus: list[str]
    """The GPU instances that it is on, or was on last"""
    count: int = 1
    """How many GPU instances were asked for"""
    device: str | None = None
    """The kind of GPU that was asked for; null = any"""
    workload: str | None = None
    """Which profiled training it is, ``model/size/training/batch``; null = not said"""
    created_at: datetime
    """When it was submitted or attached"""
    queued_at: datetime | None = None
    """When it began to wait for its next attempt; null = it does not wait"""
    started_at: datetime | None = None
    """When its first attempt started; null = none has"""
    ended_at: datetime | None = None
    """When it ended for good; null = it has not"""
    iterations: int = 0
    """
    Done, over all attempts, and never fewer than before: those that an attempt makes again because they came after its
    checkpoint count once
    """
    checkpoint: int = 0
    """Iterations that its last complete checkpoint holds, with which another attempt begins; 0 = it has written none"""
    iterations_wanted: int | None = None
    """How many iterations it makes in all, as its owner said; null = not said"""
    duration_s: float | None = None
    """How many seconds it takes, as its owner said; null = not said"""
    restarts: int = 0
    """How often it may be started again after failures"""
    restarted: int = 0
    """How often it was started again after failures"""
    grace_s: float = GRACE_S
    """Seconds from SIGTERM to SIGKILL"""
    share: float = 0.0
    """The most that another training may cost it, a fraction of its iteration time; 0 = none may train beside it"""
    micro_batches: list[int] = []
    """In how many parts its loop can run a batch where memory is short"""
    attempt: int = 0
    """Its starts so far, of which ``restarted`` after failures"""
    expected: Expected | None = None
    """What the job scheduler said of it last; null = nothing, or it is over"""
    told_end_at: datetime | None = None
    """When it was expected to end as it started; null = it has not started, or more than once"""
    told_late_at: datetime | None = None
    """As ``told_end_at``, if it took longer than in nine cases of ten"""
    told_source: str = ""
    """What told that length, as ``source`` of ``Expected``; '' = nothing was told"""
    solo_s: float | None = None
    """Mean seconds of an iteration while no function ran beside it; null = not measured"""
    shared_s: float | None = None
    """Mean seconds of an iteration while a function ran beside it; null = not measured"""
    degradation: float | None = None
    """``shared_s`` / ``solo_s`` - 1; null = not known yet"""
    budget: float = DEFAULT_BUDGET
    """The most that it may lose to functions, a fraction of its iteration time"""
    loss: float | None = None
    """
    What functions cost it by the last ``loss_windows`` closed windows, a fraction of its iteration time; null = not
    enough data
    """
    loss_low: float | None = None
    """Lower bound of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """Upper bound of the 95 % interval of ``loss``"""
    loss_windows: int = 0
    """How many closed windows ``loss`` rests on"""
    memory_mib: float | None = None
    """Measured memory of all its ranks on their devices, MiB; null = no worker reports it"""
    exit_code: int | None = None
    """The exit code of its last attempt, minus the signal's number where one ended it; null = it has none"""
    suspended: bool = False
    """Whether a signal (SIGSTOP) has stopped it; it lives and makes no steps until it is continued"""
    unseen: str | None = None
    """
    Why it counts for nothing; null = it counts. It says that it runs elsewhere, and no GPU worker sees its process:
    functions run as if it was not there until an operator allows it (``POST /v1/jobs/{id}/allow``)
    """
    outcome: Outcome | None = None
    """
    ``succeeded`` (exit code 0), ``failed`` (another), ``killed`` (by ``signal``), ``stopped`` (its owner asked for
    that; what runs elsewhere was let go), ``refused`` (it was never started or watched), ``detached`` (it is watched no
    longer), ``unknown`` (nobody saw how it ended); null = it goes on
    """
    signal: str | None = None
    """The name of the signal that ended it; null = none did"""
    reason: str | None = None
    """Why it was refused, let go or ended, in words; null = nothing is to be said"""
    source: Literal["started", "tracked", "attached"] = "started"
    """
    ``started`` by the platform, ``tracked`` (it runs elsewhere and reports its steps) or ``attached`` (it is only
    watched)
    """
    measured: bool = True
    """Whether its loss can be measured; false: it tells no steps"""
    beside_now: list[str] = []
    """
    Other trainings that train on its GPU instances now, and that nobody placed there; those of other projects without
    their names. A list of jobs leaves it empty
    """
    promise: Promise | None = None
    """What was promised of its end; null = nothing was asked for, or it is not decided"""


class Attached(Schema):
    """The job that a running training has become."""

    id: str
    """The id of the job, to which its steps are sent"""
    gpu: str
    """The name of the GPU instance that it counts on"""
    beside_now: list[str] = []
    """Other trainings that train there now; those of other projects without their names"""


class Beside(Schema):
    """
    Another training on the same GPU instances, and what it cost this job. Without an interval ``loss`` rests on the
    profile's iteration time, because the job was never alone.
    """

    id: str
    """The id of the other training"""
    name: str
    """The name of the other training, where the key may read it"""
    guest: bool
    """Whether this job came to the other one"""
    gpus: list[str]
    """The GPU instances that both were on"""
    since: datetime
    """When the second of the two came"""
    until: datetime | None = None
    """When one of them ended; null = both go on"""
    seconds: float
    """Seconds that they have shared GPU instances so far"""
    predicted: float | None = None
    """
    How many times longer than alone an iteration was expected to take because of the other one; null = not predicted
    """
    measured: float | None = None
    """How many times longer than alone an iteration took in the other one's first minute; null = not measured"""
    loss: float | None = None
    """What the other one cost it over the whole time, a fraction of its iteration time alone; null = not measured"""
    loss_low: float | None = None
    """Lower bound of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """Upper bound of the 95 % interval of ``loss``"""
    unmeasured: str | None = None
    """Why ``loss`` is null, in words"""
    held_s: float = 0.0
    """Seconds that this job was held back for the other one's sake"""


class Jobs(Schema):
    """A page of jobs."""

    jobs: list[Job]
    """The jobs, the newest first"""
    next_cursor: str | None = None
    """The ``cursor`` that asks for the next page; null = this is the last one"""


class QueuedJob(Expected):
    """A job that is not over, where it stands."""

    id: str
    """The id of the job"""
    name: str
    """The name of the job"""
    project: str
    """The project that the job belongs to"""
    state: str
    """The state of the job, as ``Job`` has it"""
    count: int
    """How many GPU instances it asks for"""
    device: str | None = None
    """The kind of GPU that it asks for; null = any"""


class JobQueue(Schema):
    """
    The jobs that are on GPU instances, then those that wait, in their order. A project's key sees its own ones, with
    their places in the whole queue; an operator's key those of all projects.
    """

    at: datetime | None = None
    """When the job scheduler published the queue; null = never"""
    leading: bool
    """Whether a job scheduler leads now"""
    refused: str | None = None
    """Why no job scheduler can lead; null = that is not known, or one does"""
    setting: str = ""
    """The named setting by which the job scheduler decides"""
    kept: int = 0
    """Free GPU instances that are kept for one job"""
    kept_for: str | None = None
    """
    The id of the job for which they are kept; null = none are, or it is of another project that the key may not read
    """
    waiting: int = 0
    """How many jobs of all projects wait"""
    jobs: list[QueuedJob]
    """Those of the jobs that the key may read"""


class JobTrial(Schema):
    """What would become of a job that came now."""

    gpus: list[str]
    """The GPU instances on which it would start at once; none = it would wait"""
    beside: list[str] = []
    """The trainings whose guest it would be there: names of the project's jobs, else ids; none = alone"""
    expected: Expected
    """When it would start and end on GPU instances of its own"""
    earliest_promise_at: datetime | None = None
    """The end that would be promised now: the one of ``by`` or, where none is asked for or it cannot be, the earliest; null = none"""
    no_promise: str | None = None
    """Why the end of ``by``, or any, would not be promised; null = it would"""


class JobAttempt(Schema):
    """One start of all ranks of a job."""

    attempt: int
    """The number of the attempt, from 1"""
    gpus: list[str]
    """The GPU instances of its ranks, in the order of the ranks"""
    nodes: list[str]
    """The machines of these GPU instances"""
    started_at: datetime
    """When the job scheduler started it"""
    up_at: datetime | None = None
    """When all ranks ran; null = they never have"""
    ended_at: datetime | None = None
    """When none of its ranks ran any more; null = it goes on"""
    why: str = ""
    """The code of why it ended; '' = it goes on"""
    message: str = ""
    """Why it ended, in words"""
    exit_code: int | None = None
    """The exit code of its ranks, minus the signal's number where one ended them; null = not known"""
    iterations_from: int = 0
    """Iterations of the job when the attempt began"""
    iterations: int = 0
    """Iterations of the job at the end of the attempt"""
    micro_batches: int = 1
    """In how many parts it ran its batch"""


class JobAttempts(Schema):
    """All attempts of a job."""

    id: str
    """The id of the job"""
    name: str
    """The name of the job"""
    attempts: list[JobAttempt]
    """The attempts of the job, the first one first"""


class JobExplanation(Schema):
    """Why a job is where it is."""

    id: str
    """The id of the job"""
    name: str
    """The name of the job"""
    state: str
    """The state of the job, as ``Job`` has it"""
    summary: str
    """Why it is there in words, with what it has lost to trainings beside it so far"""
    expected: Expected | None = None
    """What the job scheduler expects of it; null = nothing, or it is over"""
    places: list[JobPlace] = []
    """What stands against it on each GPU instance, while it waits"""
    decisions: list[JobDecision] = []
    """What was decided of it last, the newest first"""
