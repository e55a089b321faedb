"""
Bodies of the admin routes and of all answers, for checking and for the API's description. The hot path does not use
them. The docstrings of answers are those of the client's types too (client/generate.py).

It is one file, because it is declarations alone and answers contain each other across nouns.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, Strict

from smore.domain.access import Scope
from smore.domain.function import TensorSpec
from smore.domain.invocation import State
from smore.domain.job import Outcome
from smore.domain.limits import Limits
from smore.domain.loss import DEFAULT_BUDGET

#: JSON's own numbers and truths: ``true`` is no number of milliseconds, ``"1"`` none either.
Number = Annotated[float, Strict()]
Whole = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
#: No character that Postgres and an argv cannot hold.
_STORABLE: Final = r"^[^\x00]*$"
Text = Annotated[str, Field(max_length=4096, pattern=_STORABLE)]
#: A short one: a name, or what a list is searched for.
Word = Annotated[str, Field(max_length=256, pattern=_STORABLE)]


def _dated(value: object) -> object:
    """Pydantic takes a number for seconds since 1970, which ``format: date-time`` does not say."""
    if isinstance(value, str) and "T" not in value.upper():
        raise ValueError("a date and a time with its offset are expected (RFC 3339)")
    return value


def _on_the_calendar(value: datetime) -> datetime:
    """A first day of the year 1 east of Greenwich is before it in UTC, and no moment there."""
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("a moment in the years 1 to 9999 of UTC is expected") from error


#: Of a variable: execve takes neither an empty one nor one with = or a null byte in it.
Variable = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^=\x00]*$")]

#: A moment that a caller names.
Moment = Annotated[AwareDatetime, BeforeValidator(_dated), AfterValidator(_on_the_calendar)]


class _Body(BaseModel):
    """An unknown field is refused: a misspelt one must not pass as a default."""

    model_config = ConfigDict(extra="forbid")


class Metadata(_Body):
    name: str
    labels: dict[str, str] = {}


class FunctionBody(_Body):
    """
    A function.yaml. ``spec`` is checked field by field; docs/guides/own-model.md has an example,
    smore/domain/function.py all names.
    """

    apiVersion: Literal["smore/v1"]  # noqa: N815 - as Kubernetes and its neighbours spell it
    kind: Literal["Function"]
    metadata: Metadata
    spec: dict[str, Any]


class RollbackBody(_Body):
    revision: Whole = Field(ge=1, le=2**31 - 1)


class SloBody(_Body):
    """``deadline_ms``: from arrival; null = the revision's own."""

    deadline_ms: Number | None = Field(ge=1, le=86_400_000, allow_inf_nan=False)


class BudgetBody(_Body):
    """``budget``: the most that the job may lose to functions, a fraction of its iteration time (0.01 to 1)."""

    budget: Number = Field(ge=0, le=1, allow_inf_nan=False)


#: Seconds; null = until it is taken back.
For = Annotated[Number | None, Field(gt=0, le=31_536_000, allow_inf_nan=False)]


class BoostBody(_Body):
    """``factor``: what the function's priority is multiplied by; ``for_s``: seconds, null = until it is taken back."""

    factor: Number = Field(ge=0.001, le=1000, allow_inf_nan=False)
    for_s: For = None


class PinBody(_Body):
    """
    ``gpus``: the only GPU instances that the function may go to, those that are away now too; ``for_s`` as for a boost.
    """

    gpus: list[Annotated[str, Field(min_length=1, max_length=128, pattern=_STORABLE)]] = Field(
        min_length=1, max_length=64
    )
    for_s: For = None


class LimitsBody(_Body):
    """In place of what was set before; null = no limit. See ``Limits``."""

    rate_per_s: Number | None = Field(default=None, allow_inf_nan=False)
    burst: Whole | None = None
    depth: Whole | None = None
    concurrency: Whole | None = None
    warm_memory_mib: Number | None = Field(default=None, allow_inf_nan=False)
    jobs: Whole | None = None
    job_memory_mib: Number | None = Field(default=None, allow_inf_nan=False)


class StrangerBody(_Body):
    """A process that nobody registered, as ``GET /v1/gpus`` lists it."""

    pid: Whole = Field(ge=1, le=2**31 - 1)


