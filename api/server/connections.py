"""
Bounds on what one client may take of the gateway before its request is parsed: connections, time and bytes.

uvicorn bounds only how long a connection idles after an answer. It does not bound the time and size of a request's
head, the time of its body, the time in which the client reads the answer, or the number of connections, of all clients
or of one. :class:`Connection` is uvicorn's protocol with these bounds, which are the settings ``SMORE_API__*``
(:class:`smore.process.settings.ApiSettings`). An ordinary request costs two additions more; all connections are checked
once a second.
"""

import asyncio
import os
import resource
from collections.abc import Collection
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, ClassVar, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api.errors import problem
from api.server.sse import STOPPING
from smore.process.observability import logger
from smore.process.settings import ApiSettings

log = logger("api.server.connections")

#: Seconds between two checks of all connections.
LOOK_S: Final = 1.0
#: Most headers of one request.
MAX_HEADERS: Final = 128
#: Most requests that wait behind another one on one connection.
MAX_PIPELINED: Final = 32
#: Seconds for which bytes are read and dropped after an answer that came before the end of the request: closing at once
#: would reset the connection, and a reset may overtake the answer (RFC 9112, section 9.6).
LINGER_S: Final = 2.0
#: File descriptors kept for Redis, Postgres and files.
RESERVED: Final = 256

#: How heads begin: of an answer, of the one that asks for the body; a line of one whose length is not known.
_ANSWER: Final = b"HTTP/1.1 "
_GO_ON: Final = b"HTTP/1.1 100"
_CHUNKED: Final = b"\r\ntransfer-encoding: chunked\r\n"

_CLOSE: Final = {"Connection": "close"}


class _Transport:
    """
    The socket as uvicorn sees it. :meth:`close` does not close it at once while its request has not been read to its end.
    The head of an answer goes out with its body, for a write costs more than the rest of sending.
    """

    __slots__ = ("_connection", "_head", "_socket", "get_extra_info", "pause_reading", "resume_reading", "set_protocol")

    def __init__(self, socket: asyncio.Transport, connection: "Connection") -> None:
        self._socket = socket
        self._connection = connection
        #: The head of an answer whose body comes next.
        self._head = b""
        # Bound here, so that an ordinary request takes no additional call.
        self.get_extra_info = socket.get_extra_info
        self.pause_reading = socket.pause_reading
        self.resume_reading = socket.resume_reading
        self.set_protocol = socket.set_protocol

    def write(self, data: bytes) -> None:
        # A chunked body may begin much later, and with 100 nothing follows until the client sends.
        if self._head:
            self._socket.writelines((self._head, data))
            self._head = b""
        elif data.startswith(_ANSWER) and not data.startswith(_GO_ON) and _CHUNKED not in data:
            self._head = data
        else:
            self._socket.write(data)

    def flush(self) -> None:
        """Send a head to which no body came: the answer to HEAD."""
        if self._head:
            self._socket.write(self._head)
            self._head = b""

    def is_closing(self) -> bool:
        return self._connection.lingers or self._socket.is_closing()

    def close(self) -> None:
        self.flush()
        self._connection.end()


