"""
What the API answers. Generated from the OpenAPI document by client/generate.py: change api/schemas and run `make fmt`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import msgspec

__all__ = [
    "Attached",
    "Attempt",
    "AuditEntry",
    "AuditPage",
    "Beside",
    "BlobState",
    "BudgetSpan",
    "BudgetStep",
    "Candidate",
    "Decision",
    "Degradation",
    "Deployed",
    "DryRun",
    "Execution",
    "Executions",
    "Expected",
    "Explanation",
    "Function",
    "Functions",
    "GateKnew",
    "Gpu",
    "GpuJob",
    "Gpus",
    "InvocationRecord",
    "Job",
    "JobAttempt",
    "JobAttempts",
    "JobDecision",
    "JobExplanation",
    "JobPlace",
    "JobQueue",
    "JobTrial",
    "Jobs",
    "Key",
    "Keys",
    "Lifted",
    "Limits",
    "LogLine",
    "LogLines",
    "LogStream",
    "Measured",
    "Outcome",
    "PairPrediction",
    "Phases",
    "PlacePrediction",
    "Placed",
    "Predictions",
    "Predictor",
    "PredictorPlace",
    "Prewarm",
    "PrewarmCounts",
    "PrewarmFunction",
    "PrewarmHold",
    "Project",
    "Projects",
    "Purged",
    "Quarantine",
    "Quarantined",
    "Queue",
    "QueuedJob",
    "Queues",
    "Revision",
    "Revisions",
    "Scaling",
    "Scope",
    "Secret",
    "Secrets",
    "Shadow",
    "Side",
    "State",
    "Statement",
    "Stranger",
    "TensorSpec",
    "Trace",
    "TraceFunction",
    "TraceRemoved",
    "Traces",
    "Use",
    "Verdict",
    "Waits",
    "Warm",
]


class OpenEnum(StrEnum):
    """A closed set of today: a value that is not in it becomes a member of its own, with the value as its name."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        return member


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    """
    The job that a running training has become, and the GPU instance that it counts on. ``beside_now``: other trainings
    that train there now; those of other projects without their names.
    """

    id: str
    gpu: str = ""
    beside_now: list[str] = []


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """
    One change. ``route``: method and path template; ``target``: what was changed; ``before`` and ``after``: the part
    that changed, None = it did not exist. ``key_name``, and of a job ``target_name``: their names now, None = no such
    name, or another project's.
    """

    id: int
    at: datetime | None = None
    project: str = ""
    key_id: str = ""
    route: str = ""
    target: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    request_id: str = ""
    key_name: str | None = None
    target_name: str | None = None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first; ``next_cursor`` asks for the next page, None = this is the last."""

    entries: list[AuditEntry]
    next_cursor: int | None = None


class BlobState(msgspec.Struct, frozen=True, kw_only=True):
    """``offset``: bytes that have arrived; ``complete``: these are all of them, and their SHA-256 is ``digest``."""

    digest: str
    complete: bool = False
    offset: int = 0


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One named tensor. ``shape[0]`` is -1: the rows. Other axes may be -1 too (free)."""

    name: str
    datatype: str = ""
    shape: tuple[int, ...] = ()


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """
    ``min_warm``: instances that stay loaded, in all; ``max_warm``: the most on each GPU instance; ``keep_alive_s``:
    seconds that an idle instance stays loaded, -1 = for ever; ``prewarm``: the rule that loads instances ahead of
    arrivals.
    """

    min_warm: int
    max_warm: int = 0
    keep_alive_s: float = 0.0
    prewarm: str = ""


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """
    A function. ``revision``: the one that takes the traffic, 0 = none yet; ``deadline_ms``: from arrival; ``inputs``
    and ``outputs``: its tensors, None = JSON values.
    """

    name: str
    project: str = ""
    revision: int = 0
    entrypoint: str = ""
    deadline_ms: float | None = None
    inputs: list[TensorSpec] | None = None
    outputs: list[TensorSpec] | None = None
    scaling: Scaling | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the first run of a revision measured. ``inputs`` and ``outputs``: its tensors, None = JSON values; ``load_ms``:
    milliseconds of the load, without what prepares its process and environment; ``phases_ms``: milliseconds of each
    phase of the load; ``run_ms``: milliseconds of one run of the example, ``examples_ms``: of all its runs, that of the
    load included; ``memory_mib``: what the runner held then; ``peak_mib``: the most that it had held of the machine's
    memory, and ``limit_mib``: what it may; ``packages``: the versions of required packages that function.yaml leaves
    open. ``input_schema`` and ``output_schema``: the JSON Schema of one input and of one output, None = the handler
    declares none.
    """

    inputs: list[TensorSpec] | None = None
    outputs: list[TensorSpec] | None = None
    load_ms: float | None = None
    phases_ms: dict[str, float] = {}
    run_ms: float | None = None
    examples_ms: float | None = None
    memory_mib: float | None = None
    peak_mib: float | None = None
    limit_mib: float | None = None
    packages: list[str] = []
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None


class Deployed(Function, frozen=True, kw_only=True):
    """
    The function after a deploy. ``created`` False: the same revision was there already; ``measured``: what its canary
    measured, None = nothing; ``changed``: how its inputs and outputs differ from those of the revision before, in
    words; ``warnings``: what keeps calls from being served now or soon may, in words.
    """

    created: bool = False
    measured: Measured | None = None
    changed: list[str] = []
    warnings: list[str] = []


class Degradation(msgspec.Struct, frozen=True, kw_only=True):
    """
    Fractions: 0.1 = ten per cent slower. ``function``: of the invocation; ``training``: of the training by all
    functions beside it; ``*_upper``: the bound that holds for 90 %. ``known``: from the degradation table, not declared
    or assumed.
    """

    function: float
    function_upper: float = 0.0
    training: float = 0.0
    training_upper: float = 0.0
    known: bool = False


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """
    One GPU instance as a decision weighed it. Seconds: ``delay_s`` until it could start, ``run_s`` of the invocation
    alone. ``impact``: what the policy orders candidates by. Degradations are fractions as in ``Degradation``. None =
    unknown. ``refusal``: the code of why it was not acceptable, None = it was.
    """

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


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shadow policy, which decides nothing, would have placed the batch; ``gpu`` None = nowhere."""

    policy: str
    gpu: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """
    The reasons of one decision. ``candidates``: the best of them, the chosen one first; ``refused``: how many GPU
    instances were refused, by code; ``table``: the version of the degradation table, 0 = none.
    """

    at: datetime | None = None
    policy: str = ""
    table: int = 0
    seed: int = 0
    priority: float | None = None
    candidates: list[Candidate] = []
    refused: dict[str, int] = {}
    shadow: Shadow | None = None


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """
    What would become of an invocation; nothing was placed.

    ``outcome``: ``placed`` (at once, on ``gpu``), ``waits`` (taken, and placed when what ``decision.refused`` names has
    changed; then ``finish_at`` counts what waits before it), ``refused`` (by the gate), ``late`` (taken, and would
    expire). ``reason`` is a stable code, '' where it would be placed: the ``code`` of the error that an invocation
    would get (``draining``, ``quarantined``, ``limit_reached``, ``queue_full``, ``slo_infeasible``,
    ``deadline_expired``) or what it would wait for (``paused``, or as ``decision.refused`` names it: ``pinned`` where
    there are no GPU instances but those that it may not go to). ``feasible``: its deadline can be met as things are;
    False where it would wait for somebody to end a pause, a drain or a pin. ``predicted``: of itself and of the
    training there. ``earliest_deadline_*``: the earliest deadline that would be accepted, from now and as an instant,
    None = not known or not a matter of time.
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
    decision: Decision = msgspec.field(default_factory=Decision)


class State(OpenEnum):
    """Where an invocation stands. ``succeeded``, ``failed``, ``rejected``, ``expired`` and ``cancelled`` are final."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """
    One attempt of an invocation. ``predicted``: what the decision expected; ``degradation``: what was measured, against
    the run time that was expected of it alone, None where it was cold, did not run to the end, or that time was
    assumed.
    """

    attempt: int
    gpu: str = ""
    state: State = State("")
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


class Executions(msgspec.Struct, frozen=True, kw_only=True):
    executions: list[Execution]


class GateKnew(msgspec.Struct, frozen=True, kw_only=True):
    """
    Admission compared ``needed_ms`` (the earliest feasible finish) with ``allowed_ms`` (the deadline), both from
    arrival; ``now_ms``: what an invocation would need that arrives now, None also while nothing could be placed (all is
    paused, say). None = unknown.
    """

    allowed_ms: float = 0.0
    needed_ms: float | None = None
    now_ms: float | None = None


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """
    Why an invocation waits. ``before``: how many of its function have earlier deadlines; ``decision``: how the
    scheduler sees the GPU instances now, None = it did not answer; ``detail``: the same in words.
    """

    before: int
    paused: str = ""
    decision: Decision | None = None
    detail: str = ""


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """
    Milliseconds, None = not (yet) known: as in ``Server-Timing``, and ``other``: the wait for an instance and for the
    run gate, and the way of the result. ``loading``: the parts of a cold start.
    """

    queue: float | None = None
    schedule: float | None = None
    dispatch: float | None = None
    load: float | None = None
    run: float | None = None
    other: float | None = None
    loading: dict[str, float] = {}


class Side(msgspec.Struct, frozen=True, kw_only=True):
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


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """
    One attempt: its decision, where its time went, and what was predicted of it against what was measured.
    ``job_names``: of those of its ``jobs`` that are of its project. ``finished_at``: when it ended, None = it has not;
    the state ``queued`` says that the invocation waited again then. ``worker_seen_at``: its worker was lost (it died,
    or was cut off), and had reported last in the second from then.
    """

    attempt: int
    gpu: str = ""
    state: State = State("")
    cause: str = ""
    cold: bool | None = None
    batch: int | None = None
    rows: int | None = None
    co_runners: list[str] = []
    jobs: list[str] = []
    job_names: dict[str, str] = {}
    finished_at: datetime | None = None
    worker_seen_at: datetime | None = None
    phases_ms: Phases = msgspec.field(default_factory=Phases)
    predicted: Side | None = None
    measured: Side = msgspec.field(default_factory=Side)
    decision: Decision | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """
    Why an invocation went as it did. ``summary``: in words; ``slack_s``: seconds from its finish to its deadline;
    ``complete`` False: the history does not have all of it yet, ask again; ``traceback``: of an error that its handler
    raised, as long as its result is kept.
    """

    id: str
    function: str = ""
    revision: int = 0
    state: State = State("")
    cause: str = ""
    summary: str = ""
    traceback: str = ""
    rows: int = 0
    arrival_at: datetime | None = None
    deadline_at: datetime | None = None
    finished_at: datetime | None = None
    slack_s: float | None = None
    gate: GateKnew = msgspec.field(default_factory=GateKnew)
    waits: Waits | None = None
    attempts: list[Attempt] = []
    complete: bool = False


class Functions(msgspec.Struct, frozen=True, kw_only=True):
    functions: list[Function]


class Warm(msgspec.Struct, frozen=True, kw_only=True):
    """A handler that is loaded on a GPU instance; ``idle_s``: seconds since its last run."""

    function: str
    revision: int = 0
    state: str = ""
    memory_mib: float = 0.0
    idle_s: float = 0.0


class GpuJob(msgspec.Struct, frozen=True, kw_only=True):
    """A training on a GPU instance, as its worker reports it; ``guest``: another one was there first, its host."""

    id: str
    project: str = ""
    guest: bool = False


class Stranger(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU instance that nobody registered: until it is ``allowed`` nothing is placed beside it."""

    pid: int
    name: str = ""
    memory_mib: float = 0.0
    allowed: bool = False


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """
    A GPU instance as of its last report. ``utilisation`` and ``function_utilisation``: 0 to 1 over the last heartbeat,
    by the counter ``utilisation_counter``; ``counters``: every counter of the device by its name. ``health``: why
    nothing can run on the device, "" = it works. ``draining``: nothing more is placed there and idle instances are
    unloaded; ``drained``: nothing runs, trains or is loaded there any more. ``warm``: of the caller's project.
    ``trainings`` are there; ``jobs``: those of them of the caller's project, for operators of all projects.
    ``strangers`` None = it cannot tell who computes on it, as on CPU partitions.
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
    counters: dict[str, float] = {}
    health: str = ""
    memory_used_mib: float = 0.0
    memory_total_mib: float = 0.0
    paused: bool = False
    draining: bool = False
    drained: bool = False
    reported_at: datetime | None = None
    warm: list[Warm] = []
    trainings: int = 0
    jobs: list[GpuJob] = []
    strangers: list[Stranger] | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    gpus: list[Gpu]


class InvocationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One request to run a function. ``cause``: the code of why it ended as it did, ``ok`` = it succeeded, '' = it has not
    ended; of one that waits again, why its last attempt ended. ``attempt``: how often it was started; ``output``: only
    where it succeeded with a JSON result that is still kept; ``late_ms``: milliseconds from its deadline to its end, 0
    = it was in time, or has not ended; ``traceback``: where its handler raised an error, the frames of the handler's
    own code as Python prints them; ``field``: where its input is not what the handler takes, the first place in it.
    ``cold``: whether its last attempt had to load the handler, None = it has not run, or that is not known;
    ``project``: only in lists.
    """

    id: str
    state: State = State("")
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


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the job scheduler expects of a job that is not over. ``place`` in the queue, from 1; 0 = it is on ``gpus``.

    It starts at ``start_at`` and ends at ``end_at`` if nobody shorter comes, whom the plan does not know; at
    ``start_late_at`` and ``end_late_at`` if each training before it takes its ``length_90_s``; None = nobody can say.
    ``length_s`` is left of it, in one case of ten more than ``length_90_s``. ``source`` of that: ``measured``
    (iterations left and their time now), ``profile`` (iterations and the profile's time), ``declared`` (the duration
    that its owner said), ``name``, ``project`` or ``platform`` (the median of their last runs), ``assumed`` (nothing is
    known).

    ``waited_s``: so far. ``why`` it waits (``held``, ``back_off``, ``limit``, ``pinned``, ``home``, ``too_few``,
    ``busy``, ``kept``, ``order``, ``stopping``, ``none``), and in words ``message``. ``beside``: the jobs (ids) with
    which it shares GPU instances; it is their ``guest`` where they were there first, else their host.
    """

    place: int = 0
    gpus: list[str] = []
    start_at: datetime | None = None
    start_late_at: datetime | None = None
    end_at: datetime | None = None
    end_late_at: datetime | None = None
    length_s: float = 0.0
    length_90_s: float = 0.0
    source: str = ""
    waited_s: float = 0.0
    why: str = ""
    message: str = ""
    beside: list[str] = []
    guest: bool = False


class Outcome(OpenEnum):
    """
    How a job ended: ``succeeded`` with exit code 0, ``failed`` with another one, ``killed`` by a signal, ``stopped`` by
    its owner; ``refused``: the platform never started or watched it; ``detached``: it watches it no longer; or
    ``unknown``.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    STOPPED = "stopped"
    REFUSED = "refused"
    DETACHED = "detached"
    UNKNOWN = "unknown"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """
    A serverful job. ``state``: ``queued``, ``held`` (waits until it is released), ``starting``, ``running``,
    ``stopping``, ``ended``, ``lost``. ``count``, ``device``, ``iterations_wanted``, ``duration_s``, ``restarts``,
    ``grace_s``, ``share`` and ``micro_batches`` are what was asked for. ``attempt``: its starts so far, of which
    ``restarted`` after failures; ``expected``: what the job scheduler said of it last, None = nothing, or it is over.

    ``iterations``: done, over all attempts, and never fewer than before: those that an attempt makes again because they
    came after its checkpoint count once. ``checkpoint``: those that its last complete checkpoint holds, with which
    another attempt begins; 0 = it has written none. Iteration times are means in seconds over the last window:
    ``solo_s`` while no function ran beside it, ``shared_s`` while one did; of several GPU instances the slowest counts.
    ``degradation`` = shared / solo - 1, None = not known yet.

    ``loss`` is what functions cost it by the last ``loss_windows`` closed windows, with its 95 % interval: a fraction
    like ``budget``, None = not enough data; ``GET /v1/jobs/{id}/statement`` covers its whole life.

    ``suspended``: a signal (SIGSTOP) has stopped it; it lives and makes no steps until it is continued.

    ``unseen``: why it counts for nothing, None = it counts. It says that it runs elsewhere, and no GPU worker sees its
    process: functions run as if it was not there until an operator allows it (``POST /v1/jobs/{id}/allow``).

    ``source``: ``started`` by the platform, ``tracked`` (it runs elsewhere and reports its steps) or ``attached`` (it
    is only watched); ``measured`` False: without steps its loss cannot be measured.

    ``beside_now``: other trainings that train on its GPU instances now, and that nobody placed there; those of other
    projects without their names. A list of jobs leaves it empty.

    ``outcome``, None = it goes on: ``succeeded`` (exit code 0), ``failed`` (another), ``killed`` (by ``signal``;
    ``exit_code`` is minus its number), ``stopped`` (its owner asked for that; what runs elsewhere was let go),
    ``refused`` (it was never started or watched) and ``detached`` (it is watched no longer), both with a ``reason``, or
    ``unknown``: nobody saw how it ended.
    """

    id: str
    name: str = ""
    project: str = ""
    state: str = ""
    argv: list[str] = []
    gpus: list[str] = []
    count: int = 1
    device: str | None = None
    workload: str | None = None
    created_at: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    iterations: int = 0
    checkpoint: int = 0
    iterations_wanted: int | None = None
    duration_s: float | None = None
    restarts: int = 0
    restarted: int = 0
    grace_s: float = 10.0
    share: float = 0.0
    micro_batches: list[int] = []
    attempt: int = 0
    expected: Expected | None = None
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
    suspended: bool = False
    unseen: str | None = None
    outcome: Outcome | None = None
    signal: str | None = None
    reason: str | None = None
    source: str = "started"
    measured: bool = True
    beside_now: list[str] = []


class JobAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """
    One start of all ranks of a job, on ``gpus`` (the rank of each is its place there) of the machines ``nodes``.

    ``up_at``: all ranks ran; ``ended_at``: none of them does any more, None = it goes on. ``micro_batches``: in how
    many parts it ran its batch. ``why`` it ended, and in words ``message``. ``iterations_from`` and ``iterations``: of
    the job, when it began and at its end.
    """

    attempt: int
    gpus: list[str] = []
    nodes: list[str] = []
    started_at: datetime | None = None
    up_at: datetime | None = None
    ended_at: datetime | None = None
    why: str = ""
    message: str = ""
    exit_code: int | None = None
    iterations_from: int = 0
    iterations: int = 0
    micro_batches: int = 1


class JobAttempts(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of a job, the first one first."""

    id: str
    name: str = ""
    attempts: list[JobAttempt] = []


class JobPlace(msgspec.Struct, frozen=True, kw_only=True):
    """
    A GPU instance for a job that waits. ``refused``: why it does not take the job now (``lost``, ``closed``,
    ``attached``, ``busy``, ``kept``, ``device``, ``memory``, ``mig``, ``pinned``, ``home``), None = it would;
    ``message``: in words, to be read behind its name.
    """

    gpu: str
    refused: str | None = None
    message: str = ""


class JobDecision(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the job scheduler decided of a job: ``kind`` start, stop, requeue or finish, and why. ``reasons`` of a start:
    its place in the order of that round, how many before it did not fit (``passed``), and why other GPU instances were
    refused.
    """

    at: datetime
    attempt: int = 0
    kind: str = ""
    gpus: list[str] = []
    message: str = ""
    reasons: dict[str, Any] | None = None


class JobExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """
    Why a job is where it is: in words ``summary``, for a job that runs beside others with what it has lost to them so
    far; what is ``expected``, what stands against a job that waits on each GPU instance (``places``), and the last
    ``decisions``, newest first.
    """

    id: str
    name: str = ""
    state: str = ""
    summary: str = ""
    expected: Expected | None = None
    places: list[JobPlace] = []
    decisions: list[JobDecision] = []


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is not over, where it stands. ``count``: GPU instances that it asks for."""

    place: int
    gpus: list[str] = []
    start_at: datetime | None = None
    start_late_at: datetime | None = None
    end_at: datetime | None = None
    end_late_at: datetime | None = None
    length_s: float = 0.0
    length_90_s: float = 0.0
    source: str = ""
    waited_s: float = 0.0
    why: str = ""
    message: str = ""
    beside: list[str] = []
    guest: bool = False
    id: str = ""
    name: str = ""
    project: str = ""
    state: str = ""
    count: int = 0
    device: str | None = None


class JobQueue(msgspec.Struct, frozen=True, kw_only=True):
    """
    The jobs that are on GPU instances, then those that wait, in their order. A project's key sees its own ones, with
    their places in the whole queue; an operator's key those of all projects.

    ``at``: when the job scheduler published it, None = never; ``leading``: whether one leads now; ``refused``: why none
    can, None = that is not known; ``setting``: the named setting by which it decides. ``kept`` GPU instances are free
    and kept for the job ``kept_for``, None = for none, or for one of another project that the key may not read.
    ``waiting``: jobs of all projects that wait.
    """

    at: datetime | None = None
    leading: bool
    refused: str | None = None
    setting: str = ""
    kept: int = 0
    kept_for: str | None = None
    waiting: int = 0
    jobs: list[QueuedJob] = []


class JobTrial(msgspec.Struct, frozen=True, kw_only=True):
    """
    What would become of a job that came now. ``gpus``: it would start there at once, as the guest of ``beside`` (names
    of the project's jobs, else ids; none = alone); none = it would wait. ``expected``: when it would start and end on
    GPU instances of its own.
    """

    gpus: list[str]
    beside: list[str] = []
    expected: Expected = msgspec.field(default_factory=Expected)


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[Job]
    next_cursor: str | None = None


class Scope(OpenEnum):
    """
    What an API key may do in its project; ``admin`` may manage keys and projects as well.

    ``deploy`` and ``jobs`` run their holder's code on the GPU workers: each equals a shell there. A key has them only
    if it was created with them; the one exception is the operator's key, which a platform creates at its first start.
    """

    INVOKE = "invoke"
    READ = "read"
    DEPLOY = "deploy"
    JOBS = "jobs"
    ADMIN = "admin"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key. ``key``: the secret, only in the answer to its creation."""

    id: str
    name: str = ""
    project: str = ""
    scopes: list[Scope] = []
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    key: str | None = None


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[Key]


class Lifted(msgspec.Struct, frozen=True, kw_only=True):
    """``revisions``: the revisions that may run again."""

    function: str
    revisions: list[int] = []


class LogStream(OpenEnum):
    """Where a line was written; ``smore``: it is the platform's own word, such as that a runner has crashed."""

    STDOUT = "stdout"
    STDERR = "stderr"
    SMORE = "smore"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """
    One line that a function or a job printed. ``id``: its position in the log, which ``Last-Event-ID`` takes; ``at``:
    by the clock of ``node``, the machine of the GPU instance ``gpu``; ``invocations``: of the batch that ran then, none
    = it was not running one: it was loaded, for instance. ``stream`` smore: the platform's own word. ``attempt``: of a
    job, whose standard error is part of its stdout.
    """

    id: str
    at: datetime | None = None
    stream: LogStream = LogStream("")
    text: str = ""
    revision: int = 0
    invocations: list[str] = []
    attempt: int = 0
    gpu: str = ""
    node: str = ""


class LogLines(msgspec.Struct, frozen=True, kw_only=True):
    """The newest lines of a log, the oldest of them first."""

    lines: list[LogLine]


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """``gpus``: the GPU instances that were asked to load or unload."""

    gpus: list[str]


class PlacePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """
    The degradation of both sides when ``k`` invocations of ``function`` at a time run beside ``training`` on one
    device; ``measured``: a measured row, not a prediction. Where ``known`` is False both degradations are assumed, from
    what the function declares or 1.0 for each invocation, and ``*_upper``, which hold for 90 %, are None.
    """

    device: str
    sharing_mode: str = ""
    training: str = ""
    function: str = ""
    k: int = 0
    known: bool = False
    measured: bool = False
    training_degradation: float = 0.0
    training_degradation_upper: float | None = None
    function_degradation: float = 0.0
    function_degradation_upper: float | None = None


class PairPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """
    What two trainings on one GPU instance of one device cost each other, as fractions: an iteration takes 1 + that
    times as long as alone. ``*_upper``: the bound that holds for 90 %; ``measured``: a measured row, not a prediction.
    All are None where ``known`` is False: the two are never put together.
    """

    device: str
    sharing_mode: str = ""
    training: str = ""
    beside: str = ""
    known: bool = False
    measured: bool = False
    training_degradation: float | None = None
    training_degradation_upper: float | None = None
    beside_degradation: float | None = None
    beside_degradation_upper: float | None = None


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """
    ``version``: of the degradation table. ``predictions``: of a training and a function; ``pairs``: of two trainings.
    """

    version: int
    predictions: list[PlacePrediction] = []
    pairs: list[PairPrediction] = []


class PredictorPlace(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the degradation table holds for one device and sharing mode; ``measured``: how many of its training × function
    cells are measured rows; ``measured_trainings``: how many of its training × training cells are, None = it has none.
    """

    device: str
    sharing_mode: str = ""
    trainings: list[str] = []
    functions: list[str] = []
    measured: int = 0
    weights: int = 0
    measured_trainings: int | None = None


class Predictor(msgspec.Struct, frozen=True, kw_only=True):
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


class PrewarmCounts(msgspec.Struct, frozen=True, kw_only=True):
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


class PrewarmHold(msgspec.Struct, frozen=True, kw_only=True):
    """At least ``instances`` stay loaded from ``since`` on; ``until`` None = for ever."""

    since: datetime
    until: datetime | None = None
    instances: int = 0


class PrewarmFunction(msgspec.Struct, frozen=True, kw_only=True):
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
    counts: PrewarmCounts = msgspec.field(default_factory=PrewarmCounts)


class Prewarm(msgspec.Struct, frozen=True, kw_only=True):
    """
    How functions are kept loaded. ``leading`` False: no leader has reported lately; ``forecasts``: the version in use,
    0 = none; ``jumps``: how often the clock was set since the leader began; ``counts``: over all functions since
    ``since``.
    """

    since: datetime
    leading: bool = False
    on: bool = False
    rule: str = ""
    share: float = 0.0
    forecasts: int = 0
    jumps: int = 0
    counts: PrewarmCounts = msgspec.field(default_factory=PrewarmCounts)
    functions: list[PrewarmFunction] = []


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """
    None = no limit.

    ``rate_per_s``: invocations accepted a second, over time; ``burst``: how many of them at once (None = 1); ``depth``:
    invocations that wait; ``concurrency``: invocations that wait or run; ``warm_memory_mib``: memory of all warm
    instances together, MiB; ``jobs``: trainings that wait or run (None = as the platform's settings say);
    ``job_memory_mib``: what is kept for them on all GPU instances together, MiB; ``gpus``: GPU instances that they hold
    at a time; ``weight``: of two trainings that wait, the expected time left is divided by their projects' weights
    (None = 1); ``share``: what another training may cost one of its trainings whose owner says nothing
    (JobRequest.share; None = 0, nobody trains beside it).
    """

    rate_per_s: float | None = None
    burst: int | None = None
    depth: int | None = None
    concurrency: int | None = None
    warm_memory_mib: float | None = None
    jobs: int | None = None
    job_memory_mib: float | None = None
    gpus: int | None = None
    weight: float | None = None
    share: float | None = None


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a project uses now. ``depth``: invocations that wait; ``concurrency``: invocations that wait or run;
    ``warm_memory_mib``: memory of its warm instances; ``jobs``: trainings that wait or run; ``job_memory_mib``: memory
    reserved for them; ``gpus``: GPU instances that they hold.
    """

    depth: int
    concurrency: int = 0
    warm_memory_mib: float = 0.0
    jobs: int = 0
    job_memory_mib: float = 0.0
    gpus: int = 0


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """
    A project. ``limits``: those that were set for it; ``held``: those that hold, the defaults of the platform included;
    ``use``: what it uses, None = not asked for.
    """

    name: str
    created_at: datetime | None = None
    limits: Limits = msgspec.field(default_factory=Limits)
    held: Limits = msgspec.field(default_factory=Limits)
    use: Use | None = None


class Projects(msgspec.Struct, frozen=True, kw_only=True):
    projects: list[Project]


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """``cancelled``: how many invocations were cancelled."""

    cancelled: int


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that no GPU instance runs: its last fault, where and when."""

    function: str
    revision: int = 0
    cause: str = ""
    gpu: str = ""
    at: datetime | None = None


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    revisions: list[Quarantined]


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """
    The invocations of one function that wait. ``oldest_wait_s``: of the hundred with the nearest deadlines;
    ``draining``: nothing new is accepted, what waits is served; ``boost``: what the priority is multiplied by, until
    ``boost_until``, None = until it is ended; ``pinned_to``: the only GPU instances that it may go to, until
    ``pinned_until``.
    """

    function: str
    depth: int = 0
    oldest_wait_s: float = 0.0
    priority: float = 0.0
    paused: bool = False
    draining: bool = False
    boost: float = 1.0
    boost_until: datetime | None = None
    pinned_to: list[str] = []
    pinned_until: datetime | None = None


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[Queue]


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """
    One immutable version of a function. ``error``: why its canary failed, with the log; ``artifact``: the digest of the
    uploaded folder, None = a module of the platform.
    """

    revision: int
    state: str = ""
    entrypoint: str = ""
    created_at: datetime | None = None
    error: str | None = None
    measured: Measured | None = None
    artifact: str | None = None
    requirements: list[str] = []


class Revisions(msgspec.Struct, frozen=True, kw_only=True):
    revisions: list[Revision]


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value."""

    name: str
    created_at: datetime | None = None
    updated_at: datetime | None = None


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    secrets: list[Secret]


class Verdict(OpenEnum):
    """Whether a budget was kept, with 95 % confidence; ``unmeasured``: the job's iterations are not compared."""

    KEPT = "kept"
    NOT_KEPT = "not_kept"
    NOT_PROVEN = "not_proven"
    UNMEASURED = "unmeasured"


class BudgetSpan(msgspec.Struct, frozen=True, kw_only=True):
    """
    A budget that held from ``since`` to ``until``, and what functions cost the job then. ``verdict``: whether it was
    kept, as in a statement.
    """

    since: datetime
    until: datetime | None = None
    budget: float = 0.0
    windows: int = 0
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    verdict: Verdict = Verdict("")


class BudgetStep(msgspec.Struct, frozen=True, kw_only=True):
    """
    One step of the closed loop that keeps a job's budget: from ``at`` on, functions may work for ``duty`` of the time
    on ``gpu``.

    ``step``: open, held (nothing new is placed there), duty_75, duty_50, duty_25, offloaded. ``factor``: what predicted
    losses are multiplied by there.
    """

    at: datetime
    gpu: str = ""
    step: str = ""
    duty: float = 0.0
    factor: float = 0.0


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """
    Another training on the same ``gpus``, ``since`` one of the two came ``until`` one of them ended (None = both go
    on): ``seconds`` so far. ``guest``: this job came to the other one.

    ``predicted`` and ``measured`` (its first minute): how many times longer than alone an iteration takes because of
    it. ``loss`` with its 95 % interval: what it cost over the whole time, a fraction of the iteration time alone;
    without an interval it rests on the profile's iteration time, because the job was never alone; None = not measured,
    and ``unmeasured`` says why. ``held_s``: for how long this job was held back for the other one's sake.
    """

    id: str
    name: str = ""
    guest: bool = False
    gpus: list[str] = []
    since: datetime | None = None
    until: datetime | None = None
    seconds: float = 0.0
    predicted: float | None = None
    measured: float | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    unmeasured: str | None = None
    held_s: float = 0.0


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a job gave and lost, from ``since`` to ``until``.

    ``harvested_s``: seconds of its GPU instances in which functions ran beside it (a batch counts once), for
    ``invocations`` of them. ``loss`` with its 95 % interval rests on ``windows`` closed windows of all attempts; where
    no function ran it is 0, and None = not enough data: then ``missing_windows`` more are needed, which takes about
    ``missing_s`` (None = cannot be told yet). Of several ranks the one with the highest bound counts. ``kept``: whether
    the bound is within ``budget``.

    Each budget is judged by the windows of its own time. ``past_budgets``: those that held before, the first one first;
    where one of them was not kept ``verdict`` is ``not_kept`` for good, else it is that of ``budget``, whose windows
    ``missing_windows`` and ``windows_to_go`` count.

    ``verdict``: ``kept`` or ``not_kept``, with 95 % confidence; ``not_proven``: ``windows_to_go`` more closed windows
    are needed, which takes about ``to_go_s`` (None = cannot be told, or the job is over); ``unmeasured``: its
    iterations are not compared. ``steps``: the last hundred of the closed loop, the newest first. ``beside``: with
    which other trainings it shared GPU instances, the first ones first; ``loss`` to functions says nothing of those.
    ``summary`` says it in words.
    """

    id: str
    name: str = ""
    state: str = ""
    budget: float = 0.0
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
    verdict: Verdict = Verdict("")
    missing_windows: int = 0
    missing_s: float | None = None
    windows_to_go: int | None = None
    to_go_s: float | None = None
    past_budgets: list[BudgetSpan] = []
    steps: list[BudgetStep] = []
    beside: list[Beside] = []
    summary: str = ""


class TraceFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One function of a trace. ``source``: its name in the file; ``arrivals``: all of them."""

    function: str
    source: str = ""
    arrivals: int = 0


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Imported arrivals, which count as having come from ``since`` until ``until``; ``digest``: SHA-256 of the file."""

    id: int
    name: str = ""
    digest: str = ""
    created_at: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None
    functions: list[TraceFunction] = []


class TraceRemoved(msgspec.Struct, frozen=True, kw_only=True):
    id: int


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    traces: list[Trace]
