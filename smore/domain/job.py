"""A serverful job: a long-running training process on GPU instances, as the catalog knows it."""

from collections.abc import Set
from enum import StrEnum


class JobState(StrEnum):
    """``running``, ``ended`` and ``lost`` are what a GPU worker reports (smore/fleet.py); the others are what was asked for."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    LOST = "lost"


OVER = frozenset({JobState.ENDED, JobState.LOST})


def state_of(stored: JobState, ranks: Set[str]) -> JobState:
    """A job's state, from what is known of it and what its ranks report: lost if one is, running while one is, ended when all are."""
    if stored in OVER:
        return stored
    if JobState.LOST in ranks:
        return JobState.LOST
    if JobState.RUNNING in ranks:
        return JobState.STOPPING if stored is JobState.STOPPING else JobState.RUNNING
    return JobState.ENDED if ranks == {JobState.ENDED} else stored
