"""A submission to the queue, and the admission gate's answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from smore.domain.invocation import Encoding
from smore.domain.limits import NO_LIMITS, Limits
from smore.process.settings import QueueSettings
from smore.redis.scripts import ADMISSION, LARGE, Arg, Call

#: The latest finish that a leader publishes, seconds from now: it stands for never.
NEVER_S: Final = 365.25 * 86_400
#: Submissions that one call enqueues, at most.
_TOGETHER: Final = 32

#: See :class:`GateAnswer`.
Status = Literal["ok", "replay", "mismatch", "full", "limited", "infeasible", "quarantined", "late", "no_leader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """
    An invocation to be queued. ``function`` is ``<project>/<name>``. ``deadline_us`` absolute, or ``slo_us`` from
    arrival; exactly one is not zero. ``channel``: where its reply is published, '' = nowhere; ``sync``: its caller
    waits.

    ``volatile``: the payload is not written to disk, because a caller waits who can send it again. If Redis is killed
    before a worker starts the invocation, it fails with ``payload_lost``. Such a payload may be stored beside Redis
    (smore/redis/payloads.py).

    ``request_hash``: tells a repetition of the request from another one with the same Idempotency-Key; ``request_parts``:
    hashes of its parts, which say what differs, in any form.

    ``bulk``: it is of class batch.

    ``led``: it is refused while nobody leads, where it would wait for nothing but its deadline.
    """

    id: str
    function: str
    revision: int
    payload: bytes
    slo_us: int = 0
    deadline_us: int = 0
    channel: str = ""
    encoding: Encoding = Encoding.JSON
    accept: Encoding = Encoding.JSON
    rows: int = 1
    shape: str = ""
    sync: bool = False
    trace: str = ""
    key_id: str = ""
    idempotency_key: str = ""
    request_hash: str = ""
    request_parts: str = ""
    max_pending: int = 1000
    max_attempts: int = 3
    limits: Limits = NO_LIMITS
    volatile: bool = False
    bulk: bool = False
    led: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswer:
    """
    The admission gate's answer to a submission.

    ``status``: ``ok`` (times in ``arrival_us``, ``deadline_us``; ``earliest_us``, the earliest feasible finish by which it
    was admitted), ``replay`` or ``mismatch`` (``known_id`` came with the same Idempotency-Key, ``known_parts`` are its
    ``request_parts``), ``full`` (``limit`` names the bound, ``bound`` is its value), ``limited`` (``limit`` names the limit of its
    project, ``bound`` is its value, ``after_us`` says when to try again), ``infeasible`` (``earliest_us``, the earliest
    deadline that would be met, and ``now_us``; ``floor_us``: what it takes on an idle platform, ``cold_us``: what it takes
    with the load that it needs first, 0 = an instance stands ready; ``alone_us``: what it takes as things are with
    nothing before it, 0 = not known), ``quarantined`` (all GPU instances keep its revision out), ``late``, ``no_leader``.
    """

    status: Status
    arrival_us: int = 0
    deadline_us: int = 0
    known_id: str = ""
    limit: str = ""
    bound: float = 0.0
    after_us: int = 0
    earliest_us: int = 0
    now_us: int = 0
    known_parts: str = ""
    floor_us: int = 0
    cold_us: int = 0
    alone_us: int = 0


def gate_arguments(max_function_pending: int, bounds: QueueSettings, limits: Limits) -> dict[str, Arg]:
    """The arguments that the admission gate checks: bounds of the queue, limits of the project ('' = none)."""

    def text(value: float | None) -> Arg:
        return "" if value is None else value

    return {
        "max_function_pending": max_function_pending,
        "max_pending": bounds.max_pending,
        "max_payload_bytes": bounds.payload_bytes,
        "max_result_bytes": bounds.result_bytes,
        "max_events": bounds.events,
        "max_keys": bounds.keys,
        "rate_per_s": text(limits.rate_per_s),
        "burst": limits.burst or 1,
        "depth": text(limits.depth),
        "concurrency": text(limits.concurrency),
    }


def enqueue_call(submissions: Sequence[Submission], beside: Sequence[bool], bounds: QueueSettings) -> Call:
    """
    For submissions that :func:`together` puts into one call; its answer has one for each. ``beside``: whose payloads are
    beside Redis.
    """
    first = submissions[0]
    return Call(
        "enqueue",
        {
            "function": first.function,
            "revision": first.revision,
            "idempotency_ttl_s": int(bounds.idempotency_ttl_s),
            "led": int(first.led),
            **gate_arguments(first.max_pending, bounds, first.limits),
        },
        [_item(submission, there) for submission, there in zip(submissions, beside, strict=True)],
    )


def _item(submission: Submission, beside: bool) -> dict[str, Arg]:
    return {
        "id": submission.id,
        "slo_us": submission.slo_us,
        "deadline_us": submission.deadline_us,
        "channel": submission.channel,
        "encoding": submission.encoding.value,
        "accept": submission.accept.value,
        "rows": submission.rows,
        "shape": submission.shape,
        "sync": int(submission.sync),
        "trace": submission.trace,
        "key_id": submission.key_id,
        "idempotency_key": submission.idempotency_key,
        "request_hash": submission.request_hash,
        "request_parts": submission.request_parts,
        "max_attempts": submission.max_attempts,
        "payload": b"" if beside else submission.payload,
        "volatile": int(submission.volatile and not beside),
        "bulk": int(submission.bulk),
        "size": len(submission.payload) if beside else "",
    }


def together(submissions: Sequence[Submission]) -> list[list[int]]:
    """
    Positions of submissions that one call enqueues, call by call: of one function, as long as they are small, because
    nothing else of Redis runs meanwhile.
    """
    calls: list[list[int]] = []
    latest: dict[tuple[object, ...], list[int]] = {}
    for position, each in enumerate(submissions):
        call = latest.get(same := (each.function, each.revision, each.limits, each.max_pending, each.led))
        if call is None or len(call) >= _TOGETHER or len(each.payload) >= LARGE:
            calls.append(call := [])
            if len(each.payload) < LARGE:
                latest[same] = call
        call.append(position)
    return calls


def admission(raw: Sequence[bytes]) -> GateAnswer:
    """The answer of ``enqueue``."""
    # A value that is missing is '', and all are where it was accepted.
    values = {name: value.decode() for name, value in zip(ADMISSION, raw, strict=False) if value}
    return msgspec.convert(values, GateAnswer, strict=False)
