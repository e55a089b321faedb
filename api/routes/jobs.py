"""
Serverful jobs: asked for in Postgres, started by commands to GPU workers, seen through their reports (scheduler/record.py keeps
those).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from api import schemas
from api.answers import moment
from api.deps import Gateway, JobsKey, ReadKey, TheGateway
from smore.domain.errors import InvalidInput, Unavailable
from smore.domain.function import parse_name
from smore.domain.job import OVER, JobState, state_of
from smore.domain.workload import parse_training
from smore.fleet import JobReport, Report, StartJob, StopJob

if TYPE_CHECKING:
    from smore.store import Job

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post("", status_code=201)
def start_job(gateway: TheGateway, caller: JobsKey, body: schemas.JobBody) -> schemas.Job:
    """Start a training process on the GPU instances named, or on the least loaded one."""
    parse_name(body.name)
    allowed = gateway.settings.job_entrypoints
    if body.argv[0] not in allowed:
        raise InvalidInput(f"argv[0]: {body.argv[0]!r} is not one of the allowed entry points ({', '.join(allowed)})", field="argv[0]")
    fleet = gateway.fleet()
    reports = fleet.reports()
    if not reports:
        raise Unavailable
    known = {report.gpu for report in reports}
    gpus = body.gpus if body.gpus is not None else [min(reports, key=_load).gpu]
    for position, gpu in enumerate(gpus):
        if gpu not in known or gpu in gpus[:position]:
            raise InvalidInput(f"gpus[{position}]: {gpu!r} is not the name of a GPU instance, or comes twice", field=f"gpus[{position}]")
    workload = parse_training(body.workload, "workload") if body.workload is not None else ""
    tags = {"workload": workload} if workload else {}
    job = gateway.store().create_job(caller.project, body.name, body.argv, gpus, tags)
    command = StartJob(version=1, id=job.id, project=caller.project, name=body.name, argv=body.argv, env=body.env, workload=workload)
    for gpu in gpus:
        fleet.send(gpu, command)
    return _shown(job, [])


def _load(report: Report) -> tuple[int, float, str]:
    return sum(job.state == JobState.RUNNING for job in report.jobs), report.utilisation, report.gpu


@router.get("")
def list_jobs(
    gateway: TheGateway,
    caller: ReadKey,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9a-f]{32}$")] = None,
) -> schemas.Jobs:
    """The newest first."""
    found, next_cursor = gateway.store().list_jobs(caller.project, limit=limit, cursor=cursor)
    live = _live(gateway)
    return schemas.Jobs(jobs=[_shown(job, live.get(job.id, [])) for job in found], next_cursor=next_cursor)


@router.get("/{job}")
def get_job(gateway: TheGateway, caller: ReadKey, job: str) -> schemas.Job:
    return _shown(gateway.store().get_job(caller.project, job), _live(gateway).get(job, []))


@router.post("/{job}/stop", status_code=202)
def stop_job(gateway: TheGateway, caller: JobsKey, job: str) -> schemas.Job:
    """Ask it to end (SIGTERM, then SIGKILL). One that has ended stays so."""
    store = gateway.store()
    known = store.get_job(caller.project, job)
    if known.state in OVER:
        return _shown(known, [])
    for gpu in known.gpus:
        gateway.fleet().send(gpu, StopJob(version=1, id=job))
    return _shown(store.update_job(caller.project, job, JobState.STOPPING), [])


def _live(gateway: Gateway) -> dict[str, list[JobReport]]:
    """What GPU workers report now, by job."""
    found: dict[str, list[JobReport]] = {}
    for report in gateway.fleet().reports():
        for job in report.jobs:
            found.setdefault(job.id, []).append(job)
    return found


def _shown(job: "Job", reports: Sequence[JobReport]) -> schemas.Job:
    # A job is as fast as its slowest rank.
    solo_s = max((report.solo_s for report in reports if report.solo_count), default=None)
    shared_s = max((report.shared_s for report in reports if report.shared_count), default=None)
    return schemas.Job(
        id=job.id, name=job.name, state=state_of(job.state, {report.state for report in reports}).value, argv=list(job.argv),
        gpus=list(job.gpus), workload=job.tags.get("workload"), created_at=moment(job.created_at),
        started_at=moment(job.started_at) if job.started_at is not None else None,
        ended_at=moment(job.ended_at) if job.ended_at is not None else None,
        iterations=min((report.iterations for report in reports), default=0), solo_s=solo_s, shared_s=shared_s,
        degradation=shared_s / solo_s - 1 if solo_s and shared_s is not None else None,
        memory_mib=sum(report.memory_mib for report in reports) if reports else None, exit_code=job.exit_code,
    )  # fmt: skip
