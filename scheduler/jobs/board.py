"""What the job scheduler shows: the queue in Redis, answers to dry runs and questions, and metrics."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from scheduler.jobs import wording
from scheduler.jobs.apart import Apart
from scheduler.jobs.specs import Specs
from scheduler.policy.jobs.decisions import (
    BreaksAnswered,
    Expected,
    JobRound,
    NotPromised,
    PlacesAnswered,
    Promised,
    PublishQueue,
    TrialAnswered,
)
from scheduler.policy.jobs.events import BreaksAsked, Event, PlacesAsked, ProjectLimit, QueueAsked, TrialAsked
from scheduler.policy.jobs.knobs import JobKnobs
from scheduler.policy.jobs.told import Told
from smore.messages.job_queue import PublishedJob, PublishedQueue, TrialAnswer, TrialQuestion
from smore.postgres.jobs import Job
from smore.process import observability as metrics
from smore.redis.job_queue import JobQueue

#: :meth:`scheduler.policy.jobs.core.JobPolicy.decide`.
Decide = Callable[[float, Sequence[Event]], JobRound]


class Board:
    """
    Shows what the rule answers (``decide``). ``holder`` leads, and decides by ``knobs``.
    """

    def __init__(
        self, queue: JobQueue, decide: Decide, specs: Specs, holder: str, knobs: JobKnobs, apart: Apart
    ) -> None:
        self._queue, self._decide, self._specs, self._apart = queue, decide, specs, apart
        self._holder, self._knobs = holder, knobs
        self._told = Told()

    def answer(self, now: float) -> None:
        """Answer dry runs, and what stands against jobs that wait; ``now`` in epoch seconds."""
        for question in self._queue.questions():
            with self._apart.of(question.job or question.id):
                self._answer(now, question)

    def _answer(self, now: float, question: TrialQuestion) -> None:
        if question.job:
            for places in self._decide(now, [PlacesAsked(id=question.job)]).decisions:
                if isinstance(places, PlacesAnswered):
                    shown = [wording.job_place(place) for place in places.places]
                    self._queue.answer(question.id, TrialAnswer(places=shown))
            return
        if question.closed or question.most is not None:
            limits = {question.project: ProjectLimit(gpus=question.most)} if question.most is not None else {}
            for broken in self._decide(now, [BreaksAsked(closed=question.closed, limits=limits)]).decisions:
                if isinstance(broken, BreaksAnswered):
                    self._queue.answer(question.id, TrialAnswer(breaks=broken.jobs))
            return
        spec = self._specs.of(question.id, question.project, question.name, question.request)
        for answer in self._decide(now, [TrialAsked(spec=spec)]).decisions:
            if isinstance(answer, TrialAnswered):
                expected = None
                if answer.expected is not None:
                    expected = self._entry(answer.expected, question.project, question.name, now, now)
                self._told.over(question.id, None)
                self._queue.answer(question.id, _answered(answer, expected))

    def show(self, now: float, jobs: Mapping[str, Job]) -> Sequence[Expected]:
        """
        Publish the queue, and set the gauges; ``jobs``: the rows of all that the rule knows, by id. Returns what is published.
        """
        entries: list[Expected] = []
        for answer in self._decide(now, [QueueAsked()]).decisions:
            if isinstance(answer, PublishQueue):
                self._queue.publish(self._published(answer, jobs, now))
                _count(jobs, answer)
                entries += answer.jobs
        return entries

    def _published(self, answer: PublishQueue, jobs: Mapping[str, Job], now: float) -> PublishedQueue:
        return PublishedQueue(
            at=now,
            leader=self._holder,
            setting=self._knobs.name,
            kept_for=answer.kept_for,
            kept=answer.kept,
            jobs=[
                self._entry(each, row.project, row.name, row.created_at, now)
                for each in answer.jobs
                if (row := jobs.get(each.id)) is not None
            ],
        )

    def _entry(self, job: Expected, project: str, name: str, submitted_at: float, now: float) -> PublishedJob:
        late_at = self._told.late(job, submitted_at, now)
        return PublishedJob(
            id=job.id,
            project=project,
            name=name,
            place=job.place,
            gpus=job.gpus,
            start_at=job.start_at,
            end_at=(job.end_at[0], late_at) if job.end_at is not None and late_at is not None else None,
            length_s=job.length.expected_s,
            length_90_s=job.length.most_s,
            source=job.length.source.value,
            waited_s=job.waited_s,
            why=job.why.value,
            message=wording.standing(job, self._knobs),
            beside=job.beside,
            guest=job.guest,
            promised=job.promise.by if job.promise is not None else None,
            at_risk=job.promise.at_risk if job.promise is not None else "",
        )

    def over(self, id_: str, completion_s: float | None) -> None:
        """A job is over; ``completion_s`` after it was submitted if it succeeded."""
        ratio = self._told.over(id_, completion_s)
        if ratio is not None:
            metrics.JOB_TOLD_RATIO.observe(ratio)


def _answered(answer: TrialAnswered, expected: PublishedJob | None) -> TrialAnswer:
    misfit, promise = answer.misfit, answer.promise
    return TrialAnswer(
        gpus=answer.gpus,
        expected=expected,
        field=misfit.field if misfit is not None else "",
        largest=misfit.largest if misfit is not None else 0.0,
        message=wording.misfit(misfit) if misfit is not None else "",
        beside=answer.beside,
        earliest=promise.by if isinstance(promise, Promised) else promise.earliest if promise is not None else None,
        unpromised=wording.unpromised(promise) if isinstance(promise, NotPromised) else "",
        why=promise.why if isinstance(promise, NotPromised) else "",
    )


def _count(jobs: Mapping[str, Job], answer: PublishQueue) -> None:
    metrics.JOBS.clear()
    for (state, project), number in Counter((job.state.value, job.project) for job in jobs.values()).items():
        metrics.JOBS.labels(state, project).set(number)
    metrics.GPUS_KEPT.set(answer.kept)
    metrics.GPUS_PROMISED.set(answer.promised)
