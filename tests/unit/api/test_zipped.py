"""Large answers are compressed for clients that take that, and a stream's pieces stand for themselves."""

import asyncio
import gzip
import zlib
from collections.abc import Callable
from functools import partial

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request

from api.server.zipped import BEGIN, LEAST, ZippedRoute, deflated, takes_gzip


def numbers_of(app: FastAPI, count: int, coding: str = "gzip") -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as http:
            return await http.get("/numbers", params={"count": count}, headers={"Accept-Encoding": coding})

    return asyncio.run(ask())


def asked() -> Callable[..., httpx.Response]:
    router = APIRouter(route_class=ZippedRoute)

    @router.get("/numbers")
    def numbers(count: int) -> list[int]:
        return [7] * count

    app = FastAPI()
    app.include_router(router)
    return partial(numbers_of, app)


def test_only_a_large_answer_is_compressed_and_only_where_that_is_taken() -> None:
    ask = asked()

    large = ask(LEAST)
    assert large.headers["content-encoding"] == "gzip" and large.json() == [7] * LEAST
    assert int(large.headers["content-length"]) < LEAST and large.headers["vary"] == "Accept-Encoding"
    plain = ask(LEAST, "identity")
    assert "content-encoding" not in plain.headers and plain.json() == large.json()
    assert "content-encoding" not in ask(1).headers


@pytest.mark.parametrize(
    ("coding", "taken"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5, br", True),
        ("gzip; q=0.001", True),
        ("br,gzip", True),
        ("gzip;q=0", False),
        ("deflate, gzip; q=0.000 , br", False),
        ("x-gzip", False),
        ("", False),
    ],
)
def test_a_weight_of_0_refuses_gzip(coding: str, taken: bool) -> None:
    headers = [(b"accept-encoding", coding.encode())]
    assert takes_gzip(Request({"type": "http", "headers": headers})) is taken


def test_pieces_of_a_stream_can_be_read_in_any_selection_and_at_once() -> None:
    pieces = [b"first " * 100, b"second " * 100, b"third " * 100]
    zipped = [deflated(piece) for piece in pieces]

    for chosen in ([0, 1, 2], [2, 0], [1, 1]):
        reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
        assert reader.decompress(BEGIN) == b""
        assert [reader.decompress(zipped[number]) for number in chosen] == [pieces[number] for number in chosen]
    assert len(zipped[0]) < len(gzip.compress(pieces[0], 0))
