"""Answers in gzip, for those that are large and repeat themselves: series, and what pages are told every second."""

import gzip
import re
import zlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from api.server.bodies import BoundedRoute

#: The header of a gzip file (RFC 1952): deflate, no name, no time. A stream without an end needs no more around its pieces.
BEGIN: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
#: Bytes of an answer below which it is sent as it is.
LEAST: Final = 4096
#: How hard is tried: once for one answer, and every second for a stream.
ONCE: Final = 6
EACH: Final = 1
#: ``gzip``, with another weight than 0 (RFC 9110, section 12.5.3). Starlette's GZipMiddleware does not read weights.
_TAKEN: Final = re.compile(r"(?i)(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[^,]*)?(?:,|$)")


def takes_gzip(request: Request) -> bool:
    return _TAKEN.search(request.headers.get("accept-encoding", "")) is not None


def deflated(piece: bytes) -> bytes:
    """A piece of a stream, which no other one refers to: compressed once, it can be sent to all who read."""
    squeeze = zlib.compressobj(EACH, zlib.DEFLATED, -zlib.MAX_WBITS)
    return squeeze.compress(piece) + squeeze.flush(zlib.Z_FULL_FLUSH)


class ZippedRoute(BoundedRoute):
    """A route whose large answers are compressed for clients that take that."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def zipped(request: Request) -> Response:
            response = await handle(request)
            response.headers["Vary"] = "Accept-Encoding"
            if takes_gzip(request) and len(response.body) >= LEAST:
                response.body = await run_in_threadpool(gzip.compress, response.body, ONCE)
                response.headers["Content-Encoding"] = "gzip"
                response.headers["Content-Length"] = str(len(response.body))
            return response

        return zipped
