"""Whether load is high: then the first acceptable GPU instance of a sample is taken instead of the best of all (digest A23)."""

from dataclasses import dataclass
from typing import Final

#: Seconds after which an arrival counts half.
HALF_LIFE_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class LoadSwitch:
    """
    With hysteresis. Offered load = seconds of work that arrive per second, over the slots there are.

    High from ``high`` on, or when as many wait as there are GPU instances; low again once it is at most ``low``, and fewer than half as
    many wait, for ``hold_s``.
    """

    high: float
    low: float
    hold_s: float
    is_high: bool = False
    #: Seconds of work per second, as of ``_at``.
    _work: float = 0.0
    _at: float = 0.0
    #: Since when load has been low; None = it is not.
    _low_since: float | None = None

    def arrived(self, now: float, seconds: float) -> None:
        """``seconds`` of work have come."""
        self._decay(now)
        self._work += seconds * 0.6931471805599453 / HALF_LIFE_S

    def offered(self, now: float) -> float:
        """Seconds of work per second."""
        self._decay(now)
        return self._work

    def fast(self, now: float, slots: float, waiting: int, gpus: int) -> bool:
        """Whether to sample now."""
        load = self.offered(now) / slots if slots else 0.0
        if load >= self.high or waiting >= gpus:
            self.is_high, self._low_since = True, None
        elif self.is_high:
            if load > self.low or 2 * waiting >= gpus:
                self._low_since = None
            elif self._low_since is None:
                self._low_since = now
            elif now - self._low_since >= self.hold_s:
                self.is_high, self._low_since = False, None
        return self.is_high

    def _decay(self, now: float) -> None:
        if now > self._at:
            self._work *= 0.5 ** ((now - self._at) / HALF_LIFE_S)
            self._at = now
