"""
What the rule for trainings wants done, each with its reasons, in codes and fields (scheduler/jobs/wording.py has the words).
Times are epoch seconds, UTC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

from scheduler.policy.jobs.events import Ended, GpuSeen
from scheduler.policy.jobs.lengths import Length
from scheduler.policy.jobs.pairs import Slowdown
from scheduler.policy.jobs.spec import MicroBatches, Needs


class JobRefusal(StrEnum):
    """Why a GPU instance does not take a job; of a drained, paused, … one see ``GpuSeen.closed``."""

    LOST = "lost"
    CLOSED = "closed"
    ATTACHED = "attached"
    BUSY = "busy"
    KEPT = "kept"
    DEVICE = "device"
    MEMORY = "memory"
    MIG = "mig"
    PINNED = "pinned"
    HOME = "home"


class PairRefusal(StrEnum):
    """Why a job does not start beside one that runs."""

    STOPPING = "stopping"
    FULL = "full"
    FEW = "few"
    KEPT = "kept"
    UNWILLING = "unwilling"
    UNPROFILED = "unprofiled"
    WORSE = "worse"
    SHARE = "share"
    ITS_SHARE = "its_share"
    MEMORY_UNKNOWN = "memory_unknown"
    MEMORY = "memory"
    LITTLE = "little"
    WAITING = "waiting"
    PROMISED = "promised"


class Turn(StrEnum):
    """Why a job was tried when it was: in its order, by patience, by an operator's order, for a promise that has no time left."""

    PROMISED = "promised"
    ORDER = "order"
    PATIENCE = "patience"
    MOVED = "moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReasons:
    """
    Why a job starts: ``place`` in the order of the round (from 1), ``passed``: jobs before it that did not fit;
    ``kept_for``: the job for which GPU instances are kept, '' = none are; ``refused``: how many others for what.
    """

    setting: str
    turn: Turn
    place: int
    passed: int
    waited_s: float
    length: Length
    nodes: int
    kept_for: str
    refused: Mapping[JobRefusal, int]


