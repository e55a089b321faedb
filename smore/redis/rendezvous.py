"""
Where the ranks of one attempt of a training meet: the GPU worker of rank 0 writes it, those of the others wait for it.
"""

from dataclasses import dataclass
from typing import Final, Self, cast

import redis

#: Seconds for which a meeting is kept. An attempt whose ranks are not all there long before that is over.
_TTL_S: Final = 600


@dataclass(frozen=True, slots=True)
class Meeting:
    """``address`` and ``port`` on which rank 0 listens: MASTER_ADDR and MASTER_PORT of every rank."""

    address: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        address, _, port = text.rpartition(":")
        return cls(address, int(port))

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class Rendezvous:
    """Thread-safe. Raises redis-py's errors."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    def open(self, job: str, attempt: int, meeting: Meeting) -> Meeting:
        """
        Write where the attempt's ranks meet. Returns the meeting in force: the one that was written first, so that a
        worker which starts rank 0 a second time sends it where the others go.
        """
        if self._redis.set(self._key(job, attempt), str(meeting), nx=True, ex=_TTL_S):
            return meeting
        return self.find(job, attempt) or meeting

    def find(self, job: str, attempt: int) -> Meeting | None:
        """None while rank 0's worker has not written it."""
        raw = cast("bytes | None", self._redis.get(self._key(job, attempt)))
        return Meeting.parse(raw.decode()) if raw else None

    def _key(self, job: str, attempt: int) -> str:
        return f"{self._prefix}job:rendezvous:{job}:{attempt}"
