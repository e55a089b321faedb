"""
The client of the HTTP API, synchronous (:class:`Client`) and asynchronous (:class:`AsyncClient`).

What is sent, what an answer means and when to try again stands once, in :class:`Dialogue`: its methods are generators that yield a
:class:`Call` (or a :class:`Pause`), are sent what became of it, and return the parsed answer. They do no I/O. The two clients only carry
the calls out.

**Retries**: a broken connection, or a 503 with Retry-After, is tried again for at most :data:`RETRY_S` in all, where that is safe: a GET,
or a request with an Idempotency-Key. ``invoke``, ``submit`` and ``map`` always send one, so a retry never runs anything twice.
"""

import asyncio
import math
import os
import sys
import time
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from smore.domain import tensors
from smore.domain.function import TensorSpec
from smore.domain.invocation import TERMINAL, State
from smore.domain.limits import NO_LIMITS, Limits

if TYPE_CHECKING:
    import numpy

#: Seconds that the tries before the last one, and the pauses between them, may take together.
RETRY_S: Final = 5.0
#: Seconds before the first retry; doubled each time.
FIRST_PAUSE_S: Final = 0.05
#: Seconds that an answer may take beyond what was asked to be waited.
MARGIN_S: Final = 15.0
#: How long the platform holds a call that names no wait of its own.
DEFAULT_WAIT_S: Final = 30.0
#: Seconds of one long poll while ``invoke`` follows an invocation.
POLL_S: Final = 20.0
#: How long a deploy may take: its answer comes when the canary has loaded and run the handler.
CANARY_S: Final = 135.0
#: The same for an uploaded folder: it is fetched, and its environment built, before that.
UPLOADED_CANARY_S: Final = 615.0
#: Inputs in one call of ``map``.
INPUTS_PER_CALL: Final = 64

RAW: Final = "application/octet-stream"


class ClientError(Exception):
    """The platform did not do what was asked."""


