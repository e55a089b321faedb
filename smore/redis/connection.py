"""Connections to Redis."""

import redis

from smore.process.settings import Settings

#: Bytes that are read at once from a connection; redis-py's default is 64 KiB.
_READ = 256 << 10


def connect(config: Settings, *, silence_s: float = 10.0) -> "redis.Redis":
    """
    A client that notices broken connections: a command or a blocking read may take at most ``silence_s`` seconds, which by
    default is longer than any blocking read of the platform. Raises ValueError where no URL is set.
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
