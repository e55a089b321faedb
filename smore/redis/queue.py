"""
The priority queue in Redis: functions by priority, inside a function earliest deadline first, every move one fenced Lua
script.

The scripts (``lua/*.lua``; ``common.lua`` documents every key) are the only writers. :class:`Queue` is the synchronous
door (leader, workers), :class:`AsyncQueue` the gateway's; both speak through the same pure pairs of arguments and
answers. Times in Redis are integer microseconds of its own clock.

Delivery: execution is at least once (a worker may die after user code ran), results are exactly once (``finish``
compares state and attempt).
"""

import asyncio
import hashlib
import math
import os
import socket
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, cast

import hiredis
import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from smore.domain.invocation import TRANSITIONS, Cause, Encoding
from smore.domain.limits import NO_LIMITS, Limits
from smore.messages.stream import error_result
from smore.process.settings import QueueSettings, Settings
from smore.redis.payloads import Payloads

Arg = bytes | str | int | float

#: How long an answer of the leader's lies in Redis for the gateway that asked, and how long the leader takes a question
#: for one that somebody still waits for.
ANSWER_TTL_S = 5.0

_LOST = error_result("Its input was lost on the way; send it again.")

#: Invocations that are cancelled in one round trip.
_PURGED_AT_ONCE = 200

#: The shortest wait that is asked for: before version 7 Redis cuts off what is below a millisecond, and 0 is a wait
#: without end.
_WAIT_S = 0.002

#: Read at once from a connection: payloads come in fewer pieces than by the 64 KiB that are usual.
_READ = 256 << 10
#: What a gateway's connection may hold unsent.
_SEND = 1 << 20
#: An argument of a command that is sent as it lies.
_LARGE = 32 << 10

SCRIPTS = (
    "enqueue",
    "ask",
    "claim",
    "start",
    "finish",
    "requeue",
    "reap",
    "release",
    "settle",
    "cancel",
    "keep",
    "sweep",
    "report",
    "lead",
    "snapshot",
)


