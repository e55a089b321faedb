"""A secret of a project, as anybody may see it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret without its value."""

    name: str
    """The name by which functions and jobs use it"""
    created_at: datetime
    """When it was set for the first time"""
    updated_at: datetime
    """When its value was set last"""
