"""The queue on a real Redis: both doors, broken connections, a crashed server, framing, bounds and exact times."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from structlog.testing import capture_logs

from smore.domain.ids import new_id
from smore.domain.invocation import Cause, Encoding, End, EndedFor
from smore.domain.limits import Limits
from smore.messages import stream
from smore.messages.results import decode_result
from smore.process.settings import QueueSettings
from smore.redis.gateway_queue import GatewayQueue
from smore.redis.queue import Claim, Queue, RunOutcome, StartedInvocation
from smore.redis.records import QueuedInvocation, Reply, parse_replies
from smore.redis.submission import Submission
from tests.support.redis_server import RedisServer

P = "smore:"
F = "default/echo"
BOUNDS = QueueSettings()
BINARY = (b"", b"\n", b"0000000003|a\nb", bytes(range(256)) * 40)


def holder(client: "redis.Redis") -> str:
    """The token of the leader's lease, '' = nobody leads."""
    token = client.get(f"{P}leader")
    return token.decode() if isinstance(token, bytes) else ""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator["redis.Redis"]:
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def queue(client: "redis.Redis") -> Queue:
    return Queue(client, P, BOUNDS)


@asynccontextmanager
async def gateway(
    server: RedisServer, patience_s: float = 10.0, bounds: QueueSettings = BOUNDS
) -> AsyncIterator[GatewayQueue]:
    client = redis.asyncio.Redis.from_url(server.url)
    queue = GatewayQueue(client, P, bounds, patience_s=patience_s)
    try:
        yield queue
    finally:
        await queue.close()
        await client.aclose()


def request(**fields: Any) -> Submission:
    return replace(Submission(id=new_id(), function=F, revision=1, payload=b"{}", slo_us=60_000_000), **fields)


def begin(queue: Queue, *ids: str, gpu: str = "cpu0", attempt: int = 0) -> list[StartedInvocation | None]:
    """Claim and start as a leader and a worker would."""
    queue.redis.delete(f"{P}leader")
    claim = Claim(
        function=F,
        gpu=gpu,
        celery_list=f"{P}gpu.{gpu}",
        message=b"m",
        decision="{}",
        schedule_us=42,
        attempts=[(id_, attempt) for id_ in ids],
    )
    assert queue.claim(queue.lead("", 60), 60, [claim]) == [frozenset(ids)]
    return queue.start(F, gpu, 60, [(id_, attempt + 1) for id_ in ids])


def end(queue: Queue, *ids: str, result: bytes = b"r", attempt: int = 1) -> None:
    outcomes = [RunOutcome(id=id_, attempt=attempt, action="succeed", cause=Cause.OK, result=result) for id_ in ids]
    assert queue.finish(F, "", outcomes) == [True] * len(ids)


def events(client: "redis.Redis") -> list[stream.Event]:
    return [
        stream.decode(fields[b"e"])
        for _, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(f"{P}ev"))
    ]


def reads(client: "redis.Redis") -> int:
    return int(client.info("stats")["total_reads_processed"])


# The gateway's door.


def test_a_hundred_enqueues_share_a_few_round_trips(server: RedisServer, client: "redis.Redis") -> None:
    async def enqueue() -> None:
        async with gateway(server) as queue:
            await queue.enqueue(request())
            before = reads(client)
            answers = await asyncio.gather(*(queue.enqueue(request()) for _ in range(100)))
            assert {answer.status for answer in answers} == {"ok"}
            # 100 commands are more than one buffer of the server's; our own question is a read too.
            assert reads(client) - before <= 12

    asyncio.run(enqueue())
    assert client.zcard(f"{P}q:{F}") == 101


def test_large_payloads_arrive_as_they_were(server: RedisServer, queue: Queue) -> None:
    """They are sent in pieces of their own, beside small ones and by both doors."""
    payloads = [b"", b"small", bytes(range(256)) * 2000, b"\r\n$3\r\n" * 10_000]

    async def enqueue() -> list[str]:
        wanted = [request(payload=payload) for payload in payloads]
        async with gateway(server) as door:
            await asyncio.gather(*(door.enqueue(one) for one in wanted))
        return [one.id for one in wanted]

    ids = asyncio.run(enqueue())
    last = request(payload=payloads[2])
    queue.enqueue(last)
    assert [one and one.payload for one in begin(queue, *ids, last.id)] == [*payloads, payloads[2]]


def test_volatile_payload_is_lost_with_the_server_and_said_to_be() -> None:
    with RedisServer() as server:
        with server.client() as client:
            queue = Queue(client, P, BOUNDS)
            kept, volatile = request(payload=b"kept"), request(payload=b"v" * 100_000, volatile=True)
            for one in (kept, volatile):
                assert queue.enqueue(one).status == "ok"
        server.stop()
        server.start()
        with server.client() as client:
            queue = Queue(client, P, BOUNDS)
            begun = begin(queue, kept.id, volatile.id)
            assert begun[0] is not None and begun[0].payload == b"kept" and begun[1] is None
            record = queue.record("default", volatile.id)
            assert record is not None and (record.state, record.cause) == ("failed", Cause.PAYLOAD_LOST)
            end(queue, kept.id)
            assert not any(int(held) for held in client.hmget(f"{P}bytes", "payload") if held)


