"""Who calls: an API key, found in the catalog's mirror by what the request presents."""

import hashlib
import hmac
from typing import Final

from smore.domain.access import Scope, read_token
from smore.domain.errors import Forbidden, InvalidSpec, Unauthorised
from smore.redis.catalog import AsyncCatalog, KeyEntry

#: Keys remembered by the digest of their header; beyond it all are forgotten at once, which costs each one hash again.
_REMEMBERED = 4096

#: How a request presents its key.
_EXPECTED: Final = "`Authorization: Bearer smk_...`, or `X-API-Key: smk_...`,"

#: The project whose administrators run the platform itself: all queues, GPU instances, projects.
OPERATORS = "default"


class Access:
    """Checks keys. What was checked once is one dictionary look-up until the catalog changes (:meth:`forget`)."""

    def __init__(self, catalog: AsyncCatalog) -> None:
        self._catalog = catalog
        self._known: dict[bytes, KeyEntry] = {}

    def forget(self) -> None:
        self._known.clear()

    def caller(self, authorization: bytes | None, api_key: bytes | None, scope: Scope, *others: Scope) -> KeyEntry:
        """
        The key behind ``Authorization: Bearer …`` or, without one, ``X-API-Key``: with ``scope``, or with one of
        ``others``.

        Raises Unauthorised, Forbidden.
        """
        presented = authorization if authorization is not None else api_key
        if presented is None:
            raise Unauthorised(f"The request has no API key: {_EXPECTED} is expected.")
        # Both headers' forms differ, so that one table serves both; a digest, because the table must not hold secrets.
        digest = hashlib.sha256(presented).digest()
        entry = self._known.get(digest)
        if entry is None:
            entry = self._check(_bearer(presented) if authorization is not None else presented)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[digest] = entry
        if scope not in entry.scopes and not any(other in entry.scopes for other in others):
            raise Forbidden(f"This API key lacks the scope {scope}.", scope=scope.value)
        return entry

    def _check(self, token: bytes) -> KeyEntry:
        read = read_token(token.decode("latin-1"))
        entry = self._catalog.keys.get(read[0]) if read is not None else None
        if read is None or entry is None or not hmac.compare_digest(entry.digest, read[1]):
            raise Unauthorised("The API key is not valid: it was mistyped, is of another platform, or was revoked.")
        return entry


def _bearer(header: bytes) -> bytes:
    scheme, _, token = header.partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthorised(f"The header Authorization has no API key: {_EXPECTED} is expected.")
    return token.strip()


def require_operator(caller: KeyEntry) -> None:
    """Raises Forbidden for an administrator of any project but the operators' own."""
    if caller.project != OPERATORS:
        raise Forbidden(f"Only administrators of the project {OPERATORS} may do this.")


def is_operator(caller: KeyEntry) -> bool:
    return caller.project == OPERATORS and Scope.ADMIN in caller.scopes


def listed_projects(caller: KeyEntry, named: str | None, *, all_projects: bool) -> str | None:
    """The project that a list is of, None = all. Raises Forbidden, InvalidSpec where both are asked for."""
    if not all_projects:
        return project_of(caller, named)
    if named is not None:
        raise InvalidSpec("Name one project or ask for all_projects, not both.", field="project")
    if not is_operator(caller):
        raise Forbidden("Only operators reach other projects.")
    return None


def project_of(caller: KeyEntry, named: str | None) -> str:
    """The project that a request is about: the key's own, or the one that it names. Raises Forbidden."""
    if named is not None and named != caller.project and not is_operator(caller):
        raise Forbidden("Only operators reach another project.")
    return named or caller.project
