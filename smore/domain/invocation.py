"""
States of an invocation, the transitions between them, and why an invocation ends.

The Lua scripts of ``smore/redis/lua`` get their legal source states from :data:`TRANSITIONS`, and
docs/reference/states.md is drawn from it. Loading a model happens in ``running`` (phase ``loading``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal


class State(StrEnum):
    """
    Where an invocation stands. ``succeeded``, ``failed``, ``rejected``, ``expired`` and ``cancelled`` are final.
    """

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.REJECTED, State.EXPIRED, State.CANCELLED})

#: action → state before → state after. ``claim`` is the leader's, ``start`` … ``finish`` the worker's; ``requeue`` the
#: worker's and the reaper's.
TRANSITIONS: Mapping[str, Mapping[State, State]] = MappingProxyType(
    {
        "claim": {State.QUEUED: State.DISPATCHED},
        "start": {State.DISPATCHED: State.RUNNING},
        "requeue": {State.DISPATCHED: State.QUEUED, State.RUNNING: State.QUEUED},
        "succeed": {State.RUNNING: State.SUCCEEDED},
        "fail": {State.QUEUED: State.FAILED, State.DISPATCHED: State.FAILED, State.RUNNING: State.FAILED},
        # The function asks that what runs past its deadline ends (``slo.on_late: drop``).
        "drop": {State.RUNNING: State.EXPIRED},
        "reject": {State.QUEUED: State.REJECTED},
        "expire": {State.QUEUED: State.EXPIRED, State.DISPATCHED: State.EXPIRED},
        "cancel": {State.QUEUED: State.CANCELLED, State.DISPATCHED: State.CANCELLED, State.RUNNING: State.CANCELLED},
    }
)


class Encoding(StrEnum):
    """Form of a payload or a result."""

    JSON = "json"
    RAW = "raw"
    #: No payload: run the handler's example and describe it (a new revision's first run).
    CANARY = "canary"


class Cause(StrEnum):
    """Why an invocation ended as it did, or went back to the queue: the stable code in answers, history and metrics."""

    OK = "ok"
    HANDLER_ERROR = "handler_error"
    INVALID_INPUT = "invalid_input"
    CRASHED = "crashed"
    CONTEXT_LOST = "context_lost"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    LOAD_FAILED = "load_failed"
    BAD_OUTPUT = "bad_output"
    RESULT_TOO_LARGE = "result_too_large"
    QUARANTINED = "quarantined"
    FUNCTION_DELETED = "function_deleted"
    DISPATCH_LIMIT = "dispatch_limit"
    ATTEMPT_LIMIT = "attempt_limit"
    DEADLINE_EXPIRED = "deadline_expired"
    INFEASIBLE = "infeasible"
    CANCELLED = "cancelled"
    PAYLOAD_LOST = "payload_lost"
    WORKER_LOST = "worker_lost"
    DISPATCH_LOST = "dispatch_lost"
    WORKER_BUSY = "worker_busy"
    DEVICE_FULL = "device_full"


#: How the scheduler ends what waits: actions of :data:`TRANSITIONS`.
EndAction = Literal["reject", "expire", "fail"]


class EndedFor(StrEnum):
    """What the scheduler ends a waiting invocation for (smore/messages/wording.py: ended_for)."""

    NO_REVISION = "no_revision"
    DELETED = "deleted"
    NO_DEVICE_HOLDS_IT = "no_device_holds_it"
    OVER_WARM_LIMIT = "over_warm_limit"
    KEPT_OUT = "kept_out"
    TOO_LATE = "too_late"
    PLATFORM_PAUSED = "platform_paused"
    FUNCTION_PAUSED = "function_paused"
    DEVICES_PAUSED = "devices_paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """
    A waiting invocation that the scheduler ends, without a run. ``held``: of GPU instances that people keep from it, how many
    it might use, and how many of them are drained and paused. ``least_s``: of one that is too late, seconds that it takes at
    least; ``left_s``: those that were left to its deadline.
    """

    function: str
    id: str
    action: EndAction
    cause: Cause
    why: EndedFor
    held: tuple[int, int, int] = (0, 0, 0)
    least_s: float = 0.0
    left_s: float = 0.0
