"""
``python -m smore.alive NAME``: whether a process of the platform on this machine is at work; for healthchecks. Exit code 0 or 1.

``gateway`` answers on its port, ``node`` has a GPU worker that reports for each of its GPU instances, and every other name (``beat``,
``scheduler-0``, ``control``…) is a Celery process, which is connected to Redis and has said something lately. It imports little, because it
is started every few seconds.
"""

import os
import socket
import sys
import time
import urllib.request

import redis

from smore.settings import Settings, settings

#: Seconds within which a Celery process speaks to Redis: beat fires and workers ask for work once a second.
SILENT_S = 15


def alive(name: str, config: Settings) -> str:
    """'' or what is wrong. Raises redis-py's errors and OSError, which say the same."""
    if name == "gateway":
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.api.host, config.api.host)  # noqa: S104 - an address to replace
        with urllib.request.urlopen(f"http://{host}:{config.api.port}/healthz", timeout=3) as answer:
            return "" if answer.status == 200 else f"HTTP {answer.status}"
    if config.redis.url is None:
        return "SMORE_REDIS__URL is not set"
    with redis.from_url(config.redis.url, socket_timeout=3, socket_connect_timeout=3) as client:
        return _node(client, config) if name == "node" else _celery(client, name)


def _celery(client: "redis.Redis", name: str) -> str:
    wanted = f"smore-{name}:{socket.gethostname()}:"
    idle = [int(one["idle"]) for one in client.client_list() if one.get("name", "").startswith(wanted)]
    if not idle:
        return f"{name} of this machine is not connected to Redis"
    return "" if min(idle) <= SILENT_S else f"{name} has been silent for {min(idle)} s"


def _node(client: "redis.Redis", config: Settings) -> str:
    from smore.fleet import Fleet
    from smore.local.layout import node_partitions

    wanted = {part.gpu for part in node_partitions(config.node, sorted(os.sched_getaffinity(0)))}
    now = time.time()
    reports = {one.gpu for one in Fleet(client, config.redis.prefix).reports() if now - one.at < SILENT_S}
    missing = sorted(wanted - reports)
    return f"no report of {', '.join(missing)}" if missing else ""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m smore.alive gateway|node|beat|scheduler-0|…")
    try:
        wrong = alive(sys.argv[1], settings())
    except (redis.RedisError, OSError) as error:
        wrong = str(error)
    if wrong:
        sys.exit(wrong)


if __name__ == "__main__":
    main()
