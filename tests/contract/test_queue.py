"""
One contract of the queue, over real Redis and over InMemoryQueue: states, leases, the leader's token, and at least one
execution with exactly one result.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, cast

import pytest
import redis
import redis.asyncio

from smore.domain.invocation import Cause, End, EndedFor
from smore.process.settings import QueueSettings
from smore.redis.gateway_queue import GatewayQueue
from smore.redis.queue import Claim, Queue, RunOutcome, Snapshot, StartedInvocation
from smore.redis.records import FIELDS, InvocationRecord, Reply
from smore.redis.submission import GateAnswer, Submission
from smore.testing import InMemoryQueue, ManualClock
from tests.support.redis_server import RedisServer

T = TypeVar("T")

P = "smore:"
F = "default/echo"
GPU = "cpu0"
LEASE_S = 5.0
LEADER_S = 3600.0
BOUNDS = QueueSettings(max_pending=4, max_lost=1)


class SchedulerDoor(Protocol):
    """What the leader and the workers call."""

    def enqueue(self, request: Submission) -> GateAnswer: ...
    def lead(self, token: str, lease_s: float) -> str: ...
    def resign(self, token: str) -> None: ...
    def claim(self, token: str, lease_s: float, claims: Sequence[Claim]) -> list[frozenset[str] | None]: ...
    def settle(self, token: str, endings: Sequence[End]) -> list[bool] | None: ...
    def reap(self, token: str, at_most: int = 500) -> int: ...
    def snapshot(self) -> Snapshot: ...
    def start(
        self, function: str, gpu: str, lease_s: float, attempts: Iterable[tuple[str, int]]
    ) -> list[StartedInvocation | None]: ...
    def finish(
        self, function: str, meta: str, outcomes: Sequence[RunOutcome], *, drop_late: bool = False
    ) -> list[bool]: ...
    def requeue(
        self,
        function: str,
        cause: Cause,
        attempts: Sequence[tuple[str, int]],
        *,
        refund: bool,
        alone: bool,
        message: str,
        traceback: str = "",
    ) -> list[int]: ...
    def release(self, gpu: str) -> int: ...
    def report(
        self,
        gpu: str,
        report: bytes,
        *,
        ttl_s: float,
        lease_s: float,
        cursor: str,
        running: Iterable[tuple[str, str, int]],
    ) -> frozenset[str]: ...
    def record(self, project: str, id_: str) -> InvocationRecord | None: ...


class GatewayDoor(Protocol):
    """What a gateway calls."""

    async def enqueue(self, request: Submission) -> GateAnswer: ...
    async def cancel(self, project: str, id_: str) -> tuple[str, str]: ...
    async def record(self, project: str, id_: str) -> InvocationRecord | None: ...
    async def reply(self, project: str, id_: str) -> Reply | None: ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One implementation. ``gateway`` runs a call of the gateway's door."""

    queue: SchedulerDoor
    gateway: Callable[[Callable[[GatewayDoor], Awaitable[object]]], object]
    #: Every lease of an invocation runs out.
    expire_leases: Callable[[], None]
    #: The deadline of an invocation passes.
    expire_deadline: Callable[[str], None]
    #: The leader's lease runs out.
    expire_leader: Callable[[], None]
    #: How many messages were sent to the GPU instance.
    sent: Callable[[], int]

    def submit(self, id_: str, **request: object) -> str:
        admission = self.queue.enqueue(replace(REQUEST, id=id_, **request))  # type: ignore[arg-type]
        assert admission.status == "ok", admission
        return id_

    def state(self, id_: str) -> tuple[str, str, int]:
        """(state, cause, attempt)."""
        record = self.queue.record("default", id_)
        assert record is not None
        return record.state, record.cause, record.attempt

    def run(self, token: str, id_: str, attempt: int = 0) -> StartedInvocation | None:
        """Claim and start one invocation."""
        assert self.queue.claim(token, LEASE_S, [claim((id_, attempt))]) == [frozenset({id_})]
        (begun,) = self.queue.start(F, GPU, LEASE_S, [(id_, attempt + 1)])
        return begun


