"""Secrets, whose values are never answered."""

from typing import Final

from pydantic import Field

from api.schemas.fields import STORABLE, Body, Schema
from smore.domain.secret import Secret

#: Characters that a value has at least: a shorter one could not be told from other text where it is masked.
SHORTEST: Final = 8


class SecretBody(Body):
    """The value of a secret."""

    # The route refuses a shorter one, because its error names the secret.
    value: str = Field(max_length=32_768, pattern=STORABLE, repr=False, json_schema_extra={"minLength": SHORTEST})
    """The value, which no answer ever has"""


class Secrets(Schema):
    """The secrets of a project."""

    secrets: list[Secret]
    """The secrets in the order of their names"""
