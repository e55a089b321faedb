"""
What the iterations of a training take while other trainings are on its GPU instance, and while none is. Used by
:class:`worker.training.job.Rank`. Pure: times are arguments, epoch seconds.

Iterations that met a function count for neither, nor those in which a training came, began or went.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

#: Iterations follow one another too closely to be independent: the scatter of a mean is that of means over so long, seconds.
_BLOCK_S: Final = 2.0
#: A scatter of fewer means is not known.
_LEAST_BLOCKS: Final = 5
#: So many iterations say more than those of an earlier time.
_ENOUGH: Final = 20
#: How far back each goes, seconds.
ALONE_S: Final = 300.0
BESIDE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """Iterations summed up: their mean in seconds, their count, and the standard error of the mean, 0 = not known."""

    mean: float = 0.0
    n: int = 0
    error: float = 0.0


class _Blocks:
    """Iterations of the last ``keep_s`` seconds."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        #: (end, sum of seconds, count); the last one is not full yet.
        self._blocks: deque[tuple[float, float, int]] = deque()
        self._begin: float | None = None

    def add(self, end: float, seconds: float) -> None:
        if self._begin is None or end - self._begin > _BLOCK_S:
            self._blocks.append((end, seconds, 1))
            self._begin = end - seconds
        else:
            _, total, count = self._blocks[-1]
            self._blocks[-1] = end, total + seconds, count + 1
        while self._blocks[0][0] < end - self._keep_s:
            self._blocks.popleft()

    def drop_last(self) -> None:
        """The block that was being filled: somebody may have come meanwhile."""
        if self._blocks:
            self._blocks.pop()
        self._begin = None

    def pace(self) -> IterationTimes:
        count = sum(n for _, _, n in self._blocks)
        if not count:
            return IterationTimes()
        mean = sum(total for _, total, _ in self._blocks) / count
        full = list(self._blocks)[:-1]
        if len(full) < _LEAST_BLOCKS:
            return IterationTimes(mean, count)
        # Of a ratio: blocks have different counts.
        squares = sum((total - mean * n) ** 2 for _, total, n in full)
        error = math.sqrt(squares * len(full) / (len(full) - 1)) / sum(n for _, _, n in full)
        return IterationTimes(mean, count, error)


class PaceBeside:
    """
    Iterations by who else trains here. ``alone``: what a former worker had measured.
    """

    def __init__(self, alone: IterationTimes | None = None) -> None:
        self._former = alone or IterationTimes()
        self._alone = _Blocks(ALONE_S)
        self._beside = _Blocks(BESIDE_S)
        #: Those that train here beside it, None = somebody has come and does not iterate yet.
        self.others: frozenset[str] | None = None
        self.since = 0.0

    def meet(self, now: float, others: frozenset[str] | None) -> bool:
        """Who else trains here from now on; whether that is new."""
        if others == self.others:
            return False
        if self.others == frozenset():
            self._alone.drop_last()
            self._former = self.alone
            self._alone = _Blocks(ALONE_S)
        self._beside = _Blocks(BESIDE_S)
        self.others, self.since = others, now
        return True

    def add(self, end: float, seconds: float) -> None:
        """One iteration that met no function."""
        if self.others is not None and end - seconds >= self.since and seconds > 0:
            (self._beside if self.others else self._alone).add(end, seconds)

    @property
    def alone(self) -> IterationTimes:
        """The last time that it was alone, or the time before where that was too short to say more."""
        pace = self._alone.pace()
        return pace if pace.n >= min(_ENOUGH, self._former.n) else self._former

    @property
    def beside(self) -> IterationTimes:
        """Since the last change."""
        return self._beside.pace()
