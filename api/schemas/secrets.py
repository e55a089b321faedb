"""Secrets, whose values are never answered."""

from datetime import datetime

from pydantic import BaseModel, Field

from api.schemas.fields import STORABLE, Body


class SecretBody(Body):
    """Eight characters at least: shorter ones could not be told from other text where they are masked."""

    value: str = Field(min_length=8, max_length=32_768, pattern=STORABLE, repr=False)


class Secret(BaseModel):
    """A secret without its value."""

    name: str
    created_at: datetime
    updated_at: datetime


class Secrets(BaseModel):
    secrets: list[Secret]
