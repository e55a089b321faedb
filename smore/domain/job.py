"""A serverful job: a long-running training process on GPU instances, as the catalog knows it."""

import signal
from collections.abc import Collection, Set
from enum import StrEnum
from typing import Final

#: Share of a job's memory that is kept free in addition to it.
RESERVE: Final = 0.05
#: Exit code of a job that the platform refused to start, as of a command that a shell cannot execute.
REFUSED: Final = 126
#: Seconds from SIGTERM to SIGKILL where a job's owner says nothing.
GRACE_S: Final = 10.0


class JobState(StrEnum):
    """
    GPU workers report ``running``, ``ended`` and ``lost`` (smore/messages/reports.py). ``starting`` and ``stopping`` say
    what was asked for.
    """

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    LOST = "lost"


OVER = frozenset({JobState.ENDED, JobState.LOST})


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
