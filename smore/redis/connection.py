"""Connections to Redis."""

import redis

from smore.process.settings import Settings

#: Bytes read at once from a connection: payloads come in fewer pieces than by the usual 64 KiB.
_READ = 256 << 10


def connect(config: Settings, *, silence_s: float = 10.0) -> "redis.Redis":
    """
    A client that notices broken connections: a command, or a blocked read, may take ``silence_s`` seconds, by default
    more than any interval at which the platform's parts read. Raises ValueError where no URL is set.
    """
    if config.redis.url is None:
        raise ValueError("SMORE_REDIS__URL is not set")
    return redis.from_url(
        config.redis.url,
        socket_timeout=silence_s,
        socket_connect_timeout=2,
        health_check_interval=5,
        socket_read_size=_READ,
    )
