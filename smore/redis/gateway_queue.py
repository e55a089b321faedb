"""
The queue for gateways: submit, ask, cancel, read how an invocation ended. Leader and workers use smore/redis/queue.py.
"""

import asyncio
import logging
import math
import socket
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec
import redis
import redis.asyncio

from smore.domain.ids import made_at
from smore.domain.limits import NO_LIMITS, Limits
from smore.messages.results import error_result
from smore.process.observability import logger
from smore.process.settings import QueueSettings
from smore.redis.payloads import Payloads
from smore.redis.records import RECORD_FIELDS, InvocationRecord, Keys, Reply, invocation_record, project_of, reply_of
from smore.redis.scripts import CHECK, Arg, Call, Scripts, missing, packed
from smore.redis.submission import NEVER_S, GateAnswer, Submission, admission, enqueue_call, gate_arguments, together

log = logger(__name__)

#: Waiting invocations among which the oldest is looked for. With one deadline for all the nearest is the oldest.
LOOKED_AT: Final = 100
#: Bytes that a gateway's connection may hold unsent.
_SEND: Final = 1 << 20
#: Seconds that the commands of one turn and their answers may take.
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    A dry run of an invocation. ``deadline_us``: absolute, or ``slo_us``: from now; exactly one of them is not zero.

    ``id``: of the question, '' = ask the admission gate alone and not the leader. ``size``: bytes of the payload;
    ``limits``: of the project; ``bulk``: it is of class batch.
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
    bulk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionCheck:
    """
    The admission gate's answer to a :class:`Question`. Times in microseconds.

    ``needed_us``: the earliest feasible finish from now, by which the gate admits, 0 = not known; ``promised_us``: the
    same with the cold start, where no instance stands ready: the earliest that a refusal may name; ``floor_us``: what it takes
    on an idle platform, 0 = not known.

    ``full``: the bound of the queue that one more invocation would exceed, '' = none; ``limited``: the project's limit
    that it would exceed, '' = none, ``bound`` its value, ``after_us`` when to try again; ``paused``: '', ``function`` or
    ``platform``. ``leader``: ``asked`` (its answer follows), ``many`` (too many questions in this second), ``alone``
    (there is no leader), ``gate`` (it was not to be asked). ``quarantined``: all GPU instances keep its revision out.
    """

    now_us: int
    deadline_us: int
    needed_us: int
    promised_us: int
    leader: Literal["asked", "many", "alone", "gate"]
    full: str = ""
    paused: Literal["", "function", "platform"] = ""
    limited: str = ""
    bound: float = 0.0
    after_us: int = 0
    floor_us: int = 0
    quarantined: bool = False

    @property
    def feasible(self) -> bool:
        """Whether the gate would accept it by its deadline."""
        return self.deadline_us > self.now_us and self.now_us + self.needed_us <= self.deadline_us

    @property
    def promises(self) -> bool:
        """
        Whether its times hold for an invocation that comes now: not while its function or everything is paused, nor
        while no GPU instance could load it.
        """
        return not self.paused and self.promised_us < NEVER_S * 1e6


def _ask_call(question: Question, bounds: QueueSettings) -> Call:
    return Call(
        "ask",
        {
            "id": question.id,
            "function": question.function,
            "revision": question.revision,
            "rows": question.rows,
            "slo_us": question.slo_us,
            "deadline_us": question.deadline_us,
            "size": question.size,
            "max_asks_per_s": bounds.asks_per_s,
            "bulk": int(question.bulk),
            **gate_arguments(question.max_pending, bounds, question.limits),
        },
    )


def _check(raw: Sequence[bytes]) -> AdmissionCheck:
    values = {name: value.decode() for name, value in zip(CHECK, raw, strict=True) if value}
    return msgspec.convert(values, AdmissionCheck, strict=False)


def _log(submission: Submission, admitted: GateAnswer) -> None:
    """The gate's verdict, with what it went by: milliseconds from the arrival to the earliest finish and to the deadline."""
    now_us = admitted.arrival_us or admitted.now_us
    slo_us = submission.slo_us or submission.deadline_us - now_us
    log.debug(
        "admission",
        id=submission.id,
        function=submission.function,
        verdict=admitted.status,
        deadline_ms=slo_us / 1e3 if now_us or submission.slo_us else None,
        earliest_ms=(admitted.earliest_us - now_us) / 1e3 if admitted.earliest_us else None,
        limit=admitted.limit,
    )


class FunctionQueue(NamedTuple):
    """
    What waits for a function. ``promised_us``: when one more invocation of one row would end at the earliest, from now, 0 =
    not known; ``oldest_at``: since when the oldest of the :data:`LOOKED_AT` with the nearest deadlines waits, epoch
    seconds, None = none waits; ``bulk``: how many are of class batch.
    """

    depth: int
    priority: float
    promised_us: int
    oldest_at: float | None
    bulk: int


