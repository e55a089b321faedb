"""
The paper's rule: as many instances as the next minute's predicted requests need, closed when as many have come (section
VI-B).
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final, Literal, TypeAlias

from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm.fixed import KeepAlive
from scheduler.policy.prewarm.window import WarmWindow

MINUTE_S: Final = 60.0
#: Means above this take the normal approximation of a Poisson stream.
LARGE: Final = 500.0
Instances: TypeAlias = Literal["little", "literal"]


def rounded(mean: float) -> int:
    """Half up, not below 0 (A38)."""
    return max(0, math.floor(mean + 0.5))


def requests_of(mean: float, quantile: float | None) -> int:
    """
    ``rqnum`` of a minute in which ``mean`` requests are expected. ``quantile`` None: the mean, rounded (A38), as the
    paper has it. Else the smallest number that a Poisson stream of this mean exceeds with a chance of at most 1 -
    ``quantile``.
    """
    if quantile is None:
        return rounded(mean)
    if mean <= 0:
        return 0
    if mean > LARGE:
        # The normal approximation: the terms of the sum below would vanish.
        return max(0, math.ceil(mean + NormalDist().inv_cdf(quantile) * math.sqrt(mean) - 0.5))
    chance = at_most = math.exp(-mean)
    requests = 0
    while at_most < quantile and chance > 0.0:
        requests += 1
        chance *= mean / requests
        at_most += chance
    return requests


def instances_for(requests: int, run_s: float, *, burst: float = 1.5, how: Instances = "little") -> int:
    """
    How many instances a minute with that many requests needs (A39): Little's law with a margin, or one for each request
    a second.
    """
    if requests <= 0:
        return 0
    rate = requests / MINUTE_S
    return max(1, math.ceil(rate * run_s * burst)) if how == "little" else math.ceil(rate)


class PaperRule:
    """
    Holds from the beginning of a minute on what its ``rqnum`` (Eq. 8, ``Forecast.mean``) needs, and what was loaded
    beyond that, to the minute's end. ``rqnum`` requests later everything idle goes (A41), unless less than a cold start
    is left of the minute and the next one has requests too (A42; ``guard``).

    ``run_s``, ``load_s``: a warm run, a cold start. ``quantile``: see
    :func:`requests_of`. Where there is no forecast, or NaN, it is a keep-alive of ``keep_s``.
    """

    def __init__(
        self,
        *,
        run_s: float,
        load_s: float,
        burst: float = 1.5,
        how: Instances = "little",
        guard: bool = True,
        keep_s: float = 60.0,
        quantile: float | None = None,
    ) -> None:
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"quantile is {quantile}: a number between 0 and 1 is expected")
        self._quantile = quantile
        self._run_s, self._load_s, self._burst, self._guard = run_s, load_s, burst, guard
        self._how: Instances = how
        self._keep = KeepAlive(seconds=keep_s)
        self._requests: int | None = None
        self._next = 0
        self._seen = 0
        self._until = -math.inf
        self._held = 0

    def arrived(self, at: float) -> Sequence[WarmWindow] | None:
        if self._requests is None or at >= self._until:
            return None
        self._seen += 1
        if not self._held or self._seen < max(1, self._requests):
            return None
        if self._guard and self._next > 0 and self._until - at < self._load_s:
            return None
        self._held = 0
        return ()

    def idle(self, at: float, instances: int, busy: int = 0) -> Sequence[WarmWindow] | None:
        kept = self._keep.idle(at, instances, busy)
        if self._requests is None:
            return kept
        if self._held and at < self._until:
            self._held = max(self._held, instances + busy)
        return self._holds(at)

    def minute(self, at: float, count: int | None, forecast: Forecast | None) -> Sequence[WarmWindow] | None:
        ahead = [] if forecast is None else [forecast.expected(at), forecast.expected(at + MINUTE_S)]
        self._seen, self._until = 0, at + MINUTE_S
        if not ahead or math.isnan(ahead[0]):
            self._requests = None
            return None
        self._requests = requests_of(ahead[0], self._quantile)
        self._next = 0 if math.isnan(ahead[1]) else requests_of(ahead[1], self._quantile)
        self._held = instances_for(self._requests, self._run_s, burst=self._burst, how=self._how)
        return self._holds(at)

    def _holds(self, at: float) -> Sequence[WarmWindow]:
        return (
            (WarmWindow(from_at=at, until_at=self._until, instances=self._held),)
            if self._held and at < self._until
            else ()
        )
