"""
Serverful jobs. A job is a row in Postgres; the job scheduler decides when and where it starts, commands to GPU workers
start and stop it, their reports say how it goes.

Wherever a job is named, its id and its name will do.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import redis
from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import is_operator, project_of
from api.dates import moment
from api.deps import (
    CURSOR,
    AdminKey,
    Anyway,
    Gateway,
    JobsKey,
    JobsOrReadKey,
    Listed,
    OfProject,
    OperatorKey,
    PageLimit,
    ReadKey,
    TheGateway,
    TheTrail,
    Trail,
)
from api.logs import CONTINUED, FOLLOWED, LogRequest
from api.rows import TrainingRows, published
from api.schemas import jobs as schemas
from api.schemas.jobs import SecretOf
from api.schemas.logs import LogLines
from api.schemas.statements import Statement
from api.server.bodies import BoundedRoute
from api.trainings import pairs as job_pairs
from api.trainings import views
from api.trainings.budgets import check_budget, too_long
from api.trainings.limits import admission, check_limits, going_on
from api.trainings.names import Say, saying
from api.trainings.promises import body_digest, check_hold, refuse_unpromised
from api.trainings.request import check_ever, check_fits, request_of
from api.trainings.statements import Span, stated
from smore.domain.errors import Conflict, Unavailable
from smore.domain.job import OVER, PLACED, STARTED, WAITING, JobPlace, JobState
from smore.domain.limits import NO_LIMITS
from smore.messages.commands import AllowJob, SetBudget, StopJob
from smore.messages.job_queue import PublishedJob, PublishedQueue
from smore.process.vault import seal_env
from smore.redis.catalog import KeyEntry
from smore.redis.job_queue import JobQueue, no_leader
from smore.redis.logs import job_log

if TYPE_CHECKING:
    from smore.postgres.job_pairs import JobPair
    from smore.postgres.job_promises import JobPromise
    from smore.postgres.jobs import Job

#: Most steps of the budget's control loop in a statement.
STEPS: Final = 100
#: Seconds that the answer to a start waits for the job scheduler's first decision.
DECIDED_S: Final = 1.0
#: The same for one of which an end is to be promised.
PROMISED_S: Final = 5.0

_Found = TypeVar("_Found")

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=BoundedRoute)


@router.post("/jobs", status_code=201)
def start_job(
    gateway: TheGateway,
    caller: JobsKey,
    trail: TheTrail,
    body: schemas.JobBody,
    response: Response,
    idempotency_key: Annotated[
        str | None,
        Header(
            pattern=r"^[\x21-\x7e]{1,255}$",
            description="A later request with the same key and the same body (but for the values of variables) gets the"
            " first one's job, with `Idempotency-Replayed: true`, and starts nothing; one with another body is refused"
            " (422 `idempotency_mismatch`)",
        ),
    ] = None,
) -> schemas.Job:
    """
    Start a training as soon as there is room for it. The answer comes after its first decision or 1 s, whichever is
    first: the job is on its `gpus`, or it waits, and `expected` says in which place, for what, and until when. While
    nothing is decided `expected` is null; where no job scheduler leads (`leading` of `GET /v1/jobs/queue`) that is so at
    once.

    422 where it could never start on the GPU instances that there are (`field`, `largest`), 429 where the project has as
    many jobs as it may. With `by` the answer comes when its end is promised, or 429 `slo_infeasible` says the `earliest` that
    would be; without a job scheduler that answers 503, and the training is not started.
    """
    digest = body_digest(body) if idempotency_key is not None else None
    if idempotency_key is not None and digest is not None:
        known = gateway.store().jobs.repeated(caller.project, idempotency_key, digest)
        if known is not None:
            response.headers["Idempotency-Replayed"] = "true"
            return _begun(gateway, caller, known, keep=True)
    reports = gateway.fleet().reports()
    request = request_of(gateway, caller, body, reports)
    check_ever(gateway, caller.project, body.name, request)
    store = gateway.store()
    plain = {name: value for name, value in body.env.items() if not isinstance(value, SecretOf)}
    env = seal_env(gateway.vault(), caller.project, body.name, plain) if plain else None
    admit = admission(gateway, caller.project, reports, request.memory_mib * request.count)
    if request.by is not None and not _doors(gateway).leader():
        raise Unavailable(no_leader(_doors(gateway).refused()), part="job_leader")
    with trail.change(caller, f"job/{body.name}") as change:
        job = store.jobs.submit(
            caller.project, body.name, request, env, admit=admit, key=idempotency_key, digest=digest
        )
        # A variable may be a password: the audit log has none of them.
        change.target, change.after = f"job/{job.id}", {"name": body.name, **asdict(request)}
    return _begun(gateway, caller, job, keep=idempotency_key is not None)


@router.post("/jobs:dryRun")
def dry_run(gateway: TheGateway, caller: JobsOrReadKey, body: schemas.JobBody) -> schemas.JobTrial:
    """
    Say what would become of a job that came now, and start nothing: whether it could run, where, and when it would start
    and end. It refuses what `POST /v1/jobs` refuses. The answer is 503 while no job scheduler leads.
    """
    reports = gateway.fleet().reports()
    request = request_of(gateway, caller, body, reports)
    limits = gateway.catalog.limits.get(caller.project, NO_LIMITS)
    jobs = going_on([job for job in gateway.store().jobs.unfinished() if job.project == caller.project], reports)
    check_limits(jobs, reports, limits, gateway.settings.jobs_per_project, request.memory_mib * request.count)
    answer = _doors(gateway).trial(caller.project, body.name, request)
    check_fits(answer)
    assert answer.expected is not None
    if request.by is not None and request.unless == "refuse" and answer.unpromised:
        refuse_unpromised(gateway, caller, answer.earliest, answer.why, answer.unpromised)
    names = gateway.store().jobs.names(answer.beside, caller.project)
    return schemas.JobTrial(
        gpus=list(answer.gpus),
        beside=[names.get(id_, id_) for id_ in answer.beside],
        expected=views.expected(answer.expected, _say(gateway, caller, answer.expected)),
        earliest_promise_at=moment(answer.earliest) if answer.earliest is not None else None,
        no_promise=saying(gateway, caller, [answer.unpromised])(answer.unpromised) or None,
    )


@router.get("/jobs")
def list_jobs(
    gateway: TheGateway,
    caller: ReadKey,
    of: Listed,
    limit: PageLimit = 100,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9a-f]{32}$", description=CURSOR)] = None,
    state: Annotated[
        list[JobState] | None, Query(max_length=len(JobState), description="Only jobs in one of these states")
    ] = None,
) -> schemas.Jobs:
    """List the jobs of the project, the newest first."""
    jobs, next_cursor = gateway.store().jobs.page(of, limit=limit, cursor=cursor, states=state)
    reports, shown = views.live(gateway), TrainingRows(gateway, caller, jobs, published(gateway))
    rows = [schemas.Job(**shown.row(job, reports.get(job.id, []))) for job in jobs]
    return schemas.Jobs(jobs=rows, next_cursor=next_cursor)


@router.get("/jobs/queue")
def get_queue(gateway: TheGateway, caller: ReadKey) -> schemas.JobQueue:
    """Read the queue: the jobs that are on GPU instances, then those that wait, when they start and end, and why."""
    doors = _doors(gateway)
    project = None if is_operator(caller) else caller.project
    leading = bool(doors.leader())
    refused = "" if leading else doors.refused()
    published = doors.queue()
    say = _say(gateway, caller, *(published.jobs if published is not None else ()))
    return views.queue(published, leading, refused, gateway.store().jobs.unfinished(), project, say)


@router.get("/jobs/{job}")
def get_job(gateway: TheGateway, caller: ReadKey, job: str, project: OfProject = None) -> schemas.Job:
    """Read one job: its state, its iteration times, what it has lost to functions lately, and what it waits for."""
    record = _job(gateway, caller, job, project)
    entry = _entry(_doors(gateway).queue(), record.id)
    told, past = views.live(gateway).get(record.id, []), views.past(gateway, [record])
    beside = views.beside_now(gateway, caller, record)
    promise = gateway.store().jobs.promises([record.id]).get(record.id)
    return views.shown(record, told, entry, _say(gateway, caller, entry), past.get(record.id), beside, promise)


@router.get("/jobs/{job}/explain")
def explain_job(gateway: TheGateway, caller: ReadKey, job: str, project: OfProject = None) -> schemas.JobExplanation:
    """Explain why a job waits, runs where it runs, or is over, with what the job scheduler decided about it."""
    record = _job(gateway, caller, job, project)
    doors = _doors(gateway)
    jobs = gateway.store().jobs
    decisions = jobs.decisions(record.id)
    pairs = [pair for pair in jobs.pairs(record.id) if pair.until_at is None] if record.state in PLACED else []
    places: Sequence[JobPlace] = ()
    if record.state in WAITING:
        # Without an answer everything else is still worth reading.
        with contextlib.suppress(Unavailable):
            places = doors.places(record.id)
    names = _names(gateway, caller, record, pairs)
    beside = [job_pairs.beside(pair, names, record.request.workload) for pair in pairs]
    entry, leading = _entry(doors.queue(), record.id), bool(doors.leader())
    messages = [*(decision.message for decision in decisions), *(place.message for place in places)]
    say = saying(gateway, caller, [*messages, entry.message if entry is not None else ""])
    strange = views.beside_now(gateway, caller, record)
    unseen = views.unseen(views.live(gateway).get(record.id, []))
    return views.explanation(record, entry, decisions, places, beside, leading, unseen, say, strange)


@router.get("/jobs/{job}/attempts")
def list_attempts(gateway: TheGateway, caller: ReadKey, job: str, project: OfProject = None) -> schemas.JobAttempts:
    """List the attempts of a job: where each ran, from when to when, how it ended and how far it came."""
    record = _job(gateway, caller, job, project)
    return views.attempts(record, gateway.store().jobs.attempts(record.id))


@router.get("/jobs/{job}/statement")
def get_statement(gateway: TheGateway, caller: ReadKey, job: str, project: OfProject = None) -> Statement:
    """Read what functions got beside a job, and what the job lost to them, over its whole life."""
    record = _job(gateway, caller, job, project)
    now = views.shown(record, views.live(gateway).get(record.id, []))
    began = record.started_at or record.created_at
    pairs = gateway.store().jobs.pairs(record.id)
    names = _names(gateway, caller, record, pairs)
    probes = gateway.settings.worker
    with gateway.reader().together() as reader:
        closed = reader.closed([record.id]).get(record.id, {})
        spans: list[Span] = []
        if record.past_budgets:
            since = began
            for until, budget in [*record.past_budgets, (None, record.request.budget)]:
                if until is None or until > since:
                    of_span = reader.closed([record.id], since, until).get(record.id, {})
                    spans.append(Span(since=since, until=until, budget=budget, closed=of_span))
                    since = until or since
        return stated(
            record,
            closed,
            reader.harvest(record.id),
            began,
            reader.budget_steps(record.id, STEPS),
            pairs,
            names,
            spans=spans,
            measured=record.source != "attached" and probes.probe_share > 0 and (now.iterations > 0 or bool(closed)),
            too_long=too_long([now.solo_s, now.shared_s], probes.probe_max_s),
        )


@router.get("/jobs/{job}/logs", response_model=LogLines, responses=FOLLOWED, openapi_extra=CONTINUED)
async def get_logs(
    gateway: TheGateway,
    caller: ReadKey,
    request: Request,
    job: str,
    rank: Annotated[int, Query(ge=0, le=4095, description="The rank whose lines are read")] = 0,
    lines: Annotated[int, Query(ge=0, le=10_000, description="As many of the newest at most")] = 100,
    follow: Annotated[bool, Query(description="Go on with the lines that come, as server-sent events")] = False,
    project: OfProject = None,
) -> Response:
    """
    Read what a rank of a job has printed, over all its attempts, on whatever machine it ran. A training that was started
    elsewhere prints elsewhere.

    With `follow=true` the answer is a `text/event-stream` that goes on until the job is over: each event is one line as
    JSON, and the last one has the type `end`. A client whose connection ends goes on behind the last line that it has
    with the header `Last-Event-ID`.
    """
    record = await run_in_threadpool(_job, gateway, caller, job, project)

    async def over() -> bool:
        now = await run_in_threadpool(gateway.store().jobs.get, record.project, record.id)
        return now.state in OVER

    asked = LogRequest(gateway, caller, job_log(record.id, rank), lines=lines, over=over)
    return await (asked.follow(request) if follow else asked.newest(request))


# ---- changes ---------------------------------------------------------------------------------------------------------


@router.post("/jobs/{job}/stop", status_code=202)
def stop_job(gateway: TheGateway, caller: JobsKey, trail: TheTrail, job: str, project: OfProject = None) -> schemas.Job:
    """
    End a job by SIGTERM and, where it stays beyond its grace, by SIGKILL; one that waits ends at once. One that has ended
    stays as it is. One that runs elsewhere trains on and is watched no longer.
    """
    record = _job(gateway, caller, job, project)
    if record.state in OVER:
        return views.shown(record, [])
    with trail.change(caller, f"job/{record.id}", {"state": record.state.value}, project=record.project) as change:
        if record.source != STARTED:
            gateway.fleet().detach(record.id)
            for gpu in record.gpus:
                gateway.fleet().send(gpu, StopJob(version=1, id=record.id))
        stopping = gateway.store().jobs.stop(record.project, record.id)
        change.after = {"state": stopping.state.value}
    _wake(gateway)
    return views.shown(stopping, [])


@router.post("/jobs/{job}/hold")
def hold_job(
    gateway: TheGateway,
    caller: JobsKey,
    trail: TheTrail,
    job: str,
    project: OfProject = None,
    anyway: Anyway = False,
) -> schemas.Job:
    """
    Keep a job that waits from being started until it is released. 409 for one that does not wait, and, unless `anyway`, for
    one whose end is promised (`breaks`): while it is held nothing is kept for it.
    """
    record = _job(gateway, caller, job, project)
    if not anyway:
        check_hold(gateway, caller, record)
    return _changed(gateway, caller, trail, record, gateway.store().jobs.hold)


@router.post("/jobs/{job}/release")
def release_job(
    gateway: TheGateway, caller: JobsKey, trail: TheTrail, job: str, project: OfProject = None
) -> schemas.Job:
    """Let a job that is held wait for its turn again. 409 for one that is not held."""
    return _changed(gateway, caller, trail, _job(gateway, caller, job, project), gateway.store().jobs.release)


@router.post("/jobs/{job}/restart")
def restart_job(
    gateway: TheGateway, caller: JobsKey, trail: TheTrail, job: str, project: OfProject = None
) -> schemas.Job:
    """
    Queue a job that is over again, for another attempt from its last checkpoint, or from the beginning where it has written
    none (`checkpoint` 0). 409 for one that is not over, or that was started elsewhere.
    """
    return _changed(gateway, caller, trail, _job(gateway, caller, job, project), gateway.store().jobs.restart)


@router.post("/jobs/{job}/move")
def move_job(
    gateway: TheGateway,
    caller: OperatorKey,
    trail: TheTrail,
    job: str,
    body: schemas.MoveBody,  # noqa: ARG001 - it has one value
    project: OfProject = None,
) -> schemas.Job:
    """Put a job that waits before all others; of two that were put first, the later one. 409 for one that does not wait."""
    record, put_first = _job(gateway, caller, job, project), gateway.store().jobs.put_first
    return _changed(gateway, caller, trail, record, put_first, {"first": True})


@router.post("/jobs/{job}/allow", status_code=202)
def allow_job(
    gateway: TheGateway, caller: OperatorKey, trail: TheTrail, job: str, project: OfProject = None
) -> schemas.Job:
    """
    Let a tracked training count whose process no GPU worker sees (`unseen`), from its workers' next report on. 409 for any
    other job.
    """
    record = _job(gateway, caller, job, project)
    if record.state in OVER or record.source != "tracked":
        raise Conflict("Only a training that tells its steps from elsewhere, and is not over, needs to be allowed.")
    with trail.change(caller, f"job/{record.id}", {}, project=record.project) as change:
        for gpu in record.gpus:
            gateway.fleet().send(gpu, AllowJob(version=1, id=record.id))
        change.after = {"allowed": True}
    return views.shown(record, views.live(gateway).get(record.id, []))


@router.put("/jobs/{job}/slo")
def set_slo(gateway: TheGateway, caller: AdminKey, trail: TheTrail, job: str, body: schemas.BudgetBody) -> schemas.Job:
    """
    Change what a job may lose to functions, from its workers' next report on. What it has saved or lost so far is not
    carried over.
    """
    record = _job(gateway, caller, job, None)
    places = {(report.device, report.sharing_mode) for report in gateway.fleet().reports() if report.gpu in record.gpus}
    check_budget(gateway, body.budget, record.request.workload, sorted(places))
    with trail.change(caller, f"job/{record.id}", {"budget": record.request.budget}) as change:
        changed = gateway.store().jobs.set_budget(record.project, record.id, body.budget)
        for gpu in record.gpus:
            gateway.fleet().send(gpu, SetBudget(version=1, id=record.id, budget=body.budget))
        change.after = {"budget": body.budget}
    gateway.changed_jobs += 1
    return views.shown(changed, views.live(gateway).get(record.id, []))


def _names(gateway: Gateway, caller: KeyEntry, job: "Job", pairs: Sequence["JobPair"]) -> dict[str, str]:
    """The names of the other jobs of pairs that the caller may read."""
    of_project = None if is_operator(caller) else job.project
    return gateway.store().jobs.names({pair.other for pair in pairs}, of_project)


def _say(gateway: Gateway, caller: KeyEntry, *entries: PublishedJob | None) -> Say:
    """The words in which these entries of the queue are told to the caller."""
    return saying(gateway, caller, [entry.message for entry in entries if entry is not None])


def _job(gateway: Gateway, caller: KeyEntry, reference: str, project: str | None) -> "Job":
    """By id or name. Raises NotFound, Conflict, Forbidden."""
    return gateway.store().jobs.find(project_of(caller, project), reference)


def _changed(
    gateway: Gateway,
    caller: KeyEntry,
    trail: Trail,
    job: "Job",
    act: "Callable[[str, str], Job]",
    after: Mapping[str, bool] | None = None,
) -> schemas.Job:
    """Change a job, record that, and let the job scheduler see it at once; ``after``: what is recorded, None = its state."""
    with trail.change(caller, f"job/{job.id}", {"state": job.state.value}, project=job.project) as change:
        changed = act(job.project, job.id)
        change.after = after or {"state": changed.state.value}
    _wake(gateway)
    return views.shown(changed, [])


def _wake(gateway: Gateway) -> None:
    """Let the job scheduler see a change at once; where Redis does not take that, it sees it as soon as it can."""
    gateway.changed_jobs += 1
    with contextlib.suppress(redis.RedisError, OSError):
        _doors(gateway).wake()


def _begun(gateway: Gateway, caller: KeyEntry, job: "Job", *, keep: bool) -> schemas.Job:
    """
    The answer to a request that has made a job. ``keep``: whoever repeats it finds the job again; else one of which it is
    not decided whether its end is promised is stopped. Raises what tells that it is not.
    """
    jobs = gateway.store().jobs
    promise = _promise(gateway, job.id) if job.request.by is not None else None
    if job.request.by is not None and promise is None:
        if not keep:
            jobs.stop(job.project, job.id)
        raise Unavailable("The job scheduler does not answer.", part="job_leader")
    if promise is not None and promise.by is None and job.request.unless == "refuse":
        refuse_unpromised(gateway, caller, promise.earliest, promise.why, promise.message)
    entry = _first_decision(gateway, job.id)
    return views.shown(jobs.get(job.project, job.id), [], entry, _say(gateway, caller, entry), promise=promise)


def _promise(gateway: Gateway, job: str) -> "JobPromise | None":
    """What is decided of a job that asks for a promise, at most :data:`PROMISED_S` later; None = nothing is."""
    return _published(gateway, PROMISED_S, lambda: gateway.store().jobs.promises([job]).get(job))


def _first_decision(gateway: Gateway, job: str) -> PublishedJob | None:
    """
    What is published of a job that has just come, at most :data:`DECIDED_S` later; None = nothing is. It does not wait
    where nobody leads.
    """
    doors = _doors(gateway)
    # The job is accepted: without Redis it waits, and the answer says no more than that.
    with contextlib.suppress(redis.RedisError, OSError):
        return _published(gateway, DECIDED_S if doors.leader() else 0.0, lambda: _entry(doors.queue(), job))
    return None


def _published(gateway: Gateway, wait_s: float, look: Callable[[], _Found | None]) -> _Found | None:
    """What is found once the job scheduler has decided and published it; None = nothing was in ``wait_s``."""
    _wake(gateway)
    looks = (look() for _ in _doors(gateway).publications(wait_s))
    return next((found for found in looks if found is not None), None)


def _doors(gateway: Gateway) -> JobQueue:
    return JobQueue(gateway.client(), gateway.settings.redis.prefix)


def _entry(queue: PublishedQueue | None, job: str) -> PublishedJob | None:
    return next((entry for entry in queue.jobs if entry.id == job), None) if queue is not None else None