def connect(config: Settings, *, silence_s: float = 10.0) -> "redis.Redis":
    """
    A client whose broken connections are noticed: a command, or a blocked read, may take ``silence_s``, by default more
    than any tick. Raises ValueError without a URL.
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


def new_id() -> str:
    """32 hex digits: 48 bits of milliseconds, then 80 random bits; sorts by time."""
    return f"{int(time.time() * 1000):012x}{os.urandom(10).hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    What the gateway asks for. ``deadline_us`` absolute, or ``slo_us`` from arrival; exactly one is not zero.

    ``volatile``: the payload is not written to disk. Where Redis is killed before it is started, it fails with
    ``payload_lost``: for a caller who waits and can send it again. It may lie beside Redis (smore/redis/payloads.py).
    """

    id: str
    function: str
    revision: int
    payload: bytes
    slo_us: int = 0
    deadline_us: int = 0
    channel: str = ""
    encoding: Encoding = Encoding.JSON
    accept: Encoding = Encoding.JSON
    rows: int = 1
    shape: str = ""
    sync: bool = False
    trace: str = ""
    key_id: str = ""
    idempotency_key: str = ""
    request_hash: str = ""
    max_pending: int = 1000
    max_attempts: int = 3
    limits: Limits = NO_LIMITS
    volatile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """
    The gate's answer.

    ``status``: ``ok`` (times in ``arrival_us``, ``deadline_us``), ``replay`` or ``mismatch`` (``known_id`` came with
    the same Idempotency-Key), ``full`` (``limit`` names the bound), ``limited`` (``limit`` names the one of its
    project, ``bound`` is its value, ``after_us`` says when to try again), ``infeasible`` (``earliest_us``, the earliest
    deadline that would be accepted, and ``now_us``), ``late``.
    """

    status: Literal["ok", "replay", "mismatch", "full", "limited", "infeasible", "late"]
    arrival_us: int = 0
    deadline_us: int = 0
    known_id: str = ""
    limit: str = ""
    bound: float = 0.0
    after_us: int = 0
    earliest_us: int = 0
    now_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    What would become of an invocation? ``deadline_us`` absolute, or ``slo_us`` from now; exactly one is not zero.

    ``id`` is the question's own, '' = only the gate is asked, not the leader. ``size``: bytes of its payload;
    ``limits`` of its project.
    """

    id: str
    function: str
    revision: int = 0
    rows: int = 1
    slo_us: int = 0
    deadline_us: int = 0
    size: int = 0
    max_pending: int = 1000
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """
    What the gate says to a :class:`Question`. Times in microseconds.

    ``needed_us``: the earliest feasible finish from now, 0 = not known; ``full``: the bound that one more would break,
    '' = none; ``limited``: the limit of its project that one more would break, '' = none, ``bound`` its value,
    ``after_us`` when to try again; ``paused``: '', ``function`` or ``platform``. ``leader``: ``asked`` (its answer
    comes), ``many`` (too many questions within a second), ``alone`` (nobody leads), ``gate`` (it was not to be asked).
    """

    now_us: int
    deadline_us: int
    needed_us: int
    full: str
    paused: Literal["", "function", "platform"]
    leader: Literal["asked", "many", "alone", "gate"]
    limited: str = ""
    bound: float = 0.0
    after_us: int = 0

    @property
    def feasible(self) -> bool:
        """Whether the gate would take it by its deadline."""
        return self.deadline_us > self.now_us and self.now_us + self.needed_us <= self.deadline_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    One dispatch to be carried out: ``attempts`` are (id, the attempt known so far); ``message`` names attempt + 1 of
    each.
    """

    function: str
    gpu: str
    celery_list: str
    message: bytes
    decision: str
    schedule_us: int
    attempts: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """One invocation that its worker may run now."""

    payload: bytes
    encoding: Encoding
    accept: Encoding
    rows: int
    deadline_us: int
    trace: str
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    id: str
    attempt: int
    action: Literal["succeed", "fail"]
    cause: Cause
    result: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A waiting invocation that the leader ends."""

    function: str
    id: str
    action: Literal["reject", "expire", "fail"]
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    function: str
    revision: int
    id: str
    attempt: int
    arrival_us: int
    deadline_us: int
    rows: int
    shape: str
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An invocation that is dispatched or running."""

    waiting: Waiting
    state: str
    gpu: str
    started_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a new leader starts from; it follows the stream after ``last_event``."""

    last_event: str
    waiting: Sequence[Waiting]
    held: Sequence[Held]
    reports: Sequence[bytes]
    paused: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How an invocation ended, as told to a waiting gateway or read back. Times in microseconds; 0 = did not happen."""

    id: str
    state: str
    cause: str
    attempt: int
    arrival_us: int
    claimed_us: int
    started_us: int
    finished_us: int
    gpu: str
    schedule_us: int
    result: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """
    An invocation as Redis holds it now. ``gate_us``: what the gate held against the deadline, from arrival; 0 = nothing
    was known.
    """

    id: str
    function: str
    revision: int
    state: str
    cause: str
    attempt: int
    starts: int
    gpu: str
    arrival_us: int
    deadline_us: int
    claimed_us: int
    started_us: int
    finished_us: int
    rows: int
    accept: Encoding
    trace: str
    schedule_us: int
    gate_us: int


def parse_replies(data: bytes) -> list[Reply]:
    """The frames of one published message (lua/common.lua: reply)."""
    replies, position = [], 0
    while position < len(data):
        start = position + 10
        end = start + int(data[position:start])
        head, _, blob = data[start:end].partition(b"\n")
        id_, state, cause, attempt, arrival, claimed, started, finished, gpu, schedule = head.decode().split("|")
        replies.append(
            Reply(
                id=id_,
                state=state,
                cause=cause,
                attempt=int(attempt),
                arrival_us=int(arrival),
                claimed_us=int(claimed),
                started_us=int(started),
                finished_us=int(finished),
                gpu=gpu,
                schedule_us=int(schedule),
                result=blob,
            )
        )
        position = end
    return replies


def _lua_text(value: bytes) -> str:
    return '"' + "".join(f"\\{byte:03d}" for byte in value) + '"'


def script_sources(bounds: QueueSettings) -> dict[str, str]:
    """Each script's whole text: the transition table and the constants, the prelude, the script."""
    table = ", ".join(
        f"{action} = {{ {', '.join(f'{state} = true' for state in moves)} }}" for action, moves in TRANSITIONS.items()
    )
    constants = (
        f"local FROM = {{ {table} }}\n"
        f"local TTL_RESULT, TTL_SYNC = {int(bounds.result_ttl_s * 1e6)}, {int(bounds.sync_result_ttl_s * 1e6)}\n"
        f"local MAX_LOST = {bounds.max_lost}\n"
        f"local BLOB_EXPIRED = {_lua_text(error_result('The deadline passed before a GPU instance could start it.'))}\n"
        f"local BLOB_LOST = {_lua_text(_LOST)}\n"
    )
    folder = resources.files("smore.redis") / "lua"
    prelude = (folder / "common.lua").read_text()
    return {name: constants + prelude + (folder / f"{name}.lua").read_text() for name in SCRIPTS}