def test_payloads_beside_redis(server: RedisServer, client: "redis.Redis", tmp_path: Path) -> None:
    bounds = BOUNDS.model_copy(update={"payloads": tmp_path})
    queue = Queue(client, P, bounds)
    taken, lost, small = (
        request(payload=b"t" * 100_000, volatile=True),
        request(payload=b"l" * 100_000, volatile=True),
        request(),
    )
    late = request(payload=b"x" * 100_000, volatile=True, slo_us=0, deadline_us=1)

    async def enqueue() -> list[str]:
        async with gateway(server, bounds=bounds) as door:
            return [(await door.enqueue(one)).status for one in (taken, lost, small, late)]

    def lying() -> set[str]:
        return {path.name.rpartition(".")[2] for path in tmp_path.iterdir() if not path.name.startswith(".")}

    with capture_logs() as lines:
        assert asyncio.run(enqueue()) == ["ok", "ok", "ok", "late"]
    said = [line for line in lines if line["event"] == "admission"]
    assert [(line["log_level"], line["verdict"]) for line in said] == [("debug", "ok")] * 3 + [("debug", "late")]
    assert [line["earliest_ms"] is not None for line in said] == [True, True, True, False]
    assert lying() == {taken.id, lost.id}, "what was refused leaves nothing"
    assert [client.strlen(f"{P}p:default:{one.id}") for one in (taken, lost, small)] == [0, 0, 2]
    assert client.hget(f"{P}bytes", "payload") == b"200002"
    (tmp_path / f"default.{lost.id}").unlink()
    begun = begin(queue, taken.id, lost.id, small.id)
    assert [one and one.payload for one in begun] == [taken.payload, None, b"{}"]
    record = queue.record("default", lost.id)
    assert record is not None and (record.state, record.cause) == ("failed", Cause.PAYLOAD_LOST)

    async def sweep() -> int:
        async with gateway(server, bounds=bounds) as door:
            return await door.sweep_payloads(-1.0)

    assert asyncio.run(sweep()) == 0 and lying() == {taken.id}, "it runs, and may run again"
    end(queue, taken.id)
    assert asyncio.run(sweep()) == 1 and not lying()


def test_enqueueing_survives_killed_connections(server: RedisServer, client: "redis.Redis") -> None:
    over = threading.Event()

    def kill() -> None:
        with server.client() as other:
            while not over.wait(0.005):
                other.client_kill_filter(_type="normal", skipme=True)

    async def enqueue() -> list[str]:
        async with gateway(server) as queue:
            # One gateway, twenty callers at a time, each call cut off again and again.
            ids = []
            for _ in range(30):
                batch = [request() for _ in range(20)]
                answers = await asyncio.gather(*(queue.enqueue(one) for one in batch))
                assert {answer.status for answer in answers} == {"ok"}
                ids += [one.id for one in batch]
            return ids

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        ids = asyncio.run(enqueue())
    finally:
        over.set()
        killer.join()
    assert client.zcard(f"{P}q:{F}") == len(ids) == 600
    assert sorted(event.id for event in events(client) if isinstance(event, stream.Arrived)) == sorted(ids), (
        "each arrived once"
    )
    assert client.hget(f"{P}count", "waiting") == b"600"


def test_a_crash_of_redis_loses_nothing_accepted_and_callers_wait_it_out() -> None:
    async def go_on(server: RedisServer) -> None:
        async with gateway(server) as queue:
            before = [request(payload=b"x" * 500) for _ in range(50)]
            assert {answer.status for answer in await asyncio.gather(*map(queue.enqueue, before))} == {"ok"}
            server.stop()
            during = [request() for _ in range(10)]
            waiting = asyncio.gather(*map(queue.enqueue, during))
            await asyncio.to_thread(server.start)
            assert {answer.status for answer in await waiting} == {"ok"}
            for one in before + during:
                record = await queue.record("default", one.id)
                assert record is not None
                assert record.state == "queued"

    with RedisServer() as server:
        asyncio.run(go_on(server))
        with server.client() as client:
            # Its scripts were lost with the crash: the synchronous door brings them back as well.
            client.script_flush()
            queue = Queue(client, P, BOUNDS)
            assert len(queue.snapshot().waiting) == 60
            assert queue.sweep() == 0
            assert client.hgetall(f"{P}count") == {b"waiting": b"60"}


def test_patience_has_an_end() -> None:
    async def enqueue(server: RedisServer) -> None:
        async with gateway(server, patience_s=0.1) as queue:
            server.stop()
            with pytest.raises(redis.ConnectionError):
                await queue.enqueue(request())
            with pytest.raises(redis.ConnectionError):
                await queue.cancel("default", new_id())
            # Nobody's patience begins only when another's has ended.
            async with asyncio.timeout(5):
                answers = await asyncio.gather(
                    *(queue.cancel("default", new_id()) for _ in range(100)), return_exceptions=True
                )
            assert {type(answer) for answer in answers} == {redis.ConnectionError}
            await asyncio.to_thread(server.start)
            assert (await queue.enqueue(request())).status == "ok"

    with RedisServer() as server:
        asyncio.run(enqueue(server))


