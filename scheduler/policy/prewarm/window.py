"""What every prewarming rule is told and what it answers: one interface for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.policy.forecast import Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmWindow:
    """
    At least ``instances`` instances should be loaded, at work or not, from ``from_at`` until before ``until_at`` (epoch
    seconds; inf = for ever). Whoever acts begins to load a cold start earlier than ``from_at``; what is more than is
    held and idle may go at once.
    """

    from_at: float
    until_at: float
    instances: int = 1


class PrewarmRule(Protocol):
    """
    The rule of one function. Each method answers with the holds from now on, which replace all that were said before;
    None = they stay.

    Times are epoch seconds and never decrease from call to call; a clock that jumps is straightened by the caller.
    """

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        """A request came."""
        ...

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        """
        An instance has ended its work and has none: ``instances`` are loaded and idle now, this one included; ``busy``
        are at work.
        """
        ...

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        """
        A minute begins. ``count`` arrivals came in the one before, None = nobody counted. ``forecast`` is None where
        there is none.
        """
        ...