class _Scripts:
    """Names → sources and SHA-1 digests."""

    def __init__(self, bounds: QueueSettings) -> None:
        self.source = script_sources(bounds)
        self.sha = {
            name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() for name, text in self.source.items()
        }


def _limit_args(limits: Limits) -> list[Arg]:
    return [
        "" if value is None else value
        for value in (limits.rate_per_s, limits.burst or 1, limits.depth, limits.concurrency)
    ]


def _packed(command: Sequence[Arg]) -> list[bytes]:
    """
    A command in Redis' protocol, in pieces: packing it in C is quick for small arguments and copies a large one time
    and again.
    """
    if all(not isinstance(arg, bytes) or len(arg) < _LARGE for arg in command):
        return [hiredis.pack_command(tuple(command))]  # type: ignore[arg-type]  # its stub means one-tuples
    pieces: list[bytes] = []
    small = [b"*%d\r\n" % len(command)]
    for arg in command:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        small.append(b"$%d\r\n" % len(data))
        if len(data) < _LARGE:
            small.append(data)
        else:
            pieces += [b"".join(small), data]
            small = []
        small.append(b"\r\n")
    return [*pieces, b"".join(small)]


def _enqueue_args(request: Request, bounds: QueueSettings, *, beside: bool = False) -> list[Arg]:
    """``beside``: its payload lies beside Redis."""
    return [
        request.id,
        request.function,
        request.revision,
        request.slo_us,
        request.deadline_us,
        request.channel,
        request.encoding.value,
        request.accept.value,
        request.rows,
        request.shape,
        int(request.sync),
        request.trace,
        request.key_id,
        request.idempotency_key,
        request.request_hash,
        request.max_pending,
        bounds.max_pending,
        bounds.payload_bytes,
        bounds.result_bytes,
        bounds.events,
        int(bounds.idempotency_ttl_s),
        request.max_attempts,
        bounds.keys,
        b"" if beside else request.payload,
        *_limit_args(request.limits),
        int(request.volatile and not beside),
        len(request.payload) if beside else "",
    ]


def _ask_args(question: Question, bounds: QueueSettings) -> list[Arg]:
    return [
        question.id,
        question.function,
        question.revision,
        question.rows,
        question.slo_us,
        question.deadline_us,
        question.size,
        question.max_pending,
        bounds.max_pending,
        bounds.payload_bytes,
        bounds.result_bytes,
        bounds.events,
        bounds.keys,
        bounds.asks_per_s,
        *_limit_args(question.limits),
    ]


def _gate(raw: Sequence[bytes]) -> Gate:
    full, paused, leader, limited = (value.decode() for value in raw[3:7])
    return Gate(
        now_us=int(raw[0]),
        deadline_us=int(raw[1]),
        needed_us=int(raw[2]),
        full=full,
        paused=cast("Literal['', 'function', 'platform']", paused),
        leader=cast("Literal['asked', 'many', 'alone', 'gate']", leader),
        limited=limited,
        bound=float(raw[7]),
        after_us=int(raw[8]),
    )


def _admission(raw: Sequence[bytes]) -> Admission:
    match raw[0]:
        case b"ok":
            return Admission(status="ok", arrival_us=int(raw[1]), deadline_us=int(raw[2]))
        case b"replay":
            return Admission(status="replay", known_id=raw[1].decode())
        case b"mismatch":
            return Admission(status="mismatch", known_id=raw[1].decode())
        case b"full":
            return Admission(status="full", limit=raw[1].decode())
        case b"limited":
            return Admission(status="limited", limit=raw[1].decode(), bound=float(raw[2]), after_us=int(raw[3]))
        case b"infeasible":
            return Admission(status="infeasible", earliest_us=int(raw[1]), now_us=int(raw[2]))
        case _:
            return Admission(status="late", now_us=int(raw[1]))


_RECORD_FIELDS = (
    "f",
    "rev",
    "st",
    "cause",
    "at",
    "starts",
    "gpu",
    "ar",
    "dl",
    "cl",
    "su",
    "fi",
    "rows",
    "acc",
    "tr",
    "sc",
    "nd",
)


