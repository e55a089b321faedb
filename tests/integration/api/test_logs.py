"""Logs over REST: the newest lines, those that come, from where a reader left off, and who may read them."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
import redis
import redis.asyncio

from api.app import Application, create_app
from api.server.connections import protocol
from smore.domain.access import Scope
from smore.domain.function import FunctionSpec
from smore.domain.job import Action
from smore.messages.logs import LogPiece, encode_piece
from smore.postgres.catalog import Store
from smore.process.settings import LogSettings, Settings
from smore.redis.catalog import Catalog, FunctionEntry
from smore.redis.logs import LogReader, LogWriter, function_log, job_log, log_key
from smore.redis.queue import Queue
from smore_client import ApiError, AsyncClient, Client
from tests.support.eventually import PATIENCE, eventually
from tests.support.gateway import Served, add_key, problem
from tests.support.placed_jobs import placed

LOG = function_log("default/echo")
ONE, TWO = "1" * 32, "2" * 32


def piece(*lines: str, invocations: list[str] | None = None) -> LogPiece:
    return LogPiece(
        at=1769860800.0,
        stream="stdout",
        lines=list(lines),
        gpu="cpu0",
        node="host",
        revision=3,
        invocations=invocations or [],
    )


URL = "{}/v1/functions/echo/logs?follow=true"


@pytest.fixture
def writer(config: Settings, redis_client: "redis.Redis") -> LogWriter:
    return LogWriter(redis_client, config.redis.prefix, LogSettings())


@pytest.fixture(scope="module")
def application(config: Settings) -> Application:
    return create_app(config.model_copy(update={"logs": LogSettings(followers=8)}))


@pytest.fixture
def gateway(application: Application, catalog: Catalog) -> Iterator[Served]:
    catalog.put_revision("default/echo", 1, FunctionSpec(entrypoint="zoo.echo:Function"))
    catalog.put_function(FunctionEntry(project="default", name="echo", revision=1))
    with Served(application) as served:
        yield served


@pytest.fixture
def key(gateway: Served, catalog: Catalog) -> str:
    token = add_key(catalog, Scope.READ)
    eventually(lambda: asked(gateway, token).status_code == 200, what="the key")
    return token


def asked(gateway: Served, key: str, **query: Any) -> httpx.Response:
    return httpx.get(
        f"{gateway.url}/v1/functions/echo/logs", params=query, headers={"Authorization": f"Bearer {key}"}, timeout=30
    )


def texts(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [line["text"] for line in response.json()["lines"]]


def test_the_newest_lines_of_an_invocation_or_since_a_moment(gateway: Served, key: str, writer: LogWriter) -> None:
    assert texts(asked(gateway, key)) == []
    writer.append([(LOG, piece("a", "b")), (LOG, piece("c", invocations=[ONE])), (LOG, piece("d", "e"))])
    writer.append([(LOG, piece(f"{number}", invocations=[ONE, TWO])) for number in range(250)])
    assert texts(asked(gateway, key, lines=2)) == ["248", "249"]
    assert texts(asked(gateway, key, lines=252)) == ["d", "e", *map(str, range(250))]
    assert texts(asked(gateway, key, lines=253, invocation=ONE)) == ["c", *map(str, range(250))]
    assert texts(asked(gateway, key, lines=1, invocation=TWO)) == ["249"]
    assert texts(asked(gateway, key, invocation="3" * 32)) == []
    assert texts(asked(gateway, key, lines=0)) == []
    line = asked(gateway, key, lines=1).json()["lines"][0]
    assert (line["at"], line["stream"], line["revision"]) == ("2026-01-31T12:00:00+00:00", "stdout", 3)
    assert (line["gpu"], line["node"], line["invocations"]) == ("cpu0", "host", [ONE, TWO])
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert texts(asked(gateway, key, since=soon.isoformat())) == []
    assert texts(asked(gateway, key, since=(soon - timedelta(hours=2)).isoformat(), lines=1)) == ["249"]


def test_a_log_is_its_projects_own_and_ends_with_its_function(
    gateway: Served, key: str, catalog: Catalog, writer: LogWriter, config: Settings, redis_client: "redis.Redis"
) -> None:
    foreign = add_key(catalog, *Scope, project="other")
    invoker = add_key(catalog, Scope.INVOKE)
    eventually(lambda: asked(gateway, foreign).status_code == 404, what="the key")
    problem(asked(gateway, foreign, follow=True), 404, "function_not_found")
    eventually(lambda: asked(gateway, invoker).status_code == 403, what="the key")
    problem(asked(gateway, key, invocation="x"), 422, "invalid_input")
    problem(asked(gateway, key, lines=100_000), 422, "invalid_input")
    writer.append([(LOG, piece("a"))])
    name = log_key(config.redis.prefix, LOG)
    assert 0 < redis_client.pttl(name) <= LogSettings().keep_s * 1000
    Queue(redis_client, config.redis.prefix, config.queue).forget_function("default/echo")
    assert redis_client.exists(name) == 0


def test_a_log_is_bounded(config: Settings, redis_client: "redis.Redis") -> None:
    writer = LogWriter(redis_client, config.redis.prefix, LogSettings(pieces=50))
    writer.append([(LOG, piece("x" * 200)) for _ in range(1000)])
    assert redis_client.xlen(log_key(config.redis.prefix, LOG)) < 200


def test_all_logs_together_are_bounded(config: Settings, redis_client: "redis.Redis") -> None:
    """The one that was not written to for longest goes first."""
    writer = LogWriter(redis_client, config.redis.prefix, LogSettings(bytes=1 << 20))
    for second, name in enumerate(("first", "second", "third", "first")):
        piece_ = msgspec.structs.replace(piece("x" * 3000), at=float(second))
        writer.append([(function_log(f"p/{name}"), piece_) for _ in range(100)])
    names = [log_key(config.redis.prefix, function_log(f"p/{name}")) for name in ("first", "second", "third")]
    assert writer.trim() == 1
    assert [redis_client.exists(name) for name in names] == [1, 0, 1]
    redis_client.delete(names[0])
    assert writer.trim() == 0
    assert redis_client.zrange(f"{config.redis.prefix}logs", 0, -1) == [b"function/p/third"]


def test_a_follower_goes_on_behind_the_last_line_that_it_has(gateway: Served, key: str, writer: LogWriter) -> None:
    """Its connection is cut as a gateway that stops cuts it: the client asks again with Last-Event-ID."""
    writer.append([(LOG, piece("a", "b", "c"))])
    with Client(gateway.url, key) as client:
        lines = client.logs("echo", lines=2, follow=True)
        assert [next(lines).text, next(lines).text] == ["b", "c"]
        (stopping,) = gateway.app.state.gateway.followers
        writer.append([(LOG, piece("d", "e"))])
        assert next(lines).text == "d"
        gateway.app.state.gateway.followers.clear()
        stopping.set()
        writer.append([(LOG, piece("f"))])
        assert [next(lines).text, next(lines).text] == ["e", "f"]
        lines.close()  # type: ignore[attr-defined]
    eventually(lambda: not gateway.app.state.gateway.followers, what="the follower is gone")
    head = {"Authorization": f"Bearer {key}"}
    problem(httpx.get(URL.format(gateway.url), headers={**head, "Last-Event-ID": "yesterday"}), 422, "invalid_input")


def test_followers_of_one_project_leave_room_for_others_and_those_of_all_for_operators(
    gateway: Served, key: str, catalog: Catalog
) -> None:
    followers = gateway.app.state.gateway.followers
    other, operator = add_key(catalog, Scope.READ, project="other"), add_key(catalog, Scope.READ, Scope.ADMIN)
    catalog.put_revision("other/echo", 1, FunctionSpec(entrypoint="zoo.echo:Function"))
    catalog.put_function(FunctionEntry(project="other", name="echo", revision=1))
    eventually(lambda: {asked(gateway, token).status_code for token in (other, operator)} == {200}, what="the keys")

    with ExitStack() as open_:

        def follow(token: str) -> None:
            before, head = len(followers), {"Authorization": f"Bearer {token}"}
            answer = open_.enter_context(httpx.stream("GET", URL.format(gateway.url), headers=head, timeout=30))
            assert answer.status_code == 200
            eventually(lambda: len(followers) == before + 1, what="a follower")

        follow(key)
        follow(key)
        refused = problem(asked(gateway, key, follow=True), 429, "limit_reached")
        assert refused["limit"] == "followers"
        follow(other)
        for _ in range(4):
            follow(operator)
        # The last of the eight places is an operator's.
        problem(asked(gateway, other, follow=True), 429, "limit_reached")
        follow(operator)
        problem(asked(gateway, operator, follow=True), 429, "limit_reached")


def test_nothing_is_missed_between_the_lines_that_are_there_and_those_that_come(
    config: Settings, redis_client: "redis.Redis", writer: LogWriter
) -> None:
    writer.append([(LOG, piece("old"))])
    entries: Any = redis_client.xrange(log_key(config.redis.prefix, LOG))
    since = int(entries[0][0].partition(b"-")[0]) / 1000 + 1

    async def read() -> tuple[list[str], list[str]]:
        assert config.redis.url is not None
        client = redis.asyncio.from_url(config.redis.url)
        reader = LogReader(client, config.redis.prefix)
        none, position = await reader.last(LOG, 10, since=since)
        empty, start = await reader.last(function_log("p/empty"), 10)
        assert (none, empty) == ([], [])
        key = log_key(config.redis.prefix, LOG)
        await client.xadd(key, {"d": encode_piece(piece("new"))}, id=f"{int(since * 1000)}-0")
        came, _ = await reader.after(LOG, position)
        all_, _ = await reader.after(LOG, start)
        await client.aclose()
        return [line.text for line in came], [line.text for line in all_]

    assert asyncio.run(read()) == (["new"], ["old", "new"])


def test_an_asynchronous_follower_that_starts_before_the_first_line(
    gateway: Served, key: str, writer: LogWriter
) -> None:
    async def first() -> str:
        async with AsyncClient(gateway.url, key) as client:
            async for line in client.logs("echo", invocation=ONE, follow=True):
                return line.text
        return ""

    def write() -> None:
        eventually(lambda: gateway.app.state.gateway.followers, what="a follower")
        writer.append([(LOG, piece("another's")), (LOG, piece("its own", invocations=[ONE]))])

    writing = threading.Thread(target=write)
    writing.start()
    try:
        assert asyncio.run(asyncio.wait_for(first(), 10 * PATIENCE)) == "its own"
    finally:
        writing.join()


def test_following_ends_with_the_key_and_with_the_function(
    gateway: Served, key: str, catalog: Catalog, writer: LogWriter
) -> None:
    head = {"Authorization": f"Bearer {key}"}
    with httpx.stream("GET", f"{gateway.url}/v1/functions/echo/logs?follow=true", headers=head, timeout=30) as response:
        eventually(lambda: gateway.app.state.gateway.followers, what="a follower")
        catalog.remove_key(key.split("_")[1])
        assert response.read() == b": connected\n\n"


def test_a_gateway_that_stops_ends_the_answers_of_followers_in_order(
    config: Settings, catalog: Catalog, gateway: Served, key: str
) -> None:
    head = {"Authorization": f"Bearer {key}"}
    with Served(create_app(config), http=protocol(config.api)) as stopping:
        url = f"{stopping.url}/v1/functions/echo/logs?follow=true"
        response = httpx.Client().send(httpx.Request("GET", url, headers=head), stream=True)
    # An answer that is broken off would raise here.
    assert response.read() == b": connected\n\n"


def test_a_rank_of_a_job_is_followed_until_the_job_is_over(
    config: Settings, store: Store, catalog: Catalog, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.logs.OVER_S", 0.01)
    job = placed(store, "night", ["cpu0"], running=True)
    with Served(create_app(config)) as served:
        token = add_key(catalog, Scope.READ)
        with Client(served.url, token) as client:
            eventually(lambda: answers(client), what="the key")
            for rank in (0, 1):
                writer.append([(job_log(job.id, rank), piece(f"rank {rank}", "second"))])
            assert [line.text for line in client.job_logs("night", rank=1, lines=2)] == ["rank 1", "second"]
            lines = client.job_logs(job.id, follow=True)
            assert [next(lines).text for _ in range(2)] == ["rank 0", "second"]
            store.jobs.move(job.id, Action.END)
            writer.append([(job_log(job.id, 0), piece("the last"))])
            assert [line.text for line in lines] == ["the last"]


def answers(client: Client) -> bool:
    try:
        client.jobs()
    except ApiError:
        return False
    return True
