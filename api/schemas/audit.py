"""Who changed what."""

from pydantic import BaseModel

from smore.domain.audit import AuditEntry


class AuditPage(BaseModel):
    """The newest first; ``next_cursor`` asks for the next page, null = this is the last."""

    entries: list[AuditEntry]
    next_cursor: int | None = None