class GatewayQueue:
    """
    The queue for an event loop. Submissions that arrive in the same turn of the event loop share one round trip.

    A broken connection is tried again until ``patience_s`` has passed (``enqueue`` is idempotent by id); then
    redis-py's error reaches the caller.
    """

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        prefix: str,
        bounds: QueueSettings,
        patience_s: float = 3.0,
    ) -> None:
        self.redis = client
        self.prefix = prefix
        self.bounds = bounds
        self.patience_s = patience_s
        self._keys = Keys(prefix)
        self._scripts = Scripts(prefix, bounds)
        self._payloads = Payloads(bounds.payloads) if bounds.payloads is not None else None
        #: (the submission, whether its payload is beside Redis, the future of its answer)
        self._pending: list[tuple[Submission, bool, asyncio.Future[GateAnswer]]] = []
        self._flushing = False
        self._connection: redis.asyncio.Connection | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def _calls(self, calls: Sequence[Call]) -> list[Any]:
        """
        All calls in one round trip; errors are among the answers. Callers share one connection and take turns, also while
        it is broken.
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

    async def _calls_once(self, calls: Sequence[Call]) -> list[Any]:
        answers = await self._exchange([self._scripts.command(call) for call in calls])
        if again := missing(answers):
            await self._exchange(self._scripts.loading(calls[position].script for position in again))
            repeated = await self._calls_once([calls[position] for position in again])
            for position, answer in zip(again, repeated, strict=True):
                answers[position] = answer
        return answers

    async def _exchange(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """
        Commands and their answers over a connection of the queue's own.

        It takes half the CPU of redis-py's pipeline: commands are packed in C, and there is no pool.
        """
        if self._connection is None:
            self._connection = cast("redis.asyncio.Connection", self.redis.connection_pool.make_connection())  # type: ignore[no-untyped-call]
            # The timeout below holds for everything; redis-py's own would cost a task for every send.
            self._connection.socket_timeout = None
        connection = self._connection
        answers: list[Any] = []
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if not connection.is_connected:
                    await connection.connect()  # type: ignore[no-untyped-call]
                    # A payload goes out in one turn instead of one for each 200 KiB; redis-py has no public way to its
                    # socket.
                    writer = connection._writer
                    if writer is not None:
                        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND)
                pieces = [piece for command in commands for piece in packed(command)]
                await connection.send_packed_command(pieces, check_health=False)
                for _ in commands:
                    try:
                        answers.append(await connection.read_response(timeout=math.inf))
                    except redis.ResponseError as error:
                        answers.append(error)
        except BaseException as error:
            # The next command must not read answers that were left unread here.
            self._connection = None
            await connection.disconnect(nowait=True)
            if isinstance(error, TimeoutError | OSError):
                raise redis.ConnectionError(str(error)) from error
            raise
        return answers

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect()

    async def enqueue(self, submission: Submission) -> GateAnswer:
        """Submit an invocation. Raises redis-py's errors."""
        future: asyncio.Future[GateAnswer] = asyncio.get_running_loop().create_future()
        beside = (
            submission.volatile
            and self._payloads is not None
            and self._payloads.put(project_of(submission.function), submission.id, submission.payload)
        )
        self._pending.append((submission, beside, future))
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
                    answers = await self._enqueue([submission for submission, *_ in batch], [each[1] for each in batch])
                except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the callers who wait
                    for submission, beside, future in batch:
                        if beside:
                            # Where Redis took it nevertheless, it fails with payload_lost: its caller gets the
                            # error of the connection.
                            self.forget_payload(submission.function, submission.id)
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (submission, beside, future), answer in zip(batch, answers, strict=True):
                    admitted = answer if isinstance(answer, Exception) else admission(answer)
                    if beside and (isinstance(admitted, Exception) or admitted.status != "ok"):
                        self.forget_payload(submission.function, submission.id)
                    if future.done():
                        continue
                    if isinstance(admitted, Exception):
                        future.set_exception(admitted)
                    else:
                        if log.is_enabled_for(logging.DEBUG):
                            _log(submission, admitted)
                        future.set_result(admitted)
        finally:
            self._flushing = False

    async def _enqueue(self, submissions: Sequence[Submission], beside: Sequence[bool]) -> list[Any]:
        """The answer to each submission; the error of its call in place of it."""
        calls = together(submissions)
        answers: list[Any] = [None] * len(submissions)
        of_calls = await self._calls(
            [enqueue_call([submissions[n] for n in call], [beside[n] for n in call], self.bounds) for call in calls]
        )
        for call, answer in zip(calls, of_calls, strict=True):
            for place, position in enumerate(call):
                answers[position] = answer if isinstance(answer, Exception) else answer[place]
        return answers

    def forget_payload(self, function: str, id_: str) -> None:
        """Remove the payload beside Redis of an invocation that has ended or was refused."""
        if self._payloads is not None:
            self._payloads.drop(project_of(function), id_)

    async def sweep_payloads(self, older_s: float) -> int:
        """Remove payloads beside Redis that are older than this and whose invocations have ended. How many."""
        if self._payloads is None:
            return 0
        old = list(self._payloads.older(older_s))
        pipe = self.redis.pipeline(transaction=False)
        for project, id_ in old:
            pipe.exists(self._keys.payload(project, id_))
        needed = await pipe.execute() if old else []
        ended = [invocation for invocation, held in zip(old, needed, strict=True) if not held]
        for project, id_ in ended:
            self._payloads.drop(project, id_)
        return len(ended)

    async def _call(self, script: str, **arguments: Arg) -> Any:
        return await self._answer(Call(script, arguments))

    async def _answer(self, call: Call) -> Any:
        answer = (await self._calls([call]))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask(self, question: Question) -> AdmissionCheck:
        """Ask the admission gate and, where the question has an id, the leader, for whom :meth:`answer` waits."""
        return _check(await self._answer(_ask_call(question, self.bounds)))

    async def answer(self, id_: str, wait_s: float) -> bytes | None:
        """
        The leader's answer (smore/messages/reasons.py: DryRunAnswer); None where there is none within ``wait_s``.
        """
        popped = await cast(Awaitable[Any], self.redis.blpop([self._keys.answer(id_)], timeout=wait_s))
        return None if popped is None else cast(bytes, popped[1])

    async def queues(self, functions: Sequence[str]) -> list[FunctionQueue]:
        """The queues of these functions."""
        call = Call("queues", {"looked_at": LOOKED_AT}, [{"function": function} for function in functions])
        return [
            FunctionQueue(
                depth=depth,
                priority=float(priority),
                promised_us=int(promised_us),
                oldest_at=made_at(oldest.decode()) if oldest else None,
                bulk=int(bulk),
            )
            for depth, priority, promised_us, oldest, bulk in await self._answer(call)
        ]

    async def before(self, function: str, id_: str) -> int | None:
        """How many invocations of its function wait with earlier deadlines; None where it does not wait."""
        return cast("int | None", await self.redis.zrank(self._keys.waiting(function), id_))

    async def cancel(self, project: str, id_: str) -> tuple[str, str]:
        """``("absent", "")``, ``("ended", state)`` or ``("cancelled", state before)``."""
        result = error_result("It was cancelled.")
        answer = await self._call("cancel", project=project, id=id_, result=result, only_waiting=0)
        return answer[0].decode(), answer[1].decode() if len(answer) > 1 else ""

    async def keep(self, project: str, id_: str) -> str:
        """Keep the result although its caller stops waiting. Returns the state, '' where there is no such invocation."""
        return cast(bytes, await self._call("keep", project=project, id=id_)).decode()

    async def record(self, project: str, id_: str) -> InvocationRecord | None:
        raw = await cast(Awaitable[Any], self.redis.hmget(self._keys.invocation(project, id_), RECORD_FIELDS))
        return invocation_record(id_, raw)

    async def reply(self, project: str, id_: str) -> Reply | None:
        """How an invocation ended; None where it has not ended or does not exist."""
        return (await self.replies([(project, id_)]))[0]

    async def replies(self, invocations: Sequence[tuple[str, str]]) -> list[Reply | None]:
        """:meth:`reply` of many (project, id) in one round trip."""
        return [reply for _, reply in await self.states(invocations)]

    async def states(
        self, invocations: Sequence[tuple[str, str]]
    ) -> list[tuple[InvocationRecord | None, Reply | None]]:
        """The record and the reply of each (project, id), None where there is none, in one round trip."""
        pipe = self.redis.pipeline(transaction=False)
        # In this order: other clients' calls may come between the two commands, and where there is a result, the record
        # has already ended.
        for project, id_ in invocations:
            pipe.get(self._keys.result(project, id_))
            pipe.hmget(self._keys.invocation(project, id_), RECORD_FIELDS)
        answers = await pipe.execute()
        states: list[tuple[InvocationRecord | None, Reply | None]] = []
        for (_, id_), result, raw in zip(invocations, answers[::2], answers[1::2], strict=True):
            record = invocation_record(id_, raw)
            states.append((record, None if record is None or result is None else reply_of(record, result)))
        return states