class BesideHost(NamedTuple):
    """
    A host that a job starts beside as a guest: how many times longer an iteration of the job takes because of it
    (``own``), and one of the host because of the job (``its``), as expected and at most (in nine cases of ten).
    """

    id: str
    own: float
    own_most: float
    its: float
    its_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """
    Start ``attempt`` of a job on all of ``gpus``; the rank of each is its place there, those of a node in a row.
    ``parts``: how it is to run its batch; ``iterations`` of the job, with which it begins; ``beside``: its hosts there, () =
    it has all of its GPU instances for itself.
    """

    id: str
    attempt: int
    gpus: tuple[str, ...]
    reasons: StartReasons
    parts: MicroBatches
    iterations: int
    beside: tuple[BesideHost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End every rank of an attempt. ``ended``: how it will be over (lost with ``gpu``, which is silent, or preempted)."""

    id: str
    attempt: int
    ended: Ended
    gpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """
    The job waits again, because its attempt ``ended`` so, and starts ``not_before``, after ``pause_s``; ``restarts`` of those
    ``allowed`` and short ends in a row so far.
    """

    id: str
    attempt: int
    ended: Ended
    not_before: float
    pause_s: float
    restarts: int
    allowed: int
    short_ends: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """
    The job is over for good: all ``allowed`` restarts are used, or it had too many ``short_ends`` in a row. ``seconds`` and
    ``ratios``: what is to be remembered of one that succeeded (:class:`~smore.domain.job.PastRun`).
    """

    id: str
    ended: Ended
    allowed: int
    short_ends: int
    seconds: float
    ratios: Mapping[str, float]


class Promised(NamedTuple):
    """The job has ended ``by`` then: it starts ``latest_start_at`` at the latest."""

    id: str
    by: float
    latest_start_at: float


class Unpromised(StrEnum):
    """
    Why an end is not promised: nobody knows how long the job takes, or it takes longer; the project's limit; whoever runs or
    was promised one; this setting promises nothing.
    """

    UNKNOWN = "unknown"
    LENGTH = "length"
    LIMIT = "limit"
    OTHERS = "others"
    SETTING = "setting"


class NotPromised(NamedTuple):
    """
    ``earliest``: the first moment that would be promised, None = none. The job waits without, if its owner wants that. By
    ``why``: its ``length``, the ``sure_s`` seconds that it surely takes no longer than and the ``left_s`` until then; how many
    GPU instances the project's promises may be for at ``most``, and are ``promised``; the ``others``, None = too few GPU
    instances take trainings; the ``setting``.
    """

    id: str
    why: Unpromised
    length: Length
    earliest: float | None = None
    setting: str = ""
    sure_s: float = 0.0
    left_s: float = 0.0
    most: float = inf
    promised: int = 0
    others: Sequence[str] | None = ()


class Wait(StrEnum):
    """Why a job has not started."""

    HELD = "held"
    BACK_OFF = "back_off"
    LIMIT = "limit"
    PINNED = "pinned"
    HOME = "home"
    TOO_FEW = "too_few"
    BUSY = "busy"
    KEPT = "kept"
    PROMISED = "promised"
    ORDER = "order"
    STOPPING = "stopping"
    NONE = "none"


class GpuPlace(NamedTuple):
    """
    A GPU instance for a job of these ``needs``: why it does not take the job now (None = it does), its last report, and as
    the job's owner calls them who trains there and for whom it is kept.
    """

    gpu: str
    needs: Needs
    refused: JobRefusal | None
    seen: GpuSeen | None
    trains: Sequence[str] = ()
    kept_for: str = ""


class Nearest(NamedTuple):
    """
    Of the jobs that run, the ``host`` (as the guest's owner calls it) with which a guest would do the most, and why it starts
    not even there: what the two would cost each other, their ``gain`` over the work of one alone, the memory that each needs, the
    GPU instance ``seen``, and the way in which the guest would fit if its owner allowed that.
    """

    host: str
    why: PairRefusal
    own: Slowdown
    its: Slowdown
    gain: float
    memory_mib: float
    host_mib: float
    seen: GpuSeen
    fits: MicroBatches | None


class Doubt(NamedTuple):
    """Why a job that may share starts beside nobody: how many jobs that run, beside the nearest, were ``refused`` for what."""

    refused: Mapping[PairRefusal, int]
    nearest: Nearest | None


class Facts(NamedTuple):
    """
    What belongs to a code of :class:`Wait`. How many GPU instances are ``free`` to the job, and others ``refused`` it for what, in
    order, those that are closed by why they are; ``places`` that it is pinned to and that do not take it. How many its project
    may hold at ``most``, and has ``held``. ``others``, as its owner calls them: who is first, whose promises would break ('' =
    its own), or who runs beside it. ``in_s``: seconds until it may start, or until whoever is first is expected to. What it takes
    now, times as long as alone (``measured``, or expected), and the ``part`` of the time in which it may run.
    """

    needs: Needs
    free: int = 0
    refused: Sequence[tuple[JobRefusal, str, int]] = ()
    places: Sequence[GpuPlace] = ()
    most: float = inf
    held: int = 0
    others: Sequence[str] = ()
    in_s: float = 0.0
    slowdown: float = 1.0
    measured: bool = False
    part: float = 1.0


class Pledge(NamedTuple):
    """
    The promise of a job that is not over: the moment ``by``, its latest start (None = it runs), what puts it ``at_risk`` by
    expected lengths ('' = nothing), and of one that runs what functions and another training may cost it so that it is kept,
    fractions of its iteration time.
    """

    by: float
    latest_start_at: float | None
    at_risk: str
    budget: float = inf
    share: float = inf


class Expected(NamedTuple):
    """
    Times of a job, each (by expected lengths, by 90 % lengths) and if nobody shorter comes, None = nobody can say.
    ``gpus``: where it runs, () = it waits, and ``why`` and its ``facts`` say for what; ``doubt``: why beside nobody, None = that
    is not asked; ``unsaid``: what its owner would have to say of it for that.
    ``place`` in the queue from 1, 0 = it runs. ``beside``: the jobs
    with which it shares GPU instances, of which it is a ``guest`` where they were there first. ``lost_s``: what others
    beside it have cost it over all attempts, seconds. ``promise``: None = it has none.
    """

    id: str
    place: int
    gpus: tuple[str, ...]
    start_at: tuple[float, float] | None
    end_at: tuple[float, float] | None
    length: Length
    waited_s: float
    why: Wait
    facts: Facts
    doubt: Doubt | None = None
    unsaid: Sequence[str] = ()
    beside: tuple[str, ...] = ()
    guest: bool = False
    lost_s: float = 0.0
    promise: Pledge | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishQueue:
    """Every job, those that run first, then those that wait in their order. ``kept``: GPU instances free and kept; ``promised``: for
    how many there are promises."""

    jobs: Sequence[Expected]
    kept_for: str
    kept: int
    promised: int


class Unfit(StrEnum):
    """
    Why a job can never start here: its project's limit; one that it is pinned to never reported, is a slice, or has too little
    memory; no GPU instance of its kind reported, none has the memory, or too few can form a gang.
    """

    LIMIT = "limit"
    UNSEEN = "unseen"
    MIG = "mig"
    PIN_MEMORY = "pin_memory"
    DEVICE = "device"
    MEMORY = "memory"
    GANG = "gang"


class Misfit(NamedTuple):
    """
    Why a job can never start here, the field of its request, and the largest value that could; the GPU instance or kind that
    it ``asked`` for, or how many.
    """

    why: Unfit
    field: str
    largest: float
    asked: str | int = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAnswered:
    """
    Either what would become of the job (``gpus``: it would start there at once, as the guest of the jobs ``beside``, () =
    alone; ``expected`` knows of no guests), or why it never could. ``promise``: of the end that it asks for, else of the earliest
    that could be.
    """

    id: str
    gpus: tuple[str, ...]
    expected: Expected | None
    misfit: Misfit | None
    beside: tuple[str, ...] = ()
    promise: Promised | NotPromised | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesAnswered:
    """``places``: every GPU instance, by name; none where there is no such job, or it does not wait."""

    id: str
    places: Sequence[GpuPlace]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreaksAnswered:
    """``jobs``: their ids, in order."""

    jobs: Sequence[str]


#: What changes jobs, and what only answers.
Action = Start | Stop | Requeue | Finish | Promised | NotPromised
Answer = PublishQueue | TrialAnswered | PlacesAnswered | BreaksAnswered
Decision = Action | Answer


class JobRound(NamedTuple):
    """
    What a call of ``decide`` ends in: decisions in the order in which they must be performed, and when there is
    something to decide even if nothing happens until then (inf = never).
    """

    decisions: list[Decision]
    wake_at: float
