"""Why an invocation had to load an instance."""

from enum import StrEnum
from typing import Final


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
