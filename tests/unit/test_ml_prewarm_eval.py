"""Scoring of prewarming rules: rates by hand, classes, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ml import prewarm_eval
from scheduler.policy.prewarm.kernel import BUSY_S, COLDS, FIELDS, IDLE_S, LOADING_S, REQUESTS
from scheduler.simulation.instances import Setup, Workload
from smore.domain.errors import NotFound


def test_rates_are_pooled_over_requests_and_seconds() -> None:
    tally = np.zeros((2, FIELDS))
    tally[:, REQUESTS], tally[:, COLDS] = [90, 10], [0, 10]
    tally[:, BUSY_S], tally[:, IDLE_S], tally[:, LOADING_S] = [30, 10], [40, 0], [5, 15]
    assert prewarm_eval.rates(tally, np.array([True, True])) == (pytest.approx(0.1), pytest.approx(0.6))
    assert prewarm_eval.rates(tally, np.array([False, True])) == (pytest.approx(1.0), pytest.approx(0.6))


def test_classes_by_how_often_and_how_evenly_something_comes() -> None:
    counts = np.zeros((4, 100), np.int64)
    counts[0], counts[1, ::5], counts[2, 50], counts[3, ::5] = 2, 1, 1, 40
    found = {name: mask.tolist() for name, mask in prewarm_eval.classes(counts).items()}
    assert found["dense"] == [True, False, False, False]
    assert found["mid"] == [False, True, False, True]
    assert found["sparse"] == [False, False, True, False]
    assert found["bursty"] == [False, False, False, True]


def test_the_published_lsth_comes_first_and_once() -> None:
    first, *others = prewarm_eval.lsth_grid()
    assert first.knobs[:3] == (0.5, 5.0, 99.0)
    assert all(one.knobs != first.knobs for one in others)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="one_day_rows"):
        prewarm_eval.workload(tmp_path, "1d", 1.5)


def test_the_smallest_price_is_found_to_an_eighth_of_an_octave() -> None:
    found = prewarm_eval.smallest(lambda price: price >= 100.0)
    assert 100.0 <= found < 100.0 * 2 ** (1 / 8)


def test_a_cut_evaluation_makes_no_replay_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made is read; another rule, another seed or other functions are made."""
    work = Workload(
        name="x", names=("a", "b"), counts=np.array([[1, 0, 2], [0, 1, 0]]), run_s=np.full(2, 0.1), memory_gb=np.ones(2), load_s=1.0
    )
    replays, keep = prewarm_eval.Replays(tmp_path), Setup(name="keep", keep_s=30.0)
    made = replays.tally(work, keep, 0, 1)
    count = []
    monkeypatch.setattr(prewarm_eval, "score", lambda *_, **__: count.append(1) or np.zeros((2, FIELDS)))
    np.testing.assert_array_equal(replays.tally(work, keep, 0, 1), made)
    assert not count
    replays.tally(work, replace(keep, keep_s=31.0), 0, 1)
    replays.tally(work, keep, 1, 1)
    replays.tally(work, keep, 0, 1, np.array([True, False]))
    assert len(count) == 3


def test_intervals_hold_what_they_are_of() -> None:
    random = np.random.default_rng(0)
    theirs = random.uniform(50, 100, (40, FIELDS))
    ours = theirs.copy()
    ours[:, [IDLE_S, LOADING_S]] /= 2
    found = prewarm_eval.intervals(ours, theirs, np.ones(40, bool))
    assert found["waste_ratio"] == (pytest.approx(0.5), pytest.approx(0.5))
    assert found["rcs_diff"] == (0.0, 0.0)
