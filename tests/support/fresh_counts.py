"""What the rule for trainings derives from its state, compared with a fresh count: of each difference there is a defect."""

from collections import Counter

from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.fleet import DevicePool, Fleet, Gpu
from scheduler.policy.jobs.job import JobPhase
from scheduler.policy.jobs.order import OrderedQueue, rank


def differing(policy: JobPolicy) -> int:
    """How many parts of the state of a rule differ from a fresh count."""
    held: Counter[str] = Counter()
    for job in policy.jobs.values():
        held[job.spec.project] += len(job.gpus)
    beside = sum(
        set(job.beside) != {other.spec.id for other in policy._neighbours(job)}
        or any(job.beside[other.spec.id] != policy._slowdown(job, other) for other in policy._neighbours(job))
        for job in policy.jobs.values()
    )
    waiting = {id_ for id_, job in policy.jobs.items() if job.phase is JobPhase.WAITING}
    return (
        _of_fleet(policy.fleet)
        + _of_queue(policy.queue, policy._at)
        + beside
        + (+held != +policy.projects.held)
        + (waiting != {job.spec.id for job in policy.queue})
    )


def _of_queue(queue: OrderedQueue, at: float) -> int:
    fresh = [
        (rank(queue._knobs, job, queue.weight(job.spec.project), at), job.submitted_at, id_)
        for id_, job in queue._jobs.items()
        if id_ in queue._keys
    ]
    late = {
        id_ for id_, job in queue._jobs.items() if job.moved or (queue._patience[id_] <= at and id_ not in queue._keys)
    }
    stale = sum(job.length != job.left(queue._lengths, at) for job in queue._jobs.values())
    return (sorted(fresh) != queue._ordered) + ({key[2] for key in queue._first} != late) + stale


def _of_fleet(fleet: Fleet) -> int:
    fresh = Fleet()
    fresh._willing = fleet._willing
    for gpu in fleet.gpus.values():
        copy = fresh.gpus.setdefault(gpu.name, Gpu(gpu.name))
        copy.seen, copy.jobs, copy.lost = gpu.seen, list(gpu.jobs), gpu.lost
        fresh._enter(copy)
    keys = fleet.pools.keys() | fresh.pools.keys()
    empty = DevicePool()
    pools = sum(_counts(fleet.pools.get(key, empty)) != _counts(fresh.pools.get(key, empty)) for key in keys)
    strangers = len(fleet._willing - {job for gpu in fleet.gpus.values() for job in gpu.jobs})
    return pools + (fleet.free != fresh.free) + (+fleet.refusals != +fresh.refusals) + strangers


def _counts(pool: DevicePool) -> tuple[int, int, int, dict[str, set[str]], dict[str, set[str]]]:
    return pool.size, pool.open, pool.count, pool.free, pool.half
