"""
A load generator for HTTP servers with little overhead, in closed or in open loop.

HTTP/1.1 on keep-alive connections, one request in flight on each, request bytes built beforehand. Two modes:

* **closed loop**: every connection sends its next request when the last is answered. Latency runs from the send.
* **open loop** (``rate``): requests are due at seeded Poisson instants whatever the server does and wait for a free
  connection where none is. Latency runs from the instant a request was due, so the time that a request waits for a
  stalled server counts.

After the window nothing more is sent. A request in flight that is not answered within ``DRAIN_S`` counts as bad.

``python -m lab.bench.load URL`` runs in a process of its own, so that the generator's CPU is not the server's, and ends
stdout with one line of JSON. ``run_apart`` does that from Python.
"""

import argparse
import asyncio
import json
import math
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast
from urllib.parse import urlsplit

import numpy as np
import uvloop
from numpy.typing import NDArray

from lab.bench import report

#: Seconds that requests in flight at the end of the window have left to be answered.
DRAIN_S = 10.0
#: Seconds before a refused connection is tried again: a dead server must not turn the generator into a busy loop.
RECONNECT_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """
    The answers within the window. Latencies are in milliseconds, of good answers only, because refusals are fast.

    ``rps``: good answers per second. ``done``: good (2xx) answers. ``bad``: other answers, broken connections, answers
    that cannot be read, requests never answered. ``statuses``: all readable answers by status. ``answers``: all
    readable answers from the first request of the warm-up to the end of the drain: what to divide the server's CPU over
    the whole run by. Percentiles are NaN without a good answer.
    """

    rps: float
    p50_ms: float
    p99_ms: float
    mean_ms: float
    done: int
    bad: int
    statuses: Mapping[int, int]
    answers: int


def request_bytes(
    *, host: str, path: str, body: bytes = b"", method: str = "POST", headers: Mapping[str, str] | None = None
) -> bytes:
    """One HTTP/1.1 request, ready to send."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    if body:
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Unreadable(Exception):
    """An answer that this generator does not read (chunked, without a length, not HTTP)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    The head of one answer: its status, the bytes it takes in all, whether the server closes the connection after it.
    """

    status: int
    size: int
    closes: bool


def read_answer(data: bytes | bytearray) -> Answer | None:
    """
    The answer that ``data`` begins with; None while its head is incomplete. ``Unreadable`` when no length frames it.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if not b"HTTP/1.1 ".startswith(data[:9]):
            raise Unreadable
        return None
    if data[:9] != b"HTTP/1.1 " or not data[9:12].isdigit():
        raise Unreadable
    status = int(data[9:12])
    head = bytes(data[9:end]).lower() + b"\r\n"
    closes = b"\r\nconnection: close\r\n" in head
    if status in (204, 304) or 100 <= status < 200:
        return Answer(status=status, size=end + 4, closes=closes)
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        raise Unreadable  # chunked, or ended by closing: nothing that SMore or its peer sends
    length = head[at + 17 : head.index(b"\r\n", at + 17)].strip()
    if not length.isdigit():
        raise Unreadable
    return Answer(status=status, size=end + 4 + int(length), closes=closes)


class _Latencies:
    """Seconds, in an array that is allocated before the load begins and doubles when it is full."""

    def __init__(self) -> None:
        self._values = np.empty(1 << 18, dtype=np.float64)
        self._used = 0

    def add(self, seconds: float) -> None:
        if self._used == len(self._values):
            self._values = np.concatenate((self._values, np.empty_like(self._values)))
        self._values[self._used] = seconds
        self._used += 1

    def ms(self) -> NDArray[np.float64]:
        return self._values[: self._used] * 1e3


