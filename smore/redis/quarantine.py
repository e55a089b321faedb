"""
Faults of devices that a function has caused, counted over all GPU workers, and the revisions that are shut out
everywhere for them.

In Redis, beside the catalog's mirror. Three faults of different invocations within ten minutes shut a revision out
until somebody lifts it; a new revision begins anew. Which faults count is the worker's to say: running out of memory, a
crash, an error of the device.
"""

import time
from typing import Final, cast

import msgspec
import redis

FAULTS: Final = 3
WINDOW_S: Final = 600.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why and since when (epoch seconds) a revision is shut out; ``cause`` and ``gpu`` are the last fault's."""

    cause: str
    gpu: str
    at: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Verdict).decode


class Faults:
    """The synchronous door. Raises redis-py's errors."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._prefix = prefix
        self._shut_out = f"{prefix}quarantine"

    def _counted(self, field: str) -> str:
        return f"{self._prefix}faults:{field}"

    def note(self, function: str, revision: int, culprit: str, *, cause: str, gpu: str) -> bool:
        """
        Count a fault; True when the revision is shut out with it.

        ``culprit`` names the invocation, or the load: the same one counts once, wherever it was tried again.
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
        return bool(self._redis.hsetnx(self._shut_out, field, _encode(Verdict(cause=cause, gpu=gpu, at=now))))

    def quarantined(self) -> dict[tuple[str, int], Verdict]:
        """By (function, revision)."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(self._shut_out))
        verdicts = {}
        for field, verdict in raw.items():
            function, _, revision = field.decode().rpartition("@")
            verdicts[function, int(revision)] = _decode(verdict)
        return verdicts

    def lift(self, function: str) -> list[int]:
        """Let its revisions run again; which ones were shut out. The workers hear of it with their next heartbeat."""
        revisions = sorted(revision for name, revision in self.quarantined() if name == function)
        for revision in revisions:
            self._redis.delete(self._counted(f"{function}@{revision}"))
            self._redis.hdel(self._shut_out, f"{function}@{revision}")
        return revisions
