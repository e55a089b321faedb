"""What the dashboard is told every second."""

from datetime import datetime
from enum import StrEnum

from api.schemas.fields import Schema


class Topic(StrEnum):
    """What can be watched."""

    GPUS = "gpus"
    QUEUES = "queues"
    TRAININGS = "trainings"
    PROBLEMS = "problems"


class LiveProblem(Schema):
    """Something that a person should look at."""

    id: str
    """What it is about: the same as long as it lasts"""
    kind: str
    """
    ``no_leader``, ``no_job_leader``, ``silent``, ``unhealthy``, ``paused``, ``budget_not_kept``, ``training_failed``,
    ``refused`` or ``record_lag``
    """
    text: str
    """What is the matter, in a sentence"""
    since: datetime | None = None
    """Since when it is so; null = not known"""
    page: str
    """The page of the dashboard that shows it"""
    command: str
    """The command of ``smore`` that says more, or ends it"""
