"""Who changed what."""

from api.schemas.fields import Schema
from smore.domain.audit import AuditEntry


class AuditPage(Schema):
    """A page of the record of changes."""

    entries: list[AuditEntry]
    """The changes, the newest first"""
    next_cursor: int | None = None
    """The ``cursor`` that asks for the next page; null = this is the last one"""
