"""A receiver of OTLP over HTTP that keeps the spans that it is sent."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(ThreadingHTTPServer):
    """As a context; answers with ``status``."""

    status = 200

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def __enter__(self) -> "Receiver":
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        assert self.headers["Content-Type"] == "application/json"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                self.server.spans += scope["spans"]
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass
