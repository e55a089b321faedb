"""
Who calls with a session of a browser (smore/redis/sessions.py) in place of an API key.

A session counts only where a request has no API key; both of its halves are needed. A program on another port of the
gateway's host gets the cookie alone, a script that reads a page's storage the header alone.
"""

from typing import Final

from starlette.requests import Request
from starlette.types import Scope as HttpScope

from api.address import base_url
from api.errors import SessionForbidden
from smore.domain.access import Scope
from smore.domain.errors import Forbidden, Unauthorised
from smore.redis.catalog import AsyncCatalog, KeyEntry
from smore.redis.sessions import SessionEntry, Sessions

HEADER: Final = "X-SMore-Session"
#: What no session may do, and nothing below /v2: a stolen one must leave neither a key nor code behind.
FORBIDDEN: Final = frozenset(
    {
        "POST /v1/session:code",
        "POST /v1/keys",
        "DELETE /v1/keys/{key}",
        "GET /v1/secrets",
        "PUT /v1/secrets/{secret}",
        "DELETE /v1/secrets/{secret}",
        "PUT /v1/functions/{function}",
        "DELETE /v1/functions/{function}",
        "POST /v1/projects",
        "PATCH /v1/projects/{project}/limits",
        "GET /v1/blobs/{digest}",
        "GET /v1/blobs/{digest}/state",
        "PATCH /v1/blobs/{digest}",
        "GET /v1/traces",
        "POST /v1/traces",
        "DELETE /v1/traces/{trace}",
        "POST /v1/jobs/attach",
        "POST /v1/jobs/{job}/steps",
        "GET /metrics",
    }
)
_STANDARD: Final = "/v2"
#: Requests that change nothing: a page of another origin cannot read their answers.
_READS: Final = ("GET", "HEAD")


class SessionCaller(KeyEntry, frozen=True, kw_only=True):
    """A key as its session ``digest`` has it: with the session's scopes."""

    session: str
    entry: SessionEntry


class SessionAccess:
    """Checks sessions. ``instance``: the platform's, because a browser knows cookies by host and name alone."""

    def __init__(self, sessions: Sessions, catalog: AsyncCatalog, instance: str, public_url: str) -> None:
        self._sessions = sessions
        self._catalog = catalog
        self._public_url = public_url
        self.cookie = f"smore_{instance}"

    async def caller(self, scope: HttpScope, wanted: Scope, *others: Scope) -> SessionCaller:
        """
        The session behind the cookie and ``X-SMore-Session``: with the scope ``wanted``, or with one of ``others``.

        Raises Unauthorised, Forbidden, SessionForbidden.
        """
        request = Request(scope)
        cookie, half = _cookie(request, self.cookie), request.headers.get(HEADER, "")
        found = await self._sessions.find(cookie.encode(), half.encode()) if cookie and half else None
        key = self._catalog.keys.get(found[1].key) if found is not None else None
        if found is None or key is None:
            raise Unauthorised("The session has ended, or a half of it is missing: log in again.")
        digest, entry = found
        self.check_origin(request)
        # An invocation comes past the router.
        operation = f"{scope['method']} {scope['route'].path}" if "route" in scope else ""
        if operation in FORBIDDEN or scope["path"].startswith(_STANDARD):
            raise SessionForbidden
        if wanted not in entry.scopes and not any(other in entry.scopes for other in others):
            raise Forbidden(f"This session lacks the scope {wanted}: log in again with it.", scope=wanted.value)
        return SessionCaller(
            id=key.id,
            project=key.project,
            digest=key.digest,
            scopes=entry.scopes,
            name=key.name,
            session=digest,
            entry=entry,
        )

    def check_origin(self, request: Request) -> None:
        """
        Raises Forbidden where a browser says that a page of another origin sent the request, or where one that changes
        something does not say which page did.
        """
        site, origin = request.headers.get("sec-fetch-site", "none"), request.headers.get("origin", "")
        own = origin in (base_url(request), self._public_url) if origin else request.method in _READS
        if site not in ("same-origin", "none") or not own:
            raise Forbidden(
                "A session is used by pages of the gateway's own address alone; SMORE_API__PUBLIC_URL says it where a"
                " proxy changes Host.",
                field="Origin",
            )


def _cookie(request: Request, name: str) -> str:
    """The last cookie of this name, as it came: an invocation's are not without quotes (api/app.py). "" = there is none."""
    sent = ";".join(request.headers.getlist("cookie")).split(";")
    return dict(one.strip().partition("=")[::2] for one in sent).get(name, "")