class FunctionChanges(_Body):
    """
    ``scaling``: any of ``min_warm``, ``max_warm``, ``keep_alive`` and ``prewarm``, as in function.yaml; what is not
    named stays.
    """

    scaling: dict[str, Any]


class PlaceBody(_Body):
    """One GPU instance, or none for all."""

    gpu: str | None = None


class JobBody(_Body):
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


class AttachBody(_Body):
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
    boot: str = Field(default="", max_length=64, pattern=_STORABLE)
    tracked: Flag = False
    group: Annotated[str, Field(min_length=1, max_length=256, pattern=_STORABLE)] | None = None
    former: str | None = Field(default=None, max_length=64, pattern=_STORABLE)
    workload: str | None = None
    budget: Number | None = None


class StepsBody(_Body):
    """
    Iterations of a training that runs elsewhere: ``first`` is the number of the first one, ``steps`` are [end in epoch
    seconds, duration in seconds], oldest first; ``ended``: they were the last. The same twice counts once. Without any
    it says that the training lives.
    """

    gpu: str = Field(max_length=128)
    first: Whole = Field(default=0, ge=0, le=2**62)
    steps: list[tuple[FiniteFloat, Annotated[FiniteFloat, Field(ge=0)]]] = Field(max_length=8192)
    ended: Flag = False


class KeyBody(_Body):
    """``project``: default = the caller's; another one only for administrators of the project ``default``."""

    name: Text
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    project: str | None = None


class ProjectBody(_Body):
    name: str


class SecretBody(_Body):
    """Eight characters at least: shorter ones could not be told from other text where they are masked."""

    value: str = Field(min_length=8, max_length=32_768, pattern=_STORABLE, repr=False)


class Scaling(BaseModel):
    """
    ``min_warm``: instances that stay loaded, in all; ``max_warm``: the most on each GPU instance; ``keep_alive_s``:
    seconds that an idle instance stays loaded, -1 = for ever; ``prewarm``: the rule that loads instances ahead of
    arrivals.
    """

    min_warm: int
    max_warm: int
    keep_alive_s: float
    prewarm: str


class Function(BaseModel):
    """
    A function. ``revision``: the one that takes the traffic, 0 = none yet; ``deadline_ms``: from arrival; ``inputs``
    and ``outputs``: its tensors, null = JSON values.
    """

    name: str
    project: str
    revision: int
    entrypoint: str = ""
    deadline_ms: float | None = None
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    scaling: Scaling | None = None


class Deployed(Function):
    """
    The function after a deploy. ``created`` false: the same revision was there already; ``measured``: what its canary
    measured, null = nothing.
    """

    created: bool
    measured: dict[str, Any] | None = None


class Revision(BaseModel):
    """
    One immutable version of a function. ``error``: why its canary failed, with the log; ``artifact``: the digest of the
    uploaded folder, null = a module of the platform.
    """

    revision: int
    state: str
    entrypoint: str
    created_at: datetime
    error: str | None = None
    measured: dict[str, Any] | None = None
    artifact: str | None = None
    requirements: list[str] = []


class BlobState(BaseModel):
    """``offset``: bytes that have arrived; ``complete``: these are all of them, and their SHA-256 is ``digest``."""

    digest: str
    complete: bool
    offset: int


class Placed(BaseModel):
    """``gpus``: the GPU instances that were asked to load or unload."""

    gpus: list[str]


class Invocation(BaseModel):
    """
    One request to run a function. ``cause``: the code of why it did not succeed; ``attempt``: how often it was started;
    ``output``: only where it succeeded with a JSON result that is still kept.
    """

    id: str
    state: State
    function: str = ""
    revision: int = 0
    cause: str = ""
    detail: str = ""
    attempt: int = 0
    gpu: str = ""
    rows: int = 1
    arrival_at: datetime | None = None
    deadline_at: datetime | None = None
    finished_at: datetime | None = None
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
    the run time that was expected of it alone, null where it was cold or did not run to the end.
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


