"""
A serverful job: a training on GPU instances, as the catalog knows it: what its owner asks for, its states and its end.

docs/reference/states.md is drawn from :data:`TRANSITIONS`. ``Store.jobs.move`` is the only writer of states.
"""

import signal
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal

from smore.domain.loss import DEFAULT_BUDGET

#: Share of a job's memory that is kept free in addition to it.
RESERVE: Final = 0.05
#: Where a job is from that the platform started; others are tracked or attached (JobStore.attach).
STARTED: Final = "started"
JobSource = Literal["started", "tracked", "attached"]
#: Exit code of a job that the platform refused to start, as of a command that a shell cannot execute.
REFUSED: Final = 126
#: Seconds from SIGTERM to SIGKILL where a job's owner says nothing.
GRACE_S: Final = 10.0
#: Bounds of ``JobRequest.share`` and of a number of micro-batches.
MOST_SHARE: Final = 10.0
MOST_MICRO_BATCHES: Final = 64
#: ``JobRequest.by`` of whoever asks for the earliest end that can be promised.
EARLIEST: Final = 0.0


class JobState(StrEnum):
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


WAITING = frozenset({JobState.QUEUED, JobState.HELD})
PLACED = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
OVER = frozenset({JobState.ENDED, JobState.LOST})


class Action(StrEnum):
    """What changes a job's state."""

    START = "start"
    RUN = "run"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    RESTART = "restart"
    STOP = "stop"
    END = "end"
    LOSE = "lose"


#: action → state before → state after. ``start`` and ``requeue`` are the job scheduler's; ``run``, ``end`` and ``lose``
#: follow from reports; ``hold``, ``release``, ``stop`` and ``restart`` are its owner's, and ``end`` of a job that waits.
TRANSITIONS: Mapping[Action, Mapping[JobState, JobState]] = MappingProxyType(
    {
        Action.START: {JobState.QUEUED: JobState.STARTING},
        Action.RUN: {JobState.STARTING: JobState.RUNNING},
        Action.HOLD: {JobState.QUEUED: JobState.HELD},
        Action.RELEASE: {JobState.HELD: JobState.QUEUED},
        Action.REQUEUE: {JobState.STARTING: JobState.QUEUED, JobState.RUNNING: JobState.QUEUED},
        Action.RESTART: {JobState.ENDED: JobState.QUEUED, JobState.LOST: JobState.QUEUED},
        Action.STOP: {JobState.STARTING: JobState.STOPPING, JobState.RUNNING: JobState.STOPPING},
        Action.END: {state: JobState.ENDED for state in JobState if state not in OVER},
        Action.LOSE: {state: JobState.LOST for state in JobState if state in PLACED},
    }
)


class PromiseState(StrEnum):
    """
    What has become of a job's promised end: ``none`` was promised; ``kept_so_far``; ``at_risk``: it is expected to end later;
    ``broken``: it has not ended by then, or not succeeded; ``kept``; ``withdrawn``: its owner stopped it.
    """

    NONE = "none"
    KEPT_SO_FAR = "kept_so_far"
    AT_RISK = "at_risk"
    BROKEN = "broken"
    KEPT = "kept"
    WITHDRAWN = "withdrawn"


