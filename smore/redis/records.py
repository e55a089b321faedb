"""
An invocation in Redis: its keys, the fields of its hash, and the values that readers get.

:data:`FIELDS` names the fields once for Python and for the Lua scripts (``F.<name>`` there). Times are integer
microseconds of Redis' clock; 0 = it has not happened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

import msgspec

from smore.domain.invocation import Encoding

#: Name → field of the hash of an invocation. The short words are the format in Redis and do not change.
FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "function": "f",  # "<project>/<name>"
        "revision": "rev",
        "state": "st",
        "cause": "cause",
        "attempt": "at",
        "starts": "starts",  # how often a worker began it
        "lost": "lost",  # how often no worker began a dispatch of it
        "max_attempts": "ma",
        "deadline_us": "dl",
        "arrival_us": "ar",
        "schedule_us": "sc",  # how long deciding took
        "claimed_us": "cl",
        "started_us": "su",
        "finished_us": "fi",
        "gpu": "gpu",
        "channel": "ch",  # channel of the gateway that waits, '' = none waits
        "encoding": "enc",  # of the payload
        "accept": "acc",  # the encoding that the caller wants
        "rows": "rows",
        "shape": "shp",  # the batching key
        "alone": "al",  # 1 = runs without others in its batch
        "bulk": "blk",  # 1 = of class batch, else it lacks
        "sync": "sync",  # 1 = a caller waits, and the record may go soon
        "gate_us": "nd",  # the earliest feasible finish that the admission gate used, from arrival
        "trace": "tr",
        "key_id": "key",  # the API key
        "payload_bytes": "psz",
        "result_bytes": "rsz",
        "lost_gpu": "lg",  # the GPU instance whose worker was lost while it held an attempt; the last one
        "lost_us": "lu",  # when that worker had reported last
        "version": "v",
    }
)


class Keys:
    """Names of keys that Python reads or writes itself; lua/common.lua lists all. ``function``: project/name."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.events = f"{prefix}ev"
        self.wakeup = f"{prefix}bell"
        self.feasible = f"{prefix}feasible"
        self.priorities = f"{prefix}prio"
        self.functions = f"{prefix}q"
        self.leader_cursor = f"{prefix}leader:cursor"
        self.learned = f"{prefix}learned"

    def invocation(self, project: str, id_: str) -> str:
        return f"{self.prefix}i:{project}:{id_}"

    def payload(self, project: str, id_: str) -> str:
        return f"{self.prefix}p:{project}:{id_}"

    def result(self, project: str, id_: str) -> str:
        return f"{self.prefix}r:{project}:{id_}"

    def waiting(self, function: str) -> str:
        return f"{self.prefix}q:{function}"

    def answer(self, question: str) -> str:
        return f"{self.prefix}ask:{question}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationRecord:
    """
    An invocation as Redis has it now. ``gate_us``: the earliest feasible finish that the admission gate compared with the
    deadline, from arrival; 0 = none was published. ``lost_gpu``: the GPU instance whose worker was lost while it held an
    attempt, '' = none was, and ``lost_us``: when that worker had reported last, 0 = not known.
    """

    id: str
    function: str
    revision: int = 0
    state: str = ""
    cause: str = ""
    attempt: int = 0
    starts: int = 0
    gpu: str = ""
    arrival_us: int = 0
    deadline_us: int = 0
    claimed_us: int = 0
    started_us: int = 0
    finished_us: int = 0
    rows: int = 0
    accept: Encoding
    trace: str = ""
    schedule_us: int = 0
    gate_us: int = 0
    lost_gpu: str = ""
    lost_us: int = 0
    bulk: bool = False


_RECORD: Final = tuple(field.name for field in fields(InvocationRecord) if field.name != "id")
#: What HMGET asks for to make an :class:`InvocationRecord`.
RECORD_FIELDS: Final = tuple(FIELDS[name] for name in _RECORD)


def invocation_record(id_: str, raw: Sequence[bytes | None]) -> InvocationRecord | None:
    """The values of :data:`RECORD_FIELDS`; None where there is no such invocation."""
    values = {name: value.decode() for name, value in zip(_RECORD, raw, strict=True) if value}
    return msgspec.convert({"id": id_, **values}, InvocationRecord, strict=False) if "function" in values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How an invocation ended: as a message to the gateway that waits, or read from its record."""

    id: str
    state: str
    cause: str
    attempt: int
    arrival_us: int
    claimed_us: int
    started_us: int
    finished_us: int
    gpu: str
    schedule_us: int
    deadline_us: int
    result: bytes

    @property
    def late_us(self) -> int:
        """How long after its deadline it ended; 0 = in time."""
        return max(0, self.finished_us - self.deadline_us)


#: The head of a reply's frame, in this order.
REPLY: Final = tuple(field.name for field in fields(Reply) if field.name != "result")


def parse_replies(data: bytes) -> list[Reply]:
    """The frames of one published message (lua/common.lua: reply)."""
    replies, position = [], 0
    while position < len(data):
        start = position + 10
        end = start + int(data[position:start])
        head, _, result = data[start:end].partition(b"\n")
        values = dict(zip(REPLY, head.decode().split("|"), strict=True))
        replies.append(msgspec.convert({**values, "result": result}, Reply, strict=False))
        position = end
    return replies


def reply_of(record: InvocationRecord, result: bytes) -> Reply:
    """The reply of an invocation that has ended."""
    return Reply(**{name: getattr(record, name) for name in REPLY}, result=result)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedInvocation:
    """An invocation as the leader reads it from a snapshot. ``attempt``: the last one, 0 = none yet."""

    function: str = ""
    revision: int = 0
    id: str = ""
    attempt: int = 0
    arrival_us: int = 0
    deadline_us: int = 0
    rows: int = 1
    shape: str = ""
    alone: bool = False
    bulk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedInvocation:
    """An invocation that is dispatched or running."""

    waiting: QueuedInvocation
    state: str
    gpu: str
    claimed_us: int
    started_us: int


QUEUED: Final = tuple(field.name for field in fields(QueuedInvocation))
LEASED: Final = (*QUEUED, "state", "gpu", "claimed_us", "started_us")


def queued_invocation(raw: Sequence[bytes]) -> QueuedInvocation:
    """A row of :data:`QUEUED`, or of :data:`LEASED`; a value that is missing is '' there."""
    values = {name: value.decode() for name, value in zip(QUEUED, raw, strict=False) if value}
    return msgspec.convert(values, QueuedInvocation, strict=False)


def leased_invocation(raw: Sequence[bytes]) -> LeasedInvocation:
    """A row of :data:`LEASED`."""
    state, gpu, claimed_us, started_us = (value.decode() for value in raw[len(QUEUED) :])
    return LeasedInvocation(
        waiting=queued_invocation(raw),
        state=state,
        gpu=gpu,
        claimed_us=int(claimed_us or 0),
        started_us=int(started_us or 0),
    )


def project_of(function: str) -> str:
    """The project of ``<project>/<name>``."""
    return function.partition("/")[0]
