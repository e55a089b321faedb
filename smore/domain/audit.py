"""The record of what people and programs changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change that a person or a program made."""

    id: int
    """The number of the entry; later changes have higher ones"""
    at: datetime
    """When the change was made"""
    project: str
    """The project in which it was made"""
    key_id: str
    """The id of the API key that made it"""
    route: str
    """Method and path template of the request"""
    target: str
    """What was changed, as ``KIND/NAME``"""
    before: Mapping[str, Any] | None = None
    """The changed part as it was; null = it did not exist"""
    after: Mapping[str, Any] | None = None
    """The changed part as it became; null = it does not exist any more"""
    request_id: str
    """The ``X-Request-Id`` of the request, by which the gateway's log has it"""
    session: str | None = None
    """The browser's session of that key by which it was made; null = by the key itself"""
    key_name: str | None = None
    """The name that the key has now; null = it has none, or is another project's"""
    target_name: str | None = None
    """The name that the changed job has now; null = no job, no such name, or another project's"""
