"""The load of ``lab.bench.overload``: an open loop in a process of its own."""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, cast

import numpy as np
import uvloop
from numpy.typing import NDArray

from lab.bench import load, report

BLOCK_S: Final = 5.0
#: Seconds after the window in which requests under way may be answered.
DRAIN_S: Final = 5.0
#: Seconds after which an idle connection is not used again, because the gateway may be closing it.
STALE_S: Final = 2.0
#: The most connections at a time. A request that needs one more counts as admitted and unanswered.
MOST_CONNECTIONS: Final = 2000
#: The place of the deadline (milliseconds) in a scheduled request, as wide as any deadline, so that the length of the
#: body does not change.
DEADLINE: Final = b"99999999.999"


# ---- the client ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """
    The load of a client: for ``seconds`` it sends ``requests``, one for each function, with equal probability.

    Open loop at ``rate`` per second, or closed loop over ``connections`` without a rate. A ``schedule`` replaces both:
    (seconds from the beginning, index of the request, seconds to the deadline that replaces :data:`DEADLINE`) of each
    request, in order.
    """

    host: str
    port: int
    requests: Sequence[bytes]
    seconds: float
    rate: float | None = None
    connections: int = 1
    seed: int = 0
    schedule: Sequence[tuple[float, int, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """
    The requests of a client, one element each.

    The function, when the request was due (epoch seconds), seconds until its answer (inf without one), its status (0
    without an answer), whether the answer has a Retry-After, and the run time on the GPU instance, seconds (NaN where
    the answer does not say).
    """

    function: NDArray[np.int64]
    due: NDArray[np.float64]
    latency: NDArray[np.float64]
    status: NDArray[np.int64]
    back: NDArray[np.bool_]
    run: NDArray[np.float64]


class _Line(asyncio.Protocol):
    """A connection with at most one request under way."""

    def __init__(self, drive: "_Drive") -> None:
        self._drive = drive
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._number = -1
        self.idle_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def send(self, number: int, request: bytes) -> None:
        assert self._transport is not None
        self._number = number
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        answer = load.read_answer(self._buffer)
        if answer is None or len(self._buffer) < answer.size:
            return
        head = bytes(self._buffer[: self._buffer.find(b"\r\n\r\n")]).lower()
        self._buffer.clear()
        number, self._number = self._number, -1
        self._drive.answered(self, number, answer, head)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._drive.gone(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Drive:
    """One run of a client."""

    def __init__(self, what: Load) -> None:
        self._what = what
        self._rng = np.random.default_rng(what.seed)
        self._function: list[int] = []
        self._due: list[float] = []
        self._latency: list[float] = []
        self._status: list[int] = []
        self._back: list[bool] = []
        self._run: list[float] = []
        self._idle: list[_Line] = []
        self._open = self._under_way = 0
        self._until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> Sent:
        began = time.time()
        self._until = began + self._what.seconds
        if self._what.schedule:
            for at, function, _ in self._what.schedule:
                await self._due_at(began + at, function)
        elif self._what.rate is None:
            await asyncio.gather(
                *(self._send(self._note(time.time(), self._drawn())) for _ in range(self._what.connections))
            )
            await asyncio.sleep(self._until - time.time())
        else:
            due = began + self._rng.exponential(1 / self._what.rate)
            while due < self._until:
                await self._due_at(due, self._drawn())
                due += self._rng.exponential(1 / self._what.rate)
        patient = time.time() + DRAIN_S
        while self._under_way and time.time() < patient:
            await asyncio.sleep(0.02)
        for line in self._idle:
            line.close()
        return Sent(
            function=np.array(self._function, np.int64),
            due=np.array(self._due),
            latency=np.array(self._latency),
            status=np.array(self._status, np.int64),
            back=np.array(self._back, bool),
            run=np.array(self._run),
        )

    async def _due_at(self, due: float, function: int) -> None:
        """Sleep until the request is due, then send it without waiting for earlier answers."""
        await asyncio.sleep(due - time.time())
        task = asyncio.create_task(self._send(self._note(due, function)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _drawn(self) -> int:
        return int(self._rng.integers(len(self._what.requests)))

    def _note(self, due: float, function: int) -> int:
        """Add a request, which is under way from now on; its number."""
        self._under_way += 1
        self._function.append(function)
        self._due.append(due)
        self._latency.append(math.inf)
        self._status.append(0)
        self._back.append(False)
        self._run.append(math.nan)
        return len(self._due) - 1

    async def _send(self, number: int) -> None:
        while self._idle and time.time() - self._idle[-1].idle_at > STALE_S:
            self._idle.pop().close()
        if not self._idle:
            if self._open == MOST_CONNECTIONS:
                return
            self._open += 1
            try:
                _, line = await asyncio.get_running_loop().create_connection(
                    lambda: _Line(self), self._what.host, self._what.port
                )
            except OSError:
                self._open -= 1
                return
            line.idle_at = time.time()
            self._idle.append(line)
        request = self._what.requests[self._function[number]]
        if self._what.schedule:
            request = request.replace(DEADLINE, b"%*.3f" % (len(DEADLINE), 1e3 * self._what.schedule[number][2]))
        self._idle.pop().send(number, request)

    def answered(self, line: _Line, number: int, answer: load.Answer, head: bytes) -> None:
        now = time.time()
        self._under_way -= 1
        self._latency[number], self._status[number] = now - self._due[number], answer.status
        self._back[number] = b"\r\nretry-after:" in head
        _, named, after = head.partition(b"run;dur=")
        if named:
            self._run[number] = float(after.split(b"\r", 1)[0].split(b",", 1)[0]) / 1e3
        line.idle_at = now
        self._idle.append(line)
        if self._what.rate is None and not self._what.schedule:
            # A refused request is repeated after its Retry-After.
            _, _, after = head.partition(b"\r\nretry-after:")
            pause_s = float(after.split(b"\r", 1)[0]) if self._back[number] else 0.0
            asyncio.get_running_loop().call_later(pause_s, self._again)

    def _again(self) -> None:
        """A closed loop's next request."""
        if time.time() < self._until:
            task = asyncio.create_task(self._send(self._note(time.time(), self._drawn())))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def gone(self, line: _Line) -> None:
        self._open -= 1
        if line in self._idle:
            self._idle.remove(line)


