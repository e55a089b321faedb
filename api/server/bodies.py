"""
Bodies of ordinary routes, read with bounds: JSON documents of plain values, and no content coding but ``identity``.

Invocations read their own bodies (api/invoke/request.py): their values are elements of tensors, bounded by the bytes of
the body.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.errors import Malformed, UnsupportedMediaType
from smore.domain.errors import CallerError, PayloadTooLarge

#: Most values of one document. Each is checked and named in an error of its own. A report of steps has up to 25,000.
MOST_VALUES: Final = 50_000
#: Most names of one object. Each unknown name is an error of its own. An upload has up to 1,000 files.
MOST_NAMES: Final = 1024
#: Below this each whole number is a float of its own.
_EXACT: Final = 2**53


def read_json(body: bytes) -> Any:
    """
    The JSON document in ``body``. orjson accepts finite numbers only and bounds the depth; of a repeated name the last
    value counts. A whole number is an int, also where it is written as 2.0: JSON has one kind of number.

    Raises Malformed, PayloadTooLarge.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"The body is not JSON: {error}") from error
    _walk(document)
    return document


def _walk(document: object) -> None:
    """
    Make whole numbers of a document ints, in place. Raises PayloadTooLarge; looks at no more than :data:`MOST_VALUES`
    values.
    """
    waiting, count = [document], 1
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            count += len(one)
            if count > MOST_VALUES:
                raise PayloadTooLarge(f"The body may have {MOST_VALUES} values.", limit=MOST_VALUES)
            if isinstance(one, dict) and len(one) > MOST_NAMES:
                what = f"An object in the body may have {MOST_NAMES} names; one has {len(one)}."
                raise PayloadTooLarge(what, limit=MOST_NAMES, size=len(one))
            for place, value in one.items() if isinstance(one, dict) else enumerate(one):
                if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
                    one[place] = int(value)
                elif isinstance(value, dict | list):
                    waiting.append(value)


def body_too_large(limit: int, announced: int = 0) -> PayloadTooLarge:
    """The error of a body above ``limit`` bytes. ``announced``: its Content-Length, 0 = it had none."""
    if announced <= limit:
        return PayloadTooLarge(f"The body may have {limit} bytes.", limit=limit)
    return PayloadTooLarge(f"The body may have {limit} bytes; this one has {announced}.", limit=limit, size=announced)


def refuse_coding(headers: Mapping[bytes, bytes]) -> None:
    """
    Raises UnsupportedMediaType if the body has a content coding, because it is read without decoding.
    """
    if headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity"):
        raise UnsupportedMediaType("Content-Encoding: send the body without a content coding.")


class _Refused(HTTPException):
    """Carries ``error`` through FastAPI, which lets only an HTTPException pass while it reads a body."""

    def __init__(self, error: CallerError) -> None:
        super().__init__(400)
        self.error = error


class _Request(Request):
    """A request whose JSON is read by :func:`read_json`; FastAPI calls :meth:`json` for a body with a model."""

    async def json(self) -> Any:
        try:
            return read_json(await self.body())
        except CallerError as error:
            raise _Refused(error) from error


class BoundedRoute(APIRoute):
    """A route of the gateway: it refuses content codings, and reads JSON by :func:`read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            refuse_coding(dict(request.scope["headers"]))
            try:
                return await handle(_Request(request.scope, request.receive))
            except _Refused as refused:
                raise refused.error from refused

        return bounded
