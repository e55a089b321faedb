"""
Ends a worker whose heartbeat hangs in its own work, so that the supervisor starts another one: nothing that a worker holds
in its hands comes back by itself. Trainings go on, and the next worker adopts them.
"""

from typing import Final

#: Seconds between two looks, and those for which one round of the heartbeat may work: forty times the interval.
LOOK_S: Final = 1.0
HUNG_S: Final = 20.0
HUNG_EXIT: Final = 71


class Watchdog:
    """
    Detects a round of the heartbeat that does not end. Pure, for one thread.

    Only time in which the looks came counts: where the whole process was stopped, or the machine slept, nothing hung.
    """

    def __init__(self) -> None:
        self._round = 0
        self._hung_s = 0.0
        self._looked_at = 0.0

    def hung(self, *, now: float, working: int) -> bool:
        """
        Called every :data:`LOOK_S`, with monotonic seconds and the number of the round that works, 0 = none does: one that
        waits for Redis does not work.
        """
        if not working or working != self._round:
            self._round, self._hung_s = working, 0.0
        else:
            self._hung_s += min(now - self._looked_at, 2 * LOOK_S)
        self._looked_at = now
        return self._hung_s >= HUNG_S
