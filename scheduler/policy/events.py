"""What has happened, as the policy hears it. Times are epoch seconds, UTC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from scheduler.policy.degradation import PolicyTable
from scheduler.policy.forecast import Forecast
from smore.domain.function import FunctionSpec
from smore.domain.learned import Learned, LearnedCost
from smore.domain.loss import JobLoss
from smore.domain.override import Override


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionKnown:
    """A revision that invocations may name from now on."""

    function: str
    revision: int
    spec: FunctionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRemoved:
    """A function was deleted: what waits for it fails."""

    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficMoved:
    """A revision takes its function's traffic from now on, or its knobs have changed."""

    function: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationArrived:
    """
    An invocation waits (new, or back in the queue: then ``attempt`` > 0). ``alone``: it must not share a batch; ``bulk``:
    it is of class batch.
    """

    function: str
    revision: int
    id: str
    attempt: int
    arrival_at: float
    deadline_at: float
    rows: int = 1
    shape: str = ""
    alone: bool = False
    bulk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationHeld:
    """
    Told to a policy that takes over: an invocation dispatched to, or running on, ``gpu`` since ``since_at``. ``begun``:
    it runs. Those that run come first.
    """

    function: str
    revision: int
    id: str
    attempt: int
    rows: int
    gpu: str
    since_at: float
    deadline_at: float = inf
    begun: bool = True
    bulk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationSettled:
    """
    It has ended. ``run_s`` is the measured run time of its warm batch of ``batch_rows`` rows; None = cold, or not run
    to the end. ``idle``: others held that back.
    """

    id: str
    attempt: int
    run_s: float | None = None
    batch_rows: int = 0
    idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWanted:
    """A call of a revision was refused because no instance stood ready, and would have been in time with one."""

    function: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRefused:
    """A dispatch was decided but the queue did not let it happen (cancelled meanwhile)."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReported:
    """
    A GPU worker's heartbeat.

    ``warm`` counts the resident instances of each (function, revision), loading ones included, ``loading`` those alone;
    ``sizes`` is the largest memory seen of each. Memory in MiB: ``memory_used`` by all that is there, ``memory_idle``
    the part that idle instances would give back. ``job_degradation`` is the measured slow-down of the serverful job
    here (a fraction), None without a job or without data.
    """

    gpu: str
    boot: str
    at: float
    slots: int
    memory_total: float
    memory_used: float
    memory_idle: float
    utilisation: float
    function_utilisation: float
    jobs: int
    warm: Sequence[tuple[str, int, int]]
    loading: Sequence[tuple[str, int, int]] = ()
    sizes: Sequence[tuple[str, int, float]] = ()
    quarantined: Sequence[str] = ()
    job_degradation: float | None = None
    device: str = ""
    sharing_mode: str = ""
    #: Of each serverful job there, the profiled workload that it is, '' = it does not say.
    workloads: Sequence[str] = ()
    #: What functions cost each serverful job there, where it says.
    losses: Sequence[JobLoss] = ()
    #: The longest of each (function, revision)'s last runs there, seconds: a run under way cannot be stopped.
    stretches: Sequence[tuple[str, int, float]] = ()
    #: Nothing may start there for a moment: what the jobs lose is being measured.
    closed: bool = False
    #: Processes that compute there, were registered by nobody and allowed by nobody: nothing is placed beside them.
    unregistered: int = 0
    #: Each idle instance: function, revision, MiB, seconds since it last ran.
    idle: Sequence[tuple[str, int, float, float]] = ()
    #: Each instance whose weights lie in host memory: function, revision, when it goes if nobody wants it. What its
    #: process still holds of the device is part of ``memory_idle``.
    parked: Sequence[tuple[str, int, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLost:
    """No heartbeat within its time: nothing is placed there."""

    gpu: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PausesChanged:
    """
    The whole set: ``*``, ``f:<function>``, ``g:<gpu>`` are paused. With a ``-`` before it a target is drained: a GPU
    instance takes nothing more and gives back what idles there; a function's or the platform's gate is closed and what
    waits is served, which is no matter of placement.
    """

    paused: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverridesChanged:
    """All of it: what is not named any more is over."""

    overrides: Sequence[Override]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmLimits:
    """
    Memory that all warm instances of a project may hold together, MiB, by project; one that is not named has no limit.
    """

    mib: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpdated:
    """Another version of the degradation table holds from now on."""

    table: PolicyTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastsUpdated:
    """Arrivals that are expected from now on, by function, as of ``made_at`` (epoch seconds)."""

    made_at: float
    forecasts: Mapping[str, Forecast]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsKnown:
    """
    Told to a policy that takes over: (beginning of a minute, arrivals in it) by function, in order; minutes that nobody
    counted lack.
    """

    counts: Mapping[str, Sequence[tuple[float, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedKnown:
    """Told to a policy that takes over: what a former one had learned of a revision."""

    function: str
    learned: Learned


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsKnown:
    """
    Told to a policy that takes over, before the first report: what functions cost trainings, by GPU instance and
    training.
    """

    costs: Mapping[str, Mapping[str, LearnedCost]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReported:
    """
    A worker tells of an instance: what its load took (None = it was told before), whether it failed or was evicted;
    ``host``: the load came out of host memory.
    """

    function: str
    revision: int
    gpu: str
    load_s: float | None = None
    failed: bool = False
    evicted: bool = False
    host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked:
    """
    A gateway asks what would become of an invocation that came now; answered by
    :class:`~scheduler.policy.decisions.QuestionAnswered`. ``deadline_at`` in epoch seconds.
    """

    id: str
    function: str
    revision: int
    rows: int
    deadline_at: float
    bulk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDue:
    """
    The shell is about to publish what gateways admit by; answered by
    :class:`~scheduler.policy.decisions.PublishAdmission`. ``revisions``: function → the revision that takes its
    traffic.
    """

    revisions: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusDue:
    """
    The shell is about to publish gauges and to check the arrays; answered by
    :class:`~scheduler.policy.decisions.PublishStatus`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmStatusDue:
    """
    The shell is about to publish which instances are kept ready; a policy that prewarms answers by
    :class:`~scheduler.policy.decisions.PublishPrewarmStatus`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedDue:
    """
    The shell is about to keep what was learned; answered by :class:`~scheduler.policy.decisions.PublishLearned`.
    ``revisions``: function → the revision that takes its traffic; ``kept``: what is kept already.
    """

    revisions: Mapping[str, int]
    kept: Mapping[str, Learned]


#: Events that ask and change nothing.
Question = QuestionAsked | AdmissionDue | StatusDue | PrewarmStatusDue | LearnedDue

Event = (
    FunctionKnown
    | FunctionRemoved
    | InvocationArrived
    | InvocationHeld
    | InvocationSettled
    | LoadWanted
    | ClaimRefused
    | GpuReported
    | GpuLost
    | PausesChanged
    | OverridesChanged
    | WarmLimits
    | TableUpdated
    | TrafficMoved
    | ForecastsUpdated
    | CountsKnown
    | LearnedKnown
    | CostsKnown
    | InstanceReported
    | Question
)
