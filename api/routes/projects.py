"""Projects: who sees what, and what they may use. Operators change them; a project's keys read their own."""

from typing import TYPE_CHECKING, cast

from fastapi import APIRouter

from api.auth import is_operator
from api.dates import moment
from api.deps import Anyway, Gateway, OperatorKey, ReadKey, TheGateway, TheTrail
from api.schemas import projects as schemas
from api.server.bodies import BoundedRoute
from api.trainings.limits import going_on, reserves
from api.trainings.promises import check_breaks
from smore.domain.job import WAITING
from smore.domain.limits import Limits

if TYPE_CHECKING:
    from smore.postgres.catalog import Project

router = APIRouter(prefix="/v1/projects", tags=["projects"], route_class=BoundedRoute)


@router.get("")
def list_projects(gateway: TheGateway, caller: ReadKey) -> schemas.Projects:
    """List the projects by name, with their limits and what they use now; to others than operators their own alone."""
    warm: dict[str, float] = {}
    reports = gateway.fleet().reports()
    jobs = going_on(gateway.store().jobs.unfinished(), reports)
    kept = reserves(jobs, reports)
    for report in reports:
        for one in report.warm:
            project = one.function.partition("/")[0]
            warm[project] = warm.get(project, 0.0) + one.memory_mib
    counted = cast("dict[bytes, bytes]", gateway.client().hgetall(f"{gateway.settings.redis.prefix}projects"))
    use = {name.decode(): int(value) for name, value in counted.items()}
    return schemas.Projects(
        projects=[
            _shown(
                gateway,
                one,
                schemas.Use(
                    depth=use.get(f"{one.name}:waiting", 0),
                    concurrency=use.get(f"{one.name}:open", 0),
                    warm_memory_mib=round(warm.get(one.name, 0.0), 1),
                    jobs=sum(job.project == one.name for job in jobs),
                    job_memory_mib=round(
                        sum(kept[job.id, gpu] for job in jobs if job.project == one.name for gpu in job.gpus), 1
                    ),
                    gpus=sum(len(job.gpus) for job in jobs if job.project == one.name and job.state not in WAITING),
                ),
            )
            for one in gateway.store().list_projects()
            if one.name == caller.project or is_operator(caller)
        ]
    )


def _shown(gateway: Gateway, project: "Project", use: schemas.Use | None = None) -> schemas.Project:
    limits = project.limits
    held = Limits(**{"jobs": gateway.settings.jobs_per_project, "weight": 1.0, "share": 0.0} | limits.to_dict())
    return schemas.Project(name=project.name, created_at=moment(project.created_at), limits=limits, held=held, use=use)


@router.post("", status_code=201)
def create_project(
    gateway: TheGateway, caller: OperatorKey, trail: TheTrail, body: schemas.ProjectBody
) -> schemas.Project:
    """Create a project, which has no limits at first."""
    with trail.change(caller, f"project/{body.name}", project=body.name) as change:
        made = gateway.store().create_project(body.name)
        change.after = {}
    return _shown(gateway, made)


@router.patch("/{project}/limits")
def change_limits(
    gateway: TheGateway,
    caller: OperatorKey,
    trail: TheTrail,
    project: str,
    body: schemas.LimitsBody,
    anyway: Anyway = False,
) -> schemas.Project:
    """
    Change limits of a project: what is not named stays as it is, and null takes a limit away. They hold at every gateway
    from the next invocation on. 409 with the jobs (`breaks`) whose promised ends would not be kept, unless `anyway`.
    """
    if body.gpus is not None and not anyway:
        check_breaks(gateway, caller, project=project, most=body.gpus)
    store = gateway.store()
    before = store.get_project(project).limits.to_dict()
    with trail.change(caller, f"project/{project}", before, project=project) as change:
        change.after = store.change_limits(project, body.model_dump(exclude_unset=True)).to_dict()
    return _shown(gateway, store.get_project(project))
