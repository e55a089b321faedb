"""
Callers who wait for an invocation to end: one subscription for the whole process, one future for each caller.

No waiter may be lost, so there are three ways to an ending: the reply on this gateway's channel; a re-read of **every**
waiter's record after each reconnect (what was published meanwhile is gone); and a re-read now and then, for endings
that are told on no channel or on another gateway's.
"""

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import redis
import redis.asyncio

from smore.process.observability import logger
from smore.redis.gateway_queue import GatewayQueue
from smore.redis.records import Reply, parse_replies

log = logger("api.waiters")

#: Beat of deadlines and re-reads. A wait ends at most this late, and a long poll learns of an ending at most about this
#: late.
TICK_S = 0.05
#: A waiter who was promised a reply has its record read anyway when it has waited this long, and again after as long.
DOUBT_S = 5.0
#: A subscription that is silent this long is asked for a sign of life, and given up after twice that.
SILENCE_S = 5.0
#: A change waits at most this long until this gateway has applied it.
ECHO_S = 2.0
#: Waiters re-read in one round trip.
_CHUNK = 200


@dataclass(slots=True, eq=False)
class Waiter:
    """Its ``future`` ends with the reply, or with None when ``until`` (monotonic seconds) has passed."""

    project: str
    id: str
    until: float
    #: Seconds between re-reads, and when the next is due.
    every: float
    due: float
    future: "asyncio.Future[Reply | None]"


