"""
Serverful jobs. A job is a row in Postgres; commands to GPU workers start and stop it; their reports say how it goes
(scheduler/tasks/record.py keeps those).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import redis
from fastapi import APIRouter, Query

from api import trainings
from api.auth import is_operator
from api.dates import moment
from api.deps import AdminKey, Gateway, JobsKey, ReadKey, TheGateway, TheTrail
from api.errors import LetGo
from api.schemas import jobs as schemas
from api.schemas.problem import Problem
from api.server.bodies import BoundedRoute
from api.statements import stated
from smore.domain import loss
from smore.domain.errors import InvalidInput, NotFound, Unavailable
from smore.domain.function import parse_name, size_bytes
from smore.domain.job import OVER, STARTED, Action, JobRequest, JobState, exit_of, outcome_of, signal_of, state_of
from smore.domain.limits import NO_LIMITS
from smore.domain.loss import DEFAULT_BUDGET, LEAST_BUDGET
from smore.domain.quote import quoted
from smore.domain.workload import parse_training
from smore.messages.commands import AttachJob, SetBudget, StartJob, StopJob
from smore.messages.reports import JobReport, Report, StepChunk
from smore.process.vault import seal_env

if TYPE_CHECKING:
    from smore.postgres.jobs import Admit, Job

#: Most steps of the budget's control loop in a statement.
STEPS = 100

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=BoundedRoute)

#: Iterations that a profile needs before their noise can be estimated.
_LEAST_TIMED = 8


@router.post("", status_code=201)
def start_job(gateway: TheGateway, caller: JobsKey, trail: TheTrail, body: schemas.JobBody) -> schemas.Job:
    """Start a training process on the named GPU instances, or on the least loaded one."""
    from smore.postgres.jobs import Change

    parse_name(body.name)
    allowed = gateway.settings.job_entrypoints
    if body.argv[0] not in allowed:
        raise InvalidInput(
            f"argv[0]: {quoted(body.argv[0])} is not one of the allowed entry points ({', '.join(allowed)})",
            field="argv[0]",
        )
    fleet = gateway.fleet()
    reports = fleet.reports()
    if not reports:
        raise Unavailable
    reporting = {report.gpu for report in reports}
    store = gateway.store()
    memory_mib = size_bytes(body.memory, "memory") / 2**20 if body.memory is not None else 0.0
    others = trainings.going_on(store.jobs.unfinished(), reports)
    if body.gpus is not None:
        gpus = body.gpus
    else:
        enough, fitting = trainings.places(reports, others, memory_mib)
        gpus = [min(fitting or enough or [max(reports, key=lambda report: report.memory_total_mib)], key=_load).gpu]
    for position, gpu in enumerate(gpus):
        if gpu not in reporting or gpu in gpus[:position]:
            raise InvalidInput(
                f"gpus[{position}]: {quoted(gpu)} is not the name of a GPU instance, or is named twice",
                field=f"gpus[{position}]",
            )
    trainings.check_fits([report for report in reports if report.gpu in gpus], others, memory_mib)
    workload = parse_training(body.workload, "workload") if body.workload is not None else ""
    if body.budget is not None:
        places = {(report.device, report.sharing_mode) for report in reports if report.gpu in gpus}
        _check_budget(gateway, body.budget, workload, sorted(places))
    budget = body.budget if body.budget is not None else DEFAULT_BUDGET
    request = JobRequest(argv=body.argv, gpus=gpus, memory_mib=memory_mib, workload=workload, budget=budget)
    env = seal_env(gateway.vault(), caller.project, body.name, body.env) if body.env else None
    admit = _admission(gateway, caller.project, reports, memory_mib * len(gpus))
    with trail.change(caller, f"job/{body.name}") as change:
        job = store.jobs.submit(caller.project, body.name, request, env, admit=admit)
        job = store.jobs.move(job.id, Action.START, Change(gpus=gpus)) or job
        command = StartJob(
            version=1,
            id=job.id,
            project=caller.project,
            name=body.name,
            argv=body.argv,
            env=body.env,
            workload=workload,
            budget=budget,
            memory_mib=memory_mib,
        )
        try:
            for gpu in gpus:
                fleet.send(gpu, command)
        except redis.ResponseError:
            # The command was refused: no worker will ever learn of the job.
            gateway.store().jobs.move(job.id, Action.LOSE)
            raise
        change.target, change.after = (
            f"job/{job.id}",
            {"name": body.name, "argv": body.argv, "gpus": gpus, "budget": budget},
        )
    return _shown(job, [])


@router.post("/attach", status_code=201)
def attach_job(gateway: TheGateway, caller: JobsKey, trail: TheTrail, body: schemas.AttachBody) -> schemas.Attached:
    """
    Register a training that runs elsewhere. It stays its owner's: the platform never starts, stops or moves it, and
    `stop` only ends the watching.

    It counts as a job from its worker's next report on, and is as fast as the slowest of its ranks.
    """
    parse_name(body.name)
    # A training in a container may be process 1 there; then it sends its boot id too, which tells it from the machine's
    # own process 1.
    if body.pid == 1 and not body.boot:
        raise InvalidInput("pid: process 1 is the machine's or the container's own", field="pid")
    reports = gateway.fleet().reports()
    if not reports:
        raise Unavailable
    gpu = body.gpu if body.gpu is not None else _where(reports, body.pid)
    if gpu is None or all(report.gpu != gpu for report in reports):
        names = ", ".join(report.gpu for report in reports)
        problem = (
            "the platform cannot find out where it trains"
            if gpu is None
            else f"{quoted(gpu)} is not the name of a GPU instance"
        )
        raise InvalidInput(f"gpu: {problem}; there are {names}", field="gpu")
    workload = parse_training(body.workload, "workload") if body.workload is not None else ""
    if body.budget is not None:
        if not body.tracked:
            raise InvalidInput(
                "budget: what a training loses is measured from its steps, and this one reports none", field="budget"
            )
        _check_budget(
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
            admit=_admission(gateway, caller.project, reports),
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
        change.target, change.after = (
            f"job/{job.id}",
            {"name": body.name, "gpu": gpu, "pid": body.pid, "tracked": body.tracked},
        )
    return schemas.Attached(id=job.id, gpu=gpu)


def _admission(gateway: Gateway, project: str, reports: Sequence[Report], wanted_mib: float = 0.0) -> "Admit":
    """A check of the project's limits on one more training, which the store makes while it holds the project."""
    limits = gateway.catalog.limits.get(project, NO_LIMITS)
    default = gateway.settings.jobs_per_project

    def admit(jobs: Sequence["Job"]) -> None:
        trainings.check_limits(trainings.going_on(jobs, reports), reports, limits, default, wanted_mib)

    return admit


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
    somebody has ended the watching, so it should not register again by itself.
    """
    match gateway.fleet().add_steps(caller.project, job, body.gpu, StepChunk(body.first, body.steps, body.ended)):
        case "unknown":
            raise NotFound(f"There is no attached job {job} on {body.gpu} in this project.")
        case "gone":
            raise LetGo


def _check_budget(gateway: Gateway, budget: float, workload: str, places: Sequence[tuple[str, str]]) -> None:
    """
    Raises InvalidInput, which names the smallest budget whose keeping can be told from noise.

    The noise comes from a profile of the workload at these places; without a profile only the static bound holds. A
    default budget is not checked: it is an aim.
    """
    smallest = LEAST_BUDGET
    why = "the smallest for any job"
    own = gateway.settings.worker
    for place in places if workload else ():
        for timing in gateway.reader().solo_timings(workload, place):
            if timing["n"] < _LEAST_TIMED:
                continue
            noise = loss.noise_of(timing["p50"], timing["p95"])
            resolvable = loss.resolvable(
                noise=noise, iteration_s=timing["mean"], share=own.probe_share, longest_s=own.probe_max_s
            )
            if resolvable > smallest:
                smallest = math.ceil(resolvable * 1000) / 1000 if math.isfinite(resolvable) else math.inf
                why = f"iterations of {workload} take {timing['mean']:.3g} s and scatter by {noise:.1%}"
            break
    if math.isinf(smallest):
        raise InvalidInput(
            f"budget: the keeping of no budget can be measured for this job: {why}, too slow for windows of {own.probe_max_s:g} s in"
            f" {own.probe_share:.0%} of the time. Leave it out to start the job with the aim of {DEFAULT_BUDGET:g}.",
            field="budget",
        )
    if not smallest <= budget <= 1:
        raise InvalidInput(
            f"budget: {budget:g} is not from {smallest:g} to 1; {smallest:g} is {why}",
            field="budget",
            smallest=smallest,
        )


def _load(report: Report) -> tuple[int, float, str]:
    return sum(job.state == JobState.RUNNING for job in report.jobs), report.utilisation, report.gpu


@router.get("")
def list_jobs(
    gateway: TheGateway,
    caller: ReadKey,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9a-f]{32}$")] = None,
) -> schemas.Jobs:
    """List the jobs of the project, the newest first."""
    jobs, next_cursor = gateway.store().jobs.page(caller.project, limit=limit, cursor=cursor)
    live = _live(gateway)
    return schemas.Jobs(jobs=[_shown(job, live.get(job.id, [])) for job in jobs], next_cursor=next_cursor)


@router.get("/{job}")
def get_job(gateway: TheGateway, caller: ReadKey, job: str) -> schemas.Job:
    """Read one job: its state, its iteration times, and what it has lost to functions lately."""
    return _shown(gateway.store().jobs.get(caller.project, job), _live(gateway).get(job, []))


@router.get("/{job}/statement")
def get_statement(gateway: TheGateway, caller: ReadKey, job: str) -> schemas.Statement:
    """Read what functions got beside a job, and what the job lost to them, over its whole life."""
    record = gateway.store().jobs.get(caller.project, job)
    began = record.started_at or record.created_at
    with gateway.reader().together() as reader:
        return stated(
            record,
            reader.closed(job),
            reader.harvest(job, record.gpus),
            began,
            reader.budget_steps(job, STEPS),
            measured=record.source != "attached" and gateway.settings.worker.probe_share > 0,
        )


@router.post("/{job}/stop", status_code=202)
def stop_job(gateway: TheGateway, caller: JobsKey, trail: TheTrail, job: str) -> schemas.Job:
    """
    End a job by SIGTERM and, where it stays, by SIGKILL. One that has ended stays as it is. One that runs elsewhere
    trains on and is watched no longer.
    """
    store = gateway.store()
    record = store.jobs.get(caller.project, job)
    if record.state in OVER:
        return _shown(record, [])
    with trail.change(caller, f"job/{job}", {"state": record.state.value}) as change:
        if record.source != STARTED:
            gateway.fleet().detach(job)
        for gpu in record.gpus:
            gateway.fleet().send(gpu, StopJob(version=1, id=job))
        stopping = store.jobs.stop(caller.project, job)
        change.after = {"state": stopping.state.value}
    return _shown(stopping, [])


@router.put("/{job}/slo")
def set_slo(gateway: TheGateway, caller: AdminKey, trail: TheTrail, job: str, body: schemas.BudgetBody) -> schemas.Job:
    """
    Change what a job may lose to functions, from its workers' next report on. What it has saved or lost so far is not
    carried over.
    """
    store = gateway.store()
    record = store.jobs.get(caller.project, job)
    places = {(report.device, report.sharing_mode) for report in gateway.fleet().reports() if report.gpu in record.gpus}
    _check_budget(gateway, body.budget, record.workload, sorted(places))
    with trail.change(caller, f"job/{job}", {"budget": record.budget}) as change:
        changed = store.jobs.set_budget(caller.project, job, body.budget)
        for gpu in record.gpus:
            gateway.fleet().send(gpu, SetBudget(version=1, id=job, budget=body.budget))
        change.after = {"budget": body.budget}
    return _shown(changed, _live(gateway).get(job, []))


def _live(gateway: Gateway) -> dict[str, list[JobReport]]:
    """The present reports of GPU workers, by job."""
    by_job: dict[str, list[JobReport]] = {}
    for report in gateway.fleet().reports():
        for job in report.jobs:
            by_job.setdefault(job.id, []).append(job)
    return by_job


def _shown(job: "Job", reports: Sequence[JobReport]) -> schemas.Job:
    state = state_of(job.state, {report.state for report in reports})
    # Of a job that is over and not yet recorded, its workers know the exit code.
    exit_code = job.exit_code if job.state in OVER else exit_of([report.exit_code for report in reports])
    reason = job.reason or next((report.reason for report in reports if report.reason), "")
    # A job is as fast as its slowest rank.
    solo_s = max((report.solo_s for report in reports if report.solo_count), default=None)
    shared_s = max((report.shared_s for report in reports if report.shared_count), default=None)
    known = all(report.loss_high is not None for report in reports)
    worst = max(reports, key=lambda report: report.loss_high or 0.0, default=None) if known else None
    return schemas.Job(
        id=job.id,
        name=job.name,
        state=state.value,
        argv=list(job.argv),
        gpus=list(job.gpus),
        workload=job.workload or None,
        created_at=moment(job.created_at),
        started_at=moment(job.started_at) if job.started_at is not None else None,
        ended_at=moment(job.ended_at) if job.ended_at is not None else None,
        iterations=min((report.iterations for report in reports), default=0),
        solo_s=solo_s,
        shared_s=shared_s,
        degradation=shared_s / solo_s - 1 if solo_s and shared_s is not None else None,
        budget=job.budget,
        loss=worst.loss if worst else None,
        loss_low=worst.loss_low if worst else None,
        loss_high=worst.loss_high if worst else None,
        loss_windows=min((report.loss_windows for report in reports), default=0),
        memory_mib=sum(report.memory_mib for report in reports) if reports else None,
        exit_code=exit_code,
        suspended=any(report.suspended for report in reports),
        signal=signal_of(exit_code),
        reason=reason or None,
        outcome=outcome_of(state, exit_code, asked=job.asked, reason=reason),
        source=job.source,
        measured=job.source != "attached",
    )
