"""
What the API answers. Generated from the OpenAPI document by tools/client_types.py: change api/schemas and run `make fmt`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import msgspec


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
    """The job that a running training has become."""

    id: str
    """The id of the job, to which its steps are sent"""
    gpu: str = ""
    """The name of the GPU instance that it counts on"""
    beside_now: list[str] = []
    """Other trainings that train there now; those of other projects without their names"""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change that a person or a program made."""

    id: int
    """The number of the entry; later changes have higher ones"""
    at: datetime | None = None
    """When the change was made"""
    project: str = ""
    """The project in which it was made"""
    key_id: str = ""
    """The id of the API key that made it"""
    route: str = ""
    """Method and path template of the request"""
    target: str = ""
    """What was changed, as ``KIND/NAME``"""
    before: dict[str, Any] | None = None
    """The changed part as it was; None = it did not exist"""
    after: dict[str, Any] | None = None
    """The changed part as it became; None = it does not exist any more"""
    request_id: str = ""
    """The ``X-Request-Id`` of the request, by which the gateway's log has it"""
    session: str | None = None
    """The browser's session of that key by which it was made; None = by the key itself"""
    key_name: str | None = None
    """The name that the key has now; None = it has none, or is another project's"""
    target_name: str | None = None
    """The name that the changed job has now; None = no job, no such name, or another project's"""


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the record of changes."""

    entries: list[AuditEntry]
    """The changes, the newest first"""
    next_cursor: int | None = None
    """The ``cursor`` that asks for the next page; None = this is the last one"""


class BlobState(msgspec.Struct, frozen=True, kw_only=True):
    """How far the upload of a blob has come."""

    digest: str
    """The SHA-256 of the whole blob, lower-case hex"""
    complete: bool = False
    """Whether all bytes have arrived and their SHA-256 is ``digest``"""
    offset: int = 0
    """Bytes that have arrived, where the next part begins"""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """
    What was told of functions' degradation, against what was measured: warm runs, the newest first. Fractions: 0.1 =
    ten per cent slower. Columns: the n-th values belong together.
    """

    at: list[float]
    """When each run ended, seconds since 1970"""
    function: list[str] = []
    """The function, as ``project/name``"""
    device: list[str | None] = []
    """The device on which it ran"""
    told: list[float] = []
    """The degradation that the decision expected"""
    bound: list[float] = []
    """The bound of ``told`` that holds for 90 %"""
    measured: list[float] = []
    """The degradation that was measured"""
    within: float | None = None
    """The part of them that stayed within its bound; about 0.9 is expected. None = there is none"""
    assumed: int = 0
    """Runs that were not compared, because their time alone was assumed"""


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


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request this is."""

    key: str
    """The id of the API key"""
    name: str = ""
    """The name that the key was given, for people"""
    project: str = ""
    """The project that the key belongs to"""
    scopes: list[Scope] = []
    """What this request may do: of a session the scopes that it was opened with"""
    operator: bool = False
    """Whether it reaches other projects: it has the scope ``admin`` in the project ``default``"""


class SessionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """From when to when a session lasts."""

    created_at: datetime
    """When the login was"""
    expires_at: datetime | None = None
    """When the session ends at the latest"""


class Caller(Me, frozen=True, kw_only=True):
    """Who calls, and by which means."""

    session: SessionSpan | None = None
    """The session of a browser; None = the request has the API key itself"""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One named tensor."""

    name: str
    """The tensor's name, unique among the inputs or outputs"""
    datatype: str = ""
    """A datatype of the Open Inference Protocol"""
    shape: tuple[int, ...] = ()
    """The sizes of its axes; the first is -1 (rows), -1 elsewhere is any size"""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """How many instances of a function stand ready, and for how long."""

    min_warm: int
    """Instances that stay loaded, over all GPU instances"""
    max_warm: int = 0
    """The most instances on each GPU instance"""
    keep_alive_s: float = 0.0
    """Seconds that an idle instance stays loaded; -1 = for ever"""
    prewarm: str = ""
    """Who decides when instances are loaded ahead of arrivals: ``auto``, ``off`` or ``paper``"""


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function, as the revision that takes its traffic has it."""

    name: str
    """The name under which it is called, unique in its project"""
    project: str = ""
    """The project whose keys may call it"""
    revision: int = 0
    """The number of the revision that takes the traffic; 0 = none yet"""
    entrypoint: str = ""
    """The handler's class as ``module:Class``"""
    deadline_ms: float | None = None
    """Milliseconds from arrival to the deadline, where a call names none; None = no revision takes traffic"""
    precedence: bool = False
    """Whether it comes before the trainings beside it, as far as their budgets go"""
    inputs: list[TensorSpec] | None = None
    """The tensors that it takes; None = JSON values"""
    outputs: list[TensorSpec] | None = None
    """The tensors that it returns; None = JSON values"""
    scaling: Scaling | None = None
    """How many instances stand ready; None = no revision takes traffic"""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the first run of a revision measured; None = not measured."""

    inputs: list[TensorSpec] | None = None
    """The tensors that it took; None = JSON values"""
    outputs: list[TensorSpec] | None = None
    """The tensors that it returned; None = JSON values"""
    load_ms: float | None = None
    """Milliseconds of the load, without what prepares its process and environment"""
    phases_ms: dict[str, float] = {}
    """Milliseconds of each phase of the load, by name"""
    run_ms: float | None = None
    """Milliseconds of one run of the example"""
    examples_ms: float | None = None
    """Milliseconds of all runs of the example, that of the load included"""
    memory_mib: float | None = None
    """Memory that the runner held after the runs, MiB"""
    peak_mib: float | None = None
    """The most of the machine's memory that it had held, MiB"""
    limit_mib: float | None = None
    """The most of the machine's memory that it may hold, MiB"""
    packages: list[str] = []
    """The versions of the required packages that function.yaml leaves open"""
    input_schema: dict[str, Any] | None = None
    """The JSON Schema of one input; None = the handler declares none"""
    output_schema: dict[str, Any] | None = None
    """The JSON Schema of one output; None = the handler declares none"""
    example: Any = None
    """The handler's example as a caller would send it; None = it is above 4 KiB, or JSON cannot say it"""


class Deployed(Function, frozen=True, kw_only=True):
    """The function after a deploy."""

    created: bool = False
    """Whether this deploy made the revision; False: the same one was there already"""
    measured: Measured | None = None
    """What the revision's first run measured; None = nothing"""
    changed: list[str] = []
    """How its inputs and outputs differ from those of the revision before, in words"""
    warnings: list[str] = []
    """What keeps calls from being served now or soon may, in words"""


