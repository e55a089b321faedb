"""
A training's degradation budget, kept in a closed loop: predicted before (kernel.py), measured while
(smore/domain/loss.py), corrected here.

Where a report proves that a training loses more than ``ALARM`` times its budget now (one-sided 95 %, over its last
iterations), the next step of :data:`STEPS` is taken: no new placements, then less and less time for what runs, then
nothing at all. It is judged again only once all the iterations that are compared are younger than the step. Where the
training has recovered, functions come back step by step.

The test looks at every report and at iterations that resemble their neighbours, so it errs more often than one time in
twenty, and it blames functions for whatever slows a machine down; so it is passed over where functions were at work for
too little of the time to have cost as much (:data:`WORST`). It is a brake, not a measure.

What a training loses over time is kept by ``factor``, which multiplies what runs are predicted to cost. Each closed
window says what the training really lost beside it, free of drift; what was charged at that time stands over against
it. Their ratio (:func:`corrected`) is what predictions are corrected by, so that the load itself teaches nothing:
only how wrong the predictions are.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from smore.domain.learned import LearnedCost
from smore.domain.loss import ALARM, LADDER, LEAST_RECENT, ClosedWindow, JobLoss, Step, over_budget

STEPS: Final = tuple(Step)
#: Part of the time in which functions may work, by step. The gate stops starts, never a run that is under way.
DUTY: Final = dict(zip(STEPS, (1.0, 1.0, *LADDER, 0.0), strict=True))

#: A training is taken to run at no less than a third of its speed beside a function, so that functions which are at
#: work for a share u of the time cost it no more than this times u.
WORST: Final = 2.0
#: Weight of the newest report in that share: what the compared iterations have seen, some seconds.
BUSY_WEIGHT: Final = 0.15
#: What predictions are multiplied by: bounds.
FACTOR_MIN: Final = 0.1
FACTOR_MAX: Final = 10.0
#: Of the factor: how far it may be from one before anything is known, and the weight of a window beside the next one's.
PRIOR_SD: Final = 1.0
FADING: Final = 0.97
#: So many standard errors of the factor are charged on top: what is not known yet is paid for by functions, not by
#: trainings.
MARGIN: Final = 0.5
#: How well what was charged in the seconds beside a window tells what ran in them, as a share of it: a charge is logged
#: when a run starts.
CHARGED_SD: Final = 0.5
#: No window resolves a smaller share of the time than this.
LEAST_NOISE: Final = 0.005
#: How far back what was charged is known, seconds: windows are told that late at most.
LOGGED_S: Final = 180.0


#: Of a training of which no window has told anything.
UNLEARNED: Final = LearnedCost(factor=1.0, error=PRIOR_SD, seen=0.0, lost=0.0, charged=0.0, noise=0.0)


def corrected(cost: LearnedCost, window: ClosedWindow, charged: float) -> LearnedCost:
    """
    How many times its prediction a training pays, with one window more. Beside window ``i`` a share ``y_i`` of the time
    was lost and ``c_i`` charged, at the predictions as they are: ``factor`` is the ratio of their sums, shrunk towards
    one as far as the noise asks for (a prior of mean 1 and standard deviation :data:`PRIOR_SD`), and older windows
    fade. A sum of ratios, or a fit that trusts small charges more than large ones, would be too high: a charge falls a
    little before or after what it pays for. ``noise`` is the variance of what was lost less ``factor`` times what was
    charged.

    ``charged``: seconds a second, in the time that the window's open iterations took.
    """
    ratio = window.closed_s / window.open_s
    noise_sd = (
        ratio
        * window.closed_sd
        / window.closed_s
        * (1.0 / window.closed_n + 1.0 / (window.before_n + window.after_n)) ** 0.5
    )
    # Where both sides of it differ, the iterations stray by more than those inside do: other work, a start, a hiccup.
    # That makes the factor more doubtful; the window weighs no less, for it is runs, too, that make sides differ.
    uneven = (window.before_s - window.after_s) / (2.0 * window.open_s)
    lost = FADING * cost.lost + 1.0 - ratio
    sum_charged = FADING * cost.charged + charged
    noise = (
        FADING**2 * cost.noise + max(noise_sd, LEAST_NOISE) ** 2 + uneven**2 + (CHARGED_SD * cost.factor * charged) ** 2
    )
    doubt = noise / PRIOR_SD**2
    factor = (lost * sum_charged + doubt) / (sum_charged**2 + doubt)
    return LearnedCost(
        factor=min(FACTOR_MAX, max(FACTOR_MIN, factor)),
        error=(noise / (sum_charged**2 + doubt)) ** 0.5,
        seen=window.start,
        lost=lost,
        charged=sum_charged,
        noise=noise,
    )


def _rate(cost: LearnedCost) -> float:
    """
    What is charged: predictions as they are until a window has said something, then with a margin for what is not
    known.
    """
    return min(FACTOR_MAX, cost.factor + MARGIN * cost.error) if cost.seen else 1.0


@dataclass(slots=True)
class BudgetController:
    """Of one GPU instance. ``factor`` multiplies predicted losses there."""

    step: Step = Step.OPEN
    factor: float = 1.0
    #: Share of the time in which functions were at work lately.
    busy: float = 0.0
    #: Training time charged so far, as predicted, seconds.
    charged_s: float = 0.0
    #: Epoch second from which the compared iterations are all younger than the last step.
    _settled_at: float = 0.0
    #: (epoch second, ``charged_s`` then), a report each.
    _charge_log: deque[tuple[float, float]] = field(default_factory=deque)
    #: By training.
    _costs: dict[str, LearnedCost] = field(default_factory=dict)

    def learned(self) -> dict[str, LearnedCost]:
        """What functions cost each training, where windows have told something."""
        return {job: cost for job, cost in self._costs.items() if cost.seen}

    def recall(self, learned: Mapping[str, LearnedCost]) -> None:
        """Go on with what a former leader had learned; what trains no more is dropped at the first report."""
        self._costs = dict(learned)

    def judge(self, now: float, jobs: Sequence[JobLoss], busy: float) -> str | None:
        """
        Take a step where one is due, and correct ``factor``. ``busy``: share of the time since the last report in which
        functions worked.

        Returns the training for which a step was taken; None = none was. Without a training everything is open and as
        predicted.
        """
        if not jobs:
            self.factor = 1.0
            self._costs.clear()
            return self._go(now, Step.OPEN, 0.0, "") if self.step is not Step.OPEN else None
        self._correct(now, jobs)
        self.busy += BUSY_WEIGHT * (busy - self.busy)
        if now < self._settled_at:
            return None
        broken = [
            job
            for job in jobs
            if job.recent
            and job.closed
            and WORST * self.busy >= ALARM * job.budget
            and over_budget(job.recent, job.closed, ALARM * job.budget)
        ]
        position = STEPS.index(self.step)
        if broken:
            if position + 1 == len(STEPS):
                return None
            return self._go(now, STEPS[position + 1], _span(broken[0]), broken[0].id)
        if position and all(_recovered(job) for job in jobs):
            return self._go(now, STEPS[position - 1], max(_span(job) for job in jobs), jobs[0].id)
        return None

    def _go(self, now: float, step: Step, span_s: float, job: str) -> str:
        self.step, self._settled_at = step, now + span_s
        return job

    def _correct(self, now: float, jobs: Sequence[JobLoss]) -> None:
        """Learn from the windows that are new. Of several trainings the one that pays most counts."""
        self._charge_log.append((now, self.charged_s))
        while self._charge_log[0][0] < now - LOGGED_S:
            self._charge_log.popleft()
        former, self._costs = self._costs, {}
        for job in jobs:
            cost = former.get(job.id, UNLEARNED)
            for window in sorted(job.windows, key=lambda window: window.start):
                charged = self._charged(window) if window.start > cost.seen else None
                if charged is not None:
                    cost = corrected(cost, window, charged)
            self._costs[job.id] = cost
        self.factor = max(map(_rate, self._costs.values()))

    def _charged(self, window: ClosedWindow) -> float | None:
        """Seconds a second that were charged while its open iterations went on; None where the log does not reach."""
        guard_s = window.end - window.start
        before_s, after_s = window.before_n * window.before_s, window.after_n * window.after_s
        sides = ((window.start - guard_s - before_s, before_s), (window.end + guard_s, after_s))
        if sides[0][0] < self._charge_log[0][0] or sum(sides[1]) > self._charge_log[-1][0]:
            return None
        return sum(
            between(self._charge_log, begin + length) - between(self._charge_log, begin) for begin, length in sides
        ) / (before_s + after_s)


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """A total known at two moments at least, in their order: what it was at a moment between, in proportion to time."""
    place = min(max(1, bisect_left(points, (at, 0.0))), len(points) - 1)
    (since, before), (until, after) = points[place - 1], points[place]
    return before + (after - before) * (at - since) / (until - since) if until > since else after


def _span(job: JobLoss) -> float:
    """Seconds that the compared iterations take."""
    return LEAST_RECENT * job.recent.mean if job.recent is not None else 0.0


def _recovered(job: JobLoss) -> bool:
    """Within its budget by the best estimate there is; a training that says nothing holds nobody back."""
    if job.recent is None or job.closed is None or job.recent.n < LEAST_RECENT:
        return True
    return job.recent.mean / job.closed.mean - 1.0 <= job.budget
