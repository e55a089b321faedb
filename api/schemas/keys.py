"""API keys."""

from datetime import datetime

from pydantic import BaseModel, Field

from api.schemas.fields import Body, Name, Text
from smore.domain.access import Scope


class KeyBody(Body):
    """``project``: default = the caller's; another one only for administrators of the project ``default``."""

    name: Text
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    project: Name | None = None


class Key(BaseModel):
    """An API key. ``key``: the secret, only in the answer to its creation."""

    id: str
    name: str
    project: str
    scopes: list[Scope]
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    key: str | None = None


class Keys(BaseModel):
    keys: list[Key]
