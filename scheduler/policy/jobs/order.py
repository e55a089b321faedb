"""
In which order jobs that wait are tried: those that an operator moved, the last order first; those that must start now to
keep a promise; those whose patience is over, the earliest first; then by the setting.

Patience runs by the clock, so no estimate can starve a job: it is over after ``patience_s`` and ``patience_lengths``
times the length that was expected of the job when it came, at most ``patience_most_s``, in the queue. Time in which a
job was held or in its back-off does not count, time before an earlier attempt does.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from math import inf

from scheduler.policy.jobs.decisions import Turn
from scheduler.policy.jobs.events import ProjectLimit
from scheduler.policy.jobs.job import Job
from scheduler.policy.jobs.knobs import JobKnobs, JobOrder
from scheduler.policy.jobs.lengths import Lengths, LengthSource
from smore.domain.job_rule import WaitingJob

#: A job's place: smaller comes first.
OrderKey = tuple[float, float, str]


def rank(knobs: JobKnobs, job: Job, weight: float, at: float) -> float:
    """The setting's first criterion for a job whose ``length`` is up to date."""
    if knobs.rule is not None and knobs.rule.orders:
        return knobs.rule.order(waiting_job(job, weight, at))
    match knobs.order:
        case JobOrder.ARRIVAL:
            return 0.0
        case JobOrder.REMAINING:
            return job.length.expected_s / weight
        case JobOrder.REMAINING_GPUS:
            return job.length.expected_s * job.needs.size / weight
        case JobOrder.ATTAINED:
            return float(job.running_s(at) * job.needs.size >= knobs.attained_gpu_s)
        case JobOrder.DEADLINE:
            return job.by
        case JobOrder.ALLOWANCE:
            return job.by - job.length.expected_s


def waiting_job(job: Job, weight: float, at: float) -> WaitingJob:
    """A job as a rule of one's own sees it."""
    spec = job.spec
    return WaitingJob(
        id=spec.id,
        project=spec.project,
        name=spec.name,
        gpus=job.needs.size,
        submitted_at=job.submitted_at,
        expected_s=job.length.expected_s,
        most_s=job.length.most_s,
        had_s=job.running_s(at),
        weight=weight,
        workload=spec.request.workload,
    )


class OrderedQueue:
    """The jobs that wait."""

    def __init__(self, knobs: JobKnobs, lengths: Lengths) -> None:
        self._knobs, self._lengths = knobs, lengths
        self._limits: Mapping[str, ProjectLimit] = {}
        self._at = -inf
        #: Jobs with promises → their latest starts (promises.py).
        self.latest: dict[str, float] = {}
        self._jobs: dict[str, Job] = {}
        self._keys: dict[str, OrderKey] = {}
        #: By the setting, and before it those that were moved or have waited too long.
        self._ordered: list[OrderKey] = []
        self._first: list[OrderKey] = []
        self._patience: dict[str, float] = {}
        self._due: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._jobs

    def __iter__(self) -> Iterator[Job]:
        """In the order in which they are tried. The queue may change meanwhile."""
        # Of the order ``allowance``, those that can meet their deadlines no more.
        late = bisect_left(self._ordered, (self._at, -inf, "")) if self._knobs.order is JobOrder.ALLOWANCE else 0
        keys = [*self._first, *self._ordered[late:], *self._ordered[:late]]
        due = {id_: None for _, id_ in sorted((at, id_) for id_, at in self.latest.items() if self._due_now(id_))}
        moved = sum(key[0] < 0 for key in self._first)
        ids = (*(key[2] for key in keys[:moved]), *due, *(key[2] for key in keys[moved:] if key[2] not in due))
        for id_ in ids:
            if id_ in self._jobs:
                yield self._jobs[id_]

    def turn(self, job: Job) -> Turn:
        if job.moved:
            return Turn.MOVED
        if self._due_now(job.spec.id):
            return Turn.PROMISED
        return Turn.PATIENCE if self._key_first(job) in self._first else Turn.ORDER

    def _due_now(self, id_: str) -> bool:
        return (
            self._knobs.guard
            and id_ in self._jobs
            and not self._jobs[id_].moved
            and self.latest.get(id_, inf) <= self._at
        )

    def next_due(self) -> float:
        """When the next patience is over; inf = of nobody that waits."""
        while self._due and self._patience.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else inf

    def add(self, job: Job, at: float) -> None:
        """A job waits from now on."""
        id_, knobs = job.spec.id, self._knobs
        job.queued_at = at
        job.length = job.left(self._lengths, at)
        self._jobs[id_] = job
        patience_s = min(knobs.patience_s + knobs.patience_lengths * job.length.expected_s, knobs.patience_most_s)
        self._patience[id_] = due = at + patience_s - job.waited_s
        if due < inf:
            heappush(self._due, (due, id_))
        if job.moved:
            insort(self._first, self._key_first(job))
        else:
            self._insert(job)

    def remove(self, job: Job) -> None:
        id_ = job.spec.id
        del self._jobs[id_], self._patience[id_]
        key = self._keys.pop(id_, None)
        if key is not None:
            self._ordered.pop(bisect_left(self._ordered, key))
        else:
            self._first = [key for key in self._first if key[2] != id_]

    def move(self, job: Job) -> None:
        """``job.moved`` was set: it comes before all others."""
        self.remove(job)
        self.add(job, job.queued_at)

    def advance(self, at: float) -> None:
        """Time has passed, and lengths may have changed."""
        self._at = at
        if self._lengths.changed or self._lengths.changed_late:
            changed, self._lengths.changed = self._lengths.changed, set()
            late, self._lengths.changed_late = self._lengths.changed_late, set()
            unsure = {LengthSource.NAME, LengthSource.PROJECT, LengthSource.PLATFORM, LengthSource.ASSUMED}
            for job in self._jobs.values():
                source = job.length.source
                if source in changed or (changed & unsure and source in unsure) or (source in late and job.ran_s > 0):
                    self._renew(job, at)
        while self.next_due() <= at:
            _, id_ = heappop(self._due)
            key = self._keys.pop(id_, None)
            if key is not None:
                self._ordered.pop(bisect_left(self._ordered, key))
                insort(self._first, self._key_first(self._jobs[id_]))

    def weigh(self, limits: Mapping[str, ProjectLimit], at: float) -> None:
        """Other weights of projects hold."""
        self._limits = limits
        for job in self._jobs.values():
            self._renew(job, at)

    def weight(self, project: str) -> float:
        limit = self._limits.get(project)
        return limit.weight if limit is not None else 1.0

    def _renew(self, job: Job, at: float) -> None:
        key = self._keys.pop(job.spec.id, None)
        if key is not None:
            self._ordered.pop(bisect_left(self._ordered, key))
        job.length = job.left(self._lengths, at)
        if key is not None:
            self._insert(job)

    def _insert(self, job: Job) -> None:
        # Of one that waits nothing in its rank moves with the clock.
        value = rank(self._knobs, job, self.weight(job.spec.project), job.queued_at)
        key = self._keys[job.spec.id] = (value, job.submitted_at, job.spec.id)
        insort(self._ordered, key)

    def _key_first(self, job: Job) -> OrderKey:
        return (-job.moved, self._patience[job.spec.id] if not job.moved else 0.0, job.spec.id)
