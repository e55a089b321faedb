"""What the leader has learned, kept in Redis for the next one (smore/messages/learned.py)."""

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import redis

from smore.domain.learned import Learned, LearnedCost
from smore.messages.learned import decode_costs, decode_learned, encode_learned
from smore.process.observability import logger
from smore.redis.records import Keys

log = logger(__name__)

_Record = TypeVar("_Record")


class LearnedRecords:
    """
    A record for each function, of the revision that takes its traffic, and for each GPU instance of what functions cost
    the trainings there. What cannot be read is passed over. Raises redis-py's errors.
    """

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis, self._key, self._costs = client, Keys(prefix).learned, f"{prefix}learned:costs"

    def keep(self, functions: Mapping[str, Learned], costs: Mapping[str, Mapping[str, LearnedCost]]) -> None:
        """Functions and GPU instances that are not named stay as they are; one without costs has none any more."""
        pipe = self._redis.pipeline(transaction=False)
        for function, learned in functions.items():
            pipe.hset(self._key, function, encode_learned(learned))
        for gpu, of_trainings in costs.items():
            if of_trainings:
                pipe.hset(self._costs, gpu, encode_learned(of_trainings))
            else:
                pipe.hdel(self._costs, gpu)
        pipe.execute()

    def functions(self) -> dict[str, Learned]:
        return self._read(self._key, decode_learned)

    def costs(self) -> dict[str, dict[str, LearnedCost]]:
        """By GPU instance and id of the training."""
        return self._read(self._costs, decode_costs)

    def _read(self, key: str, decode: Callable[[bytes], _Record]) -> dict[str, _Record]:
        found = {}
        for field, raw in cast("dict[bytes, bytes]", self._redis.hgetall(key)).items():
            try:
                found[field.decode()] = decode(raw)
            except ValueError as error:
                log.warning("unreadable record passed over", key=key, field=repr(field), error=str(error))
        return found
