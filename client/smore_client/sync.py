"""The client that blocks."""

import time
from types import TracebackType
from typing import Self

import httpx

from smore_client.locate import locate
from smore_client.operation import Carrier
from smore_client.requests import Requests
from smore_client.transport import Answer, Broken, Call, Flow, Pause, T, headers_of


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

    def carry(self, flow: Flow[T]) -> T:
        outcome: Answer | Broken | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            match step:
                case Pause():
                    time.sleep(step.seconds)
                    outcome = None
                case Call():
                    outcome = self._exchange(step)

    def _exchange(self, call: Call) -> Answer | Broken:
        began = time.monotonic()
        try:
            response = self._http.request(
                call.method,
                call.path,
                params=call.query,
                headers=call.headers,
                content=call.content,
                timeout=call.timeout_s,
            )
        except httpx.TransportError as error:
            return Broken.of(self.url, error, time.monotonic() - began)
        return Answer.of(response.status_code, response.headers.items(), response.content, time.monotonic() - began)
