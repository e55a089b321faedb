"""
Steps of a training that runs elsewhere, as the gateway hands them on: a list in Redis for each job and GPU instance.
"""

import time
from typing import Final

import msgspec
import redis

from smore.messages.reports import StepChunk
from smore.process.observability import logger
from smore.redis.fleet import steps_key

log = logger(__name__)

#: A training that the worker cannot see (another container, another host) counts as lost after so many seconds without
#: a word.
SILENT_S: Final = 30.0
_CHUNKS: Final = 1000
_AHEAD_S: Final = 2.0

_decode = msgspec.msgpack.Decoder(StepChunk).decode


class Feed:
    """
    What :class:`smore.tracking.track.TrackReader` is for a file: steps since the last look, each once and in order.

    Redis being away gives nothing and raises nothing: the gateway and the training keep what they have.
    """

    def __init__(self, client: "redis.Redis", prefix: str, job: str, gpu: str) -> None:
        self._redis = client
        self._feeds, self._field = f"{prefix}feeds", f"{job}|{gpu}"
        self._key = steps_key(prefix, job, gpu)
        #: Steps told so far, those included that were lost on the way.
        self.count = 0
        self.ended = False
        self._heard_at = time.monotonic()

    @property
    def silent(self) -> bool:
        return time.monotonic() - self._heard_at > SILENT_S

    def read_new(self) -> list[tuple[float, float]]:
        """(end in epoch seconds, duration in seconds) of each."""
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
            self._heard_at = time.monotonic()
            # A report that was sent again because its answer was lost.
            new = chunk.steps[max(0, self.count - chunk.first) :]
            # A clock that is ahead of ours would put steps into windows that are still to come.
            latest = time.time() + _AHEAD_S
            steps += [step for step in new if step[0] <= latest]
            self.count = max(self.count, chunk.first + len(chunk.steps))
            self.ended |= chunk.ended
        return steps

    def close(self) -> None:
        """No more is wanted: whoever sends some is told that the job is over."""
        try:
            self._redis.hdel(self._feeds, self._field)
            self._redis.delete(self._key)
        except (redis.RedisError, OSError) as error:
            log.warning("a feed stays open", key=self._key, error=str(error))
