"""
The steps of a training that runs elsewhere, which the gateway puts on a list in Redis for each job and GPU instance.
Read by :mod:`worker.training.job`.
"""

import time
from typing import Final

import msgspec
import redis

from smore.messages.reports import StepChunk
from smore.process.observability import logger
from smore.redis.fleet import steps_key
from smore.tracking.ring import MOST_COUNT

log = logger(__name__)

#: Seconds without a message after which a training that the worker cannot see (another container, another host) counts
#: as lost.
SILENT_S: Final = 30.0
#: Chunks of one look.
_CHUNKS: Final = 20

_decode = msgspec.msgpack.Decoder(StepChunk).decode


class RemoteSteps:
    """
    As :class:`smore.tracking.ring.TrackReader` reads a file: the steps since the last call, each once and in order. Not
    thread-safe.

    While Redis is away there are no steps and no error: the gateway and the training keep what they have.
    """

    def __init__(self, client: "redis.Redis", prefix: str, job: str, gpu: str) -> None:
        self._redis = client
        self._feeds, self._field = f"{prefix}feeds", f"{job}|{gpu}"
        self._key = steps_key(prefix, job, gpu)
        #: Steps reported so far, those included that were lost on the way.
        self.count = 0
        #: A training elsewhere says nothing of its length.
        self.length = 0
        self.ended = self._closed = False
        self._received_at = time.monotonic()

    @property
    def silent(self) -> bool:
        """Whether nothing has come for :data:`SILENT_S`."""
        return time.monotonic() - self._received_at > SILENT_S

    def look(self) -> None:
        """As of a file: how far it has come is known from what was read last."""

    def read_new(self, most: int) -> list[tuple[float, float]]:
        """
        (end in epoch seconds, duration in seconds) of each new step, of more than ``most`` as many as that, evenly spaced.
        """
        try:
            pipe = self._redis.pipeline(transaction=True)
            pipe.lrange(self._key, 0, _CHUNKS - 1)
            pipe.ltrim(self._key, _CHUNKS, -1)
            chunks = pipe.execute()[0]
        except (redis.RedisError, OSError):
            return []
        steps: list[tuple[float, float]] = []
        for raw in chunks:
            try:
                chunk = _decode(raw)
            except msgspec.DecodeError:
                log.warning("unreadable steps passed over", key=self._key)
                continue
            self._received_at = time.monotonic()
            # A report that was sent again because its answer was lost.
            steps += chunk.steps[max(0, self.count - chunk.first) :]
            self.count = max(self.count, min(chunk.first + len(chunk.steps), MOST_COUNT))
            self.ended |= chunk.ended
        return steps[:: max(1, -(-len(steps) // most))]

    def close(self) -> None:
        """No more steps are wanted: the gateway answers their sender that the job is over. Once, if Redis answers."""
        if self._closed:
            return
        try:
            self._redis.hdel(self._feeds, self._field)
            self._redis.delete(self._key)
            self._closed = True
        except (redis.RedisError, OSError) as error:
            log.warning("the list of remote steps could not be removed", key=self._key, error=str(error))
