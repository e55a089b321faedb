"""Who may do what: scopes, and the form of an API key's token."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

#: 48 random bits to find a key by, 256 random bits that prove it.
_TOKEN = re.compile(r"smk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


class Scope(StrEnum):
    """
    What an API key may do in its project; ``admin`` may manage keys and projects as well.

    ``deploy`` and ``jobs`` run their holder's code on the GPU workers: each equals a shell there. A key has them only if
    it was created with them; the one exception is the operator's key, which a platform creates at its first start.
    """

    INVOKE = "invoke"
    READ = "read"
    DEPLOY = "deploy"
    JOBS = "jobs"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key."""

    id: str
    """The id by which it is revoked; no secret"""
    name: str
    """The name that it was given, for people"""
    project: str
    """The project whose functions and jobs it reaches"""
    scopes: Sequence[Scope]
    """What it may do"""
    created_at: datetime | None = None
    """When it was made; null in the answer to its creation"""
    revoked_at: datetime | None = None
    """When it was revoked; null = it holds"""
    key: str | None = None
    """The secret, only in the answer to its creation"""


def new_token() -> str:
    """``smk_<id: 12 hex digits>_<secret: 43 characters>``."""
    return f"smk_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def read_token(token: str) -> tuple[str, str] | None:
    """
    (id, SHA-256 hex digest of the secret part) of a token; None where the text has not the form of a token.

    Compare the digest in constant time with that of the key (:class:`smore.redis.catalog.KeyEntry`).
    """
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    return match[1], hashlib.sha256(match[2].encode()).hexdigest()
