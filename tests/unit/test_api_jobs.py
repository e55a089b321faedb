"""What a job's reports say of it, over one GPU instance and several."""

import dataclasses

import pytest
from msgspec.structs import replace

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


def test_the_loss_is_that_of_the_rank_with_the_highest_bound_once_all_are_known() -> None:
    ranks = [
        replace(report(), loss=loss, loss_low=loss - 0.01, loss_high=high, loss_windows=windows)
        for loss, high, windows in ((0.05, 0.06, 30), (0.04, 0.09, 9))
    ]
    shown = _shown(JOB, ranks)
    assert (shown.loss, shown.loss_low, shown.loss_high, shown.loss_windows) == (0.04, pytest.approx(0.03), 0.09, 9)
    assert _shown(JOB, [*ranks, report()]).loss is None
    assert (shown.budget, _shown(dataclasses.replace(JOB, tags={"budget": 0.02}), ranks).budget) == (0.1, 0.02)


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