def _record(id_: str, raw: Sequence[bytes | None]) -> Record | None:
    if raw[0] is None:
        return None
    text = [value.decode() if value is not None else "" for value in raw]
    number = [int(value) if value.isdigit() else 0 for value in text]
    return Record(
        id=id_,
        function=text[0],
        revision=number[1],
        state=text[2],
        cause=text[3],
        attempt=number[4],
        starts=number[5],
        gpu=text[6],
        arrival_us=number[7],
        deadline_us=number[8],
        claimed_us=number[9],
        started_us=number[10],
        finished_us=number[11],
        rows=number[12],
        accept=Encoding(text[13]),
        trace=text[14],
        schedule_us=number[15],
        gate_us=number[16],
    )


def _waiting(raw: Sequence[bytes]) -> Waiting:
    text = [value.decode() for value in raw]
    return Waiting(
        function=text[0],
        revision=int(text[1]),
        id=text[2],
        attempt=int(text[3]),
        arrival_us=int(text[4]),
        deadline_us=int(text[5]),
        rows=int(text[6]),
        shape=text[7],
        alone=text[8] == "1",
    )


def _claim_args(token: str, lease_s: float, claim: Claim, cursor: str) -> list[Arg]:
    return [
        token,
        claim.function,
        claim.gpu,
        int(lease_s * 1e6),
        claim.celery_list,
        claim.message,
        claim.decision,
        claim.schedule_us,
        cursor,
        *(value for pair in claim.attempts for value in pair),
    ]


def _claimed(answer: Sequence[bytes]) -> frozenset[str] | None:
    return None if answer[0] == b"fenced" else frozenset(id_.decode() for id_ in answer[2:])


def _payloads(bounds: QueueSettings) -> Payloads | None:
    return Payloads(bounds.payloads) if bounds.payloads is not None else None


def _project(function: str) -> str:
    return function.partition("/")[0]


