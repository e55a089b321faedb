"""The load generator against a tiny server in the same process: what it counts must be what happened."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lab.bench import load

Respond = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """
    Answers each request by ``respond(number of the request, from 0; writer)``, and counts requests and connections.
    """

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.requests: list[bytes] = []
        self.connections = 0
        self.ended: list[asyncio.Future[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended.append(ended)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._respond(len(self.requests) - 1, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            ended.set_result(None)


def answer(status: int = 200, body: bytes = b"{}", head: str = "") -> bytes:
    return f"HTTP/1.1 {status} Word\r\ncontent-length: {len(body)}\r\n{head}\r\n".encode() + body


def request(path: str = "/") -> bytes:
    return load.request_bytes(host="test", path=path, body=b'{"x":1}')


def drive(
    respond: Respond,
    *,
    requests: list[bytes] | None = None,
    connections: int = 2,
    seconds: float = 0.15,
    warmup_s: float = 0.0,
    rate: float | None = None,
) -> tuple[load.LoadResult, Server]:
    async def scenario() -> tuple[load.LoadResult, Server]:
        state = Server(respond)
        server = await asyncio.start_server(state.serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            found = await load.generate(
                "127.0.0.1", port, requests or [request()], connections, seconds, warmup_s, rate=rate, seed=7
            )
            # The generator has left, so every handler comes to its end.
            await asyncio.gather(*state.ended)
            return found, state

    return asyncio.run(scenario())


async def good(number: int, writer: asyncio.StreamWriter) -> None:
    writer.write(answer())


def test_counts_what_the_server_answered() -> None:
    found, server = drive(good)
    # What is in flight at the window's end is answered in the drain: in `answers`, not in `done`.
    assert found.answers == len(server.requests)
    assert 0 <= found.answers - found.done <= 2
    assert found.bad == 0
    assert found.statuses == {200: found.done}
    assert found.rps == pytest.approx(found.done / 0.15)
    assert 0 < found.p50_ms <= found.p99_ms
    assert server.connections == 2


def test_the_warm_up_is_not_in_the_window() -> None:
    found, server = drive(good, seconds=0.05, warmup_s=0.1)
    assert found.answers == len(server.requests) > found.done > 0


def test_requests_are_cycled_from_another_place_on_each_connection() -> None:
    _, server = drive(good, requests=[request("/a"), request("/b")])
    paths = [sent.split(b" ")[1] for sent in server.requests]
    assert set(paths[:2]) == {b"/a", b"/b"}
    assert abs(paths.count(b"/a") - paths.count(b"/b")) <= 2


def test_a_500_is_bad() -> None:
    async def fail_every_second(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(500 if number % 2 else 200))

    found, server = drive(fail_every_second, connections=1)
    assert found.statuses == {200: found.done, 500: found.bad}
    assert abs(found.done - found.bad) <= 1
    assert server.connections == 1


def test_a_connection_closed_in_the_middle_is_bad_and_opened_again() -> None:
    async def break_the_third(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body=b"x" * 100)[:-50] if number == 2 else answer())
        if number == 2:
            writer.close()

    found, server = drive(break_the_third, connections=1)
    assert found.bad == 1
    assert server.connections == 2
    assert found.answers == len(server.requests) - 1
    assert found.done > 2


def test_an_announced_close_is_not_bad() -> None:
    async def close_politely(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(head="connection: close\r\n"))
        await writer.drain()
        writer.close()

    found, server = drive(close_politely, connections=1)
    assert found.bad == 0
    assert server.connections >= found.answers > 1


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"SSH-2.0-server\r\n",
        answer() + answer(),
    ],
    ids=["chunked", "no length", "length is no number", "not HTTP", "two answers"],
)
def test_an_answer_that_cannot_be_framed_is_bad(bytes_sent: bytes) -> None:
    async def respond(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes_sent if number == 0 else answer())

    found, server = drive(respond, connections=1)
    assert found.bad == 1
    assert server.connections == 2
    assert found.answers == len(server.requests) - 1


def test_an_answer_in_pieces_is_one_answer() -> None:
    async def in_pieces(number: int, writer: asyncio.StreamWriter) -> None:
        whole = b"HTTP/1.1 100 Continue\r\n\r\n" + answer(body=b"x" * 40)
        for at in range(0, len(whole), 7):
            writer.write(whole[at : at + 7])
            await asyncio.sleep(0)  # a turn of the loop, so that the pieces arrive as pieces

    found, server = drive(in_pieces)
    assert found.bad == 0
    assert found.answers == len(server.requests) > 0
    assert set(found.statuses) == {200}


def test_a_request_never_answered_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_after_the_first(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 0:
            writer.write(answer())

    monkeypatch.setattr(load, "DRAIN_S", 0.05)
    found, _ = drive(never_after_the_first, connections=1)
    assert (found.done, found.bad) == (1, 1)


def test_a_server_that_is_away_is_bad() -> None:
    async def scenario() -> load.LoadResult:
        server = await asyncio.start_server(Server(good).serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await load.generate("127.0.0.1", port, [request()], 1, 0.1, 0.0)

    found = asyncio.run(scenario())
    assert found.done == 0
    assert found.bad > 0


def test_open_loop_sends_at_its_rate_whatever_the_server_does() -> None:
    found, server = drive(good, connections=4, seconds=0.3, rate=500.0)
    again, _ = drive(good, connections=4, seconds=0.3, rate=500.0)
    assert found.bad == 0
    # All that was due in the window counts, answered in it or in the drain; the arrivals are seeded, so both runs have
    # the same.
    assert found.done == found.answers == len(server.requests) == again.done
    assert 100 < found.done < 200


def test_open_loop_latency_includes_the_wait_for_a_connection() -> None:
    held: list[asyncio.StreamWriter] = []

    async def hold_the_first(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 0:
            held.append(writer)
            asyncio.get_running_loop().call_later(0.2, writer.write, answer())
        else:
            writer.write(answer())

    found, _ = drive(hold_the_first, connections=1, seconds=0.3, rate=200.0)
    # Requests due while the only connection was held waited on average half of the hold.
    assert found.mean_ms > 40
    assert found.bad == 0


def test_a_load_without_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="a load needs requests"):
        asyncio.run(load.generate("127.0.0.1", 1, [], 1, 1.0))
