"""How large the history will be, as the doctor says it, and the pure parts of the benchmarks that measure it."""

import pytest

from lab.bench.history import percentile
from lab.bench.soak import growth, worst_growth
from smore.local.doctor import outlook
from smore.local.findings import Grade
from smore.postgres.history.retention import GIB, Size
from smore.process.settings import PostgresSettings

KEPT = PostgresSettings(retention_days=14, retention_gib=32)


def size(gib: float, daily: float | None, files: float = 0.0) -> Size:
    return Size(
        bytes=gib * GIB,
        file_bytes=int(max(gib, files) * GIB),
        invocations=1000,
        oldest_at=1_790_000_000.0,
        bytes_per_day=None if daily is None else daily * GIB,
        as_of=1_790_000_100.0,
    )


@pytest.mark.parametrize(
    ("found", "free", "said"),
    [
        (size(2, None), 1.0, "not known yet"),
        (size(2, None), 1.0, "1000 invocations since 2026-09-21 (as of 2026-09-21 14:15 UTC)"),
        (size(2, 1), 100.0, "retention ends its growth in 12.0 days at 14.00 GiB (14 days of it)"),
        (size(2, 5), 100.0, "retention ends its growth in 6.0 days at 32.00 GiB (the bound of 32 GiB)"),
        (size(14, 1), None, "in 0.0 days at 14.00 GiB"),
        # What was freed in the files is room too.
        (size(10, 5, files=32), 0.0, "in 4.4 days at 32.00 GiB"),
    ],
)
def test_a_history_that_retention_bounds_is_well(found: Size, free: float | None, said: str) -> None:
    finding = outlook(found, KEPT, None if free is None else free * GIB)
    assert (finding.verdict, finding.fix) == (Grade.OK, "")
    assert said in finding.found


def test_a_disk_that_is_full_before_retention_bounds_the_history_is_told() -> None:
    finding = outlook(size(2, 1, files=3), KEPT, 8 * GIB)
    assert finding.verdict is Grade.WARNING
    assert "the disk is full in 9.0 days" in finding.found
    assert "SMORE_POSTGRES__RETENTION_GIB" in finding.fix
    assert "11.0" in finding.fix


def series(*levels: float) -> list[tuple[float, float]]:
    """A sample a second, ten at each level."""
    return [(number * 10.0 + second, level) for number, level in enumerate(levels) for second in range(10)]


def test_growth_is_between_the_half_and_the_end() -> None:
    samples = series(1, 50, 100, 104, 110)
    assert growth(samples, 29.0, 49.0, window=9.0) == pytest.approx(0.1)
    # A spike is none, and what is little is measured against the least.
    assert growth([*samples, (48.5, 9e9)], 29.0, 49.0, window=9.0) == pytest.approx(0.1)
    assert growth(series(0, 2, 3), 19.0, 29.0, window=9.0, least=20.0) == pytest.approx(0.05)


def test_what_was_not_there_all_the_time_has_no_growth() -> None:
    found = worst_growth({"a": series(1, 1, 1), "late": [(28.0, 5.0)], "b": series(1, 1, 2)}, 19.0, 29.0)
    assert found == {"b": 1.0, "a": 0.0}


def test_percentiles_are_by_nearest_rank() -> None:
    assert (percentile([3.0, 1.0, 2.0], 0.5), percentile(range(1, 101), 0.95), percentile([7.0], 0.95)) == (
        2.0,
        95,
        7.0,
    )
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)
