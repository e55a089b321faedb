"""What a job's reports say of it, over one GPU instance and several."""

import pytest

from api.routes.jobs import _shown
from smore.domain.job import JobState, state_of
from smore.fleet import JobReport
from smore.store import Job

JOB = Job(
    id="j", project="default", name="train", argv=["zoo.train"], gpus=["a", "b"], state=JobState.RUNNING, tags={}, created_at=1.0,
    started_at=2.0, ended_at=None, exit_code=None,
)  # fmt: skip


def report(state: str = "running", solo_s: float = 0.0, shared_s: float = 0.0, iterations: int = 10) -> JobReport:
    return JobReport(
        id="j", project="default", state=state, pid=1, memory_mib=100, iterations=iterations, solo_s=solo_s, solo_count=int(solo_s > 0),
        shared_s=shared_s, shared_count=int(shared_s > 0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reports", "degradation"),
    [
        ([], None),
        ([report()], None),
        ([report(solo_s=0.2)], None),
        ([report(shared_s=0.2)], None),
        ([report(solo_s=0.2, shared_s=0.25)], 0.25),
        # The slowest rank counts, on either side.
        ([report(solo_s=0.2, shared_s=0.25), report(solo_s=0.25, shared_s=0.2)], 0.0),
    ],
)
def test_degradation(reports: list[JobReport], degradation: float | None) -> None:
    assert _shown(JOB, reports).degradation == (None if degradation is None else pytest.approx(degradation))


def test_ranks_together() -> None:
    shown = _shown(JOB, [report(iterations=10), report(iterations=7)])

    assert (shown.iterations, shown.memory_mib) == (7, 200)


@pytest.mark.parametrize(
    ("stored", "reported", "state"),
    [
        (JobState.STARTING, ["running"], JobState.RUNNING),
        (JobState.STARTING, ["running", "ended"], JobState.RUNNING),
        (JobState.STOPPING, ["running"], JobState.STOPPING),
        (JobState.STOPPING, ["ended"], JobState.ENDED),
        (JobState.RUNNING, ["ended", "ended"], JobState.ENDED),
        (JobState.RUNNING, ["running", "lost"], JobState.LOST),
        (JobState.RUNNING, ["odd"], JobState.RUNNING),
    ],
)
def test_state_of_several_ranks(stored: JobState, reported: list[str], state: JobState) -> None:
    assert state_of(stored, set(reported)) is state
