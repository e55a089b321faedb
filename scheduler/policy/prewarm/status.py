"""How functions are kept ready, for people; and why an invocation had to load an instance."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smore.domain.function import Prewarming


class ColdStartReason(StrEnum):
    """Why no instance stood ready for an invocation that had to load one."""

    #: Prewarming is off, for the function (``prewarm: off``) or altogether.
    OFF = "off"
    #: It runs a revision that does not take the function's traffic.
    OTHER_REVISION = "other_revision"
    NEVER_SEEN = "never_seen"
    #: The rule had nothing to go by (:data:`SILENCES`), and the keep-alive was over.
    NO_FORECAST = "no_forecast"
    STALE = "stale"
    NOT_A_NUMBER = "not_a_number"
    #: The rule wanted no instance.
    NOT_FORESEEN = "not_foreseen"
    #: The rule offloaded it within its keep-alive.
    GIVEN_UP = "given_up"
    #: A load was asked for, and is not done.
    LATE = "late"
    EVICTED = "evicted"
    NO_ROOM = "no_room"
    #: All instances are at work.
    MORE_AT_ONCE = "more_at_once"
    #: An instance is idle where nothing may run now.
    HELD_ELSEWHERE = "held_elsewhere"
    LOAD_FAILED = "load_failed"


#: Why a rule is not followed.
SILENCES: Final = (
    ColdStartReason.OFF,
    ColdStartReason.NO_FORECAST,
    ColdStartReason.STALE,
    ColdStartReason.NOT_A_NUMBER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmStatus:
    """
    How one function is kept ready. ``silence``: why its rule is not followed, '' = it is; ``source``: whose forecast or
    rule is followed.

    ``holds``: windows (from, until, instances) in epoch seconds. ``loaded``: instances that there are, loading ones
    included; ``parked``: instances in host memory, from where a load takes ``host_s`` and not ``load_s`` seconds.
    """

    function: str
    revision: int
    mode: Prewarming
    source: str
    silence: str
    wanted: int
    loaded: int
    unmet: bool
    load_s: float
    parked: int
    host_s: float
    holds: Sequence[tuple[float, float, int]]
