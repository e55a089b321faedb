"""What the soak measures: growth between two windows, and when the history is complete."""

from types import SimpleNamespace
from typing import Any

import pytest

from lab.bench import soak


def test_growth_is_the_median_at_the_end_over_that_at_half_time() -> None:
    samples = [(float(at), 100.0 if at <= 50 else 110.0) for at in range(101)]
    assert soak.growth(samples, 50, 100, window=20) == pytest.approx(0.1)
    assert soak.growth([(at, value / 100) for at, value in samples], 50, 100, window=20, least=1.1) == pytest.approx(
        0.1 / 1.1
    )
    assert list(soak.worst_growth({"a": samples, "b": [(at, 5.0) for at, _ in samples], "gone": []}, 50, 100)) == [
        "a",
        "b",
    ]


def test_the_history_is_waited_for_as_long_as_it_has_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(soak.time, "monotonic", lambda: clock[0])  # type: ignore[attr-defined]
    monkeypatch.setattr(soak.time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))  # type: ignore[attr-defined]
    counts = iter((3, 4, 5))
    sampler: Any = SimpleNamespace(_written=lambda since: next(counts))
    soak.Sampler.recorded(sampler, 5, 1.0)
    sampler._written = lambda since: 4
    with pytest.raises(RuntimeError, match="4 of 5 invocations"):
        soak.Sampler.recorded(sampler, 5, 1.0)
    assert clock[0] > soak.PATIENCE_S