class Candidate(BaseModel):
    """
    One GPU instance as a decision weighed it. Seconds: ``delay_s`` until it could start, ``run_s`` of the invocation
    alone. ``impact``: what the policy orders candidates by. Degradations are fractions as in ``Degradation``. null =
    unknown. ``refusal``: the code of why it was not acceptable, null = it was.
    """

    gpu: str
    warm: bool
    delay_s: float | None = None
    run_s: float | None = None
    finish_at: datetime | None = None
    impact: float | None = None
    function_degradation: float | None = None
    function_degradation_upper: float | None = None
    training_degradation: float | None = None
    training_degradation_upper: float | None = None
    known: bool = False
    refusal: str | None = None


class Shadow(BaseModel):
    """Where a shadow policy, which decides nothing, would have placed the batch; ``gpu`` null = nowhere."""

    policy: str
    gpu: str | None


class Decision(BaseModel):
    """
    The reasons of one decision. ``candidates``: the best of them, the chosen one first; ``refused``: how many GPU
    instances were refused, by code; ``table``: the version of the degradation table, 0 = none.
    """

    at: datetime | None = None
    policy: str
    table: int
    seed: int
    priority: float | None = None
    candidates: list[Candidate]
    refused: dict[str, int]
    shadow: Shadow | None = None


class Phases(BaseModel):
    """Milliseconds as in ``Server-Timing``, null = not (yet) known; ``loading``: the parts of a cold start."""

    queue: float | None
    schedule: float | None
    dispatch: float | None
    load: float | None
    run: float | None
    loading: dict[str, float] = {}


class Side(BaseModel):
    """
    What was predicted of an attempt, or what was measured. ``slack_s``: seconds from its finish to its deadline,
    negative = late. ``*_upper``: the bound that holds for 90 %, of a prediction only; ``known``: the prediction is from
    the degradation table.
    """

    run_s: float | None = None
    finish_at: datetime | None = None
    slack_s: float | None = None
    function_degradation: float | None = None
    function_degradation_upper: float | None = None
    training_degradation: float | None = None
    training_degradation_upper: float | None = None
    known: bool | None = None


class Attempt(BaseModel):
    """One attempt: its decision, where its time went, and what was predicted of it against what was measured."""

    attempt: int
    gpu: str
    state: State
    cause: str = ""
    cold: bool | None = None
    batch: int | None = None
    rows: int | None = None
    co_runners: list[str] = []
    jobs: list[str] = []
    phases_ms: Phases
    predicted: Side | None = None
    measured: Side
    decision: Decision | None = None


class GateKnew(BaseModel):
    """
    Admission compared ``needed_ms`` (the earliest feasible finish) with ``allowed_ms`` (the deadline), both from
    arrival; ``now_ms``: what an invocation would need that arrives now. null = unknown.
    """

    allowed_ms: float
    needed_ms: float | None = None
    now_ms: float | None = None


class Waits(BaseModel):
    """
    Why an invocation waits. ``before``: how many of its function have earlier deadlines; ``decision``: how the
    scheduler sees the GPU instances now, null = it did not answer; ``detail``: the same in words.
    """

    before: int
    paused: str = ""
    decision: Decision | None = None
    detail: str


class Explanation(BaseModel):
    """
    Why an invocation went as it did. ``summary``: in words; ``slack_s``: seconds from its finish to its deadline;
    ``complete`` false: the history does not have all of it yet, ask again.
    """

    id: str
    function: str
    revision: int
    state: State
    cause: str = ""
    summary: str
    rows: int
    arrival_at: datetime
    deadline_at: datetime
    finished_at: datetime | None = None
    slack_s: float | None = None
    gate: GateKnew
    waits: Waits | None = None
    attempts: list[Attempt]
    complete: bool


class DryRun(BaseModel):
    """
    What would become of an invocation; nothing was placed.

    ``outcome``: ``placed`` (at once, on ``gpu``), ``waits`` (taken, and placed when what ``decision.refused`` names has
    changed; then ``finish_at`` counts what waits before it), ``refused`` (by the gate), ``late`` (taken, and would
    expire). ``reason`` is a stable code, '' where it would be placed: the ``code`` of the error that an invocation
    would get (``draining``, ``limit_reached``, ``queue_full``, ``slo_infeasible``, ``deadline_expired``) or what it
    would wait for (``paused``, or as ``decision.refused`` names it: ``pinned`` where there are no GPU instances but
    those that it may not go to). ``feasible``: its deadline can be met as things are. ``predicted``: of itself and of
    the training there. ``earliest_deadline_*``: the earliest deadline that would be accepted, from now and as an
    instant, null = not known or not a matter of time.
    """

    outcome: Literal["placed", "waits", "late", "refused"]
    reason: str = ""
    feasible: bool
    detail: str
    gpu: str | None = None
    cold: bool | None = None
    start_at: datetime | None = None
    finish_at: datetime | None = None
    deadline_at: datetime
    predicted: Degradation | None = None
    earliest_deadline_ms: float | None = None
    earliest_deadline_at: datetime | None = None
    decision: Decision


