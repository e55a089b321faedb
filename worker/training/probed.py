"""The closed windows of all ranks of a GPU instance, and its guest, as the threads need them that shut and hold back."""

import time
from collections.abc import Callable

from smore.domain.windows import Closing
from worker.training.holding import Holding
from worker.training.ranks import Ranks
from worker.training.run_gate import Due


class ProbedRanks:
    """
    What a :class:`~worker.training.run_gate.Prober` and a :class:`~worker.training.looker.Looker` work on; every method is
    safe from any thread. ``changed`` is called when reports would say something new.
    """

    def __init__(self, ranks: Ranks, holding: Holding, changed: Callable[[], None]) -> None:
        self._ranks, self._holding, self._changed = ranks, holding, changed

    def due(self) -> list[Due]:
        """The next closed window of every running rank that is measured."""
        now = time.time()
        with self._ranks.lock:
            due = []
            for job in self._ranks.all():
                for windows, guest in ((job.windows, False), (job.guest_windows, True)):
                    at = windows.due(now) if job.counts and windows is not None else None
                    if windows is not None and at is not None:
                        length_s, side_s = windows.length_s or 0.0, windows.side_s
                        due.append(Due(job=job.record.key, at=at, length_s=length_s, side_s=side_s, guest=guest))
            return due

    def runs(self, key: str) -> bool:
        """Whether the rank still runs."""
        with self._ranks.lock:
            job = self._ranks.get(key)
            return job is not None and job.running

    def closed(self, key: str, closing: Closing, *, guest: bool) -> None:
        """
        The run gate was shut for one rank, or its guest was held back: for the others, and for its windows of the other
        kind, it is a disturbance.
        """
        with self._ranks.lock:
            for job in self._ranks.all():
                for windows, of_guest in ((job.windows, False), (job.guest_windows, True)):
                    if windows is None:
                        continue
                    if job.record.key == key and of_guest is guest:
                        windows.closed(closing)
                    else:
                        windows.disturbed(closing)

    def shut_guest(self, on: bool) -> None:
        """Hold back the guest altogether for a window of its host, or let it run as before."""
        with self._ranks.lock:
            self._holding.shut(on)

    def guest_waits(self) -> bool:
        """Whether the guest computes nothing now."""
        with self._ranks.lock:
            return self._holding.waits()

    def hold(self) -> None:
        """Judge what the guest costs its host, and hold it back accordingly; called every LOOK_S of worker.training.holding."""
        with self._ranks.lock:
            before = self._holding.fraction
            self._holding.look(time.time(), self._ranks.all())
            changed = before != self._holding.fraction
        if changed:
            self._changed()
