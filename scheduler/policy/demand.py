"""What the policy believes of each revision: run times, cold start, usage, degradation. Declared at first, then measured."""

from bisect import bisect_left
from dataclasses import dataclass, field

from smore.domain.function import FunctionSpec

#: Weight of the declared (offline) averages against one online observation (digest A16).
OFFLINE_WEIGHT = 20.0
#: Weight of the newest run time in the moving average.
RUN_WEIGHT = 0.1
#: A denominator may not vanish (digest A19).
EPSILON = 0.01


@dataclass(slots=True)
class Demand:
    """One revision's demand. Mutable: owned by the policy's state."""

    function: str
    revision: int
    spec: FunctionSpec
    #: Column in the arrays of :class:`~scheduler.policy.cluster.Cluster`.
    column: int
    _sizes: list[int] = field(init=False)
    _run_s: list[float] = field(init=False)
    _usage: float = field(init=False)
    _degradation: float = field(init=False)
    _observed: float = field(init=False, default=OFFLINE_WEIGHT)

    def __post_init__(self) -> None:
        profile = self.spec.profile
        self._sizes = sorted(profile.run_s)
        self._run_s = [profile.run_s[size] for size in self._sizes]
        self._usage = profile.usage_gain
        self._degradation = profile.degradation

    def run_s(self, rows: int) -> float:
        """Seconds for a batch, from the smallest known size with room for it; beyond the largest in proportion."""
        position = bisect_left(self._sizes, rows)
        if position < len(self._sizes):
            return self._run_s[position]
        return self._run_s[-1] * rows / self._sizes[-1]

    @property
    def load_s(self) -> float:
        return self.spec.profile.load_s

    @property
    def memory_mib(self) -> float:
        return self.spec.profile.memory_mib

    @property
    def degradation(self) -> float:
        return self._degradation

    @property
    def priority(self) -> float:
        """Eq. 5: usage gain over degradation."""
        return self._usage / max(self._degradation, EPSILON)

    def observe_run(self, rows: int, seconds: float) -> None:
        """Blend one measured batch into the size it belongs to (sizes are powers of two, made as they are met)."""
        size = 1 << max(0, rows - 1).bit_length()
        position = bisect_left(self._sizes, size)
        if position == len(self._sizes) or self._sizes[position] != size:
            self._sizes.insert(position, size)
            self._run_s.insert(position, seconds)
        else:
            self._run_s[position] += RUN_WEIGHT * (seconds - self._run_s[position])

    def observe_effect(self, usage: float, degradation: float | None) -> None:
        """Blend what was seen while this function alone ran beside a job: mean of the declared value and all observations (A16, A17)."""
        self._observed += 1.0
        self._usage += (usage - self._usage) / self._observed
        if degradation is not None:
            self._degradation += (max(0.0, degradation) - self._degradation) / self._observed
