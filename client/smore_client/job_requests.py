"""
The operations on training jobs, for both clients; see :mod:`smore_client.requests`.

Wherever a job is named, its id and its name will do; of several jobs of one name the one that is not over. Operators
reach jobs of another ``project`` than their key's; :mod:`smore_client.admin` has the changes of those.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from smore_client.logs import read_log
from smore_client.many import each_job, listed_jobs
from smore_client.operation import iteration, operation
from smore_client.transport import Call, Flow, Stream, fetch, request
from smore_client.types import (
    Job,
    JobAttempt,
    JobAttempts,
    JobExplanation,
    JobQueue,
    Jobs,
    JobTrial,
    LogLine,
    Statement,
)


class NamedJobOptions(TypedDict, total=False):
    """Where, how long and how often a training runs: the arguments of ``start_job`` that have to be named."""

    #: On how many GPU instances of one kind it runs; by default 1.
    count: int | None
    #: The kind of GPU instance that it needs, as ``gpus()`` names it.
    device: str | None
    #: How long it is: iterations in all, or a time (``2h``, or seconds).
    iterations: int | None
    duration: str | float | None
    #: How often it is started again, from its last checkpoint, after it has failed; by default 0.
    restarts: int | None
    #: From SIGTERM to SIGKILL.
    grace: str | float | None
    #: The folder that a program of one's own starts in.
    cwd: str | None
    #: An iteration may take up to 1 + share times as long because of another training on its GPU instances (0 to 10); 0 =
    #: none trains beside it. Without it the project's default holds.
    share: float | None
    #: In how many parts its loop can run a batch where memory is short, rising from 1: ``[1, 2, 4]``.
    micro_batches: Sequence[int] | None
    #: By when its end is to be promised: a date and time with its zone, a duration from now, or ``earliest``; and whether it is
    #: refused (``refuse``, the default) or waits without a promise (``queue``) where that cannot be.
    by: str | float | None
    unless: str | None


class JobOptions(NamedJobOptions, total=False):
    """What can be asked of a training beside its name and its command; what is left out, or None, is not asked."""

    #: On exactly these GPU instances, for which it waits; instead of ``count``.
    gpus: Sequence[str] | None
    #: Its variables, ``{"secret": NAME}`` for a secret of the project.
    env: Mapping[str, str | Mapping[str, str]] | None
    #: The profiled training that it is, such as ``resnet50/cpu/training/8``.
    workload: str | None
    #: The most that it may lose to functions, a fraction of its iteration time from 0.01 to 19. One that could not be
    #: told from noise is refused, and the error names the smallest.
    budget: float | None
    #: Reserved for it on each GPU instance, such as ``12GiB``.
    memory: str | None


class JobRequests:
    """Starts, reads and changes training jobs."""

    @operation
    def start_job(
        self,
        name: str,
        argv: Sequence[str],
        gpus: Sequence[str] | None = None,
        env: Mapping[str, str | Mapping[str, str]] | None = None,
        workload: str | None = None,
        budget: float | None = None,
        memory: str | None = None,
        **options: Unpack[NamedJobOptions],
    ) -> Flow[Job]:
        """
        Start a training as soon as there is room for it: ``argv``, an entry point and its arguments, or with an
        operator's key any program. Every other argument is a field of :class:`JobOptions`.

        The job has ``gpus`` where it has started, else ``expected`` says when it will.

        >>> job = client.start_job("train", ["zoo.train", "--model", "resnet50"], count=2, duration="2h")
        >>> job.state, job.expected.place, job.expected.message
        ('queued', 2, 'It needs 2 GPU instances: 1 is free; 3 busy.')
        """
        body = _body(
            name, argv, {"gpus": gpus, "env": env, "workload": workload, "budget": budget, "memory": memory, **options}
        )
        # A request that is sent again starts nothing.
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return (yield from fetch(Job, request("POST", "jobs", body=body, headers=headers)))

    @operation
    def try_job(self, name: str, argv: Sequence[str], **options: Unpack[JobOptions]) -> Flow[JobTrial]:
        """
        What would become of a job that came now; nothing is started. It takes, and raises, what :meth:`start_job` does.

        >>> client.try_job("train", ["zoo.train"], count=2, duration="2h").expected.start_at.hour
        18
        """
        body = _body(name, argv, options)
        return (yield from fetch(JobTrial, request("POST", "jobs:dryRun", body=body, reads=True)))

    @operation
    def jobs(
        self, state: Sequence[str] | None = None, *, project: str | None = None, all_projects: bool = False
    ) -> Flow[list[Job]]:
        """
        The newest hundred training jobs, of these states alone; :meth:`each_job` has all. ``project``, ``all_projects``:
        in place of the key's own one, for operators.

        >>> [(job.name, job.state, job.loss) for job in client.jobs()]
        [('train', 'running', 0.031)]
        """
        return (yield from fetch(Jobs, listed_jobs(state, project, all_projects))).jobs

    @iteration
    def each_job(
        self, state: Sequence[str] | None = None, *, project: str | None = None, all_projects: bool = False
    ) -> Stream[Job]:
        """
        Iterate over all training jobs, the newest first, page by page; the arguments as of :meth:`jobs`.

        >>> sum(job.state == "running" for job in client.each_job())
        1
        """
        yield from each_job(state, project, all_projects)

    @operation
    def job_queue(self) -> Flow[JobQueue]:
        """
        The jobs that are on GPU instances, then those that wait, in their order; with an operator's key those of all
        projects.

        >>> [(job.place, job.name, job.why) for job in client.job_queue().jobs]
        [(0, 'train', 'none'), (1, 'night', 'busy')]
        """
        return (yield from fetch(JobQueue, request("GET", "jobs", "queue")))

    @operation
    def job(self, id_: str, *, project: str | None = None) -> Flow[Job]:
        """
        One training job.

        >>> client.job("train").iterations
        1200
        """
        return (yield from fetch(Job, request("GET", "jobs", id_, query={"project": project})))

    @operation
    def explain_job(self, id_: str, *, project: str | None = None) -> Flow[JobExplanation]:
        """
        Why a job waits, runs where it runs, or is over.

        >>> client.explain_job("night").summary
        'It needs 2 GPU instances: 1 is free; 3 busy.'
        """
        return (yield from fetch(JobExplanation, request("GET", "jobs", id_, "explain", query={"project": project})))

    @operation
    def job_attempts(self, id_: str, *, project: str | None = None) -> Flow[list[JobAttempt]]:
        """
        The starts of a job, the first one first.

        >>> [(attempt.gpus, attempt.why, attempt.iterations) for attempt in client.job_attempts("night")]
        [(['gpu0', 'gpu1'], 'failed', 41200), (['gpu2', 'gpu3'], '', 60100)]
        """
        return (
            yield from fetch(JobAttempts, request("GET", "jobs", id_, "attempts", query={"project": project}))
        ).attempts

    @iteration
    def job_logs(
        self,
        id_: str,
        *,
        rank: int = 0,
        lines: int | None = None,
        follow: bool = False,
        project: str | None = None,
    ) -> Stream[LogLine]:
        """
        Iterate over the newest ``lines`` lines (by default 100) that a rank of a job has printed, the oldest of them
        first; ``follow``: then over those that come, until the job is over.

        >>> [line.text for line in client.job_logs("night", lines=1)]
        ['iteration 1200, loss 0.21']
        """
        yield from read_log(
            "jobs", id_, "logs", query={"rank": rank, "lines": lines, "project": project}, follow=follow
        )

    @operation
    def statement(self, id_: str, *, project: str | None = None) -> Flow[Statement]:
        """
        What functions got beside a job, what the job lost to them, with its 95 % interval, and the verdict whether its
        budget was kept.

        >>> statement = client.statement("train")
        >>> statement.loss_high, statement.verdict
        (0.047, <Verdict.KEPT: 'kept'>)
        """
        return (yield from fetch(Statement, request("GET", "jobs", id_, "statement", query={"project": project})))

    @operation
    def stop_job(self, id_: str) -> Flow[Job]:
        """
        End a job. One that the platform did not start (``source``) is only watched no longer, and trains on.

        >>> client.stop_job("train").state
        'stopping'
        """
        return (yield from fetch(Job, _change(id_, "stop")))

    @operation
    def hold_job(self, id_: str, *, anyway: bool = False) -> Flow[Job]:
        """
        Keep a job that waits from being started. ``anyway``: even where its end is promised, which else raises ApiError.

        >>> client.hold_job("night").state
        'held'
        """
        return (yield from fetch(Job, request("POST", "jobs", id_, "hold", body={}, query={"anyway": anyway})))

    @operation
    def release_job(self, id_: str) -> Flow[Job]:
        """
        Let a job that is held wait for its turn again.

        >>> client.release_job("night").state
        'queued'
        """
        return (yield from fetch(Job, _change(id_, "release")))

    @operation
    def restart_job(self, id_: str) -> Flow[Job]:
        """
        Queue a job that is over again; its next attempt begins with its last ``checkpoint``, from 0 where it has
        written none.

        >>> client.restart_job("night").state
        'queued'
        """
        return (yield from fetch(Job, _change(id_, "restart")))


def _body(name: str, argv: Sequence[str], options: JobOptions) -> dict[str, object]:
    """The request's body: what was left out, or is None, is the platform's to choose."""
    given = {field: value for field, value in options.items() if value is not None}
    return {"name": name, "argv": argv, "env": {}, **given}


def _change(job: str, action: str) -> Call:
    return request("POST", "jobs", job, action, body={})
