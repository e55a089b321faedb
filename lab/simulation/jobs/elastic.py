"""
How many GPU instances each job has, where a setting chooses that: the simulator alone runs such settings.

The rule is in the style of Pollux: the power mean, with the exponent -1, of the jobs' speedups is to be as large as
possible. A job's speedup is its speed over that on the smallest number of GPU instances that it can have; batch sizes stay
as they are. GPU instances are handed out step by step. Each step goes to the job whose term of the mean gains the most by
it, for each GPU instance. A job that has run before pays for another number, so its speedup there is multiplied by
(age - restarts x cost) / (age + cost), which comes closer to 1 as the job grows older.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from math import floor
from typing import Final, NamedTuple

from scheduler.policy.jobs.fleet import Fleet, PoolKey
from scheduler.policy.jobs.job import Job, JobPhase
from scheduler.policy.jobs.knobs import JobKnobs
from scheduler.policy.jobs.projects import Projects

#: Added to each speedup, as Pollux's authors do: it bounds what a job without any GPU instance costs the mean.
LEAST_SPEEDUP: Final = 1e-3


class _Step(NamedTuple):
    """From ``has`` GPU instances to ``gets``, in the order in which steps are taken: the one that gains most comes first."""

    minus_gain_per_gpu: float
    submitted_at: float
    id: str
    has: int
    gets: int


def allotted(
    knobs: JobKnobs,
    fleet: Fleet,
    projects: Projects,
    waiting: Iterable[Job],
    jobs: Mapping[str, Job],
    pools: Callable[[Job], Sequence[PoolKey]],
    at: float,
) -> dict[str, int]:
    """Allot GPU instances to all jobs that run or wait, by id; 0 = it waits."""
    candidates: dict[PoolKey, dict[str, Job]] = {}
    for job in chain((job for job in jobs.values() if job.phase is JobPhase.PLACED), waiting):
        seen = fleet.gpus[job.gpus[0]].seen if job.gpus else None
        key = (seen.device, seen.mig) if seen is not None else next(iter(pools(job)), None)
        if key is not None:
            candidates.setdefault(key, {})[job.spec.id] = job
    numbers: dict[str, int] = {}
    for key, of_pool in candidates.items():
        numbers |= _allotment(knobs, fleet.pools[key].open, projects, of_pool, at)
    return numbers


def _allotment(knobs: JobKnobs, room: int, projects: Projects, jobs: Mapping[str, Job], at: float) -> dict[str, int]:
    """How many of ``room`` GPU instances each job gets."""
    numbers = dict.fromkeys(jobs, 0)
    left = {job.spec.project: projects.most(job.spec.project) for job in jobs.values()}
    values = {id_: _values(knobs, job, at) for id_, job in jobs.items()}
    steps = [step for id_, job in jobs.items() if (step := _next(job, values[id_], 0, room)) is not None]
    heapify(steps)
    while steps:
        step = heappop(steps)
        job, cost = jobs[step.id], step.gets - step.has
        most = min(room, left[job.spec.project])
        if cost <= most:
            numbers[step.id] = step.gets
            room -= cost
            left[job.spec.project] -= cost
            most -= cost
        following = _next(job, values[step.id], numbers[step.id], most)
        if following is not None:
            heappush(steps, following)
    return numbers


def _values(knobs: JobKnobs, job: Job, at: float) -> dict[int, float]:
    """Its term of the power mean by the number of GPU instances, in rising order."""
    speeds = job.spec.speeds or {job.spec.size: 1.0}
    alone = speeds[min(speeds)]
    changed = 1.0
    if job.attempt:
        age_s = at - job.submitted_at
        changed = max(0.0, age_s - (job.attempt - 1) * knobs.change_s) / (age_s + knobs.change_s)
    return {0: -1.0 / LEAST_SPEEDUP} | {
        number: -1.0 / (speeds[number] / alone * (1.0 if number == len(job.gpus) else changed) + LEAST_SPEEDUP)
        for number in sorted(speeds)
    }


def _next(job: Job, values: Mapping[int, float], has: int, most: float) -> _Step | None:
    """The step that gains the most for each GPU instance, of at most so many; None = none gains anything."""
    steps = [
        _Step((values[has] - value) / (number - has), job.submitted_at, job.spec.id, has, number)
        for number, value in values.items()
        if has < number <= has + most and value > values[has]
    ]
    return min(steps, default=None)


def looks_at(knobs: JobKnobs, at: float) -> float:
    """When numbers are chosen again: the next whole multiple of the interval."""
    return (floor(at / knobs.look_s) + 1) * knobs.look_s
