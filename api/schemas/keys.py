"""API keys."""

from datetime import datetime

from pydantic import Field

from api.schemas.fields import Body, Name, Schema, Text
from smore.domain.access import Scope


class KeyBody(Body):
    """An API key that is to be made."""

    name: Text
    """A name for people, by which the key is found again"""
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    """What the key is to be allowed"""
    project: Name | None = None
    """The project of the key; null = the caller's. Another one only for administrators of the project ``default``"""


class Key(Schema):
    """An API key."""

    id: str
    """The id by which it is revoked; no secret"""
    name: str
    """The name that it was given, for people"""
    project: str
    """The project whose functions and jobs it reaches"""
    scopes: list[Scope]
    """What it may do"""
    created_at: datetime | None = None
    """When it was made; null in the answer to its creation"""
    revoked_at: datetime | None = None
    """When it was revoked; null = it holds"""
    key: str | None = None
    """The secret, only in the answer to its creation"""


class Keys(Schema):
    """The API keys of a project."""

    keys: list[Key]
    """The keys, the newest first, revoked ones included"""
