"""
What the policy believes of each revision: run times, cold start, usage, degradation. Declared at first, then measured.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from scheduler.policy.load import Placements
from smore.domain.function import FunctionSpec, between_sizes
from smore.domain.learned import Learned, LearnedTimes

#: Weight of the declared (offline) averages against one online observation (docs/paper.md, A16).
OFFLINE_WEIGHT = 20.0
#: Weight of the newest run time in the moving average.
RUN_WEIGHT = 0.1
#: What is left of a size's own runs at each other run of the revision: once less than one is, it follows what the
#: others say.
KNOWN_FADING = 0.99
#: The best case follows a faster run at once and a slower one by this much: one slow run must not make a function look
#: impossible.
BEST_WEIGHT = 0.05
#: How far the moving average goes back to the best case when nothing was tried because of it.
RELAXED = 0.25
#: Of how fast a revision's invocations are placed.
PLACED_HALF_LIFE_S = 2.0
#: The same of its bulk work.
BULK_HALF_LIFE_S = 30.0
#: Of an expectation above the declared time half the difference is forgotten in so many seconds without a run: what
#: nobody tries is never learned. Twice as slowly, up to the second number, after each run that disproves it.
FORGET_S, FORGET_SLOWEST_S = 1.0, 300.0
#: A run disproves what was forgotten only where that was more than this part of what remained.
DISPROVED = 0.2
#: Weight of the newest load, cold or out of host memory, in its moving average.
LOAD_WEIGHT = 0.3
#: No run takes less than this, seconds: times are held against each other.
LEAST_S = 1e-6
#: A denominator may not vanish (docs/paper.md, A19).
EPSILON = 0.01


@dataclass(slots=True, kw_only=True)
class _Times:
    """
    Of one batch size, seconds alone: as declared, what is expected of it (usually, and when all goes well), the same by
    its own runs, and how many of those there were, older ones fading.
    """

    declared_s: float
    run_s: float
    best_s: float
    own_run_s: float
    own_best_s: float
    runs: float = 0.0

    def forget(self, part: float) -> None:
        """Bring what lies above the declared time nearer to it, by ``part`` of the difference."""
        self.run_s += part * min(0.0, self.declared_s - self.run_s)
        self.best_s += part * min(0.0, self.declared_s - self.best_s)
        self.own_run_s += part * min(0.0, self.declared_s - self.own_run_s)
        self.own_best_s += part * min(0.0, self.declared_s - self.own_best_s)


#: Of no rows.
_NOTHING: Final = _Times(declared_s=0.0, run_s=0.0, best_s=0.0, own_run_s=0.0, own_best_s=0.0)


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
    #: Seconds that a cold start takes, as declared or measured; share of a GPU instance's SMs that a batch uses alone.
    load_s: float = field(init=False)
    sm: float = field(init=False)
    #: The larger of what was declared and what was seen.
    memory_mib: float = field(init=False)
    #: For how long a run may go on that cannot be stopped: the longest of its last runs anywhere, seconds.
    stretch_s: float = field(init=False, default=0.0)
    #: Invocations that were placed; and since when, at the earliest, what waits of it could have been, epoch seconds:
    #: when it began to wait, an instance became ready or its function was resumed.
    placed: Placements = field(init=False, default_factory=lambda: Placements(half_life_s=PLACED_HALF_LIFE_S))
    open_since: float = field(init=False, default=0.0)
    #: The same of its bulk work, and since when that has waited.
    bulk_placed: Placements = field(init=False, default_factory=lambda: Placements(half_life_s=BULK_HALF_LIFE_S))
    bulk_since: float = field(init=False, default=0.0)
    #: How often something of it was learned.
    lessons: int = field(init=False, default=0)
    #: Rising, and what is known of each.
    _sizes: list[int] = field(init=False)
    _times: list[_Times] = field(init=False)
    _usage: float = field(init=False)
    _degradation: float = field(init=False)
    _observed: float = field(init=False, default=OFFLINE_WEIGHT)
    #: When the last run ended, epoch seconds, -1 = none has; how fast what it said is forgotten, and which part is now.
    _ran_at: float = field(init=False, default=-1.0)
    _forget_s: float = field(init=False, default=FORGET_S)
    _forgotten: float = field(init=False, default=0.0)
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

    def learned(self) -> Learned:
        """All that :meth:`recall` needs."""
        return Learned(
            revision=self.revision,
            lessons=self.lessons,
            times=tuple(
                LearnedTimes(
                    rows=rows,
                    run_s=times.run_s,
                    best_s=times.best_s,
                    own_run_s=times.own_run_s,
                    own_best_s=times.own_best_s,
                    runs=times.runs,
                )
                for rows, times in zip(self._sizes, self._times, strict=True)
            ),
            load_s=self.load_s,
            host_s=self._host_s,
            usage=self._usage,
            degradation=self._degradation,
            observed=self._observed,
            ran_at=self._ran_at,
            forget_s=self._forget_s,
        )

    def recall(self, learned: Learned) -> None:
        """Go on with what a former leader had learned of the revision."""
        for known in learned.times:
            times = self._size(known.rows)
            times.run_s, times.best_s, times.runs = known.run_s, known.best_s, known.runs
            times.own_run_s, times.own_best_s = known.own_run_s, known.own_best_s
        self.load_s, self._host_s = learned.load_s, learned.host_s
        self._usage, self._degradation, self._observed = learned.usage, learned.degradation, learned.observed
        self._ran_at, self._forget_s, self.lessons = learned.ran_at, learned.forget_s, learned.lessons

    def _adopt(self) -> None:
        profile = self.spec.profile
        self._sizes = sorted(profile.run_s)
        declared = [profile.run_s[size] for size in self._sizes]
        self._times = [
            _Times(declared_s=time_s, run_s=time_s, best_s=time_s, own_run_s=time_s, own_best_s=time_s)
            for time_s in declared
        ]
        self._usage = profile.usage_gain
        self._degradation = profile.degradation
        self._observed = OFFLINE_WEIGHT
        self.load_s, self.sm = profile.load_s, profile.utilisation or profile.usage_gain
        self.memory_mib = max(profile.memory_mib, self._memory_mib)

    def _between(self, rows: int) -> tuple[_Times, _Times, float]:
        """
        What is known of the sizes on both sides, and how far it is from the one to the other (see
        :func:`smore.domain.function.between_sizes`).
        """
        times = self._times
        lower, upper, part = between_sizes(self._sizes, rows)
        return times[lower] if lower >= 0 else _NOTHING, times[upper], part

    def run_s(self, rows: int) -> float:
        """Seconds to expect of a batch that runs alone."""
        lower, upper, part = self._between(rows)
        run_s = lower.run_s + part * (upper.run_s - lower.run_s)
        if self._forgotten:
            declared_s = lower.declared_s + part * (upper.declared_s - lower.declared_s)
            run_s += self._forgotten * min(0.0, declared_s - run_s)
        return run_s

    def learned_s(self, rows: int) -> float:
        """:meth:`run_s` with nothing forgotten."""
        lower, upper, part = self._between(rows)
        return lower.run_s + part * (upper.run_s - lower.run_s)

    def best_s(self, rows: int) -> float:
        """Seconds of a batch when all goes well: what makes a deadline impossible."""
        lower, upper, part = self._between(rows)
        best_s = lower.best_s + part * (upper.best_s - lower.best_s)
        if self._forgotten:
            declared_s = lower.declared_s + part * (upper.declared_s - lower.declared_s)
            best_s += self._forgotten * min(0.0, declared_s - best_s)
        return best_s

    @property
    def row_s(self) -> float:
        """Seconds alone that each further row of a batch adds to the run of one, at most."""
        first = self.run_s(1)
        steps = [(self.run_s(size) - first) / (size - 1) for size in self._sizes if size > 1]
        return max(*steps, self.run_s(self._sizes[-1]) / self._sizes[-1], 0.0)

    def forget(self, now: float) -> None:
        """
        Without runs an expectation above the declared time returns to it: a function that a slow time has made look too
        slow for its deadlines is tried again, first where a deadline leaves most room.

        A run nearer to what was expected before puts that in force again, and doubles the time until the next try; a
        run nearer to what is expected now confirms it.
        """
        if self._ran_at >= 0:
            self._forgotten = 1.0 - 0.5 ** (max(0.0, now - self._ran_at) / self._forget_s)

    @property
    def host_s(self) -> float:
        """Seconds that a load out of host memory takes, as measured; a cold start before one was."""
        return self.load_s if self._host_s is None else self._host_s

    @property
    def degradation(self) -> float:
        """Potential increase in degradation: the offline average blended with what was observed (A17)."""
        return 0.0 if self.spec.precedence else self._degradation

    @property
    def priority(self) -> float:
        """Eq. 5: usage gain over degradation."""
        return self._usage / max(self._degradation, EPSILON)

    def observe_run(self, now: float, rows: int, seconds: float, slowdown: float = 0.0) -> None:
        """
        Blend one measured warm batch, which ended at ``now`` (epoch seconds), into the size it belongs to: a declared
        one, else the next power of two, made when it is met. There it counts as much longer as that size is expected to
        take: a batch of nine says little of one of sixteen by its own time.

        A size of which no run has told lately takes its declared time, times the mean of what the others take over
        theirs: where a declaration or a canary was wrong for one row it was for eight, and batches that are wrongly
        taken to be slow would never be tried. Its best case is never above the declared one, for the same reason.

        ``slowdown``: the degradation that was predicted for it, a fraction: the time alone is what remains without it.
        """
        self.lessons += 1
        seconds = max(seconds, LEAST_S)
        if self._forgotten:
            self._decide_forgotten(rows, seconds / (1.0 + slowdown))
        self._ran_at = now
        rows = max(1, rows)
        of_size = rows if rows in self._sizes else 1 << (rows - 1).bit_length()
        seconds *= self.learned_s(of_size) / max(self.learned_s(rows), LEAST_S)
        size = self._size(of_size)
        size.own_run_s = size.run_s + RUN_WEIGHT * (seconds / (1.0 + slowdown) - size.run_s)
        size.own_best_s = seconds if seconds < size.best_s else size.best_s + BEST_WEIGHT * (seconds - size.best_s)
        size.run_s, size.best_s = size.own_run_s, size.own_best_s
        for other in self._times:
            other.runs *= KNOWN_FADING
        size.runs += 1.0
        if any(other.runs < 1.0 for other in self._times):
            self._follow()

    def _decide_forgotten(self, rows: int, run_s: float) -> None:
        """Whether a run that took ``run_s`` alone puts what was forgotten in force again, or confirms that it is gone."""
        before, since = self.learned_s(rows), self.run_s(rows)
        if abs(run_s - since) <= abs(run_s - before):
            for times in self._times:
                times.forget(self._forgotten)
            self._forget_s = FORGET_S
        elif before > (1.0 + DISPROVED) * since:
            self._forget_s = min(2.0 * self._forget_s, FORGET_SLOWEST_S)
        self._forgotten = 0.0

    def _size(self, rows: int) -> _Times:
        """What is known of a size, which begins with what is expected of it."""
        position = bisect_left(self._sizes, rows)
        if position == len(self._sizes) or self._sizes[position] != rows:
            lower, upper, part = self._between(rows)
            run_s, best_s = self.run_s(rows), self.best_s(rows)
            declared_s = lower.declared_s + part * (upper.declared_s - lower.declared_s)
            self._sizes.insert(position, rows)
            self._times.insert(
                position, _Times(declared_s=declared_s, run_s=run_s, best_s=best_s, own_run_s=run_s, own_best_s=best_s)
            )
        return self._times[position]

    def _follow(self) -> None:
        """
        Sizes of which less than one run tells lean on the others, each of which counts for the runs that have told of
        it.
        """
        weight = run = best = 0.0
        for times in self._times:
            weight += times.runs
            run += times.runs * times.own_run_s / times.declared_s
            best += times.runs * times.own_best_s / times.declared_s
        for times in self._times:
            own, usual = times.runs, times.declared_s
            if own < 1.0:
                others = weight - own
                by_run = (run * usual - own * times.own_run_s) / others
                by_best = (best * usual - own * times.own_best_s) / others
                times.run_s = own * times.own_run_s + (1.0 - own) * by_run
                times.best_s = own * times.own_best_s + (1.0 - own) * min(usual, by_best)

    def observe_load(self, seconds: float) -> None:
        """A cold start took so long, from its request to the loaded model."""
        self.lessons += 1
        self.load_s += LOAD_WEIGHT * (seconds - self.load_s)

    def observe_host(self, seconds: float) -> None:
        """A load out of host memory took so long."""
        self.lessons += 1
        self._host_s = seconds if self._host_s is None else self._host_s + LOAD_WEIGHT * (seconds - self._host_s)

    def relax(self) -> None:
        """
        Nothing was tried because it seemed too slow, so nothing can be learned: expect a little less until something is
        tried.

        Never more: where every GPU instance trains the best case holds what a neighbour costs, which the time alone
        does not.
        """
        for times in self._times:
            times.run_s += RELAXED * min(0.0, times.best_s - times.run_s)
            times.own_run_s = times.run_s

    def observe_memory(self, memory_mib: float) -> None:
        self._memory_mib = max(self._memory_mib, memory_mib)
        self.memory_mib = max(self.memory_mib, memory_mib)

    def observe_stretch(self, row: int, seconds: float) -> None:
        """The longest of the last runs on a GPU instance, in place of what was said of it before."""
        before = self._stretches.get(row, 0.0)
        self._stretches[row] = seconds
        self.stretch_s = max(self.stretch_s, seconds) if before < self.stretch_s else max(self._stretches.values())

    def observe_effect(self, usage: float, degradation: float | None) -> None:
        """
        Blend what was seen while this function alone ran beside a job: mean of the declared value and all observations
        (A16, A17).
        """
        self.lessons += 1
        self._observed += 1.0
        self._usage += (usage - self._usage) / self._observed
        if degradation is not None:
            self._degradation += (max(0.0, degradation) - self._degradation) / self._observed
