"""Rules that foresee nothing: never, always, a fixed keep-alive, and one that is told the future."""

import math
from collections.abc import Iterable, Sequence

from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm.window import WarmWindow


class Never:
    """Every instance goes when its work is done: the least that is held, the most cold starts."""

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        return None

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        return ()

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        return None


class Always:
    """``instances`` are held from the first call on, and never fewer than there ever were at once."""

    def __init__(self, *, instances: int = 1) -> None:
        self._instances = instances

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        return None

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        self._instances = max(self._instances, instances + busy)
        return self._hold(at)

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        return self._hold(at)

    def _hold(self, at: float) -> Sequence[WarmWindow]:
        return (WarmWindow(from_at=at, until_at=math.inf, instances=self._instances),)


class Levels:
    """
    The holds of a function's instances one above the other. Level n is at work while n instances or more are; when it
    falls idle, what is to be held of it is said in windows after that moment. Instances are alike and the last one used
    is used again first, so that a level's window is what one instance's own window would be.
    """

    def __init__(self) -> None:
        self._windows: list[list[tuple[float, float]]] = []

    def fell_idle(self, at: float, level: int, windows: Sequence[tuple[float, float]]) -> None:
        """``windows``: (from, until) in seconds after ``at``."""
        while len(self._windows) < level:
            self._windows.append([])
        self._windows[level - 1] = [(at + begin, at + end) for begin, end in windows if end > begin]

    def holds(self, at: float, busy: int) -> list[WarmWindow]:
        """
        What of it still lies ahead. Levels that are at work are held by their work, and by their windows again when it
        ends.
        """
        windows_ahead = []
        for index, windows in enumerate(self._windows):
            if index >= busy:
                windows_ahead += [
                    WarmWindow(from_at=max(at, begin), until_at=end, instances=index + 1)
                    for begin, end in windows
                    if end > at
                ]
        while self._windows and all(end <= at for _, end in self._windows[-1]):
            self._windows.pop()
        return windows_ahead


class KeepAlive:
    """An instance is kept for ``seconds`` after its last work (inf: for ever), the way most platforms do it."""

    def __init__(self, *, seconds: float = 60.0) -> None:
        if not seconds >= 0:
            raise ValueError(f"seconds is {seconds}: at least 0 is expected")
        self._levels = Levels()
        self._seconds = seconds

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        return None

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        self._levels.fell_idle(at, busy + 1, [(0.0, self._seconds)])
        return self._levels.holds(at, busy)

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        return None


class Oracle:
    """
    The oracle: it is told when how many instances will be at work, as ``work`` of (from, until, instances) in epoch
    seconds, and holds them then, and through every pause that is no longer than a load (``load_s``). Nothing wastes
    less.
    """

    def __init__(self, *, work: Iterable[tuple[float, float, int]], load_s: float) -> None:
        self._holds: list[WarmWindow] = []
        last: dict[int, WarmWindow] = {}
        for begin, end, instances in sorted(work):
            for level in range(1, instances + 1):
                before = last.get(level)
                if before is not None and begin - before.until_at <= load_s:
                    begin_at = before.from_at
                    end_at = max(end, before.until_at)
                else:
                    if before is not None:
                        self._holds.append(before)
                    begin_at, end_at = begin, end
                last[level] = WarmWindow(from_at=begin_at, until_at=end_at, instances=level)
        self._holds += last.values()

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        return None

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        return None

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        return [hold for hold in self._holds if hold.until_at > at]
