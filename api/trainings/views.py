"""Jobs as the API shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from api.auth import is_operator
from api.dates import moment
from api.deps import Gateway
from api.schemas import jobs as schemas
from api.trainings.names import ANOTHER, Say
from api.trainings.pairs import cost
from api.trainings.statements import fewest_of, lost_of
from smore.domain.job import (
    OVER,
    PLACED,
    WAITING,
    JobDecision,
    JobPlace,
    JobState,
    ended_in_words,
    exit_of,
    outcome_of,
    signal_of,
    state_of,
)
from smore.messages.job_queue import PublishedJob, PublishedQueue
from smore.messages.reports import JobReport, Report
from smore.redis.catalog import KeyEntry

if TYPE_CHECKING:
    from smore.domain.loss import Loss
    from smore.postgres.job_promises import JobPromise
    from smore.postgres.jobs import Job, PastAttempt


#: Of a job that waits, or whose start was decided so.
MOVED: Final = "An operator put it before all others that wait."


def live(gateway: Gateway) -> dict[str, list[JobReport]]:
    """The present reports of GPU workers, by job."""
    return by_job(gateway.fleet().reports())


def by_job(reports: Sequence[Report]) -> dict[str, list[JobReport]]:
    """What reports say of jobs, by job."""
    of_jobs: dict[str, list[JobReport]] = {}
    for report in reports:
        for job in report.jobs:
            of_jobs.setdefault(job.id, []).append(job)
    return of_jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """
    What the history knows of a job. What it ``lost`` to functions where none has run beside it or it is over, None = not
    known; of one that is over its closed ``windows`` and the ``iterations`` that it reported last.
    """

    lost: "Loss | None" = None
    windows: int = 0
    iterations: int = 0


NOTHING_KNOWN: Final[Mapping[str, Past]] = MappingProxyType({})


def past(gateway: Gateway, jobs: Sequence["Job"], known: Mapping[str, Past] = NOTHING_KNOWN) -> dict[str, Past]:
    """What the history knows of those of the jobs that have run, by id; ``known`` is not read again."""
    found = {job.id: known[job.id] for job in jobs if job.id in known}
    began = [job for job in jobs if job.started_at is not None and job.id not in known]
    over = [job.id for job in began if job.state in OVER]
    with gateway.reader().together() as reader:
        harvested = reader.harvested([job.id for job in began])
        closed, iterations = (reader.closed(over), reader.last_iterations(over)) if over else ({}, {})
    for job in began:
        of_job = closed.get(job.id, {})
        fewest = fewest_of(job, of_job)
        found[job.id] = Past(
            lost=lost_of(job, of_job, harvested=job.id in harvested),
            windows=fewest.sums.windows if fewest is not None else 0,
            iterations=iterations.get(job.id, 0),
        )
    return found


def beside_now(gateway: Gateway, caller: KeyEntry, job: "Job") -> list[str]:
    """
    Other trainings that train on a job's GPU instances now and were not placed there beside it: their names, and of those
    that the caller may not read that they are of another project.
    """
    if job.state not in PLACED:
        return []
    ids = {
        one.id
        for report in gateway.fleet().reports()
        if report.gpu in job.gpus
        for one in report.jobs
        if one.id != job.id and one.state == JobState.RUNNING and not one.unseen
    }
    jobs = gateway.store().jobs
    strange = ids - {pair.other for pair in jobs.pairs(job.id)} if ids else ids
    names = jobs.names(strange, None if is_operator(caller) else job.project)
    return sorted(names.get(id_, ANOTHER) for id_ in strange)


def unseen(reports: Sequence[JobReport]) -> str:
    """Why a job counts for nothing, '' = it counts; ``reports``: of its ranks now."""
    return next((report.unseen for report in reports if report.unseen and report.state not in OVER), "")


def shown(
    job: "Job",
    reports: Sequence[JobReport],
    of_queue: PublishedJob | None = None,
    say: Say = str,
    past: Past | None = None,
    beside: Sequence[str] = (),
    promise: "JobPromise | None" = None,
) -> schemas.Job:
    """See :func:`recorded` and :func:`reported`."""
    return schemas.Job(**recorded(job, of_queue, say, beside, promise) | reported(job, reports, past))


def recorded(
    job: "Job",
    of_queue: PublishedJob | None = None,
    say: Say = str,
    beside: Sequence[str] = (),
    promise: "JobPromise | None" = None,
) -> dict[str, Any]:
    """
    What the records say of a job, of the fields of :class:`api.schemas.jobs.Job`. ``of_queue``: what the job scheduler
    published of it last, said by ``say``; ``beside``: as :func:`beside_now` says it.
    """
    request = job.request
    return {
        "id": job.id,
        "name": job.name,
        "project": job.project,
        "argv": list(request.argv),
        "gpus": list(job.gpus),
        "count": max(request.count, len(job.gpus)),
        "device": request.device or None,
        "workload": request.workload or None,
        "created_at": moment(job.created_at),
        "queued_at": _moment(job.queued_at),
        "started_at": _moment(job.started_at),
        "ended_at": _moment(job.ended_at),
        "checkpoint": job.iterations,
        "iterations_wanted": request.iterations or None,
        "duration_s": request.duration_s or None,
        "restarts": request.restarts,
        "restarted": job.restarts,
        "grace_s": request.grace_s,
        "share": request.share,
        "micro_batches": list(request.micro_batches),
        "attempt": job.attempt,
        "expected": _expected(of_queue, say) if of_queue is not None else None,
        **_told(job),
        "budget": request.budget,
        "source": job.source,
        "measured": job.source != "attached",
        "beside_now": list(beside),
        "promise": _promise(promise) if promise is not None else None,
    }


def reported(job: "Job", reports: Sequence[JobReport], past: Past | None = None) -> dict[str, Any]:
    """The fields in which ``reports``, of its ranks now, have a say; some of them replace what is recorded."""
    # A rank of an older attempt, on a host that was silent, says nothing of the job.
    reports = [report for report in reports if report.attempt == job.attempt]
    # What may be started again is not over when its ranks are.
    state = state_of(job.state, {report.state for report in reports}) if not job.request.restarts else job.state
    # Of a job that is over and not yet recorded, its workers know the exit code.
    exit_code = job.exit_code if job.state in OVER else exit_of([report.exit_code for report in reports])
    reason = job.reason or next((report.reason for report in reports if report.reason), "")
    # A job is as fast as its slowest rank.
    solo_s = max((report.solo_s for report in reports if report.solo_count), default=None)
    shared_s = max((report.shared_s for report in reports if report.shared_count), default=None)
    known = all(report.loss_high is not None for report in reports)
    slowest = max(reports, key=lambda report: report.loss_high or 0.0, default=None) if known else None
    loss = loss_low = loss_high = None
    past = past or Past()
    if past.lost is not None:
        loss, loss_low, loss_high = past.lost.mean, past.lost.low, past.lost.high
    elif slowest is not None:
        loss, loss_low, loss_high = slowest.loss, slowest.loss_low, slowest.loss_high
    return {
        "state": state.value,
        # What an attempt lost with its end is made again, and counts once.
        "iterations": max(
            job.reached,
            past.iterations,
            job.began_with + min((report.iterations for report in reports), default=0),
        ),
        "solo_s": solo_s,
        "shared_s": shared_s,
        "degradation": shared_s / solo_s - 1 if solo_s and shared_s is not None else None,
        "loss": loss,
        "loss_low": loss_low,
        "loss_high": loss_high,
        "loss_windows": max(past.windows, min((report.loss_windows for report in reports), default=0)),
        "memory_mib": sum(report.memory_mib for report in reports) if reports else None,
        "exit_code": exit_code,
        "suspended": any(report.suspended for report in reports),
        "unseen": unseen(reports) or None,
        "signal": signal_of(exit_code),
        "reason": reason or None,
        "outcome": outcome_of(state, exit_code, asked=job.asked, reason=reason),
    } | ({"expected": None} if state in OVER else {})


def _promise(promise: "JobPromise") -> dict[str, Any]:
    return {
        "by": _moment(promise.by),
        "latest_start_at": _moment(promise.latest_start_at),
        "earliest": _moment(promise.earliest),
        "outcome": promise.outcome,
        "why": promise.why or None,
    }


def _told(job: "Job") -> dict[str, Any]:
    """What was told as it started. Each start forgets what the one before was told, and when it was is kept of the first."""
    began = job.started_at
    if began is None or job.attempt != 1 or job.estimate_s is None or job.estimate_90_s is None:
        return {"told_end_at": None, "told_late_at": None, "told_source": ""}
    return {
        "told_end_at": moment(began + job.estimate_s),
        "told_late_at": moment(began + job.estimate_90_s),
        "told_source": job.estimate_source,
    }


def expected(job: PublishedJob, say: Say) -> schemas.Expected:
    """What the job scheduler published of a job."""
    return schemas.Expected(**_expected(job, say))


def _expected(job: PublishedJob, say: Say) -> dict[str, Any]:
    start_at, start_late_at = job.start_at or (None, None)
    end_at, end_late_at = job.end_at or (None, None)
    return schemas.Expected.row(
        job,
        start_at=_moment(start_at),
        start_late_at=_moment(start_late_at),
        end_at=_moment(end_at),
        end_late_at=_moment(end_late_at),
        message=say(job.message),
        promised_by=_moment(job.promised),
        at_risk=job.at_risk or None,
    )


def queue(
    published: PublishedQueue | None, leading: bool, refused: str, jobs: Sequence["Job"], project: str | None, say: Say
) -> schemas.JobQueue:
    """
    The queue as it was published, of one project or of all (None). ``jobs``: all that are not over; one that has come
    since is no part of it yet. ``say``: the words in which jobs have names.
    """
    if published is None:
        return schemas.JobQueue(leading=leading, refused=refused or None, jobs=[])
    by_id = {job.id: job for job in jobs}
    first = by_id.get(published.kept_for)
    return schemas.JobQueue(
        at=moment(published.at),
        leading=leading,
        refused=refused or None,
        setting=published.setting,
        kept=published.kept,
        kept_for=published.kept_for if first is not None and project in (None, first.project) else None,
        waiting=sum(job.place > 0 for job in published.jobs),
        jobs=[
            schemas.QueuedJob(
                **_expected(entry, say),
                id=entry.id,
                name=entry.name,
                project=entry.project,
                state=job.state.value,
                count=max(job.request.count, len(job.gpus)),
                device=job.request.device or None,
            )
            for entry in published.jobs
            if (job := by_id.get(entry.id)) is not None and project in (None, entry.project)
        ],
    )


def explanation(
    job: "Job",
    of_queue: PublishedJob | None,
    decisions: Sequence[JobDecision],
    places: Sequence[JobPlace],
    beside: Sequence[schemas.Beside],
    leading: bool,
    unseen: str = "",
    say: Say = str,
    strange: Sequence[str] = (),
) -> schemas.JobExplanation:
    """
    Why a job is where it is. ``beside``: the other trainings that it was placed beside now; ``unseen``: see :func:`unseen`;
    ``strange``: as :func:`beside_now` says it; ``say``: the words in which jobs have names.
    """
    costs = [cost(each) for each in beside]
    why = (
        f"It counts for nothing, for {unseen}: functions run as if it was not there, and nothing is kept for it. An operator"
        f" who knows it lets it count: smore jobs allow {job.name}"
        if unseen
        else _why(job, of_queue, decisions, leading)
    )
    sentences = [why, *(f"{words[0].upper()}{words[1:]}." for words in costs)]
    if strange:
        sentences.append(f"Nobody placed these there, and they train on its GPU instances too: {', '.join(strange)}.")
    return schemas.JobExplanation(
        id=job.id,
        name=job.name,
        state=job.state.value,
        summary=say(" ".join(sentences)),
        expected=expected(of_queue, say) if of_queue is not None and job.state not in OVER else None,
        places=[replace(place, message=say(place.message)) for place in places],
        decisions=[replace(one, message=say(_message(one))) for one in decisions],
    )


def _message(decision: JobDecision) -> str:
    """Its words, and whether an operator's order came before the order of the queue."""
    moved = decision.reasons is not None and decision.reasons.get("turn") == "moved"
    return f"{MOVED} {decision.message}".strip() if moved else decision.message


def _why(job: "Job", of_queue: PublishedJob | None, decisions: Sequence[JobDecision], leading: bool) -> str:
    last = next((one.message for one in decisions if one.message and one.kind != "start"), "")
    if job.state in OVER:
        outcome = job.outcome.value if job.outcome is not None and job.state is not JobState.LOST else job.state.value
        return f"It is over: {ended_in_words(outcome, job.exit_code)}. {job.reason or last}".strip()
    if not leading:
        return "No job scheduler leads now: what runs goes on, and nothing is started."
    if of_queue is not None:
        return f"{MOVED} {of_queue.message}".strip() if job.moved and job.state in WAITING else of_queue.message
    return "The job scheduler has not decided about it yet."


def attempts(job: "Job", of_job: Sequence["PastAttempt"]) -> schemas.JobAttempts:
    """The attempts of a job."""
    return schemas.JobAttempts(
        id=job.id,
        name=job.name,
        attempts=[schemas.JobAttempt.of(one) for one in of_job],
    )


def _moment(at: float | None) -> datetime | None:
    return None if at is None else moment(at)
