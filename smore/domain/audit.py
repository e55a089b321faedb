"""The record of what people and programs changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """
    One change. ``route``: method and path template; ``target``: what was changed; ``before`` and ``after``: the part
    that changed, null = it did not exist. ``key_name``, and of a job ``target_name``: their names now, null = no such
    name, or another project's.
    """

    id: int
    at: datetime
    project: str
    key_id: str
    route: str
    target: str
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    request_id: str
    key_name: str | None = None
    target_name: str | None = None
