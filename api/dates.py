"""Instants as the API shows them."""

from datetime import UTC, datetime
from typing import Final

#: The first and the last second that a date can be of, epoch.
FIRST_S: Final = -62_135_596_800.0
LAST_S: Final = 253_402_300_799.0


def moment(at: float) -> datetime:
    """Epoch seconds as a date, which JSON shows in RFC 3339; beyond the first or last date, that one."""
    return datetime.fromtimestamp(min(max(FIRST_S, at), LAST_S), UTC)