class Connection(HttpToolsProtocol):
    """
    One client's connection. :func:`protocol` makes the class with its ``bounds``; ``most``: most connections at once;
    ``senders``: the open connections by :func:`sender_of`, without those of proxies.
    """

    bounds: ClassVar[ApiSettings]
    most: ClassVar[int]
    senders: ClassVar[dict[str, set["Connection"]]]
    #: Whether the check once a second has been started.
    _watched: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lingers = False
        self._socket: asyncio.Transport | None = None
        self._answers: _Transport
        #: The client's address, '' = a proxy or a unix socket.
        self._sender = ""
        #: When the present state began: waiting for a request, a head, a body, an answer, lingering.
        self._since = 0.0
        self._in_head = False
        #: Bytes of the head after its first piece, of the present piece, of all pieces, and of all before the body.
        self._head = self._piece = self._fed = self._before_body = 0
        #: Bytes that were written and not yet sent, and since when that number has not changed.
        self._unsent, self._unsent_at = 0, 0.0

    # ---- what uvicorn and the parser call ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._socket = transport
        self._since = self.loop.time()
        self._answers = _Transport(transport, self)
        super().connection_made(self._answers)  # type: ignore[arg-type]  # all of it that uvicorn uses
        peer = transport.get_extra_info("peername")
        self._sender = sender_of(peer[0], self.bounds.proxies) if isinstance(peer, tuple) else ""
        if not (self._has_room_of_its_sender() and self._has_room(self.connections, self.most)):
            self._refuse(_crowded())
        elif not self._watched:
            type(self)._watched = True
            self.loop.call_later(LOOK_S, self._look_at_all, self.loop, self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        of_sender = self.senders.get(self._sender)
        if of_sender is not None:
            of_sender.discard(self)
            if not of_sender:
                del self.senders[self._sender]

    def data_received(self, data: bytes) -> None:
        if self.lingers:
            return
        began_before, self._piece = self._in_head, len(data)
        super().data_received(data)
        self._fed += self._piece
        if began_before and self._in_head:
            self._head += self._piece
            if self._head > self.bounds.max_head_bytes:
                self._refuse(_large_head())

    def shutdown(self) -> None:
        scope: Any = self.cycle.scope if self.cycle is not None else {}
        if (stopping := scope.get(STOPPING)) is not None:
            # A stream of events, which would not end by itself.
            stopping.set()
        super().shutdown()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head, self._since = True, 0, self.loop.time()

    def on_headers_complete(self) -> None:
        # What is raised here ends the connection with 400.
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests wait on one connection")
        app, most, fed = self.app, self.bounds.max_head_bytes, self._fed + self._piece
        # What came since the head before it, which is rarely that much, is counted first: it costs nothing.
        if len(self.headers) > MAX_HEADERS or (fed - self._before_body > most and self._head_bytes() > most):
            self.app = _refuse_head
        self._in_head, self._since, self._before_body = False, self.loop.time(), fed
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        self._answers.flush()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(problem(status=400, code="malformed", detail=msg, request_id=_request_id(), headers=_CLOSE))

    # ---- closing -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Close the connection once what was written has been sent; linger first if the body still comes."""
        assert self._socket is not None
        if self.cycle is not None and self.cycle.more_body:
            self._linger()
        elif not self.lingers:
            self._socket.close()

    def _linger(self) -> None:
        assert self._socket is not None
        if self.lingers or self._socket.is_closing():
            return
        self.lingers, self._since = True, self.loop.time()
        self.flow.resume_reading()
        self._socket.write_eof()

    def _refuse(self, answer: Response) -> None:
        """
        Answer instead of the application and close. Nothing is sent if a complete request still waits for its own answer.
        """
        assert self._socket is not None
        cycle = self.cycle
        if (
            cycle is None
            or cycle.response_complete
            or (cycle.more_body and not cycle.response_started and not self.pipeline)
        ):
            head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
            self._socket.write(STATUS_LINE[answer.status_code] + head + b"\r\n" + bytes(answer.body))
        if cycle is not None:
            # The application learns that its caller has gone, and its answer is dropped.
            cycle.disconnected = True
            cycle.message_event.set()
        self._linger()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _has_room_of_its_sender(self) -> bool:
        if not self._sender:
            return True
        of_sender = self.senders.setdefault(self._sender, set())
        of_sender.add(self)
        return self._has_room(of_sender, min(self.bounds.max_connections_per_sender, self.most))

    def _has_room(self, among: Collection[object], most: int) -> bool:
        """
        Whether the connection may stay ``among`` at most ``most``. Where there are more, those that have waited longest
        for a request are closed, several at a time because finding them takes a pass over all.
        """
        if len(among) <= most:
            return True
        waiting = sorted(
            (one for one in among if isinstance(one, Connection) and one is not self and one.waits), key=_age
        )
        for one in waiting[: max(1, most // 64)]:
            one.end()
        return bool(waiting)

    # ---- once a second -----------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether it waits for a request, or for the rest of a head."""
        return not self.lingers and (self._in_head or self.cycle is None or self.cycle.response_complete)

    @classmethod
    def _look_at_all(cls, loop: asyncio.AbstractEventLoop, connections: set[Any]) -> None:
        now = loop.time()
        for one in tuple(connections):
            one.look(now)
        loop.call_later(LOOK_S, cls._look_at_all, loop, connections)

    def look(self, now: float) -> None:
        """Close the connection if one of its bounds is exceeded."""
        assert self._socket is not None
        bounds, socket, cycle = self.bounds, self._socket, self.cycle
        unsent, for_s = socket.get_write_buffer_size(), now - self._since
        if unsent != self._unsent:
            self._unsent, self._unsent_at = unsent, now
        elif unsent and now - self._unsent_at > bounds.stall_s:
            socket.abort()
            return
        if self.lingers:
            if for_s > LINGER_S:
                socket.abort()
        elif socket.is_closing():
            return
        elif self._in_head:
            if for_s > bounds.head_s:
                self._refuse(_late("head", bounds.head_s))
        elif cycle is None:
            if for_s > bounds.head_s:
                socket.close()
        elif cycle.response_complete:
            # The client still sends a body that is not read any more, or only empty lines.
            if for_s > (LINGER_S if cycle.more_body else bounds.keep_alive_s + LOOK_S):
                socket.abort()
        elif cycle.more_body:
            if self.flow.read_paused:
                # The gateway has paused reading; that time does not count.
                self._since += LOOK_S
            elif for_s > bounds.stall_s + (self._fed - self._before_body) / bounds.min_bytes_per_s:
                self._refuse(_late("body", bounds.stall_s))


def _age(one: Connection) -> float:
    return one._since


@lru_cache(4096)
def sender_of(address: str, proxies: tuple[str, ...]) -> str:
    """
    The sender that an address counts as: the address itself, or for IPv6 its network of 64 bits, because a host chooses
    its addresses in it (RFC 4862). '' for one of ``proxies`` (addresses and networks), which stands for many senders.
    """
    ip = ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if ip.version == 6 else None
    ip = mapped or ip
    if any(ip in ip_network(proxy) for proxy in proxies):
        return ""
    return str(ip) if ip.version == 4 else str(ip_network((ip, 64), strict=False))


def protocol(bounds: ApiSettings) -> type[Connection]:
    """The protocol for a server with these bounds. Raises the process's soft limit of descriptors where it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = bounds.max_connections + RESERVED
    if soft < wanted:
        soft = min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = min(bounds.max_connections, max(1, soft - RESERVED))
    if most < bounds.max_connections:
        log.warning("fewer connections than set: too few descriptors", connections=most, descriptors=soft)
    return type("BoundedConnection", (Connection,), {"bounds": bounds, "most": most, "senders": {}})


# ---- answers ---------------------------------------------------------------------------------------------------------


def _request_id() -> str:
    return os.urandom(12).hex()


def _large_head() -> Response:
    return problem(
        status=431,
        code="head_too_large",
        detail="The request's line and headers are more than is taken here.",
        request_id=_request_id(),
        headers=_CLOSE,
    )


def _late(what: str, within_s: float) -> Response:
    return problem(
        status=408,
        code="too_slow",
        detail=f"The request's {what} did not come within {within_s:g} s.",
        request_id=_request_id(),
        headers=_CLOSE,
    )


def _crowded() -> Response:
    return problem(
        status=503,
        code="unavailable",
        detail="The gateway has as many connections as it may, yours or all.",
        request_id=_request_id(),
        headers={"Retry-After": "1", **_CLOSE},
    )


async def _refuse_head(scope: Scope, receive: Receive, send: Send) -> None:
    await _large_head()(scope, receive, send)
