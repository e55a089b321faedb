"""The degradation table in Redis (smore/messages/degradation.py), one blob with a version."""

from typing import cast

import redis

from smore.messages.degradation import Table, decode, encode


class Tables:
    """The published table in Redis: a blob, and its version, which readers poll."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._redis = client
        self._blob, self._version = f"{prefix}degradation:table", f"{prefix}degradation:version"

    def publish(self, table: Table) -> None:
        """Replace the published table, in one step."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.set(self._blob, encode(table))
        pipeline.set(self._version, table.version)
        pipeline.execute()

    def version(self) -> int:
        """0 where none was published."""
        return int(cast("bytes | None", self._redis.get(self._version)) or 0)

    def current(self) -> Table | None:
        """None where none was published; raises BadTable."""
        raw = cast("bytes | None", self._redis.get(self._blob))
        return None if raw is None else decode(raw)
