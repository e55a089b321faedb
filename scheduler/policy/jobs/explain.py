"""Why a job waits, in codes and fields."""

from collections import Counter
from collections.abc import Mapping

from scheduler.policy.jobs.decisions import Facts, GpuPlace, JobRefusal, Wait
from scheduler.policy.jobs.fleet import Fleet, Gpu
from scheduler.policy.jobs.job import Job, JobPhase, called
from scheduler.policy.jobs.plan import Reservation, for_another
from scheduler.policy.jobs.projects import Projects
from scheduler.policy.jobs.spec import Needs

#: How many GPU instances refuse a job for what, and that as it is told, by what it needs and whether some are kept for another
#: one.
Refused = dict[tuple[Needs, bool], tuple[Counter[JobRefusal], Facts]]


def why(
    fleet: Fleet,
    projects: Projects,
    kept: Reservation | None,
    job: Job,
    jobs: Mapping[str, Job],
    at: float,
    counted: Refused,
    *,
    in_order: bool,
) -> tuple[Wait, Facts]:
    """
    The first reason that stands against a job, and what belongs to it; ``jobs``: all, by id. Times are from ``at`` on.
    ``counted`` saves counting twice; it is good for one moment. ``in_order``: nobody passes whoever is first.
    """
    needs = job.needs
    if job.phase is JobPhase.HELD:
        return Wait.HELD, Facts(needs)
    if job.phase is JobPhase.RESTING:
        return Wait.BACK_OFF, Facts(needs, in_s=max(0.0, job.not_before - at))
    project = job.spec.project
    if projects.room(project) < needs.size:
        return Wait.LIMIT, Facts(needs, most=projects.most(project), held=projects.held[project])
    first = for_another(kept, job)
    if needs.pins:
        each = (_place(fleet, first, fleet.gpus.get(name) or Gpu(name), job, jobs) for name in needs.pins)
        return Wait.PINNED, Facts(needs, places=[place for place in each if place.refused is not None])
    if (needs, first is not None) not in counted:
        counted[needs, first is not None] = _counted(fleet, needs, first)
    refused, facts = counted[needs, first is not None]
    free = facts.free
    able = free + refused[JobRefusal.BUSY] + refused[JobRefusal.KEPT]
    if needs.home and able < needs.size:
        return Wait.HOME, facts
    if able < needs.size or not any(pool.open >= needs.size for _, pool in fleet.pools_for(needs)):
        return Wait.TOO_FEW, facts
    if first is not None and in_order:
        return Wait.ORDER, facts._replace(others=[_name(job, jobs, first.id)])
    if first is not None and refused[JobRefusal.KEPT] and free + refused[JobRefusal.KEPT] >= needs.size > free:
        return Wait.KEPT, facts._replace(others=[_name(job, jobs, first.id)], in_s=max(0.0, first.at - at))
    return Wait.BUSY if free < needs.size else Wait.ORDER, facts


def _counted(fleet: Fleet, needs: Needs, first: Reservation | None) -> tuple[Counter[JobRefusal], Facts]:
    kept = first.gpus if first is not None else ()
    each = [(gpu, fleet.refusal(gpu, needs, kept)) for gpu in fleet.gpus.values()]
    refused = Counter(code for _, code in each if code is not None)
    closed = Counter(gpu.seen.closed for gpu, code in each if code is JobRefusal.CLOSED and gpu.seen is not None)
    counts = [(code, "", count) for code, count in refused.items() if code is not JobRefusal.CLOSED]
    counts += [(JobRefusal.CLOSED, why, count) for why, count in closed.items()]
    return refused, Facts(needs, len(fleet.gpus) - refused.total(), sorted(counts))


def places(fleet: Fleet, kept: Reservation | None, job: Job, jobs: Mapping[str, Job]) -> list[GpuPlace]:
    """What stands against a job that waits on each GPU instance; ``jobs``: all, by id."""
    return [_place(fleet, for_another(kept, job), gpu, job, jobs) for _, gpu in sorted(fleet.gpus.items())]


def _place(fleet: Fleet, first: Reservation | None, gpu: Gpu, job: Job, jobs: Mapping[str, Job]) -> GpuPlace:
    code = fleet.refusal(gpu, job.needs, first.gpus if first is not None else ())
    trains = [_name(job, jobs, id_) for id_ in gpu.jobs]
    kept_for = _name(job, jobs, first.id) if first is not None and code is JobRefusal.KEPT else ""
    return GpuPlace(gpu.name, job.needs, code, gpu.seen, trains, kept_for)


def _name(job: Job, jobs: Mapping[str, Job], id_: str) -> str:
    """What the owner of ``job`` calls the one of this id."""
    return called(job, jobs[id_]) if id_ in jobs else id_
