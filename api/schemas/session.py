"""Who calls, and sessions of browsers."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from api.schemas.fields import Body, Number, Schema, Word
from smore.domain.access import Scope
from smore.redis.sessions import LASTS_S


class SessionBody(Body):
    """A login: with a ``key``, or with the ``code`` of ``POST /v1/session:code``."""

    key: Word | None = None
    """An API key with the scope ``read``"""
    code: Word | None = None
    """A login code in place of the key"""
    scopes: list[Literal[Scope.READ, Scope.INVOKE, Scope.JOBS, Scope.ADMIN]] = Field(default=[], max_length=4)
    """Which of the key's scopes the session is to have, as far as the key has them; ``read`` it has always"""
    hours: Annotated[Number, Field(gt=0, le=LASTS_S / 3600, allow_inf_nan=False)] = LASTS_S / 3600
    """How long it lasts at most; it ends before that where it is not used for two hours"""


class Me(Schema):
    """Whose request this is."""

    key: str
    """The id of the API key"""
    name: str
    """The name that the key was given, for people"""
    project: str
    """The project that the key belongs to"""
    scopes: list[Scope]
    """What this request may do: of a session the scopes that it was opened with"""
    operator: bool
    """Whether it reaches other projects: it has the scope ``admin`` in the project ``default``"""


class SessionSpan(Schema):
    """From when to when a session lasts."""

    created_at: datetime
    """When the login was"""
    expires_at: datetime
    """When the session ends at the latest"""


class Caller(Me):
    """Who calls, and by which means."""

    session: SessionSpan | None = None
    """The session of a browser; null = the request has the API key itself"""


class Opened(Me):
    """A new session. The other half of it is the cookie of this answer."""

    session: str
    """The half that the page sends as ``X-SMore-Session`` with every request; only in this answer"""
    expires_at: datetime
    """The last moment of the session"""


class Session(Me, SessionSpan):
    """The session of this request."""

    seen_at: datetime
    """When it was last used, to the minute"""


class LoginCode(Schema):
    """A code that opens one session of the key, once."""

    code: str
    """The code, for the fragment of the address ``/ui/login#CODE``"""
    expires_at: datetime
    """Until when it can be used"""
