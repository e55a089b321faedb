"""
How long jobs take: the best source that there is for each, and quantiles that are learnt from how wrong that source was.

A source tells a number of seconds. What a job that succeeded really took, divided by that number, is a *ratio*; the
quantiles of the last ratios of a source times what it tells are the quantiles of a length. Until there are enough, they
stand beside a few of a log-normal distribution around 1, as wide as such a source is taken to be wrong. Owners of a project
err alike, so what owners tell is judged by the project's own ratios once there are enough of them.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import ceil, exp
from statistics import NormalDist
from typing import Final, NamedTuple

from scheduler.policy.jobs.spec import JobSpec
from smore.domain.job import PastRun


class LengthSource(StrEnum):
    """Where a length is from, best first: see ``SOURCES`` in scheduler/jobs/wording.py."""

    MEASURED = "measured"
    FORMER = "former"
    PROFILE = "profile"
    DECLARED = "declared"
    NAME = "name"
    PROJECT = "project"
    PLATFORM = "platform"
    ASSUMED = "assumed"


#: Standard deviation of the logarithm of a source's ratio before anything was learnt of it.
SPREAD: Final[Mapping[LengthSource, float]] = {
    LengthSource.MEASURED: 0.05,
    LengthSource.FORMER: 0.2,
    LengthSource.PROFILE: 0.2,
    LengthSource.DECLARED: 0.5,
    LengthSource.NAME: 0.5,
    LengthSource.PROJECT: 1.0,
    LengthSource.PLATFORM: 1.5,
    LengthSource.ASSUMED: 2.0,
}
ASSUMED_S: Final = 3600.0
#: Ratios of a source that are remembered, and how many stand for what was not learnt yet. Odd: the middle one is 1.
RATIOS, PRIOR = 100, 9
#: Sources that are owners' words, and so many ratios are enough to know what a source is worth: of a project, and for a
#: length that is to be sure. With fewer the sure length is at least ``UNSURE`` times what was told.
OWNERS: Final = (LengthSource.DECLARED, LengthSource.NAME)
ENOUGH, UNSURE = 20, 2.0
#: Sources of which no sure length is known, however many ratios there are: they are not of this job.
UNKNOWN: Final = frozenset({LengthSource.PROJECT, LengthSource.PLATFORM, LengthSource.ASSUMED})
#: Of the lengths expected and most, and of the sure one: the part of cases that take no longer.
SHARES: Final = (0.5, 0.9)
SURELY: Final = 0.97
#: Runs of which a median is taken: of a name, of a project, of the platform.
RUNS: Final[Mapping[LengthSource, int]] = {LengthSource.NAME: 20, LengthSource.PROJECT: 100, LengthSource.PLATFORM: 500}
#: No job is through sooner than this, whatever its source tells, seconds.
LEAST_S: Final = 1.0
#: A job that has outlived every ratio of its source: it is expected to go on for these parts of what it has run.
OUTLIVED, OUTLIVED_MOST = 0.5, 2.0


class Length(NamedTuple):
    """
    What is left of a job, seconds: as likely longer as shorter than ``expected_s``; longer than ``most_s`` in one case
    of ten, than ``surely_s`` in three of a hundred.
    """

    expected_s: float
    most_s: float
    surely_s: float
    source: LengthSource


class Recent:
    """The last ``size`` values, in order of size: ``ordered`` beside some that stay for ever, ``own`` without these."""

    def __init__(self, size: int, prior: Sequence[float] = ()) -> None:
        self._queue: deque[float] = deque()
        self._size = size
        self.ordered = sorted(prior)
        self.own: list[float] = []

    def __len__(self) -> int:
        """Without those that stay."""
        return len(self._queue)

    def add(self, value: float) -> None:
        self._queue.append(value)
        gone = self._queue.popleft() if len(self._queue) > self._size else None
        for values in (self.ordered, self.own):
            insort(values, value)
            if gone is not None:
                values.pop(bisect_right(values, gone) - 1)

    def quantile(self, share: float) -> float:
        """There must be a value."""
        return self.ordered[int(share * len(self.ordered))]

    def surely(self, least: float = 0.0) -> float:
        """
        Of those above ``least``, of which there must be one, what three in a hundred exceed. Those that stay do not count where there
        are enough others, so that a source that is always right is believed.
        """
        values = self.own if len(self.own) >= ENOUGH and self.own[-1] > least else self.ordered
        return bound(values, SURELY, bisect_right(values, least))


def bound(values: Sequence[float], share: float, above: int = 0) -> float:
    """
    Of values in order of size, from place ``above`` on, the smallest that one more, drawn with them, does not exceed with the
    probability ``share``; with too few for that the largest. There must be one.
    """
    count = len(values) - above
    return values[above + min(count, ceil(share * (count + 1))) - 1]


class Lengths:
    """
    What was learnt so far. ``changed``: sources whose answers have changed; ``changed_late``: sources whose answers may
    have changed for jobs that have run before. Whoever orders by them empties both.
    """

    def __init__(self) -> None:
        normal = NormalDist()
        shape = [normal.inv_cdf((place + 0.5) / PRIOR) for place in range(PRIOR)]
        self._priors = {source: [exp(SPREAD[source] * z) for z in shape] for source in LengthSource}
        self._ratios = {source: Recent(RATIOS, prior) for source, prior in self._priors.items()}
        self._of_projects: dict[tuple[LengthSource, str], Recent] = {}
        self._runs: dict[tuple[LengthSource, str, str], Recent] = {}
        self.changed: set[LengthSource] = set()
        self.changed_late: set[LengthSource] = set()

    def learn(self, run: PastRun) -> None:
        """A job succeeded."""
        for name, ratio in run.ratios.items():
            source = LengthSource(name)
            ratios = [self._ratios[source]]
            if source in OWNERS:
                own = Recent(RATIOS, self._priors[source])
                ratios.append(self._of_projects.setdefault((source, run.project), own))
            before = [_quantiles(each) for each in ratios]
            for each in ratios:
                each.add(ratio)
            self.changed_late.add(source)
            if before != [_quantiles(each) for each in ratios]:
                self.changed.add(source)
        for key in _keys(run.project, run.name):
            self._runs.setdefault(key, Recent(RUNS[key[0]])).add(max(LEAST_S, run.seconds))
        # A job that nothing was known of has a source now.
        self.changed |= {*RUNS, LengthSource.ASSUMED}

    def told_s(self, spec: JobSpec, device: str = "") -> tuple[float, LengthSource]:
        """
        What the best source tells of a whole job, seconds; ``device``: where it would run, '' = on the fastest that it
        may have. An attempt's own measurement is not among the sources here.
        """
        asked = spec.request
        if asked.iterations:
            for times, source in ((spec.former_s, LengthSource.FORMER), (spec.iteration_s, LengthSource.PROFILE)):
                devices = [asked.device or device] if asked.device or device else list(times)
                known = [times[name] for name in devices if name in times]
                if known:
                    return max(LEAST_S, asked.iterations * min(known)), source
        if asked.duration_s:
            return max(LEAST_S, asked.duration_s), LengthSource.DECLARED
        for key in _keys(spec.project, spec.name):
            if key in self._runs:
                return self._runs[key].quantile(0.5), key[0]
        return ASSUMED_S, LengthSource.ASSUMED

    def left(self, told_s: float, source: LengthSource, ran_s: float, project: str) -> Length:
        """What is left of a job of which ``source`` told ``told_s`` and that has run for ``ran_s``."""
        ratios = self._ratios_of(source, project)
        values, part = ratios.ordered, ran_s / told_s
        outlived = bisect_right(values, part)
        going_on = len(values) - outlived
        if not going_on:
            most_s = max(LEAST_S, OUTLIVED_MOST * ran_s)
            return Length(max(LEAST_S, OUTLIVED * ran_s), most_s, most_s, source)
        expected, most = (told_s * values[outlived + int(share * going_on)] - ran_s for share in SHARES)
        surely = max(most, told_s * ratios.surely(part) - ran_s)
        if len(ratios) < ENOUGH:
            surely = max(surely, UNSURE * told_s - ran_s)
        return Length(max(LEAST_S, expected), max(LEAST_S, most), max(LEAST_S, surely), source)

    def measured(self, left_s: float) -> Length:
        """What is left of a job whose iterations are measured to take ``left_s`` more."""
        ratios, left_s = self._ratios[LengthSource.MEASURED], max(LEAST_S, left_s)
        expected, most = (left_s * ratios.quantile(share) for share in SHARES)
        surely = max(most, left_s * ratios.surely())
        if len(ratios) < ENOUGH:
            surely = max(surely, UNSURE * left_s)
        return Length(expected, most, surely, LengthSource.MEASURED)

    def _ratios_of(self, source: LengthSource, project: str) -> Recent:
        own = self._of_projects.get((source, project))
        return own if own is not None and len(own) >= ENOUGH else self._ratios[source]


def _quantiles(ratios: Recent) -> tuple[bool, list[float]]:
    return len(ratios) < ENOUGH, [*(ratios.quantile(share) for share in SHARES), ratios.surely()]


def _keys(project: str, name: str) -> list[tuple[LengthSource, str, str]]:
    """Where runs like this one are remembered, the nearest first."""
    named = [(LengthSource.NAME, project, name)] if name else []
    return [*named, (LengthSource.PROJECT, project, ""), (LengthSource.PLATFORM, "", "")]
