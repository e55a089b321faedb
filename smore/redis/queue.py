"""
The priority queue in Redis, as the scheduler and the workers use it: functions by priority, inside a function earliest
deadline first, every change one fenced Lua script (smore/redis/scripts.py). Gateways use the same queue through
smore/redis/gateway_queue.py.

Times in Redis are integer microseconds of its own clock. Execution is at least once (a worker may die after user code
ran); results are exactly once (``finish`` compares state and attempt).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import redis

from smore.domain.invocation import Cause, Encoding, End
from smore.messages.results import error_result
from smore.messages.wording import ended_for
from smore.process.settings import QueueSettings
from smore.redis.logs import function_log, log_key
from smore.redis.payloads import Payloads
from smore.redis.records import (
    RECORD_FIELDS,
    InvocationRecord,
    Keys,
    LeasedInvocation,
    QueuedInvocation,
    invocation_record,
    leased_invocation,
    project_of,
    queued_invocation,
)
from smore.redis.scripts import LARGE, LOST, STARTED, TOO_OFTEN, Arg, Call, Scripts, missing, packed
from smore.redis.submission import GateAnswer, Submission, admission, enqueue_call

#: Seconds for which the leader's answer to a question stays in Redis. The leader does not answer an older question.
ANSWER_TTL_S: Final = 5.0

#: Invocations that are cancelled in one round trip.
_PURGED_AT_ONCE: Final = 200

#: The shortest wait that is asked for, seconds: before version 7 Redis cuts off what is below a millisecond, and 0 is a
#: wait without end.
_WAIT_S: Final = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    A dispatch to be carried out: ``attempts`` are (id, its last attempt); ``message`` names attempt + 1 of each.
    ``schedule_us``: how long deciding took; ``urgent``: work of class batch that is standard from now on.
    """

    function: str
    gpu: str
    celery_list: str
    message: bytes
    decision: str
    schedule_us: int
    attempts: Sequence[tuple[str, int]]
    urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedInvocation:
    """An invocation that its worker may run now."""

    payload: bytes
    encoding: Encoding
    accept: Encoding
    rows: int
    deadline_us: int
    trace: str
    alone: bool
    bulk: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a worker ends an attempt."""

    id: str
    attempt: int
    action: Literal["succeed", "fail"]
    cause: Cause
    result: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a new leader starts from; it follows the stream after ``last_event``."""

    last_event: str
    waiting: Sequence[QueuedInvocation]
    held: Sequence[LeasedInvocation]
    reports: Sequence[bytes]
    paused: frozenset[str]


def _claim_call(token: str, lease_s: float, claim: Claim, cursor: str) -> Call:
    return Call(
        "claim",
        {
            "token": token,
            "function": claim.function,
            "gpu": claim.gpu,
            "lease_us": int(lease_s * 1e6),
            "celery_list": claim.celery_list,
            "message": claim.message,
            "decision": claim.decision,
            "schedule_us": claim.schedule_us,
            "cursor": cursor,
            "urgent": int(claim.urgent),
        },
        _attempts(claim.attempts),
    )


def _attempts(attempts: Iterable[tuple[str, int]]) -> list[dict[str, Arg]]:
    return [{"id": id_, "attempt": attempt} for id_, attempt in attempts]


def _start_call(function: str, gpu: str, lease_s: float, attempts: Iterable[tuple[str, int]], how: str) -> Call:
    arguments: dict[str, Arg] = {"function": function, "gpu": gpu, "lease_us": int(lease_s * 1e6), "how": how}
    return Call("start", arguments, _attempts(attempts))


def _claimed(answer: Sequence[bytes]) -> frozenset[str] | None:
    return None if answer[0] == b"fenced" else frozenset(id_.decode() for id_ in answer[2:])


def _reap_call(token: str, at_most: int) -> Call:
    return Call("reap", {"token": token, "at_most": at_most, "result": TOO_OFTEN})


