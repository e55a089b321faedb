"""A secret of a project, as anybody may see it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret without its value."""

    name: str
    created_at: datetime
    updated_at: datetime
