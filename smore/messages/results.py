"""Records of how an invocation ran and ended: opaque to Lua, read by gateways and by the history."""

from typing import Final

import msgspec

from smore.domain.quote import cut

#: Characters of a traceback.
MOST_TRACEBACK: Final = 8000


class Result(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """
    The record of how an invocation ended, opaque to Lua.

    ``form`` is ``json`` or ``raw`` (then ``body`` is the output) or ``error`` (then ``message`` says what happened).
    Durations in microseconds.
    """

    form: str
    load_us: int = 0
    run_us: int = 0
    cold: bool = False
    body: bytes = b""
    message: str = ""
    #: raw form: ``name:datatype:d0,d1;…`` of the outputs in ``body``.
    shapes: str = ""
    #: error form: the frames of the handler's own code, as Python prints them.
    traceback: str = ""
    #: error form: the place in the input that is wrong.
    field: str = ""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """
    A worker's record of one batch, JSON in :attr:`smore.messages.stream.Settled.meta`. Unknown keys are passed over.

    ``load_ms``: milliseconds by phase of a cold start, empty when warm. ``batch`` invocations with ``rows`` rows ran
    together for ``run_ms`` (None: not to the end) beside the functions ``co`` and the serverful jobs ``jobs``, in the
    runner ``pid``.
    """

    version: int = 1
    boot: str = ""
    cold: bool = False
    load_ms: dict[str, float] = {}
    run_ms: float | None = None
    batch: int = 0
    rows: int = 0
    co: list[str] = []
    jobs: list[str] = []
    pid: int = 0
    #: Measurements of different devices or sharing modes are never put together.
    device: str = ""
    sharing_mode: str = ""


#: The sharing mode of runs on SCHED_IDLE: others held them back.
IDLE: Final = "idle"

encode_result = msgspec.msgpack.Encoder().encode
decode_result = msgspec.msgpack.Decoder(Result).decode
encode_execution = msgspec.json.Encoder().encode
decode_execution = msgspec.json.Decoder(Execution).decode


def error_result(message: str, traceback: str = "") -> bytes:
    """The result of an invocation that ended without an output; a long message or traceback is cut."""
    return encode_result(Result(form="error", message=message[:4096], traceback=cut(traceback, MOST_TRACEBACK)))
