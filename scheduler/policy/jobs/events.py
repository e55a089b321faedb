"""What has happened, as the rule for trainings hears it. Times are epoch seconds, UTC."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from scheduler.policy.jobs.spec import JobSpec
from smore.domain.job import PastRun


class Ended(StrEnum):
    """
    How an attempt ended. ``outgrown``: as a guest it took more memory than was said of it, so it was stopped before its
    host could be hurt; ``preempted``: the rule stopped it, which only a simulation lets it do.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    OUTGROWN = "outgrown"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """
    A job waits. A rule that takes over is told what it cannot know by the fields with defaults: ``attempt`` = attempts
    so far, ``waited_s`` and ``ran_s`` = time in the queue and on GPU instances before now, ``lost_s`` = what of the
    latter other trainings beside it cost it, ``moved`` = the place of the operator's order among such orders (0 =
    none), ``not_before`` = the end of its back-off, ``promised`` = the moment by which it was promised to have ended (0 =
    it was promised nothing, None = that is not decided); the others as in :class:`AttemptOver`.
    """

    spec: JobSpec
    submitted_at: float
    attempt: int = 0
    waited_s: float = 0.0
    ran_s: float = 0.0
    iterations: int = 0
    restarts: int = 0
    short_ends: int = 0
    not_before: float = 0.0
    home: str = ""
    held: bool = False
    moved: int = 0
    lost_s: float = 0.0
    promised: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUnderWay:
    """
    Told to a rule that takes over: ``attempt`` was placed on ``gpus`` at ``since_at``, earlier ones first, so that hosts
    come before their guests. ``stopping``: it is being ended. ``micro_batches``: in how many parts it runs its batch;
    ``lost_s``: what others beside it cost the attempt so far.
    """

    id: str
    attempt: int
    gpus: tuple[str, ...]
    since_at: float
    stopping: bool = False
    micro_batches: int = 1
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWithdrawn:
    """Its owner stopped it: it is not started (again)."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld:
    """A job that waits is held back, or released."""

    id: str
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMoved:
    """An operator puts a job before all others; of two, the later order wins."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRefused:
    """A start was decided but did not happen (the job or a GPU instance had changed): the job waits again."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed:
    """
    The attempt has done ``iterations`` of the job in all, and one takes ``iteration_s`` now, whoever is beside it.
    ``length``: how many the job has, as its process says, 0 = it says nothing; it counts where its owner said none.
    ``memory_mib``: what its largest rank takes, with what is kept free beside it.
    """

    id: str
    attempt: int
    iterations: int
    iteration_s: float
    length: int = 0
    memory_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOver:
    """
    No process of the attempt is left. ``iterations`` that its last checkpoint holds; ``home``: the node on which that
    lies, '' = all see it. ``memory_mib`` that one took that has outgrown what was said: it is started again with that, alone.
    """

    id: str
    attempt: int
    ended: Ended
    iterations: int = 0
    home: str = ""
    memory_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeen:
    """
    A GPU instance reports. ``device``: its kind; ``mig``: a slice, which forms no gangs; ``closed``: why it takes no
    job (drained, paused, protected, unhealthy), '' = it does; ``attached``: trainings there that this rule did not
    place; ``held``: instances of functions that are meant to stay there; ``context_mib``: what a process takes of its
    memory before it does anything.
    """

    gpu: str
    node: str
    device: str
    memory_mib: float
    mig: bool = False
    closed: str = ""
    attached: int = 0
    held: int = 0
    context_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLost:
    """It has been silent for too long: the ranks on it are lost."""

    gpu: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLimit:
    """
    ``gpus`` that a project's jobs may hold at a time, None = as many as there are; of two jobs the remaining time is
    divided by the project's ``weight``. ``promised``: GPU instances for which its jobs may have promises, waiting or
    running, None = ``gpus``.
    """

    gpus: int | None = None
    weight: float = 1.0
    promised: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsChanged:
    """All of them: a project that is not named has no limit and the weight 1."""

    limits: Mapping[str, ProjectLimit]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsKnown:
    """Told to a rule that takes over: the last runs, oldest first."""

    runs: Sequence[PastRun]


class PairKnown(NamedTuple):
    """
    On one ``device``, an iteration of ``workload`` takes ``slowdown`` (>= 1) times as long as alone while ``beside``
    trains there too; more than ``most`` times in one case of ten. ``worse``: one of the two was measured to lose more than
    its owner allows, so the pair is not formed.
    """

    device: str
    workload: str
    beside: str
    slowdown: float
    most: float
    worse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsKnown:
    """All pairs that are measured or predicted, in both directions: those that are not named are never formed."""

    pairs: Sequence[PairKnown]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMeasured:
    """
    The attempt is measured to take ``slowdown`` times as long as alone, beside those that are beside it now. It holds
    instead of what was predicted until they change. Where it is more than the job's owner allows, the pair is not
    formed again until the next :class:`PairsKnown`.
    """

    id: str
    attempt: int
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestHeldBack:
    """The attempt may run for ``part`` of the time from now on, because of what it costs its host; 1 = freely."""

    id: str
    attempt: int
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAsked:
    """The shell is about to publish the queue; answered by :class:`~scheduler.policy.jobs.decisions.PublishQueue`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAsked:
    """
    What would become of a job that came now; answered by :class:`~scheduler.policy.jobs.decisions.TrialAnswered`.
    Nothing is kept of it.
    """

    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesAsked:
    """
    What stands against a job on each GPU instance; answered by
    :class:`~scheduler.policy.jobs.decisions.PlacesAnswered`.
    """

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreaksAsked:
    """
    Which promises would no longer hold if the ``closed`` GPU instances took no trainings and these ``limits`` held in place of the
    projects' own; answered by :class:`~scheduler.policy.jobs.decisions.BreaksAnswered`.
    """

    closed: Collection[str]
    limits: Mapping[str, ProjectLimit]


#: Events that ask and change nothing.
Question = QueueAsked | TrialAsked | PlacesAsked | BreaksAsked

Event = (
    JobSubmitted
    | JobUnderWay
    | JobWithdrawn
    | JobHeld
    | JobMoved
    | StartRefused
    | JobProgressed
    | AttemptOver
    | GpuSeen
    | GpuLost
    | LimitsChanged
    | RunsKnown
    | PairsKnown
    | PairMeasured
    | GuestHeldBack
    | Question
)
