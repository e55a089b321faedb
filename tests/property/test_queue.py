"""
The queue against a plain model: a state machine with stale fences, stale attempts, repeated calls, lost leases and new
leaders.

The real scripts run on a real Redis. Nothing waits: a lease, a deadline or a record runs out because the test writes
its end into the past.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from smore.domain.invocation import TERMINAL, TRANSITIONS, Cause, Encoding, End, EndedFor
from smore.messages import stream
from smore.messages.commands import Cancel
from smore.messages.results import error_result
from smore.process.settings import QueueSettings
from smore.redis.queue import Claim, Queue, RunOutcome
from smore.redis.records import parse_replies
from smore.redis.scripts import TOO_OFTEN
from smore.redis.submission import Submission
from tests.support.redis_server import RedisServer

P = "smore:"
FUNCTIONS = ("default/echo", "default/other", "second/echo")
GPUS = ("cpu0", "cpu1")
BOUNDS = QueueSettings(max_pending=8, payload_bytes=200, result_bytes=400, max_lost=2, events=100_000)
#: Deadlines collide on purpose: then the id decides.
DEADLINES_US = tuple(4_000_000_000_000_000 + n for n in range(3))
LEGAL = {(str(before), str(after)) for moves in TRANSITIONS.values() for before, after in moves.items()}
OVER = frozenset(str(state) for state in TERMINAL)

LATE = error_result("The deadline passed before a GPU instance could start it.")
#: Which invocations a call names (positions among the candidates) and by how much the attempt it states is wrong.
MENTIONS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from((0, 0, 0, 0, 0, 0, 1, -1))), min_size=1, max_size=4)
ENDINGS = st.sampled_from(
    (
        ("reject", "rejected", Cause.INFEASIBLE),
        ("expire", "expired", Cause.DEADLINE_EXPIRED),
        ("fail", "failed", Cause.QUARANTINED),
    )
)
QUEUED, DISPATCHED, RUNNING = frozenset({"queued"}), frozenset({"dispatched"}), frozenset({"running"})
HELD = DISPATCHED | RUNNING
ANY = QUEUED | HELD | OVER
#: Mostly true.
USUALLY = st.sampled_from((True, True, True, True, True, False))


def meant_for(states: frozenset[str]) -> st.SearchStrategy[frozenset[str]]:
    """Mostly the states that a call is meant for, sometimes any."""
    return st.sampled_from((states, states, states, states, ANY))


@dataclass(kw_only=True)
class Invocation:
    id: str
    function: str
    deadline_us: int
    payload: bytes
    sync: bool
    channel: str
    max_attempts: int
    state: str = "queued"
    attempt: int = 0
    starts: int = 0
    lost: int = 0
    gpu: str = ""
    alone: bool = False
    result: bytes = b""
    cause: str = ""
    swept: bool = False

    @property
    def member(self) -> bytes:
        return f"{self.function}|{self.id}".encode()

    @property
    def project(self) -> str:
        return self.function.partition("/")[0]


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, client: "redis.Redis", subscriber: "redis.client.PubSub") -> None:
        super().__init__()
        client.flushdb()
        self.redis, self.subscriber = client, subscriber
        self.published()
        self.queue = Queue(client, P, BOUNDS)
        self.all: dict[str, Invocation] = {}
        self.idempotent: dict[tuple[str, str], tuple[str, str]] = {}
        self.messages: Counter[str] = Counter()
        self.commands: list[Cancel] = []
        self.token, self.former = "", "0"
        self.seen_states: dict[str, str] = {}
        self.last_event = "-"
        self.arrived: set[str] = set()
        self.settled: dict[str, stream.Settled] = {}
        self.told: Counter[str] = Counter()

    # The model's side.

    def mentioned(
        self, mentions: list[tuple[int, int]], states: frozenset[str]
    ) -> tuple[str, list[tuple[Invocation, int]]]:
        """Invocations of one function, each with the attempt that the call states."""
        known = sorted((one for one in self.all.values() if not one.swept), key=lambda one: one.id)
        fitting = [one for one in known if one.state in states] or known
        if not fitting:
            return FUNCTIONS[0], []
        function = fitting[mentions[0][0] % len(fitting)].function
        pool = [one for one in fitting if one.function == function]
        return function, [
            (pool[position % len(pool)], pool[position % len(pool)].attempt + wrong) for position, wrong in mentions
        ]

    def any_in(self, states: frozenset[str]) -> bool:
        return any(one.state in states and not one.swept for one in self.all.values())

    def end(self, one: Invocation, state: str, cause: str, result: bytes) -> None:
        one.state, one.cause, one.result = state, cause, result

    def back(self, one: Invocation, cause: str, result: bytes, *, refund: bool = False, alone: bool = False) -> int:
        if one.state == "dispatched":
            one.lost += 1
            if one.lost > BOUNDS.max_lost:
                self.end(one, "failed", "dispatch_limit", result)
                return 0
        elif refund:
            one.starts -= 1
        if one.starts >= one.max_attempts:
            self.end(one, "failed", "attempt_limit" if cause == "worker_lost" else cause, result)
            return 0
        one.state, one.gpu, one.alone = "queued", "", one.alone or alone
        return 1

    # The calls.

    @initialize(
        crowd=st.lists(
            st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from(GPUS), st.integers(0, 2), st.integers(1, 3)),
            min_size=2,
            max_size=8,
        )
    )
    def first_leader(self, crowd: list[tuple[str, str, int, int]]) -> None:
        """
        A life is long and a test's is short: it begins among invocations that wait (0), are dispatched (1) or run (2).
        """
        self.token = self.queue.lead("", 3600)
        for salt, (function, gpu, steps, max_attempts) in enumerate(crowd):
            known = len(self.all)
            self.enqueue(
                function=function,
                salt=salt * 31 % 256,
                deadline_us=DEADLINES_US[salt % 3],
                payload=b"x" * (salt % 3),
                sync=bool(salt % 2),
                channel=("", "gw1", "gw2")[salt % 3],
                max_attempts=max_attempts,
                idempotency_key="",
                request_hash="",
                repeat=False,
            )
            if len(self.all) > known:
                one = list(self.all.values())[-1]
                if steps > 0:
                    self.dispatch([(one, 0)], function, gpu, once=True)
                if steps > 1:
                    self.begin([(one, 1)], function, gpu)

    @rule()
    def new_leader(self) -> None:
        assert self.queue.lead("", 3600) == "", "two leaders"
        assert self.queue.lead(self.token, 3600) == self.token
        self.redis.delete(f"{P}leader")
        assert self.queue.lead(self.token, 3600) == str(int(self.token) + 1), (
            "the lease ran out: a new token, even for the same leader"
        )
        self.former, self.token = self.token, str(int(self.token) + 1)

    @rule(
        function=st.sampled_from(FUNCTIONS),
        salt=st.integers(0, 255),
        deadline_us=st.sampled_from(DEADLINES_US),
        payload=st.sampled_from((b"", b"x", b"x" * 30)),
        sync=st.booleans(),
        channel=st.sampled_from(("", "gw1", "gw2")),
        max_attempts=st.integers(1, 3),
        idempotency_key=st.sampled_from(("", "", "", "", "one", "two")),
        request_hash=st.sampled_from(("a", "b")),
        repeat=st.booleans(),
    )
    def enqueue(
        self,
        function: str,
        salt: int,
        deadline_us: int,
        payload: bytes,
        sync: bool,
        channel: str,
        max_attempts: int,
        idempotency_key: str,
        request_hash: str,
        repeat: bool,
    ) -> None:
        one = Invocation(
            id=f"{salt:02x}{len(self.all):030x}",
            function=function,
            deadline_us=deadline_us,
            payload=payload,
            sync=sync,
            channel=channel,
            max_attempts=max_attempts,
        )
        request = Submission(
            id=one.id,
            function=function,
            revision=1,
            payload=payload,
            deadline_us=deadline_us,
            channel=channel,
            sync=sync,
            idempotency_key=idempotency_key,
            request_hash=request_hash,
            max_pending=4,
            max_attempts=max_attempts,
            encoding=Encoding.JSON if payload else Encoding.CANARY,
        )
        waiting = [known for known in self.all.values() if known.state == "queued"]
        key = (one.project, idempotency_key)
        admission = self.queue.enqueue(request)
        if idempotency_key and key in self.idempotent:
            known_id, known_hash = self.idempotent[key]
            assert (admission.status, admission.known_id) == (
                "replay" if known_hash == request_hash else "mismatch",
                known_id,
            )
        elif sum(known.function == function for known in waiting) >= 4:
            assert (admission.status, admission.limit) == ("full", "function")
        elif len(waiting) >= BOUNDS.max_pending:
            assert (admission.status, admission.limit) == ("full", "pending")
        elif (
            sum(len(known.payload) for known in self.all.values() if known.state not in OVER) + len(payload)
            > BOUNDS.payload_bytes
        ):
            assert (admission.status, admission.limit) == ("full", "payload_bytes")
        elif sum(len(known.result) for known in self.all.values() if not known.swept) > BOUNDS.result_bytes:
            assert (admission.status, admission.limit) == ("full", "result_bytes")
        else:
            assert (admission.status, admission.deadline_us) == ("ok", deadline_us)
            self.all[one.id] = one
            if idempotency_key:
                self.idempotent[key] = (one.id, request_hash)
            if repeat:
                assert self.queue.enqueue(request) == admission

    @precondition(lambda self: self.any_in(QUEUED))
    @rule(mentions=MENTIONS, states=meant_for(QUEUED), gpu=st.sampled_from(GPUS), leads=USUALLY, once=USUALLY)
    def claim(self, mentions: list[tuple[int, int]], states: frozenset[str], gpu: str, leads: bool, once: bool) -> None:
        function, named = self.mentioned(mentions, states)
        if leads:
            self.dispatch(named, function, gpu, once)
        else:
            assert self.queue.claim(self.former, 3600, [self.to_claim(named, function, gpu)]) == [None]

    def to_claim(self, named: list[tuple[Invocation, int]], function: str, gpu: str) -> Claim:
        return Claim(
            function=function,
            gpu=gpu,
            celery_list=f"{P}gpu.{gpu}",
            message=b"m",
            decision="{}",
            schedule_us=7,
            attempts=[*((one.id, attempt) for one, attempt in named), ("f" * 32, 0)],
        )

    def dispatch(self, named: list[tuple[Invocation, int]], function: str, gpu: str, once: bool) -> None:
        claim = self.to_claim(named, function, gpu)
        expected, sent = set(), False
        for one, attempt in named:
            if one.state == "queued" and one.attempt == attempt:
                one.state, one.attempt, one.gpu = "dispatched", attempt + 1, gpu
                expected.add(one.id)
                sent = True
            elif one.state in HELD and one.attempt == attempt + 1 and one.gpu == gpu:
                expected.add(one.id)
        self.messages[gpu] += sent
        assert self.queue.claim(self.token, 3600, [claim]) == [frozenset(expected)]
        if not once and all(one.attempt == attempt + 1 for one, attempt in named):
            assert self.queue.claim(self.token, 3600, [claim]) == [frozenset(expected)], (
                "a repeat answers the same and sends nothing"
            )

    @precondition(lambda self: self.any_in(DISPATCHED))
    @rule(mentions=MENTIONS, states=meant_for(DISPATCHED), there=USUALLY)
    def start(self, mentions: list[tuple[int, int]], states: frozenset[str], there: bool) -> None:
        function, named = self.mentioned(mentions, states)
        gpu = named[0][0].gpu or GPUS[0]
        self.begin(named, function, gpu if there else GPUS[gpu == GPUS[0]])

    def begin(self, named: list[tuple[Invocation, int]], function: str, gpu: str) -> None:
        begun = self.queue.start(function, gpu, 3600, [*((one.id, attempt) for one, attempt in named), ("f" * 32, 1)])
        assert begun.pop() is None
        for (one, attempt), item in zip(named, begun, strict=True):
            if one.state != "dispatched" or one.attempt != attempt or one.gpu != gpu:
                assert item is None
            elif one.deadline_us < DEADLINES_US[0]:
                assert item is None
                self.end(one, "expired", "deadline_expired", LATE)
            else:
                assert item is not None
                assert (item.payload, item.deadline_us, item.alone) == (one.payload, one.deadline_us, one.alone)
                one.state, one.starts = "running", one.starts + 1

    @precondition(lambda self: self.any_in(HELD))
    @rule(
        mentions=MENTIONS, states=meant_for(RUNNING), result=st.sampled_from((b"", b"r", b"\n\x00|r")), ok=st.booleans()
    )
    def finish(self, mentions: list[tuple[int, int]], states: frozenset[str], result: bytes, ok: bool) -> None:
        function, named = self.mentioned(mentions, states)
        cause = Cause.OK if ok else Cause.HANDLER_ERROR
        accepted = self.queue.finish(
            function,
            "{}",
            [
                RunOutcome(id=one.id, attempt=attempt, action="succeed" if ok else "fail", cause=cause, result=result)
                for one, attempt in named
            ],
        )
        for (one, attempt), accept in zip(named, accepted, strict=True):
            assert accept == (
                one.attempt == attempt
                and (one.state == "running" or (not ok and one.state in {"queued", "dispatched"}))
            )
            if accept:
                self.end(one, "succeeded" if ok else "failed", cause, result)

    @precondition(lambda self: self.any_in(HELD))
    @rule(mentions=MENTIONS, states=meant_for(HELD), refund=st.booleans(), alone=st.booleans())
    def requeue(self, mentions: list[tuple[int, int]], states: frozenset[str], refund: bool, alone: bool) -> None:
        function, named = self.mentioned(mentions, states)
        answers = self.queue.requeue(
            function,
            Cause.CRASHED,
            [(one.id, attempt) for one, attempt in named],
            refund=refund,
            alone=alone,
            message="boom",
        )
        blob = error_result("boom")
        for (one, attempt), answer in zip(named, answers, strict=True):
            owned = one.state in HELD and one.attempt == attempt
            assert answer == (self.back(one, "crashed", blob, refund=refund, alone=alone) if owned else -1)

    @precondition(lambda self: self.any_in(HELD))
    @rule(mentions=MENTIONS)
    def lease_runs_out(self, mentions: list[tuple[int, int]]) -> None:
        lost = {one.id: one for one, _ in self.mentioned(mentions, HELD)[1]}
        for one in lost.values():
            self.redis.zadd(f"{P}leases", {one.member: 1}, xx=True)
        assert self.queue.reap(self.former) == -1
        assert self.queue.reap(self.token) == len(lost)
        for one in lost.values():
            self.back(one, "worker_lost" if one.state == "running" else "dispatch_lost", TOO_OFTEN)

    @precondition(lambda self: self.any_in(HELD))
    @rule(gpu=st.sampled_from(GPUS))
    def worker_starts_anew(self, gpu: str) -> None:
        held = [one for one in self.all.values() if one.state in HELD and one.gpu == gpu]
        assert self.queue.release(gpu) == len(held)
        for one in held:
            self.back(one, "worker_lost", TOO_OFTEN)

    @rule(mentions=MENTIONS, states=st.sampled_from((QUEUED, DISPATCHED, RUNNING, OVER)))
    def cancel(self, mentions: list[tuple[int, int]], states: frozenset[str]) -> None:
        blob = error_result("It was cancelled.")
        assert self.queue._call("cancel", project="default", id="f" * 32, result=blob, only_waiting=0) == [b"absent"]
        for one, _ in self.mentioned(mentions[:1], states)[1]:
            answer = self.queue._call("cancel", project=one.project, id=one.id, result=blob, only_waiting=0)
            if one.state in OVER:
                assert answer == [b"ended", one.state.encode()]
                continue
            assert answer == [b"cancelled", one.state.encode()]
            if one.state == "running":
                self.commands.append(Cancel(version=1, function=one.function, id=one.id, attempt=one.attempt))
            self.end(one, "cancelled", "cancelled", blob)

    @precondition(lambda self: self.all)
    @rule(mentions=MENTIONS, states=st.sampled_from((QUEUED, QUEUED, HELD, ANY)), leads=USUALLY, ending=ENDINGS)
    def settle(
        self, mentions: list[tuple[int, int]], states: frozenset[str], leads: bool, ending: tuple[str, str, Cause]
    ) -> None:
        action, state, cause = ending
        function, named = self.mentioned(mentions, states)
        endings = [
            End(function=function, id=one.id, action=action, cause=cause, why=EndedFor.TOO_LATE)  # type: ignore[arg-type]
            for one, _ in named
        ]
        if not leads:
            assert self.queue.settle(self.former, endings) is None
            return
        answers = self.queue.settle(self.token, endings)
        assert answers is not None
        for (one, _), answer in zip(named, answers, strict=True):
            assert answer == (one.state == "queued")
            if answer:
                late = "No GPU instance could finish it before its deadline, which has passed."
                self.end(one, state, cause, error_result(late))

    @precondition(lambda self: self.any_in(DISPATCHED))
    @rule(mentions=MENTIONS)
    def deadline_passes(self, mentions: list[tuple[int, int]]) -> None:
        """Of a dispatched one: no worker has started it in time."""
        one = self.mentioned(mentions, DISPATCHED)[1][0][0]
        one.deadline_us = 1
        self.redis.hset(f"{P}i:{one.project}:{one.id}", "dl", 1)

    @precondition(lambda self: self.any_in(OVER))
    @rule(at_most=st.integers(1, 4), mentions=MENTIONS)
    def records_run_out(self, at_most: int, mentions: list[tuple[int, int]]) -> None:
        assert self.queue.sweep() == 0
        old = {one.id: one for one, _ in self.mentioned(mentions, OVER)[1]}
        for score, one in enumerate(old.values()):
            self.redis.zadd(f"{P}done", {one.member: score}, xx=True)
        swept = list(old.values())[:at_most]
        assert self.queue.sweep(at_most) == len(swept)
        for one in swept:
            one.swept = True
        for one in list(old.values())[at_most:]:
            self.redis.zadd(f"{P}done", {one.member: DEADLINES_US[0]}, xx=True)

    @precondition(lambda self: self.all)
    @rule(mentions=MENTIONS)
    def keep(self, mentions: list[tuple[int, int]]) -> None:
        assert self.queue._call("keep", project="default", id="f" * 32) == b""
        for one, _ in self.mentioned(mentions[:1], ANY)[1]:
            assert self.queue._call("keep", project=one.project, id=one.id) == one.state.encode()

    @rule(mentions=MENTIONS, states=meant_for(RUNNING), gpu=st.sampled_from(GPUS))
    def heartbeat(self, mentions: list[tuple[int, int]], states: frozenset[str], gpu: str) -> None:
        function, named = self.mentioned(mentions, states)
        lost = self.queue.report(
            gpu,
            b"{}",
            ttl_s=60,
            lease_s=3600,
            cursor="",
            running=[(function, one.id, attempt) for one, attempt in named],
        )
        assert lost == {one.id for one, attempt in named if one.state != "running" or one.attempt != attempt}

    # What must hold after every call.

    def published(self) -> list[tuple[str, bytes]]:
        """
        Everything published so far: a mark is sent after it, for an answer may reach us before what was published with
        it.
        """
        self.redis.publish("gw1", "mark")
        messages: list[tuple[str, bytes]] = []
        while True:
            message = self.subscriber.get_message(ignore_subscribe_messages=True, timeout=10)
            if message is None:
                continue
            if message["data"] == b"mark":
                return messages
            messages.append((message["channel"].decode(), message["data"]))

    def _follow(self) -> None:
        for entry, fields in cast(
            "list[tuple[bytes, dict[bytes, bytes]]]", self.redis.xrange(f"{P}ev", self.last_event)
        ):
            self.last_event = "(" + entry.decode()
            match stream.decode(fields[b"e"]):
                case stream.Arrived(id=id_):
                    assert id_ not in self.arrived
                    self.arrived.add(id_)
                case stream.Settled(id=id_) as event:
                    assert id_ not in self.settled, "settled twice"
                    self.settled[id_] = event
                case _:
                    pass
        for channel, data in self.published():
            for reply in parse_replies(data):
                self.told[reply.id] += 1
                one = self.all[reply.id]
                assert (channel, reply.state, reply.cause, reply.attempt, reply.gpu, reply.result) == (
                    one.channel,
                    one.state,
                    one.cause,
                    one.attempt,
                    one.gpu,
                    one.result,
                )

    @invariant()
    def nothing_is_in_two_places_and_every_sum_is_right(self) -> None:
        self._follow()
        known = list(self.all.values())
        pipe = self.redis.pipeline(transaction=False)
        for function in FUNCTIONS:
            pipe.zrange(f"{P}q:{function}", 0, -1)
            pipe.hgetall(f"{P}runs:{function}")
        for gpu in GPUS:
            pipe.smembers(f"{P}held:{gpu}")
            pipe.llen(f"{P}gpu.{gpu}")
        pipe.zrange(f"{P}q", 0, -1)
        pipe.zrange(f"{P}leases", 0, -1)
        pipe.zrange(f"{P}done", 0, -1)
        pipe.hgetall(f"{P}bytes")
        pipe.hgetall(f"{P}count")
        pipe.hgetall(f"{P}projects")
        for one in known:
            pipe.hmget(f"{P}i:{one.project}:{one.id}", "st", "at", "starts", "gpu", "su")
            pipe.exists(f"{P}p:{one.project}:{one.id}")
            pipe.get(f"{P}r:{one.project}:{one.id}")
        answers = iter(pipe.execute())

        for function in FUNCTIONS:
            waiting = sorted(
                (one.deadline_us, one.id) for one in known if one.function == function and one.state == "queued"
            )
            assert next(answers) == [id_.encode() for _, id_ in waiting], "order inside a function"
            under_way: Counter[str] = Counter()
            for batch, left in next(answers).items():
                assert int(left) > 0
                under_way[batch.decode().partition("|")[0]] += int(left)
            assert under_way == Counter(one.gpu for one in known if one.function == function and one.state in HELD)
        for gpu in GPUS:
            assert next(answers) == {one.member for one in known if one.state in HELD and one.gpu == gpu}
            assert next(answers) == self.messages[gpu]
        assert set(next(answers)) == {one.function.encode() for one in known if one.state == "queued"}
        assert set(next(answers)) == {one.member for one in known if one.state in HELD}
        assert set(next(answers)) == {one.member for one in known if one.state in OVER and not one.swept}
        held_bytes = {field: int(value) for field, value in next(answers).items()}
        assert held_bytes.get(b"payload", 0) == sum(len(one.payload) for one in known if one.state not in OVER)
        assert held_bytes.get(b"result", 0) == sum(
            len(one.result) for one in known if one.state in OVER and not one.swept
        )
        assert int(next(answers).get(b"waiting", 0)) == sum(one.state == "queued" for one in known)
        counted = {field.decode(): int(value) for field, value in next(answers).items() if int(value)}
        wanted = Counter(f"{one.project}:open" for one in known if one.state not in OVER)
        assert counted == wanted + Counter(f"{one.project}:waiting" for one in known if one.state == "queued")
        for one in known:
            state, attempt, starts, gpu, started = next(answers)
            payload, result = next(answers), next(answers)
            if one.swept:
                assert (state, payload, result) == (None, 0, None)
                continue
            assert (state.decode(), int(attempt), int(starts), gpu.decode()) == (
                one.state,
                one.attempt,
                one.starts,
                one.gpu,
            )
            assert one.state not in {"queued", "dispatched"} or started == b"0", "the start of an earlier attempt"
            assert payload == (one.state not in OVER)
            assert result == (one.result if one.state in OVER else None)
            before = self.seen_states.get(one.id, one.state)
            assert before == one.state or (before, one.state) in LEGAL, f"{before} -> {one.state}"
            self.seen_states[one.id] = one.state

        assert self.arrived == set(self.all)
        assert set(self.settled) == {one.id for one in known if one.state in OVER}, "submitted = ended + in flight"
        for event in self.settled.values():
            one = self.all[event.id]
            assert (event.state, event.cause, event.gpu) == (one.state, one.cause, one.gpu)
            assert (event.attempt, event.starts) == (one.attempt, one.starts)
        assert self.told == Counter(one.id for one in known if one.state in OVER and one.channel)

    @invariant()
    def a_new_leader_sees_it_all(self) -> None:
        snapshot = self.queue.snapshot()
        known = self.all.values()
        assert {(w.function, w.id, w.attempt, w.deadline_us, w.alone) for w in snapshot.waiting} == {
            (one.function, one.id, one.attempt, one.deadline_us, one.alone) for one in known if one.state == "queued"
        }
        assert {(h.waiting.id, h.waiting.attempt, h.state, h.gpu) for h in snapshot.held} == {
            (one.id, one.attempt, one.state, one.gpu) for one in known if one.state in HELD
        }

    def teardown(self) -> None:
        sent = []
        for gpu in GPUS:
            for _, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", self.redis.xrange(f"{P}cmd:{gpu}")):
                sent.append(msgspec.msgpack.decode(fields[b"c"], type=Cancel))
        assert sorted(command.id for command in sent) == sorted(command.id for command in self.commands)


@pytest.fixture(scope="module")
def client() -> Iterator["redis.Redis"]:
    with RedisServer() as server, server.client() as client:
        yield client


# A failure is made small before it is told, which takes up to five minutes.
@pytest.mark.timeout(900)
def test_queue_behaves_as_its_model(client: "redis.Redis") -> None:
    with client.pubsub() as subscriber:
        subscriber.subscribe("gw1", "gw2")
        run_state_machine_as_test(
            lambda: QueueMachine(client, subscriber),  # type: ignore[arg-type]  # any factory will do
            settings=settings(
                max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
