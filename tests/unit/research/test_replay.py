"""What a replay says of itself; tests/integration/research has its command."""

import math

import pytest

from research.replay.replay import doubt


@pytest.mark.parametrize(
    ("happened", "force", "doubtful"),
    [(0.1, 0.149, False), (0.1, 0.151, True), (0.1, 0.049, True), (math.nan, 0.1, False), (0.1, math.nan, False)],
)
def test_a_median_far_from_what_happened_makes_the_replay_doubtful(
    happened: float, force: float, doubtful: bool
) -> None:
    words = doubt({"happened": {"p50_s": happened}, "force": {"p50_s": force}, "other": {"p50_s": 0.1}})
    assert ("The third column is doubtful here" in words) is doubtful
