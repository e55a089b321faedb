"""
Strangers at the gateway's socket: inputs of all kinds to every operation, and connections that mean no good. Others are
served meanwhile.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import psutil
import pytest

from lab.bench import connections, fuzz
from lab.bench.connections import GIB, Gate
from lab.bench.servers import pid_of
from tests.support.eventually import eventually
from tests.support.tensor_handlers import Mirror
from tests.support.whole_platform import BOUNDED, Platform

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

#: Of every operation, of either kind; lab/bench/fuzz.py tries many more.
EXAMPLES = 2
ENVIRONMENT = BOUNDED
LEARNS = False
#: What the gateway may grow by under an attack, MiB: several times less than one of the large bodies, or all small ones
#: together.
GROWTH_MIB = 96
INVOKE = f"/v1/functions/{fuzz.ECHO}/invocations"
BODY = b'{"input": 1, "deadline_ms": 20000}'


@dataclass(frozen=True, slots=True)
class Attacked:
    gate: Gate
    home: Path

    def by(self, attack: Callable[[Gate], Awaitable[None]]) -> None:
        """Let it happen: ordinary callers must all be answered, and the gateway may not have grown much by its end."""
        pid = pid_of(self.home, "gateway")
        assert pid is not None
        before = psutil.Process(pid).memory_full_info().pss

        async def go() -> connections.Others:
            async with self.gate.others() as others:
                await attack(self.gate)
            return others

        others = asyncio.run(go())
        assert others.ms and not others.wrong
        assert pid_of(self.home, "gateway") == pid
        assert psutil.Process(pid).memory_full_info().pss - before < GROWTH_MIB << 20


@pytest.fixture(scope="module")
def attacked(platform: Platform) -> Attacked:
    fuzz.deploy(platform.client)
    return Attacked(Gate.at(platform.url, platform.key), platform.home)


def status(answer: bytes) -> int:
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def whole(gate: Gate, body: bytes = BODY, *lines: str) -> bytes:
    return gate.head(INVOKE, f"Content-Length: {len(body)}", *lines) + body


@pytest.fixture(scope="module")
def fuzzer(platform: Platform, attacked: Attacked) -> fuzz.Fuzzer:
    return fuzz.Fuzzer(platform.url, platform.key)


@pytest.fixture(scope="module")
def drawn(fuzzer: fuzz.Fuzzer) -> list[tuple[str, Any]]:
    return fuzzer.draw(EXAMPLES)


def test_every_operation_bears_any_input(fuzzer: fuzz.Fuzzer, drawn: list[tuple[str, Any]]) -> None:
    result = fuzzer.run(drawn)

    assert [f"{fault.operation}: {fault.what}\n{fault.request}" for fault in result.faults.values()] == []
    # It came further than to the refusal of everything.
    assert (
        result.operations > 70
        and result.answers[200]
        and result.answers[201]
        and result.answers[204]
        and result.answers[422]
    )
    assert fuzzer.well()


def test_a_generated_client_can_use_the_api(platform: Platform) -> None:
    assert fuzz.GENERATOR.exists(), "`make test` makes the environment of the generator"
    assert fuzz.generated_client(platform.url, platform.key)


@pytest.mark.parametrize("server", fuzz.SERVERS)
def test_every_operation_while_a_server_is_away(
    platform: Platform, fuzzer: fuzz.Fuzzer, drawn: list[tuple[str, Any]], server: str
) -> None:
    one_each = {(label, case.meta.generation.mode): (label, case) for label, case in drawn}
    result = fuzz.outage(fuzzer, platform.home, server, "killed", list(one_each.values()))

    assert [f"{fault.operation}: {fault.what}\n{fault.request}" for fault in result.faults] == []
    assert result.recovery_s is not None and result.admitted == fuzz.ADMITTED and result.lost == []
    # What needs the server said so; what does not was answered.
    assert result.answers["503"] > 10 and result.answers["200"] > 5


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
        gateway = psutil.Process(pid_of(attacked.home, "gateway"))
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
        pid = pid_of(attacked.home, "gateway")
        assert len(psutil.Process(pid).net_connections("tcp")) < 300 + 64
        for writer in writers:
            writer.transport.abort()

    attacked.by(attack)


def test_one_sender_does_not_take_all_connections(attacked: Attacked) -> None:
    gateway = psutil.Process(pid_of(attacked.home, "gateway"))
    working = b"HTTP/1.1 100 "

    async def attack(gate: Gate) -> None:
        writers = await connections.leave_open(gate, 250, (connections.ALONE,))
        held = sum(one.raddr.ip == connections.ALONE for one in gateway.net_connections("tcp") if one.raddr)
        assert held <= 100
        # When none of theirs waits for a request any more the next is refused.
        head, said = gate.head(INVOKE, "Content-Length: 100000", "Expect: 100-continue"), working
        for _ in range(300):
            reader, writer = await gate.connect(connections.ALONE)
            writers.append(writer)
            writer.write(head)
            said = await reader.read(4096)
            if not said.startswith(working):
                break
        assert status(said) == 503 and b"retry-after: 1" in said.lower()
        for writer in writers:
            writer.transport.abort()

    attacked.by(attack)


@pytest.mark.parametrize(
    "path", [INVOKE, f"{INVOKE}:dryRun", f"/v2/models/{fuzz.TENSORS}/infer", "/v1/keys", "/v1/functions/echo"]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_a_gib(attacked: Attacked, path: str, chunked: bool) -> None:
    async def attack(gate: Gate) -> None:
        sent, answer = await gate.pour(path, GIB, chunked=chunked, method="PUT" if path.endswith("echo") else "POST")
        assert status(answer) == 413 and b'"code":"payload_too_large"' in answer
        # After the answer what comes is thrown away for a moment, so how much was sent depends on how fast its sender
        # is.
        assert sent < GIB

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
        (
            b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            {400},
        ),
        (b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", {400}),
        (b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", {400}),
    ],
    ids=range(16),
)
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
            ("POST", INVOKE),
            ("POST", f"{INVOKE}:dryRun"),
            ("POST", f"/v2/models/{fuzz.TENSORS}/infer"),
            ("POST", "/v1/keys"),
            ("PUT", f"/v1/functions/{fuzz.SPARE}"),
            ("PATCH", f"/v1/functions/{fuzz.SPARE}"),
            ("POST", "/v1/jobs"),
        ):
            lines = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
            answer = await gate.say(gate.head(path, *lines, method=method) + body)
            assert 400 <= status(answer) < 500, (path, answer[:500])

    attacked.by(attack)


# ---- values that break what is careless ------------------------------------------------------------------------------

VALUES = "values"
FLOATS: dict[str, type[np.floating[Any]]] = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
#: Infinities, no number, the smallest denormal, the largest number, and a zero that has a sign.
ODD = {
    name: np.array(
        [
            [dtype("inf"), -dtype("inf")],
            [dtype("nan"), np.finfo(dtype).smallest_subnormal],
            [np.finfo(dtype).max, dtype("-0.0")],
        ],
        dtype,
    )
    for name, dtype in FLOATS.items()
}
TEXTS = [[b"\0", b"a\0b"], [b"", "\u00e9\U0001f600".encode()], [b"\0\0", b"\x01\x7f"]]


@pytest.fixture(scope="module")
def values(platform: Platform, attacked: Attacked) -> Iterator[httpx.Client]:
    platform.deploy(VALUES, "tests.support.tensor_handlers:Mirror", slo={"deadline": "20s"})
    with httpx.Client(base_url=platform.url, headers={"Authorization": f"Bearer {platform.key}"}, timeout=60) as client:
        yield client


def tensors(rows: int = 3) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: np.zeros((rows, 2), example.dtype) for name, example in Mirror.example.items() if name != "BYTES"
    }
    return found | {"BYTES": TEXTS[:rows]}


def raw(name: str, value: Any) -> bytes:
    if name == "BYTES":
        return b"".join(len(text).to_bytes(4, "little") + text for row in value for text in row)
    found: bytes = value.tobytes()
    return found


def inferred(client: httpx.Client, sent: dict[str, Any], *, rows: int = 3, binary: bool = True) -> httpx.Response:
    """Every input as bytes; all outputs as bytes, or as JSON."""
    parts = {name: raw(name, value) for name, value in sent.items()}
    inputs = [
        {"name": name, "datatype": name, "shape": [rows, 2], "parameters": {"binary_data_size": len(part)}}
        for name, part in parts.items()
    ]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": binary}})
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return client.post(f"/v2/models/{VALUES}/infer", content=head + b"".join(parts.values()), headers=headers)


def outputs(answer: httpx.Response) -> dict[str, Any]:
    """The raw bytes of each output, or its elements where they came as JSON."""
    size = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    by_name, at = {}, size
    for output in orjson.loads(answer.content[:size])["outputs"]:
        if "data" in output:
            by_name[output["name"]] = output["data"]
        else:
            stop = at + output["parameters"]["binary_data_size"]
            by_name[output["name"]], at = answer.content[at:stop], stop
    return by_name


def test_tensors_as_bytes_come_back_bit_by_bit(values: httpx.Client) -> None:
    sent = tensors() | ODD
    answer = inferred(values, sent)
    assert answer.status_code == 200, answer.text
    received = outputs(answer)
    assert {name: received[name] for name in sent} == {name: raw(name, value) for name, value in sent.items()}

    natively = values.post(
        f"/v1/functions/{VALUES}/invocations",
        content=b"".join(raw(name, value) for name, value in sent.items()),
        headers={
            "Content-Type": "application/octet-stream",
            "Accept": "application/octet-stream",
            "Smore-Shape": shapes(3),
        },
    )
    assert natively.status_code == 200, natively.text
    assert natively.content.startswith(b"".join(raw(name, value) for name, value in sent.items()))


def shapes(rows: int) -> str:
    return ";".join(f"{name}={rows},2" for name in Mirror.example)


def test_tensors_as_json_come_back_or_are_null(values: httpx.Client) -> None:
    received = outputs(inferred(values, tensors() | ODD, binary=False))
    for name, sent in ODD.items():
        kept = [float(one) if np.isfinite(one) else None for one in sent.flat]
        assert received[name] == kept, "what JSON has no word for is null (docs/guides/open-inference-protocol.md)"
    assert received["BYTES"] == [text.decode() for row in TEXTS for text in row]

    finite = {name: [[float(one[1][1]), float(one[2][0])], [-0.0, 1.0]] for name, one in ODD.items()}
    plain = {name: value[:2].tolist() for name, value in tensors().items() if name not in {*FLOATS, "BYTES"}}
    document = finite | plain | {"BYTES": [["\0", "a\0b"], ["", "\u00e9"]]}
    inputs = [{"name": name, "datatype": name, "shape": [2, 2], "data": data} for name, data in document.items()]
    through = values.post(f"/v2/models/{VALUES}/infer", json={"inputs": inputs})
    assert through.status_code == 200, through.text
    natively = values.post(f"/v1/functions/{VALUES}/invocations", json={"input": document})
    assert natively.status_code == 200, natively.text
    for name, data in document.items():
        dtype = Mirror.example[name].dtype
        # Written as short as the datatype allows: the same number of it, sign and all.
        for returned in (outputs(through)[name], natively.json()["output"][name]):
            wanted, read = np.array(data, dtype).reshape(-1), np.array(returned, dtype).reshape(-1)
            assert wanted.tolist() == read.tolist() if dtype.kind == "O" else wanted.tobytes() == read.tobytes()


def test_text_that_is_none_is_not_guessed_at(values: httpx.Client) -> None:
    sent = tensors() | {"BYTES": [[b"\xff", b"\xfe\0"]] * 3}
    assert outputs(inferred(values, sent))["BYTES"] == raw("BYTES", sent["BYTES"])
    refused = inferred(values, sent, binary=False)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input"), refused.text
    natively = values.post(
        f"/v1/functions/{VALUES}/invocations",
        content=b"".join(raw(name, value) for name, value in sent.items()),
        headers={"Content-Type": "application/octet-stream", "Smore-Shape": shapes(3)},
    )
    assert 400 <= natively.status_code < 500, natively.text


def test_tensors_without_rows(values: httpx.Client) -> None:
    empty = outputs(inferred(values, tensors(0), rows=0))
    assert {name: empty[name] for name in Mirror.example} == dict.fromkeys(Mirror.example, b"")
    data = [{"name": name, "datatype": name, "shape": [0, 2], "data": []} for name in Mirror.example]
    assert outputs(values.post(f"/v2/models/{VALUES}/infer", json={"inputs": data}))["FP32"] == []
    requests: tuple[dict[str, Any], ...] = (
        {"content": b"", "headers": {"Content-Type": "application/octet-stream"}},
        {"content": b"", "headers": {"Content-Type": "application/octet-stream", "Smore-Shape": shapes(0)}},
        {"json": {"input": {name: [] for name in Mirror.example}}},
    )
    for how in requests:
        refused = values.post(f"/v1/functions/{VALUES}/invocations", **how)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input"), refused.text


@pytest.mark.parametrize("datatype", sorted(FLOATS))
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "null", '"1"', "true"])
def test_numbers_that_are_none_are_refused(values: httpx.Client, datatype: str, number: str) -> None:
    text = orjson.dumps(
        {
            name: value.tolist() if name != "BYTES" else [["", ""]]
            for name, value in tensors(1).items()
            if name != datatype
        }
    ).decode()
    headers = {"Content-Type": "application/json"}
    native = text[:-1] + f', "{datatype}": [[{number}, 0]]}}'
    answers = [values.post(f"/v1/functions/{VALUES}/invocations", content=f'{{"input": {native}}}', headers=headers)]
    inputs = [
        {"name": name, "datatype": name, "shape": [1, 2], "data": data} for name, data in orjson.loads(text).items()
    ]
    mine = f'{{"name": "{datatype}", "datatype": "{datatype}", "shape": [1, 2], "data": [{number}, 0]}}'
    standard = f'{{"inputs": {orjson.dumps(inputs).decode()[:-1]}, {mine}]}}'
    answers.append(values.post(f"/v2/models/{VALUES}/infer", content=standard, headers=headers))
    answers.append(
        values.post(f"/v1/functions/{fuzz.ECHO}/invocations", content=f'{{"input": {number}}}', headers=headers)
    )
    told = [answer.status_code for answer in answers[:2]]
    assert all(400 <= status < 500 for status in told), [answer.text for answer in answers]
    # A function of JSON values takes what is JSON.
    assert answers[2].status_code == (200 if number in ("null", '"1"', "true") else 400)
    if answers[2].status_code == 200:
        assert answers[2].json()["output"] == orjson.loads(number)