class Outcome(StrEnum):
    """
    How a job ended: ``succeeded`` with exit code 0, ``failed`` with another one, ``killed`` by a signal, ``stopped`` by its
    owner; ``refused``: the platform never started or watched it; ``detached``: it watches it no longer; or ``unknown``.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    STOPPED = "stopped"
    REFUSED = "refused"
    DETACHED = "detached"
    UNKNOWN = "unknown"


def state_of(stored: JobState, ranks: Set[str]) -> JobState:
    """
    A job's state from its stored state and the states that its ranks report: lost if a rank is lost, running while a
    rank runs, ended when all have ended.
    """
    if stored in OVER:
        return stored
    if JobState.LOST in ranks:
        return JobState.LOST
    if JobState.RUNNING in ranks:
        return JobState.STOPPING if stored is JobState.STOPPING else JobState.RUNNING
    return JobState.ENDED if ranks == {JobState.ENDED} else stored


def exit_of(ranks: Collection[int | None]) -> int | None:
    """
    A job's exit code from those of its ranks: the first that is not 0; 0 only if every rank is known to have ended with
    0; None otherwise.
    """
    bad = next((code for code in ranks if code), None)
    return bad if bad is not None or None in ranks or not ranks else 0


def outcome_of(state: JobState, exit_code: int | None, *, asked: bool, reason: str) -> Outcome | None:
    """
    None while the job goes on. ``asked``: its owner stopped or detached it; ``reason``: why the platform refused or
    detached it, '' = it did neither.
    """
    if state not in OVER:
        return None
    if reason:
        return Outcome.REFUSED if exit_code == REFUSED else Outcome.DETACHED
    if state is JobState.LOST:
        return Outcome.UNKNOWN
    if asked:
        return Outcome.STOPPED
    if exit_code is None:
        return Outcome.UNKNOWN
    if exit_code < 0:
        return Outcome.KILLED
    return Outcome.FAILED if exit_code else Outcome.SUCCEEDED


def signal_of(exit_code: int | None) -> str | None:
    """The name of the signal that ended a process (``SIGSEGV``); None = none did."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def ended_in_words(outcome: str, exit_code: int | None, reason: str = "") -> str:
    """
    How a job, or an attempt of it, ended: ``killed by SIGKILL``, ``failed, exit code 3``. ``outcome``: one of
    :class:`Outcome`, or the end of an attempt (``lost``, ``outgrown``).
    """
    signal_name = signal_of(exit_code)
    match outcome:
        case Outcome.KILLED | Outcome.FAILED if signal_name is not None:
            return f"killed by {signal_name}"
        case Outcome.FAILED if exit_code is not None:
            return f"failed, exit code {exit_code}"
        case Outcome.REFUSED | Outcome.DETACHED if reason:
            return f"{outcome}, {reason}"
        case Outcome.STOPPED:
            return "stopped by its owner"
        case _:
            return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """
    What a job's owner asks for, without its plain variables, which are sealed (smore/process/vault.py). It is kept whole on
    the way to the worker and to the rule: whoever passes it on names no field.

    ``count`` GPU instances of the kind ``device`` ('' = any), or those that ``gpus`` names; ``memory_mib`` on each of
    them, 0 = not said. Its length: ``iterations`` or ``duration_s``, 0 = not said. ``restarts``: how often it may be
    started again after a failure; ``grace_s``: from SIGTERM to SIGKILL. ``secrets``: variable → name of a secret.
    ``trusted``: an operator asked, so any program may run; ``cwd``: its working folder, '' = the worker's.

    ``share``: an iteration may take up to 1 + ``share`` times as long because of another training; 0 = nobody trains
    beside it. ``micro_batches``: in how many parts its loop can run a batch, rising from 1; none = in one.

    ``by``: the moment by which its end is to be promised, epoch seconds, :data:`EARLIEST` = the earliest that can be; None =
    no promise is asked for. ``unless``: where it cannot be, the job is refused, or waits without one.
    """

    argv: Sequence[str] = ()
    count: int = 1
    gpus: Sequence[str] = ()
    device: str = ""
    memory_mib: float = 0.0
    workload: str = ""
    budget: float = DEFAULT_BUDGET
    iterations: int = 0
    duration_s: float = 0.0
    restarts: int = 0
    grace_s: float = 10.0
    secrets: Mapping[str, str] = field(default_factory=dict)
    trusted: bool = False
    cwd: str = ""
    share: float = 0.0
    micro_batches: Sequence[int] = ()
    by: float | None = None
    unless: Literal["refuse", "queue"] = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """
    A job that succeeded, for lengths to be learnt from: it held its GPU instances for ``seconds``, less what others
    beside it cost it; ``ratios``: what was left of it over what a source told, of each that was asked first.
    """

    project: str
    name: str
    seconds: float
    ratios: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """A GPU instance for a job that waits."""

    gpu: str
    """The name of the GPU instance"""
    refused: str | None = None
    """
    Why it does not take the job now (``lost``, ``closed``, ``attached``, ``busy``, ``kept``, ``device``, ``memory``,
    ``mig``, ``pinned``, ``home``); null = it would
    """
    message: str
    """``refused`` in words, to be read behind the name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDecision:
    """What the job scheduler decided of a job, and why."""

    at: datetime
    """When it was decided"""
    attempt: int
    """The number of the attempt that it was about; 0 = none has begun"""
    kind: str
    """``start``, ``stop``, ``requeue`` or ``finish``"""
    gpus: Sequence[str]
    """The GPU instances that it was about"""
    message: str
    """Why it was decided, in words"""
    reasons: Mapping[str, Any] | None = None
    """
    Of a start: its place in the order of that round, how many before it did not fit (``passed``), and why other GPU
    instances were refused; null of others
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStep:
    """One step of the closed loop that keeps a job's budget."""

    at: datetime
    """From when on it held"""
    gpu: str
    """The GPU instance on which it held"""
    step: str
    """``open``, ``held`` (nothing new is placed there), ``duty_75``, ``duty_50``, ``duty_25``, ``offloaded``"""
    duty: float
    """The part of the time in which functions may work there, 0 to 1"""
    factor: float
    """By what predicted losses are multiplied there"""
