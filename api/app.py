"""
The gateway's composition root: ``python -m api.app``.

Speed: an invocation, native or of the Open Inference Protocol, goes from :class:`Application` straight to its handler,
past FastAPI's middlewares, routing and dependency machinery. Every other path is ordinary FastAPI.
"""

import gc
import math
import os
import re
import signal
import sys
import threading
from asyncio import CancelledError
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.deps import Gateway
from api.errors import hybrid
from api.live import Live
from api.openinference import routes
from api.request_log import answered
from api.routes import (
    attached,
    audit,
    blobs,
    functions,
    gpus,
    health,
    invocations,
    jobs,
    keys,
    live,
    logs,
    predictor,
    prewarm,
    projects,
    quarantine,
    queues,
    secrets,
    series,
    session,
    traces,
)
from api.routes import explain as explain_routes
from api.server import pages, ui
from api.server.bodies import body_too_large
from api.server.connections import protocol
from api.server.description import describe
from smore.domain.errors import SmoreError
from smore.process.environment import settings
from smore.process.observability import configure, logger
from smore.process.settings import Settings

log = logger("api")

#: How long a stopping gateway waits for callers whose invocations run; then it cancels their requests. The supervisor
#: kills it after 10 s.
SHUTDOWN_S = 8

#: Seconds for which a browser may keep the answer to a preflight request.
CORS_S = 600

_PREFIX, _SUFFIX = "/v1/functions/", "/invocations"
_BLOBS = "/v1/blobs/"
_OIP = "/v2"
_INFER = re.compile(rf"{_OIP}/models/([^/]+)(?:/versions/([^/]+))?/infer")
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Application(FastAPI):
    """FastAPI with a request id on every answer, one way for errors to be told, and the short way to the hot path."""

    def __init__(self, cors_origins: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        #: Held while the description is made: on Python 3.11 two threads must not parse sources at the same time.
        self._describing = threading.Lock()
        #: What answers a request; outermost, because an invocation goes past the middlewares of FastAPI.
        self._outermost: ASGIApp = self._answer
        if cors_origins:
            self._outermost = CORSMiddleware(
                self._answer,
                allow_origins=cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["*"],
                max_age=CORS_S,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        await self._outermost(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        request_id = scope["request_id"] = _request_id(scope)
        path: str = scope["path"]
        response: Response
        if scope["method"] == "POST" and path.startswith(_PREFIX) and path.endswith(_SUFFIX):
            name = path[len(_PREFIX) : -len(_SUFFIX)]
            if name and "/" not in name:
                scope["path_params"] = {"function": name}
                try:
                    response = await invocations.invoke(Request(scope, receive), name)
                except (Exception, CancelledError) as error:  # noqa: BLE001 - whatever it is, the caller gets an answer and the log the rest
                    response = answered(scope, error)
                await response(scope, receive, send)
                return
        elif scope["method"] == "POST" and (inference := _INFER.fullmatch(path)) is not None:
            scope["path_params"] = {"model": inference[1]}
            try:
                response = await routes.infer(Request(scope, receive), inference[1], inference[2])
            except (Exception, CancelledError) as error:  # noqa: BLE001 - as above
                response = hybrid(answered(scope, error))
            await response(scope, receive, send)
            return
        await self._ordinary(scope, receive, send, request_id)

    def openapi(self) -> dict[str, Any]:
        with self._describing:
            if self.openapi_schema is None:
                self.openapi_schema = describe(
                    title=self.title,
                    summary=self.summary or "",
                    version=self.version,
                    routes=self.routes,
                )
            return self.openapi_schema

    async def _ordinary(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        header = (b"x-request-id", request_id.encode())
        # FastAPI reads the cookies of every request, and Python unquotes one in time that grows with the square of its
        # length (CVE-2024-7592). The session's has no quotes.
        scope["headers"] = [
            (name, value.replace(b'"', b"") if name == b"cookie" else value) for name, value in scope["headers"]
        ]
        # An upload is taken piece by piece and bounded by the size that it announces.
        if not (scope["method"] == "PATCH" and scope["path"].startswith(_BLOBS)):
            receive = _bounded(scope, receive, self.state.gateway.settings.api.max_body_bytes)

        begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start" and all(
                name != b"x-request-id" for name, _ in message["headers"]
            ):
                message["headers"] = [*message["headers"], header]
            await send(message)

        try:
            await super().__call__(scope, receive, send_with_id)
        except Exception as error:  # noqa: BLE001 - it has been answered and recorded by _explained; Starlette raises it again for servers' logs
            log.debug("raised", error=type(error).__name__, request_id=request_id)
        except CancelledError as error:
            # Uvicorn would answer 500.
            if not begun:
                await answered(scope, error)(scope, receive, send)


def _bounded(scope: Scope, receive: Receive, most: int) -> Receive:
    """
    The request's body, of which no more is read than shows that it is too large: FastAPI reads whole ones, before it
    asks for a key.
    """
    announced = next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)
    came = 0

    async def counted() -> Message:
        nonlocal came
        if announced <= most:
            message = await receive()
            came += len(message.get("body", b""))
            if came <= most:
                return message
        # FastAPI would take any other error for a body that cannot be read.
        raise HTTPException(413, str(body_too_large(most, announced)), {"Connection": "close"})

    return counted


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value) is not None:
            given: str = value.decode()
            return given
    return os.urandom(12).hex()


async def _explained(request: Request, error: Exception) -> Response:
    answer = answered(request.scope, error)
    if answer.status_code == 405:
        # Each method of a path is a route of its own, and the router knows the first one alone.
        routes: list[BaseRoute] = request.scope["app"].routes
        matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
        methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
        answer.headers["Allow"] = ", ".join(sorted(methods))
    path: str = request.scope["path"]
    return hybrid(answer) if path == _OIP or path.startswith(_OIP + "/") else answer


def create_app(config: Settings) -> Application:
    """The ASGI application. It reaches for Redis when it starts, not here."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = Gateway(config)
        app.state.gateway = gateway
        app.state.live = watched = Live(gateway)
        await gateway.start()
        try:
            yield
        finally:
            watched.stop()
            await gateway.stop()

    app = Application(
        cors_origins=config.api.cors_origins,
        title="SMore",
        summary="Functions in the idle part of GPUs that are busy training",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        exception_handlers={Exception: _explained},
    )
    for kind in (SmoreError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _explained)
    for module in (
        invocations,
        explain_routes,
        functions,
        blobs,
        queues,
        gpus,
        attached,
        # Before jobs, one of which might be named attempts.
        series,
        jobs,
        predictor,
        prewarm,
        keys,
        session,
        live,
        logs,
        projects,
        secrets,
        quarantine,
        audit,
        health,
        routes,
        traces,
    ):
        # Included, each route would be made a second time, by the first request.
        app.routes.extend(module.router.routes)
    pages.add_to(app)
    ui.add_to(app)
    return app


def main() -> None:
    config = settings()
    configure(config, "gateway")
    # What was imported stays, and a request leaves no cycles behind: seldom collections, over what is new alone.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    # uvicorn raises the signal once more after it has ended in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(
        create_app(config),
        host=config.api.host,
        port=config.api.port,
        loop="uvloop",
        http=protocol(config.api),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        backlog=2048,
        timeout_keep_alive=math.ceil(config.api.keep_alive_s),
        timeout_graceful_shutdown=SHUTDOWN_S,
    )


if __name__ == "__main__":
    main()
