"""What the trainings of a project have reserved, and whether it may have one more."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from api.deps import Gateway
from api.errors import TRAININGS_S, WHERE_LIMITS
from smore.domain.errors import LimitReached
from smore.domain.job import RESERVE, JobState
from smore.domain.limits import NO_LIMITS, Limits
from smore.messages.reports import Report

if TYPE_CHECKING:
    from smore.postgres.jobs import Admit, Job


def going_on(jobs: Sequence["Job"], reports: Sequence[Report]) -> list["Job"]:
    """
    Without those that are stopping and that no worker tells of any more: on a GPU instance that is gone they stop for
    ever.
    """
    running = {job.id for report in reports for job in report.jobs if job.state == JobState.RUNNING}
    return [job for job in jobs if job.state is not JobState.STOPPING or job.id in running]


def reserves(jobs: Sequence["Job"], reports: Sequence[Report]) -> dict[tuple[str, str], float]:
    """MiB by job and GPU instance: what was declared and the margin, or what the worker reports where that is more."""
    reserved = {(job.id, gpu): _reserve(job.request.memory_mib) for job in jobs for gpu in job.gpus}
    for report in reports:
        for job in report.jobs:
            key = (job.id, report.gpu)
            if key in reserved:
                reserved[key] = max(reserved[key], job.reserve_mib)
    return reserved


def _reserve(memory_mib: float) -> float:
    return memory_mib * (1 + RESERVE)


def check_limits(
    jobs: Sequence["Job"], reports: Sequence[Report], limits: Limits, default: int, wanted_mib: float = 0.0
) -> None:
    """
    Raises LimitReached where a project with these jobs may not have one more. ``wanted_mib``: declared for it on all
    its GPU instances; ``default``: of :attr:`Limits.jobs`.
    """
    most = limits.jobs if limits.jobs is not None else default
    if len(jobs) >= most:
        raise LimitReached(
            f"The project has reached its limit jobs ({most}). {WHERE_LIMITS}",
            field="jobs",
            limit=most,
            retry_after_s=TRAININGS_S,
        )
    bound = limits.job_memory_mib
    if bound is None:
        return
    waiting = sum(_reserve(job.request.memory_mib) * job.request.count for job in jobs if not job.gpus)
    used = sum(reserves(jobs, reports).values()) + waiting
    # What declares nothing takes what it needs once it runs: it must not begin where nothing is left.
    if used >= bound or used + _reserve(wanted_mib) > bound:
        raise LimitReached(
            f"The project has reached its limit job_memory_mib ({bound:.10g}): {used:.10g} MiB are kept for its"
            f" trainings. {WHERE_LIMITS}",
            field="job_memory_mib",
            limit=bound,
            retry_after_s=TRAININGS_S,
        )


def admission(gateway: Gateway, project: str, reports: Sequence[Report], wanted_mib: float = 0.0) -> "Admit":
    """A check of the project's limits on one more training, which the store makes while it holds the project."""
    limits = gateway.catalog.limits.get(project, NO_LIMITS)
    default = gateway.settings.jobs_per_project

    def admit(jobs: Sequence["Job"]) -> None:
        check_limits(going_on(jobs, reports), reports, limits, default, wanted_mib)

    return admit
