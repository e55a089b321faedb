"""Who changed what."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class AuditEntry(BaseModel):
    """
    One change. ``route``: method and path template; ``target``: what was changed; ``before`` and ``after``: the part
    that changed, null = it did not exist.
    """

    id: int
    at: datetime
    project: str
    key_id: str
    route: str
    target: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    request_id: str


class AuditPage(BaseModel):
    """The newest first; ``next_cursor`` asks for the next page, null = this is the last."""

    entries: list[AuditEntry]
    next_cursor: int | None = None