class PredictorPlace(BaseModel):
    """
    What the degradation table holds for one device and sharing mode; ``measured``: how many of its training × function
    cells are measured rows.
    """

    device: str
    sharing_mode: str
    trainings: list[str]
    functions: list[str]
    measured: int
    weights: int


class Predictor(BaseModel):
    """
    The published table and the predictor behind it. ``version`` 0: nothing was published. ``data``, ``errors`` and
    ``calibration``: see the manifest in docs/research/predictor.md.
    """

    version: int
    source: str = ""
    created_at: datetime | None = None
    reason: str = ""
    manifest: dict[str, Any] = {}
    places: list[PredictorPlace] = []


class PlacePrediction(BaseModel):
    """
    The degradation of both sides when ``k`` invocations of ``function`` at a time run beside ``training`` on one
    device; ``measured``: a measured row, not a prediction.
    """

    device: str
    sharing_mode: str
    training: str
    function: str
    k: int
    known: bool
    measured: bool
    training_degradation: float
    training_degradation_upper: float
    function_degradation: float
    function_degradation_upper: float


class Predictions(BaseModel):
    """``version``: of the degradation table."""

    version: int
    predictions: list[PlacePrediction]


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


class Warm(BaseModel):
    """A handler that is loaded on a GPU instance; ``idle_s``: seconds since its last run."""

    function: str
    revision: int
    state: str
    memory_mib: float
    idle_s: float


class Stranger(BaseModel):
    """A process on a GPU instance that nobody registered: until it is ``allowed`` nothing is placed beside it."""

    pid: int
    name: str
    memory_mib: float
    allowed: bool


class Gpu(BaseModel):
    """
    A GPU instance as of its last report. ``utilisation`` and ``function_utilisation``: 0 to 1 over the last heartbeat,
    by the counter ``utilisation_counter``; ``counters``: every counter of the device by its name. ``health``: why
    nothing can run on the device, "" = it works. ``draining``: nothing more is placed there and idle instances are
    unloaded; ``drained``: nothing runs and nothing is loaded there any more. ``warm``: of the caller's project.
    ``strangers`` null = it cannot tell who computes on it, as on CPU partitions.
    """

    id: str
    kind: str
    device: str
    sharing_mode: str
    slots: int
    running: int
    utilisation: float
    function_utilisation: float
    utilisation_counter: str
    counters: dict[str, float] = {}
    health: str = ""
    memory_used_mib: float
    memory_total_mib: float
    paused: bool
    draining: bool
    drained: bool
    reported_at: datetime
    warm: list[Warm]
    strangers: list[Stranger] | None = None


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
    missing_windows: int = 0
    missing_s: float | None = None
    steps: list[BudgetStep] = []
    summary: str


class Key(BaseModel):
    """An API key. ``key``: the secret, only in the answer to its creation."""

    id: str
    name: str
    project: str
    scopes: list[Scope]
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    key: str | None = None


class Use(BaseModel):
    """
    What a project uses now. ``depth``: invocations that wait; ``concurrency``: invocations that wait or run;
    ``warm_memory_mib``: memory of its warm instances; ``jobs``: trainings; ``job_memory_mib``: memory reserved for
    them.
    """

    depth: int
    concurrency: int
    warm_memory_mib: float
    jobs: int
    job_memory_mib: float


class Project(BaseModel):
    """A project: its limits, and what it uses, null = not asked for."""

    name: str
    created_at: datetime
    limits: Limits
    use: Use | None = None


class Purged(BaseModel):
    """``cancelled``: how many invocations were cancelled."""

    cancelled: int