class Queue:
    """
    The queue for the leader and the workers. Thread-safe. Raises redis-py's errors.
    """

    def __init__(self, client: "redis.Redis", prefix: str, bounds: QueueSettings) -> None:
        self.redis = client
        self.prefix = prefix
        self.bounds = bounds
        self._keys = Keys(prefix)
        self._scripts = Scripts(prefix, bounds)
        self._payloads = Payloads(bounds.payloads) if bounds.payloads is not None else None

    def _call(self, script: str, **arguments: Arg) -> Any:
        return self._calls([Call(script, arguments)])[0]

    def _calls(self, calls: Sequence[Call], commands: Sequence[tuple[Arg, ...]] = ()) -> list[Any]:
        """
        Call scripts, and plain commands after them, in one round trip. A server that has lost its scripts (a restart)
        gets them again, and only the calls that failed for that reason are repeated.
        """
        answers = self._exchange([*map(self._scripts.command, calls), *commands])
        if again := missing(answers):
            self._exchange(self._scripts.loading(calls[position].script for position in again))
            for position, answer in zip(again, self._calls([calls[position] for position in again]), strict=True):
                answers[position] = answer
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _exchange(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """
        Commands and their answers, errors of a command among the answers.

        It takes half the CPU of redis-py's pipeline: commands are packed in C, and there are no callbacks. Nothing is
        repeated here, because only the caller knows what is idempotent.
        """
        return self._send(commands)()

    def _send(self, commands: Sequence[tuple[Arg, ...]]) -> Callable[[], list[Any]]:
        """Send commands; what is returned reads their answers, and must be called."""
        pool = self.redis.connection_pool
        connection = pool.get_connection()
        try:
            pieces = [piece for command in commands for piece in packed(command)]
            # One system call for all that is small.
            whole = [b"".join(pieces)] if sum(map(len, pieces)) < LARGE else pieces
            connection.send_packed_command(whole)  # type: ignore[no-untyped-call]
        except BaseException:
            connection.disconnect()  # type: ignore[no-untyped-call]
            pool.release(connection)
            raise

        def read() -> list[Any]:
            answers: list[Any] = []
            try:
                for _ in commands:
                    try:
                        answers.append(connection.read_response())
                    except redis.ResponseError as error:
                        answers.append(error)
                return answers
            except BaseException:
                # The next command must not read answers that were left unread here.
                connection.disconnect()  # type: ignore[no-untyped-call]
                raise
            finally:
                pool.release(connection)

        return read

    def events(self, after: str, wait_s: float = 0.0, at_most: int = 1000) -> list[tuple[str, bytes]]:
        """
        Entries of the event stream behind ``after``: (id, what ``smore.messages.stream.decode`` reads).

        ``wait_s``: the leader waits for a wakeup (lua/common.lua) first, at most so long.
        """
        commands: list[tuple[Arg, ...]] = [("XREAD", "COUNT", at_most, "STREAMS", self._keys.events, after)]
        if wait_s > 0:
            # Redis executes the command behind a blocking one when that has ended: one write and one wake-up here.
            commands.insert(0, ("BLPOP", self._keys.wakeup, max(_WAIT_S, wait_s)))
        answers = self._exchange(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        streams = answers[-1]
        if not streams:
            return []
        entries = next(iter(streams.values())) if isinstance(streams, dict) else streams[0][1]
        return [(entry.decode(), fields[1]) for entry, fields in entries]

    def enqueue(self, submission: Submission) -> GateAnswer:
        return admission(self._calls([enqueue_call([submission], [False], self.bounds)])[0][0])

    def lead(self, token: str, lease_s: float) -> str:
        """Take (token '') or renew the leader's lease. Returns the token, '' when another leads."""
        return cast(bytes, self._call("lead", token=token, lease_ms=int(lease_s * 1000))).decode()

    def resign(self, token: str) -> None:
        """Give the leader's lease back, if it is still this one's."""
        self._call("lead", token=token, lease_ms=0)

    def forget_function(self, function: str) -> None:
        """
        Delete what is left of a function that is gone: its entry for the admission gate, its priority, what was learned
        of it, its log.
        """
        pipe = self.redis.pipeline(transaction=False)
        pipe.delete(log_key(self.prefix, function_log(function)))
        pipe.hdel(self._keys.feasible, function)
        pipe.hdel(self._keys.priorities, function)
        pipe.hdel(self._keys.learned, function)
        pipe.execute()

    def claim(self, token: str, lease_s: float, claims: Sequence[Claim]) -> list[frozenset[str] | None]:
        """Perform dispatches. Returns the claimed ids of each, or None where this leader is fenced."""
        return [
            _claimed(answer) for answer in self._calls([_claim_call(token, lease_s, claim, "") for claim in claims])
        ]

    def claim_one(self, token: str, lease_s: float, claim: Claim, cursor: str) -> tuple[frozenset[str] | None, str]:
        """
        :meth:`claim` of one dispatch, by a leader that has read the stream up to ``cursor``.

        Also returns the leader's next cursor. Where no other entry comes before the one of this dispatch, the cursor is
        behind it, so the leader is not woken by its own entry.
        """
        answer = self._calls([_claim_call(token, lease_s, claim, cursor)])[0]
        return _claimed(answer), answer[1].decode() or cursor if len(answer) > 1 else cursor

    def settle(self, token: str, endings: Sequence[End]) -> list[bool] | None:
        """End waiting invocations. True for each that was still waiting; None where this leader is fenced."""
        items: list[dict[str, Arg]] = [
            {
                "function": ending.function,
                "id": ending.id,
                "action": ending.action,
                "cause": ending.cause.value,
                "result": error_result(ended_for(ending)),
            }
            for ending in endings
        ]
        answer = self._calls([Call("settle", {"token": token}, items)])[0]
        return None if answer and answer[0] == b"fenced" else [value == 1 for value in answer]

    def answer(self, id_: str, answer: bytes) -> None:
        """Send the leader's answer to the gateway that waits for it."""
        key = self._keys.answer(id_)
        pipe = self.redis.pipeline(transaction=True)
        pipe.lpush(key, answer)
        pipe.pexpire(key, int(ANSWER_TTL_S * 1000))
        pipe.execute()

    def start(
        self, function: str, gpu: str, lease_s: float, attempts: Iterable[tuple[str, int]]
    ) -> list[StartedInvocation | None]:
        """
        Begin a batch. None for an invocation that is not this worker's (any more), whose deadline has passed or whose
        payload is lost.
        """
        batch = list(attempts)
        answer = self._calls([_start_call(function, gpu, lease_s, batch, "")])[0][1:]
        started = [self._started(function, id_, item) for (id_, _), item in zip(batch, answer, strict=True)]
        lost = [
            RunOutcome(id=id_, attempt=attempt, action="fail", cause=Cause.PAYLOAD_LOST, result=LOST)
            for (id_, attempt), item, one in zip(batch, answer, started, strict=True)
            if item and one is None
        ]
        if lost:
            self.finish(function, "", lost)
        return started

    def look(self, function: str, gpu: str, attempts: Sequence[tuple[str, int]]) -> list[StartedInvocation | None]:
        """What :meth:`start` could begin; nothing is begun, and what has ended meanwhile is refused then."""
        answer = self._calls([_start_call(function, gpu, 0.0, attempts, "look")])[0][1:]
        return [self._started(function, id_, item) for (id_, _), item in zip(attempts, answer, strict=True)]

    def starting(
        self, function: str, gpu: str, lease_s: float, attempts: Sequence[tuple[str, int]]
    ) -> Callable[[], list[bool]]:
        """
        Begin what :meth:`look` has given. It is sent now; what is returned must be called: it waits for the answer, false
        for an invocation that was not begun.
        """
        call = _start_call(function, gpu, lease_s, attempts, "known")
        read = self._send([self._scripts.command(call)])

        def answer() -> list[bool]:
            (found,) = answers = read()
            if missing(answers):
                found = self._calls([call])[0]
            elif isinstance(found, Exception):
                raise found
            return [bool(item) for item in found[1:]]

        return answer

    def _started(self, function: str, id_: str, item: Sequence[bytes]) -> StartedInvocation | None:
        """An item of the answer of ``start``; None where there is none, or its payload is gone."""
        if not item:
            return None
        values = dict(zip(STARTED, item, strict=True))
        payload = self._payload(function, id_, values["payload"], int(values["payload_bytes"]))
        if payload is None:
            return None
        return StartedInvocation(
            payload=payload,
            encoding=Encoding(values["encoding"].decode()),
            accept=Encoding(values["accept"].decode()),
            rows=int(values["rows"]),
            deadline_us=int(values["deadline_us"]),
            trace=values["trace"].decode(),
            alone=values["alone"] == b"1",
            bulk=values["bulk"] == b"1",
        )

    def _payload(self, function: str, id_: str, in_redis: bytes, size: int) -> bytes | None:
        """The payload from Redis or from the folder beside it; None where it is gone."""
        if in_redis or not size:
            return in_redis
        return self._payloads.get(project_of(function), id_, size) if self._payloads is not None else None

    def finish(
        self, function: str, meta: str, outcomes: Sequence[RunOutcome], *, drop_late: bool = False
    ) -> list[bool]:
        """
        End a batch; False where another attempt owns the invocation or it has ended (cancelled). ``meta``: JSON about
        the execution (smore/messages/results.py: Execution). ``drop_late``: an invocation that is past its deadline ends as
        expired, whatever its result.
        """
        items: list[dict[str, Arg]] = [
            {
                "id": outcome.id,
                "attempt": outcome.attempt,
                "action": outcome.action,
                "cause": outcome.cause.value,
                "result": outcome.result,
            }
            for outcome in outcomes
        ]
        answer = self._calls(
            [Call("finish", {"function": function, "meta": meta, "drop_late": int(drop_late)}, items)]
        )[0]
        return [value == 1 for value in answer]

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
    ) -> list[int]:
        """
        Return invocations to the queue. For each: 1 = queued again, 0 = failed by a limit, with ``message`` and
        ``traceback``, -1 = it is not this worker's. ``refund``: the start is not counted.
        """
        arguments: dict[str, Arg] = {
            "function": function,
            "cause": cause.value,
            "refund": int(refund),
            "alone": int(alone),
            "result": error_result(message, traceback),
        }
        answer = self._calls([Call("requeue", arguments, _attempts(attempts))])[0]
        return [int(value) for value in answer]

    def purge(self, project: str, name: str) -> int:
        """Cancel the waiting invocations of a function; running ones go on. Returns how many."""
        ids = cast("list[bytes]", self.redis.zrange(self._keys.waiting(f"{project}/{name}"), 0, -1))
        result, cancelled = error_result("Its queue was purged."), 0
        for start in range(0, len(ids), _PURGED_AT_ONCE):
            answers = self._calls(
                [
                    Call("cancel", {"project": project, "id": id_, "result": result, "only_waiting": 1})
                    for id_ in ids[start : start + _PURGED_AT_ONCE]
                ]
            )
            cancelled += sum(answer[0] == b"cancelled" for answer in answers)
        return cancelled

    def reap(self, token: str, at_most: int = 500) -> int:
        """Return invocations whose lease has ended to the queue. How many; -1 where this leader is fenced."""
        return int(self._calls([_reap_call(token, at_most)])[0])

    def release(self, gpu: str) -> int:
        """Return the invocations of a GPU worker's former process to the queue. How many."""
        return int(self._call("release", gpu=gpu, result=TOO_OFTEN))

    def sweep(self, at_most: int = 500) -> int:
        """Delete records whose time to live is over. How many."""
        return int(self._call("sweep", at_most=at_most))

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
        """Send a heartbeat. ``running``: (function, id, attempt); returns the ids that are not this worker's any more."""
        arguments: dict[str, Arg] = {
            "gpu": gpu,
            "report": report,
            "ttl_ms": int(ttl_s * 1000),
            "lease_us": int(lease_s * 1e6),
            "cursor": cursor,
        }
        items: list[dict[str, Arg]] = [
            {"function": function, "id": id_, "attempt": attempt} for function, id_, attempt in running
        ]
        answer = self._calls([Call("report", arguments, items)])[0]
        return frozenset(id_.decode() for id_ in answer)

    def snapshot(self) -> Snapshot:
        last, waiting, held, reports, paused = self._call("snapshot")
        return Snapshot(
            last_event=last.decode(),
            waiting=[queued_invocation(raw) for raw in waiting],
            held=[leased_invocation(raw) for raw in held],
            reports=reports,
            paused=frozenset(member.decode() for member in paused),
        )

    def record(self, project: str, id_: str) -> InvocationRecord | None:
        raw = self.redis.hmget(self._keys.invocation(project, id_), RECORD_FIELDS)
        return invocation_record(id_, cast("list[bytes | None]", raw))

    def publish_feasible(self, feasible: Mapping[str, str], priority: Mapping[str, float]) -> None:
        """
        ``feasible``: function → ``stamp:backlog:floor:each:counted`` (µs and a number, lua/common.lua); ``priority``:
        function → P, where it changed.
        """
        self._calls([], self._publishing(feasible, priority))

    def _publishing(self, feasible: Mapping[str, str], priority: Mapping[str, float]) -> list[tuple[Arg, ...]]:
        commands: list[tuple[Arg, ...]] = []
        if feasible:
            commands.append(("HSET", self._keys.feasible, *(text for pair in feasible.items() for text in pair)))
        for function, value in priority.items():
            commands.append(("HSET", self._keys.priorities, function, str(value)))
            commands.append(("ZADD", self._keys.functions, "XX", value, function))
        return commands

    def tick(
        self, token: str, cursor: str, feasible: Mapping[str, str], priority: Mapping[str, float], at_most: int = 500
    ) -> tuple[int, float]:
        """
        The leader's calls of every tick in one round trip: :meth:`reap`, :meth:`sweep`, :meth:`publish_feasible`, and the
        cursor up to which it has read the stream.

        Returns how many invocations returned to the queue (-1 where this leader is fenced), and Redis' clock in epoch
        seconds.
        """
        answers = self._calls(
            [_reap_call(token, at_most), Call("sweep", {"at_most": at_most})],
            [*self._publishing(feasible, priority), ("SET", self._keys.leader_cursor, cursor), ("TIME",)],
        )
        seconds, micros = answers[-1]
        return int(answers[0]), int(seconds) + int(micros) / 1e6
