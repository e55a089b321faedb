"""What the rule for trainings is told of a job from the profile of its workload."""

from unittest.mock import create_autospec

import pytest

from scheduler.jobs.specs import Specs
from smore.domain.job import RESERVE, JobRequest
from smore.domain.workload import ProfiledBatch
from smore.postgres.history.reader import Reader

#: 1,000 MiB for the weights, 100 for each row.
PROFILE = [
    ProfiledBatch(batch=batch, seconds=0.1 * batch, input_wait_s=0.0, memory_mib=1_000.0 + 100 * batch)
    for batch in (2, 8)
]


@pytest.fixture
def specs() -> Specs:
    reader = create_autospec(Reader, instance=True)
    reader.training_batches.return_value = PROFILE
    reader.solo_timings.return_value = []
    made = Specs(reader, lambda workload, place: None, lambda workload, world: [])
    made.places = {"n0g0": ("A", "time-slice")}
    return made


@pytest.mark.parametrize(
    ("allowed", "share", "ways", "others"),
    [
        ((1, 4), 0.5, [4], [2, 8]),
        ((), 0.5, [], [2, 4, 8]),
        # It starts beside nobody, so nobody asks.
        ((1, 4), 0.0, [], []),
    ],
)
def test_micro_batches_are_told_with_what_they_need(
    specs: Specs, allowed: tuple[int, ...], share: float, ways: list[int], others: list[int]
) -> None:
    request = JobRequest(
        argv=["train"], workload="bert/paper/training/8", memory_mib=1_800.0, share=share, micro_batches=allowed
    )
    spec = specs.of("job", "default", "train", request)

    assert [way.count for way in spec.micro_batches] == ways
    assert [way.count for way in spec.not_allowed] == others
    whole = 1_800.0 * (1 + RESERVE)
    for way in (*spec.micro_batches, *spec.not_allowed):
        assert way.memory_mib == pytest.approx(whole - 100 * (8 - 8 / way.count))
