"""
A whole platform in processes, once for a module: what `make up` starts, in a home of its own, on one CPU partition;
with ``SMORE_TEST_DEVICE=cuda`` on the first GPU (with ``-n0``: two platforms on one GPU are strangers to each other,
and both stand still).
"""

import os
import socket
from collections.abc import Iterator

import httpx
import psutil
import pytest
import redis

from smore import local
from smore.process.settings import Settings
from smore_client import Client
from tests.support.eventually import eventually
from tests.support.whole_platform import Platform, partitions


@pytest.fixture(scope="module")
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """With what the module asks for in its ``ENVIRONMENT``."""
    home = tmp_path_factory.mktemp("home")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    before = dict(os.environ)
    os.environ |= {"SMORE_API__PORT": str(port), **getattr(request.module, "ENVIRONMENT", {})}
    try:
        end = local.up(home, config=Settings(), partitions=partitions())
        key = (home / "key").read_text().strip()
        with Client(end.gateway_url, key) as client, redis.from_url(end.redis_url) as connection:
            eventually(lambda: httpx.get(f"{end.gateway_url}/readyz", timeout=30).status_code == 200, 60, "readiness")
            (gpu,) = eventually(lambda: client.gpus(), 30, "the GPU instance")
            yield Platform(home=home, url=end.gateway_url, key=key, client=client, redis=connection, gpu=gpu.id)
            # Training outlives the platform on purpose, so it is ended first.
            for job in client.jobs():
                client.stop_job(job.id)
            eventually(lambda: all(job.state in ("ended", "lost") for job in client.jobs()), 30, "the end of training")
    finally:
        os.environ.clear()
        os.environ.update(before)
        local.down(home)
    # A clean end leaves nothing of the platform behind.
    left = [
        process for process in psutil.process_iter(["cmdline"]) if str(home) in " ".join(process.info["cmdline"] or ())
    ]
    assert left == []
