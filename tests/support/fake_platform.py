"""A leader and a worker in one thread, scripted by a test: they use the real queue, and answer what the test says."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import orjson
import redis

from smore.domain.invocation import Cause, Encoding, End, EndedFor
from smore.messages.reports import Report, encode_report
from smore.messages.results import Result, encode_result
from smore.messages.stream import Asked, decode
from smore.redis.queue import Claim, Queue, RunOutcome, StartedInvocation
from smore.redis.records import QueuedInvocation

GPU = "test0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    cause: Cause
    message: str
    field: str = ""


#: What to do with what a function was sent: the result, or how it failed.
Handler = Callable[[StartedInvocation], Result | Failure]


def echo(begun: StartedInvocation) -> Result:
    """JSON for JSON, raw for raw; a canary succeeds."""
    if begun.encoding is Encoding.CANARY:
        return Result(
            form="json",
            body=orjson.dumps({"inputs": None, "outputs": None, "load_ms": 10.0, "run_ms": 1.0, "memory_mib": 50.0}),
        )
    if begun.encoding is Encoding.RAW:
        length = int.from_bytes(begun.payload[:2], "big")
        return Result(
            form="raw", shapes=begun.payload[2 : 2 + length].decode(), body=begun.payload[2 + length :], run_us=1500
        )
    return Result(form="json", body=begun.payload, run_us=1500)


class FakePlatform:
    """
    Serves every arrival in order. ``handlers`` by function key, else :func:`echo`; nothing of a function in ``held`` is
    claimed.
    """

    def __init__(self, client: "redis.Redis", queue: Queue) -> None:
        self._redis = client
        self._queue = queue
        self.handlers: dict[str, Handler] = {}
        self.held: set[str] = set()
        #: Functions whose invocations the leader rejects.
        self.rejected: set[str] = set()
        #: The reasons that stand with every dispatch, JSON.
        self.decision = "{}"
        #: What every question gets for an answer, None = nothing.
        self.answer: bytes | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.error: BaseException | None = None

    def __enter__(self) -> "FakePlatform":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _serve(self) -> None:
        try:
            token = ""
            reported_at = 0.0
            cursor = "0-0"
            while not self._stop.is_set():
                try:
                    token = self._queue.lead(token, 2.0)
                    if time.monotonic() - reported_at > 0.5:
                        reported_at = time.monotonic()
                        self._queue.report(GPU, encode_report(report()), ttl_s=3, lease_s=2, cursor="", running=[])
                    cursor = self._answer(cursor)
                    waiting = [one for one in self._queue.snapshot().waiting if one.function not in self.held]
                except redis.ConnectionError:
                    continue  # a test has broken it while nothing ran
                for one in waiting:
                    self._run(token, one)
                if not waiting:
                    self._stop.wait(0.02)
        except BaseException as error:  # noqa: BLE001 - the test is to fail with it
            self.error = error

    def _answer(self, cursor: str) -> str:
        """Answer what was asked since the entry ``cursor`` of the stream; the entry to go on from."""
        if self.answer is None:
            return cursor
        entries = self._queue.events(cursor)
        for _, raw in entries:
            asked = decode(raw)
            if isinstance(asked, Asked):
                self._queue.answer(asked.id, self.answer)
        return entries[-1][0] if entries else cursor

    def _run(self, token: str, one: QueuedInvocation) -> None:
        if one.function in self.rejected:
            self._queue.settle(
                token,
                [
                    End(
                        function=one.function,
                        id=one.id,
                        action="reject",
                        cause=Cause.INFEASIBLE,
                        why=EndedFor.NO_DEVICE_HOLDS_IT,
                    )
                ],
            )
            return
        claim = Claim(
            function=one.function,
            gpu=GPU,
            celery_list=f"{self._queue.prefix}test",
            message=b"m",
            decision=self.decision,
            schedule_us=7,
            attempts=[(one.id, one.attempt)],
        )
        self._queue.claim(token, 5.0, [claim])
        (begun,) = self._queue.start(one.function, GPU, 5.0, [(one.id, one.attempt + 1)])
        if begun is None:
            return
        result = self.handlers.get(one.function, echo)(begun)
        if isinstance(result, Failure):
            outcome = RunOutcome(
                id=one.id,
                attempt=one.attempt + 1,
                action="fail",
                cause=result.cause,
                result=encode_result(Result(form="error", message=result.message, field=result.field)),
            )
        else:
            outcome = RunOutcome(
                id=one.id, attempt=one.attempt + 1, action="succeed", cause=Cause.OK, result=encode_result(result)
            )
        self._queue.finish(one.function, "{}", [outcome])


def report() -> Report:
    return Report(
        gpu=GPU,
        boot="b",
        at=time.time(),
        kind="cpu",
        device="0",
        sharing_mode="time-slice",
        slots=8,
        memory_total_mib=2048,
        memory_used_mib=64,
        utilisation=0.5,
        utilisation_counter="cpu",
        function_utilisation=0.1,
        running=0,
    )