def test_an_error_of_one_script_reaches_its_caller_alone(server: RedisServer, client: "redis.Redis") -> None:
    client.set(f"{P}q:default/broken", "not a sorted set")

    async def enqueue() -> None:
        async with gateway(server) as queue:
            good, bad = await asyncio.gather(
                queue.enqueue(request()), queue.enqueue(request(function="default/broken")), return_exceptions=True
            )
            assert isinstance(bad, redis.ResponseError)
            assert not isinstance(good, BaseException)
            assert good.status == "ok"

    asyncio.run(enqueue())


def test_enqueue_is_idempotent_by_id(queue: Queue, client: "redis.Redis") -> None:
    one = request(idempotency_key="k", request_hash="h")
    first = queue.enqueue(one)
    assert first.status == "ok"
    assert queue.enqueue(one) == first
    assert len(events(client)) == client.zcard(f"{P}q:{F}") == 1
    begin(queue, one.id)
    end(queue, one.id)
    assert queue.enqueue(one) == first, "even when it has ended already"
    assert client.zcard(f"{P}q:{F}") == 0


def test_record_and_reply_tell_how_it_stands(server: RedisServer, queue: Queue) -> None:
    one = request(rows=3, accept=Encoding.RAW, trace="00-aa-bb-01")
    queue.enqueue(one)

    async def ask() -> None:
        async with gateway(server) as door:
            assert await door.record("default", new_id()) is None
            assert await door.reply("default", new_id()) is None
            record = await door.record("default", one.id)
            assert record is not None
            assert (record.function, record.state, record.trace) == (F, "queued", "00-aa-bb-01")
            assert (record.rows, record.accept) == (3, Encoding.RAW)
            assert (record.attempt, record.claimed_us, record.started_us, record.finished_us, record.gpu) == (
                0,
                0,
                0,
                0,
                "",
            )
            assert record == queue.record("default", one.id)
            assert await door.record("other", one.id) is None, "another project's"
            begin(queue, one.id)
            assert await door.reply("default", one.id) is None
            end(queue, one.id, result=b"\x00\nend")
            reply, nobody = await door.replies([("default", one.id), ("default", new_id())])
            assert nobody is None
            assert reply is not None
            assert (reply.state, reply.cause, reply.attempt, reply.gpu, reply.schedule_us, reply.result) == (
                "succeeded",
                "ok",
                1,
                "cpu0",
                42,
                b"\x00\nend",
            )
            assert 0 < reply.arrival_us < reply.claimed_us < reply.started_us < reply.finished_us
            assert await door.cancel("default", one.id) == ("ended", "succeeded")
            assert await door.cancel("default", new_id()) == ("absent", "")

    asyncio.run(ask())


def test_cancel_of_what_waits_is_told(server: RedisServer, queue: Queue) -> None:
    one = request()
    queue.enqueue(one)

    async def cancel() -> Reply | None:
        async with gateway(server) as door:
            assert await door.cancel("default", one.id) == ("cancelled", "queued")
            return await door.reply("default", one.id)

    reply = asyncio.run(cancel())
    assert reply is not None
    assert (reply.state, reply.cause, reply.claimed_us, reply.started_us) == ("cancelled", "cancelled", 0, 0)
    assert decode_result(reply.result).form == "error"


# Answers to those who wait.


def test_a_batch_is_published_once_to_each_gateway_in_frames(queue: Queue, client: "redis.Redis") -> None:
    with client.pubsub() as subscriber:
        subscriber.subscribe("gw1", "gw2")
        for _ in range(2):
            subscriber.get_message(timeout=5)
        requests = [request(channel=channel) for channel in ("gw1", "gw2") for _ in BINARY]
        for one in requests:
            queue.enqueue(one)
        nobody = request(channel="")
        queue.enqueue(nobody)
        begin(queue, *(one.id for one in requests), nobody.id)
        outcomes = [
            RunOutcome(id=one.id, attempt=1, action="succeed", cause=Cause.OK, result=result)
            for one, result in zip(requests, BINARY * 2, strict=True)
        ]
        assert all(
            queue.finish(
                F, "", [*outcomes, RunOutcome(id=nobody.id, attempt=1, action="fail", cause=Cause.CRASHED, result=b"")]
            )
        )
        told: dict[str, list[Reply]] = {}
        for _ in range(2):
            message = subscriber.get_message(timeout=5)
            assert message is not None
            told[message["channel"].decode()] = parse_replies(message["data"])
        assert subscriber.get_message(timeout=0) is None, "one message for each gateway"
    for channel, ours in (("gw1", requests[: len(BINARY)]), ("gw2", requests[len(BINARY) :])):
        assert [reply.id for reply in told[channel]] == [one.id for one in ours]
        assert tuple(reply.result for reply in told[channel]) == BINARY
        for reply in told[channel]:
            record = queue.record("default", reply.id)
            assert record is not None
            assert (reply.arrival_us, reply.deadline_us, reply.claimed_us, reply.started_us, reply.finished_us) == (
                record.arrival_us,
                record.deadline_us,
                record.claimed_us,
                record.started_us,
                record.finished_us,
            )


