"""Forecasts and the state of prewarming in Redis (smore/messages/forecasts.py)."""

from typing import Final, cast

import redis

from smore.messages.forecasts import Counted, Forecasts, decode, decode_counted, encode

#: Seconds after which a blob that nobody replaced is deleted; it has been stale for long by then.
TTL_S: Final = 3600


class PublishedForecasts:
    """
    What ``control``'s children publish in Redis for the leader: the forecasts and their version, the arrivals counted so
    far, and the version of the forecaster in use. The leader publishes what it prewarms (:meth:`put_state`).
    """

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._blob, self._version = f"{prefix}prewarm:forecasts", f"{prefix}prewarm:version"
        self._counts, self._model, self._state = (
            f"{prefix}prewarm:counts",
            f"{prefix}prewarm:model",
            f"{prefix}prewarm:state",
        )
        self._lesson, self._learned = f"{prefix}prewarm:lesson", f"{prefix}prewarm:learned"

    def publish(self, forecasts: Forecasts) -> None:
        """Replace the published forecasts, in one step."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.set(self._blob, encode(forecasts), ex=TTL_S)
        pipeline.set(self._version, forecasts.version)
        pipeline.execute()

    def version(self) -> int:
        """0 where none was published."""
        return int(cast("bytes | None", self._redis.get(self._version)) or 0)

    def current(self) -> Forecasts | None:
        """None where there are none (any more); raises BadForecast."""
        raw = cast("bytes | None", self._redis.get(self._blob))
        return None if raw is None else decode(raw)

    def put_counts(self, counted: Counted) -> None:
        self._redis.set(self._counts, encode(counted))

    def counts(self) -> Counted | None:
        """Raises BadForecast."""
        raw = cast("bytes | None", self._redis.get(self._counts))
        return None if raw is None else decode_counted(raw)

    def use_model(self, model: int) -> None:
        """Set the version of the forecaster in use."""
        self._redis.set(self._model, model)

    def model(self) -> int:
        """Version of the forecaster in use, 0 = there is none."""
        return int(cast("bytes | None", self._redis.get(self._model)) or 0)

    def imports_changed(self) -> None:
        """The imported arrivals have changed: ``control`` fits again when the next minute begins."""
        self._redis.incr(self._lesson)

    def lesson(self) -> int:
        """How often the imported arrivals have changed."""
        return int(cast("bytes | None", self._redis.get(self._lesson)) or 0)

    def learned(self, lesson: int) -> None:
        """A fit has used the imported arrivals in this state (:meth:`lesson`)."""
        self._redis.set(self._learned, lesson)

    def unlearned(self) -> bool:
        """Whether the imported arrivals have changed since a fit used them."""
        lesson, learned = cast("list[bytes | None]", self._redis.mget(self._lesson, self._learned))
        return int(lesson or 0) != int(learned or 0)

    def put_state(self, state: bytes, ttl_s: float) -> None:
        """Publish the leader's prewarming (:class:`smore.messages.forecasts.PrewarmReport`)."""
        self._redis.set(self._state, state, px=int(ttl_s * 1000))

    def state(self) -> bytes | None:
        """The leader's prewarming; None where no leader has published it lately."""
        return cast("bytes | None", self._redis.get(self._state))
