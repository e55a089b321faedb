"""
Stand-ins for people who test their own functions and policies: no process, no server, no waiting.

* :class:`ManualClock`: time that moves when the test says so.
* :class:`InMemoryQueue`: the priority queue of ``smore/redis/queue.py`` without Redis; :attr:`InMemoryQueue.gateway` is
  the asynchronous door that a gateway uses.
* :class:`InProcessRunner`: loads a :class:`smore.Handler` and runs batches in the process of the test.

Each stand-in keeps the contract of the real part; ``tests/contract`` runs the same tests over both. A function's own test::

    runner = InProcessRunner(MyFunction)
    runner.load()
    assert runner.predict([{"x": 1}]) == [{"y": 2}]
    runner.unload()
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, Literal

import numpy as np

from smore.domain.invocation import TERMINAL, TRANSITIONS, Cause, End, State
from smore.handler import Handler
from smore.messages.results import error_result
from smore.messages.wording import ended_for
from smore.process.settings import QueueSettings
from smore.redis.queue import Claim, RunOutcome, Snapshot, StartedInvocation
from smore.redis.records import InvocationRecord, LeasedInvocation, QueuedInvocation, Reply, reply_of
from smore.redis.scripts import EXPIRED, LATE
from smore.redis.submission import GateAnswer, Submission

_LIMIT: Final = error_result("It was started or dispatched as often as allowed.")
_CANCELLED: Final = error_result("It was cancelled.")


class ManualClock:
    """
    A clock that stands still until it is advanced. Call it for the time in seconds, as ``time.monotonic``.

    It never goes back. Threads in :meth:`wait` wake up when their time has come.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._moved = threading.Condition()

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward. Raises ValueError for a negative number."""
        self.advance_to(self._now + seconds)

    def advance_to(self, moment: float) -> None:
        """Move the time forward to a moment. Raises ValueError for one that has passed."""
        with self._moved:
            if moment < self._now:
                raise ValueError("a clock never goes back")
            self._now = moment
            self._moved.notify_all()

    def wait(self, seconds: float) -> None:
        """Block this thread until other threads have advanced the clock by ``seconds``, as ``time.sleep``."""
        with self._moved:
            until = self._now + seconds
            self._moved.wait_for(lambda: self._now >= until)


# ---- the queue -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Invocation:
    """One accepted request. Times in microseconds, 0 = not yet."""

    request: Submission
    arrival_us: int
    deadline_us: int
    state: State = State.QUEUED
    attempt: int = 0
    starts: int = 0
    dispatches_lost: int = 0
    gpu: str = ""
    alone: bool = False
    claimed_us: int = 0
    started_us: int = 0
    finished_us: int = 0
    schedule_us: int = 0
    lease_end_us: int = 0
    cause: str = ""
    result: bytes = b""
    lost_gpu: str = ""
    lost_us: int = 0

    @property
    def waiting(self) -> QueuedInvocation:
        return QueuedInvocation(
            function=self.request.function,
            revision=self.request.revision,
            id=self.request.id,
            attempt=self.attempt,
            arrival_us=self.arrival_us,
            deadline_us=self.deadline_us,
            rows=self.request.rows,
            shape=self.request.shape,
            alone=self.alone,
            bulk=self.request.bulk,
        )


def _project(function: str) -> str:
    return function.partition("/")[0]


class InMemoryQueue:
    """
    The leader's and the workers' door to a queue in this process: methods, arguments and answers as those of
    ``smore.redis.queue.Queue``.

    Kept: states and attempts, order by deadline, leases, the leader's token, limits of attempts, idempotency keys, the
    bounds on waiting invocations. Left out: limits of projects and bytes, predicted finishes, the event stream. What
    claims send is in :attr:`sent`. Not for several threads.

    ``clock``: epoch seconds. ``bounds``: ``max_pending`` and ``max_lost`` count.
    """

    def __init__(self, clock: Callable[[], float], bounds: QueueSettings | None = None) -> None:
        self._clock = clock
        self._bounds = bounds or QueueSettings()
        self._invocations: dict[tuple[str, str], _Invocation] = {}
        self._idempotent: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._tokens = 0
        self._token, self._token_until_us = "", 0
        #: GPU instance → (when its worker reported last, until when that holds, the report).
        self._reports: dict[str, tuple[int, int, bytes]] = {}
        #: (Celery list, message) of every claim that was carried out, the oldest first.
        self.sent: list[tuple[str, bytes]] = []
        self.gateway = InMemoryGatewayQueue(self)

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _led(self) -> bool:
        return self._now_us() < self._token_until_us

    def _leads(self, token: str) -> bool:
        return token != "" and token == self._token and self._led()

    def _find(self, function: str, id_: str) -> _Invocation | None:
        return self._invocations.get((_project(function), id_))

    def _all(self, *states: State) -> Iterator[_Invocation]:
        return (invocation for invocation in list(self._invocations.values()) if invocation.state in states)

    def _end(self, invocation: _Invocation, state: State, cause: str, result: bytes) -> None:
        invocation.state, invocation.cause, invocation.result = state, cause, result
        invocation.finished_us = self._now_us()

    def _give_back(
        self, invocation: _Invocation, cause: Cause, result: bytes, *, refund: bool = False, alone: bool = False
    ) -> int:
        """1 = it waits again, 0 = a limit made it fail."""
        if invocation.state is State.DISPATCHED:
            invocation.dispatches_lost += not refund
            if invocation.dispatches_lost > self._bounds.max_lost:
                self._end(invocation, State.FAILED, Cause.DISPATCH_LIMIT, result)
                return 0
        elif refund:
            invocation.starts -= 1
        if invocation.starts >= invocation.request.max_attempts:
            final = Cause.ATTEMPT_LIMIT if cause is Cause.WORKER_LOST else cause
            self._end(invocation, State.FAILED, final, result)
            return 0
        invocation.state, invocation.gpu, invocation.alone = State.QUEUED, "", invocation.alone or alone
        invocation.claimed_us = invocation.started_us = invocation.schedule_us = 0
        return 1

    def _mark_lost(self, invocation: _Invocation) -> None:
        """The worker that held it was lost."""
        seen_us, _, _ = self._reports.get(invocation.gpu, (0, 0, b""))
        invocation.lost_gpu, invocation.lost_us = invocation.gpu, seen_us

    # ---- submit ------------------------------------------------------------------------------------------------------

    def enqueue(self, request: Submission) -> GateAnswer:
        """Accept an invocation, or say why not. A repeated call with the same id answers as the first."""
        now_us, project = self._now_us(), _project(request.function)
        accepted = self._invocations.get((project, request.id))
        if accepted is not None:
            return GateAnswer(status="ok", arrival_us=accepted.arrival_us, deadline_us=accepted.deadline_us)
        key = (project, request.idempotency_key)
        if request.idempotency_key and key in self._idempotent:
            known_id, known_hash, known_parts = self._idempotent[key]
            status: Literal["replay", "mismatch"] = "replay" if known_hash == request.request_hash else "mismatch"
            return GateAnswer(status=status, known_id=known_id, known_parts=known_parts)
        if request.led and not self._led():
            return GateAnswer(status="no_leader")
        deadline_us = now_us + request.slo_us if request.slo_us else request.deadline_us
        if deadline_us <= now_us:
            return GateAnswer(status="late", now_us=now_us)
        waiting = [invocation.request.function for invocation in self._all(State.QUEUED)]
        if waiting.count(request.function) >= request.max_pending:
            return GateAnswer(status="full", limit="function", bound=request.max_pending)
        if len(waiting) >= self._bounds.max_pending:
            return GateAnswer(status="full", limit="pending", bound=self._bounds.max_pending)
        self._invocations[project, request.id] = _Invocation(request, now_us, deadline_us)
        if request.idempotency_key:
            self._idempotent[key] = (request.id, request.request_hash, request.request_parts)
        return GateAnswer(status="ok", arrival_us=now_us, deadline_us=deadline_us)

    # ---- the leader --------------------------------------------------------------------------------------------------

    def lead(self, token: str, lease_s: float) -> str:
        """Take (token '') or renew the leader's lease. Returns the token, '' when another leads."""
        now_us = self._now_us()
        if now_us >= self._token_until_us:
            self._tokens += 1
            self._token = str(self._tokens)
        elif token != self._token:
            return ""
        self._token_until_us = now_us + int(lease_s * 1e6)
        return self._token

    def resign(self, token: str) -> None:
        """Give the leader's lease back, if it is still this one's."""
        if self._leads(token):
            self._token_until_us = 0

    def claim(self, token: str, lease_s: float, claims: Sequence[Claim]) -> list[frozenset[str] | None]:
        """Carry out dispatches. For each the ids that were claimed, or None: this leader is fenced off."""
        return [self._claim(lease_s, claim) if self._leads(token) else None for claim in claims]

    def _claim(self, lease_s: float, claim: Claim) -> frozenset[str]:
        now_us = self._now_us()
        claimed, sends = set(), False
        for id_, attempt in claim.attempts:
            invocation = self._find(claim.function, id_)
            if invocation is None:
                continue
            if invocation.state in TRANSITIONS["claim"] and invocation.attempt == attempt:
                invocation.state, invocation.attempt, invocation.gpu = State.DISPATCHED, attempt + 1, claim.gpu
                invocation.claimed_us, invocation.schedule_us = now_us, claim.schedule_us
                if claim.urgent:
                    invocation.request = replace(invocation.request, bulk=False)
                invocation.lease_end_us = now_us + int(lease_s * 1e6)
                claimed.add(id_)
                sends = True
            elif (
                invocation.state in TRANSITIONS["requeue"]
                and invocation.attempt == attempt + 1
                and invocation.gpu == claim.gpu
            ):
                claimed.add(id_)  # the same call again: it answers as it did and sends nothing
        if sends:
            self.sent.append((claim.celery_list, claim.message))
        return frozenset(claimed)

    def settle(self, token: str, endings: Sequence[End]) -> list[bool] | None:
        """End waiting invocations. True where it was still waiting; None: fenced off."""
        if not self._leads(token):
            return None
        ended = []
        for ending in endings:
            invocation = self._find(ending.function, ending.id)
            waits = invocation is not None and invocation.state is State.QUEUED
            if invocation is not None and waits:
                state = TRANSITIONS[ending.action][State.QUEUED]
                self._end(invocation, state, ending.cause, error_result(ended_for(ending)))
            ended.append(waits)
        return ended

    def reap(self, token: str, at_most: int = 500) -> int:
        """Return what ran out of lease. How many, -1 when fenced off."""
        if not self._leads(token):
            return -1
        now_us = self._now_us()
        held = self._all(State.DISPATCHED, State.RUNNING)
        late = sorted((one for one in held if one.lease_end_us <= now_us), key=lambda one: one.lease_end_us)[:at_most]
        for invocation in late:
            _, until_us, _ = self._reports.get(invocation.gpu, (0, 0, b""))
            if until_us <= now_us:
                self._mark_lost(invocation)
            running = invocation.state is State.RUNNING
            self._give_back(invocation, Cause.WORKER_LOST if running else Cause.DISPATCH_LOST, _LIMIT)
        return len(late)

    def snapshot(self) -> Snapshot:
        """What a new leader starts from; inside a function the earliest deadline first."""
        now_us = self._now_us()
        waiting = sorted(
            (invocation.waiting for invocation in self._all(State.QUEUED)),
            key=lambda one: (one.function, one.deadline_us, one.id),
        )
        held = sorted(self._all(State.DISPATCHED, State.RUNNING), key=lambda one: (one.lease_end_us, one.request.id))
        return Snapshot(
            last_event="0-0",
            waiting=waiting,
            held=[
                LeasedInvocation(
                    waiting=one.waiting,
                    state=one.state,
                    gpu=one.gpu,
                    claimed_us=one.claimed_us,
                    started_us=one.started_us,
                )
                for one in held
            ],
            reports=[report for _, until_us, report in self._reports.values() if now_us < until_us],
            paused=frozenset(),
        )

    # ---- a worker ----------------------------------------------------------------------------------------------------

    def start(
        self, function: str, gpu: str, lease_s: float, attempts: Iterable[tuple[str, int]]
    ) -> list[StartedInvocation | None]:
        """Begin a batch; None where an invocation is not this worker's (any more) or its deadline has passed."""
        return [self._start(function, gpu, lease_s, id_, attempt) for id_, attempt in attempts]

    def _start(self, function: str, gpu: str, lease_s: float, id_: str, attempt: int) -> StartedInvocation | None:
        invocation, now_us = self._find(function, id_), self._now_us()
        if (
            invocation is None
            or invocation.state not in TRANSITIONS["start"]
            or (invocation.attempt, invocation.gpu) != (attempt, gpu)
        ):
            return None
        if invocation.deadline_us <= now_us:
            self._end(invocation, State.EXPIRED, Cause.DEADLINE_EXPIRED, EXPIRED)
            return None
        invocation.state, invocation.started_us = State.RUNNING, now_us
        invocation.starts += 1
        invocation.lease_end_us = now_us + int(lease_s * 1e6)
        request = invocation.request
        return StartedInvocation(
            payload=request.payload,
            encoding=request.encoding,
            accept=request.accept,
            rows=request.rows,
            deadline_us=invocation.deadline_us,
            trace=request.trace,
            alone=invocation.alone,
            bulk=request.bulk,
        )

    def finish(
        self,
        function: str,
        meta: str,  # noqa: ARG002 - as the real one
        outcomes: Sequence[RunOutcome],
        *,
        drop_late: bool = False,
    ) -> list[bool]:
        """
        End a batch; False where another attempt owns the invocation or it has ended. ``meta`` is not kept.
        ``drop_late``: what is past its deadline ends as expired, whatever came of it.
        """
        accepted = []
        for outcome in outcomes:
            invocation = self._find(function, outcome.id)
            mine = (
                invocation is not None
                and invocation.state in TRANSITIONS[outcome.action]
                and invocation.attempt == outcome.attempt
            )
            if invocation is not None and mine:
                if drop_late and invocation.deadline_us < self._now_us():
                    self._end(invocation, State.EXPIRED, Cause.DEADLINE_EXPIRED, LATE)
                else:
                    state = TRANSITIONS[outcome.action][invocation.state]
                    self._end(invocation, state, outcome.cause, outcome.result)
            accepted.append(mine)
        return accepted

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
        Give back: 1 queued again, 0 failed by a limit (with ``message`` and ``traceback``), -1 not ours. ``refund``: the
        start does not count.
        """
        answers, result = [], error_result(message, traceback)
        for id_, attempt in attempts:
            invocation = self._find(function, id_)
            if invocation is None or invocation.state not in TRANSITIONS["requeue"] or invocation.attempt != attempt:
                answers.append(-1)
                continue
            answers.append(self._give_back(invocation, cause, result, refund=refund, alone=alone))
        return answers

    def release(self, gpu: str) -> int:
        """Give back what a GPU worker's former self held. How many."""
        held = [invocation for invocation in self._all(State.DISPATCHED, State.RUNNING) if invocation.gpu == gpu]
        for invocation in held:
            self._mark_lost(invocation)
            self._give_back(invocation, Cause.WORKER_LOST, _LIMIT)
        return len(held)

    def report(
        self,
        gpu: str,
        report: bytes,
        *,
        ttl_s: float,
        lease_s: float,
        cursor: str,  # noqa: ARG002 - as the real one
        running: Iterable[tuple[str, str, int]],
    ) -> frozenset[str]:
        """Heartbeat. ``running`` are (function, id, attempt); returns the ids that are not this worker's any more."""
        now_us, lost = self._now_us(), set()
        self._reports[gpu] = (now_us, now_us + int(ttl_s * 1e6), report)
        for function, id_, attempt in running:
            invocation = self._find(function, id_)
            if invocation is not None and (invocation.state, invocation.attempt) == (State.RUNNING, attempt):
                invocation.lease_end_us = now_us + int(lease_s * 1e6)
            else:
                lost.add(id_)
        return frozenset(lost)

    # ---- anybody -----------------------------------------------------------------------------------------------------

    def record(self, project: str, id_: str) -> InvocationRecord | None:
        invocation = self._invocations.get((project, id_))
        if invocation is None:
            return None
        request = invocation.request
        return InvocationRecord(
            id=id_,
            function=request.function,
            revision=request.revision,
            state=invocation.state,
            cause=invocation.cause,
            attempt=invocation.attempt,
            starts=invocation.starts,
            gpu=invocation.gpu,
            arrival_us=invocation.arrival_us,
            deadline_us=invocation.deadline_us,
            claimed_us=invocation.claimed_us,
            started_us=invocation.started_us,
            finished_us=invocation.finished_us,
            rows=request.rows,
            accept=request.accept,
            trace=request.trace,
            schedule_us=invocation.schedule_us,
            gate_us=0,
            lost_gpu=invocation.lost_gpu,
            lost_us=invocation.lost_us,
        )

    def result(self, project: str, id_: str) -> bytes | None:
        """The result of an invocation that has ended, None before."""
        invocation = self._invocations.get((project, id_))
        return invocation.result if invocation is not None and invocation.state in TERMINAL else None

    def cancel(self, project: str, id_: str) -> tuple[str, str]:
        """``("absent", "")``, ``("ended", state)`` or ``("cancelled", state before)``."""
        invocation = self._invocations.get((project, id_))
        if invocation is None:
            return "absent", ""
        before = invocation.state
        if before not in TRANSITIONS["cancel"]:
            return "ended", before.value
        self._end(invocation, State.CANCELLED, Cause.CANCELLED, _CANCELLED)
        return "cancelled", before.value


