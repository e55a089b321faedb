"""Connections to Redis."""

import socket
from urllib.parse import urlsplit

import redis

from smore.process.settings import Settings

#: Bytes that are read at once from a connection; redis-py's default is 64 KiB.
_READ = 256 << 10
_LOOPBACK = "127.0.0.1"
_ANY_PORT = 9


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


def own_address(config: Settings) -> str:
    """
    The address of this machine from which it reaches Redis: other machines of the platform reach it there, unless a
    network in between changes addresses. 127.0.0.1 where Redis is on this machine.
    """
    host = urlsplit(config.redis.url or "").hostname
    if host is None:
        return _LOOPBACK
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, number) as probe:
            # Sends nothing: the kernel only chooses the way.
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return _LOOPBACK
