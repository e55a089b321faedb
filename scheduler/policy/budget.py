"""
A training's degradation budget, kept in a closed loop: predicted before (kernel.py), measured while (smore/domain/loss.py), corrected here.

Where a report proves that a training loses more than :data:`ALARM` times its budget now (one-sided 95 %, over its last iterations), the
next step of :data:`STEPS` is taken: no new placements, then less and less time for what runs, then nothing at all. It is judged again only
once all the iterations that are compared are younger than the step. Where the training has recovered, functions come back step by step.

The test looks at every report and at iterations that resemble their neighbours, so it errs more often than one time in twenty, and it
blames functions for whatever slows a machine down; so it is passed over where functions were at work for too little of the time to have
cost as much (:data:`WORST`). It is a brake, not a measure: what a training loses over time is kept by ``factor``,
which corrects the predictions themselves by the causal estimate alone: up while that lies above the budget, down while it is surely below.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smore.domain.loss import LEAST_RECENT, Loss, Sample, over_budget


class Step(StrEnum):
    """How far functions are kept from a training."""

    OPEN = "open"
    HELD = "held"
    DUTY_75 = "duty_75"
    DUTY_50 = "duty_50"
    DUTY_25 = "duty_25"
    OFFLOADED = "offloaded"


STEPS: Final = tuple(Step)
#: Part of the time in which functions may work, by step. The gate stops starts, never a run that is under way.
DUTY: Final = {Step.OPEN: 1.0, Step.HELD: 1.0, Step.DUTY_75: 0.75, Step.DUTY_50: 0.5, Step.DUTY_25: 0.25, Step.OFFLOADED: 0.0}

#: Times the budget: a loss that is surely above it takes a step.
ALARM: Final = 2.0
#: A training is taken to run at no less than a third of its speed beside a function, so that functions which are at work for a share u of
#: the time cost it no more than this times u.
WORST: Final = 2.0
#: Weight of the newest report in that share: what the compared iterations have seen, some seconds.
BUSY_WEIGHT: Final = 0.15
#: What predictions are multiplied by: bounds, and with each new window.
FACTOR_MIN: Final = 0.1
FACTOR_MAX: Final = 10.0
UP: Final = 1.1
DOWN: Final = 0.9
#: Predictions come down only while the loss is surely below this share of the budget.
ROOM: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLoss:
    """What a report says of one training: its budget, its last iterations, the closed ones before them, and the causal estimate."""

    id: str
    budget: float
    recent: Sample | None = None
    closed: Sample | None = None
    loss: Loss | None = None


@dataclass(slots=True)
class Governor:
    """Of one GPU instance. ``factor`` multiplies predicted losses there."""

    step: Step = Step.OPEN
    factor: float = 1.0
    #: Share of the time in which functions were at work lately.
    busy: float = 0.0
    #: Epoch second from which the compared iterations are all younger than the last step.
    _settled_at: float = 0.0
    #: Windows behind the estimate that was looked at last, by training.
    _windows: tuple[tuple[str, int, float], ...] = ()

    def judge(self, now: float, jobs: Sequence[JobLoss], busy: float) -> str | None:
        """
        Take a step where one is due, and correct ``factor``. ``busy``: share of the time since the last report in which functions worked.

        Returns the training for which a step was taken; None = none was. Without a training everything is open and as predicted.
        """
        if not jobs:
            self.factor, self._windows = 1.0, ()
            return self._go(now, Step.OPEN, 0.0, "") if self.step is not Step.OPEN else None
        self._correct(jobs)
        self.busy += BUSY_WEIGHT * (busy - self.busy)
        if now < self._settled_at:
            return None
        broken = [
            job
            for job in jobs
            if job.recent and job.closed and WORST * self.busy >= ALARM * job.budget
            and over_budget(job.recent, job.closed, ALARM * job.budget)
        ]  # fmt: skip
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

    def _correct(self, jobs: Sequence[JobLoss]) -> None:
        seen = tuple((job.id, job.loss.windows, job.loss.mean) for job in jobs if job.loss is not None)
        if seen == self._windows:
            return
        self._windows = seen
        known = [(job.loss, job.budget) for job in jobs if job.loss is not None]
        if any(loss.mean > budget for loss, budget in known):
            self.factor = min(FACTOR_MAX, self.factor * UP)
        elif len(known) == len(jobs) and all(loss.high < ROOM * budget for loss, budget in known):
            self.factor = max(FACTOR_MIN, self.factor * DOWN)


def _span(job: JobLoss) -> float:
    """Seconds that the compared iterations take."""
    return LEAST_RECENT * job.recent.mean if job.recent is not None else 0.0


def _recovered(job: JobLoss) -> bool:
    """Within its budget by the best estimate there is; a training that says nothing holds nobody back."""
    if job.recent is None or job.closed is None or job.recent.n < LEAST_RECENT:
        return True
    return job.recent.mean / job.closed.mean - 1.0 <= job.budget