class Degradation(msgspec.Struct, frozen=True, kw_only=True):
    """What an invocation and the training beside it cost each other. Fractions: 0.1 = ten per cent slower."""

    function: float
    """How much slower the function runs than alone"""
    function_upper: float = 0.0
    """The bound of ``function`` that holds for 90 %"""
    training: float = 0.0
    """How much slower the training becomes because of all functions beside it"""
    training_upper: float = 0.0
    """The bound of ``training`` that holds for 90 %"""
    known: bool = False
    """Whether this is from the degradation table, not declared or assumed"""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """
    One GPU instance as a decision weighed it. Degradations are fractions: 0.1 = ten per cent slower. None = unknown.
    """

    gpu: str
    """The name of the GPU instance"""
    warm: bool = False
    """Whether an idle instance of the function stood ready there"""
    delay_s: float | None = None
    """Seconds until the invocation could start there"""
    run_s: float | None = None
    """Seconds of its run there with nothing beside it"""
    finish_at: datetime | None = None
    """When it would have ended there"""
    impact: float | None = None
    """What the batch would cost the training, itself and the other batches there, weighed; the least is the best"""
    function_degradation: float | None = None
    """How much slower the function runs there than alone"""
    function_degradation_upper: float | None = None
    """The bound of ``function_degradation`` that holds for 90 %"""
    training_degradation: float | None = None
    """How much slower the training there becomes because of all functions beside it"""
    training_degradation_upper: float | None = None
    """The bound of ``training_degradation`` that holds for 90 %"""
    known: bool = False
    """Whether the degradations are from the degradation table, not declared or assumed"""
    refusal: str | None = None
    """The code of why it was not acceptable; None = it was"""


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shadow policy, which decides nothing, would have placed the batch."""

    policy: str
    """The name of the shadow policy"""
    gpu: str | None = None
    """The GPU instance that it would have chosen; None = none"""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons of one decision."""

    at: datetime | None = None
    """When it was decided; None in a dry run"""
    policy: str = ""
    """The name of the policy that decided"""
    table: int = 0
    """The version of the degradation table that it used; 0 = none"""
    seed: int = 0
    """The seed of the policy's random choices"""
    priority: float | None = None
    """The function's priority then; None = the policy has none"""
    candidates: list[Candidate] = []
    """The best of the GPU instances that were weighed, the chosen one first"""
    refused: dict[str, int] = {}
    """How many GPU instances were refused, by the code of the reason"""
    shadow: Shadow | None = None
    """Where a shadow policy would have placed the batch; None = there is none"""
    work_class: str | None = None
    """Of work of class batch, whether it was in its turn because of its deadline; None = it is of class standard"""


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of an invocation; nothing was placed."""

    outcome: str
    """
    ``placed`` (at once, on ``gpu``), ``waits`` (taken, and placed when what ``decision.refused`` names has changed),
    ``refused`` (by the gate), ``late`` (taken, and would expire)
    """
    reason: str = ""
    """
    A stable code, '' where it would be placed: the ``code`` of the error that an invocation would get (``draining``,
    ``quarantined``, ``limit_reached``, ``queue_full``, ``slo_infeasible``, ``deadline_expired``) or what it would wait
    for (``paused``, or as ``decision.refused`` names it: ``pinned`` where there are no GPU instances but those that it
    may not go to)
    """
    feasible: bool = False
    """
    Whether its deadline can be met as things are; False where it would wait for somebody to end a pause, a drain or a
    pin
    """
    detail: str = ""
    """The outcome and its reason, in words"""
    gpu: str | None = None
    """Where it would run at once; None = nowhere yet"""
    cold: bool | None = None
    """Whether the function would have to be loaded there first; None = it would not be placed at once"""
    start_at: datetime | None = None
    """When it would start; None = it would not be placed at once"""
    finish_at: datetime | None = None
    """When it would end; of one that ``waits`` this counts what waits before it; None = not known"""
    deadline_at: datetime | None = None
    """Until when it would have to end"""
    predicted: Degradation | None = None
    """What it and the training there would cost each other; None = it would not be placed at once"""
    earliest_deadline_ms: float | None = None
    """The earliest deadline that would be accepted, milliseconds from now; None = not known, or not a matter of time"""
    earliest_deadline_at: datetime | None = None
    """``earliest_deadline_ms`` as an instant"""
    decision: Decision = msgspec.field(default_factory=Decision)
    """How the scheduler sees the GPU instances now"""


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


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of any attempt."""

    attempt: int
    """The number of the attempt, from 1"""
    gpu: str = ""
    """The GPU instance that it was sent to"""
    state: State = State("")
    """Where it stands, or how it ended; ``queued`` = the invocation waited again then"""
    cause: str = ""
    """The code of why it ended as it did; '' = it has not ended"""
    cold: bool | None = None
    """Whether the function had to be loaded first; None = not known"""
    batch: int | None = None
    """How many invocations ran in one batch with it, itself included; None = not known"""
    rows: int | None = None
    """Rows of the whole batch; None = not known"""
    co_runners: list[str] = []
    """Functions that ran on the GPU instance at the same time"""
    jobs: list[str] = []
    """The ids of the trainings that ran beside it"""
    finished_at: datetime | None = None
    """When it ended; None = it has not"""


class Execution(Tried, frozen=True, kw_only=True):
    """One attempt of an invocation."""

    run_s: float | None = None
    """Seconds of the handler's run; None = it did not run to its end"""
    predicted: Degradation | None = None
    """What the decision expected of it; None = nothing"""
    degradation: float | None = None
    """
    How much longer it ran than was expected of it alone, a fraction; None where it was cold, did not run to the end, or
    that time was assumed
    """
    started_at: datetime | None = None
    """When its batch started; None = it has not"""


