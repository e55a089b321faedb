"""Trainings that run elsewhere: how they become jobs, and how their iterations come."""

import time
from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter

from api.auth import is_operator
from api.deps import Gateway, JobsKey, TheGateway, TheTrail
from api.errors import SOON_S, LetGo
from api.schemas import jobs as schemas
from api.schemas.problem import Problem
from api.server.bodies import BoundedRoute
from api.trainings import views
from api.trainings.budgets import check_budget
from api.trainings.limits import admission
from smore.domain.errors import InvalidInput, LimitReached, NotFound, Unavailable
from smore.domain.function import parse_name
from smore.domain.job import REFUSED
from smore.domain.loss import DEFAULT_BUDGET
from smore.domain.quote import quoted
from smore.domain.workload import parse_training
from smore.messages.commands import AttachJob
from smore.messages.reports import Report, StepChunk
from smore.redis.fleet import STEPS, STEPS_IN_S

#: Seconds that an answer waits for the worker to look for a process, and between two looks for its report.
SEEN_S: Final = 3.0
_LOOK_S: Final = 0.05

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=BoundedRoute)


@router.post("/attach", status_code=201)
def attach_job(gateway: TheGateway, caller: JobsKey, trail: TheTrail, body: schemas.AttachBody) -> schemas.Attached:
    """
    Register a training that runs elsewhere. It stays its owner's: the platform never starts, stops or moves it, and
    `stop` only ends the watching.

    It counts as a job from its worker's next report on, and is as fast as the slowest of its ranks. 422 where its worker
    finds no such process, or may not watch it. A `tracked` one is taken all the same; where its worker finds no such process
    it counts for nothing (`unseen`) until an operator allows it, unless the key is an operator's.
    """
    parse_name(body.name)
    # A training in a container may be process 1 there; then it sends its boot id too, which tells it from the machine's
    # own process 1.
    if body.pid == 1 and not body.boot:
        raise InvalidInput.at("pid", "process 1 is the machine's or the container's own")
    reports = gateway.fleet().reports()
    if not reports:
        raise Unavailable(part="gpus")
    gpu = body.gpu if body.gpu is not None else _where(reports, body.pid)
    if gpu is None or all(report.gpu != gpu for report in reports):
        names = ", ".join(report.gpu for report in reports)
        problem = (
            "the platform cannot find out where it trains"
            if gpu is None
            else f"{quoted(gpu)} is not the name of a GPU instance"
        )
        raise InvalidInput.at("gpu", f"{problem}; there are {names}")
    workload = parse_training(body.workload, "workload") if body.workload is not None else ""
    if body.budget is not None:
        if not body.tracked:
            raise InvalidInput.at(
                "budget", "what a training loses is measured from its steps, and this one reports none"
            )
        check_budget(
            gateway,
            body.budget,
            workload,
            [(report.device, report.sharing_mode) for report in reports if report.gpu == gpu],
        )
    budget = body.budget if body.budget is not None else DEFAULT_BUDGET
    with trail.change(caller, f"job/{body.name}") as change:
        rank = f"{body.boot}:{body.pid}:{body.start}"
        job = gateway.store().jobs.attach(
            caller.project,
            body.name,
            gpu,
            source="tracked" if body.tracked else "attached",
            workload=workload,
            budget=budget,
            group=body.group or rank,
            rank=rank,
            former=body.former,
            admit=admission(gateway, caller.project, reports),
        )
        command = AttachJob(
            version=1,
            id=job.id,
            project=caller.project,
            name=body.name,
            pid=body.pid,
            start=body.start,
            boot=body.boot,
            tracked=body.tracked,
            workload=workload,
            budget=budget,
            any_user=is_operator(caller),
        )
        gateway.fleet().attach(gpu, command)
        if not body.tracked and (reason := _refusal(gateway, job.id)):
            gateway.store().jobs.remove(caller.project, job.id)
            raise InvalidInput.at("pid", reason)
        change.target, change.after = (
            f"job/{job.id}",
            {"name": body.name, "gpu": gpu, "pid": body.pid, "tracked": body.tracked},
        )
    return schemas.Attached(id=job.id, gpu=gpu, beside_now=views.beside_now(gateway, caller, job))


def _refusal(gateway: Gateway, job: str) -> str:
    """
    Why the worker refuses to watch a process, '' = it does watch it, or does not answer in time. It alone can see whether
    there is such a process.
    """
    until = time.monotonic() + SEEN_S
    while time.monotonic() < until:
        for report in gateway.fleet().reports():
            for one in report.jobs:
                if one.id == job:
                    return one.reason if one.exit_code == REFUSED else ""
        time.sleep(_LOOK_S)
    return ""


def _where(reports: Sequence[Report], pid: int) -> str | None:
    """The GPU instance on which a process computes, or the only instance of all; None = not known."""
    seen = [report.gpu for report in reports if any(process.pid == pid for process in report.strangers or ())]
    if len(seen) == 1:
        return seen[0]
    return reports[0].gpu if len(reports) == 1 and not seen else None


@router.post("/{job}/steps", status_code=204, responses={410: {"model": Problem}})
def take_steps(gateway: TheGateway, caller: JobsKey, job: str, body: schemas.StepsBody) -> None:
    """
    Take iterations of an attached training. 404: it is over or was never attached, so it should register (again). 410:
    somebody has ended the watching, so it should not register again by itself. 429: it has sent 81,920 steps within ten
    seconds; leave out older ones.
    """
    match gateway.fleet().add_steps(caller.project, job, body.gpu, StepChunk(body.first, body.steps, body.ended)):
        case "unknown":
            raise NotFound(f"There is no attached job {job} on {body.gpu} in this project.")
        case "gone":
            raise LetGo
        case "too_many":
            raise LimitReached(
                f"Of one training {STEPS} steps are taken in {STEPS_IN_S} s, and it has sent more. Call tracker.step() once"
                " for an iteration, not for a sample.",
                field="steps",
                limit=STEPS,
                retry_after_s=SOON_S,
            )
