"""The later end that jobs are told is stretched by what became of those that were told one before."""

import pytest

from scheduler.policy.jobs.told import PRIOR, Told
from tests.support.driven_jobs import HOUR, NOW, DrivenJobs, gpus


def test_an_end_is_stretched_by_what_became_of_others_and_never_shortened() -> None:
    jobs, told = DrivenJobs("sjf", gpus(1)), Told()
    jobs.submit("first", hours=1)
    jobs.submit("job", hours=1)
    entry = jobs.entry("job")
    assert entry.end_at is not None
    late_at = entry.end_at[1]
    plan_s = late_at - NOW
    assert told.late(entry, NOW, NOW) == pytest.approx(NOW + PRIOR[0] * plan_s)
    # What has passed by is not stretched.
    assert told.late(entry, NOW, NOW + HOUR) == pytest.approx(NOW + HOUR + PRIOR[0] * (plan_s - HOUR))
    # What counts is what it was told first, however often and however late it is told again.
    assert told.over("job", 0.5 * plan_s) == pytest.approx(0.5)
    for number in range(40):
        told.late(entry, NOW, NOW + number)
        assert told.over("job", 0.5 * plan_s) == pytest.approx(0.5)
    assert told.late(entry, NOW, NOW + 41) == pytest.approx(late_at)
    # Whoever runs is told its own end, and teaches nothing; nor does whoever did not succeed.
    running = jobs.entry("first")
    assert running.end_at is not None and told.late(running, NOW, NOW) == running.end_at[1]
    assert told.over("first", HOUR) is None and told.over("job", None) is None


def test_a_job_that_is_late_is_learnt_from_before_it_ends() -> None:
    jobs, told = DrivenJobs("sjf", gpus(1)), Told()
    jobs.submit("first", hours=1)
    for number in range(9):
        jobs.submit(f"job-{number}", hours=1)
    entries = [jobs.entry(f"job-{number}") for number in range(9)]
    for entry in entries:
        told.late(entry, NOW, NOW)
    last = entries[0]
    assert last.end_at is not None
    plan_s = last.end_at[1] - NOW
    late = told.late(entries[8], NOW, NOW + 3 * plan_s)
    assert late is not None and entries[8].end_at is not None
    left_s = entries[8].end_at[1] - (NOW + 3 * plan_s)
    assert late == pytest.approx(NOW + 3 * plan_s + 3 * left_s)
