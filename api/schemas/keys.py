"""API keys."""

from pydantic import Field

from api.schemas.fields import Body, Name, Schema, Text
from smore.domain.access import Key, Scope


class KeyBody(Body):
    """An API key that is to be made."""

    name: Text
    """A name for people, by which the key is found again"""
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    """What the key is to be allowed"""
    project: Name | None = None
    """The project of the key; null = the caller's. Another one only for administrators of the project ``default``"""


class Keys(Schema):
    """The API keys of a project."""

    keys: list[Key]
    """The keys, the newest first, revoked ones included"""
