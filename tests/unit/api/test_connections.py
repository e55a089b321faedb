"""Whom a connection counts for, when the head of an answer goes out, and which head is too large."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from api.server.connections import protocol, sender_of
from smore.process.settings import ApiSettings


@pytest.mark.parametrize(
    ("address", "sender"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::7", "2001:db8:0:2::/64"),
        ("fe80::7%eth0", "fe80::/64"),
        ("10.0.0.7", ""),
        ("::ffff:10.0.0.7", ""),
        ("10.0.0.8", "10.0.0.8"),
        ("fd00::1:2", ""),
    ],
)
def test_a_sender_is_an_address_or_a_network_and_a_proxy_is_none(address: str, sender: str) -> None:
    proxies = ApiSettings(proxies=("10.0.0.7", "fd00::/64")).proxies
    assert sender_of(address, proxies) == sender


@pytest.mark.parametrize("proxy", ["proxy.example", "10.0.0.7/8", "10.0.0.256", ""])
def test_a_proxy_that_is_no_address_is_told_at_the_start(proxy: str) -> None:
    with pytest.raises(ValidationError):
        ApiSettings(proxies=(proxy,))


async def _exchange(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]) -> bytes:
    """What ``talk`` returns, with a server that answers a GET in chunks, and with "late" only when it has the body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message: Message = {"more_body": True}
        if scope["method"] == "POST":
            while message["more_body"]:
                message = await receive()
        length = [] if scope["method"] == "GET" else [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        if scope["method"] == "GET":
            # Nothing follows until its caller has gone.
            while message.get("type") != "http.disconnect":
                message = await receive()
        await send({"type": "http.response.body", "body": b"late"})

    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, http=protocol(ApiSettings()), lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            return await asyncio.wait_for(talk(reader, writer), 10)
        finally:
            writer.close()
            server.should_exit = True
            await serving


def test_a_head_goes_out_though_its_body_comes_later_or_never() -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return await reader.readuntil(b"\r\n\r\n")

    async def head_alone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        return await reader.readuntil(b"\r\n\r\n")

    async def asked_for_its_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"{}")
        return asked + await reader.readuntil(b"late")

    assert b"transfer-encoding: chunked" in asyncio.run(_exchange(chunked))
    assert b"content-length: 4" in asyncio.run(_exchange(head_alone))
    answer = asyncio.run(_exchange(asked_for_its_body))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("first", [0, 500, 30_000, 39_999])
def test_a_head_is_too_large_in_whatever_pieces_it_comes(first: int) -> None:
    head = b"GET /?" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"

    async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head[:first])
        await asyncio.sleep(0.05)
        writer.write(head[first:])
        return await reader.readuntil(b"\r\n")

    assert asyncio.run(_exchange(in_pieces)).startswith(b"HTTP/1.1 431 ")
