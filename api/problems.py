"""What is the matter with the platform now, for the strip on every page of the dashboard."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from api.auth import is_operator
from api.dates import moment
from api.refused import MINUTES
from api.schemas.live import LiveProblem
from smore.domain.job import JobState, Outcome, ended_in_words
from smore.domain.loss import Loss, Verdict, judge
from smore.domain.override import Pause
from smore.messages.job_queue import PublishedQueue
from smore.messages.reports import Report
from smore.messages.wording import in_force
from smore.redis.catalog import KeyEntry
from smore.redis.fleet import FleetState

if TYPE_CHECKING:
    from smore.postgres.jobs import Job

#: How long a pause may last, and how long the end of a training is told, seconds.
PAUSED_S: Final = 1800.0
FAILED_S: Final = 3600.0
#: So many calls of a function are refused before that is told.
REFUSED: Final = 10
#: How far the history may be behind, seconds.
LAG_S: Final = 60.0
_BAD: Final = (Outcome.FAILED, Outcome.KILLED, Outcome.REFUSED)


def problems(
    caller: KeyEntry,
    fleet: FleetState,
    queue: PublishedQueue | None,
    trouble: str,
    jobs: Sequence["Job"],
    lag_s: float,
    refused: Mapping[str, Counter[str]],
) -> list[LiveProblem]:
    """
    The newest first. ``trouble``: with the leader of trainings, "" = none; ``jobs``: those that the caller sees;
    ``lag_s``: by how much the history is behind; ``refused``: as :meth:`api.refused.Refused.lately` has it.
    """
    now = time.time()
    found = [
        *_leaders(trouble, led=fleet.led),
        *_gpus(fleet, now),
        *(_paused(pause, named=is_operator(caller)) for pause in _long(fleet.pauses, caller, now)),
        *_budgets(caller, fleet.reports, queue),
        *_failed(jobs, now),
        *_refused(caller, refused),
    ]
    if lag_s > LAG_S:
        text = f"The history is {lag_s:.0f} s behind: what ended since is not shown yet."
        found.append(
            LiveProblem(id="lag", kind="record_lag", text=text, page="/ui/invocations", command="smore logs control")
        )
    return sorted(found, key=lambda one: (one.since is not None, -(one.since.timestamp() if one.since else 0.0)))


def _leaders(trouble: str, *, led: bool) -> Iterator[LiveProblem]:
    if not led:
        text = "No scheduler leads: nothing is dispatched."
        yield LiveProblem(id="leader", kind="no_leader", text=text, page="/ui/queues", command="smore health")
    if trouble:
        yield LiveProblem(
            id="job_leader", kind="no_job_leader", text=trouble, page="/ui/plan", command="smore logs control"
        )


def _gpus(fleet: FleetState, now: float) -> Iterator[LiveProblem]:
    for gpu, at in fleet.silent(now).items():
        yield LiveProblem(
            id=f"silent:{gpu}",
            kind="silent",
            text=f"{gpu} is silent: nothing is placed there.",
            since=moment(at),
            page=f"/ui/gpus/{quote(gpu, safe='')}",
            command=f"smore gpus forget {gpu}",
        )
    for report in fleet.reports:
        if report.health:
            yield LiveProblem(
                id=f"health:{report.gpu}",
                kind="unhealthy",
                text=f"Nothing can run on {report.gpu}: {report.health}.",
                page=f"/ui/gpus/{quote(report.gpu, safe='')}",
                command="smore gpus",
            )


def _refused(caller: KeyEntry, refused: Mapping[str, Counter[str]]) -> Iterator[LiveProblem]:
    """Functions that look well, because a call that was refused leaves no record."""
    for key, counts in refused.items():
        project, _, name = key.rpartition("/")
        if counts.total() >= REFUSED and (project == caller.project or is_operator(caller)):
            codes = ", ".join(f"{code} {number}" for code, number in counts.most_common())
            yield LiveProblem(
                id=f"refused:{key}",
                kind="refused",
                text=f"{counts.total()} calls of {name} were refused in the last {MINUTES} minutes: {codes}.",
                page=f"/ui/functions/{quote(name, safe='')}?tab=try",
                command=f"smore invoke {name} --dry-run",
            )


def _long(pauses: Sequence[Pause], caller: KeyEntry, now: float) -> Iterator[Pause]:
    """What has been paused or drained for long, as far as the caller may know its name."""
    for pause in pauses:
        seen = pause.scope != "function" or is_operator(caller) or pause.name.startswith(f"{caller.project}/")
        if seen and pause.since is not None and now - pause.since > PAUSED_S:
            yield pause


def _paused(pause: Pause, *, named: bool) -> LiveProblem:
    assert pause.since is not None
    name = pause.name.rpartition("/")[2]
    if pause.scope == "gpu":
        text = f"{name} is {'drained' if pause.drains else 'paused'}: nothing more is placed there."
        page, command = f"/ui/gpus/{quote(name, safe='')}", f"smore gpus resume {name}"
    else:
        # Its last sentence says the command.
        text, _, end = in_force(pause, named=named).partition(" `")
        page, command = "/ui/queues", end.partition("`")[0]
    return LiveProblem(
        id=f"paused:{pause.scope}:{pause.name}:{pause.drains}",
        kind="paused",
        text=text,
        since=moment(pause.since),
        page=page,
        command=command,
    )


def _budgets(caller: KeyEntry, reports: Sequence[Report], queue: PublishedQueue | None) -> Iterator[LiveProblem]:
    names = {job.id: job.name for job in queue.jobs} if queue is not None else {}
    for report in reports:
        for job in report.jobs:
            if job.project != caller.project and not is_operator(caller):
                continue
            if job.loss is None or job.loss_low is None or job.loss_high is None:
                continue
            loss = Loss(mean=job.loss, low=job.loss_low, high=job.loss_high, windows=job.loss_windows)
            if judge(loss, job.budget) is not Verdict.NOT_KEPT:
                continue
            name = names.get(job.id, job.id)
            yield LiveProblem(
                id=f"budget:{job.id}:{report.gpu}",
                kind="budget_not_kept",
                text=f"{name} loses {loss.low * 100:.1f} to {loss.high * 100:.1f} % to functions on {report.gpu}, of a"
                f" budget of {job.budget * 100:.3g} %.",
                page=f"/ui/trainings/{job.id}",
                command=f"smore jobs statement {name}",
            )


def _failed(jobs: Sequence["Job"], now: float) -> Iterator[LiveProblem]:
    for job in jobs:
        lost = job.state == JobState.LOST
        if job.ended_at is None or now - job.ended_at > FAILED_S or not (lost or job.outcome in _BAD):
            continue
        if not job.attempt:
            # Its owner was refused at once.
            continue
        end = ended_in_words("lost" if lost else str(job.outcome), job.exit_code, job.reason)
        yield LiveProblem(
            id=f"failed:{job.id}",
            kind="training_failed",
            text=f"{job.name} is over: {end.rstrip('.')}.",
            since=moment(job.ended_at),
            page=f"/ui/trainings/{job.id}",
            command=f"smore jobs explain {job.name}",
        )
