"""The later end that jobs are told is stretched by what became of those that were told one before."""

import pytest

from scheduler.policy.jobs.told import Told
from tests.support.driven_jobs import HOUR, NOW, DrivenJobs, gpus


def test_an_end_is_stretched_by_what_became_of_others_and_never_shortened() -> None:
    jobs, told = DrivenJobs("sjf", gpus(1)), Told()
    jobs.submit("first", hours=1)
    jobs.submit("job", hours=1)
    entry = jobs.entry("job")
    assert entry.end_at is not None
    plan_s = entry.end_at[1] - NOW
    assert told.late(entry, NOW) == entry.end_at[1]
    assert told.over("job", 0.5 * plan_s) == pytest.approx(0.5)
    assert told.late(entry, NOW) == entry.end_at[1]

    # What counts is what it was told first, however often and however late it is told again.
    for number in range(10):
        told.late(entry, NOW)
        told.late(entry, NOW - number * HOUR)
        assert told.over("job", 3 * plan_s) == pytest.approx(3)
    assert told.late(entry, NOW) == pytest.approx(NOW + 3 * plan_s)
    # Whoever runs is told its own end, and teaches nothing; nor does whoever did not succeed.
    running = jobs.entry("first")
    assert running.end_at is not None and told.late(running, NOW) == running.end_at[1]
    assert told.over("first", HOUR) is None and told.over("job", None) is None
