"""Rows of trainings in Postgres: what of them is an event of the rule, and the attempts that they tell of."""

from collections.abc import Mapping, Sequence

from scheduler.jobs.attempts import Attempt
from scheduler.policy.jobs.decisions import Start
from scheduler.policy.jobs.events import Event, JobHeld, JobMoved, JobSubmitted, JobUnderWay
from scheduler.policy.jobs.spec import JobSpec, MicroBatches
from smore.domain.job import PLACED, JobState
from smore.postgres.jobs import Job, PastAttempt


def submitted(
    row: Job, spec: JobSpec, under_way: Attempt | None, now: float, promised: float | None = None
) -> list[Event]:
    """
    A job that the rule does not know yet, with its attempt ``under_way`` if it is placed; ``now`` in epoch seconds;
    ``promised`` as of :class:`~scheduler.policy.jobs.events.JobSubmitted`.
    """
    queued_s = max(0.0, now - row.queued_at) if row.state is JobState.QUEUED and row.queued_at else 0.0
    events: list[Event] = [
        JobSubmitted(
            spec=spec,
            submitted_at=row.created_at,
            attempt=row.attempt - 1 if row.state in PLACED else row.attempt,
            waited_s=row.waited_s + queued_s,
            ran_s=row.ran_s,
            iterations=row.iterations,
            restarts=row.restarts,
            short_ends=row.short_ends,
            not_before=row.not_before or 0.0,
            home=row.home,
            held=row.state is JobState.HELD,
            moved=row.moved,
            lost_s=row.lost_s,
            promised=promised,
        )
    ]
    if under_way is not None:
        events.append(
            JobUnderWay(
                id=row.id,
                attempt=row.attempt,
                gpus=tuple(row.gpus),
                since_at=under_way.since_at,
                stopping=row.state is JobState.STOPPING,
                micro_batches=under_way.parts.count,
                lost_s=under_way.lost_s,
            )
        )
    return events


def ordered(row: Job, before: Job) -> list[Event]:
    """What its owner or an operator ordered since the row was ``before``."""
    events: list[Event] = []
    if (row.state is JobState.HELD) != (before.state is JobState.HELD):
        events.append(JobHeld(id=row.id, held=row.state is JobState.HELD))
    if row.moved > before.moved:
        events.append(JobMoved(id=row.id))
    return events


def taken_over(row: Job, last: PastAttempt | None, hosts: Mapping[str, Sequence[str]], at: float) -> Attempt:
    """
    The attempt that a former leader has placed. ``last``: its row, None = it has none, as before there was a queue;
    ``hosts`` as of :func:`begun`; ``at``: now, on the steady clock. What its parts take is known with its spec.
    """
    return Attempt(
        job=row.id,
        attempt=row.attempt,
        gpus=row.gpus,
        since_at=last.started_at if last is not None else row.created_at,
        awaited_at=at,
        began_with=last.iterations_from if last is not None else 0,
        checkpoint=row.iterations,
        home=row.home,
        parts=MicroBatches(count=last.micro_batches if last is not None else 1, memory_mib=0.0),
        hosts=hosts,
        lost_s=last.lost_s if last is not None else 0.0,
        up=row.state is JobState.RUNNING,
    )


def begun(row: Job, start: Start, hosts: Mapping[str, Sequence[str]], at: float) -> Attempt:
    """
    The attempt that begins now, ``at`` on the steady clock. ``hosts``: the jobs beside which it starts, with their GPU
    instances.
    """
    return Attempt(
        job=row.id,
        attempt=start.attempt,
        gpus=start.gpus,
        since_at=at,
        awaited_at=at,
        began_with=start.iterations,
        checkpoint=row.iterations,
        home=row.home,
        parts=start.parts,
        hosts=hosts,
    )