REQUEST = Submission(id="", function=F, revision=1, payload=b'{"x": 1}', slo_us=60_000_000, rows=2, trace="t")


def claim(*attempts: tuple[str, int]) -> Claim:
    return Claim(
        function=F,
        gpu=GPU,
        celery_list=f"{P}gpu.{GPU}",
        message=b"m",
        decision="{}",
        schedule_us=7,
        attempts=attempts,
    )


def done(id_: str, attempt: int, result: bytes = b"r") -> RunOutcome:
    return RunOutcome(id=id_, attempt=attempt, action="succeed", cause=Cause.OK, result=result)


def in_memory() -> Stage:
    clock = ManualClock(1e9)
    queue = InMemoryQueue(clock, BOUNDS)
    return Stage(
        queue=queue,
        gateway=lambda call: asyncio.run(_result(call(queue.gateway))),
        expire_leases=lambda: clock.advance(LEASE_S),
        expire_deadline=lambda _: clock.advance(REQUEST.slo_us / 1e6 + 1),
        expire_leader=lambda: clock.advance(LEADER_S),
        sent=lambda: len(queue.sent),
    )


async def _result(call: Awaitable[T]) -> T:
    return await call


def in_redis(client: "redis.Redis", url: str) -> Stage:
    def expire_leases() -> None:
        members = cast("list[bytes]", client.zrange(f"{P}leases", 0, -1))
        client.zadd(f"{P}leases", {member.decode(): 1 for member in members})

    def expire_deadline(id_: str) -> None:
        client.hset(f"{P}i:default:{id_}", FIELDS["deadline_us"], "1")

    def expire_leader() -> None:
        client.delete(f"{P}leader")

    def gateway(call: Callable[[GatewayDoor], Awaitable[object]]) -> object:
        async def main() -> object:
            async with redis.asyncio.Redis.from_url(url) as connection:
                door = GatewayQueue(connection, P, BOUNDS)
                try:
                    return await call(door)
                finally:
                    await door.close()

        return asyncio.run(main())

    return Stage(
        queue=Queue(client, P, BOUNDS),
        gateway=gateway,
        expire_leases=expire_leases,
        expire_deadline=expire_deadline,
        expire_leader=expire_leader,
        sent=lambda: int(client.llen(f"{P}gpu.{GPU}")),
    )


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["redis", "memory"])
def stage(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[Stage]:
    if request.param == "memory":
        yield in_memory()
        return
    with server.client() as client:
        client.flushall()
        yield in_redis(client, server.url)


def test_an_invocation_from_its_request_to_its_reply(stage: Stage) -> None:
    queue = stage.queue
    admission = stage.gateway(lambda door: door.enqueue(replace(REQUEST, id="a")))
    assert isinstance(admission, GateAnswer) and admission.status == "ok"
    assert admission.deadline_us - admission.arrival_us == REQUEST.slo_us
    token = queue.lead("", LEADER_S)
    (waiting,) = queue.snapshot().waiting
    assert (waiting.function, waiting.id, waiting.attempt, waiting.rows) == (F, "a", 0, 2)
    assert (waiting.arrival_us, waiting.deadline_us) == (admission.arrival_us, admission.deadline_us)

    assert queue.claim(token, LEASE_S, [claim(("a", 0), ("unknown", 0))]) == [frozenset({"a"})]
    assert (stage.state("a"), stage.sent()) == (("dispatched", "", 1), 1)
    (held,) = queue.snapshot().held
    assert (held.waiting.id, held.state, held.gpu) == ("a", "dispatched", GPU)
    begun, absent = queue.start(F, GPU, LEASE_S, [("a", 1), ("unknown", 1)])
    assert begun is not None and absent is None
    assert (begun.payload, begun.rows, begun.trace, begun.alone) == (REQUEST.payload, 2, "t", False)
    assert stage.gateway(lambda door: door.reply("default", "a")) is None
    assert queue.finish(F, "{}", [done("a", 1)]) == [True]

    reply = stage.gateway(lambda door: door.reply("default", "a"))
    assert isinstance(reply, Reply)
    assert (reply.state, reply.cause, reply.attempt, reply.gpu, reply.schedule_us, reply.result) == (
        "succeeded",
        "ok",
        1,
        GPU,
        7,
        b"r",
    )
    assert reply.arrival_us <= reply.claimed_us <= reply.started_us <= reply.finished_us
    assert stage.gateway(lambda door: door.record("default", "a")) == queue.record("default", "a")
    assert (queue.snapshot().waiting, queue.snapshot().held) == ([], [])
    assert queue.record("default", "unknown") is None


def test_requests_are_accepted_once_and_within_their_bounds(stage: Stage) -> None:
    queue = stage.queue
    first = replace(REQUEST, id="a", idempotency_key="k", request_hash="h", max_pending=2)
    admission = queue.enqueue(first)
    assert queue.enqueue(first) == admission, "the same call again"
    assert queue.enqueue(replace(first, id="b")) == GateAnswer(status="replay", known_id="a")
    assert queue.enqueue(replace(first, id="b", request_hash="other")) == GateAnswer(status="mismatch", known_id="a")
    assert queue.enqueue(replace(REQUEST, id="b", led=True)) == GateAnswer(status="no_leader")
    token = queue.lead("", LEADER_S)
    assert queue.enqueue(replace(REQUEST, id="led", max_pending=1, led=True)) == GateAnswer(
        status="full", limit="function", bound=1
    )
    queue.resign(token)
    late = queue.enqueue(replace(REQUEST, id="b", slo_us=0, deadline_us=1))
    assert (late.status, late.now_us > 0) == ("late", True)
    stage.submit("b")
    assert queue.enqueue(replace(REQUEST, id="c", max_pending=2)) == GateAnswer(
        status="full", limit="function", bound=2
    )
    for id_ in ("c", "d"):
        stage.submit(id_, function="default/other")
    assert queue.enqueue(replace(REQUEST, id="e", function="default/third")) == GateAnswer(
        status="full", limit="pending", bound=BOUNDS.max_pending
    )


def test_inside_a_function_the_earliest_deadline_comes_first_and_ties_go_by_id(stage: Stage) -> None:
    for id_, deadline_us in (("c", 3), ("b", 2), ("a", 2), ("d", 1)):
        stage.submit(id_, slo_us=0, deadline_us=4_000_000_000_000_000 + deadline_us)
    assert [waiting.id for waiting in stage.queue.snapshot().waiting] == ["d", "a", "b", "c"]


def test_only_the_leader_that_holds_the_lease_may_claim_settle_and_reap(stage: Stage) -> None:
    queue = stage.queue
    stage.submit("a")
    former = queue.lead("", LEADER_S)
    assert queue.lead("", LEADER_S) == "", "somebody leads"
    assert queue.lead(former, LEADER_S) == former
    stage.expire_leader()
    token = queue.lead(former, LEADER_S)
    assert int(token) > int(former), "a new token, even for the same leader"
    stage.submit("b")
    ending = End(function=F, id="b", action="reject", cause=Cause.INFEASIBLE, why=EndedFor.KEPT_OUT)
    assert queue.claim(former, LEASE_S, [claim(("b", 0))]) == [None]
    assert (queue.settle(former, [ending]), queue.reap(former)) == (None, -1)
    assert (stage.state("b"), stage.sent()) == (("queued", "", 0), 0)
    queue.resign(former)
    assert queue.lead("", LEADER_S) == "", "what a former leader gives back is not its own"
    assert queue.settle(token, [ending, replace(ending, id="unknown")]) == [True, False]
    assert queue.settle(token, [ending]) == [False]
    assert stage.state("b")[:2] == ("rejected", "infeasible")
    queue.resign(token)
    assert int(queue.lead("", LEADER_S)) > int(token)


def test_a_lost_lease_lets_it_run_again_and_only_one_attempt_ends_it(stage: Stage) -> None:
    """Execution at least once, the result exactly once."""
    queue = stage.queue
    stage.submit("a")
    token = queue.lead("", LEADER_S)
    assert stage.run(token, "a") is not None
    assert queue.reap(token) == 0
    stage.expire_leases()
    assert queue.reap(token) == 1
    assert stage.state("a") == ("queued", "", 1)
    assert queue.finish(F, "{}", [done("a", 1)]) == [False], "it is nobody's now"
    assert stage.run(token, "a", 1) is not None, "it runs a second time"
    assert queue.finish(F, "{}", [done("a", 1, b"late")]) == [False], "the first attempt is fenced off"
    assert queue.finish(F, "{}", [done("a", 2, b"good"), done("a", 2, b"again")]) == [True, False]
    reply = stage.gateway(lambda door: door.reply("default", "a"))
    assert isinstance(reply, Reply) and (reply.attempt, reply.result) == (2, b"good")


def test_what_ends_late_has_its_result_unless_its_function_drops_it(stage: Stage) -> None:
    queue = stage.queue
    token = queue.lead("", LEADER_S)
    for id_ in ("kept", "dropped", "failed"):
        stage.submit(id_)
        stage.run(token, id_)
    stage.submit("in-time", slo_us=3_600_000_000)
    stage.run(token, "in-time")
    for id_ in ("kept", "dropped", "failed"):
        stage.expire_deadline(id_)
    assert queue.finish(F, "{}", [done("kept", 1)]) == [True]
    assert queue.finish(F, "{}", [done("dropped", 1), done("in-time", 1)], drop_late=True) == [True, True]
    fault = replace(done("failed", 1), action="fail", cause=Cause.TIMED_OUT)
    assert queue.finish(F, "{}", [fault, fault], drop_late=True) == [True, False]
    assert [stage.state(id_)[:2] for id_ in ("kept", "dropped", "failed", "in-time")] == [
        ("succeeded", "ok"),
        ("expired", "deadline_expired"),
        ("expired", "deadline_expired"),
        ("succeeded", "ok"),
    ]
    late, in_time = (stage.gateway(lambda door, id_=id_: door.reply("default", id_)) for id_ in ("kept", "in-time"))  # type: ignore[misc]
    assert isinstance(late, Reply) and isinstance(in_time, Reply)
    assert late.late_us == late.finished_us - late.deadline_us > 0
    assert in_time.late_us == 0


def test_a_claim_that_is_repeated_sends_nothing_and_a_start_is_for_the_right_worker_alone(stage: Stage) -> None:
    queue = stage.queue
    stage.submit("a")
    token = queue.lead("", LEADER_S)
    for _ in range(2):
        assert queue.claim(token, LEASE_S, [claim(("a", 0))]) == [frozenset({"a"})]
    assert stage.sent() == 1
    assert queue.claim(token, LEASE_S, [replace(claim(("a", 0)), gpu="cpu1")]) == [frozenset()]
    assert queue.start(F, "cpu1", LEASE_S, [("a", 1)]) == [None]
    assert queue.start(F, GPU, LEASE_S, [("a", 2)]) == [None]
    assert queue.start(F, GPU, LEASE_S, [("a", 1)]) != [None]
    assert queue.start(F, GPU, LEASE_S, [("a", 1)]) == [None], "it runs already"


def test_urgent_work_of_class_batch_is_standard_from_then_on(stage: Stage) -> None:
    queue = stage.queue
    token = queue.lead("", LEADER_S)
    for id_, urgent in (("waits", False), ("hurries", True)):
        stage.submit(id_, bulk=True)
        assert queue.claim(token, LEASE_S, [replace(claim((id_, 0)), urgent=urgent)]) == [frozenset({id_})]
        (begun,) = queue.start(F, GPU, LEASE_S, [(id_, 1)])
        assert begun is not None and begun.bulk is not urgent
    assert queue.release(GPU) == 2
    assert {one.id: one.bulk for one in queue.snapshot().waiting} == {"waits": True, "hurries": False}


def test_lost_dispatches_and_starts_are_limited(stage: Stage) -> None:
    queue = stage.queue
    token = queue.lead("", LEADER_S)
    stage.submit("a")
    for attempt in range(BOUNDS.max_lost + 1):
        queue.claim(token, LEASE_S, [claim(("a", attempt))])
        stage.expire_leases()
        assert queue.reap(token) == 1
    assert stage.state("a")[:2] == ("failed", "dispatch_limit")
    stage.submit("b", max_attempts=2)
    for attempt in range(2):
        stage.run(token, "b", attempt)
        assert queue.release(GPU) == 1
    assert stage.state("b")[:2] == ("failed", "attempt_limit")
    assert queue.release(GPU) == 0


def test_what_was_lost_with_its_worker_names_it(stage: Stage) -> None:
    """Whether the attempt ran or only waited there; a worker that still reports is not lost."""
    queue = stage.queue
    token = queue.lead("", LEADER_S)

    def lost(id_: str) -> tuple[str, bool]:
        record = queue.record("default", id_)
        assert record is not None
        return record.lost_gpu, record.lost_us > 0

    queue.report(GPU, b"{}", ttl_s=3600.0, lease_s=LEASE_S, cursor="", running=[])
    queue.claim(token, LEASE_S, [claim((stage.submit("message"), 0))])
    stage.expire_leases()
    assert queue.reap(token) == 1
    assert lost("message") == ("", False)
    stage.run(token, stage.submit("ran"))
    queue.claim(token, LEASE_S, [claim((stage.submit("waited"), 0))])
    assert queue.release(GPU) == 2
    assert lost("ran") == lost("waited") == (GPU, True)


def test_a_worker_gives_back_what_it_cannot_run(stage: Stage) -> None:
    queue = stage.queue
    token = queue.lead("", LEADER_S)
    stage.submit("a", max_attempts=2)
    stage.run(token, "a")

    def back(attempt: int, *, refund: bool) -> list[int]:
        return queue.requeue(
            F, Cause.CRASHED, [("a", attempt), ("unknown", 1)], refund=refund, alone=True, message="it crashed"
        )

    assert back(2, refund=True) == [-1, -1]
    assert back(1, refund=True) == [1, -1], "this start does not count"
    begun = stage.run(token, "a", 1)
    assert begun is not None and begun.alone
    assert back(2, refund=False) == [1, -1]
    stage.run(token, "a", 2)
    assert back(3, refund=False) == [0, -1]
    assert stage.state("a") == ("failed", "crashed", 3)


def test_a_deadline_that_has_passed_is_not_started(stage: Stage) -> None:
    queue = stage.queue
    token = queue.lead("", LEADER_S)
    stage.submit("a", slo_us=1)
    queue.claim(token, 2 * LEASE_S, [claim(("a", 0))])
    stage.expire_leases()
    assert queue.start(F, GPU, LEASE_S, [("a", 1)]) == [None]
    assert stage.state("a")[:2] == ("expired", "deadline_expired")


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_cancelled_invocation_ends_wherever_it_is(stage: Stage, steps: int) -> None:
    queue = stage.queue
    token = queue.lead("", LEADER_S)
    stage.submit("a")
    if steps == 1:
        queue.claim(token, LEASE_S, [claim(("a", 0))])
    if steps == 2:
        stage.run(token, "a")
    before = ("queued", "dispatched", "running")[steps]

    def cancel(id_: str) -> object:
        return stage.gateway(lambda door: door.cancel("default", id_))

    assert [cancel("a"), cancel("a"), cancel("unknown")] == [
        ("cancelled", before),
        ("ended", "cancelled"),
        ("absent", ""),
    ]
    assert queue.start(F, GPU, LEASE_S, [("a", 1)]) == [None]
    assert queue.finish(F, "{}", [done("a", 1)]) == [False]
    assert stage.state("a")[:2] == ("cancelled", "cancelled")


def test_a_heartbeat_renews_the_leases_of_what_runs_and_names_what_is_lost(stage: Stage) -> None:
    queue = stage.queue
    token = queue.lead("", LEADER_S)
    for id_ in ("a", "b"):
        stage.submit(id_)
        stage.run(token, id_)
    stage.expire_leases()
    lost = queue.report(
        GPU, b"{}", ttl_s=60, lease_s=LEASE_S, cursor="", running=[(F, "a", 1), (F, "b", 2), (F, "unknown", 1)]
    )
    assert lost == {"b", "unknown"}
    assert list(queue.snapshot().reports) == [b"{}"]
    assert queue.reap(token) == 1
    assert (stage.state("a")[0], stage.state("b")[0]) == ("running", "queued")