class InMemoryGatewayQueue:
    """The gateway's door to an :class:`InMemoryQueue`: as ``smore.redis.queue.GatewayQueue``."""

    def __init__(self, queue: InMemoryQueue) -> None:
        self._queue = queue

    async def enqueue(self, request: Submission) -> GateAnswer:
        return self._queue.enqueue(request)

    async def cancel(self, project: str, id_: str) -> tuple[str, str]:
        """``("absent", "")``, ``("ended", state)`` or ``("cancelled", state before)``."""
        return self._queue.cancel(project, id_)

    async def record(self, project: str, id_: str) -> InvocationRecord | None:
        return self._queue.record(project, id_)

    async def reply(self, project: str, id_: str) -> Reply | None:
        """How an invocation ended, None while it has not (or is unknown)."""
        record, result = self._queue.record(project, id_), self._queue.result(project, id_)
        if record is None or result is None:
            return None
        return reply_of(record, result)


# ---- the runner ------------------------------------------------------------------------------------------------------


class RunFailed(Exception):
    """A load or a batch failed. ``cause``: the stable code that callers of the platform would get."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class InProcessRunner:
    """
    Runs a handler in this process as a runner does in its own: one load, batches, one unload.

    Inputs and outputs are those of one invocation each: JSON values, or ``{name: array}`` with a leading axis of rows.
    Rows of several invocations are concatenated for ``predict`` and its outputs are split again. There is no sandbox,
    no limit of memory or of time.
    """

    def __init__(self, handler: type[Handler]) -> None:
        self._class = handler
        self._handler: Handler | None = None
        self._tensors = False

    def load(self, device: str = "cpu") -> None:
        """Make the handler, load it, run its example once. Raises RunFailed."""
        with _failures():
            handler = self._class()
            handler.load(device)
        example = handler.example
        self._tensors = (
            isinstance(example, dict)
            and bool(example)
            and all(isinstance(value, np.ndarray) for value in example.values())
        )
        self._run(handler, [example])
        self._handler = handler

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """
        Run one batch: one output for each input, in their order.

        Raises RunFailed where the handler raises (``handler_error``) or answers something else than
        ``smore/handler.py`` asks for (``bad_output``); the handler stays loaded. Raises RuntimeError where none is
        loaded.
        """
        if self._handler is None:
            raise RuntimeError("no handler is loaded")
        return self._run(self._handler, list(inputs))

    def unload(self) -> None:
        """Let the handler go. Raises RuntimeError where none is loaded."""
        if self._handler is None:
            raise RuntimeError("no handler is loaded")
        handler, self._handler = self._handler, None
        handler.unload()

    def _run(self, handler: Handler, inputs: list[Any]) -> list[Any]:
        return _tensor_batch(handler, inputs) if self._tensors else _json_batch(handler, inputs)


@contextmanager
def _failures() -> Iterator[None]:
    """What user code raises, as RunFailed."""
    try:
        yield
    except MemoryError as error:
        raise RunFailed(Cause.OUT_OF_MEMORY, f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise RunFailed(Cause.HANDLER_ERROR, f"{type(error).__name__}: {error}") from error


def _json_batch(handler: Handler, values: list[Any]) -> list[Any]:
    with _failures():
        outputs = handler.predict(json.loads(json.dumps(values)))
    if not isinstance(outputs, list) or len(outputs) != len(values):
        raise RunFailed(
            Cause.BAD_OUTPUT, f"predict returned {type(outputs).__name__}, a list of {len(values)} is expected"
        )
    try:
        return [json.loads(json.dumps(output)) for output in outputs]
    except (TypeError, ValueError) as error:
        raise RunFailed(Cause.BAD_OUTPUT, f"the output is not JSON: {error}") from error


def _tensor_batch(handler: Handler, parts: list[Mapping[str, Any]]) -> list[Any]:
    counts = [len(next(iter(part.values()))) for part in parts]
    batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    with _failures():
        outputs = handler.predict(batch)
    if not isinstance(outputs, dict) or not outputs:
        raise RunFailed(Cause.BAD_OUTPUT, f"predict returned {type(outputs).__name__}, a dict of arrays is expected")
    rows = sum(counts)
    for name, array in outputs.items():
        shape = np.shape(array)
        if shape[:1] != (rows,):
            raise RunFailed(
                Cause.BAD_OUTPUT, f"the output {name!r} has the shape {list(shape)}, {rows} rows are expected"
            )
    ends = list(accumulate(counts))
    return [
        {name: np.asarray(array)[end - count : end] for name, array in outputs.items()}
        for end, count in zip(ends, counts, strict=True)
    ]
