"""Arrivals and figures of ``lab.bench.precedence``."""

import numpy as np
import pytest

from lab.bench.precedence import CV, LOADS, MODES, Turn, arrivals, figures


def test_arrivals_are_bursts_that_take_the_share_asked_for() -> None:
    came = arrivals(0.3, 0.01, 600.0, 1)
    assert len(came) == 18_000
    assert came == sorted(came)
    assert came[-1] < 600
    gaps = np.diff(came)
    assert gaps.std() / gaps.mean() == pytest.approx(CV, rel=0.1)


def test_ratios_are_of_the_worse_load() -> None:
    latency_s = {"alone": 0.1, "harvest": 0.9, "precedence": 0.12, "governor": 0.11, "quota": 0.2}
    turns = {
        (mode, load): [Turn(latencies=[latency_s[mode]] * 10, iterations=10.0, longest_s=1.0)]
        for load in LOADS
        for mode in MODES
    }
    turns["precedence", 0.3] = [Turn(latencies=[0.01] * 9 + [0.2], iterations=8.0, longest_s=1.0)]
    made = figures(turns, run_s=0.03)
    assert made["p99_before"] == pytest.approx(9)
    assert made["p99_ratio.15"] == pytest.approx(1.2)
    assert made["p99_ratio"] == made["p99_ratio.30"] > 1.2
    assert made["violations.quota.15"] == 1
    assert made["violation_excess"] == pytest.approx(0.1)
    assert made["training_ratio"] == pytest.approx(0.8)
    assert made["longest_ms.governor.30"] == 1000
    assert "iterations.alone.15" not in made