def test_a_repeat_of_an_attempt_that_ended_tells_nobody(queue: Queue, client: "redis.Redis") -> None:
    one = request(channel="gw")
    queue.enqueue(one)
    begin(queue, one.id)
    end(queue, one.id)
    with client.pubsub() as subscriber:
        subscriber.subscribe("gw")
        subscriber.get_message(timeout=5)
        again = RunOutcome(id=one.id, attempt=1, action="fail", cause=Cause.CRASHED, result=b"late")
        assert queue.finish(F, "", [again]) == [False]
        assert subscriber.get_message(timeout=0.05) is None
    assert client.get(f"{P}r:default:{one.id}") == b"r"


def test_an_empty_payload_ends_as_any_other(queue: Queue, client: "redis.Redis") -> None:
    one = request(payload=b"", encoding=Encoding.CANARY)
    queue.enqueue(one)
    (begun,) = begin(queue, one.id)
    assert begun is not None
    assert (begun.payload, begun.encoding) == (b"", Encoding.CANARY)
    end(queue, one.id, result=b"")
    client.zadd(f"{P}done", {f"{F}|{one.id}": 1})
    assert queue.sweep() == 1
    assert queue.record("default", one.id) is None


# Records and their time.


def expiry_us(client: "redis.Redis", id_: str) -> int:
    score = client.zscore(f"{P}done", f"{F}|{id_}")
    assert score is not None
    return int(score)


def test_sync_records_leave_earlier_unless_kept(server: RedisServer, client: "redis.Redis", queue: Queue) -> None:
    short, long = int(BOUNDS.sync_result_ttl_s * 1e6), int(BOUNDS.result_ttl_s * 1e6)
    plain, sync, kept_before, kept_after = request(), request(sync=True), request(sync=True), request(sync=True)
    requests = (plain, sync, kept_before, kept_after)
    for one in requests:
        queue.enqueue(one)

    async def keep(id_: str) -> str:
        async with gateway(server) as door:
            return await door.keep("default", id_)

    assert asyncio.run(keep(new_id())) == ""
    assert asyncio.run(keep(kept_before.id)) == "queued"
    begin(queue, *(one.id for one in requests))
    end(queue, *(one.id for one in requests))
    assert asyncio.run(keep(kept_after.id)) == "succeeded"
    for one, ttl_us in ((plain, long), (sync, short), (kept_before, long), (kept_after, long)):
        record = queue.record("default", one.id)
        assert record is not None
        assert expiry_us(client, one.id) == record.finished_us + ttl_us


def test_sweep_drops_what_has_run_out_and_nothing_else(client: "redis.Redis") -> None:
    queue = Queue(client, P, QueueSettings(result_ttl_s=3600, sync_result_ttl_s=0))
    plain, sync, waiting = request(), request(sync=True), request()
    for one in (plain, sync, waiting):
        queue.enqueue(one)
    begin(queue, plain.id, sync.id)
    end(queue, plain.id, sync.id, result=b"12345")
    assert queue.sweep() == 1
    assert queue.record("default", sync.id) is None
    assert client.exists(f"{P}r:default:{sync.id}", f"{P}p:default:{sync.id}") == 0
    assert queue.record("default", plain.id) is not None
    assert queue.record("default", waiting.id) is not None
    assert client.hgetall(f"{P}bytes") == {b"payload": b"2", b"result": b"5"}
    assert queue.sweep() == 0


# What the gate refuses.


@pytest.mark.parametrize(
    ("bounds", "fields", "limit", "fits"),
    [
        (QueueSettings(), {"max_pending": 3}, "function", 3),
        (QueueSettings(max_pending=2), {}, "pending", 2),
        (QueueSettings(payload_bytes=10), {"payload": b"12345"}, "payload_bytes", 2),
        (QueueSettings(payload_bytes=9), {"payload": b"12345"}, "payload_bytes", 1),
        (QueueSettings(events=4), {}, "events", 4),
    ],
)
def test_bounds_are_strict(
    client: "redis.Redis", bounds: QueueSettings, fields: dict[str, Any], limit: str, fits: int
) -> None:
    queue = Queue(client, P, bounds)
    for _ in range(fits):
        assert queue.enqueue(request(**fields)).status == "ok"
    before = len(cast("list[bytes]", client.keys("*")))
    refused = queue.enqueue(request(idempotency_key="k", request_hash="h", **fields))
    assert (refused.status, refused.limit) == ("full", limit)
    assert len(cast("list[bytes]", client.keys("*"))) == before, "a refusal leaves nothing behind"