class ApiError(ClientError):
    """
    The platform refused a request, or the invocation failed.

    ``code`` is stable (``slo_infeasible``, ``function_not_found``…); ``body`` is the whole problem document with what else is known
    (``id``, ``field``, ``earliest_deadline_ms``…); ``retry_after_s`` when a later try may succeed.
    """

    def __init__(self, status: int, code: str, detail: str, body: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        super().__init__(f"{detail} ({code}, {status})")
        self.status = status
        self.code = code
        self.detail = detail
        self.body = body
        self.retry_after_s = retry_after_s


class Unreachable(ClientError):
    """No answer came from the platform."""


# --- what is sent, and what becomes of it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``timeout_s``: without an answer for this long it counts as broken."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    timeout_s: float = DEFAULT_WAIT_S + MARGIN_S

    @property
    def repeatable(self) -> bool:
        """Whether sending it again cannot do anything twice."""
        return self.method == "GET" or "Idempotency-Key" in self.headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait this long before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back; names of ``headers`` in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Nothing came back."""

    reason: str
    elapsed_s: float = 0.0


T = TypeVar("T")
Flow: TypeAlias = Generator[Call | Pause, Answer | Broken | None, T]


# --- what is answered -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """``min_warm`` instances stand ready in all, at most ``max_warm`` on each GPU instance; ``keep_alive_s`` -1 = for ever."""

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

    ``output`` is there once it has succeeded: a JSON value, or ``{name: numpy array}`` where arrays were sent. An input of ``map`` that was
    refused at the gate has no ``id``. ``timings_ms`` are the phases of ``Server-Timing`` (queue, schedule, dispatch, load, run); ``load``
    above zero = cold start.
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
    """A process that computes on a GPU instance and that nobody registered; nothing is placed beside it until it is ``allowed``."""

    pid: int
    name: str = ""
    memory_mib: float = 0.0
    allowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """
    A GPU instance as of its last report; utilisations are 0..1 over the last heartbeat, by the counter named; ``counters`` are all of the
    device's. ``strangers`` None = it cannot tell who computes on it. ``health``: why nothing can run on the device, '' = it works.
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
    A serverful job. Mean iteration times, seconds: ``solo_s`` while no function ran beside it, ``shared_s`` while one did.

    ``degradation`` = shared / solo - 1; None = not known yet. ``loss`` with its 95 % interval is what functions cost it by its last closed
    windows, a fraction like its ``budget``; None = not enough data.
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
    #: succeeded, failed, killed (by ``signal``), stopped (its owner asked for it), refused or detached (for a ``reason``), unknown;
    #: None = it goes on.
    outcome: str | None = None
    signal: str | None = None
    reason: str | None = None
    #: started, tracked (it runs elsewhere and tells its steps) or attached (it is only watched: nothing it loses is measured).
    source: str = "started"
    measured: bool = True
    workload: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStep:
    """A step of the closed loop of a job's budget: functions may work for ``duty`` of the time on ``gpu`` from ``at`` on."""

    at: datetime
    gpu: str = ""
    step: str = ""
    duty: float = 1.0
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """
    What a job gave and lost. ``harvested_s``: seconds that functions ran beside it, by the clock, for ``invocations`` of them.

    ``loss`` with its 95 % interval rests on ``windows`` closed windows; None = not enough data: ``missing_windows`` more are needed, which
    takes about ``missing_s`` seconds. ``kept``: the bound ``loss_high`` is within the ``budget``. ``steps``: the newest first.
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
    """The gate held ``needed_ms`` against ``allowed_ms``, both from arrival; ``now_ms`` is what it would need now. None = not known."""

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
    What would become of an invocation: ``placed`` at once, ``waits`` for what ``detail`` names, ``late`` (taken, and would expire) or
    ``refused``; ``reason``: the code of that. ``earliest_deadline_ms``: the earliest deadline that would be accepted, None = not known.
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
    Loads ahead by outcome, cold starts with their reasons (``unforeseen``), runs that were saved one, and GB-seconds of memory: held in
    all, without work, and by instances that were loaded ahead and never used.
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
    """How a function is kept ready: ``silence`` says why its rule has no say and its keep-alive holds, '' = it has one."""

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
    """``leading`` False: no leader has said lately how it keeps functions. ``counts`` over all of the project since ``since``."""

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
    What a project uses now: invocations that wait, that wait or run, memory of its warm instances, trainings and what is kept for them.
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


# --- bodies ---------------------------------------------------------------------------------------------------------------------------


def encode_json(value: object) -> bytes:
    """JSON; numpy arrays and numbers become nested lists and numbers. TypeError for what JSON cannot say."""

    def plain(other: object) -> object:
        tolist = getattr(other, "tolist", None)
        if tolist is None:
            raise TypeError(f"a {type(other).__name__} cannot be sent as JSON")
        return tolist()

    return msgspec.json.encode(value, enc_hook=plain)


def is_arrays(value: object) -> bool:
    """Whether ``value`` is a mapping of names to numpy arrays and nothing else. Does not import numpy: without it there is no array."""
    loaded = sys.modules.get("numpy")
    return loaded is not None and isinstance(value, Mapping) and bool(value) and all(isinstance(v, loaded.ndarray) for v in value.values())


def numpy_type(datatype: str) -> str:
    """numpy's little-endian name of an Open Inference Protocol datatype; KeyError for an unknown one."""
    if datatype == tensors.BYTES:
        return "object"
    size = tensors.ITEM_BYTES[datatype]
    if datatype == "BOOL":
        return "|b1"
    return f"<{'f' if datatype.startswith('FP') else datatype[0].lower()}{size}"


def encode_raw(arrays: Mapping[str, "numpy.ndarray[Any, Any]"], declared: Sequence[TensorSpec]) -> tuple[bytes, str]:
    """
    The raw body and its ``Smore-Shape``: the arrays in declared order and datatype, C order, little-endian, one after the other.

    Raises ValueError when the names are not the declared ones or a value would be lost by the datatype's kind (a float for an integer).
    """
    import numpy as np

    names = [tensor.name for tensor in declared]
    if set(names) != set(arrays):
        raise ValueError(f"the function takes {', '.join(names)}, not {', '.join(map(str, arrays))}")
    parts, shapes = [], []
    for tensor in declared:
        array = arrays[tensor.name]
        wanted = np.dtype(numpy_type(tensor.datatype))
        texts = tensor.datatype == tensors.BYTES
        if not np.can_cast(array.dtype, wanted, casting="same_kind") or (texts and array.dtype.kind not in "OSU"):
            raise ValueError(f"{tensor.name}: {tensor.datatype} is expected, not {array.dtype}")
        if texts:
            flat = array.reshape(-1).tolist()
            parts.append(tensors.join(element.encode() if isinstance(element, str) else bytes(element) for element in flat))
        else:
            parts.append(np.ascontiguousarray(array, dtype=wanted).tobytes())
        shapes.append(f"{tensor.name}={','.join(map(str, array.shape))}")
    return b"".join(parts), ";".join(shapes)


def decode_raw(body: bytes, shapes: str) -> dict[str, "numpy.ndarray[Any, Any]"]:
    """The arrays of a raw answer; ``shapes`` is its ``Smore-Outputs``, ``name:datatype:d0,d1;…``. They are read-only views of ``body``."""
    import numpy as np

    arrays = {}
    for section in tensors.sections(shapes, body):
        own = memoryview(body)[section.start : section.stop]
        if section.datatype == tensors.BYTES:
            flat = np.fromiter(tensors.elements(own), dtype=object)
        else:
            flat = np.frombuffer(own, numpy_type(section.datatype)) if own else np.empty(0, numpy_type(section.datatype))
        arrays[section.name] = flat.reshape(section.shape)
    return arrays


def parse_timings(header: str) -> dict[str, float]:
    """``queue;dur=1.5, run;dur=20`` to ``{"queue": 1.5, "run": 20.0}``, milliseconds. An entry without a readable ``dur`` is left out."""
    timings = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            try:
                if key.strip().lower() == "dur" and name:
                    timings[name] = float(value.strip().strip('"'))
            except ValueError:
                continue
    return timings


def refusal(answer: Answer) -> ApiError:
    """The error that an answer with a status of 400 or above stands for."""
    try:
        body = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.DecodeError:
        body = {}
    text = answer.body.decode(errors="replace").strip()[:200]
    detail = str(body.get("detail") or body.get("title") or text or f"HTTP {answer.status}")
    return ApiError(answer.status, str(body.get("code") or "error"), detail, body, _retry_after_s(answer))


def _retry_after_s(answer: Answer) -> float | None:
    # Seconds only: a date would need the server's clock, and the platform sends none.
    text = answer.headers.get("retry-after", "")
    return float(text) if text.replace(".", "", 1).isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predictions:
    predictions: list[PlacePrediction]


def _read(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise ApiError(answer.status, "unreadable_answer", f"The answer is not what this client knows: {error}", {}) from error


def _invocation(answer: Answer) -> Invocation:
    timings = parse_timings(answer.headers.get("server-timing", ""))
    if answer.headers.get("content-type", "").partition(";")[0].strip() == RAW:
        return Invocation(
            id=answer.headers.get("smore-invocation", ""),
            state=State.SUCCEEDED,
            output=decode_raw(answer.body, answer.headers.get("smore-outputs", "")),
            timings_ms=timings,
        )
    found = _read(answer, Invocation)
    return replace(found, timings_ms=timings) if timings else found


def exchange(call: Call) -> Flow[Answer]:
    """Send a call until it is answered or may not be tried again. Raises ApiError, Unreachable."""
    spent_s, pause_s = 0.0, FIRST_PAUSE_S
    while True:
        got = yield call
        error: ClientError
        match got:
            case Answer() if got.status < 400:
                return got
            case Answer():
                error = refused = refusal(got)
                # With a state it is how the invocation ended: it would be told again.
                away = got.status == 503 and "state" not in refused.body
                again_s = max(refused.retry_after_s, pause_s) if away and refused.retry_after_s is not None else None
            case Broken():
                error, again_s = Unreachable(got.reason), pause_s
            case None:
                raise TypeError("a call was answered with nothing")
        spent_s += got.elapsed_s
        if again_s is None or not call.repeatable or spent_s + again_s > RETRY_S:
            raise error
        yield Pause(seconds=again_s)
        spent_s += again_s
        pause_s *= 2


def read_function_file(path: str | Path) -> dict[str, Any]:
    """A function.yaml, or the one in a folder, as plain values. Raises OSError, ValueError."""
    from smore.plain_yaml import read_yaml

    file = Path(path)
    if file.is_dir():
        file /= "function.yaml"
    try:
        document = read_yaml(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    match document:
        case dict():
            return document
        case _:
            raise ValueError(f"{file}: a mapping is expected")


def _function_name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError("metadata.name: the function's name is expected")
    return name


class Dialogue:
    """
    Every request of the API and the reading of its answer, without I/O (see the module's docstring).

    It remembers the declared inputs of functions that arrays were sent to, because a raw body follows their order.
    """

    def __init__(self) -> None:
        self._declared: dict[str, list[TensorSpec] | None] = {}

    # functions

    def deploy(self, source: str | Path | Mapping[str, Any]) -> Flow[Deployed]:
        document = dict(source) if isinstance(source, Mapping) else read_function_file(source)
        if not isinstance(source, Mapping) and Path(source).is_dir():
            return (yield from self._deploy_folder(Path(source), document))
        return (yield from self._deploy(document, CANARY_S))

    def _deploy_folder(self, folder: Path, document: dict[str, Any]) -> Flow[Deployed]:
        from tempfile import TemporaryDirectory

        from smore import archive, upload

        _function_name(document)
        spec = document.get("spec")
        if not isinstance(spec, dict):
            raise ValueError(f"{folder}: spec: a mapping is expected")
        with TemporaryDirectory(prefix="smore-") as place:
            packed = archive.pack(folder, Path(place))
            if packed is None:
                return (yield from self._deploy(document, CANARY_S))
            yield from upload.send(packed)
        spec = {**spec, "artifact": {"code": packed.artifact.code, "files": dict(packed.artifact.files)}}
        if "requirements" in spec:
            spec["requirements"] = upload.read_requirements(folder, spec["requirements"])
        return (yield from self._deploy({**document, "spec": spec}, UPLOADED_CANARY_S))

    def _deploy(self, document: dict[str, Any], canary_s: float) -> Flow[Deployed]:
        name = _function_name(document)
        self._declared.pop(name, None)
        return _read((yield from exchange(_json("PUT", _path("functions", name), document, timeout_s=canary_s))), Deployed)

    def functions(self) -> Flow[list[Function]]:
        return (yield from _list("functions", Function))

    def function(self, name: str) -> Flow[Function]:
        return _read((yield from exchange(Call(method="GET", path=_path("functions", name)))), Function)

    def revisions(self, name: str) -> Flow[list[Revision]]:
        return (yield from _list("revisions", Revision, path=_path("functions", name, "revisions")))

    def rollback(self, name: str, revision: int) -> Flow[Function]:
        self._declared.pop(name, None)
        return _read((yield from _post({"revision": revision}, "functions", name, "rollback")), Function)

    def set_slo(self, name: str, deadline_ms: float | None) -> Flow[Function]:
        return _read((yield from exchange(_json("PUT", _path("functions", name, "slo"), {"deadline_ms": deadline_ms}))), Function)

    def set_scaling(self, name: str, changes: Mapping[str, object]) -> Flow[Function]:
        return _read((yield from exchange(_json("PATCH", _path("functions", name), {"scaling": dict(changes)}))), Function)

    def prewarm(self, since_s: float) -> Flow[Prewarm]:
        return _read((yield from exchange(Call(method="GET", path=_path("prewarm"), query=(("since_s", str(since_s)),)))), Prewarm)

    def delete(self, name: str) -> Flow[None]:
        self._declared.pop(name, None)
        yield from exchange(Call(method="DELETE", path=_path("functions", name)))

    def warm(self, name: str, gpu: str | None) -> Flow[list[str]]:
        return _read((yield from _post({"gpu": gpu}, "functions", name, "warm")), _Placed).gpus

    def offload(self, name: str, gpu: str | None) -> Flow[list[str]]:
        return _read((yield from _post({"gpu": gpu}, "functions", name, "offload")), _Placed).gpus

    # invocations

    def invoke(
        self, function: str, value: object, *, deadline_ms: float | None, wait_s: float | None, idempotency_key: str | None
    ) -> Flow[Invocation]:
        prefer = None if wait_s is None else f"wait={math.ceil(wait_s)}"
        timeout_s = (DEFAULT_WAIT_S if wait_s is None else wait_s) + MARGIN_S
        answer = yield from self._send(function, value, deadline_ms, prefer, idempotency_key or uuid.uuid4().hex, timeout_s)
        found = _invocation(answer)
        if found.done or wait_s is not None:
            return found
        return (yield from self._follow(found.id, raw=is_arrays(value)))

    def submit(self, function: str, value: object, *, deadline_ms: float | None, idempotency_key: str | None) -> Flow[str]:
        answer = yield from self._send(
            function, value, deadline_ms, "respond-async", idempotency_key or uuid.uuid4().hex, DEFAULT_WAIT_S + MARGIN_S
        )
        return _invocation(answer).id

    def map(self, function: str, values: Iterable[object], *, deadline_ms: float | None) -> Flow[list[Invocation]]:
        waiting = list(values)
        found: list[Invocation] = []
        while waiting:
            batch, waiting = waiting[:INPUTS_PER_CALL], waiting[INPUTS_PER_CALL:]
            body: dict[str, object] = {"inputs": batch}
            if deadline_ms is not None:
                body["deadline_ms"] = deadline_ms
            call = _json("POST", _path("functions", function, "invocations"), body, headers={"Idempotency-Key": uuid.uuid4().hex})
            answered = _items((yield from exchange(call)), "invocations", Invocation)
            for one in answered:
                found.append(one if one.done else (yield from self._settled(one.id)))
        return found

    def _send(
        self, function: str, value: object, deadline_ms: float | None, prefer: str | None, key: str, timeout_s: float
    ) -> Flow[Answer]:
        headers = {"Idempotency-Key": key} | ({} if prefer is None else {"Prefer": prefer})
        path = _path("functions", function, "invocations")
        if not is_arrays(value):
            body: dict[str, object] = {"input": value}
            if deadline_ms is not None:
                body["deadline_ms"] = deadline_ms
            return (yield from exchange(_json("POST", path, body, headers=headers, timeout_s=timeout_s)))
        assert isinstance(value, Mapping)
        query = () if deadline_ms is None else (("deadline_ms", f"{deadline_ms:g}"),)
        known = function in self._declared
        while True:
            if function not in self._declared:
                self._declared[function] = (yield from self.function(function)).inputs
            declared = self._declared[function]
            try:
                if declared is None:
                    raise ValueError(f"{function} takes JSON, not arrays")
                content, shapes = encode_raw(value, declared)
                raw = headers | {"Content-Type": RAW, "Accept": f"{RAW}, application/json", "Smore-Shape": shapes}
                return (yield from exchange(Call(method="POST", path=path, query=query, headers=raw, content=content, timeout_s=timeout_s)))
            except (ApiError, ValueError) as error:
                # A newer revision may take other inputs than those remembered. Nothing was queued, so the key is still unused.
                stale = known and (isinstance(error, ValueError) or error.code == "invalid_input")
                if not stale:
                    raise
                known = False
                del self._declared[function]

    def dry_run(self, function: str, value: object, *, rows: int | None, deadline_ms: float | None) -> Flow[DryRun]:
        body: dict[str, object] = {"input": value}
        if is_arrays(value):
            assert isinstance(value, Mapping)
            body = {"rows": len(next(iter(value.values())))}
        elif rows is not None or value is None:
            body = {"rows": rows or 1}
        if deadline_ms is not None:
            body["deadline_ms"] = deadline_ms
        return _read((yield from _post(body, "functions", function, "invocations:dryRun")), DryRun)

    def _follow(self, id_: str, *, raw: bool) -> Flow[Invocation]:
        settled = yield from self._settled(id_)
        got = yield from self.result(id_, raw=raw)
        return replace(settled, output=got.output, timings_ms=got.timings_ms or settled.timings_ms)

    def _settled(self, id_: str) -> Flow[Invocation]:
        while True:
            found = yield from self.invocation(id_, wait_s=POLL_S)
            if found.done:
                return found

    def invocation(self, id_: str, *, wait_s: float | None) -> Flow[Invocation]:
        query = () if wait_s is None else (("wait", str(math.ceil(wait_s))),)
        call = Call(method="GET", path=_path("invocations", id_), query=query, timeout_s=(wait_s or 0.0) + MARGIN_S)
        return _invocation((yield from exchange(call)))

    def result(self, id_: str, *, raw: bool = False) -> Flow[Invocation]:
        headers = {"Accept": f"{RAW}, application/json"} if raw else {}
        found = _invocation((yield from exchange(Call(method="GET", path=_path("invocations", id_, "result"), headers=headers))))
        return found if found.id else replace(found, id=id_)

    def cancel(self, id_: str) -> Flow[Invocation]:
        return _invocation((yield from _post({}, "invocations", id_, "cancel")))

    def invocations(self, *, function: str | None, state: str | None, limit: int | None, cursor: str | None) -> Flow[InvocationPage]:
        asked = {"function": function, "state": state, "limit": None if limit is None else str(limit), "cursor": cursor}
        query = tuple((name, value) for name, value in asked.items() if value is not None)
        answer = yield from exchange(Call(method="GET", path=_path("invocations"), query=query))
        return InvocationPage(items=_items(answer, "invocations", Invocation), cursor=_read(answer, _Cursor).next_cursor)

    # queues, GPU instances, jobs

    def queues(self) -> Flow[list[Queue]]:
        return (yield from _list("queues", Queue))

    def pause(self, function: str) -> Flow[None]:
        yield from _post({}, "queues", function, "pause")

    def resume(self, function: str) -> Flow[None]:
        yield from _post({}, "queues", function, "resume")

    def gpus(self) -> Flow[list[Gpu]]:
        return (yield from _list("gpus", Gpu))

    def pause_gpu(self, id_: str) -> Flow[None]:
        yield from _post({}, "gpus", id_, "pause")

    def resume_gpu(self, id_: str) -> Flow[None]:
        yield from _post({}, "gpus", id_, "resume")

    def start_job(
        self,
        name: str,
        argv: Sequence[str],
        gpus: Sequence[str] | None,
        env: Mapping[str, str] | None,
        workload: str | None,
        budget: float | None,
        memory: str | None,
    ) -> Flow[Job]:
        body: dict[str, object] = {"name": name, "argv": list(argv), "env": dict(env or {})}
        if gpus is not None:
            body["gpus"] = list(gpus)
        if workload is not None:
            body["workload"] = workload
        if budget is not None:
            body["budget"] = budget
        if memory is not None:
            body["memory"] = memory
        return _read((yield from _post(body, "jobs")), Job)

    def jobs(self) -> Flow[list[Job]]:
        return (yield from _list("jobs", Job))

    def job(self, id_: str) -> Flow[Job]:
        return _read((yield from exchange(Call(method="GET", path=_path("jobs", id_)))), Job)

    def statement(self, id_: str) -> Flow[Statement]:
        return _read((yield from exchange(Call(method="GET", path=_path("jobs", id_, "statement")))), Statement)

    def stop_job(self, id_: str) -> Flow[Job]:
        return _read((yield from _post({}, "jobs", id_, "stop")), Job)

    # the predictor

    def executions(self, id_: str) -> Flow[list[Execution]]:
        return (yield from _list("executions", Execution, path=_path("invocations", id_, "executions")))

    def explain(self, id_: str) -> Flow[Explanation]:
        return _read((yield from exchange(Call(method="GET", path=_path("invocations", id_, "explain")))), Explanation)

    def predictor(self) -> Flow[Predictor]:
        return _read((yield from exchange(Call(method="GET", path=_path("predictor")))), Predictor)

    def predictions(self, job: str, function: str, k: int) -> Flow[list[PlacePrediction]]:
        query = (("job", job), ("function", function), ("k", str(k)))
        answer = yield from exchange(Call(method="GET", path=_path("predictions"), query=query))
        return _read(answer, _Predictions).predictions

    # keys and projects

    def keys(self) -> Flow[list[Key]]:
        return (yield from _list("keys", Key))

    def create_key(self, name: str, scopes: Sequence[str], project: str | None) -> Flow[Key]:
        body: dict[str, object] = {"name": name, "scopes": list(scopes)}
        if project is not None:
            body["project"] = project
        return _read((yield from _post(body, "keys")), Key)

    def revoke_key(self, id_: str) -> Flow[None]:
        yield from exchange(Call(method="DELETE", path=_path("keys", id_)))

    def secrets(self) -> Flow[list[Secret]]:
        return (yield from _list("secrets", Secret))

    def set_secret(self, name: str, value: str) -> Flow[Secret]:
        return _read((yield from exchange(_json("PUT", _path("secrets", name), {"value": value}))), Secret)

    def delete_secret(self, name: str) -> Flow[None]:
        yield from exchange(Call(method="DELETE", path=_path("secrets", name)))

    def quarantined(self) -> Flow[list[Quarantined]]:
        return (yield from _list("revisions", Quarantined, path=_path("quarantine")))

    def lift(self, function: str) -> Flow[list[int]]:
        return _read((yield from exchange(Call(method="DELETE", path=_path("quarantine", function)))), Lifted).revisions

    def projects(self) -> Flow[list[Project]]:
        return (yield from _list("projects", Project))

    def create_project(self, name: str) -> Flow[Project]:
        return _read((yield from _post({"name": name}, "projects")), Project)

    # the platform

    def healthy(self) -> Flow[bool]:
        yield from exchange(Call(method="GET", path="/healthz", timeout_s=MARGIN_S))
        return True

    def ready(self) -> Flow[dict[str, Any]]:
        return _read((yield from exchange(Call(method="GET", path="/readyz", timeout_s=MARGIN_S))), dict[str, Any])


class _Cursor(msgspec.Struct):
    next_cursor: str | None = None


class _Placed(msgspec.Struct):
    gpus: list[str]


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe=":") for part in parts)


def _json(
    method: str, path: str, body: object, *, headers: Mapping[str, str] | None = None, timeout_s: float = DEFAULT_WAIT_S + MARGIN_S
) -> Call:
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    return Call(method=method, path=path, headers=all_headers, content=encode_json(body), timeout_s=timeout_s)


#: For smore/admin.py.
path_of, request_json, read_answer = _path, _json, _read


def _post(body: object, *parts: str) -> Flow[Answer]:
    return (yield from exchange(_json("POST", _path(*parts), body)))


def _list(noun: str, kind: type[T], *, path: str | None = None) -> Flow[list[T]]:
    return _items((yield from exchange(Call(method="GET", path=path or _path(noun)))), noun, kind)


def _items(answer: Answer, noun: str, kind: type[T]) -> list[T]:
    found = _read(answer, dict[str, msgspec.Raw]).get(noun)
    if found is None:
        raise ApiError(answer.status, "unreadable_answer", f"The answer has no {noun}", {})
    return _read(replace(answer, body=bytes(found)), list[kind])  # type: ignore[valid-type]


# --- the clients ----------------------------------------------------------------------------------------------------------------------


def locate(url: str | None, key: str | None) -> tuple[str, str | None]:
    """
    Where the platform is and the API key: as given, else SMORE_URL and SMORE_API_KEY, else this machine's platform.

    The key that lies in the platform's home goes to this machine only: another host's owner must not be handed it.
    """
    from smore.settings import Settings

    url = url or os.environ.get("SMORE_URL")
    key = key or os.environ.get("SMORE_API_KEY")
    config = Settings()
    if url is None:
        url = _running_here(config.home) or _configured(config.api.host, config.api.port)
        local = True
    else:
        local = httpx.URL(url).host in ("127.0.0.1", "::1", "localhost")
    if key is None and local:
        try:
            key = (config.home / "key").read_text().strip() or None
        except OSError:
            key = None
    return url.rstrip("/"), key


def _running_here(home: Path) -> str | None:
    """The gateway of the platform that ``smore up`` has started in this home (smore/local/machine.py writes it down)."""
    try:
        found: str = msgspec.json.decode((home / "run" / "endpoints.json").read_bytes())["gateway_url"]
        return found
    except (OSError, ValueError, KeyError):
        return None


def _configured(host: str, port: int) -> str:
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - read, not bound to
    host = anywhere.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _headers(key: str | None) -> dict[str, str]:
    return {"User-Agent": "smore-client"} | ({} if key is None else {"Authorization": f"Bearer {key}"})


def _answer(response: httpx.Response, began: float) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(status=response.status_code, headers=headers, body=response.content, elapsed_s=time.monotonic() - began)


def _broken(error: httpx.TransportError, url: str, began: float) -> Broken:
    reason = f"{url} cannot be reached: {error or type(error).__name__}"
    return Broken(reason=reason, elapsed_s=time.monotonic() - began)


class Client:
    """
    The synchronous client; one per thread or shared, close it or use it in a ``with``.

    Every method raises :class:`ApiError` when the platform refuses and :class:`Unreachable` when it does not answer.
    """

    def __init__(self, url: str | None = None, key: str | None = None, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url, self.key = locate(url, key)
        self._http = httpx.Client(base_url=self.url, headers=_headers(self.key), transport=transport)
        self._dialogue = Dialogue()

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def carry(self, flow: Flow[T]) -> T:
        """Carry out a flow of smore/admin.py."""
        return self._carry(flow)

    def _carry(self, flow: Flow[T]) -> T:
        got: Answer | Broken | None = None
        while True:
            try:
                step = flow.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            match step:
                case Pause():
                    time.sleep(step.seconds)
                    got = None
                case Call():
                    began = time.monotonic()
                    try:
                        response = self._http.request(
                            step.method, step.path, params=step.query, headers=step.headers, content=step.content, timeout=step.timeout_s
                        )
                        got = _answer(response, began)
                    except httpx.TransportError as error:
                        got = _broken(error, self.url, began)

    def deploy(self, source: str | Path | Mapping[str, Any]) -> Deployed:
        """
        Register a function or a new revision of it: a function.yaml, its content, or a folder. Returns when the canary has passed.

        A folder with more in it than its function.yaml is uploaded: code, weights and wheels, what the platform has already left out.
        """
        return self._carry(self._dialogue.deploy(source))

    def functions(self) -> list[Function]:
        return self._carry(self._dialogue.functions())

    def function(self, name: str) -> Function:
        return self._carry(self._dialogue.function(name))

    def revisions(self, name: str) -> list[Revision]:
        return self._carry(self._dialogue.revisions(name))

    def rollback(self, name: str, revision: int) -> Function:
        return self._carry(self._dialogue.rollback(name, revision))

    def set_slo(self, name: str, deadline_ms: float | None) -> Function:
        """Set the function's deadline over its revision's; None = the revision's own again."""
        return self._carry(self._dialogue.set_slo(name, deadline_ms))

    def set_scaling(self, name: str, changes: Mapping[str, object]) -> Function:
        """Change ``min_warm``, ``max_warm``, ``keep_alive`` or ``prewarm`` of the revision that takes the traffic."""
        return self._carry(self._dialogue.set_scaling(name, changes))

    def prewarm(self, since_s: float = 86_400.0) -> Prewarm:
        """How functions are kept ready, and what that came to in the last ``since_s`` seconds."""
        return self._carry(self._dialogue.prewarm(since_s))

    def delete(self, name: str) -> None:
        self._carry(self._dialogue.delete(name))

    def warm(self, name: str, gpu: str | None = None) -> list[str]:
        """Load the function before it is asked for, on one GPU instance or on all; those that were told."""
        return self._carry(self._dialogue.warm(name, gpu))

    def offload(self, name: str, gpu: str | None = None) -> list[str]:
        """Unload it where it is idle."""
        return self._carry(self._dialogue.offload(name, gpu))

    def invoke(
        self,
        function: str,
        value: object,
        *,
        deadline_ms: float | None = None,
        wait_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> Invocation:
        """
        Run a function and return its answer.

        ``value`` is a JSON value, or ``{name: numpy array}`` for a tensor function (then the output is arrays too). ``deadline_ms`` from
        now overrides the function's. Waits for the end however long it takes; with ``wait_s`` at most that long, and what is returned
        may not be ``done``. Raises ApiError when it is refused, fails, expires or is cancelled.
        """
        return self._carry(self._dialogue.invoke(function, value, deadline_ms=deadline_ms, wait_s=wait_s, idempotency_key=idempotency_key))

    def submit(self, function: str, value: object, *, deadline_ms: float | None = None, idempotency_key: str | None = None) -> str:
        """Enqueue and return the invocation's id at once."""
        return self._carry(self._dialogue.submit(function, value, deadline_ms=deadline_ms, idempotency_key=idempotency_key))

    def map(self, function: str, inputs: Iterable[object], *, deadline_ms: float | None = None) -> list[Invocation]:
        """One invocation for each JSON input, in order, when all have ended. One that failed is in the list with its state and cause."""
        return self._carry(self._dialogue.map(function, inputs, deadline_ms=deadline_ms))

    def invocation(self, id_: str, *, wait_s: float | None = None) -> Invocation:
        """How an invocation stands, without its output; waits at most ``wait_s`` for its end."""
        return self._carry(self._dialogue.invocation(id_, wait_s=wait_s))

    def result(self, id_: str, *, raw: bool = False) -> Invocation:
        """The output of an invocation that has ended (``raw``: as arrays). Raises ApiError where it did not succeed."""
        return self._carry(self._dialogue.result(id_, raw=raw))

    def cancel(self, id_: str) -> Invocation:
        return self._carry(self._dialogue.cancel(id_))

    def invocations(
        self, *, function: str | None = None, state: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> InvocationPage:
        return self._carry(self._dialogue.invocations(function=function, state=state, limit=limit, cursor=cursor))

    def queues(self) -> list[Queue]:
        return self._carry(self._dialogue.queues())

    def pause(self, function: str) -> None:
        """Stop dispatching a function's invocations; they go on being accepted and their deadlines run."""
        self._carry(self._dialogue.pause(function))

    def resume(self, function: str) -> None:
        self._carry(self._dialogue.resume(function))

    def gpus(self) -> list[Gpu]:
        return self._carry(self._dialogue.gpus())

    def pause_gpu(self, id_: str) -> None:
        self._carry(self._dialogue.pause_gpu(id_))

    def resume_gpu(self, id_: str) -> None:
        self._carry(self._dialogue.resume_gpu(id_))

    def start_job(
        self,
        name: str,
        argv: Sequence[str],
        gpus: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        workload: str | None = None,
        budget: float | None = None,
        memory: str | None = None,
    ) -> Job:
        """
        Start a training command (``argv``: a module and its arguments) on GPU instances, by default on the least loaded one.

        ``workload`` says which profiled training it is, such as ``resnet50/cpu/training/8``; ``budget`` what it may lose to functions at
        most, 0.01 to 1; ``memory`` (``"12GiB"``) what is kept for it on each GPU instance, without it what it was seen to hold. A budget
        that could not be told from noise is refused, and the answer says which is the smallest.
        """
        return self._carry(self._dialogue.start_job(name, argv, gpus, env, workload, budget, memory))

    def jobs(self) -> list[Job]:
        return self._carry(self._dialogue.jobs())

    def job(self, id_: str) -> Job:
        return self._carry(self._dialogue.job(id_))

    def statement(self, id_: str) -> Statement:
        """What functions have got beside a job, and what the job has lost to them, with 95 % confidence."""
        return self._carry(self._dialogue.statement(id_))

    def stop_job(self, id_: str) -> Job:
        """End a job; one that runs elsewhere (``source`` is not ``started``) is let go and trains on."""
        return self._carry(self._dialogue.stop_job(id_))

    def executions(self, id_: str) -> list[Execution]:
        """The attempts of an invocation, with the degradation that was predicted and the one that was measured."""
        return self._carry(self._dialogue.executions(id_))

    def explain(self, id_: str) -> Explanation:
        """Why an invocation went as it did: what each decision considered, predicted against measured, and where the time went."""
        return self._carry(self._dialogue.explain(id_))

    def dry_run(self, function: str, value: object = None, *, rows: int | None = None, deadline_ms: float | None = None) -> DryRun:
        """
        What would become of an invocation of ``value``, or of one with so many ``rows``, by its deadline; nothing is placed.

        Raises ApiError (429) where too many ask, (503) while no scheduler leads.
        """
        return self._carry(self._dialogue.dry_run(function, value, rows=rows, deadline_ms=deadline_ms))

    def predictor(self) -> Predictor:
        """The degradation table in force and what it rests on."""
        return self._carry(self._dialogue.predictor())

    def predictions(self, job: str, function: str, k: int = 1) -> list[PlacePrediction]:
        """
        What ``k`` invocations of a function at a time and a training would cost each other.

        ``job`` is a job's id or a workload (``resnet50/cpu/training/8``), ``function`` a function's name or a model (``bert/cpu``).
        """
        return self._carry(self._dialogue.predictions(job, function, k))

    def keys(self) -> list[Key]:
        return self._carry(self._dialogue.keys())

    def create_key(self, name: str, scopes: Sequence[str], project: str | None = None) -> Key:
        """A new API key; ``Key.key`` is the secret, shown this once."""
        return self._carry(self._dialogue.create_key(name, scopes, project))

    def revoke_key(self, id_: str) -> None:
        self._carry(self._dialogue.revoke_key(id_))

    def secrets(self) -> list[Secret]:
        """Names only: nobody is told a value."""
        return self._carry(self._dialogue.secrets())

    def set_secret(self, name: str, value: str) -> Secret:
        """A function that names it in ``secrets:`` finds it in its environment with its next load."""
        return self._carry(self._dialogue.set_secret(name, value))

    def delete_secret(self, name: str) -> None:
        self._carry(self._dialogue.delete_secret(name))

    def quarantined(self) -> list[Quarantined]:
        """Revisions that are shut out everywhere after faults of a device."""
        return self._carry(self._dialogue.quarantined())

    def lift(self, function: str) -> list[int]:
        """Let a function's revisions run again; which ones were shut out."""
        return self._carry(self._dialogue.lift(function))

    def projects(self) -> list[Project]:
        return self._carry(self._dialogue.projects())

    def create_project(self, name: str) -> Project:
        return self._carry(self._dialogue.create_project(name))

    def healthy(self) -> bool:
        """True when the gateway answers; raises otherwise."""
        return self._carry(self._dialogue.healthy())

    def ready(self) -> dict[str, Any]:
        """What the platform says of its readiness; raises ApiError while it is not ready."""
        return self._carry(self._dialogue.ready())


class AsyncClient:
    """The asynchronous client: the methods of :class:`Client`, awaited."""

    def __init__(self, url: str | None = None, key: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url, self.key = locate(url, key)
        self._http = httpx.AsyncClient(base_url=self.url, headers=_headers(self.key), transport=transport)
        self._dialogue = Dialogue()

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def carry(self, flow: Flow[T]) -> T:
        """Carry out a flow of smore/admin.py."""
        return await self._carry(flow)

    async def _carry(self, flow: Flow[T]) -> T:
        got: Answer | Broken | None = None
        while True:
            try:
                step = flow.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            match step:
                case Pause():
                    await asyncio.sleep(step.seconds)
                    got = None
                case Call():
                    began = time.monotonic()
                    try:
                        response = await self._http.request(
                            step.method, step.path, params=step.query, headers=step.headers, content=step.content, timeout=step.timeout_s
                        )
                        got = _answer(response, began)
                    except httpx.TransportError as error:
                        got = _broken(error, self.url, began)

    async def deploy(self, source: str | Path | Mapping[str, Any]) -> Deployed:
        return await self._carry(self._dialogue.deploy(source))

    async def functions(self) -> list[Function]:
        return await self._carry(self._dialogue.functions())

    async def function(self, name: str) -> Function:
        return await self._carry(self._dialogue.function(name))

    async def revisions(self, name: str) -> list[Revision]:
        return await self._carry(self._dialogue.revisions(name))

    async def rollback(self, name: str, revision: int) -> Function:
        return await self._carry(self._dialogue.rollback(name, revision))

    async def set_slo(self, name: str, deadline_ms: float | None) -> Function:
        return await self._carry(self._dialogue.set_slo(name, deadline_ms))

    async def set_scaling(self, name: str, changes: Mapping[str, object]) -> Function:
        return await self._carry(self._dialogue.set_scaling(name, changes))

    async def prewarm(self, since_s: float = 86_400.0) -> Prewarm:
        return await self._carry(self._dialogue.prewarm(since_s))

    async def delete(self, name: str) -> None:
        await self._carry(self._dialogue.delete(name))

    async def warm(self, name: str, gpu: str | None = None) -> list[str]:
        return await self._carry(self._dialogue.warm(name, gpu))

    async def offload(self, name: str, gpu: str | None = None) -> list[str]:
        return await self._carry(self._dialogue.offload(name, gpu))

    async def invoke(
        self,
        function: str,
        value: object,
        *,
        deadline_ms: float | None = None,
        wait_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> Invocation:
        return await self._carry(
            self._dialogue.invoke(function, value, deadline_ms=deadline_ms, wait_s=wait_s, idempotency_key=idempotency_key)
        )

    async def submit(self, function: str, value: object, *, deadline_ms: float | None = None, idempotency_key: str | None = None) -> str:
        return await self._carry(self._dialogue.submit(function, value, deadline_ms=deadline_ms, idempotency_key=idempotency_key))

    async def map(self, function: str, inputs: Iterable[object], *, deadline_ms: float | None = None) -> list[Invocation]:
        return await self._carry(self._dialogue.map(function, inputs, deadline_ms=deadline_ms))

    async def invocation(self, id_: str, *, wait_s: float | None = None) -> Invocation:
        return await self._carry(self._dialogue.invocation(id_, wait_s=wait_s))

    async def result(self, id_: str, *, raw: bool = False) -> Invocation:
        return await self._carry(self._dialogue.result(id_, raw=raw))

    async def cancel(self, id_: str) -> Invocation:
        return await self._carry(self._dialogue.cancel(id_))

    async def invocations(
        self, *, function: str | None = None, state: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> InvocationPage:
        return await self._carry(self._dialogue.invocations(function=function, state=state, limit=limit, cursor=cursor))

    async def queues(self) -> list[Queue]:
        return await self._carry(self._dialogue.queues())

    async def pause(self, function: str) -> None:
        await self._carry(self._dialogue.pause(function))

    async def resume(self, function: str) -> None:
        await self._carry(self._dialogue.resume(function))

    async def gpus(self) -> list[Gpu]:
        return await self._carry(self._dialogue.gpus())

    async def pause_gpu(self, id_: str) -> None:
        await self._carry(self._dialogue.pause_gpu(id_))

    async def resume_gpu(self, id_: str) -> None:
        await self._carry(self._dialogue.resume_gpu(id_))

    async def start_job(
        self,
        name: str,
        argv: Sequence[str],
        gpus: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        workload: str | None = None,
        budget: float | None = None,
        memory: str | None = None,
    ) -> Job:
        return await self._carry(self._dialogue.start_job(name, argv, gpus, env, workload, budget, memory))

    async def jobs(self) -> list[Job]:
        return await self._carry(self._dialogue.jobs())

    async def job(self, id_: str) -> Job:
        return await self._carry(self._dialogue.job(id_))

    async def statement(self, id_: str) -> Statement:
        return await self._carry(self._dialogue.statement(id_))

    async def stop_job(self, id_: str) -> Job:
        return await self._carry(self._dialogue.stop_job(id_))

    async def executions(self, id_: str) -> list[Execution]:
        return await self._carry(self._dialogue.executions(id_))

    async def explain(self, id_: str) -> Explanation:
        return await self._carry(self._dialogue.explain(id_))

    async def dry_run(self, function: str, value: object = None, *, rows: int | None = None, deadline_ms: float | None = None) -> DryRun:
        return await self._carry(self._dialogue.dry_run(function, value, rows=rows, deadline_ms=deadline_ms))

    async def predictor(self) -> Predictor:
        return await self._carry(self._dialogue.predictor())

    async def predictions(self, job: str, function: str, k: int = 1) -> list[PlacePrediction]:
        return await self._carry(self._dialogue.predictions(job, function, k))

    async def keys(self) -> list[Key]:
        return await self._carry(self._dialogue.keys())

    async def create_key(self, name: str, scopes: Sequence[str], project: str | None = None) -> Key:
        return await self._carry(self._dialogue.create_key(name, scopes, project))

    async def revoke_key(self, id_: str) -> None:
        await self._carry(self._dialogue.revoke_key(id_))

    async def secrets(self) -> list[Secret]:
        return await self._carry(self._dialogue.secrets())

    async def set_secret(self, name: str, value: str) -> Secret:
        return await self._carry(self._dialogue.set_secret(name, value))

    async def delete_secret(self, name: str) -> None:
        await self._carry(self._dialogue.delete_secret(name))

    async def quarantined(self) -> list[Quarantined]:
        return await self._carry(self._dialogue.quarantined())

    async def lift(self, function: str) -> list[int]:
        return await self._carry(self._dialogue.lift(function))

    async def projects(self) -> list[Project]:
        return await self._carry(self._dialogue.projects())

    async def create_project(self, name: str) -> Project:
        return await self._carry(self._dialogue.create_project(name))

    async def healthy(self) -> bool:
        return await self._carry(self._dialogue.healthy())

    async def ready(self) -> dict[str, Any]:
        return await self._carry(self._dialogue.ready())
