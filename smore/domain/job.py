"""A serverful job: a long-running training process on GPU instances, as the catalog knows it."""

import signal
from collections.abc import Collection, Set
from enum import StrEnum
from typing import Final

#: Of a job's memory, kept free beside it.
RESERVE: Final = 0.05
#: Exit code of a job that was not allowed to start (as shells say "cannot be executed").
REFUSED: Final = 126


class JobState(StrEnum):
    """
    ``running``, ``ended`` and ``lost`` are what a GPU worker reports (smore/messages/reports.py); the others are what was
    asked for.
    """

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    LOST = "lost"


OVER = frozenset({JobState.ENDED, JobState.LOST})


class Outcome(StrEnum):
    """
    How a job ended: with exit code 0; with another one; by a signal; because its owner asked for it; it was never
    started or watched; it was watched no longer; nobody knows.
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
    A job's state, from what is known of it and what its ranks report: lost if one is, running while one is, ended when
    all are.
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
    A job's exit code from those of its ranks: the first that is not 0, and 0 only where every rank is known to have
    ended so.
    """
    bad = next((code for code in ranks if code), None)
    return bad if bad is not None or None in ranks or not ranks else 0


def outcome_of(state: JobState, exit_code: int | None, *, asked: bool, reason: str) -> Outcome | None:
    """
    None = it goes on. ``asked``: its owner stopped it, or let it go; ``reason``: why the platform refused it or let it
    go by itself.
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
