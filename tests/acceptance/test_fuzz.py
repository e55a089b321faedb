"""
Strangers at the gateway's socket: inputs of all kinds to every operation, and connections that mean no good. Others are served meanwhile.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bench import connections, fuzz
from bench.connections import GIB, Gate
from smore import local
from tests.acceptance.conftest import Platform
from tests.eventually import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

#: Of every operation, of either kind; bench/fuzz.py tries many more.
EXAMPLES = 5
#: Bounds that a test can wait for.
BOUNDS = {
    "SMORE_API__HEAD_S": "2", "SMORE_API__STALL_S": "2", "SMORE_API__MAX_CONNECTIONS": "300", "SMORE_BLOBS__PROJECT_BYTES": str(64 << 20),
}  # fmt: skip
#: What the gateway may grow by under an attack, MiB: several times less than one of the large bodies, or all small ones together.
GROWTH_MIB = 96
INVOKE = f"/v1/functions/{fuzz.ECHO}/invocations"
BODY = b'{"input": 1, "deadline_ms": 20000}'


@pytest.fixture(scope="module", autouse=True)
def bounds() -> Iterator[None]:
    """Before the platform, whose processes inherit it."""
    before = dict(os.environ)
    os.environ |= BOUNDS
    yield
    os.environ.clear()
    os.environ.update(before)


@dataclass(frozen=True, slots=True)
class Attacked:
    gate: Gate
    home: Path

    def by(self, attack: Callable[[Gate], Awaitable[None]]) -> None:
        """Let it happen: ordinary callers must all be answered, and the gateway may not have grown much by its end."""
        pid = local.pid(self.home, "gateway")
        assert pid is not None
        before = psutil.Process(pid).memory_full_info().pss

        async def go() -> connections.Others:
            async with self.gate.others() as others:
                await attack(self.gate)
            return others

        others = asyncio.run(go())
        assert others.ms and not others.wrong
        assert local.pid(self.home, "gateway") == pid
        assert psutil.Process(pid).memory_full_info().pss - before < GROWTH_MIB << 20


@pytest.fixture(scope="module")
def attacked(platform: Platform) -> Attacked:
    fuzz.deploy(platform.client)
    return Attacked(Gate.at(platform.url, platform.key), platform.home)


def status(answer: bytes) -> int:
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def whole(gate: Gate, body: bytes = BODY, *lines: str) -> bytes:
    return gate.head(INVOKE, f"Content-Length: {len(body)}", *lines) + body


def test_every_operation_bears_any_input(platform: Platform, attacked: Attacked) -> None:
    fuzzer = fuzz.Fuzzer(platform.url, platform.key)
    found = fuzzer.run(EXAMPLES)

    assert [f"{one.operation}: {one.what}\n{one.request}" for one in found.faults.values()] == []
    # It came further than to the refusal of everything.
    assert found.operations > 70 and found.answers[200] and found.answers[201] and found.answers[204] and found.answers[422]
    assert fuzzer.well()


def test_heads_and_bodies_a_byte_at_a_time(attacked: Attacked) -> None:
    async def attack(gate: Gate) -> None:
        heads, bodies, nothing = await asyncio.gather(
            connections.trickle(gate, 40, b"POST /v1/keys HTTP/1.1\r\nx: "),
            connections.trickle(gate, 40, gate.head(INVOKE, "Content-Length: 100000")),
            gate.say(b""),
        )
        assert {status(answer) for answer in (*heads, *bodies)} == {408} and nothing == b""

    attacked.by(attack)


def test_answers_that_nobody_reads(attacked: Attacked) -> None:
    async def attack(gate: Gate) -> None:
        gateway = psutil.Process(local.pid(attacked.home, "gateway"))
        deaf = [socket.socket() for _ in range(8)]
        for one in deaf:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect((gate.host, gate.port))
            one.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 30)
        ports = {one.getsockname()[1] for one in deaf}

        def held() -> bool:
            return any(one.raddr and one.raddr.port in ports for one in gateway.net_connections("tcp"))

        await asyncio.to_thread(eventually, held, 30, "their connections")
        await asyncio.to_thread(eventually, lambda: not held(), 30, "the end of their connections")
        for one in deaf:
            one.close()

    attacked.by(attack)


def test_connections_that_are_cut(attacked: Attacked) -> None:
    async def attack(gate: Gate) -> None:
        request = whole(gate)
        await connections.cut(gate, 150, [request[:20], request[: -len(BODY) + 3], request])

    attacked.by(attack)


def test_requests_that_do_not_wait_for_each_other(attacked: Attacked) -> None:
    async def attack(gate: Gate) -> None:
        few = await gate.say(whole(gate) * 3 + whole(gate, BODY, "Connection: close"))
        assert few.count(b"HTTP/1.1 200 ") == 4
        many = await gate.say(whole(gate) * 10_000)
        assert many.count(b"HTTP/1.1 ") <= 64

    attacked.by(attack)


def test_connections_that_are_left_open(attacked: Attacked) -> None:
    async def attack(gate: Gate) -> None:
        writers = await connections.leave_open(gate, 900)
        pid = local.pid(attacked.home, "gateway")
        assert len(psutil.Process(pid).net_connections("tcp")) < 300 + 64
        for writer in writers:
            writer.transport.abort()

    attacked.by(attack)


@pytest.mark.parametrize("path", [INVOKE, f"{INVOKE}:dryRun", f"/v2/models/{fuzz.TENSORS}/infer", "/v1/keys", "/v1/functions/echo"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_a_gib(attacked: Attacked, path: str, chunked: bool) -> None:
    async def attack(gate: Gate) -> None:
        sent, answer = await gate.pour(path, GIB, chunked=chunked, method="PUT" if path.endswith("echo") else "POST")
        assert status(answer) == 413 and b'"code":"payload_too_large"' in answer
        assert sent < GIB // 8

    attacked.by(attack)


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", {431}),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nx: " + b"a" * 4_000_000, {431}),
        (b"GET /healthz?" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", {431}),
        (b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", {431}),
        (b"nonsense\r\n\r\n", {400}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), {400}),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\x00: a\r\n\r\n", {400}),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", {400, 404}),
        (b"GET /v1/jobs/%00 HTTP/1.1\r\nHost: x\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n", {404, 422}),
        (b"GET /v1/audit?key=%00 HTTP/1.1\r\nHost: x\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n", {422}),
        (b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", {400}),
        (b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", {400}),
        (b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", {400, 413}),
        (b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
        (b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", {400}),
        (b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", {400}),
    ],
    ids=range(16),
)  # fmt: skip
def test_absurd_heads(attacked: Attacked, head: bytes, wanted: set[int]) -> None:
    async def attack(gate: Gate) -> None:
        answer = await gate.say(head.replace(b"KEY", gate.key.encode()))
        assert status(answer) in wanted, answer[:500]

    attacked.by(attack)


DEEP = 50_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"input":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"input":' * DEEP,
        b'{"input":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"input": "\xff\xfe"}',
        b'{"input": "\\ud800"}',
        b"\xff",
        b"",
    ],
    ids=range(9),
)
def test_json_that_is_none(attacked: Attacked, body: bytes) -> None:
    async def attack(gate: Gate) -> None:
        for method, path in (
            ("POST", INVOKE), ("POST", f"{INVOKE}:dryRun"), ("POST", f"/v2/models/{fuzz.TENSORS}/infer"), ("POST", "/v1/keys"),
            ("PUT", f"/v1/functions/{fuzz.SPARE}"), ("PATCH", f"/v1/functions/{fuzz.SPARE}"),
            ("POST", "/v1/jobs"),
        ):  # fmt: skip
            lines = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
            answer = await gate.say(gate.head(path, *lines, method=method) + body)
            assert 400 <= status(answer) < 500, (path, answer[:500])

    attacked.by(attack)
