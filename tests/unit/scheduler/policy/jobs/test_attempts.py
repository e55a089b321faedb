"""Restarts with back-off, crash loops, jobs that are stopped, checkpoints that bind to a node, a rule that takes over."""

from dataclasses import replace

import pytest

from scheduler.policy.jobs.decisions import Decision, Finish, Requeue, Wait
from scheduler.policy.jobs.events import (
    AttemptOver,
    Ended,
    Event,
    GpuLost,
    JobSubmitted,
    JobUnderWay,
    JobWithdrawn,
    QueueAsked,
)
from scheduler.policy.jobs.knobs import job_setting
from scheduler.policy.jobs.restarts import after
from tests.support.driven_jobs import HOUR, DrivenJobs, gpus, spec_of, started


def pauses(allowed: int, lasted_s: float = 100.0) -> list[float]:
    """Of a job that fails as often as it may."""
    restarts = short_ends = 0
    seconds: list[float] = []
    while True:
        verdict = after(job_setting("smore-jobs"), Ended.FAILED, lasted_s, allowed, restarts, short_ends)
        if verdict.ended is not None:
            return seconds
        seconds.append(verdict.pause_s)
        restarts, short_ends = verdict.restarts, verdict.short_ends


def test_pauses_double_from_ten_seconds_to_ten_minutes() -> None:
    assert pauses(9) == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert pauses(0) == []


def test_three_short_ends_in_a_row_are_a_crash_loop() -> None:
    assert len(pauses(9, lasted_s=59.0)) == 2


def test_a_long_attempt_breaks_the_row_and_a_lost_host_does_not_count() -> None:
    knobs = job_setting("smore-jobs")
    assert after(knobs, Ended.FAILED, 100.0, 9, 2, 2).short_ends == 0
    lost = after(knobs, Ended.LOST, 1.0, 9, 2, 2)
    assert (lost.ended, lost.short_ends) == (None, 2)


def outcome(decisions: list[Decision]) -> Ended:
    [finish] = [decision for decision in decisions if isinstance(decision, Finish)]
    return finish.ended


def test_a_job_that_fails_starts_again_as_often_as_its_owner_said() -> None:
    jobs = DrivenJobs(fleet=gpus(1))
    jobs.submit("job", restarts=1)
    [requeue] = jobs.end("job", Ended.FAILED, later=100)
    assert isinstance(requeue, Requeue)
    assert requeue.not_before == jobs.now + 10
    assert jobs.wake_at == requeue.not_before
    assert started(jobs.tell(later=9)) == []
    assert started(jobs.tell(later=1)) == ["job"]
    assert jobs.running["job"][0] == 2

    assert outcome(jobs.end("job", Ended.FAILED, later=100)) is Ended.FAILED
    assert not jobs.policy.jobs


def test_what_is_over_or_of_an_older_attempt_changes_nothing() -> None:
    jobs = DrivenJobs(fleet=gpus(1))
    jobs.submit("job", restarts=1)
    jobs.end("job", Ended.FAILED, later=100)
    jobs.tell(later=10)
    assert jobs.tell(AttemptOver(id="job", attempt=1, ended=Ended.FAILED)) == []
    assert jobs.policy.jobs["job"].gpus
    assert outcome(jobs.end("job")) is Ended.SUCCEEDED
    assert jobs.tell(AttemptOver(id="job", attempt=2, ended=Ended.SUCCEEDED)) == []


@pytest.mark.parametrize("ended", [Ended.FAILED, Ended.LOST])
def test_a_job_that_its_owner_stopped_does_not_start_again(ended: Ended) -> None:
    jobs = DrivenJobs(fleet=gpus(1))
    jobs.submit("job", restarts=5)
    jobs.tell(JobWithdrawn(id="job"))
    # Its GPU instance is its own until its processes have ended.
    assert started(jobs.submit("next")) == []
    assert jobs.entry("job").why is Wait.STOPPING
    decisions = jobs.end("job", ended, later=1)
    assert outcome(decisions) is Ended.STOPPED
    assert started(decisions) == ["next"]


def test_an_attempt_that_was_ended_for_a_lost_gpu_instance_is_lost_whatever_its_ranks_report() -> None:
    jobs = DrivenJobs(fleet=gpus(1, 1))
    jobs.submit("gang", count=2, restarts=9)
    jobs.tell(GpuLost(gpu="n1g0"), later=1)
    [requeue] = jobs.end("gang", Ended.FAILED, later=1)

    assert isinstance(requeue, Requeue)
    assert requeue.ended is Ended.LOST
    assert jobs.policy.jobs["gang"].short_ends == 0


def test_a_job_that_waits_or_rests_is_withdrawn_at_once() -> None:
    jobs = DrivenJobs(fleet=gpus(1))
    jobs.submit("runs", restarts=1)
    jobs.submit("waits")
    jobs.tell(JobWithdrawn(id="waits"))
    jobs.end("runs", Ended.FAILED, later=100)
    jobs.tell(JobWithdrawn(id="runs"))
    jobs.tell(later=HOUR)
    assert not jobs.policy.jobs


def test_a_checkpoint_on_a_node_binds_the_job_to_it() -> None:
    fleet = gpus(1, 1)
    jobs = DrivenJobs(fleet=fleet)
    jobs.submit("job", restarts=1)
    [(_, (gpu,))] = jobs.running.values()
    home = gpu.partition("g")[0]
    jobs.end("job", Ended.FAILED, later=100, home=home)
    jobs.tell(replace(next(seen for seen in fleet if seen.node == home), closed="drained"), later=10)

    entry = jobs.entry("job")
    assert entry.why is Wait.HOME
    assert entry.facts.needs.home == home
    jobs.tell(*fleet)
    assert jobs.running["job"] == (2, (gpu,))


def test_a_rule_that_takes_over_goes_on_where_the_other_was() -> None:
    """Told the jobs, their times and the GPU instances, it answers as the one before it."""
    fleet = gpus(2, 2)
    first = DrivenJobs(fleet=fleet)
    for name, fields in {
        "gang": {"count": 2, "hours": 5},
        "pair": {"count": 2, "hours": 3, "restarts": 3},
        "waits": {"hours": 4},
        "gang2": {"count": 2, "hours": 1},
    }.items():
        first.submit(name, later=60, **fields)
    first.end("pair", Ended.FAILED, later=600)
    first.tell(later=5)

    second = DrivenJobs()
    second.now = first.now
    told: list[Event] = []
    for id_, job in first.policy.jobs.items():
        told.append(
            JobSubmitted(
                spec=job.spec,
                submitted_at=job.submitted_at,
                attempt=job.attempt,
                waited_s=job.waiting_s(first.now),
                ran_s=job.ran_s,
                restarts=job.restarts,
                short_ends=job.short_ends,
                not_before=job.not_before,
            )
        )
        if job.gpus:
            told.append(JobUnderWay(id=id_, attempt=job.attempt, gpus=job.gpus, since_at=job.since_at))
    assert started(second.tell(*told, *fleet)) == []
    [before], [after_] = first.tell(QueueAsked()), second.tell(QueueAsked())
    assert before == after_
    assert first.end("gang", later=60) == second.tell(
        AttemptOver(id="gang", attempt=1, ended=Ended.SUCCEEDED), later=60
    )


def test_a_job_submitted_twice_is_one_job() -> None:
    jobs = DrivenJobs(fleet=gpus(2))
    jobs.submit("job")
    assert jobs.tell(JobSubmitted(spec=spec_of("job"), submitted_at=jobs.now)) == []
