"""The guard of the path: what it lets pass, and that each figure has a bound."""

import json
from pathlib import Path

import pytest

from lab.bench import guard
from lab.bench.guard import SLACK, exceeded


def test_a_figure_may_exceed_its_bound_by_the_slack_and_by_no_more() -> None:
    bounds = {"cpu_ratio_c1": 1.0, "idle_pss_mb": 600.0}
    assert exceeded({"cpu_ratio_c1": 1.0 + 0.9 * SLACK, "idle_pss_mb": 100.0}, bounds) == []
    (said,) = exceeded({"cpu_ratio_c1": 0.5, "idle_pss_mb": 600.0 * (1 + 2 * SLACK)}, bounds)
    assert said == "idle_pss_mb is 780, 30% above 600; 15% are allowed"
    with pytest.raises(KeyError):
        exceeded({"cpu_ratio_c16": 1.0}, bounds)


def test_every_figure_has_a_bound() -> None:
    assert set(json.loads(guard.BOUNDS.read_text())) == {"idle_pss_mb", *(name for name, *_ in guard.POINTS)}


@pytest.mark.parametrize(
    ("tries", "passes"),
    [([(1.0, 1.0)], True), ([(2.0, 1.0), (1.0, 2.0)], True), ([(2.0, 1.0)] * guard.TRIES, False)],
)
def test_each_figure_counts_as_its_least_of_some_tries(
    tries: list[tuple[float, float]], passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tries``: figures over their bounds, try by try; no more are made than are needed."""
    monkeypatch.setattr(guard, "BOUNDS", tmp_path / "guard.json")
    guard.BOUNDS.write_text(json.dumps({"cpu_ratio_c1": 0.5, "idle_pss_mb": 600.0}))
    left = [{"cpu_ratio_c1": 0.5 * ratio, "idle_pss_mb": 600.0 * memory} for ratio, memory in tries]
    monkeypatch.setattr(guard, "measured", lambda: left.pop(0))
    assert (not guard.check(write=False)) is passes
    assert not left