def drive(what: Load) -> Sent:
    """
    Send a load from a process of its own, so that its CPU time is not this process's. The requests travel on stdin,
    because they hold keys.
    """
    spec = asdict(what) | {"requests": [request.decode("latin-1") for request in what.requests]}
    done = subprocess.run(
        [sys.executable, "-m", "lab.bench.overload", "--client"],
        cwd=report.ROOT,
        input=json.dumps(spec),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=what.seconds + DRAIN_S + 60,
    )
    columns = json.loads(done.stdout)
    return Sent(
        function=np.array(columns["function"], np.int64),
        due=np.array(columns["due"]),
        status=np.array(columns["status"], np.int64),
        latency=np.array(columns["latency"], float),
        back=np.array(columns["back"], bool),
        run=np.array(columns["run"], float),
    )


def client_main() -> None:
    """``--client``: a :class:`Load` on stdin, a :class:`Sent` on stdout; Python's JSON knows inf and NaN."""
    spec = json.load(sys.stdin)
    spec["requests"] = [request.encode("latin-1") for request in spec["requests"]]
    sent = uvloop.run(_Drive(Load(**spec)).run())
    answer = json.dumps(
        {name: getattr(sent, name).tolist() for name in ("function", "due", "latency", "status", "back", "run")}
    ).encode()
    # print without a buffer (PYTHONUNBUFFERED) loses what one write to a pipe does not take.
    with os.fdopen(os.dup(1), "wb") as out:
        out.write(answer)