@pytest.mark.parametrize(
    ("bounds", "fields", "limit", "fits"),
    [
        (QueueSettings(), {"max_pending": 3}, "function", 3),
        (QueueSettings(max_pending=2), {}, "pending", 2),
        (QueueSettings(payload_bytes=14), {"payload": b"12345"}, "payload_bytes", 2),
        (QueueSettings(events=4), {}, "events", 4),
        (QueueSettings(), {"limits": Limits(depth=3)}, "depth", 3),
        (QueueSettings(), {"limits": Limits(concurrency=2)}, "concurrency", 2),
        (QueueSettings(), {"limits": Limits(rate_per_s=0.001, burst=4)}, "rate", 4),
        (QueueSettings(), {"idempotency_key": "k", "request_hash": "h"}, "", 1),
    ],
)
def test_what_comes_together_is_counted_one_by_one(
    server: RedisServer, client: "redis.Redis", bounds: QueueSettings, fields: dict[str, Any], limit: str, fits: int
) -> None:
    async def enqueue() -> None:
        async with gateway(server, bounds=bounds) as queue:
            other = request(function="default/other")
            submissions = [other, *(request(**fields) for _ in range(6))]
            _, *answers = await asyncio.gather(*map(queue.enqueue, submissions))
            # The other function's is in a call of its own, before.
            fitting = fits - (limit in {"pending", "events", "depth", "concurrency"})
            assert [answer.status == "ok" for answer in answers] == [True] * fitting + [False] * (6 - fitting)
            assert {answer.limit for answer in answers[fitting:]} == {limit}
            assert client.zcard(f"{P}q:{F}") == fitting
            assert client.hget(f"{P}count", "waiting") == b"%d" % (fitting + 1)

    asyncio.run(enqueue())


def test_results_have_a_bound_that_ending_never_meets(client: "redis.Redis") -> None:
    queue = Queue(client, P, QueueSettings(result_bytes=10))
    first, second = request(), request()
    queue.enqueue(first)
    queue.enqueue(second)
    begin(queue, first.id, second.id)
    end(queue, first.id, second.id, result=b"123456")
    refused = queue.enqueue(request())
    assert (refused.status, refused.limit) == ("full", "result_bytes")
    client.zadd(f"{P}done", {f"{F}|{first.id}": 1})
    assert queue.sweep() == 1
    assert queue.enqueue(request()).status == "ok"


class TestTheBell:
    """What wakes the leader: news of something that waits, and nothing else."""

    @staticmethod
    def rung(queue: Queue) -> bool:
        return queue.redis.delete(f"{P}bell") == 1

    def test_it_is_rung_where_something_waits(self, queue: Queue) -> None:
        first, second = request(), request()
        queue.enqueue(first)
        queue.enqueue(second)
        assert self.rung(queue), "once for both, until somebody has heard it"
        assert not self.rung(queue)
        begin(queue, first.id)
        assert not self.rung(queue), "that is the leader's own doing"
        end(queue, first.id)
        assert self.rung(queue), "there may be room for the other"
        begin(queue, second.id)
        end(queue, second.id)
        assert not self.rung(queue), "nothing waits for what has become free"

    def test_what_goes_back_is_news_and_a_report_is_where_something_waits(self, queue: Queue) -> None:
        one = request()

        def report() -> None:
            queue.report("cpu0", b"{}", ttl_s=60, lease_s=2, cursor="", running=[])

        queue.enqueue(one)
        begin(queue, one.id)
        self.rung(queue)
        report()
        assert not self.rung(queue)
        assert queue.requeue(F, Cause.WORKER_BUSY, [(one.id, 1)], refund=True, alone=False, message="") == [1]
        assert self.rung(queue)
        report()
        assert self.rung(queue)

    def test_the_leader_hears_it_and_reads_what_came_meanwhile(self, queue: Queue, client: "redis.Redis") -> None:
        one = request()
        queue.enqueue(one)
        found = queue.events("0-0", 60.0)
        assert [event.id for _, raw in found if isinstance(event := stream.decode(raw), stream.Arrived)] == [one.id]
        assert not client.exists(f"{P}bell")
        begin(queue, one.id)
        end(queue, one.id)
        # Nobody rings; when the wait is over, it is read all the same.
        entries = queue.events(found[-1][0], 0.001)
        assert [type(stream.decode(raw)) for _, raw in entries] == [stream.Dispatched, stream.Settled]
        assert queue.events(entries[-1][0], 1e-9) == [], "a wait without end would never return"


def test_housekeeping_is_one_round_trip(queue: Queue, client: "redis.Redis") -> None:
    lost, old = request(), request()
    queue.enqueue(lost)
    queue.enqueue(old)
    begin(queue, lost.id, old.id)
    end(queue, old.id)
    client.zadd(f"{P}leases", {f"{F}|{lost.id}": 1})
    client.zadd(f"{P}done", {f"{F}|{old.id}": 1})
    token = holder(client)
    queue.tick(token, "0-0", {}, {})  # the scripts are there now
    client.zadd(f"{P}leases", {f"{F}|{lost.id}": 1})
    begin(queue, lost.id, attempt=1)
    client.zadd(f"{P}leases", {f"{F}|{lost.id}": 1})
    token = holder(client)
    before = reads(client)
    back, clock = queue.tick(token, "7-1", {F: "1:2:3:4:5"}, {F: 9.5})
    assert reads(client) - before == 2, "its own, and that of this question"
    assert back == 1
    assert abs(clock - client.time()[0]) <= 2
    assert not client.exists(f"{P}i:default:{old.id}")
    assert (client.get(f"{P}leader:cursor"), client.hget(f"{P}feasible", F), client.hget(f"{P}prio", F)) == (
        b"7-1",
        b"1:2:3:4:5",
        b"9.5",
    )
    assert client.zscore(f"{P}q", F) == 9.5
    assert queue.tick("another", "7-1", {}, {})[0] == -1


