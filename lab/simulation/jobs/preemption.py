"""
Which running jobs stop for others, where a setting may stop them: those that are behind others in the order, or that are to
run on another number of GPU instances (``elastic.py``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, inf
from typing import Final

from lab.simulation.jobs.elastic import allotted, looks_at
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.events import (
    AttemptOver,
    Ended,
    Event,
    GpuLost,
    GpuSeen,
    JobHeld,
    JobSubmitted,
    LimitsChanged,
)
from scheduler.policy.jobs.fleet import Fleet, PoolKey
from scheduler.policy.jobs.job import Job, JobPhase
from scheduler.policy.jobs.knobs import JobKnobs, JobOrder
from scheduler.policy.jobs.lengths import Lengths
from scheduler.policy.jobs.order import OrderedQueue, rank

#: Events after which somebody else may have to run.
_CHANGES: Final = (GpuLost, GpuSeen, JobHeld, JobSubmitted, LimitsChanged)


class Stops:
    """A :class:`~scheduler.policy.jobs.core.Preemption` of one run, by a setting that is ``preemptive``."""

    def __init__(self, knobs: JobKnobs) -> None:
        self._knobs = knobs
        #: Of a setting that chooses them: GPU instances by job.
        self._numbers: dict[str, int] = {}
        #: Whether who must stop could have changed since the last look.
        self._unlooked = False
        #: When it is looked again though nothing has happened: a running job comes into the second queue, or the interval
        #: of a setting that chooses numbers of GPU instances is over.
        self._crosses_at = inf

    def stopped(self, policy: JobPolicy, at: float, events: Sequence[Event]) -> list[Job]:
        self._unlooked |= at >= self._crosses_at or any(map(_changes, events))
        if not self._unlooked or self._look_at(at) > at:
            return []
        self._unlooked = False
        knobs, fleet, keys = self._knobs, policy.fleet, policy.places.keys
        if not knobs.elastic:
            return losers(knobs, fleet, policy.queue, policy.jobs, policy.lengths, keys, at)
        numbers = allotted(knobs, fleet, policy.projects, policy.queue, policy.jobs, keys, at)
        self._numbers |= numbers
        jobs = [policy.jobs[id_] for id_ in numbers]
        for job in jobs:
            job.resize(numbers[job.spec.id] or job.spec.size)
        return [job for job in jobs if job.gpus and numbers[job.spec.id] != len(job.gpus)]

    def may_start(self, job: Job) -> bool:
        return not self._knobs.elastic or self._numbers.get(job.spec.id, 0) > 0

    def wake_at(self, policy: JobPolicy, at: float) -> float:
        if self._knobs.elastic and policy.jobs:
            self._crosses_at = looks_at(self._knobs, at)
            return self._crosses_at
        if not self._knobs.elastic and policy.queue:
            self._crosses_at = crosses_at(self._knobs, policy.jobs.values(), at)
            return self._look_at(at if self._unlooked else self._crosses_at)
        return inf

    def _look_at(self, at: float) -> float:
        """The next time at which it is looked who must stop: whole multiples of ``look_s``."""
        look_s = self._knobs.look_s
        return ceil(at / look_s) * look_s if look_s and at < inf else at


def policy_of(knobs: JobKnobs) -> JobPolicy:
    """The rule with a setting, that may preempt too."""
    return JobPolicy(knobs, Stops(knobs) if knobs.preemptive else None)


def _changes(event: Event) -> bool:
    if isinstance(event, AttemptOver):
        return event.ended is not Ended.PREEMPTED
    return isinstance(event, _CHANGES)


def losers(
    knobs: JobKnobs,
    fleet: Fleet,
    queue: OrderedQueue,
    jobs: Mapping[str, Job],
    lengths: Lengths,
    pools: Callable[[Job], Sequence[PoolKey]],
    at: float,
) -> list[Job]:
    """
    In order, jobs get the GPU instances of a pool as long as there are some. Of those that run and get none, the last
    ones stop, until whoever waits for theirs has enough.
    """
    ordered = []
    for job in (*(job for job in jobs.values() if job.phase is JobPhase.PLACED), *queue):
        if job.gpus:
            job.length = job.left(lengths, at)
        place = rank(knobs, job, queue.weight(job.spec.project), at), job.submitted_at, job.spec.id
        ordered.append((place, job))
    ordered.sort(key=lambda entry: entry[0])
    room = {key: pool.open for key, pool in fleet.pools.items()}
    lacking = {key: -pool.count for key, pool in fleet.pools.items()}
    behind: list[tuple[PoolKey, Job]] = []
    for _, job in ordered:
        size = job.needs.size
        own = _pool_of(fleet, job)
        key = own or next((key for key in pools(job) if room[key] >= size), None)
        if key is None:
            continue
        if room[key] >= size:
            room[key] -= size
            lacking[key] += 0 if job.gpus else size
        elif job.gpus:
            behind.append((key, job))
    stopped = []
    for key, job in reversed(behind):
        if lacking[key] > 0:
            lacking[key] -= job.needs.size
            stopped.append(job)
    return stopped


def _pool_of(fleet: Fleet, job: Job) -> PoolKey | None:
    """Where it runs."""
    seen = fleet.gpus[job.gpus[0]].seen if job.gpus else None
    return (seen.device, seen.mig) if seen is not None else None


def crosses_at(knobs: JobKnobs, jobs: Iterable[Job], at: float) -> float:
    """When the next running job comes into the second queue of the order ``attained``; inf = none does."""
    if knobs.order is not JobOrder.ATTAINED:
        return inf
    most = knobs.attained_gpu_s
    return min(
        (
            at + most / job.needs.size - job.running_s(at)
            for job in jobs
            if job.phase is JobPhase.PLACED and job.running_s(at) * job.needs.size < most
        ),
        default=inf,
    )
