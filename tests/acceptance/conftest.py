"""
A whole platform in processes: what `make up` starts, in a home of its own, on one CPU partition; with
``SMORE_TEST_DEVICE=cuda`` on the first GPU (with ``-n0``: two platforms on one GPU are unregistered processes to each
other, and both stand still).

A start takes ten seconds and more, so modules that ask for the same settings share one: the files that tests/conftest.py
keeps together. Each finds no function and no training of those before it.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from smore.local import machine
from smore.process.settings import Settings
from smore_client import Client
from tests.support.eventually import eventually
from tests.support.whole_platform import Platform, Platforms, partitions


@contextmanager
def running(home: Path, settings: Mapping[str, str]) -> Iterator[Platform]:
    """A platform, with these variables in its environment, for the length of a ``with``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    before = dict(os.environ)
    # Nobody waits ten seconds for a training to be started again.
    os.environ |= {"SMORE_API__PORT": str(port), "SMORE_JOBS__KNOBS": '{"back_off_s": 0.5}', **settings}
    try:
        end = machine.up(home, config=Settings(), partitions=partitions())
    except BaseException:
        machine.down(home)
        raise
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        key = (home / "key").read_text().strip()
        with Client(end.gateway_url, key) as client, redis.from_url(end.redis_url) as connection:
            yield Platform(home=home, url=end.gateway_url, key=key, client=client, redis=connection)
    finally:
        machine.down(home)
    # A clean end leaves nothing of the platform behind.
    left = [
        process for process in psutil.process_iter(["cmdline"]) if str(home) in " ".join(process.info["cmdline"] or ())
    ]
    assert left == []


@pytest.fixture(scope="session")
def platforms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platforms]:
    """
    One platform at a time: the one that runs, where it has the settings that are asked for beside those of this process,
    or another, in the home that is named or in an empty one.
    """
    current: list[tuple[Mapping[str, str], Platform]] = []
    with ExitStack() as stack:

        def platform(settings: Mapping[str, str], home: Path | None = None) -> Platform:
            own = {name: value for name, value in os.environ.items() if name.startswith("SMORE_")}
            settings = {**own, **settings}
            if not current or current[0][0] != settings:
                current.clear()
                stack.close()
                made = stack.enter_context(running(home or tmp_path_factory.mktemp("home"), settings))
                current.append((settings, made))
            return current[0][1]

        yield platform


@pytest.fixture(scope="module")
def platform(request: pytest.FixtureRequest, platforms: Platforms) -> Iterator[Platform]:
    """With what the module asks for in its ``ENVIRONMENT``; ``LEARNS = False``: nothing in it needs predictors."""
    made = platforms(getattr(request.module, "ENVIRONMENT", {}))
    with ExitStack() as stack:
        if not getattr(request.module, "LEARNS", True):
            # A new platform fits one for many seconds of a processor.
            stack.enter_context(made.unlearning())
        yield made
    # Training outlives the platform on purpose, so it is ended first.
    for job in made.client.jobs():
        made.client.stop_job(job.id)
    eventually(lambda: all(job.state in ("ended", "lost") for job in made.client.jobs()), 30, "the end of training")
    for function in made.client.functions():
        made.client.delete(function.name)
