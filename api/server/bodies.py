"""
Bodies of ordinary routes, read with bounds: JSON documents of plain values, and no content coding but ``identity``.

The hot paths read their own (api/invoke/request.py): their values are a tensor's elements, bounded by the body's bytes.
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

#: Values of one document: what is checked field by field, and named one by one where it is wrong. Steps of a training
#: have 25,000.
MOST_VALUES: Final = 50_000
#: Names of one object in it: each one too many is an error of its own. The files of an upload are 1,000.
MOST_NAMES: Final = 1024


def read_json(body: bytes) -> Any:
    """
    A JSON document. Numbers are finite and depth is bounded, as orjson has it; of a name that comes twice the last
    value counts.

    Raises Malformed, PayloadTooLarge.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"The body is not JSON: {error}") from error
    _check_count(document)
    return document


def _check_count(document: object) -> None:
    """Raises PayloadTooLarge. Looks at no more than :data:`MOST_VALUES` values."""
    waiting, count = [document], 1
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            count += len(one)
            if count > MOST_VALUES:
                raise PayloadTooLarge(f"The body may have {MOST_VALUES} values.", limit=MOST_VALUES)
            if isinstance(one, dict) and len(one) > MOST_NAMES:
                raise PayloadTooLarge(f"An object in the body may have {MOST_NAMES} names.", limit=MOST_NAMES)
            waiting.extend(one.values() if isinstance(one, dict) else one)


def refuse_coding(headers: Mapping[bytes, bytes]) -> None:
    """
    Raises UnsupportedMediaType where the body came in a content coding: read as it is, it would be something else.
    """
    if headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity"):
        raise UnsupportedMediaType("Content-Encoding: none is taken here; send the body as it is.")


class _Refused(HTTPException):
    """FastAPI lets no other error through while it reads a body."""

    def __init__(self, error: CallerError) -> None:
        super().__init__(400)
        self.error = error


class _Request(Request):
    """FastAPI asks it for the JSON of a body that a model describes."""

    async def json(self) -> Any:
        try:
            return read_json(await self.body())
        except CallerError as error:
            raise _Refused(error) from error


class BoundedRoute(APIRoute):
    """A route of the gateway: bodies come in no content coding, and JSON is read by :func:`read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            refuse_coding(dict(request.scope["headers"]))
            try:
                return await handle(_Request(request.scope, request.receive))
            except _Refused as refused:
                raise refused.error from refused

        return bounded
