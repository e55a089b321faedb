"""
The message that ``claim.lua`` pushes, held against the one that Celery itself sends, and carried out by a stock worker.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from celery import Celery

from smore.domain.ids import new_id
from smore.domain.invocation import Cause
from smore.process.settings import QueueSettings, RedisSettings, Settings
from smore.redis.celery import RUN, gpu_queue, make_app, message
from smore.redis.queue import Claim, Queue, RunOutcome
from smore.redis.submission import Submission
from smore.redis.url import celery_url
from tests.support.eventually import eventually
from tests.support.redis_server import RedisServer

P = "smore:"
ARGS: Sequence[Any] = ["default/echo", 3, [["a" * 32, 1], ["b" * 32, 2]]]

#: A whole application of the platform's kind: one GPU queue, the thread pool, a task that runs what it is given.
WORKER = f"""
import os
from celery import Celery
from smore.redis.celery import make_app
from smore.domain.invocation import Cause
from smore.redis.queue import Queue, RunOutcome
from smore.process.settings import QueueSettings, RedisSettings, Settings
import redis

url = os.environ["TEST_REDIS_URL"]
app = make_app("stock", Settings(redis=RedisSettings(url=url)), ["gpu.cpu0"])
queue = Queue(redis.Redis.from_url(url), "{P}", QueueSettings())

@app.task(name="{RUN}")
def run(function, revision, attempts):
    begun = queue.start(function, "cpu0", 60, [tuple(pair) for pair in attempts])
    queue.finish(function, "", [
        RunOutcome(id=id_, attempt=attempt, action="succeed", cause=Cause.OK, result=item.payload.upper())
        for (id_, attempt), item in zip(attempts, begun) if item is not None
    ])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator["redis.Redis"]:
    with server.client() as client:
        client.flushall()
        yield client


def app_at(url: str) -> Celery:
    return make_app("contract", Settings(redis=RedisSettings(url=url)), ["gpu.cpu0"])


def send(app: Celery) -> None:
    @app.task(name=RUN, shared=False)
    def run(*_: object) -> None: ...

    run.apply_async(args=tuple(ARGS), queue="gpu.cpu0")


def on_list(client: "redis.Redis") -> bytes:
    return cast(bytes, client.rpop(f"{P}{gpu_queue('cpu0')}"))


def assert_alike(ours: object, celerys: object, path: str = "") -> None:
    """Same keys and types all the way down; same values, but for those that differ from message to message."""
    assert type(ours) is type(celerys), path
    if isinstance(ours, dict) and isinstance(celerys, dict):
        assert ours.keys() == celerys.keys(), path
        for key in ours:
            assert_alike(ours[key], celerys[key], f"{path}.{key}")
    elif path.rpartition(".")[2] not in {
        "id",
        "root_id",
        "correlation_id",
        "delivery_tag",
        "argsrepr",
        "origin",
        "reply_to",
        "body",
    }:
        assert ours == celerys, path


def test_our_message_is_celerys_field_by_field(server: RedisServer, client: "redis.Redis") -> None:
    send(app_at(server.url))
    celerys, ours = json.loads(on_list(client)), json.loads(message(RUN, ARGS, gpu_queue("cpu0")))
    assert_alike(ours, celerys)
    assert (
        json.loads(base64.b64decode(ours["body"]))
        == json.loads(base64.b64decode(celerys["body"]))
        == [
            ARGS,
            {},
            {
                "callbacks": None,
                "errbacks": None,
                "chain": None,
                "chord": None,
            },
        ]
    )
    for envelope in (ours, celerys):
        id_ = envelope["headers"]["id"]
        assert id_ == envelope["headers"]["root_id"] == envelope["properties"]["correlation_id"]


def test_a_stock_worker_carries_out_what_claim_pushes(
    server: RedisServer, client: "redis.Redis", tmp_path: Path
) -> None:
    (tmp_path / "stock_app.py").write_text(WORKER)
    queue = Queue(client, P, QueueSettings())
    ids = [new_id(), new_id()]
    for id_ in ids:
        queue.enqueue(Submission(id=id_, function="default/echo", revision=1, payload=b"hello", slo_us=60_000_000))
    token = queue.lead("", 60)
    claim = Claim(
        function="default/echo",
        gpu="cpu0",
        celery_list=f"{P}{gpu_queue('cpu0')}",
        decision="{}",
        schedule_us=1,
        message=message(RUN, ["default/echo", 1, [[id_, 1] for id_ in ids]], gpu_queue("cpu0")),
        attempts=[(id_, 0) for id_ in ids],
    )
    assert queue.claim(token, 60, [claim]) == [frozenset(ids)]
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "stock_app",
                "worker",
                "--pool",
                "threads",
                "--concurrency",
                "2",
                "--loglevel",
                "INFO",
            ],
            cwd=tmp_path,
            env=os.environ | {"TEST_REDIS_URL": server.url, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
            stdout=output,
            stderr=output,
        )
        try:

            def succeeded() -> bool:
                assert worker.poll() is None, log.read_text()
                return all(
                    (record := queue.record("default", id_)) is not None and record.state == "succeeded" for id_ in ids
                )

            eventually(succeeded, within_s=40, what="the worker's results")
        finally:
            worker.terminate()
            worker.wait(20)
    assert [client.get(f"{P}r:default:{id_}") for id_ in ids] == [b"HELLO", b"HELLO"]
    assert client.llen(f"{P}{gpu_queue('cpu0')}") == 0
    assert client.hlen(f"{P}unacked") == 0, "acknowledged early"
    again = [RunOutcome(id=id_, attempt=1, action="succeed", cause=Cause.OK, result=b"twice") for id_ in ids]
    assert queue.finish("default/echo", "", again) == [False, False]


@pytest.mark.parametrize("db", [0, 3])
def test_celery_reaches_the_redis_that_redis_py_reaches(server: RedisServer, db: int) -> None:
    url = server.url.replace("db=0", f"db={db}")
    with redis.Redis.from_url(url) as client:
        client.flushall()
        send(app_at(url))
        assert json.loads(on_list(client))["headers"]["task"] == RUN


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost:6379/2", "redis://localhost:6379/2"),
        ("rediss://user:pass@host:6380/0", "rediss://user:pass@host:6380/0"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
        ("unix://:p%40ss%2F@/run/redis.sock?db=1", "redis+socket://:p%40ss%2F@/run/redis.sock?virtual_host=1"),
        ("unix://me:secret@/run/redis.sock", "redis+socket://me:secret@/run/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock?db=1&password=p%40ss", "redis+socket://:p%40ss@/run/redis.sock?virtual_host=1"),
    ],
)
def test_celery_url(url: str, expected: str) -> None:
    assert celery_url(url) == expected


def test_an_app_needs_a_redis() -> None:
    with pytest.raises(ValueError, match="SMORE_REDIS__URL"):
        make_app("none", Settings(redis=RedisSettings(url=None)), [])
