"""The client that blocks."""

import time
from types import TracebackType
from typing import Self

import httpx

from smore_client.locate import locate
from smore_client.operation import Carrier, Lines
from smore_client.requests import Requests
from smore_client.transport import Answer, Broken, Call, Pause, headers_of


class Client(Requests, Carrier):
    """
    A client that blocks; threads may share one. Close it, or use it in a ``with``.

    ``url`` and ``key`` are by default those of SMORE_URL and SMORE_API_KEY, else of the platform on this machine.
    ``transport`` replaces httpx's own, for tests. Every operation raises :class:`~smore_client.ApiError` where the
    platform refuses and :class:`~smore_client.Unreachable` where it does not answer.

    >>> with Client("http://127.0.0.1:8400", "smk_...") as client:
    ...     client.invoke("echo", {"x": [1, 2]}).output
    {'x': [1, 2]}
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        super().__init__()
        self.url, self.key = locate(url, key)
        self._http = httpx.Client(base_url=self.url, headers=headers_of(self.key), transport=transport)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def perform(self, step: Call | Pause) -> Answer | Broken | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        began = time.monotonic()
        try:
            response = self._http.request(**step.arguments())
        except httpx.TransportError as error:
            return Broken.of(self.url, error, time.monotonic() - began)
        return Answer.of(response.status_code, response.headers.items(), response.content, time.monotonic() - began)

    def open(self, call: Call) -> Lines:
        return _Lines(self.url, self._http, call)


class _Lines(Lines):
    def __init__(self, url: str, http: httpx.Client, call: Call) -> None:
        self._url = url
        self._response: httpx.Response | None = None
        self._began = time.monotonic()
        try:
            self._response = http.send(http.build_request(**call.arguments()), stream=True)
            if self._response.is_error:
                self._response.read()
        except httpx.TransportError as error:
            self.head: Answer | Broken = self._broken(error)
            return
        body = self._response.content if self._response.is_error else b""
        self.head = Answer.of(
            self._response.status_code, self._response.headers.items(), body, time.monotonic() - self._began
        )
        self._lines = self._response.iter_lines()

    def _broken(self, error: Exception) -> Broken:
        return Broken.of(self._url, error, time.monotonic() - self._began)

    def read(self) -> str | Broken | None:
        try:
            return next(self._lines, None)
        except httpx.TransportError as error:
            return self._broken(error)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
