"""
Sessions of browsers in Redis: what an API key has opened, for a time, with fewer scopes.

A session is proven by two halves of 256 random bits: a cookie, which a browser sends to every port of the gateway's host,
and a header, which only a page of the gateway can send. Redis has the hash of both together.
"""

import hashlib
import secrets
import time
from collections.abc import Awaitable
from typing import Final, cast

import msgspec
import redis.asyncio

#: The longest that a session lasts, and how long it may be unused, seconds.
LASTS_S: Final = 12 * 3600.0
UNUSED_S: Final = 2 * 3600.0
#: Seconds between two notes that a session is used.
NOTED_S: Final = 60.0
#: How long a login code may be used, once, seconds.
CODE_S: Final = 60
#: Sessions of one key; another one ends the oldest.
MOST: Final = 64
#: Characters of a session's hash that name it in the audit.
_NAMED: Final = 12


class SessionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the key ``key``. Times in epoch seconds."""

    key: str
    scopes: list[str]
    created_at: float
    seen_at: float
    expires_at: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SessionEntry).decode


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b".".join(parts)).hexdigest()


class Sessions:
    """Raises redis-py's errors. A session is named by its digest, which proves nothing."""

    def __init__(self, client: "redis.asyncio.Redis", prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    async def open(self, key: str, scopes: list[str], lasts_s: float) -> tuple[str, str, SessionEntry]:
        """A new session of a key: its two halves, and what is kept of it."""
        cookie, half, now = secrets.token_urlsafe(32), secrets.token_urlsafe(32), time.time()
        entry = SessionEntry(key=key, scopes=scopes, created_at=now, seen_at=now, expires_at=now + lasts_s)
        digest, of_key = _digest(cookie.encode(), half.encode()), self._of_key(key)
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(self._session(digest), _encode(entry), px=_left_ms(entry, now))
        pipe.zadd(of_key, {digest: now})
        pipe.expire(of_key, int(LASTS_S))
        pipe.zrange(of_key, 0, -MOST - 1)
        await self._end(key, (await pipe.execute())[-1])
        return cookie, half, entry

    async def find(self, cookie: bytes, half: bytes) -> tuple[str, SessionEntry] | None:
        """The session with these halves, which is used now, and its digest."""
        digest = _digest(cookie, half)
        entry = await self.used(digest)
        return None if entry is None else (digest, entry)

    async def used(self, digest: str) -> SessionEntry | None:
        """A session, which is used now; None where it has ended."""
        raw, now = cast("bytes | None", await self._redis.get(self._session(digest))), time.time()
        entry = _decode(raw) if raw is not None else None
        if entry is None or now >= entry.expires_at:
            return None
        if now - entry.seen_at >= NOTED_S:
            noted = msgspec.structs.replace(entry, seen_at=now)
            # One that was ended meanwhile stays so.
            await self._redis.set(self._session(digest), _encode(noted), px=_left_ms(noted, now), xx=True)
        return entry

    async def end(self, key: str, digest: str) -> None:
        await self._end(key, [digest.encode()])

    async def end_all(self, key: str) -> None:
        """End the sessions of a key."""
        await self._end(key, cast("list[bytes]", await self._redis.zrange(self._of_key(key), 0, -1)))

    async def _end(self, key: str, digests: list[bytes]) -> None:
        if digests:
            pipe = self._redis.pipeline(transaction=True)
            pipe.delete(*(self._session(digest.decode()) for digest in digests))
            pipe.zrem(self._of_key(key), *digests)
            await pipe.execute()

    async def code(self, key: str) -> tuple[str, float]:
        """A code that opens one session of a key, and until when, epoch seconds."""
        code = secrets.token_urlsafe(32)
        await self._redis.set(self._code(code), key, ex=CODE_S)
        return code, time.time() + CODE_S

    async def redeem(self, code: str) -> str | None:
        """The key whose session a code opens, once; None = it opens none."""
        key = await cast("Awaitable[bytes | None]", self._redis.getdel(self._code(code)))
        return None if key is None else key.decode()

    def _session(self, digest: str) -> str:
        return f"{self._prefix}session:{digest}"

    def _of_key(self, key: str) -> str:
        return f"{self._prefix}sessions:{key}"

    def _code(self, code: str) -> str:
        return f"{self._prefix}login:{_digest(code.encode())}"


def named(digest: str) -> str:
    """What the audit calls a session."""
    return digest[:_NAMED]


def _left_ms(entry: SessionEntry, now: float) -> int:
    return max(1, int(min(UNUSED_S, entry.expires_at - now) * 1000))