class _Connection(asyncio.Protocol):
    """
    One TCP connection with at most one request in flight.

    A lost one is replaced by a new object, so that a late callback of the old transport cannot touch the new one.
    """

    def __init__(self, load: "_Load", slot: int) -> None:
        self._load = load
        self.slot = slot
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        #: When the request in flight was due (closed loop: sent), ``perf_counter`` seconds; None = none in flight.
        self.due: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._load.ready(self)

    def send(self, request: bytes, due: float) -> None:
        assert self._transport is not None
        self.due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        try:
            answer = read_answer(buffer)
            while answer is not None and answer.status < 200:
                buffer = buffer[answer.size :]
                answer = read_answer(buffer)
            # A byte that no request asked for means that answers and requests no longer belong together.
            if self.due is None or (answer is not None and len(buffer) > answer.size):
                raise Unreadable
        except Unreadable:
            self._drop()
            return
        if answer is None or len(buffer) < answer.size:
            if buffer is not self._buffer:
                self._buffer = bytearray(buffer)
            return
        if self._buffer:
            self._buffer = bytearray()
        due, self.due = self.due, None
        self._load.answered(answer.status, due)
        if answer.closes:
            self._drop()
        else:
            self._load.ready(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._drop()

    def _drop(self) -> None:
        if self._transport is not None:
            self.close()
            self._load.lost(self)

    def close(self) -> None:
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()


class _Load:
    """The state of one run."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        requests: Sequence[bytes],
        connections: int,
        seconds: float,
        warmup_s: float,
        rate: float | None,
        seed: int,
    ) -> None:
        if not requests or connections < 1 or seconds <= 0 or warmup_s < 0 or (rate is not None and rate <= 0):
            raise ValueError("a load needs requests, connections, a window and, in open loop, a rate above zero")
        self._host = host
        self._port = port
        self._requests = requests
        self._seconds = seconds
        self._warmup_s = warmup_s
        self._rate = rate
        self._seed = seed
        # Every connection cycles through the requests and begins at another one, so that they do not move in step.
        self._next = list(range(connections))
        self._live: dict[int, _Connection] = {}
        self._idle: dict[int, _Connection] = {}
        self._backlog: deque[float] = deque()
        self._in_flight = 0
        self._started = self._closing = self._finished = False
        self._quiet = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # The window, ``perf_counter`` seconds; unreachable until the load starts.
        self._begin = self._end = float("inf")
        self._latencies = _Latencies()
        self._statuses: Counter[int] = Counter()
        self._bad = self._answers = 0

    async def run(self) -> LoadResult:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(self._open(slot) for slot in range(len(self._next))))
        begin = time.perf_counter()
        self._begin, self._end = begin + self._warmup_s, begin + self._warmup_s + self._seconds
        self._started = True
        waiting, self._idle = self._idle, {}
        for connection in waiting.values():
            self.ready(connection)
        stop = threading.Event()
        pacer = None
        if self._rate is not None:
            pacer = threading.Thread(
                target=self._pace, args=(loop, begin, self._rate, stop), name="bench-pacer", daemon=True
            )
            pacer.start()
        try:
            await asyncio.sleep(self._end - time.perf_counter())
        except BaseException:
            stop.set()
            raise
        finally:
            # The pacer may be late with requests that were due before the window's end; they count.
            if pacer is not None:
                pacer.join()
        # One turn of the loop takes in what the pacer handed over last.
        await asyncio.sleep(0)
        self._closing = True
        self._check_quiet()
        try:
            await asyncio.wait_for(self._quiet.wait(), DRAIN_S)
        except TimeoutError:
            unanswered = [connection.due for connection in self._live.values() if connection.due is not None]
            for due in (*unanswered, *self._backlog):
                self._count_broken(due)
        self._finished = True
        for task in self._tasks:
            task.cancel()
        for connection in self._live.values():
            connection.close()
        return self._result()

    def _pace(self, loop: asyncio.AbstractEventLoop, begin: float, rate: float, stop: threading.Event) -> None:
        """
        Hand over each request when it is due. A thread, because the loop's own timers are no finer than a millisecond.
        """
        rng = np.random.default_rng(self._seed)
        due = begin
        while not stop.is_set():
            due += float(rng.exponential(1 / rate))
            if due >= self._end:
                return
            delay = due - time.perf_counter()
            if delay <= 0 or not stop.wait(delay):
                loop.call_soon_threadsafe(self._arrive, due)

    def _arrive(self, due: float) -> None:
        if self._idle:
            self._send(self._idle.popitem()[1], due)
        else:
            self._backlog.append(due)

    def _send(self, connection: _Connection, due: float) -> None:
        self._in_flight += 1
        turn = self._next[connection.slot]
        self._next[connection.slot] = turn + 1
        connection.send(self._requests[turn % len(self._requests)], due)

    def ready(self, connection: _Connection) -> None:
        """A connection is open and free."""
        self._live[connection.slot] = connection
        if self._backlog:
            self._send(connection, self._backlog.popleft())
        elif self._started and self._rate is None and (now := time.perf_counter()) < self._end:
            self._send(connection, now)
        else:
            self._idle[connection.slot] = connection
            self._check_quiet()

    def answered(self, status: int, due: float) -> None:
        now = time.perf_counter()
        self._in_flight -= 1
        self._answers += 1
        at = now if self._rate is None else due
        if self._begin <= at < self._end:
            self._statuses[status] += 1
            if 200 <= status < 300:
                self._latencies.add(now - due)
            else:
                self._bad += 1

    def lost(self, connection: _Connection) -> None:
        """A connection is gone; a request that was in flight on it is bad. Another takes its place."""
        self._live.pop(connection.slot, None)
        self._idle.pop(connection.slot, None)
        if connection.due is not None:
            self._in_flight -= 1
            self._count_broken(connection.due)
            connection.due = None
        self._reopen(connection.slot)
        self._check_quiet()

    def _count_broken(self, due: float) -> None:
        """
        A request without an answer. In closed loop those in flight at the window's end count too: they began in it.
        """
        if (time.perf_counter() if self._rate is None else due) >= self._begin:
            self._bad += 1

    def _check_quiet(self) -> None:
        if self._closing and not self._in_flight and not self._backlog:
            self._quiet.set()

    def _reopen(self, slot: int) -> None:
        if not self._finished and (not self._closing or self._backlog):
            task = asyncio.get_running_loop().create_task(self._open(slot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self, slot: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Connection(self, slot), self._host, self._port)
        except OSError:
            # In closed loop it stands for the request that could not be sent; in open loop that one is in the backlog
            # and counts there.
            if self._rate is None and not self._closing and time.perf_counter() >= self._begin:
                self._bad += 1
            loop.call_later(RECONNECT_S, self._reopen, slot)

    def _result(self) -> LoadResult:
        ms = self._latencies.ms()
        p50, p99 = np.percentile(ms, (50, 99)) if len(ms) else (np.nan, np.nan)
        return LoadResult(
            rps=len(ms) / self._seconds,
            p50_ms=float(p50),
            p99_ms=float(p99),
            mean_ms=float(ms.mean()) if len(ms) else float("nan"),
            done=len(ms),
            bad=self._bad,
            statuses=dict(self._statuses),
            answers=self._answers,
        )


async def generate(
    host: str,
    port: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    warmup_s: float = 1.0,
    *,
    rate: float | None = None,
    seed: int = 0,
) -> LoadResult:
    """
    Load a server from the running event loop; see the module's docstring.

    ``requests``: cycled on each connection. ``seconds``: the window, after ``warmup_s``. ``rate``: requests per second
    in open loop, None = closed loop. ``seed``: of the open loop's arrivals.
    """
    load = _Load(
        host=host,
        port=port,
        requests=requests,
        connections=connections,
        seconds=seconds,
        warmup_s=warmup_s,
        rate=rate,
        seed=seed,
    )
    return await load.run()


def run(
    host: str,
    port: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    warmup_s: float = 1.0,
    *,
    rate: float | None = None,
    seed: int = 0,
) -> LoadResult:
    """``generate`` on a uvloop of its own, in this process."""
    return uvloop.run(generate(host, port, requests, connections, seconds, warmup_s, rate=rate, seed=seed))


def run_apart(
    host: str,
    port: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    warmup_s: float = 1.0,
    *,
    rate: float | None = None,
    seed: int = 0,
) -> LoadResult:
    """
    ``run`` in a process of its own. The requests travel on stdin, because they hold keys and a command line can be read
    by every user.
    """
    spec = {
        "host": host,
        "port": port,
        "requests": [request.decode("latin-1") for request in requests],
        "connections": connections,
        "seconds": seconds,
        "warmup_s": warmup_s,
        "rate": rate,
        "seed": seed,
    }
    finished = subprocess.run(
        [sys.executable, "-m", "lab.bench.load", "-"],
        cwd=report.ROOT,
        input=json.dumps(spec),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=warmup_s + seconds + DRAIN_S + 60,
    )
    fields = json.loads(finished.stdout)
    fields["statuses"] = {int(status): count for status, count in fields["statuses"].items()}
    return LoadResult(**fields)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.load", description="Load an HTTP server; see the module's docstring."
    )
    parser.add_argument(
        "url", help="http://host:port/path, or - for a whole specification as JSON on stdin (see run_apart)"
    )
    parser.add_argument("--body", default="", help="request body (makes it a POST)")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE")
    parser.add_argument("-c", "--connections", type=int, default=16)
    parser.add_argument("-s", "--seconds", type=float, default=2.0, help="length of the window")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds of load before the window")
    parser.add_argument("--rate", type=float, help="requests per second in open loop (default: closed loop)")
    parser.add_argument("--seed", type=int, default=0, help="of the open loop's arrivals")
    options = parser.parse_args(arguments)
    if options.url == "-":
        spec = json.load(sys.stdin)
        spec["requests"] = [request.encode("latin-1") for request in spec["requests"]]
        print(json.dumps(asdict(run(**spec))))
        return
    url = urlsplit(options.url)
    if url.scheme != "http" or url.hostname is None:
        parser.error("the URL must begin with http:// and name a host")
    request = request_bytes(
        host=url.netloc,
        path=(url.path or "/") + (f"?{url.query}" if url.query else ""),
        body=options.body.encode(),
        method="POST" if options.body else "GET",
        headers={
            name.strip(): value.strip() for name, _, value in (header.partition(":") for header in options.header)
        },
    )
    result = run(
        url.hostname,
        url.port or 80,
        [request],
        options.connections,
        options.seconds,
        options.warmup,
        rate=options.rate,
        seed=options.seed,
    )
    fields = asdict(result)
    statuses = fields.pop("statuses")
    # NaN = no good answer, and report.emit takes gaps only as gaps.
    report.emit("load", {name: value for name, value in fields.items() if math.isfinite(value)}, statuses=statuses)


if __name__ == "__main__":
    main()
