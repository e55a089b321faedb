"""The client of an event loop."""

import asyncio
import time
from types import TracebackType
from typing import Self

import httpx

from smore_client.locate import locate
from smore_client.operation import AsyncCarrier, AsyncLines
from smore_client.requests import Requests
from smore_client.transport import Answer, Broken, Call, Pause, headers_of


class AsyncClient(Requests, AsyncCarrier):
    """
    The operations of :class:`~smore_client.sync.Client`, awaited. Close it, or use it in an ``async with``.

    >>> async with AsyncClient("http://127.0.0.1:8400", "smk_...") as client:
    ...     (await client.invoke("echo", {"x": [1, 2]})).output
    {'x': [1, 2]}
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        super().__init__()
        self.url, self.key = locate(url, key)
        self._http = httpx.AsyncClient(base_url=self.url, headers=headers_of(self.key), transport=transport)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def perform(self, step: Call | Pause) -> Answer | Broken | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        began = time.monotonic()
        try:
            response = await self._http.request(**step.arguments())
        except httpx.TransportError as error:
            return Broken.of(self.url, error, time.monotonic() - began)
        return Answer.of(response.status_code, response.headers.items(), response.content, time.monotonic() - began)

    async def open(self, call: Call) -> AsyncLines:
        lines = _Lines(self.url)
        await lines.begin(self._http, call)
        return lines


class _Lines(AsyncLines):
    def __init__(self, url: str) -> None:
        self._url = url
        self._response: httpx.Response | None = None
        self._began = time.monotonic()

    async def begin(self, http: httpx.AsyncClient, call: Call) -> None:
        """Send the request."""
        try:
            self._response = await http.send(http.build_request(**call.arguments()), stream=True)
            if self._response.is_error:
                await self._response.aread()
        except httpx.TransportError as error:
            self.head = self._broken(error)
            return
        body = self._response.content if self._response.is_error else b""
        self.head = Answer.of(
            self._response.status_code, self._response.headers.items(), body, time.monotonic() - self._began
        )
        self._lines = self._response.aiter_lines()

    def _broken(self, error: Exception) -> Broken:
        return Broken.of(self._url, error, time.monotonic() - self._began)

    async def read(self) -> str | Broken | None:
        try:
            return await anext(self._lines, None)
        except httpx.TransportError as error:
            return self._broken(error)

    async def close(self) -> None:
        if self._response is not None:
            await self._response.aclose()
