"""A serverful job: a long-running training process on GPU instances, as the catalog knows it."""

from enum import StrEnum


class JobState(StrEnum):
    """``running``, ``ended`` and ``lost`` are what a GPU worker reports (smore/fleet.py); the others are what was asked for."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    LOST = "lost"