class Executions(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts of an invocation."""

    executions: list[Execution]
    """The attempts of the invocation, the first one first"""


class GateKnew(msgspec.Struct, frozen=True, kw_only=True):
    """What admission compared: times from arrival. None = unknown."""

    allowed_ms: float = 0.0
    """Milliseconds that the deadline left"""
    needed_ms: float | None = None
    """Milliseconds until the earliest feasible finish"""
    now_ms: float | None = None
    """What an invocation would need that arrives now; None also while nothing could be placed (all is paused, say)"""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Why an invocation waits."""

    before: int
    """How many invocations of its function have earlier deadlines"""
    paused: str = ""
    """``function`` or ``platform`` where that is paused, else ''"""
    decision: Decision | None = None
    """How the scheduler sees the GPU instances now; None = it did not answer"""
    detail: str = ""
    """What it waits for, in words"""


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of an attempt by phase, as in ``Server-Timing``; None = not (yet) known."""

    queue: float | None = None
    """From the arrival, or from the end of the attempt before, to the claim by the scheduler, without ``schedule``"""
    schedule: float | None = None
    """What the decision itself took"""
    dispatch: float | None = None
    """From the decision until the GPU worker started on it"""
    load: float | None = None
    """Loading the function; 0 = an instance stood ready"""
    run: float | None = None
    """The run of the handler"""
    other: float | None = None
    """The wait for an instance and for the run gate, and the way of the result"""
    loading: dict[str, float] = {}
    """The parts of the load of a cold start, by name"""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What was predicted of an attempt, or what was measured. Degradations are fractions: 0.1 = ten per cent slower."""

    run_s: float | None = None
    """Seconds of the run, with what slowed it down"""
    finish_at: datetime | None = None
    """When it would end, or ended"""
    slack_s: float | None = None
    """Seconds from its finish to its deadline; negative = late"""
    function_degradation: float | None = None
    """How much slower the function ran, or would run, than alone"""
    function_degradation_upper: float | None = None
    """The bound of ``function_degradation`` that holds for 90 %; of a prediction only"""
    training_degradation: float | None = None
    """How much slower the training beside it became, or would become"""
    training_degradation_upper: float | None = None
    """The bound of ``training_degradation`` that holds for 90 %; of a prediction only"""
    known: bool | None = None
    """Whether the prediction is from the degradation table; None = measured"""


class Attempt(Tried, frozen=True, kw_only=True):
    """One attempt: its decision, where its time went, and what was predicted of it against what was measured."""

    job_names: dict[str, str] = {}
    """The names of those of ``jobs`` that are of its project, by id"""
    worker_seen_at: datetime | None = None
    """
    Its worker was lost (it died, or was cut off), and had reported last in the second from then; None = it was not
    """
    phases_ms: Phases = msgspec.field(default_factory=Phases)
    """Where its time went, phase by phase"""
    predicted: Side | None = None
    """What the decision expected of it; None = no decision is known"""
    measured: Side = msgspec.field(default_factory=Side)
    """What it came to; a None member was not measured"""
    decision: Decision | None = None
    """The decision that placed it, with its reasons; None = not known"""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an invocation went as it did."""

    id: str
    """The id of the explained invocation"""
    function: str = ""
    """The name of the function that it called"""
    revision: int = 0
    """The number of the revision that ran, or is to run"""
    state: State = State("")
    """Where it stands, or how it ended"""
    cause: str = ""
    """The code of why it ended as it did, ``ok`` = it succeeded; '' = it has not ended"""
    summary: str = ""
    """What became of it, in a few sentences"""
    traceback: str = ""
    """Of an error that its handler raised, as long as its result is kept"""
    rows: int = 0
    """How many rows its input has; of JSON values 1"""
    arrival_at: datetime | None = None
    """When the request reached the gateway"""
    deadline_at: datetime | None = None
    """Until when it must have ended"""
    finished_at: datetime | None = None
    """When it ended; None = it has not"""
    slack_s: float | None = None
    """Seconds from its finish to its deadline; negative = late, None = it has not ended"""
    gate: GateKnew = msgspec.field(default_factory=GateKnew)
    """What admission compared when it arrived"""
    waits: Waits | None = None
    """What it waits for; None = it does not wait"""
    attempts: list[Attempt] = []
    """Its attempts, the first one first"""
    complete: bool = False
    """Whether the history has all of it; False: ask again"""


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a series."""

    since: datetime
    """When the first step begins; later than was asked for where nothing older is kept"""
    until: datetime | None = None
    """Until when it goes; the last step may be under way, and the last two minutes are not whole yet"""
    step_s: int = 0
    """Seconds of a step; more than were asked for where they would be over 1,500"""
    at: list[int] = []
    """When each step begins, seconds since 1970"""


class FunctionForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The arrivals that are expected of a function."""

    since: datetime
    """When the first of its steps begins"""
    step_s: int = 0
    """Seconds of a step of the forecast"""
    source: str = ""
    """The forecaster that was best in its backtest"""
    mean: list[float | None] = []
    """Expected arrivals in each step; None = nothing can be said"""
    any: list[float | None] = []
    """The chance of at least one; None = nothing can be said"""


class FunctionSeries(Steps, frozen=True, kw_only=True):
    """
    Invocations of a function over time: arrivals when they arrived, all else when they ended. None = nobody counted, or
    there was none to take a mean of.
    """

    function: str = ""
    """The name of the function"""
    project: str = ""
    """The project of the function"""
    revision: int | None = None
    """The revision that it is of; None = all of them"""
    arrivals: list[int | None] = []
    """Invocations that arrived, of whatever revision"""
    succeeded: list[int | None] = []
    """Invocations that ended in each step and succeeded"""
    failed: list[int | None] = []
    """Invocations that ended in each step otherwise"""
    met: list[int | None] = []
    """Those of ``succeeded`` that kept their deadlines"""
    cold: list[int | None] = []
    """Cold starts among those that ran"""
    cold_reasons: dict[str, list[int | None]] = {}
    """Cold starts by reason, ``unknown`` = nobody said; None = there was none. {} where one revision is asked for"""
    wait_s: list[float | None] = []
    """Mean seconds from the arrival to the start, of those that succeeded"""
    load_s: list[float | None] = []
    """Mean seconds of a cold start"""
    run_s: list[float | None] = []
    """Mean seconds of a run; that of a batch is shared among its members"""
    whole_s: list[float | None] = []
    """Mean seconds from the arrival to the end, of those that succeeded"""
    worst_s: list[float | None] = []
    """The longest of these"""
    p50: list[float | None] = []
    """Half of these took no longer, seconds, within 10 %; None also of minutes from before there was a histogram"""
    p95: list[float | None] = []
    """95 % of them took no longer, as ``p50``"""
    p99: list[float | None] = []
    """99 % of them took no longer, as ``p50``"""
    forecast: FunctionForecast | None = None
    """The arrivals of the minutes to come; None = there is no forecast"""


class Functions(msgspec.Struct, frozen=True, kw_only=True):
    """All functions of a project."""

    functions: list[Function]
    """The functions in the order of their names"""


class WarmLife(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a function had warm instances on a GPU instance, loads included."""

    project: str
    """The project of the function"""
    function: str = ""
    """The name of the function"""
    since: float = 0.0
    """When the load of the first was asked for, seconds since 1970"""
    until: float | None = None
    """When the last of them ended, seconds since 1970; None = one is there"""


class GpuLanes(Steps, frozen=True, kw_only=True):
    """What was on a GPU instance over time, beside its trainings. None = there was none."""

    gpu: str = ""
    """The name of the GPU instance"""
    warm: list[WarmLife] = []
    """When functions had warm instances there, the newest first; shorter gaps than a step are not told"""
    closed: list[float | None] = []
    """The part of each step in which a closed window kept functions away, 0 to 1"""
    duty: list[float | None] = []
    """The least part of its time in which functions may work that the budget of a training set in each step, 0 to 1"""
    ended: list[int | None] = []
    """Invocations that ended there in each step"""


class GpuColumns(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance over time. None = it did not report."""

    used: list[float | None]
    """How busy the device was, the mean of its reports, 0 to 1"""
    functions: list[float | None] = []
    """The part of ``used`` that functions made"""
    memory_mib: list[float | None] = []
    """The most memory that functions used and that was kept for trainings, MiB"""


class GpuSeries(Steps, frozen=True, kw_only=True):
    """GPU instances over time."""

    gpus: dict[str, GpuColumns] = {}
    """Each GPU instance by its name"""


class Warm(msgspec.Struct, frozen=True, kw_only=True):
    """A handler that is loaded on a GPU instance."""

    function: str
    """The name of the loaded function"""
    revision: int = 0
    """The number of the loaded revision"""
    state: str = ""
    """``loading``, ``idle`` or ``busy`` (a batch runs)"""
    memory_mib: float = 0.0
    """Measured memory of its process on the device, MiB"""
    idle_s: float = 0.0
    """Seconds since its last run"""


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose weights lie in pinned host memory: the next load of its revision comes out of it."""

    function: str
    """The function whose weights they are"""
    revision: int = 0
    """The revision whose weights they are"""
    memory_mib: float = 0.0
    """What its process still holds of the device, MiB"""
    host_mib: float = 0.0
    """What it holds of the host's memory, MiB"""
    left_s: float = 0.0
    """Seconds until it is let go of"""


class GpuJob(msgspec.Struct, frozen=True, kw_only=True):
    """A training on a GPU instance, as its worker reports it."""

    id: str
    """The id of the job"""
    project: str = ""
    """The project that the training belongs to"""
    guest: bool = False
    """Whether another training, its host, was there first"""
    name: str = ""
    """The training's name; '' = the job scheduler has not published it"""
    budget: float = 0.0
    """The most that it may lose to functions, a fraction of its iteration time"""
    loss: float | None = None
    """What it lost lately to functions on this GPU instance, a fraction; None = not enough data"""
    loss_low: float | None = None
    """The lower end of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """The upper end of the 95 % interval of ``loss``"""
    loss_windows: int = 0
    """How many closed windows ``loss`` rests on"""
    iterations: int = 0
    """Iterations that its present attempt has made"""
    held: float = 1.0
    """The part of the time in which it may run beside its host; 1 = freely"""


class Stranger(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU instance that nobody registered: until it is ``allowed`` nothing is placed beside it."""

    pid: int
    """The number of the process on its machine"""
    name: str = ""
    """The name of its program; '' = not known"""
    memory_mib: float = 0.0
    """Memory that it holds of the device, MiB"""
    allowed: bool = False
    """Whether an operator lets functions run beside it"""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance as of its last report."""

    id: str
    """The name of the GPU instance, unique on the platform"""
    kind: str = ""
    """What computes there: ``gpu``, or ``cpu`` for a CPU partition"""
    device: str = ""
    """The model of the device, as profiles and jobs name it"""
    sharing_mode: str = ""
    """By what workloads share the device"""
    slots: int = 0
    """The most batches that may run at a time"""
    running: int = 0
    """Batches that run now"""
    utilisation: float = 0.0
    """How busy the device was over the last heartbeat, 0 to 1, by ``utilisation_counter``"""
    function_utilisation: float = 0.0
    """The part of ``utilisation`` that functions made, 0 to 1"""
    utilisation_counter: str = ""
    """The name of the counter that measured the utilisation"""
    counters: dict[str, float] = {}
    """Every counter of the device by its name"""
    health: str = ""
    """Why nothing can run on the device; '' = it works"""
    memory_used_mib: float = 0.0
    """Memory that functions use and that is kept for trainings, MiB"""
    memory_total_mib: float = 0.0
    """All memory of the device, MiB"""
    memory_warm_mib: float = 0.0
    """Memory of warm instances, those of other projects too, MiB"""
    node: str = ""
    """The name of its machine; '' = not told"""
    duty: float = 1.0
    """The part of the time in which functions may work beside a training, 0 to 1"""
    closed_until: datetime | None = None
    """A closed window is at hand: nothing starts there before this moment at the latest; None = none is"""
    silent_since: datetime | None = None
    """When it reported last, and of it no more than its name is known; None = it reports"""
    paused: bool = False
    """Whether nothing is dispatched there"""
    draining: bool = False
    """Whether nothing more is placed there and idle instances are unloaded"""
    drained: bool = False
    """Whether it is drained and nothing runs, trains or is loaded there any more"""
    reported_at: datetime | None = None
    """When its worker reported this"""
    warm: list[Warm] = []
    """The loaded instances of the caller's project"""
    parked: list[Parked] = []
    """The models of the caller's project in pinned host memory"""
    quarantined: list[str] = []
    """Revisions of the caller's project that it keeps out after crashes, ``FUNCTION@REVISION``"""
    trainings: int = 0
    """How many trainings of all projects are there"""
    jobs: list[GpuJob] = []
    """Those of the trainings that are of the caller's project; for operators all"""
    strangers: list[Stranger] | None = None
    """Processes that nobody registered; None = it cannot tell who computes on it, as on CPU partitions"""


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """All GPU instances that report, or that are asked for while they are silent."""

    gpus: list[Gpu]
    """The GPU instances in the order of their names"""


class Harvested(msgspec.Struct, frozen=True, kw_only=True):
    """What functions got, and what that cost the trainings."""

    key: str
    """The project, the function as ``project/name``, or the GPU instance; '' = it was never dispatched"""
    run_s: float = 0.0
    """Seconds that functions ran, a batch counted once"""
    money: float | None = None
    """What these seconds cost at the prices that were named; None = some of them ran on a device without a price"""
    invocations: int = 0
    """Invocations that came to an end"""
    met: int = 0
    """Those of them that kept their deadlines"""
    cold: int = 0
    """Cold starts among its runs"""
    saved: int = 0
    """Runs that were warm only because an instance was held"""
    lost: float | None = None
    """
    What all its trainings together lost to functions, a fraction of their iteration times; None = too little was
    measured
    """
    lost_low: float | None = None
    """Where the 95 % interval of ``lost`` begins"""
    lost_high: float | None = None
    """Where the 95 % interval of ``lost`` ends"""
    windows: int = 0
    """Closed windows that ``lost`` rests on"""


class HarvestPart(Harvested, frozen=True, kw_only=True):
    """What functions got in one step, and what that cost the trainings."""

    at: int = 0
    """When the step begins, seconds since 1970"""


class HarvestTotal(Harvested, frozen=True, kw_only=True):
    """What functions got in the whole span, and what that cost the trainings."""

    trained_s: float = 0.0
    """Seconds for which trainings held GPU instances, those of each GPU instance and training by themselves"""
    lost_s: float | None = None
    """About how many of these were lost to functions, by ``lost``; None as there"""


class Harvest(msgspec.Struct, frozen=True, kw_only=True):
    """What functions got out of the GPU instances."""

    since: datetime
    """When the first step begins; later than was asked for where nothing older is kept"""
    until: datetime | None = None
    """Until when it is counted"""
    step_s: int = 0
    """
    Seconds of a step, which begin at multiples of them since 1970; more than were asked for where they would be over
    1,500
    """
    parts: list[HarvestPart] = []
    """The parts by ``at`` and ``key``; what came to nothing is left out"""
    totals: list[HarvestTotal] = []
    """The whole span by ``key``"""
    unpriced: list[str] = []
    """Devices on which functions ran and which no price names; '' = not known. [] where none is named"""


class InvocationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request to run a function."""

    id: str
    """The id under which it is asked for"""
    state: State = State("")
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
    """When it ended; None = it has not"""
    late_ms: float = 0.0
    """Milliseconds from its deadline to its end; 0 = it was in time, or has not ended"""
    cold: bool | None = None
    """Whether its last attempt had to load the handler; None = it has not run, or that is not known"""
    project: str | None = None
    """The project that it was made in; only in lists"""
    output: Any = None
    """What the function returned; only where it succeeded with a JSON result that is still kept"""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the job scheduler expects of a job that is not over. None = nobody can say."""

    place: int = 0
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
    As ``end_at``, if it and each training before it take their ``length_90_s``; of one that waits stretched by what
    became of the last 100 that were told so
    """
    length_s: float = 0.0
    """Seconds of training that are left of it"""
    length_90_s: float = 0.0
    """In one case of ten more than so many seconds are left of it"""
    source: str = ""
    """
    What told the length: ``measured`` (iterations left and their time now), ``former`` (iterations and their time in
    former runs), ``profile`` (iterations and the profile's time), ``declared`` (the duration that its owner said),
    ``name``, ``project`` or ``platform`` (the median of their last runs), ``assumed`` (nothing is known)
    """
    waited_s: float = 0.0
    """Seconds that it has waited so far, over all its attempts"""
    why: str = ""
    """
    The code of why it waits (``held``, ``back_off``, ``limit``, ``pinned``, ``home``, ``too_few``, ``busy``, ``kept``,
    ``promised``, ``order``, ``stopping``, ``none``)
    """
    message: str = ""
    """Why it waits, or where it is, in words"""
    beside: list[str] = []
    """The ids of the jobs with which it shares GPU instances"""
    guest: bool = False
    """Whether those ``beside`` it were there first; else it is their host"""
    promised_by: datetime | None = None
    """The moment by which its end is promised; None = none is"""
    at_risk: str | None = None
    """
    Why it is expected to end after ``promised_by`` (``held``, ``beside``, ``longer``, ``closed``, ``others``); None =
    it is not
    """


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


class PromiseState(OpenEnum):
    """
    What has become of a job's promised end: ``none`` was promised; ``kept_so_far``; ``at_risk``: it is expected to end
    later; ``broken``: it has not ended by then, or not succeeded; ``kept``; ``withdrawn``: its owner stopped it.
    """

    NONE = "none"
    KEPT_SO_FAR = "kept_so_far"
    AT_RISK = "at_risk"
    BROKEN = "broken"
    KEPT = "kept"
    WITHDRAWN = "withdrawn"


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What was promised of the end of a training whose owner asked for it, and what has become of it."""

    by: datetime | None = None
    """The moment by which it is to have ended; None = nothing was promised"""
    latest_start_at: datetime | None = None
    """When it was to start at the latest, as of the promise"""
    earliest: datetime | None = None
    """Where nothing was promised: the first moment that would have been; None = none"""
    outcome: PromiseState
    """
    ``none`` was given, ``kept_so_far``, ``at_risk`` (it is expected to end later), ``broken``, ``kept``, ``withdrawn``
    (its owner stopped it)
    """
    why: str | None = None
    """
    What has set it back, puts it at risk or broke it (as ``at_risk`` of ``Expected``; ``host_lost``, ``failed``), or
    why none was given (``unknown`` length, ``length``, ``limit``, ``others``, ``setting``)
    """


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """
    A training that the platform starts or watches.

    Iteration times are means in seconds over the last window; of several GPU instances the slowest counts. What
    functions cost it is a fraction of its iteration time, like ``budget``; ``GET /v1/jobs/{id}/statement`` covers its
    whole life.
    """

    id: str
    """The id of the job, which never changes"""
    name: str = ""
    """Its name, for people; former jobs may have had it too"""
    project: str = ""
    """The project that started or attached it"""
    state: str = ""
    """
    ``queued``, ``held`` (waits until it is released), ``starting``, ``running``, ``stopping``, ``ended``, ``lost``
    """
    argv: list[str] = []
    """The entry point or program, and its arguments"""
    gpus: list[str] = []
    """The GPU instances that it is on, or was on last"""
    count: int = 1
    """How many GPU instances were asked for"""
    device: str | None = None
    """The kind of GPU that was asked for; None = any"""
    workload: str | None = None
    """Which profiled training it is, ``model/size/training/batch``; None = not said"""
    created_at: datetime | None = None
    """When it was submitted or attached"""
    queued_at: datetime | None = None
    """When it began to wait for its next attempt; None = it does not wait"""
    started_at: datetime | None = None
    """When its first attempt started; None = none has"""
    ended_at: datetime | None = None
    """When it ended for good; None = it has not"""
    iterations: int = 0
    """
    Done, over all attempts, and never fewer than before: those that an attempt makes again because they came after its
    checkpoint count once
    """
    checkpoint: int = 0
    """Iterations that its last complete checkpoint holds, with which another attempt begins; 0 = it has written none"""
    iterations_wanted: int | None = None
    """How many iterations it makes in all, as its owner said; None = not said"""
    duration_s: float | None = None
    """How many seconds it takes, as its owner said; None = not said"""
    restarts: int = 0
    """How often it may be started again after failures"""
    restarted: int = 0
    """How often it was started again after failures"""
    grace_s: float = 10.0
    """Seconds from SIGTERM to SIGKILL"""
    share: float = 0.0
    """The most that another training may cost it, a fraction of its iteration time; 0 = none may train beside it"""
    micro_batches: list[int] = []
    """In how many parts its loop can run a batch where memory is short"""
    attempt: int = 0
    """Its starts so far, of which ``restarted`` after failures"""
    expected: Expected | None = None
    """What the job scheduler said of it last; None = nothing, or it is over"""
    told_end_at: datetime | None = None
    """When it was expected to end as it started; None = it has not started, or more than once"""
    told_late_at: datetime | None = None
    """As ``told_end_at``, if it took longer than in nine cases of ten"""
    told_source: str = ""
    """What told that length, as ``source`` of ``Expected``; '' = nothing was told"""
    solo_s: float | None = None
    """Mean seconds of an iteration while no function ran beside it; None = not measured"""
    shared_s: float | None = None
    """Mean seconds of an iteration while a function ran beside it; None = not measured"""
    degradation: float | None = None
    """``shared_s`` / ``solo_s`` - 1; None = not known yet"""
    budget: float = 0.1
    """The most that it may lose to functions, a fraction of its iteration time"""
    loss: float | None = None
    """
    What functions cost it by the last ``loss_windows`` closed windows, a fraction of its iteration time; None = not
    enough data
    """
    loss_low: float | None = None
    """Lower bound of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """Upper bound of the 95 % interval of ``loss``"""
    loss_windows: int = 0
    """How many closed windows ``loss`` rests on"""
    memory_mib: float | None = None
    """Measured memory of all its ranks on their devices, MiB; None = no worker reports it"""
    exit_code: int | None = None
    """The exit code of its last attempt, minus the signal's number where one ended it; None = it has none"""
    suspended: bool = False
    """Whether a signal (SIGSTOP) has stopped it; it lives and makes no steps until it is continued"""
    unseen: str | None = None
    """
    Why it counts for nothing; None = it counts. It says that it runs elsewhere, and no GPU worker sees its process:
    functions run as if it was not there until an operator allows it (``POST /v1/jobs/{id}/allow``)
    """
    outcome: Outcome | None = None
    """
    ``succeeded`` (exit code 0), ``failed`` (another), ``killed`` (by ``signal``), ``stopped`` (its owner asked for
    that; what runs elsewhere was let go), ``refused`` (it was never started or watched), ``detached`` (it is watched no
    longer), ``unknown`` (nobody saw how it ended); None = it goes on
    """
    signal: str | None = None
    """The name of the signal that ended it; None = none did"""
    reason: str | None = None
    """Why it was refused, let go or ended, in words; None = nothing is to be said"""
    source: str = "started"
    """
    ``started`` by the platform, ``tracked`` (it runs elsewhere and reports its steps) or ``attached`` (it is only
    watched)
    """
    measured: bool = True
    """Whether its loss can be measured; False: it tells no steps"""
    beside_now: list[str] = []
    """
    Other trainings that train on its GPU instances now, and that nobody placed there; those of other projects without
    their names. A list of jobs leaves it empty
    """
    promise: Promise | None = None
    """What was promised of its end; None = nothing was asked for, or it is not decided"""


class JobAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One start of all ranks of a job."""

    attempt: int
    """The number of the attempt, from 1"""
    gpus: list[str] = []
    """The GPU instances of its ranks, in the order of the ranks"""
    nodes: list[str] = []
    """The machines of these GPU instances"""
    started_at: datetime | None = None
    """When the job scheduler started it"""
    up_at: datetime | None = None
    """When all ranks ran; None = they never have"""
    ended_at: datetime | None = None
    """When none of its ranks ran any more; None = it goes on"""
    why: str = ""
    """The code of why it ended; '' = it goes on"""
    message: str = ""
    """Why it ended, in words"""
    exit_code: int | None = None
    """The exit code of its ranks, minus the signal's number where one ended them; None = not known"""
    iterations_from: int = 0
    """Iterations of the job when the attempt began"""
    iterations: int = 0
    """Iterations of the job at the end of the attempt"""
    micro_batches: int = 1
    """In how many parts it ran its batch"""


class JobAttempts(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts of a job."""

    id: str
    """The id of the job"""
    name: str = ""
    """The name of the job"""
    attempts: list[JobAttempt] = []
    """The attempts of the job, the first one first"""


class JobPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance for a job that waits."""

    gpu: str
    """The name of the GPU instance"""
    refused: str | None = None
    """
    Why it does not take the job now (``lost``, ``closed``, ``attached``, ``busy``, ``kept``, ``device``, ``memory``,
    ``mig``, ``pinned``, ``home``); None = it would
    """
    message: str = ""
    """``refused`` in words, to be read behind the name"""


class JobDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the job scheduler decided of a job, and why."""

    at: datetime
    """When it was decided"""
    attempt: int = 0
    """The number of the attempt that it was about; 0 = none has begun"""
    kind: str = ""
    """``start``, ``stop``, ``requeue`` or ``finish``"""
    gpus: list[str] = []
    """The GPU instances that it was about"""
    message: str = ""
    """Why it was decided, in words"""
    reasons: dict[str, Any] | None = None
    """
    Of a start: its place in the order of that round, how many before it did not fit (``passed``), and why other GPU
    instances were refused; None of others
    """


class JobExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is."""

    id: str
    """The id of the job"""
    name: str = ""
    """The name of the job"""
    state: str = ""
    """The state of the job, as ``Job`` has it"""
    summary: str = ""
    """Why it is there in words, with what it has lost to trainings beside it so far"""
    expected: Expected | None = None
    """What the job scheduler expects of it; None = nothing, or it is over"""
    places: list[JobPlace] = []
    """What stands against it on each GPU instance, while it waits"""
    decisions: list[JobDecision] = []
    """What was decided of it last, the newest first"""


class QueuedJob(Expected, frozen=True, kw_only=True):
    """A job that is not over, where it stands."""

    id: str = ""
    """The id of the job"""
    name: str = ""
    """The name of the job"""
    project: str = ""
    """The project that the job belongs to"""
    state: str = ""
    """The state of the job, as ``Job`` has it"""
    count: int = 0
    """How many GPU instances it asks for"""
    device: str | None = None
    """The kind of GPU that it asks for; None = any"""


class JobQueue(msgspec.Struct, frozen=True, kw_only=True):
    """
    The jobs that are on GPU instances, then those that wait, in their order. A project's key sees its own ones, with
    their places in the whole queue; an operator's key those of all projects.
    """

    at: datetime | None = None
    """When the job scheduler published the queue; None = never"""
    leading: bool
    """Whether a job scheduler leads now"""
    refused: str | None = None
    """Why no job scheduler can lead; None = that is not known, or one does"""
    setting: str = ""
    """The named setting by which the job scheduler decides"""
    kept: int = 0
    """Free GPU instances that are kept for one job"""
    kept_for: str | None = None
    """
    The id of the job for which they are kept; None = none are, or it is of another project that the key may not read
    """
    waiting: int = 0
    """How many jobs of all projects wait"""
    jobs: list[QueuedJob] = []
    """Those of the jobs that the key may read"""


class JobSeries(Steps, frozen=True, kw_only=True):
    """A job over time, over all its attempts. None = it did not report, or there was nothing to measure."""

    id: str = ""
    """The id of the job"""
    name: str = ""
    """The name of the job"""
    budget: float = 0.0
    """What it may lose to functions now, a fraction of its iteration time"""
    alone_s: list[float | None] = []
    """Mean seconds of an iteration without a function beside it"""
    beside_s: list[float | None] = []
    """Mean seconds of an iteration beside functions"""
    iterations: list[int | None] = []
    """How many iterations it had done"""
    duty: list[float | None] = []
    """The part of the time in which functions might run beside it, as its budget left it; None = no step was taken"""
    harvested_s: list[float | None] = []
    """Seconds that functions ran beside it, a batch counted once"""
    lost: list[float | None] = []
    """What it had lost to functions from its beginning to the end of the step, a fraction of its iteration time"""
    lost_low: list[float | None] = []
    """Where the 95 % interval of ``lost`` begins"""
    lost_high: list[float | None] = []
    """Where the 95 % interval of ``lost`` ends"""


class JobTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a job that came now."""

    gpus: list[str]
    """The GPU instances on which it would start at once; none = it would wait"""
    beside: list[str] = []
    """The trainings whose guest it would be there: names of the project's jobs, else ids; none = alone"""
    expected: Expected = msgspec.field(default_factory=Expected)
    """When it would start and end on GPU instances of its own"""
    earliest_promise_at: datetime | None = None
    """
    The end that would be promised now: the one of ``by`` or, where none is asked for or it cannot be, the earliest;
    None = none
    """
    no_promise: str | None = None
    """Why the end of ``by``, or any, would not be promised; None = it would"""


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs."""

    jobs: list[Job]
    """The jobs, the newest first"""
    next_cursor: str | None = None
    """The ``cursor`` that asks for the next page; None = this is the last one"""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key."""

    id: str
    """The id by which it is revoked; no secret"""
    name: str = ""
    """The name that it was given, for people"""
    project: str = ""
    """The project whose functions and jobs it reaches"""
    scopes: list[Scope] = []
    """What it may do"""
    created_at: datetime | None = None
    """When it was made; None in the answer to its creation"""
    revoked_at: datetime | None = None
    """When it was revoked; None = it holds"""
    key: str | None = None
    """The secret, only in the answer to its creation"""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The API keys of a project."""

    keys: list[Key]
    """The keys, the newest first, revoked ones included"""


class Lifted(msgspec.Struct, frozen=True, kw_only=True):
    """The revisions that may run again."""

    function: str
    """The name of the function"""
    revisions: list[int] = []
    """The numbers of the revisions"""


class LogStream(OpenEnum):
    """Where a line was written; ``smore``: it is the platform's own word, such as that a runner has crashed."""

    STDOUT = "stdout"
    STDERR = "stderr"
    SMORE = "smore"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that a function or a job printed."""

    id: str
    """Its position in the log, which ``Last-Event-ID`` takes"""
    at: datetime | None = None
    """When it was printed, by the clock of the machine ``node``"""
    stream: LogStream = LogStream("")
    """
    Where it was written; ``smore`` is the platform's own word. The standard error of a job is part of its ``stdout``
    """
    text: str = ""
    """What was printed, without the line's end"""
    revision: int = 0
    """The number of the function's revision; 0 = a job printed it"""
    invocations: list[str] = []
    """The ids of the batch that ran then; none = none ran: the handler was loaded, for instance"""
    attempt: int = 0
    """The attempt of the job that printed it; 0 = a function did"""
    gpu: str = ""
    """The GPU instance on which it was printed"""
    node: str = ""
    """The machine of that GPU instance"""


class LogLines(msgspec.Struct, frozen=True, kw_only=True):
    """The newest lines of a log."""

    lines: list[LogLine]
    """The lines, the oldest first"""


class LoginCode(msgspec.Struct, frozen=True, kw_only=True):
    """A code that opens one session of the key, once."""

    code: str
    """The code, for the fragment of the address ``/ui/login#CODE``"""
    expires_at: datetime | None = None
    """Until when it can be used"""


class Opened(Me, frozen=True, kw_only=True):
    """A new session. The other half of it is the cookie of this answer."""

    session: str = ""
    """The half that the page sends as ``X-SMore-Session`` with every request; only in this answer"""
    expires_at: datetime | None = None
    """The last moment of the session"""


class JobState(OpenEnum):
    """
    A job waits (``queued``, ``held`` back by its owner), is on GPU instances (``starting`` until each rank is reported,
    ``running``, ``stopping``), or is over: ``ended`` as its ranks reported, ``lost`` where nobody saw how.
    """

    QUEUED = "queued"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    LOST = "lost"


class PastAttempt(JobAttempt, frozen=True, kw_only=True):
    """An attempt of a job, with the job and what was expected of it when it started."""

    job: str = ""
    """The id of the job whose attempt it is"""
    name: str = ""
    """The name of the job"""
    project: str = ""
    """The project of the job"""
    state: JobState = JobState("")
    """Where the job stands now"""
    guest: bool = False
    """Whether it came to another training, its host"""
    told_s: float | None = None
    """How long it was expected to run when it started, seconds; None = that is not kept: a later attempt has started"""
    told_90_s: float | None = None
    """The length that one of ten such jobs exceeds, seconds"""
    told_source: str = ""
    """Where that length came from, as in ``Expected``"""


class PastAttempts(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts of all jobs."""

    attempts: list[PastAttempt]
    """The attempts that were going on in the span, the newest first"""
    more: bool = False
    """Whether there are others that began earlier: ask again with the last one's ``started_at`` as ``until``"""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What a request to load or unload reached."""

    gpus: list[str]
    """The GPU instances that were asked to load or unload"""


class DeviceMode(msgspec.Struct, frozen=True, kw_only=True):
    """A device, and how workloads share it."""

    device: str
    """The model of the device, as ``GET /v1/gpus`` names it"""
    sharing_mode: str = ""
    """By what workloads share the device"""


class PlacePrediction(DeviceMode, frozen=True, kw_only=True):
    """
    The degradation of both sides when invocations run beside a training on one device. Fractions: 0.1 = ten per cent
    slower.
    """

    training: str = ""
    """The workload of the training"""
    function: str = ""
    """The workload of the function"""
    k: int = 0
    """How many invocations run at a time"""
    known: bool = False
    """
    Whether the table covers both; False: degradations are assumed, from what the function declares or 1.0 for each
    invocation
    """
    measured: bool = False
    """Whether this is a measured row, not a prediction"""
    training_degradation: float = 0.0
    """How much slower the training becomes"""
    training_degradation_upper: float | None = None
    """The bound of ``training_degradation`` that holds for 90 %; None where ``known`` is False"""
    function_degradation: float = 0.0
    """How much slower the function runs"""
    function_degradation_upper: float | None = None
    """The bound of ``function_degradation`` that holds for 90 %; None where ``known`` is False"""


class PairPrediction(DeviceMode, frozen=True, kw_only=True):
    """
    What two trainings on one GPU instance of one device cost each other, as fractions: an iteration takes 1 + that
    times as long as alone. None where ``known`` is False: the two are never put together.
    """

    training: str = ""
    """The workload of the one training"""
    beside: str = ""
    """The workload of the other training"""
    known: bool = False
    """Whether the table covers the pair"""
    measured: bool = False
    """Whether this is a measured row, not a prediction"""
    training_degradation: float | None = None
    """How much slower ``training`` becomes"""
    training_degradation_upper: float | None = None
    """The bound of ``training_degradation`` that holds for 90 %"""
    beside_degradation: float | None = None
    """How much slower ``beside`` becomes"""
    beside_degradation_upper: float | None = None
    """The bound of ``beside_degradation`` that holds for 90 %"""


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """What the degradation table says of workloads on each device."""

    version: int
    """The version of the degradation table; 0 = none"""
    predictions: list[PlacePrediction] = []
    """What a training and a function cost each other, device by device"""
    pairs: list[PairPrediction] = []
    """What two trainings cost each other, device by device"""


class PredictorPlace(DeviceMode, frozen=True, kw_only=True):
    """What the degradation table holds for one device and sharing mode."""

    trainings: list[str] = []
    """The profiled trainings, as workloads ``model/size/training/batch``"""
    functions: list[str] = []
    """The profiled functions, as workloads ``model/size/function/rows``"""
    measured: int = 0
    """How many of the training × function cells are measured rows, not predictions"""
    weights: int = 0
    """How many weights were learned for several functions at a time, by which the table corrects their sum"""
    measured_trainings: int | None = None
    """How many of the training × training cells are measured rows; None = it has none"""


class Predictor(msgspec.Struct, frozen=True, kw_only=True):
    """The published degradation table and the predictor behind it."""

    version: int
    """The version of the table; 0 = nothing was published"""
    source: str = ""
    """How the table was made, as a word"""
    created_at: datetime | None = None
    """When the table was published; None = it was not"""
    reason: str = ""
    """Why this predictor was chosen, in words"""
    manifest: dict[str, Any] = {}
    """The data, errors and calibration of the predictor: docs/research/predictor.md explains its members"""
    places: list[PredictorPlace] = []
    """What the table holds, for each device and sharing mode"""


class PredictorState(OpenEnum):
    """At most one is the champion; ``rejected`` never was, ``retired`` and ``rolled_back`` were."""

    CHALLENGER = "challenger"
    CHAMPION = "champion"
    RETIRED = "retired"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


class PredictorVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One fit of the predictor."""

    version: int
    """The number of the version"""
    created_at: datetime | None = None
    """When it was begun"""
    state: PredictorState = PredictorState("")
    """What became of it"""
    reason: str = ""
    """Why it is in that state, in words"""
    manifest: dict[str, Any] = {}
    """Its data, errors and calibration, as ``Predictor`` has them"""


class PredictorVersions(msgspec.Struct, frozen=True, kw_only=True):
    """All fits of the predictor."""

    versions: list[PredictorVersion]
    """The versions, the newest first"""


class PrewarmCounts(msgspec.Struct, frozen=True, kw_only=True):
    """
    What keeping instances loaded achieved and cost. Loads ahead of arrivals are counted by outcome: ``hits``, ``late``,
    ``wasted``, ``failed``, ``open``.
    """

    invocations: int = 0
    """How many attempts of invocations ran"""
    cold: int = 0
    """How many of ``invocations`` waited for a load"""
    hits: int = 0
    """Loads ahead that were ready before the first use"""
    late: int = 0
    """Loads ahead for which a request waited"""
    wasted: int = 0
    """Loads ahead that nothing used"""
    failed: int = 0
    """Loads ahead that did not succeed"""
    open: int = 0
    """Loads ahead whose outcome is not known yet"""
    cold_loads: int = 0
    """Loads that a request asked for"""
    host_loads: int = 0
    """Loads of any kind out of pinned host memory"""
    saved: int = 0
    """Runs that found an instance only because it was loaded ahead or held for longer than its keep-alive"""
    held_gb_s: float = 0.0
    """Memory times time of loaded instances, GB-seconds"""
    idle_gb_s: float = 0.0
    """The part of ``held_gb_s`` without work, loads included"""
    wasted_gb_s: float = 0.0
    """The part of ``idle_gb_s`` by instances that were loaded ahead and never used"""
    unforeseen: dict[str, int] = {}
    """How many of ``cold`` there were by reason, as a code"""


class PrewarmHold(msgspec.Struct, frozen=True, kw_only=True):
    """A span in which instances stay loaded."""

    since: datetime
    """From when on they stay loaded"""
    until: datetime | None = None
    """Until when they stay loaded; None = for ever"""
    instances: int = 0
    """At least so many stay loaded"""


class PrewarmFunction(msgspec.Struct, frozen=True, kw_only=True):
    """How one function is kept loaded."""

    function: str
    """The name of the function"""
    mode: str = ""
    """Who decides: ``auto``, ``off`` or ``paper``"""
    source: str = ""
    """The rule that decides now"""
    silence: str = ""
    """Why the rule does not decide and the keep-alive holds; '' = it decides"""
    wanted: int = 0
    """How many instances are to be loaded now"""
    loaded: int = 0
    """How many instances are loaded, or being loaded"""
    unmet: bool = False
    """Whether there is no room for those that are wanted"""
    load_s: float = 0.0
    """Seconds that a load takes, but out of pinned host memory"""
    parked: int = 0
    """How many instances are in pinned host memory"""
    host_s: float = 0.0
    """Seconds that a load from pinned host memory takes"""
    holds: list[PrewarmHold] = []
    """From when until when how many stay loaded"""
    counts: PrewarmCounts = msgspec.field(default_factory=PrewarmCounts)
    """What keeping it loaded achieved and cost"""


class Prewarm(msgspec.Struct, frozen=True, kw_only=True):
    """How functions are kept loaded."""

    since: datetime
    """From when on ``counts`` count"""
    leading: bool = False
    """Whether a leader has reported lately"""
    on: bool = False
    """Whether instances are loaded ahead of arrivals"""
    rule: str = ""
    """The rule of functions with ``prewarm: auto``"""
    share: float = 0.0
    """The fraction of a GPU instance's free memory that idle instances may hold for another one to be loaded ahead"""
    forecasts: int = 0
    """The version of the forecasts in use; 0 = none"""
    jumps: int = 0
    """How often the clock was set since the leader began"""
    counts: PrewarmCounts = msgspec.field(default_factory=PrewarmCounts)
    """What all functions together achieved and cost"""
    functions: list[PrewarmFunction] = []
    """How each function is kept loaded, by name"""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a project may use; None = no limit."""

    rate_per_s: float | None = None
    """Invocations accepted a second, over time"""
    burst: int | None = None
    """Invocations accepted at once; None = 1"""
    depth: int | None = None
    """Invocations that may wait at a time"""
    concurrency: int | None = None
    """Invocations that may wait or run at a time"""
    warm_memory_mib: float | None = None
    """Memory of all warm instances together, MiB"""
    jobs: int | None = None
    """Trainings that may wait or run; None = ``SMORE_JOBS_PER_PROJECT``"""
    job_memory_mib: float | None = None
    """Memory kept for trainings on all GPU instances together, MiB"""
    gpus: int | None = None
    """GPU instances that its trainings may hold at a time"""
    promised: int | None = None
    """GPU instances for which its trainings may have promised ends, waiting or running; None = ``gpus``"""
    weight: float | None = None
    """Of two trainings that wait, the expected time left is divided by their projects' weights; None = 1"""
    share: float | None = None
    """
    What another training may cost one of its trainings whose owner says nothing, a fraction of its iteration time; None
    = 0, nobody trains beside it
    """


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What a project uses now."""

    depth: int
    """How many invocations wait"""
    concurrency: int = 0
    """How many invocations wait or run"""
    warm_memory_mib: float = 0.0
    """Memory of its warm instances, MiB"""
    jobs: int = 0
    """How many trainings wait or run"""
    job_memory_mib: float = 0.0
    """Memory that is reserved for its trainings, MiB"""
    gpus: int = 0
    """How many GPU instances its trainings hold"""


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A project: what its keys share."""

    name: str
    """The name of the project, unique on the platform"""
    created_at: datetime | None = None
    """When the project was made"""
    limits: Limits = msgspec.field(default_factory=Limits)
    """The limits that were set for it"""
    held: Limits = msgspec.field(default_factory=Limits)
    """The limits that hold, the defaults of the platform included"""
    use: Use | None = None
    """What it uses now; None = not asked for"""


class Projects(msgspec.Struct, frozen=True, kw_only=True):
    """All projects of the platform."""

    projects: list[Project]
    """The projects in the order of their names"""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """What the emptying of a queue has done."""

    cancelled: int
    """How many invocations were cancelled"""


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that no GPU instance runs, with its last fault."""

    function: str
    """The name of the function"""
    revision: int = 0
    """The number of the revision"""
    cause: str = ""
    """The code of the fault"""
    gpu: str = ""
    """The GPU instance on which it occurred"""
    at: datetime | None = None
    """When the fault occurred"""


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """The revisions of a project that no GPU instance runs."""

    revisions: list[Quarantined]
    """The revisions, each with its last fault"""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The invocations of one function that wait."""

    function: str
    """The name of the function"""
    project: str = ""
    """The project that the function belongs to"""
    depth: int = 0
    """How many invocations wait"""
    batch: int = 0
    """How many of those are of class batch"""
    oldest_wait_s: float = 0.0
    """The longest wait, in seconds, among the hundred with the nearest deadlines"""
    priority: float = 0.0
    """The function's priority as the scheduler published it last; 0 = it has none"""
    paused: bool = False
    """Whether nothing of it is dispatched"""
    draining: bool = False
    """Whether nothing new is accepted; what waits is served"""
    boost: float = 1.0
    """By what the priority is multiplied until ``boost_until``"""
    boost_until: datetime | None = None
    """Until when the boost holds; None = until it is ended"""
    pinned_to: list[str] = []
    """The only GPU instances that it may go to; none = to any"""
    pinned_until: datetime | None = None
    """Until when the pin holds; None = until it is ended"""
    deadline_ms: float | None = None
    """The function's own deadline, from arrival; None = no revision of it takes traffic yet"""
    earliest_deadline_ms: int | None = None
    """The earliest deadline of one row that would be accepted now, with a margin; None = not known, or it is paused"""


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of a project's functions."""

    queues: list[Queue]
    """The queues in the order of the functions' names"""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable version of a function."""

    revision: int
    """Its number, counted from 1 for each function"""
    state: str = ""
    """``pending`` (its first run is going on), ``active`` (that succeeded) or ``failed``"""
    entrypoint: str = ""
    """The handler's class as ``module:Class``"""
    created_at: datetime | None = None
    """When it was deployed first"""
    error: str | None = None
    """Why its first run failed, with the log; None = it did not"""
    measured: Measured | None = None
    """What its first run measured; None = nothing"""
    artifact: str | None = None
    """The digest of the uploaded folder; None = a module of the platform"""
    requirements: list[str] = []
    """The packages of its environment, as pip names them"""


class Revisions(msgspec.Struct, frozen=True, kw_only=True):
    """All revisions of a function."""

    revisions: list[Revision]
    """The revisions, the newest first"""


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value."""

    name: str
    """The name by which functions and jobs use it"""
    created_at: datetime | None = None
    """When it was set for the first time"""
    updated_at: datetime | None = None
    """When its value was set last"""


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of a project."""

    secrets: list[Secret]
    """The secrets in the order of their names"""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What ended in a span, of a function or of one of its revisions. None = there was none to take a mean of."""

    function: str
    """The name of the function"""
    project: str = ""
    """The project of the function"""
    revision: int | None = None
    """The revision; None = all of them"""
    arrivals: list[int | None] = []
    """Arrivals in each step of ``at``; None = neither an arrival nor an end"""
    ended: list[int | None] = []
    """Invocations that ended in each step of ``at``, as ``arrivals``"""
    succeeded: int = 0
    """Invocations that ended and succeeded"""
    failed: int = 0
    """Invocations that ended otherwise"""
    met: int = 0
    """Those of ``succeeded`` that kept their deadlines"""
    cold: int = 0
    """Cold starts among those that ran"""
    wait_s: float | None = None
    """Mean seconds from the arrival to the start, of those that succeeded"""
    load_s: float | None = None
    """Mean seconds of a cold start"""
    run_s: float | None = None
    """Mean seconds of a run; that of a batch is shared among its members"""
    whole_s: float | None = None
    """Mean seconds from the arrival to the end, of those that succeeded"""
    worst_s: float | None = None
    """The longest of these"""
    p50: float | None = None
    """Half of these took no longer, seconds, within 10 %; None also where some are from before there was a histogram"""
    p95: float | None = None
    """95 % of them took no longer, as ``p50``"""
    p99: float | None = None
    """99 % of them took no longer, as ``p50``"""


class ServedFunctions(msgspec.Struct, frozen=True, kw_only=True):
    """What ended in a span."""

    since: datetime
    """When it begins; later than was asked for where nothing older is kept"""
    until: datetime | None = None
    """Until when it goes; the last two minutes are not whole yet"""
    at: list[int] = []
    """When each step begins, seconds since 1970; empty where no step was asked for"""
    served: list[Served] = []
    """Functions by name, or revisions by number; those of which nothing ended are left out"""


class Session(Me, frozen=True, kw_only=True):
    """The session of this request."""

    created_at: datetime | None = None
    """When the login was"""
    expires_at: datetime | None = None
    """When the session ends at the latest"""
    seen_at: datetime | None = None
    """When it was last used, to the minute"""


class Verdict(OpenEnum):
    """Whether a budget was kept, with 95 % confidence; ``unmeasured``: the job's iterations are not compared."""

    KEPT = "kept"
    NOT_KEPT = "not_kept"
    NOT_PROVEN = "not_proven"
    UNMEASURED = "unmeasured"


class BudgetSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that held for a while, and what functions cost the job then."""

    since: datetime
    """From when on the budget held"""
    until: datetime | None = None
    """Until when the budget held"""
    budget: float = 0.0
    """The most that the job might lose to functions then, a fraction of its iteration time"""
    windows: int = 0
    """How many closed windows of that time ``loss`` rests on"""
    loss: float | None = None
    """What functions cost it then, a fraction of its iteration time; None = not enough data"""
    loss_low: float | None = None
    """Lower bound of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """Upper bound of the 95 % interval of ``loss``"""
    verdict: Verdict = Verdict("")
    """Whether the budget was kept, as in a statement"""


class BudgetStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the closed loop that keeps a job's budget."""

    at: datetime
    """From when on it held"""
    gpu: str = ""
    """The GPU instance on which it held"""
    step: str = ""
    """``open``, ``held`` (nothing new is placed there), ``duty_75``, ``duty_50``, ``duty_25``, ``offloaded``"""
    duty: float = 0.0
    """The part of the time in which functions may work there, 0 to 1"""
    factor: float = 0.0
    """By what predicted losses are multiplied there"""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """
    Another training on the same GPU instances, and what it cost this job. Without an interval ``loss`` rests on the
    profile's iteration time, because the job was never alone.
    """

    id: str
    """The id of the other training"""
    name: str = ""
    """The name of the other training, where the key may read it"""
    guest: bool = False
    """Whether this job came to the other one"""
    gpus: list[str] = []
    """The GPU instances that both were on"""
    since: datetime | None = None
    """When the second of the two came"""
    until: datetime | None = None
    """When one of them ended; None = both go on"""
    seconds: float = 0.0
    """Seconds that they have shared GPU instances so far"""
    predicted: float | None = None
    """
    How many times longer than alone an iteration was expected to take because of the other one; None = not predicted
    """
    measured: float | None = None
    """How many times longer than alone an iteration took in the other one's first minute; None = not measured"""
    loss: float | None = None
    """What the other one cost it over the whole time, a fraction of its iteration time alone; None = not measured"""
    loss_low: float | None = None
    """Lower bound of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """Upper bound of the 95 % interval of ``loss``"""
    unmeasured: str | None = None
    """Why ``loss`` is None, in words"""
    held_s: float = 0.0
    """Seconds that this job was held back for the other one's sake"""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a job gave and lost, over all its attempts. Of several ranks the one with the highest bound counts. Each budget
    is judged by the windows of its own time.
    """

    id: str
    """The id of the job"""
    name: str = ""
    """The name that the job had"""
    state: str = ""
    """The state of the job, as ``Job`` has it"""
    budget: float = 0.0
    """The most that it may lose to functions, a fraction of its iteration time"""
    since: datetime | None = None
    """When its first attempt started, with which the account begins; None = none has"""
    until: datetime | None = None
    """When it ended; of one that goes on now"""
    harvested_s: float = 0.0
    """Seconds of its GPU instances in which functions ran beside it; a batch counts once"""
    harvested_since: datetime | None = None
    """From when on the history has what functions ran"""
    invocations: int = 0
    """How many invocations ran beside it in ``harvested_s``"""
    windows: int = 0
    """How many closed windows of all attempts ``loss`` rests on"""
    loss: float | None = None
    """What functions cost it, a fraction of its iteration time; 0 where none ran, None = not enough data"""
    loss_low: float | None = None
    """Lower bound of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """Upper bound of the 95 % interval of ``loss``"""
    kept: bool | None = None
    """Whether ``loss_high`` is within the budget; None = not enough data"""
    verdict: Verdict = Verdict("")
    """
    ``kept`` or ``not_kept``, with 95 % confidence; ``not_proven``: more closed windows are needed; ``unmeasured``: its
    iterations are not compared. Where one of ``past_budgets`` was not kept it is ``not_kept`` for good
    """
    missing_windows: int = 0
    """Closed windows under ``budget`` that are missing for a loss"""
    missing_s: float | None = None
    """About how many seconds ``missing_windows`` take; None = cannot be told yet"""
    windows_to_go: int | None = None
    """
    Closed windows under ``budget`` until it is proven if loss and scatter stay as they are, which jumps while the
    interval is wide; None = it cannot be told, or the job is over
    """
    to_go_s: float | None = None
    """About how many seconds ``windows_to_go`` take; None = cannot be told, or the job is over"""
    past_budgets: list[BudgetSpan] = []
    """The budgets that held before, the first one first"""
    steps: list[BudgetStep] = []
    """The last hundred steps of the closed loop, the newest first"""
    beside: list[Beside] = []
    """
    The other trainings with which it shared GPU instances, the first ones first; ``loss`` to functions says nothing of
    those
    """
    summary: str = ""
    """What it gave and lost, in one line"""


class TraceFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One function of a trace."""

    function: str
    """The name of the function on the platform"""
    source: str = ""
    """The name that the function has in the file"""
    arrivals: int = 0
    """How many arrivals the file has of it"""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Imported arrivals."""

    id: int
    """The number of the trace, by which it is removed"""
    name: str = ""
    """The name of the file that was imported"""
    digest: str = ""
    """The SHA-256 of the file"""
    created_at: datetime | None = None
    """When the trace was imported"""
    since: datetime | None = None
    """From when on the arrivals count as having come"""
    until: datetime | None = None
    """Until when the arrivals count as having come"""
    functions: list[TraceFunction] = []
    """The functions of the trace, by name"""


class TraceRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """The trace that is gone."""

    id: int
    """The number of the removed trace"""


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of a project."""

    traces: list[Trace]
    """The traces, the newest first"""
