"""Figures by hand from a few rows, and intervals over seeds."""

import math

import numpy as np
import pytest

from lab.simulation import metrics
from lab.simulation.result import EXPIRED, FAILED, REJECTED, SUCCEEDED, Result

NAN = math.nan


def result(**changed: object) -> Result:
    """
    Five invocations of two functions on two GPU instances for 10 s: met, late, expired unsent, rejected, failed after a
    dispatch.
    """
    values: dict[str, object] = {
        "functions": ("a", "b"),
        "function": np.array([0, 0, 0, 1, 1], np.int32),
        "rows": np.ones(5, np.int32),
        "arrival_s": np.arange(5.0),
        "deadline_s": np.arange(5.0) + 1.0,
        "status": np.array([SUCCEEDED, SUCCEEDED, EXPIRED, REJECTED, FAILED], np.int8),
        "attempts": np.array([1, 1, 0, 0, 2], np.int16),
        "gpu": np.array([0, 1, -1, -1, 0], np.int32),
        "dispatch_s": np.array([0.1, 1.1, NAN, NAN, 4.1]),
        "start_s": np.array([0.1, 1.6, NAN, NAN, NAN]),
        "end_s": np.array([0.4, 2.2, 3.0, 3.0, 5.0]),
        "cold": np.array([False, True, False, False, False]),
        "alone_s": np.full(5, 0.2),
        "run_s": np.array([0.3, 0.6, NAN, NAN, NAN]),
        "p99": 1.25,
        # alive, slow, work, busy, function, loaded, executing, training alone
        "gpus": np.array([[10.0, 11.0, 9.5, 6.0, 1.0, 20.0, 5.0, 0.5], [8.0, 8.0, 8.0, 2.4, 0.4, 10.0, 1.0, 0.0]]),
        "meta": {"duration_s": 10.0, "warm_at_start": [[1, 0], [1, 1]]},
    }
    return Result(**(values | changed))  # type: ignore[arg-type]


ALONE = result(gpus=np.array([[10.0, 10.0, 10.0, 5.0, 0.0, 0.0, 0.0, 0.5], [8.0, 8.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0]]))


def test_figures_by_hand() -> None:
    found = metrics.figures(result(), ALONE)

    assert found["dsr"] == 1 / 5
    assert found["dsr_admitted"] == 1 / 3
    assert found["admission"] == 3 / 5
    assert (found["admission.a"], found["admission.b"]) == (2 / 3, 1 / 2)
    assert (found["expired"], found["rejected"], found["failed"]) == (0.2, 0.2, 0.2)
    assert found["utilisation"] == pytest.approx((0.6 + 0.3) / 2)
    assert found["gui"] == pytest.approx(0.45 - 0.25)
    assert found["gui_relative"] == pytest.approx(0.20 / 0.25)
    assert found["sfd"] == pytest.approx(0.1)
    assert found["train_loss"] == pytest.approx(0.05)
    assert found["sld_p99"] == pytest.approx((1.5 / 1.25 + 3.0 / 1.25) / 2 - 1)
    mean = math.exp(0.5 * (math.log(1.25) / 2.326347874) ** 2)
    assert found["sld"] == pytest.approx((1.5 + 3.0) / 2 / mean - 1)
    assert found["cold"] == 1 / 3
    assert found["waste"] == pytest.approx(1 - 6 / 30)
    assert (found["loaded"], found["loaded_at_start"]) == ((20 / 10 + 10 / 8) / 2, 1.5)
    assert found["harvest"] == pytest.approx(0.2 / 10 / 2)


def test_nothing_to_divide_by_is_no_number() -> None:
    none = np.zeros(0)
    empty = result(
        function=none.astype(np.int32),
        rows=none.astype(np.int32),
        arrival_s=none,
        deadline_s=none,
        status=none.astype(np.int8),
        attempts=none.astype(np.int16),
        gpu=none.astype(np.int32),
        dispatch_s=none,
        start_s=none,
        end_s=none,
        cold=none.astype(bool),
        alone_s=none,
        run_s=none,
    )

    found = metrics.figures(empty, ALONE)

    assert all(math.isnan(found[name]) for name in ("dsr", "dsr_admitted", "admission", "sld", "cold", "admission.a"))


def test_an_interval_is_student_s() -> None:
    found = metrics.interval([1.0, 2.0, 3.0, 4.0])

    half = 3.182446305 * math.sqrt(5 / 3) / 2
    assert (found.mean, found.low, found.high) == (2.5, pytest.approx(2.5 - half), pytest.approx(2.5 + half))
    assert math.isnan(metrics.interval([1.0]).low)
    assert metrics.interval([0.0, 1.0] * 50).high - 0.5 == pytest.approx(1.984 * math.sqrt(25 / 99) / 10, rel=1e-3)


def test_pairs_of_seeds_are_compared() -> None:
    """What both have in common does not widen the interval; less of a degradation is an advantage."""
    ours, theirs = [0.1, 0.5, 0.9], [0.2, 0.6, 1.0]

    found = metrics.advantage("sfd", ours, theirs)
    assert (found.low, found.mean, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert metrics.advantage("dsr", ours, theirs).mean == pytest.approx(-0.1)


def test_not_worse_is_within_a_point() -> None:
    assert metrics.not_worse(metrics.Interval(mean=0.0, low=-0.009, high=0.009))
    assert not metrics.not_worse(metrics.Interval(mean=0.0, low=-0.011, high=0.011))
    assert metrics.not_worse(metrics.Interval(mean=-0.005, low=math.nan, high=math.nan))
