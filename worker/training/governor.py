"""
How much of the time a guest may run, so that its host loses no more to it than its owner allows. Pure: times are arguments.

The host is compared with itself in closed windows, in which the guest is held back altogether (smore/domain/windows.py).
The guest goes down where the windows since the last step prove that the host loses more than its ``share`` (one-sided 95 %,
each window against the iterations beside it), or where the fast test puts the loss above ``ALARM`` times that for
:data:`~smore.domain.windows.RECENT_S`, so that two sets of iterations say so: it does not see a machine that becomes
slower. The guest then has the part of the time in which the host would be within its share, if what it costs is in
proportion to that time; one step less at least. It comes back a step once the host would stay within nine tenths there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from smore.domain.loss import ALARM, LADDER, LEAST_RECENT, ClosedWindow, Sample, Sums, over_budget, surely_lost
from smore.domain.windows import RECENT_S

#: The parts of the time in which a guest may run.
FRACTIONS: Final = (1.0, *LADDER, 0.05)
#: Windows of which a mean loss is taken.
_LEAST_WINDOWS: Final = 3
#: Of the host's share: a guest comes back only if no more than this would be lost.
_SPARE: Final = 0.9


@dataclass(slots=True)
class Governor:
    """Of one guest. ``fraction``: the part of the time in which it may run."""

    fraction: float = 1.0
    #: When the last step was taken, and from when on the fast test compares younger iterations alone.
    stepped_at: float = 0.0
    _settled_at: float = 0.0
    #: Since when the fast test has found too much at every look; None = it does not now.
    _alarmed_at: float | None = None

    def judge(
        self, now: float, share: float, windows: Sequence[ClosedWindow], recent: Sample | None, closed: Sample | None
    ) -> bool:
        """
        Whether ``fraction`` has changed. ``windows``: the host's; ``recent`` and ``closed``: its last iterations outside and
        inside of them.
        """
        windows = [window for window in windows if window.start >= self.stepped_at]
        alarmed = self._alarmed(now, share, recent, closed)
        loss = None
        if len(windows) >= _LEAST_WINDOWS:
            sums = Sums.of(windows)
            loss = sums.open_s / sums.closed_s - 1
            if surely_lost(sums) > share:
                return self._down(now, share, loss, recent)
        if alarmed and recent is not None and closed is not None:
            return self._down(now, share, recent.mean / closed.mean - 1, recent)
        place = FRACTIONS.index(self.fraction)
        if place and loss is not None and loss * FRACTIONS[place - 1] <= _SPARE * share * self.fraction:
            return self._go(now, FRACTIONS[place - 1], recent)
        return False

    def _alarmed(self, now: float, share: float, recent: Sample | None, closed: Sample | None) -> bool:
        if now < self._settled_at or recent is None or closed is None or not over_budget(recent, closed, ALARM * share):
            self._alarmed_at = None
            return False
        if self._alarmed_at is None:
            self._alarmed_at = now
        return now - self._alarmed_at >= max(RECENT_S, LEAST_RECENT * recent.mean)

    def _down(self, now: float, share: float, loss: float, recent: Sample | None) -> bool:
        lower = [fraction for fraction in FRACTIONS if fraction < self.fraction]
        if not lower:
            return False
        return self._go(now, next((x for x in lower if loss * x <= share * self.fraction), lower[-1]), recent)

    def _go(self, now: float, fraction: float, recent: Sample | None) -> bool:
        self.fraction, self.stepped_at, self._alarmed_at = fraction, now, None
        self._settled_at = now + max(RECENT_S, LEAST_RECENT * recent.mean if recent is not None else 0.0)
        return True
