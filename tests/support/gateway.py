"""The gateway's application in a thread of the test, keys for it, and its error documents."""

import socket
import threading
from typing import Any

import httpx
import uvicorn

from api.app import Application
from smore.domain.access import Scope, new_token, read_token
from smore.redis.catalog import Catalog, KeyEntry
from tests.support.eventually import eventually


class Served:
    """The application in a thread, on a port of its own (0) or a given one. ``http``: uvicorn's protocol."""

    def __init__(self, app: Application, port: int = 0, http: Any = "httptools") -> None:
        self.app = app
        self._server = uvicorn.Server(
            uvicorn.Config(app, loop="uvloop", http=http, ws="none", log_config=None, timeout_graceful_shutdown=2)
        )
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> "Served":
        self._thread.start()
        eventually(lambda: self._server.started, what="the gateway")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    @property
    def waiting(self) -> int:
        """Callers who wait."""
        return len(self.app.state.gateway.waiters)


def add_key(catalog: Catalog, *scopes: Scope, project: str = "default") -> str:
    token = new_token()
    read = read_token(token)
    assert read is not None
    catalog.put_key(KeyEntry(id=read[0], project=project, digest=read[1], scopes=[scope.value for scope in scopes]))
    return token


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["code"], body["status"]) == (code, status)
    assert body["request_id"] == response.headers["x-request-id"]
    return body
