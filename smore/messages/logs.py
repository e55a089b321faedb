"""What processes print, as it travels: from a GPU worker to a log in Redis (smore/redis/logs.py), from there to readers."""

from enum import StrEnum

import msgspec


class LogStream(StrEnum):
    """Where a line was written; ``smore``: it is the platform's own word, such as that a runner has crashed."""

    STDOUT = "stdout"
    STDERR = "stderr"
    SMORE = "smore"


class LogPiece(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """
    Lines that one process printed on one stream within moments: one entry of a log.

    ``at``: epoch seconds by the clock of ``node``, the machine of the GPU instance ``gpu``. ``revision`` and
    ``invocations``: of a function, whose batch ran then; no invocations = it was not running one. ``attempt``: of a job;
    ``end``: how far into the file of its rank these lines reach, in bytes.
    """

    at: float
    stream: str
    lines: list[str]
    gpu: str = ""
    node: str = ""
    pid: int = 0
    revision: int = 0
    invocations: list[str] = []
    attempt: int = 0
    end: int = 0


encode_piece = msgspec.msgpack.Encoder().encode
decode_piece = msgspec.msgpack.Decoder(LogPiece).decode
