"""
Hostile connections: ``python -m lab.bench.connections --idle 10000 --json``.

On a throw-away platform, over plain sockets: connections opened and left, by many senders and by one, heads and bodies
that come a byte at a time, connections that are cut, and bodies of a GiB. During each attack ordinary
invocations are made one after the other, and the gateway's memory (PSS) is read. The figures say for each attack how
many ordinary invocations were answered 200 and how many not, the median and the slowest of them in milliseconds, and
the largest growth of the gateway in MiB.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import psutil

from lab.bench import fuzz
from lab.bench.servers import pid_of
from smore_client import Client

GIB: Final = 1 << 30
#: Sent at a time of a large body.
_PIECE: Final = bytes(256 << 10)
#: Seconds that an attacker waits for the gateway.
PATIENCE_S: Final = 60.0
#: Senders that together may have more connections than there may be, and one alone; ordinary callers are none of them.
MANY: Final = tuple(f"127.0.0.{number}" for number in range(2, 18))
ALONE: Final = "127.0.0.18"
#: A new connection is asked for again after that where the gateway's queue of them is full.
_AGAIN_S: Final = 0.05


@dataclass(slots=True)
class Others:
    """Ordinary calls during an attack: milliseconds of each answer 200, and the number of calls without one."""

    ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Gate:
    """One gateway: where it listens, and a key for its ordinary callers and its attackers."""

    host: str
    port: int
    key: str

    @classmethod
    def at(cls, url: str, key: str) -> "Gate":
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 80, key)

    async def connect(self, source: str | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """``source``: the address that it comes from."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await asyncio.open_connection(
                    self.host, self.port, local_addr=(source, 0) if source is not None else None
                )
            except (ConnectionError, TimeoutError):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_AGAIN_S)

    def head(self, path: str, *lines: str, method: str = "POST") -> bytes:
        """A request's head with the key; ``lines``: further headers."""
        given = (f"Host: {self.host}", f"Authorization: Bearer {self.key}", *lines)
        return f"{method} {path} HTTP/1.1\r\n{''.join(f'{line}' + chr(13) + chr(10) for line in given)}\r\n".encode()

    async def say(self, request: bytes) -> bytes:
        """What is answered on a connection of its own until the gateway closes it."""
        reader, writer = await self.connect()
        answer = b""
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(request)
                await writer.drain()
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    while piece := await reader.read(65536):
                        answer += piece
        finally:
            writer.close()
        return answer

    async def pour(self, path: str, size: int, *, chunked: bool = False, method: str = "POST") -> tuple[int, bytes]:
        """Send a body of ``size`` bytes until the gateway has answered: (bytes that it took, the answer)."""
        reader, writer = await self.connect()
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        writer.write(self.head(path, "Content-Type: application/json", length, method=method))
        piece = b"%x\r\n%b\r\n" % (len(_PIECE), _PIECE) if chunked else _PIECE
        answer, sent = asyncio.ensure_future(reader.read()), 0
        try:
            with contextlib.suppress(ConnectionError):
                while sent < size and not answer.done():
                    writer.write(piece)
                    await writer.drain()
                    sent += len(_PIECE)
            async with asyncio.timeout(PATIENCE_S):
                return sent, await answer
        finally:
            answer.cancel()
            writer.transport.abort()

    @asynccontextmanager
    async def others(self, every_s: float = 0.05) -> AsyncIterator[Others]:
        """Ordinary invocations, each on a new connection, one after the other inside the ``with`` block."""
        calls_made, ends = Others(), asyncio.Event()

        async def call() -> None:
            url = f"http://{self.host}:{self.port}/v1/functions/{fuzz.ECHO}/invocations"
            while not ends.is_set():
                began = time.perf_counter()
                try:
                    async with httpx.AsyncClient(timeout=30, headers={"Authorization": f"Bearer {self.key}"}) as client:
                        # Their deadline is long: what is tried is the gateway, on a machine that others may use too.
                        answer = await client.post(url, json={"input": 1, "deadline_ms": 20_000})
                    calls_made.ms.append((time.perf_counter() - began) * 1e3)
                    if answer.status_code != 200:
                        calls_made.wrong.append(f"{answer.status_code}: {answer.text[:200]}")
                except httpx.HTTPError as error:
                    calls_made.wrong.append(repr(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(every_s):
                        await ends.wait()

        calls = asyncio.create_task(call())
        try:
            yield calls_made
        finally:
            ends.set()
            await calls


# ---- attacks ---------------------------------------------------------------------------------------------------------


async def leave_open(gate: Gate, count: int, senders: Sequence[str] = MANY) -> list[asyncio.StreamWriter]:
    """
    Connections that have had one answer each and stay, as clients with a pool leave them, from ``senders`` by turns.
    The gateway may have closed some.
    """

    async def one(number: int) -> asyncio.StreamWriter:
        reader, writer = await gate.connect(senders[number % len(senders)])
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.read(1024)
        return writer

    writers: list[asyncio.StreamWriter] = []
    for first in range(0, count, 100):
        writers += await asyncio.gather(*(one(first + number) for number in range(min(100, count - first))))
    return writers


async def trickle(
    gate: Gate, count: int, start: bytes, *, every_s: float = 0.2, source: str | None = None
) -> list[bytes]:
    """Connections that send ``start`` and then a byte at a time until the gateway has enough: what it said to each."""

    async def one() -> bytes:
        reader, writer = await gate.connect(source)
        answer = asyncio.ensure_future(reader.read(65536))
        try:
            writer.write(start)
            with contextlib.suppress(ConnectionError):
                while not answer.done():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.wait([answer], timeout=every_s)
            try:
                return await answer
            except ConnectionError:
                return b""
        finally:
            writer.transport.abort()

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def cut(gate: Gate, count: int, pieces: Sequence[bytes]) -> None:
    """Connections that send one of ``pieces`` each, by turns, and are reset."""
    for number in range(count):
        _, writer = await gate.connect()
        writer.write(pieces[number % len(pieces)])
        await asyncio.sleep(0)
        writer.transport.abort()


# ---- the figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    attack: str
    seconds: float
    answered: int
    unanswered: int
    p50_ms: float
    slowest_ms: float
    grown_mib: float
    said: str


async def measured(gate: Gate, pid: int, name: str, attack: Callable[[], Awaitable[str]]) -> Figures:
    """One attack, beside ordinary callers."""
    gateway = psutil.Process(pid)
    before = most = gateway.memory_full_info().pss
    ends = asyncio.Event()

    async def watch() -> None:
        nonlocal most
        while not ends.is_set():
            most = max(most, gateway.memory_full_info().pss)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await ends.wait()

    watching, began = asyncio.create_task(watch()), time.monotonic()
    async with gate.others() as others:
        outcome = await attack()
    ends.set()
    await watching
    return Figures(
        attack=name,
        seconds=round(time.monotonic() - began, 1),
        answered=len(others.ms),
        unanswered=len(others.wrong),
        p50_ms=round(statistics.median(others.ms), 1) if others.ms else 0.0,
        slowest_ms=round(max(others.ms, default=0.0), 1),
        grown_mib=round((most - before) / 2**20, 1),
        said=outcome,
    )


async def run(gate: Gate, pid: int, idle: int, slow: int) -> list[Figures]:
    invoke = f"/v1/functions/{fuzz.ECHO}/invocations"

    async def left_open() -> str:
        writers = await leave_open(gate, idle)
        kept = len(psutil.Process(pid).net_connections("tcp"))
        for writer in writers:
            writer.transport.abort()
        return f"{kept} of {idle} were open at the end"

    async def one_sender() -> str:
        writers = await leave_open(gate, idle, (ALONE,))
        kept = sum(
            connection.raddr.ip == ALONE
            for connection in psutil.Process(pid).net_connections("tcp")
            if connection.raddr
        )
        for writer in writers:
            writer.transport.abort()
        at_work = await trickle(
            gate, idle // 8, gate.head(invoke, "Content-Length: 1000000"), every_s=1.0, source=ALONE
        )
        return f"{kept} of {idle} were open at the end, at work: {_counted(at_work)}"

    async def slow_heads() -> str:
        return _counted(await trickle(gate, slow, b"POST /v1/keys HTTP/1.1\r\nx: "))

    async def slow_bodies() -> str:
        return _counted(await trickle(gate, slow, gate.head(invoke, "Content-Length: 1000000")))

    async def cut_off() -> str:
        body = b'{"input": 1}'
        head = gate.head(invoke, f"Content-Length: {len(body)}")
        await cut(gate, slow, [head[:20], head + body[:3], head + body])
        return f"{slow} cut"

    async def large() -> str:
        outcomes = []
        for path in (invoke, f"/v2/models/{fuzz.TENSORS}/infer", "/v1/keys"):
            for chunked in (False, True):
                sent, answer = await gate.pour(path, GIB, chunked=chunked)
                outcomes.append(f"{answer[9:12].decode()} after {sent / 2**20:.1f} MiB")
        return ", ".join(outcomes)

    attacks = {
        "left open": left_open,
        "one sender": one_sender,
        "slow heads": slow_heads,
        "slow bodies": slow_bodies,
        "cut off": cut_off,
        "1 GiB": large,
    }
    return [await measured(gate, pid, name, attack) for name, attack in attacks.items()]


def _counted(answers: Sequence[bytes]) -> str:
    statuses = [answer[9:12].decode() or "closed" for answer in answers]
    return ", ".join(f"{statuses.count(status)} x {status}" for status in sorted(set(statuses)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.connections", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--idle", type=int, default=10_000, help="connections that are opened and left")
    parser.add_argument("--slow", type=int, default=1000, help="connections of each other kind")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with (
        tempfile.TemporaryDirectory() as folder,
        fuzz.platform(Path(folder)) as (end, key),
        Client(end.gateway_url, key) as client,
    ):
        fuzz.deploy(client)
        pid = pid_of(Path(folder), "gateway")
        assert pid is not None
        outcomes = asyncio.run(run(Gate.at(end.gateway_url, key), pid, wanted.idle, wanted.slow))
    print(json.dumps([asdict(outcome) for outcome in outcomes], indent=None if wanted.json else 2))
    return 0 if not any(outcome.unanswered for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
