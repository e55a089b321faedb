"""
Quarantine in Redis: faults that a function's revision caused, counted over all GPU workers, and the revisions that no
worker runs any more.

Three faults of different invocations within ten minutes quarantine a revision until an operator lifts it. A new revision
starts without faults. Workers decide which faults count: running out of memory, a crash, an error of the device.
"""

import time
from typing import Final, cast

import msgspec
import redis

FAULTS: Final = 3
WINDOW_S: Final = 600.0


class QuarantineVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why and since when (epoch seconds) a revision is quarantined; ``cause`` and ``gpu`` are those of the last fault."""

    cause: str
    gpu: str
    at: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(QuarantineVerdict).decode


class Faults:
    """Counts faults and quarantines revisions. Raises redis-py's errors."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._prefix = prefix
        self._shut_out = f"{prefix}quarantine"

    def _counted(self, field: str) -> str:
        return f"{self._prefix}faults:{field}"

    def note(self, function: str, revision: int, culprit: str, *, cause: str, gpu: str) -> bool:
        """
        Count a fault. True when it quarantines the revision.

        ``culprit``: the invocation, or the load. It counts once, however often and wherever it is tried.
        """
        field, now = f"{function}@{revision}", time.time()
        name = self._counted(field)
        pipe = self._redis.pipeline()
        pipe.zadd(name, {culprit: now})
        pipe.zremrangebyscore(name, "-inf", now - WINDOW_S)
        pipe.zcard(name)
        pipe.expire(name, int(WINDOW_S))
        count = cast("list[int]", pipe.execute())[2]
        if count < FAULTS:
            return False
        return bool(self._redis.hsetnx(self._shut_out, field, _encode(QuarantineVerdict(cause=cause, gpu=gpu, at=now))))

    def quarantined(self) -> dict[tuple[str, int], QuarantineVerdict]:
        """Quarantined revisions, by (function, revision)."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(self._shut_out))
        verdicts = {}
        for field, verdict in raw.items():
            function, _, revision = field.decode().rpartition("@")
            verdicts[function, int(revision)] = _decode(verdict)
        return verdicts

    def lift(self, function: str) -> list[int]:
        """End the quarantine of a function's revisions, and return them. Workers read it with their next heartbeat."""
        revisions = sorted(revision for name, revision in self.quarantined() if name == function)
        for revision in revisions:
            self._redis.delete(self._counted(f"{function}@{revision}"))
            self._redis.hdel(self._shut_out, f"{function}@{revision}")
        return revisions
