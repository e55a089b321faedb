"""Who may do what: scopes, and the form of an API key's token."""

import hashlib
import re
import secrets
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
