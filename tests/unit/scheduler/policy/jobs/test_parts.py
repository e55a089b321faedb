"""What micro-batches take, by a profile."""

import pytest

from scheduler.policy.jobs.parts import ways
from smore.domain.workload import ProfiledBatch

#: 10 ms and 5 ms a row, a wait of 1 ms a row, 100 MiB and 20 MiB a row.
PROFILE = [ProfiledBatch(b, 0.010 + 0.005 * b + 0.001 * b, 0.001 * b, 100.0 + 20.0 * b) for b in (4, 8, 16)]


def test_each_micro_batch_costs_what_does_not_depend_on_its_rows() -> None:
    two, four = ways((4, 1, 2), 420.0, 16, PROFILE)
    whole = 0.010 + 0.005 * 16 + 0.001 * 16
    assert (two.count, four.count) == (2, 4)
    assert two.factor == pytest.approx((whole + 0.010) / whole)
    assert four.factor == pytest.approx((whole + 3 * 0.010) / whole)
    # 8 and 12 rows less at a time.
    assert (two.memory_mib, four.memory_mib) == (pytest.approx(260.0), pytest.approx(180.0))


def test_the_largest_part_decides_about_memory() -> None:
    (three,) = ways((3,), 420.0, 16, PROFILE)
    assert three.memory_mib == pytest.approx(420.0 - 20.0 * (16 - 6))


def test_more_memory_than_the_job_has_is_never_saved() -> None:
    (two,) = ways((2,), 50.0, 16, PROFILE)
    assert two.memory_mib == pytest.approx(25.0)


def test_a_profile_that_tells_nothing_gives_no_way() -> None:
    assert ways((1, 2), 420.0, 16, PROFILE[:1]) == ()
    assert ways((1, 2), 0.0, 16, PROFILE) == ()
    # A batch has no part of less than a row.
    assert ways((32,), 420.0, 16, PROFILE) == ()


def test_noise_makes_nothing_faster_and_saves_no_negative_memory() -> None:
    noisy = [ProfiledBatch(4, 0.03, 0.0, 300.0), ProfiledBatch(16, 0.28, 0.0, 200.0)]
    (two,) = ways((2,), 420.0, 16, noisy)
    assert (two.factor, two.memory_mib) == (1.0, 420.0)
