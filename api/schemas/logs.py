"""Lines of logs."""

from datetime import datetime

from pydantic import BaseModel

from smore.messages.logs import LogStream


class LogLine(BaseModel):
    """
    One line that a function or a job printed. ``id``: its position in the log, which ``Last-Event-ID`` takes; ``at``: by
    the clock of ``node``, the machine of the GPU instance ``gpu``; ``invocations``: of the batch that ran then, none =
    it was not running one: it was loaded, for instance. ``stream`` smore: the platform's own word. ``attempt``: of a
    job, whose standard error is part of its stdout.
    """

    id: str
    at: datetime
    stream: LogStream
    text: str
    revision: int = 0
    invocations: list[str] = []
    attempt: int = 0
    gpu: str = ""
    node: str = ""


class LogLines(BaseModel):
    """The newest lines of a log, the oldest of them first."""

    lines: list[LogLine]
