"""What the policy believes of each revision: run times, cold start, usage, degradation. Declared at first, then measured."""

from bisect import bisect_left
from dataclasses import dataclass, field

from scheduler.policy.load import Rate
from smore.domain.function import FunctionSpec

#: Weight of the declared (offline) averages against one online observation (digest A16).
OFFLINE_WEIGHT = 20.0
#: Weight of the newest run time in the moving average.
RUN_WEIGHT = 0.1
#: What is left of a size's own runs at each other run of the revision: once less than one is, it follows what the others say.
KNOWN_FADING = 0.99
#: The best case follows a faster run at once and a slower one by this much: one slow run must not make a function look impossible.
BEST_WEIGHT = 0.05
#: How far the moving average goes back to the best case when nothing was tried because of it.
RELAXED = 0.25
#: Of the rate at which a revision's invocations are placed.
PLACED_HALF_LIFE_S = 2.0
#: Weight of the newest return out of host memory in the moving average.
HOST_WEIGHT = 0.3
#: No run takes less than this, seconds: times are held against each other.
LEAST_S = 1e-6
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
    #: Kinds of its batches (cluster.py), by size.
    kinds: dict[int, int] = field(init=False, default_factory=dict)
    #: Seconds that a cold start takes; share of a GPU instance's SMs that a batch uses alone.
    load_s: float = field(init=False)
    sm: float = field(init=False)
    #: The larger of what was declared and what was seen.
    memory_mib: float = field(init=False)
    #: For how long a run may go on that cannot be stopped: the longest of its last runs anywhere, seconds.
    stretch_s: float = field(init=False, default=0.0)
    #: Invocations that were placed.
    placed: Rate = field(init=False, default_factory=lambda: Rate(half_life_s=PLACED_HALF_LIFE_S))
    _sizes: list[int] = field(init=False)
    _run_s: list[float] = field(init=False)
    _best_s: list[float] = field(init=False)
    #: By size: as declared, as its own runs have it, and how many those are, older ones fading.
    _declared: list[float] = field(init=False)
    _own_run_s: list[float] = field(init=False)
    _own_best_s: list[float] = field(init=False)
    _known: list[float] = field(init=False)
    _usage: float = field(init=False)
    _degradation: float = field(init=False)
    _observed: float = field(init=False, default=OFFLINE_WEIGHT)
    _memory_mib: float = field(init=False, default=0.0)
    _host_s: float | None = field(init=False, default=None)
    #: The longest of its last runs on each GPU instance, by row.
    _stretches: dict[int, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._adopt()

    def update(self, spec: FunctionSpec) -> None:
        """The catalog's word has changed: a canary has measured what was declared."""
        changed = spec.profile != self.spec.profile
        self.spec = spec
        if changed:
            self._adopt()

    def know(self, usage: float, degradation: float) -> None:
        """The averages of its profile take the place of the declared ones; what was observed before goes with those."""
        self._usage, self._degradation, self._observed = usage, degradation, OFFLINE_WEIGHT

    def _adopt(self) -> None:
        profile = self.spec.profile
        self._sizes = sorted(profile.run_s)
        self._run_s = [profile.run_s[size] for size in self._sizes]
        self._best_s, self._declared = list(self._run_s), list(self._run_s)
        self._own_run_s, self._own_best_s = list(self._run_s), list(self._run_s)
        self._known = [0.0] * len(self._sizes)
        self._usage = profile.usage_gain
        self._degradation = profile.degradation
        self._observed = OFFLINE_WEIGHT
        self.load_s, self.sm = profile.load_s, profile.utilisation or profile.usage_gain
        self.memory_mib = max(profile.memory_mib, self._memory_mib)

    def _of(self, seconds: list[float], rows: int) -> float:
        sizes = self._sizes
        position = bisect_left(sizes, rows)
        if position == len(sizes):
            return seconds[-1] * rows / sizes[-1]
        if position == 0 or sizes[position] == rows:
            return seconds[position]
        part = (rows - sizes[position - 1]) / (sizes[position] - sizes[position - 1])
        return seconds[position - 1] + part * (seconds[position] - seconds[position - 1])

    def run_s(self, rows: int) -> float:
        """Seconds to expect of a batch that runs alone, between known sizes on a line, beyond the largest in proportion."""
        return self._of(self._run_s, rows)

    def best_s(self, rows: int) -> float:
        """Seconds of a batch when all goes well: what makes a deadline impossible."""
        return self._of(self._best_s, rows)

    @property
    def host_s(self) -> float:
        """Seconds that a load out of host memory takes, as measured; a cold start before one was."""
        return self.load_s if self._host_s is None else self._host_s

    @property
    def degradation(self) -> float:
        """Potential increase in degradation: the offline average blended with what was observed (A17)."""
        return self._degradation

    @property
    def priority(self) -> float:
        """Eq. 5: usage gain over degradation."""
        return self._usage / max(self._degradation, EPSILON)

    def observe_run(self, rows: int, seconds: float, slowdown: float = 0.0) -> None:
        """
        Blend one measured warm batch into the size it belongs to: a declared one, else the next power of two, made when it is met.

        A size of which no run has told lately takes its declared time, times the mean of what the others take over theirs: where a
        declaration or a canary was wrong for one row it was for eight, and batches that are wrongly taken to be slow would never be tried.
        Its best case is never above the declared one, for the same reason.

        ``slowdown``: the degradation that was predicted for it, a fraction: the time alone is what remains without it.
        """
        position = self._position(rows if rows in self._sizes else 1 << max(0, rows - 1).bit_length())
        seconds, best = max(seconds, LEAST_S), self._best_s[position]
        self._own_run_s[position] = self._run_s[position] + RUN_WEIGHT * (seconds / (1.0 + slowdown) - self._run_s[position])
        self._own_best_s[position] = seconds if seconds < best else best + BEST_WEIGHT * (seconds - best)
        known = self._known
        for other in range(len(known)):
            known[other] *= KNOWN_FADING
        known[position] += 1.0
        self._run_s[position], self._best_s[position] = self._own_run_s[position], self._own_best_s[position]
        if min(known) < 1.0:
            self._follow()

    def _position(self, size: int) -> int:
        """Of a size, which begins with what is expected of it."""
        position = bisect_left(self._sizes, size)
        if position == len(self._sizes) or self._sizes[position] != size:
            run_s, best_s, declared = self.run_s(size), self.best_s(size), self._of(self._declared, size)
            self._sizes.insert(position, size)
            for times, begins in (
                (self._run_s, run_s), (self._own_run_s, run_s), (self._best_s, best_s), (self._own_best_s, best_s),
                (self._declared, declared), (self._known, 0.0),
            ):  # fmt: skip
                times.insert(position, begins)
        return position

    def _follow(self) -> None:
        """Sizes of which less than one run tells lean on the others, each of which counts for the runs that have told of it."""
        known, declared, own_run_s, own_best_s = self._known, self._declared, self._own_run_s, self._own_best_s
        weight = run = best = 0.0
        for position, count in enumerate(known):
            weight += count
            run += count * own_run_s[position] / declared[position]
            best += count * own_best_s[position] / declared[position]
        for position, own in enumerate(known):
            if own < 1.0:
                usual, others = declared[position], weight - own
                by_run = (run * usual - own * own_run_s[position]) / others
                by_best = (best * usual - own * own_best_s[position]) / others
                self._run_s[position] = own * own_run_s[position] + (1.0 - own) * by_run
                self._best_s[position] = own * own_best_s[position] + (1.0 - own) * min(usual, by_best)

    def observe_host(self, seconds: float) -> None:
        """A load out of host memory took so long."""
        self._host_s = seconds if self._host_s is None else self._host_s + HOST_WEIGHT * (seconds - self._host_s)

    def relax(self) -> None:
        """Nothing was tried because it seemed too slow, so nothing can be learned: expect a little less until something is tried."""
        for position, best in enumerate(self._best_s):
            self._run_s[position] += RELAXED * (best - self._run_s[position])
        self._own_run_s = list(self._run_s)

    def observe_memory(self, memory_mib: float) -> None:
        self._memory_mib = max(self._memory_mib, memory_mib)
        self.memory_mib = max(self.memory_mib, memory_mib)

    def observe_stretch(self, row: int, seconds: float) -> None:
        """The longest of the last runs on a GPU instance, in place of what was said of it before."""
        before = self._stretches.get(row, 0.0)
        self._stretches[row] = seconds
        self.stretch_s = max(self.stretch_s, seconds) if before < self.stretch_s else max(self._stretches.values())

    def observe_effect(self, usage: float, degradation: float | None) -> None:
        """Blend what was seen while this function alone ran beside a job: mean of the declared value and all observations (A16, A17)."""
        self._observed += 1.0
        self._usage += (usage - self._usage) / self._observed
        if degradation is not None:
            self._degradation += (max(0.0, degradation) - self._degradation) / self._observed
