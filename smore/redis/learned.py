"""What the leader has learned, kept in Redis for the next one (smore/messages/learned.py)."""

from collections.abc import Mapping
from typing import cast

import redis

from smore.domain.learned import Learned
from smore.messages.learned import decode_learned, encode_learned
from smore.process.observability import logger
from smore.redis.records import Keys

log = logger(__name__)


class LearnedRecords:
    """A record for each function, of the revision that takes its traffic. Raises redis-py's errors."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis, self._key = client, Keys(prefix).learned

    def keep(self, learned: Mapping[str, Learned]) -> None:
        self._redis.hset(self._key, mapping={function: encode_learned(each) for function, each in learned.items()})

    def all(self) -> dict[str, Learned]:
        """By function; what cannot be read is passed over."""
        found = {}
        for function, raw in cast("dict[bytes, bytes]", self._redis.hgetall(self._key)).items():
            try:
                found[function.decode()] = decode_learned(raw)
            except ValueError as error:
                log.warning("unreadable record passed over", key=self._key, field=repr(function), error=str(error))
        return found