class Queue:
    """
    The synchronous door: for the leader and for workers. Errors of the connection are redis-py's and reach the caller.
    """

    def __init__(self, client: "redis.Redis", prefix: str, bounds: QueueSettings) -> None:
        self.redis = client
        self.prefix = prefix
        self.bounds = bounds
        self._scripts = _Scripts(bounds)
        self._failed = error_result("It was started or dispatched as often as allowed.")
        self._payloads = _payloads(bounds)

    def _call(self, name: str, *args: Arg) -> Any:
        return self._calls([(name, args)])[0]

    def _calls(self, calls: Sequence[tuple[str, Sequence[Arg]]], commands: Sequence[tuple[Arg, ...]] = ()) -> list[Any]:
        """
        All scripts, and plain commands behind them, in one round trip. A server that has lost its scripts (restart)
        gets them again, and only what failed so is repeated.
        """
        answers = self._exchange(
            [*(("EVALSHA", self._scripts.sha[name], 0, self.prefix, *args) for name, args in calls), *commands]
        )
        missing = [position for position, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            for name in {calls[position][0] for position in missing}:
                self.redis.script_load(self._scripts.source[name])
            for position, answer in zip(missing, self._calls([calls[position] for position in missing]), strict=True):
                answers[position] = answer
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _exchange(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """
        Commands and their answers, errors of a command among the answers.

        Half the CPU of redis-py's pipeline: packed in C, no callbacks. Nothing is repeated here: only the caller knows
        what may be.
        """
        pool = self.redis.connection_pool
        connection = pool.get_connection()
        try:
            packed = [piece for command in commands for piece in _packed(command)]
            # One system call for all that is small.
            whole = [b"".join(packed)] if sum(map(len, packed)) < _LARGE else packed
            connection.send_packed_command(whole)  # type: ignore[no-untyped-call]
            answers: list[Any] = []
            for _ in commands:
                try:
                    answers.append(connection.read_response())
                except redis.ResponseError as error:
                    answers.append(error)
            return answers
        except BaseException:
            # Answers that nobody reads must not meet the next question.
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        finally:
            pool.release(connection)

    def events(self, after: str, wait_s: float = 0.0, at_most: int = 1000) -> list[tuple[str, bytes]]:
        """
        Entries of the event stream behind ``after``: (id, what ``smore.messages.stream.decode`` reads).

        ``wait_s``: for the leader, which waits at the bell (lua/common.lua) first, at most so long.
        """
        commands: list[tuple[Arg, ...]] = [("XREAD", "COUNT", at_most, "STREAMS", f"{self.prefix}ev", after)]
        if wait_s > 0:
            # Redis carries out what is sent behind a command that waits when the wait has ended: one write, and one
            # wake-up.
            commands.insert(0, ("BLPOP", f"{self.prefix}bell", max(_WAIT_S, wait_s)))
        answers = self._exchange(commands)
        for found in answers:
            if isinstance(found, Exception):
                raise found
        answer = answers[-1]
        if not answer:
            return []
        entries = next(iter(answer.values())) if isinstance(answer, dict) else answer[0][1]
        return [(entry.decode(), fields[1]) for entry, fields in entries]

    def enqueue(self, request: Request) -> Admission:
        return _admission(self._call("enqueue", *_enqueue_args(request, self.bounds)))

    def lead(self, token: str, lease_s: float) -> str:
        """Take (token '') or renew the leader's lease. Returns the token, '' when another leads."""
        return cast(bytes, self._call("lead", token, int(lease_s * 1000))).decode()

    def resign(self, token: str) -> None:
        """Give the leader's lease back, if it is still this one's."""
        self._call("lead", token, 0)

    def forget_function(self, function: str) -> None:
        """A function is gone: what the gate and the order knew of it goes too."""
        pipe = self.redis.pipeline(transaction=False)
        pipe.hdel(f"{self.prefix}feasible", function)
        pipe.hdel(f"{self.prefix}prio", function)
        pipe.execute()

    def claim(self, token: str, lease_s: float, claims: Sequence[Claim]) -> list[frozenset[str] | None]:
        """Carry out dispatches. For each the ids that were claimed, or None: this leader is fenced off."""
        return [
            _claimed(answer)
            for answer in self._calls([("claim", _claim_args(token, lease_s, claim, "")) for claim in claims])
        ]

    def claim_one(self, token: str, lease_s: float, claim: Claim, cursor: str) -> tuple[frozenset[str] | None, str]:
        """
        The same for one, by a leader that has read the stream up to ``cursor``.

        Also returns the cursor to go on from: behind the entry of this very decision where nothing stands between, so
        that the leader is not woken by what it did itself.
        """
        answer = self._call("claim", *_claim_args(token, lease_s, claim, cursor))
        return _claimed(answer), answer[1].decode() or cursor if len(answer) > 1 else cursor

    def settle(self, token: str, endings: Sequence[Ending]) -> list[bool] | None:
        """End waiting invocations. True where it was still waiting; None: fenced off."""
        args: list[Arg] = [token]
        for ending in endings:
            args += [ending.function, ending.id, ending.action, ending.cause.value, error_result(ending.message)]
        answer = self._call("settle", *args)
        return None if answer and answer[0] == b"fenced" else [value == 1 for value in answer]

    def answer(self, id_: str, answer: bytes) -> None:
        """The leader's answer to a question, for the gateway that waits for it."""
        key = f"{self.prefix}ask:{id_}"
        pipe = self.redis.pipeline(transaction=True)
        pipe.lpush(key, answer)
        pipe.pexpire(key, int(ANSWER_TTL_S * 1000))
        pipe.execute()

    def start(self, function: str, gpu: str, lease_s: float, attempts: Iterable[tuple[str, int]]) -> list[Begun | None]:
        """
        Begin a batch; None where an invocation is not this worker's (any more), its deadline has passed or its payload
        is lost.
        """
        known = list(attempts)
        answer = self._call("start", function, gpu, int(lease_s * 1e6), *(value for pair in known for value in pair))
        begun: list[Begun | None] = []
        lost: list[Outcome] = []
        for (id_, attempt), item in zip(known, answer[1:], strict=True):
            payload = self._payload(function, id_, item[0], int(item[7])) if item else None
            if payload is None:
                begun.append(None)
                if item:
                    lost.append(Outcome(id=id_, attempt=attempt, action="fail", cause=Cause.PAYLOAD_LOST, result=_LOST))
                continue
            begun.append(
                Begun(
                    payload=payload,
                    encoding=Encoding(item[1].decode()),
                    accept=Encoding(item[2].decode()),
                    rows=int(item[3]),
                    deadline_us=int(item[4]),
                    trace=item[5].decode(),
                    alone=item[6] == b"1",
                )
            )
        if lost:
            self.finish(function, "", lost)
        return begun

    def _payload(self, function: str, id_: str, found: bytes, size: int) -> bytes | None:
        """What Redis gave, or what lies beside it; None where that is gone."""
        if found or not size:
            return found
        return self._payloads.get(_project(function), id_, size) if self._payloads is not None else None

    def finish(self, function: str, meta: str, outcomes: Sequence[Outcome]) -> list[bool]:
        """End a batch; False where another attempt owns the invocation or it has ended (cancelled)."""
        args: list[Arg] = [function, meta]
        for outcome in outcomes:
            args += [outcome.id, outcome.attempt, outcome.action, outcome.cause.value, outcome.result]
        return [value == 1 for value in self._call("finish", *args)]

    def requeue(
        self,
        function: str,
        cause: Cause,
        attempts: Sequence[tuple[str, int]],
        *,
        refund: bool,
        alone: bool,
        message: str,
    ) -> list[int]:
        """
        Give back: 1 queued again, 0 failed by a limit (with ``message``), -1 not ours. ``refund``: the start does not
        count.
        """
        pairs = [value for pair in attempts for value in pair]
        answer = self._call("requeue", function, cause.value, int(refund), int(alone), error_result(message), *pairs)
        return [int(value) for value in answer]

    def purge(self, project: str, name: str) -> int:
        """Cancel what waits for a function; what runs goes on. How many."""
        ids = cast("list[bytes]", self.redis.zrange(f"{self.prefix}q:{project}/{name}", 0, -1))
        blob, gone = error_result("Its queue was purged."), 0
        for start in range(0, len(ids), _PURGED_AT_ONCE):
            answers = self._calls([("cancel", (project, id_, blob, 1)) for id_ in ids[start : start + _PURGED_AT_ONCE]])
            gone += sum(answer[0] == b"cancelled" for answer in answers)
        return gone

    def reap(self, token: str, at_most: int = 500) -> int:
        """Return what ran out of lease. How many, -1 when fenced off."""
        return int(self._call("reap", token, at_most, self._failed))

    def release(self, gpu: str) -> int:
        """Give back what a GPU worker's former self held. How many."""
        return int(self._call("release", gpu, self._failed))

    def sweep(self, at_most: int = 500) -> int:
        """Drop records whose time is over. How many."""
        return int(self._call("sweep", at_most))

    def report(
        self,
        gpu: str,
        report: bytes,
        *,
        ttl_s: float,
        lease_s: float,
        cursor: str,
        running: Iterable[tuple[str, str, int]],
    ) -> frozenset[str]:
        """Heartbeat. ``running`` are (function, id, attempt); returns the ids that are not this worker's any more."""
        triples = [value for triple in running for value in triple]
        answer = self._call("report", gpu, report, int(ttl_s * 1000), int(lease_s * 1e6), cursor, *triples)
        return frozenset(id_.decode() for id_ in answer)

    def snapshot(self) -> Snapshot:
        last, waiting, held, reports, paused = self._call("snapshot")
        return Snapshot(
            last_event=last.decode(),
            waiting=[_waiting(raw) for raw in waiting],
            held=[
                Held(waiting=_waiting(raw), state=raw[9].decode(), gpu=raw[10].decode(), started_us=int(raw[11]))
                for raw in held
            ],
            reports=reports,
            paused=frozenset(member.decode() for member in paused),
        )

    def record(self, project: str, id_: str) -> Record | None:
        raw = self.redis.hmget(f"{self.prefix}i:{project}:{id_}", _RECORD_FIELDS)
        return _record(id_, cast("list[bytes | None]", raw))

    def publish_feasible(self, feasible: Mapping[str, str], priority: Mapping[str, float]) -> None:
        """
        ``feasible``: function → ``stamp:backlog:floor:each:counted`` (µs and a number, lua/common.lua); ``priority``:
        function → P, where it changed.
        """
        self._calls([], self._publishing(feasible, priority))

    def _publishing(self, feasible: Mapping[str, str], priority: Mapping[str, float]) -> list[tuple[Arg, ...]]:
        commands: list[tuple[Arg, ...]] = []
        if feasible:
            commands.append(("HSET", f"{self.prefix}feasible", *(text for pair in feasible.items() for text in pair)))
        for function, value in priority.items():
            commands.append(("HSET", f"{self.prefix}prio", function, str(value)))
            commands.append(("ZADD", f"{self.prefix}q", "XX", value, function))
        return commands

    def keep_house(
        self, token: str, cursor: str, feasible: Mapping[str, str], priority: Mapping[str, float], at_most: int = 500
    ) -> tuple[int, float]:
        """
        What the leader does every tick, in one round trip: :meth:`reap`, :meth:`sweep`, :meth:`publish_feasible`, and
        how far it has read.

        Returns how many invocations came back (-1: fenced off) and Redis' clock, epoch seconds.
        """
        answers = self._calls(
            [("reap", (token, at_most, self._failed)), ("sweep", (at_most,))],
            [*self._publishing(feasible, priority), ("SET", f"{self.prefix}leader:cursor", cursor), ("TIME",)],
        )
        seconds, micros = answers[-1]
        return int(answers[0]), int(seconds) + int(micros) / 1e6


class AsyncQueue:
    """
    The gateway's door. Enqueues that arrive in the same turn of the event loop share one round trip.

    A broken connection is tried again until ``patience_s`` has passed (``enqueue`` is idempotent by id); then
    redis-py's error reaches the caller.
    """

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        prefix: str,
        bounds: QueueSettings,
        patience_s: float = 3.0,
        timeout_s: float = 5.0,
    ) -> None:
        self.redis = client
        self.prefix = prefix
        self.bounds = bounds
        self.patience_s = patience_s
        self.timeout_s = timeout_s
        self._scripts = _Scripts(bounds)
        self._payloads = _payloads(bounds)
        #: (what was asked for, whether its payload lies beside Redis, who waits for the answer)
        self._pending: list[tuple[Request, bool, asyncio.Future[Admission]]] = []
        self._flushing = False
        self._connection: redis.asyncio.Connection | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def _calls(self, calls: Sequence[tuple[str, Sequence[Arg]]]) -> list[Any]:
        """
        All of them in one round trip, errors among the answers. They share a connection and take turns, also while it
        is broken.
        """
        until = time.monotonic() + self.patience_s
        while True:
            try:
                async with self._turn:
                    return await self._calls_once(calls)
            except (redis.ConnectionError, redis.TimeoutError):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.05)

    async def _calls_once(self, calls: Sequence[tuple[str, Sequence[Arg]]]) -> list[Any]:
        answers = await self._exchange(
            [("EVALSHA", self._scripts.sha[name], 0, self.prefix, *args) for name, args in calls]
        )
        missing = [position for position, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            await self._exchange(
                [
                    ("SCRIPT", "LOAD", self._scripts.source[name])
                    for name in {calls[position][0] for position in missing}
                ]
            )
            repeated = await self._calls_once([calls[position] for position in missing])
            for position, answer in zip(missing, repeated, strict=True):
                answers[position] = answer
        return answers

    async def _exchange(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """
        Commands and their answers over a connection of the queue's own.

        Half the CPU of redis-py's pipeline: the commands are packed in C and no pool is asked.
        """
        if self._connection is None:
            self._connection = cast("redis.asyncio.Connection", self.redis.connection_pool.make_connection())  # type: ignore[no-untyped-call]
            # The time limit below holds for all; redis-py's own would cost a task for every send.
            self._connection.socket_timeout = None
        connection = self._connection
        answers: list[Any] = []
        try:
            async with asyncio.timeout(self.timeout_s):
                if not connection.is_connected:
                    await connection.connect()  # type: ignore[no-untyped-call]
                    # A payload goes out in one turn instead of one for each 200 KiB; redis-py has no public way to its
                    # socket.
                    writer = connection._writer
                    if writer is not None:
                        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND)
                packed = [piece for command in commands for piece in _packed(command)]
                await connection.send_packed_command(packed, check_health=False)
                for _ in commands:
                    try:
                        answers.append(await connection.read_response(timeout=math.inf))
                    except redis.ResponseError as error:
                        answers.append(error)
        except BaseException as error:
            # Answers that nobody reads must not meet the next question.
            self._connection = None
            await connection.disconnect(nowait=True)
            if isinstance(error, TimeoutError | OSError):
                raise redis.ConnectionError(str(error)) from error
            raise
        return answers

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect()

    async def enqueue(self, request: Request) -> Admission:
        future: asyncio.Future[Admission] = asyncio.get_running_loop().create_future()
        beside = (
            request.volatile
            and self._payloads is not None
            and self._payloads.put(_project(request.function), request.id, request.payload)
        )
        self._pending.append((request, beside, future))
        if not self._flushing:
            self._flushing = True
            task = asyncio.create_task(self._flush())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _flush(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending, []
                try:
                    answers = await self._calls(
                        [
                            ("enqueue", _enqueue_args(request, self.bounds, beside=beside))
                            for request, beside, _ in batch
                        ]
                    )
                except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the callers who wait
                    for request, beside, future in batch:
                        if beside:
                            # Where Redis took it nevertheless it fails with payload_lost: its caller is told that it
                            # was not taken.
                            self.forget_payload(request.function, request.id)
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (request, beside, future), answer in zip(batch, answers, strict=True):
                    found = answer if isinstance(answer, Exception) else _admission(answer)
                    if beside and (isinstance(found, Exception) or found.status != "ok"):
                        self.forget_payload(request.function, request.id)
                    if future.done():
                        continue
                    if isinstance(found, Exception):
                        future.set_exception(found)
                    else:
                        future.set_result(found)
        finally:
            self._flushing = False

    def forget_payload(self, function: str, id_: str) -> None:
        """An invocation has ended, or was refused: what lies of it beside Redis goes."""
        if self._payloads is not None:
            self._payloads.drop(_project(function), id_)

    async def sweep_payloads(self, older_s: float) -> int:
        """Remove what lies beside Redis of invocations that have ended. How many."""
        if self._payloads is None:
            return 0
        old = list(self._payloads.older(older_s))
        pipe = self.redis.pipeline(transaction=False)
        for project, id_ in old:
            pipe.exists(f"{self.prefix}p:{project}:{id_}")
        waited_for = await pipe.execute() if old else []
        ended = [one for one, held in zip(old, waited_for, strict=True) if not held]
        for project, id_ in ended:
            self._payloads.drop(project, id_)
        return len(ended)

    async def _one(self, name: str, *args: Arg) -> Any:
        answer = (await self._calls([(name, args)]))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask(self, question: Question) -> Gate:
        """Put a question to the gate and, where it has an id, to the leader: :meth:`answer` waits for that one."""
        return _gate(await self._one("ask", *_ask_args(question, self.bounds)))

    async def answer(self, id_: str, wait_s: float) -> bytes | None:
        """What the leader answered (smore/messages/reasons.py: Answer), None where it did not within ``wait_s``."""
        found = await cast(Awaitable[Any], self.redis.blpop([f"{self.prefix}ask:{id_}"], timeout=wait_s))
        return None if found is None else cast(bytes, found[1])

    async def before(self, function: str, id_: str) -> int | None:
        """How many of its function wait with earlier deadlines, None where it does not wait."""
        return cast("int | None", await self.redis.zrank(f"{self.prefix}q:{function}", id_))

    async def cancel(self, project: str, id_: str) -> tuple[str, str]:
        """``("absent", "")``, ``("ended", state)`` or ``("cancelled", state before)``."""
        answer = await self._one("cancel", project, id_, error_result("It was cancelled."), 0)
        return answer[0].decode(), answer[1].decode() if len(answer) > 1 else ""

    async def keep(self, project: str, id_: str) -> str:
        """A synchronous caller has turned asynchronous. Returns the state, '' when unknown."""
        return cast(bytes, await self._one("keep", project, id_)).decode()

    async def record(self, project: str, id_: str) -> Record | None:
        raw = await cast(Awaitable[Any], self.redis.hmget(f"{self.prefix}i:{project}:{id_}", _RECORD_FIELDS))
        return _record(id_, raw)

    async def reply(self, project: str, id_: str) -> Reply | None:
        """The ending of an invocation as it would have been told, None while it has none (or is unknown)."""
        return (await self.replies([(project, id_)]))[0]

    async def replies(self, invocations: Sequence[tuple[str, str]]) -> list[Reply | None]:
        """The same of many (project, id) in one round trip."""
        pipe = self.redis.pipeline(transaction=False)
        # In this order: another client's call may come between the two, and where a result is, the record has ended
        # already.
        for project, id_ in invocations:
            pipe.get(f"{self.prefix}r:{project}:{id_}")
            pipe.hmget(f"{self.prefix}i:{project}:{id_}", _RECORD_FIELDS)
        answers = await pipe.execute()
        found: list[Reply | None] = []
        for (_, id_), blob, raw in zip(invocations, answers[::2], answers[1::2], strict=True):
            record = _record(id_, raw)
            if record is None or blob is None:
                found.append(None)
                continue
            found.append(
                Reply(
                    id=id_,
                    state=record.state,
                    cause=record.cause,
                    attempt=record.attempt,
                    arrival_us=record.arrival_us,
                    claimed_us=record.claimed_us,
                    started_us=record.started_us,
                    finished_us=record.finished_us,
                    gpu=record.gpu,
                    schedule_us=record.schedule_us,
                    result=blob,
                )
            )
        return found