def test_what_cannot_be_met_is_refused_with_what_could(queue: Queue, client: "redis.Redis") -> None:
    now_us = queue.enqueue(request()).arrival_us
    # Stamped ahead, so that it is fresh however long this test takes.
    queue.publish_feasible({F: f"{now_us + 3_600_000_000}:30000000:20000:0:0"}, {})
    refused = queue.enqueue(request(slo_us=29_999_999))
    assert refused.status == "infeasible"
    assert refused.earliest_us == refused.now_us + 30_000_000
    assert queue.enqueue(request(slo_us=30_000_000)).status == "ok", "the bound itself is met"
    assert queue.enqueue(request(function="default/other", slo_us=1_000_000)).status == "ok", (
        "another function's backlog"
    )
    # A second later nobody knows today's backlog: the floor alone counts.
    queue.publish_feasible({F: f"{now_us - 1_000_001}:30000000:20000:0:0"}, {})
    assert queue.enqueue(request(slo_us=20_000)).status == "ok"
    refused = queue.enqueue(request(slo_us=19_999))
    assert (refused.status, refused.earliest_us - refused.now_us) == ("infeasible", 20_000)
    # Where nothing stands ready a refusal promises no less than a cold start.
    for stamp, slo_us in ((now_us + 3_600_000_000, 29_999), (now_us - 1_000_001, 19_999)):
        queue.publish_feasible({F: f"{stamp}:30000:20000:0:0:900000"}, {})
        refused = queue.enqueue(request(slo_us=slo_us))
        assert (refused.status, refused.earliest_us - refused.now_us) == ("infeasible", 900_000)
    # The first would have been in time with an instance: the leader is told, and not of each.
    queue.publish_feasible({F: f"{now_us + 3_600_000_000}:30000:20000:0:0:900000"}, {})
    assert queue.enqueue(request(slo_us=29_999)).status == "infeasible"
    (wanted,) = (event for event in events(client) if isinstance(event, stream.Wanted))
    assert (wanted.function, wanted.revision) == (F, 1)
    late = queue.enqueue(request(slo_us=0, deadline_us=now_us))
    assert (late.status, late.now_us > now_us) == ("late", True)
    assert client.hget(f"{P}count", "waiting") == b"4"


def test_each_that_came_since_the_backlog_was_told_counts_and_none_that_went(
    queue: Queue, client: "redis.Redis"
) -> None:
    first = request()
    stamp = queue.enqueue(first).arrival_us + 3_600_000_000
    queue.publish_feasible({F: f"{stamp}:1000000:20000:500000:1"}, {})
    assert queue.enqueue(request(slo_us=999_999)).status == "infeasible"
    assert queue.enqueue(request(slo_us=1_000_000)).status == "ok"
    assert queue.enqueue(request(slo_us=1_499_999)).status == "infeasible", "one more than were counted"
    # Two were counted more than are there: what they waited for is no less scarce.
    queue.publish_feasible({F: f"{stamp}:1000000:20000:500000:4"}, {})
    assert queue.enqueue(request(slo_us=999_999)).status == "infeasible"
    assert queue.enqueue(request(slo_us=1_000_000)).status == "ok"


def test_bulk_work_does_not_count_for_calls_that_have_users_waiting(queue: Queue, client: "redis.Redis") -> None:
    inputs = [request(bulk=True) for _ in range(3)]
    arrivals = [queue.enqueue(one).arrival_us for one in inputs]
    stamp = arrivals[0] + 3_600_000_000
    queue.publish_feasible({F: f"{stamp}:1000000:20000:500000:0"}, {})
    assert queue.enqueue(request(slo_us=1_000_000)).status == "ok"
    assert queue.enqueue(request(slo_us=1_499_999)).status == "infeasible", "behind the one of its own class"
    assert queue.enqueue(request(slo_us=2_999_999, bulk=True)).status == "infeasible", "bulk is behind all four"
    assert queue.enqueue(request(slo_us=3_000_000, bulk=True)).status == "ok"
    # It is of its class on its way to a worker, back in the queue, and in a new leader's snapshot.
    (begun,) = begin(queue, inputs[0].id)
    assert begun is not None and begun.bulk
    assert client.hget(f"{P}bulk", F) == b"3"
    assert queue.requeue(F, Cause.WORKER_BUSY, [(inputs[0].id, 1)], refund=True, alone=False, message="") == [1]
    assert client.hget(f"{P}bulk", F) == b"4"
    told = [event for event in events(client) if isinstance(event, stream.Arrived | stream.Returned)]
    assert [event.bulk for event in told] == [1, 1, 1, 0, 1, 1]
    assert sorted(one.bulk for one in queue.snapshot().waiting) == [False, True, True, True, True]
    late = partial(End, function=F, action="expire", cause=Cause.DEADLINE_EXPIRED, why=EndedFor.TOO_LATE)
    ended = [late(id=one.id) for one in inputs]
    assert queue.settle(holder(client), ended) == [True] * 3
    assert client.hget(f"{P}bulk", F) == b"1"


