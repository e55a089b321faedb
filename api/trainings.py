"""
What trainings have reserved, and whether there is room for one more: on a GPU instance, and within a project's limits.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from smore.domain.errors import Conflict, InvalidInput, LimitReached
from smore.domain.job import RESERVE, JobState
from smore.domain.limits import Limits
from smore.messages.reports import Report

if TYPE_CHECKING:
    from smore.postgres.jobs import Job

#: Trainings run for hours: whoever has as many as it may need not ask every second.
_RETRY_S: Final = 60


def going_on(jobs: Sequence["Job"], reports: Sequence[Report]) -> list["Job"]:
    """
    Without those that are stopping and that no worker tells of any more: on a GPU instance that is gone they stop for
    ever.
    """
    running = {job.id for report in reports for job in report.jobs if job.state == JobState.RUNNING}
    return [job for job in jobs if job.state is not JobState.STOPPING or job.id in running]


def reserves(jobs: Sequence["Job"], reports: Sequence[Report]) -> dict[tuple[str, str], float]:
    """MiB by job and GPU instance: what was declared and the margin, or what the worker reports where that is more."""
    reserved = {(job.id, gpu): _reserve(job.memory_mib) for job in jobs for gpu in job.gpus}
    for report in reports:
        for job in report.jobs:
            key = (job.id, report.gpu)
            if key in reserved:
                reserved[key] = max(reserved[key], job.reserve_mib)
    return reserved


def _reserve(memory_mib: float) -> float:
    return memory_mib * (1 + RESERVE)


def places(reports: Sequence[Report], jobs: Sequence["Job"], memory_mib: float) -> tuple[list[Report], list[Report]]:
    """
    The GPU instances whose memory is enough for a training, and those of them where others have left so much of it.
    """
    free = _free(reports, jobs)
    enough = [report for report in reports if _reserve(memory_mib) <= report.memory_total_mib]
    return enough, [report for report in enough if _reserve(memory_mib) <= free[report.gpu]]


def check_fits(reports: Sequence[Report], jobs: Sequence["Job"], memory_mib: float) -> None:
    """
    Raises InvalidInput where what a training declares is more than one of these GPU instances has at all, Conflict
    where it is more than the reserves of other trainings leave there. Functions are not counted: they make room.
    """
    enough, fitting = places(reports, jobs, memory_mib)
    wanted = f"memory: {memory_mib:.10g} MiB and {RESERVE:.0%} more"
    for report in reports:
        if report not in enough:
            total = report.memory_total_mib
            raise InvalidInput(
                f"{wanted} do not fit on {report.gpu}, which has {total:.10g} MiB",
                field="memory",
                gpu=report.gpu,
                memory_total_mib=total,
            )
        if report not in fitting:
            free = max(0.0, round(_free(reports, jobs)[report.gpu], 1))
            raise Conflict(
                f"{wanted} do not fit on {report.gpu} now: other trainings have reserved all but {free:.10g} of its"
                f" {report.memory_total_mib:.10g} MiB",
                field="memory",
                gpu=report.gpu,
                memory_total_mib=report.memory_total_mib,
                memory_free_mib=free,
            )


def _free(reports: Sequence[Report], jobs: Sequence["Job"]) -> Mapping[str, float]:
    taken: dict[str, float] = {}
    for (_, gpu), mib in reserves(jobs, reports).items():
        taken[gpu] = taken.get(gpu, 0.0) + mib
    return {report.gpu: report.memory_total_mib - taken.get(report.gpu, 0.0) for report in reports}


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
            f"The project has reached its limit jobs ({most}).", field="jobs", limit=most, retry_after_s=_RETRY_S
        )
    bound = limits.job_memory_mib
    if bound is None:
        return
    used = sum(reserves(jobs, reports).values())
    # What declares nothing takes what it needs once it runs: it must not begin where nothing is left.
    if used >= bound or used + _reserve(wanted_mib) > bound:
        raise LimitReached(
            f"The project has reached its limit job_memory_mib ({bound:.10g}): {used:.10g} MiB are kept for its"
            " trainings.",
            field="job_memory_mib",
            limit=bound,
            retry_after_s=_RETRY_S,
        )
