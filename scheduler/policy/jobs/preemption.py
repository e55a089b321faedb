"""Which running jobs stop for others, where a setting may stop them: the simulator alone runs such settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from scheduler.policy.jobs.fleet import Fleet, PoolKey
from scheduler.policy.jobs.job import Job, Phase
from scheduler.policy.jobs.knobs import JobKnobs, JobOrder
from scheduler.policy.jobs.lengths import Lengths
from scheduler.policy.jobs.order import Queue, rank


def losers(
    knobs: JobKnobs,
    fleet: Fleet,
    queue: Queue,
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
    for job in (*(job for job in jobs.values() if job.phase is Phase.PLACED), *queue):
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
            if job.phase is Phase.PLACED and job.running_s(at) * job.needs.size < most
        ),
        default=inf,
    )