def test_batches_that_ended_since_the_backlog_was_told_do_not_count(queue: Queue) -> None:
    """Two were under way, each of two invocations: while as many are, or any waits, the backlog holds."""
    pairs = [[request(), request()] for _ in range(3)]
    stamp = 0
    for one in pairs[0] + pairs[1]:
        stamp = queue.enqueue(one).arrival_us + 3_600_000_000
    begin(queue, *(one.id for one in pairs[0]), gpu="cpu0")
    begin(queue, *(one.id for one in pairs[1]), gpu="cpu1")
    queue.publish_feasible({F: f"{stamp}:1000000:20000:500000:0:0:7000:300000:2:"}, {})

    def refused(slo_us: int) -> bool:
        admitted = queue.enqueue(request(slo_us=slo_us))
        assert admitted.status in ("ok", "infeasible")
        return admitted.status == "infeasible"

    end(queue, pairs[0][0].id)
    assert refused(999_999), "its batch goes on"
    end(queue, pairs[0][1].id)
    wide = queue.enqueue(request(slo_us=306_999, rows=2))
    assert (wide.status, wide.earliest_us - wide.now_us, wide.alone_us) == ("infeasible", 307_000, 307_000)
    assert refused(299_999)
    # Another one takes its place.
    for one in pairs[2]:
        queue.enqueue(one)
    assert refused(1_499_999), "two wait"
    begin(queue, *(one.id for one in pairs[2]), gpu="cpu0")
    assert refused(999_999)
    queue.requeue(F, Cause.WORKER_BUSY, [(one.id, 1) for one in pairs[2]], refund=True, alone=False, message="")
    assert refused(1_499_999), "they wait again"
    assert queue.purge("default", "echo") == 2
    assert not refused(300_000)


def test_what_all_gpu_instances_keep_out_is_refused_while_a_leader_says_so(queue: Queue) -> None:
    stamp = queue.enqueue(request()).arrival_us + 3_600_000_000
    queue.publish_feasible({F: f"{stamp}:20000:20000:0:0:0:0:0:0:3"}, {})
    assert queue.enqueue(request(revision=3)).status == "quarantined"
    assert queue.enqueue(request(revision=4)).status == "ok", "the first run of the next revision"
    queue.publish_feasible({F: f"{stamp - 3_601_000_001}:20000:20000:0:0:0:0:0:0:3"}, {})
    assert queue.enqueue(request(revision=3)).status == "ok"


def test_idempotency_keys_belong_to_a_project(queue: Queue) -> None:
    first = request(idempotency_key="k", request_hash="h")
    assert queue.enqueue(first).status == "ok"
    replay = queue.enqueue(request(idempotency_key="k", request_hash="h"))
    assert (replay.status, replay.known_id) == ("replay", first.id)
    mismatch = queue.enqueue(request(idempotency_key="k", request_hash="other"))
    assert (mismatch.status, mismatch.known_id) == ("mismatch", first.id)
    assert queue.enqueue(request(function="second/echo", idempotency_key="k", request_hash="other")).status == "ok"


# What a leader sees.


def test_snapshot_is_what_happened(queue: Queue, client: "redis.Redis") -> None:
    assert queue.snapshot().last_event == "0-0"
    waiting, dispatched, running, retried, gone = (request(rows=2, shape="x:FP32:-1,4") for _ in range(5))
    admissions = {one.id: queue.enqueue(one) for one in (waiting, dispatched, running, retried, gone)}
    begin(queue, running.id, retried.id, gone.id)
    end(queue, gone.id)
    assert queue.requeue(F, Cause.CRASHED, [(retried.id, 1)], refund=True, alone=True, message="") == [1]
    client.delete(f"{P}leader")
    token = queue.lead("", 60)
    claim = Claim(
        function=F,
        gpu="cpu1",
        celery_list="l",
        message=b"m",
        decision="{}",
        schedule_us=1,
        attempts=[(dispatched.id, 0)],
    )
    queue.claim(token, 60, [claim])
    queue.report("cpu0", b'{"gpu":"cpu0"}', ttl_s=60, lease_s=60, cursor="1-1", running=[(F, running.id, 1)])
    client.sadd(f"{P}paused", "f:default/echo")

    def row(one: Submission, attempt: int, alone: bool = False) -> QueuedInvocation:
        admission = admissions[one.id]
        return QueuedInvocation(
            function=F,
            revision=1,
            id=one.id,
            attempt=attempt,
            arrival_us=admission.arrival_us,
            deadline_us=admission.deadline_us,
            rows=2,
            shape="x:FP32:-1,4",
            alone=alone,
            bulk=one.bulk,
        )

    snapshot = queue.snapshot()
    assert snapshot.waiting == [row(waiting, 0), row(retried, 1, alone=True)]
    assert {(held.waiting, held.state, held.gpu, held.started_us > 0) for held in snapshot.held} == {
        (row(dispatched, 1), "dispatched", "cpu1", False),
        (row(running, 1), "running", "cpu0", True),
    }
    assert snapshot.reports == [b'{"gpu":"cpu0"}']
    assert snapshot.paused == {"f:default/echo"}
    last = cast("list[tuple[bytes, Any]]", client.xrevrange(f"{P}ev", count=1))[0][0].decode()
    assert snapshot.last_event == last
    client.xtrim(f"{P}ev", maxlen=0, approximate=False)
    assert queue.snapshot().last_event == last, "the history has taken everything: the next event still comes after it"