class AuditEntry(BaseModel):
    """
    One change. ``route``: method and path template; ``target``: what was changed; ``before`` and ``after``: the part
    that changed, null = it did not exist.
    """

    id: int
    at: datetime
    project: str
    key_id: str
    route: str
    target: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    request_id: str


class AuditPage(BaseModel):
    """The newest first; ``next_cursor`` asks for the next page, null = this is the last."""

    entries: list[AuditEntry]
    next_cursor: int | None = None


class Secret(BaseModel):
    """A secret without its value."""

    name: str
    created_at: datetime
    updated_at: datetime


class Secrets(BaseModel):
    secrets: list[Secret]


class Quarantined(BaseModel):
    """A revision that no GPU instance runs: its last fault, where and when."""

    function: str
    revision: int
    cause: str
    gpu: str
    at: datetime


class Quarantine(BaseModel):
    revisions: list[Quarantined]


class Lifted(BaseModel):
    """``revisions``: the revisions that may run again."""

    function: str
    revisions: list[int]


class Functions(BaseModel):
    functions: list[Function]


class Revisions(BaseModel):
    revisions: list[Revision]


class Invocations(BaseModel):
    """``next_cursor`` asks for the next page, null = this is the last."""

    invocations: list[Invocation]
    next_cursor: str | None = None


class Queues(BaseModel):
    queues: list[Queue]


class Gpus(BaseModel):
    gpus: list[Gpu]


class Jobs(BaseModel):
    jobs: list[Job]
    next_cursor: str | None = None


class Keys(BaseModel):
    keys: list[Key]


class Projects(BaseModel):
    projects: list[Project]


class PrewarmHold(BaseModel):
    """At least ``instances`` stay loaded from ``since`` on; ``until`` null = for ever."""

    since: datetime
    until: datetime | None
    instances: int


class PrewarmCounts(BaseModel):
    """
    What keeping instances loaded achieved and cost. Loads ahead by outcome: ``hits`` (ready before the first use),
    ``late`` (a request waited for it), ``wasted``, ``failed``, ``open``. ``cold``: how many of ``invocations`` attempts
    waited for a load, ``unforeseen``: why, by code; ``cold_loads``: loads that a request waited for; ``host_loads``:
    loads from pinned host memory; ``saved``: runs that found an instance only because it was loaded ahead or held for
    longer than its keep-alive. GB-seconds of memory: ``held`` in all, ``idle`` without work (loads included),
    ``wasted`` by instances that were loaded ahead and never used.
    """

    invocations: int = 0
    cold: int = 0
    hits: int = 0
    late: int = 0
    wasted: int = 0
    failed: int = 0
    open: int = 0
    cold_loads: int = 0
    host_loads: int = 0
    saved: int = 0
    held_gb_s: float = 0.0
    idle_gb_s: float = 0.0
    wasted_gb_s: float = 0.0
    unforeseen: dict[str, int] = {}


class PrewarmFunction(BaseModel):
    """
    How one function is kept loaded. ``mode``: auto, off or paper; ``source``: the rule that decides; ``silence``: why
    the rule does not decide and the keep-alive holds, '' = it decides. ``wanted`` instances, ``loaded`` or loading
    ones; ``unmet``: there is no room for those that are wanted. ``parked`` instances are in pinned host memory, from
    where a load takes ``host_s`` seconds instead of ``load_s``.
    """

    function: str
    mode: str = ""
    source: str = ""
    silence: str = ""
    wanted: int = 0
    loaded: int = 0
    unmet: bool = False
    load_s: float = 0.0
    parked: int = 0
    host_s: float = 0.0
    holds: list[PrewarmHold] = []
    counts: PrewarmCounts


class Prewarm(BaseModel):
    """
    How functions are kept loaded. ``leading`` false: no leader has reported lately; ``forecasts``: the version in use,
    0 = none; ``jumps``: how often the clock was set since the leader began; ``counts``: over all functions since
    ``since``.
    """

    since: datetime
    leading: bool
    on: bool = False
    rule: str = ""
    share: float = 0.0
    forecasts: int = 0
    jumps: int = 0
    counts: PrewarmCounts
    functions: list[PrewarmFunction]


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


class Problem(BaseModel):
    """RFC 9457; ``code`` is stable."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
