"""What the job scheduler shows: the queue in Redis, answers to dry runs, and metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler.policy.jobs.decisions import Expected, PlacesAnswered, PublishQueue, Start, TrialAnswered
from scheduler.policy.jobs.parts import ways
from scheduler.policy.jobs.spec import JobSpec
from smore.domain.job import RESERVE, JobRequest
from smore.domain.workload import ProfiledBatch
from smore.messages.job_queue import PublishedJob, PublishedQueue, TrialAnswer
from smore.postgres.jobs import Job
from smore.process import observability as metrics


def spec_of(
    id_: str,
    project: str,
    name: str,
    request: JobRequest,
    iteration_s: Mapping[str, float],
    batches: Sequence[ProfiledBatch] = (),
) -> JobSpec:
    """
    What the rule knows of a job. ``iteration_s``: the profile's time of an iteration by device; ``batches``: its profile, of
    whose memory it is known what parts of a batch need.
    """
    memory_mib = request.memory_mib * (1 + RESERVE)
    batch = int(request.workload.rsplit("/", 1)[1]) if request.workload else 0
    return JobSpec(
        id=id_,
        project=project,
        name=name,
        count=request.count,
        gpus=tuple(request.gpus),
        device=request.device,
        memory_mib=memory_mib,
        iterations=request.iterations,
        duration_s=request.duration_s,
        iteration_s=iteration_s,
        restarts=request.restarts,
        share=request.share,
        workload=request.workload,
        micro_batches=ways(request.micro_batches, memory_mib, batch, batches),
    )


def beside(start: Start, jobs: Mapping[str, Job]) -> str:
    """Beside whom a job starts, in words, '' = beside nobody; ``jobs``: all, by id."""
    if not start.beside:
        return ""
    words = []
    for one in start.beside:
        same = jobs[one.id].project == jobs[start.id].project
        host = jobs[one.id].name if same else one.id
        words.append(
            f"beside {host}, where it is expected to run at {1 / one.own:.2f} and {host} at {1 / one.its:.2f} of their speeds"
            f" (in one case of ten below {1 / one.own_most:.2f} and {1 / one.its_most:.2f})"
        )
    parts = f"; it runs its batch in {start.micro_batches} parts" if start.micro_batches > 1 else ""
    return f"It starts {' and '.join(words)}{parts}."


def published(answer: PublishQueue, jobs: Mapping[str, Job], at: float, leader: str, setting: str) -> PublishedQueue:
    return PublishedQueue(
        at=at,
        leader=leader,
        setting=setting,
        kept_for=answer.kept_for,
        kept=answer.kept,
        jobs=[_entry(each, jobs[each.id].project, jobs[each.id].name) for each in answer.jobs if each.id in jobs],
    )


def answered(answer: TrialAnswered, project: str, name: str) -> TrialAnswer:
    misfit, expected = answer.misfit, answer.expected
    return TrialAnswer(
        gpus=answer.gpus,
        expected=_entry(expected, project, name) if expected is not None else None,
        field=misfit.field if misfit is not None else "",
        largest=misfit.largest if misfit is not None else 0.0,
        message=misfit.message if misfit is not None else "",
        beside=answer.beside,
    )


def stands(answer: PlacesAnswered) -> TrialAnswer:
    """What stands against a job that waits."""
    return TrialAnswer(places=answer.places)


def count(jobs: Mapping[str, Job], kept: int) -> None:
    """Set the gauges."""
    metrics.JOBS.clear()
    for (state, project), number in Counter((job.state.value, job.project) for job in jobs.values()).items():
        metrics.JOBS.labels(state, project).set(number)
    metrics.GPUS_KEPT.set(kept)


def _entry(job: Expected, project: str, name: str) -> PublishedJob:
    return PublishedJob(
        id=job.id,
        project=project,
        name=name,
        place=job.place,
        gpus=job.gpus,
        start_at=job.start_at,
        end_at=job.end_at,
        length_s=job.length.expected_s,
        length_90_s=job.length.most_s,
        source=job.length.source.value,
        waited_s=job.waited_s,
        why=job.why.value,
        message=job.message,
        beside=job.beside,
        guest=job.guest,
    )
