"""
How much of the time a guest may run, so that its host loses no more to it than its owner allows. Pure: times are arguments.

The host is compared with itself in closed windows, in which the guest is held back altogether (worker/training/windows.py).
Where it is surely slower than its ``share`` allows (one-sided 95 %), the guest goes down to the part of the time in which
the host would be within it, if what it costs is in proportion to that time; one step at least. It comes back a step once
the host would stay within nine tenths of its share there. After each step it is judged again by younger iterations alone.
"""

from dataclasses import dataclass
from typing import Final

from smore.domain.loss import LEAST_ITERATIONS, LEAST_RECENT, Sample, over_budget
from worker.training.windows import RECENT_S

#: The parts of the time in which a guest may run.
FRACTIONS: Final = (1.0, 0.75, 0.5, 0.25, 0.05)
#: Of the host's share: a guest comes back only if no more than this would be lost.
_SPARE: Final = 0.9


@dataclass(slots=True)
class Governor:
    """Of one guest. ``fraction``: the part of the time in which it may run."""

    fraction: float = 1.0
    _settled_at: float = 0.0

    def judge(self, now: float, share: float, recent: Sample | None, closed: Sample | None) -> bool:
        """Whether ``fraction`` has changed by what the host's iterations (recent, in closed windows) say now."""
        if recent is None or closed is None or recent.n < LEAST_RECENT or closed.n < LEAST_ITERATIONS:
            return False
        if now < self._settled_at:
            return False
        before, place = self.fraction, FRACTIONS.index(self.fraction)
        loss = recent.mean / closed.mean - 1
        if over_budget(recent, closed, share):
            lower = [fraction for fraction in FRACTIONS if fraction < before]
            self.fraction = next((fraction for fraction in lower if loss * fraction <= share * before), FRACTIONS[-1])
        elif place and loss * FRACTIONS[place - 1] <= _SPARE * share * before:
            self.fraction = FRACTIONS[place - 1]
        if self.fraction == before:
            return False
        self._settled_at = now + max(RECENT_S, LEAST_RECENT * recent.mean)
        return True
