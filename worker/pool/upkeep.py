"""
The pool's own thread: lets go of what has been idle for long enough, measures instances, makes the standby runner.

Runs a round about once a second, and at once when :attr:`Residents.upkeep` is notified.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from smore.process import observability
from worker.pool.eviction import Eviction
from worker.pool.lifecycle import Ending
from worker.pool.loading import Loader
from worker.pool.memory import Memory
from worker.pool.residents import Residents
from worker.pool.standby import Standby

#: Seconds from one round to the next when nothing asks for one earlier.
ROUND_S: Final = 1.0
#: Seconds that :meth:`Upkeep.join` waits for a round that is under way.
_JOIN_S: Final = 10.0


@dataclass(eq=False, kw_only=True)
class Upkeep:
    """
    ``window_over`` as in :class:`worker.pool.pool.Pool`. Chooses with the pool's lock held, acts without it. The thread
    ends with the round after the pool is closed.
    """

    residents: Residents
    memory: Memory
    eviction: Eviction
    standby: Standby
    loader: Loader
    window_over: Callable[[], object]
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="pool", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread's end, once the pool is closed."""
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        residents = self.residents
        while True:
            with residents.lock:
                if residents.closed:
                    return
            self.round()
            with residents.lock:
                memory_mib = sum(instance.memory_mib for instance in residents)
                observability.RESIDENT_BYTES.labels(residents.gpu).set(memory_mib * 2**20)
                if not residents.closed:
                    residents.upkeep.wait(max(0.005, min([ROUND_S, *self.eviction.next_end_s()])))

    def round(self) -> None:
        """
        Do all that is due now. Work for the device waits for the end of a closed window, and counts as functions'.
        """
        with self.residents.lock:
            expired = self.eviction.expire()
            forgotten = self.residents.parked.due(self.residents.clock())
            crowded, standby = self.eviction.crowded_out()
            measured = self.memory.to_measure()
            standby_due = self.standby.due()
        if expired or forgotten or crowded or standby is not None or standby_due:
            self.window_over()
        self.loader.let_go(expired, Ending.KEEP_ALIVE)
        self.loader.unload(forgotten, Ending.KEEP_ALIVE)
        self.loader.let_go(crowded, Ending.EVICTED)
        if standby is not None:
            self.standby.end(standby)
        for instance in measured:
            self.memory.measure(instance)
        if standby_due:
            self.standby.make()