class Waiters:
    """
    The table of waiters and the connection that feeds it.

    ``on_change`` gets each message of ``catalog_channel``; ``on_connect`` is called after every (re)subscription.
    """

    def __init__(
        self,
        pool: "redis.asyncio.ConnectionPool",
        queue: GatewayQueue,
        catalog_channel: str,
        on_change: Callable[[str], Awaitable[None]],
        on_connect: Callable[[], Awaitable[None]],
    ) -> None:
        self._pool = pool
        self._queue = queue
        self.channel = f"{queue.prefix}reply:{os.urandom(8).hex()}"
        self._catalog_channel = catalog_channel.encode()
        self._on_change = on_change
        self._on_connect = on_connect
        self._waiting: dict[str, list[Waiter]] = {}
        self._connection: redis.asyncio.Connection | None = None
        self._heard_at = 0.0
        self._rereading: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        #: Who waits until what was announced so far is applied, by what the server was asked to echo.
        self._echoes: dict[bytes, asyncio.Future[None]] = {}
        self._asked = 0
        self.connected = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._tick())]

    async def stop(self) -> None:
        tasks = [*self._tasks, self._rereading] if self._rereading is not None else self._tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait(self, project: str, id_: str, wait_s: float, *, told: bool) -> Reply | None:
        """
        How the invocation ended, None when it has not within ``wait_s``.

        ``told``: it was enqueued with this gateway's channel; otherwise its record is read at every tick.
        """
        waiter = self.expect(project, id_, wait_s, told=told)
        try:
            return await waiter.future
        finally:
            self.forget(waiter)

    def expect(self, project: str, id_: str, wait_s: float, *, told: bool) -> Waiter:
        """Begin to wait, before the ending can be told. Every waiter is to be forgotten in the end."""
        now = time.monotonic()
        every = DOUBT_S if told else TICK_S
        future: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        waiter = Waiter(project, id_, now + wait_s, every, now + (every if told else 0.0), future)
        waiters = self._waiting.get(id_)
        if waiters is None:
            self._waiting[id_] = [waiter]
        else:
            waiters.append(waiter)
        return waiter

    def forget(self, waiter: Waiter) -> None:
        waiters = self._waiting.get(waiter.id)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[waiter.id]

    async def caught_up(self) -> None:
        """
        Every change of the catalog announced before this call is applied when it returns. The server answers a PING on
        the subscribed connection behind all that it published to it; a new connection reads the whole catalog, which
        answers as well.

        Ends after ECHO_S in any case: a change that was made stays made while Redis is away.
        """
        token = b"%d" % self._asked
        self._asked += 1
        try:
            async with asyncio.timeout(ECHO_S):
                await self.connected.wait()
                connection = self._connection
                if connection is None:
                    return
                echo = self._echoes[token] = asyncio.get_running_loop().create_future()
                await connection.send_command("PING", token)
                await echo
        except (TimeoutError, redis.RedisError, OSError) as error:
            log.warning("a change may not be known here yet", error=str(error))
        finally:
            self._echoes.pop(token, None)

    def _echoed(self, tokens: Iterable[bytes]) -> None:
        for token in tokens:
            echo = self._echoes.pop(token, None)
            if echo is not None and not echo.done():
                echo.set_result(None)

    def _tell(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            for waiter in self._waiting.pop(reply.id, ()):
                if not waiter.future.done():
                    waiter.future.set_result(reply)

    # ---- the subscription --------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            connection: redis.asyncio.Connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
                # A connection of its own, read frame by frame: redis-py's PubSub takes ten times as long for a message.
                await connection.send_command("SUBSCRIBE", self.channel, self._catalog_channel)
                self._connection, self._heard_at = connection, time.monotonic()
                await self._read(connection)
            except (redis.RedisError, OSError, TimeoutError) as error:
                log.warning("the subscription broke", error=str(error))
            finally:
                self._connection = None
                self.connected.clear()
                await connection.disconnect(nowait=True)
            await asyncio.sleep(TICK_S)

    async def _read(self, connection: "redis.asyncio.Connection") -> None:
        reply_channel = self.channel.encode()
        confirmed = 0
        while True:
            frame = await connection.read_response(timeout=math.inf)
            self._heard_at = time.monotonic()
            kind = frame[0]
            if kind == b"message":
                if frame[1] == reply_channel:
                    self._tell(parse_replies(frame[2]))
                else:
                    await self._on_change(frame[2].decode())
            elif kind == b"subscribe":
                confirmed += 1
                if confirmed == 2:
                    await self._on_connect()
                    self._reread([waiter for waiters in self._waiting.values() for waiter in waiters])
                    self._echoed(list(self._echoes))
                    self.connected.set()
            elif kind == b"pong":
                self._echoed((frame[1],))

    # ---- time --------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            due: list[Waiter] = []
            for waiters in self._waiting.values():
                for waiter in waiters:
                    if waiter.until <= now:
                        if not waiter.future.done():
                            waiter.future.set_result(None)
                    elif waiter.due <= now:
                        due.append(waiter)
            if due and (self._rereading is None or self._rereading.done()):
                for waiter in due:
                    waiter.due = now + waiter.every
                self._reread(due)
            await self._listen_for_life(now)

    async def _listen_for_life(self, now: float) -> None:
        connection, silent_s = self._connection, now - self._heard_at
        if connection is None or silent_s < SILENCE_S:
            return
        try:
            if silent_s > 2 * SILENCE_S:
                await connection.disconnect(nowait=True)
            elif silent_s % 1.0 < TICK_S:
                await connection.send_command("PING")
        except (redis.RedisError, OSError):
            # The reading side meets the same break and reconnects.
            return

    def _reread(self, waiters: list[Waiter]) -> None:
        if self._rereading is not None and not self._rereading.done():
            # What a reconnect asks for contains what a tick asked for.
            self._rereading.cancel()
        self._rereading = asyncio.create_task(self._read_records(waiters))

    async def _read_records(self, waiters: list[Waiter]) -> None:
        for start in range(0, len(waiters), _CHUNK):
            try:
                replies = await self._queue.replies(
                    [(waiter.project, waiter.id) for waiter in waiters[start : start + _CHUNK]]
                )
            except (redis.RedisError, OSError) as error:
                # The next tick, or the reconnect, reads again.
                log.warning("waiters could not be re-read", error=str(error))
                return
            self._tell(reply for reply in replies if reply is not None)
