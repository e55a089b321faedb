"""What the gateway answers, typed."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from smore.domain.function import TensorSpec
from smore.domain.invocation import TERMINAL, State
from smore.domain.limits import NO_LIMITS, Limits


# ---- what is answered ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """
    ``min_warm`` instances stand ready in all, at most ``max_warm`` on each GPU instance; ``keep_alive_s`` -1 = for
    ever.
    """

    min_warm: int
    max_warm: int
    keep_alive_s: float
    prewarm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function as it stands. ``revision`` takes the traffic, 0 = none yet; ``inputs`` None = JSON values."""

    name: str
    revision: int = 0
    project: str = "default"
    entrypoint: str = ""
    deadline_ms: float | None = None
    inputs: list[TensorSpec] | None = None
    outputs: list[TensorSpec] | None = None
    scaling: Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed(Function):
    """``created`` false: the revision was there already. ``measured`` is what its first run found."""

    created: bool = True
    measured: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    revision: int
    state: str = ""
    entrypoint: str = ""
    created_at: datetime | None = None
    error: str | None = None
    measured: dict[str, Any] | None = None
    artifact: str | None = None
    requirements: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """
    An invocation as far as it is known.

    ``output`` is there once it has succeeded: a JSON value, or ``{name: numpy array}`` where arrays were sent. An input
    of ``map`` that was refused at the gate has no ``id``. ``timings_ms`` are the phases of ``Server-Timing`` (queue,
    schedule, dispatch, load, run); ``load`` above zero = cold start.
    """

    state: State
    id: str = ""
    output: Any = None
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
    durability: str = ""
    timings_ms: dict[str, float] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationPage:
    """The newest first; ``cursor`` asks for the next page, None = the last one."""

    items: list[Invocation]
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The invocations of one function that wait."""

    function: str
    depth: int = 0
    oldest_wait_s: float = 0.0
    priority: float = 0.0
    paused: bool = False
    draining: bool = False
    boost: float = 1.0
    boost_until: datetime | None = None
    pinned_to: list[str] = field(default_factory=list)
    pinned_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """A resident model on a GPU instance."""

    function: str
    revision: int = 0
    state: str = ""
    memory_mib: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """
    A process that computes on a GPU instance and that nobody registered; nothing is placed beside it until it is
    ``allowed``.
    """

    pid: int
    name: str = ""
    memory_mib: float = 0.0
    allowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """
    A GPU instance as of its last report; utilisations are 0..1 over the last heartbeat, by the counter named;
    ``counters`` are all of the device's. ``strangers`` None = it cannot tell who computes on it. ``health``: why
    nothing can run on the device, '' = it works.
    """

    id: str
    kind: str = ""
    device: str = ""
    sharing_mode: str = ""
    slots: int = 0
    running: int = 0
    utilisation: float = 0.0
    function_utilisation: float = 0.0
    utilisation_counter: str = ""
    counters: dict[str, float] = field(default_factory=dict)
    health: str = ""
    memory_used_mib: float = 0.0
    memory_total_mib: float = 0.0
    paused: bool = False
    draining: bool = False
    drained: bool = False
    reported_at: datetime | None = None
    warm: list[Warm] = field(default_factory=list)
    strangers: list[Stranger] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    A serverful job. Mean iteration times, seconds: ``solo_s`` while no function ran beside it, ``shared_s`` while one
    did.

    ``degradation`` = shared / solo - 1; None = not known yet. ``loss`` with its 95 % interval is what functions cost it
    by its last closed windows, a fraction like its ``budget``; None = not enough data.
    """

    id: str
    name: str = ""
    state: str = ""
    argv: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    iterations: int = 0
    solo_s: float | None = None
    shared_s: float | None = None
    degradation: float | None = None
    budget: float = 0.1
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    loss_windows: int = 0
    memory_mib: float | None = None
    exit_code: int | None = None
    #: A signal (SIGSTOP) has stopped it: it lives and makes no steps.
    suspended: bool = False
    #: succeeded, failed, killed (by ``signal``), stopped (its owner asked for it), refused or detached (for a
    #: ``reason``), unknown; None = it goes on.
    outcome: str | None = None
    signal: str | None = None
    reason: str | None = None
    #: started, tracked (it runs elsewhere and tells its steps) or attached (it is only watched: nothing it loses is
    #: measured).
    source: str = "started"
    measured: bool = True
    workload: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStep:
    """
    A step of the closed loop of a job's budget: functions may work for ``duty`` of the time on ``gpu`` from ``at`` on.
    """

    at: datetime
    gpu: str = ""
    step: str = ""
    duty: float = 1.0
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """
    What a job gave and lost. ``harvested_s``: seconds that functions ran beside it, by the clock, for ``invocations``
    of them.

    ``loss`` with its 95 % interval rests on ``windows`` closed windows; None = not enough data: ``missing_windows``
    more are needed, which takes about ``missing_s`` seconds. ``kept``: the bound ``loss_high`` is within the
    ``budget``. ``steps``: the newest first.
    """

    id: str
    name: str = ""
    state: str = ""
    budget: float = 0.1
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
    steps: list[BudgetStep] = field(default_factory=list)
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """Fractions: of the function and of the training beside it, expected and with the bound that holds for 90 %."""

    function: float
    function_upper: float
    training: float
    training_upper: float
    known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One attempt of an invocation; ``predicted`` is what the decision expected, ``degradation`` what was measured."""

    attempt: int
    gpu: str = ""
    state: str = ""
    cause: str = ""
    cold: bool | None = None
    run_s: float | None = None
    batch: int | None = None
    rows: int | None = None
    co_runners: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    predicted: Degradation | None = None
    degradation: float | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One GPU instance as a decision weighed it; seconds, fractions, None = unknown. ``refusal`` None = acceptable."""

    gpu: str
    warm: bool = False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """Where a policy that only looks on would have gone; ``gpu`` None = nowhere."""

    policy: str
    gpu: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The best candidates of a decision, the chosen one first, and how many GPU instances were refused, by code."""

    at: datetime | None = None
    policy: str = ""
    table: int = 0
    seed: int = 0
    priority: float | None = None
    candidates: list[Candidate] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    shadow: Shadow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Milliseconds; ``loading``: a cold start by what was done."""

    queue: float | None = None
    schedule: float | None = None
    dispatch: float | None = None
    load: float | None = None
    run: float | None = None
    loading: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What was predicted of an attempt, or measured; ``slack_s``: from its finish to its deadline."""

    run_s: float | None = None
    finish_at: datetime | None = None
    slack_s: float | None = None
    function_degradation: float | None = None
    function_degradation_upper: float | None = None
    training_degradation: float | None = None
    training_degradation_upper: float | None = None
    known: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of an invocation: its decision, where its time went, what was predicted and what was measured."""

    attempt: int
    gpu: str = ""
    state: str = ""
    cause: str = ""
    cold: bool | None = None
    batch: int | None = None
    rows: int | None = None
    co_runners: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    phases_ms: Phases = field(default_factory=Phases)
    predicted: Side | None = None
    measured: Side = field(default_factory=Side)
    decision: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateKnew:
    """
    The gate held ``needed_ms`` against ``allowed_ms``, both from arrival; ``now_ms`` is what it would need now. None =
    not known.
    """

    allowed_ms: float = 0.0
    needed_ms: float | None = None
    now_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What one that waits waits for; ``before``: how many of its function have earlier deadlines."""

    before: int = 0
    paused: str = ""
    decision: Decision | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why an invocation went as it did; ``complete`` False: the history does not know all of it yet."""

    id: str
    function: str = ""
    revision: int = 0
    state: str = ""
    cause: str = ""
    summary: str = ""
    rows: int = 1
    arrival_at: datetime | None = None
    deadline_at: datetime | None = None
    finished_at: datetime | None = None
    slack_s: float | None = None
    gate: GateKnew = field(default_factory=GateKnew)
    waits: Waits | None = None
    attempts: list[Attempt] = field(default_factory=list)
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """
    What would become of an invocation: ``placed`` at once, ``waits`` for what ``detail`` names, ``late`` (taken, and
    would expire) or ``refused``; ``reason``: the code of that. ``earliest_deadline_ms``: the earliest deadline that
    would be accepted, None = not known.
    """

    outcome: str
    reason: str = ""
    feasible: bool = False
    detail: str = ""
    gpu: str | None = None
    cold: bool | None = None
    start_at: datetime | None = None
    finish_at: datetime | None = None
    deadline_at: datetime | None = None
    predicted: Degradation | None = None
    earliest_deadline_ms: float | None = None
    earliest_deadline_at: datetime | None = None
    decision: Decision = field(default_factory=Decision)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorPlace:
    """What the degradation table holds of one device and sharing mode."""

    device: str
    sharing_mode: str
    trainings: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    measured: int = 0
    weights: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """The degradation table in force and the predictor behind it; ``version`` 0 = there is none."""

    version: int
    source: str = ""
    created_at: datetime | None = None
    reason: str = ""
    manifest: dict[str, Any] = field(default_factory=dict)
    places: list[PredictorPlace] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmHold:
    """At least ``instances`` stand ready from ``since`` on; ``until`` None = for ever."""

    since: datetime
    until: datetime | None
    instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmCounts:
    """
    Loads ahead by outcome, cold starts with their reasons (``unforeseen``), runs that were saved one, and GB-seconds of
    memory: held in all, without work, and by instances that were loaded ahead and never used.
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
    unforeseen: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmFunction:
    """
    How a function is kept ready: ``silence`` says why its rule has no say and its keep-alive holds, '' = it has one.
    """

    function: str
    mode: str
    source: str
    silence: str
    wanted: int
    loaded: int
    unmet: bool
    load_s: float
    counts: PrewarmCounts
    holds: list[PrewarmHold] = field(default_factory=list)
    parked: int = 0
    host_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarm:
    """
    ``leading`` False: no leader has said lately how it keeps functions. ``counts`` over all of the project since
    ``since``.
    """

    since: datetime
    leading: bool
    on: bool
    rule: str
    share: float
    forecasts: int
    jumps: int
    counts: PrewarmCounts
    functions: list[PrewarmFunction] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacePrediction:
    """For ``k`` invocations of a function at a time beside a training on one device. Degradations are fractions."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key without its secret; ``key`` is the whole of it, in the answer to its creation only."""

    id: str
    name: str = ""
    project: str = ""
    scopes: list[str] = field(default_factory=list)
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """
    What a project uses now: invocations that wait, that wait or run, memory of its warm instances, trainings and what
    is kept for them.
    """

    depth: int = 0
    concurrency: int = 0
    warm_memory_mib: float = 0.0
    jobs: int = 0
    job_memory_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    name: str
    created_at: datetime | None = None
    limits: Limits = NO_LIMITS
    use: Use | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret without its value."""

    name: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A revision that no GPU instance runs: its last fault, where and when."""

    function: str
    revision: int
    cause: str
    gpu: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    function: str
    revisions: list[int]
