"""Secrets, whose values are never answered."""

from pydantic import BaseModel, Field

from api.schemas.fields import STORABLE, Body
from smore.domain.secret import Secret


class SecretBody(Body):
    """Eight characters at least: shorter ones could not be told from other text where they are masked."""

    value: str = Field(min_length=8, max_length=32_768, pattern=STORABLE, repr=False)


class Secrets(BaseModel):
    secrets: list[Secret]
