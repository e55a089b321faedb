"""Lines of logs."""

from datetime import datetime

from api.schemas.fields import Schema
from smore.messages.logs import LogStream


class LogLine(Schema):
    """One line that a function or a job printed."""

    id: str
    """Its position in the log, which ``Last-Event-ID`` takes"""
    at: datetime
    """When it was printed, by the clock of the machine ``node``"""
    stream: LogStream
    """
    Where it was written; ``smore`` is the platform's own word. The standard error of a job is part of its ``stdout``
    """
    text: str
    """What was printed, without the line's end"""
    revision: int = 0
    """The number of the function's revision; 0 = a job printed it"""
    invocations: list[str] = []
    """The ids of the batch that ran then; none = none ran: the handler was loaded, for instance"""
    attempt: int = 0
    """The attempt of the job that printed it; 0 = a function did"""
    gpu: str = ""
    """The GPU instance on which it was printed"""
    node: str = ""
    """The machine of that GPU instance"""


class LogLines(Schema):
    """The newest lines of a log."""

    lines: list[LogLine]
    """The lines, the oldest first"""