def test_functions_wait_by_priority(queue: Queue, client: "redis.Redis") -> None:
    queue.publish_feasible({}, {"default/high": 9.5, "default/low": 0.5})
    for name in ("low", "high"):
        queue.enqueue(request(function=f"default/{name}"))
    assert client.zrange(f"{P}q", 0, -1, withscores=True) == [(b"default/low", 0.5), (b"default/high", 9.5)]
    queue.publish_feasible({}, {"default/low": 20.0, "default/absent": 3.0})
    assert client.zrange(f"{P}q", 0, -1) == [b"default/high", b"default/low"], (
        "moved while it waits; what does not wait is not there"
    )


def test_the_leader_ends_what_waits_and_nothing_else(queue: Queue) -> None:
    waiting, running = request(), request()
    queue.enqueue(waiting)
    queue.enqueue(running)
    begin(queue, running.id)
    queue.redis.delete(f"{P}leader")
    token = queue.lead("", 60)

    def ending(one: Submission) -> End:
        return End(function=F, id=one.id, action="fail", cause=Cause.QUARANTINED, why=EndedFor.KEPT_OUT)

    assert queue.settle(token, [ending(waiting), ending(running), ending(waiting)]) == [True, False, False]
    assert queue.settle("0", [ending(waiting)]) is None
    assert queue.settle(token, []) == []


# Times.


def test_times_are_exact_to_the_microsecond(queue: Queue, client: "redis.Redis") -> None:
    def now_us() -> int:
        seconds, microseconds = client.time()
        return seconds * 1_000_000 + microseconds

    before = now_us()
    ends = []
    for slo_us in (1_000_001, 1_234_567, 59_999_999):
        one = request(slo_us=slo_us)
        admission = queue.enqueue(one)
        assert before < admission.arrival_us < now_us()
        assert admission.deadline_us == admission.arrival_us + slo_us
        assert client.zscore(f"{P}q:{F}", one.id) == admission.deadline_us
        (arrived,) = (event for event in events(client) if isinstance(event, stream.Arrived) and event.id == one.id)
        assert (arrived.arrival_us, arrived.deadline_us) == (admission.arrival_us, admission.deadline_us)
        begin(queue, one.id)
        end(queue, one.id)
        ends.append(one.id)
    # A year whose microseconds need all the digits; the last one must not be lost.
    far = request(slo_us=0, deadline_us=4_102_444_800_000_001)
    assert queue.enqueue(far).deadline_us == 4_102_444_800_000_001
    assert queue.snapshot().waiting[0].deadline_us == 4_102_444_800_000_001
    seen = events(client)
    for id_ in ends:
        record = queue.record("default", id_)
        assert record is not None
        assert before < record.arrival_us < record.claimed_us < record.started_us < record.finished_us < now_us()
        (settled,) = (event for event in seen if isinstance(event, stream.Settled) and event.id == id_)
        for name in ("arrival_us", "deadline_us", "claimed_us", "started_us", "finished_us"):
            assert getattr(settled, name) == getattr(record, name)
        assert settled.schedule_us == record.schedule_us == 42
        (dispatched,) = (
            event for event in seen if isinstance(event, stream.Dispatched) and event.attempts == [(id_, 1)]
        )
        assert dispatched.at_us == record.claimed_us


def test_what_is_sent_ahead_is_looked_at_begun_and_given_back(queue: Queue) -> None:
    """A look changes nothing; a start that is not waited for begins what it may; what comes back unbegun has lost nothing."""
    first, second = request(payload=b"1"), request(payload=b"2", max_attempts=1)
    for one in (first, second):
        queue.enqueue(one)
    token = queue.lead("", 60)
    attempts = [(one.id, 0) for one in (first, second)]
    sent = Claim(function=F, gpu="cpu0", celery_list="l", message=b"m", decision="{}", schedule_us=1, attempts=attempts)
    mine = [(one.id, 1) for one in (first, second)]
    for times in range(BOUNDS.max_lost + 2):
        again = replace(sent, attempts=[(first.id, 0), (second.id, times)])
        queue.claim(token, 60, [again])
        before = queue.redis.xlen(f"{P}ev")
        found = queue.look(F, "cpu0", [mine[0], (second.id, times + 1)])
        assert [one and one.payload for one in found] == [b"1", b"2"]
        assert queue.look(F, "cpu1", mine) == [None, None], "another worker's"
        assert queue.redis.xlen(f"{P}ev") == before
        state = queue.record("default", second.id)
        assert state is not None and (state.state, state.starts) == ("dispatched", 0)
        assert queue.requeue(F, Cause.WORKER_BUSY, [(second.id, times + 1)], refund=True, alone=False, message="") == [
            1
        ], "however often"
    queue.redis.script_flush()
    begun = queue.starting(F, "cpu0", 60, mine)
    assert begun() == [True, False]
    record = queue.record("default", first.id)
    assert record is not None and (record.state, record.starts) == ("running", 1) and record.started_us
    other = queue.record("default", second.id)
    assert other is not None and (other.state, other.starts) == ("queued", 0)
