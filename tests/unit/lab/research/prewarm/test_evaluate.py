"""Scoring of prewarming rules: rates by hand, classes, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.research.prewarm import cases, evaluate, prices, rules, scores, workloads
from scheduler.backtest.instances import Setup, Workload
from scheduler.policy.prewarm.kernel import (
    BUSY_S,
    COLD_MINUTES,
    COLDS,
    FIELDS,
    IDLE_ALONE_S,
    IDLE_S,
    LOADING_S,
    REQUEST_MINUTES,
    REQUESTS,
)
from smore.domain.errors import NotFound
from smore.traces.public import BUNDLED


def test_rates_by_hand() -> None:
    """Two functions over 100 s: R_rw is waste over the total time (Eq. 6), its other forms have names of their own."""
    tally = np.zeros((2, FIELDS))
    tally[:, REQUESTS], tally[:, COLDS] = [90, 10], [0, 10]
    tally[:, REQUEST_MINUTES], tally[:, COLD_MINUTES] = [2, 2], [0, 1]
    tally[:, BUSY_S], tally[:, IDLE_S], tally[:, LOADING_S], tally[:, IDLE_ALONE_S] = (
        [30, 10],
        [40, 0],
        [5, 15],
        [20, 15],
    )
    both = scores.rates(tally, np.array([True, True]), 100.0)
    assert both.r_cs == pytest.approx(0.1)
    assert both.r_cs_minutes == pytest.approx(0.25)
    assert both.r_rw == pytest.approx((45 / 100 + 15 / 100) / 2)
    assert both.r_rw_alone == pytest.approx((20 / 100 + 15 / 100) / 2)
    assert both.r_rw_loaded == pytest.approx(0.6)
    second = scores.rates(tally, np.array([False, True]), 100.0)
    assert (second.r_cs, second.r_rw) == (pytest.approx(1.0), pytest.approx(0.15))


def test_minutes_with_a_cold_start_are_counted_once() -> None:
    """Nothing is held: three requests of one minute and one of the next are four cold starts in two minutes."""
    work = Workload(
        name="x", names=("a",), counts=np.array([[3, 0, 1]]), run_s=np.full(1, 0.01), memory_gb=np.ones(1), load_s=0.01
    )
    tally = scores.Replays(None).tally(work, Setup(name="never"), 0, 0)[0]
    assert (tally[COLDS], tally[COLD_MINUTES], tally[REQUEST_MINUTES]) == (4, 2, 2)
    assert tally[IDLE_ALONE_S] == pytest.approx(tally[LOADING_S] + tally[IDLE_S])


def ladder(colds: list[list[float]]) -> np.ndarray:
    """
    Cold starts [prices, functions], the last row repeated for dearer prices; every function has a thousand requests.
    """
    found = np.zeros((len(prices.PRICES), len(colds[0]), FIELDS))
    found[:, :, REQUESTS] = 1000.0
    for step in range(len(found)):
        found[step, :, COLDS] = colds[min(step, len(colds) - 1)]
    return found


def test_the_base_price_is_the_smallest_from_which_on_the_pooled_rate_is_near_lsths() -> None:
    parts = {"overall": np.ones(2, bool), "bursty": np.zeros(2, bool)}
    theirs = ladder([[0.0, 0.0]])[0]
    # Within 0.5 % of 2,000 requests: ten cold starts. The first step that holds is followed by one that does not.
    tried = ladder([[30.0, 30.0], [5.0, 4.0], [8.0, 8.0], [4.0, 6.0], [1.0, 1.0]])
    assert prices.base_price(tried, theirs, parts, parts["overall"]) == 3
    assert prices.base_price(tried, theirs, parts, np.array([True, False])) == 3
    assert prices.base_price(ladder([[99.0, 99.0]]), theirs, parts, parts["overall"]) == len(prices.PRICES) - 1


def test_a_function_with_too_many_cold_starts_of_its_own_gets_a_dearer_price() -> None:
    """Allowed are half the tolerance of its own and the prior's requests: 0.0025 * (1,000 + 0.03 * 2,000) = 2.65."""
    theirs = ladder([[0.0, 0.0]])[0]
    tried = ladder([[9.0, 2.0], [9.0, 2.0], [3.0, 1.0], [2.0, 1.0]])
    assert prices.own_prices(tried, theirs, 1).tolist() == [3, 1]


def test_a_crossfit_price_is_blind_to_its_own_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def base_price(*args: Any) -> int:
        seen.append(args[3].copy())
        return 0

    monkeypatch.setattr(prices, "base_price", base_price)
    tried = ladder([[0.0] * 11])
    prices.crossfit_prices(tried, tried[0], {}, 0)
    held = np.stack([~one for one in seen])
    assert held.sum(axis=0).tolist() == [1] * 11
    assert {int(one.sum()) for one in held} == {2, 3}


def test_classes_by_how_often_and_how_evenly_something_comes() -> None:
    counts = np.zeros((4, 100), np.int64)
    counts[0], counts[1, ::5], counts[2, 50], counts[3, ::5] = 2, 1, 1, 40
    found = {name: mask.tolist() for name, mask in workloads.classes(counts).items()}
    assert found["dense"] == [True, False, False, False]
    assert found["mid"] == [False, True, False, True]
    assert found["sparse"] == [False, False, True, False]
    assert found["bursty"] == [False, False, False, True]


def test_the_published_lsth_comes_first_and_once() -> None:
    first, *others = rules.lsth_grid()
    assert first.knobs[:3] == (0.5, 5.0, 99.0)
    assert all(one.knobs != first.knobs for one in others)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="one_day_rows"):
        workloads.workload(tmp_path, "1d", 1.5)


def test_without_its_trace_the_evaluation_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--preset", "small", "--traces", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lab.research.prewarm.evaluate: ")
    assert "invocations.csv.gz" in captured.err and captured.err.count("\n") == 1


def test_the_default_price_is_the_dearest_up_to_which_waste_is_four_fifths_of_lsths() -> None:
    theirs = ladder([[0.0, 0.0]])[0]
    theirs[:, IDLE_S] = 100.0
    tried = ladder([[0.0, 0.0]])
    tried[:, :, IDLE_S] = 200.0
    # A step that keeps within the limit after one that does not is not taken.
    tried[:4, :, IDLE_S] = [[20.0, 60.0], [70.0, 90.0], [90.0, 90.0], [50.0, 50.0]]
    assert prices.default_price(tried, theirs, np.array([True, True])) == 1
    assert prices.default_price(tried, theirs, np.array([True, False])) == 1
    assert prices.default_price(tried, theirs, np.array([False, True])) == 0


def test_a_default_price_is_blind_to_its_own_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The price of a function is the number of those that it was chosen on: never all, and never the function itself."""
    monkeypatch.setattr(prices, "default_price", lambda ladder, theirs, tuned_on: int(tuned_on.sum()))
    tried = ladder([[0.0] * 11])
    found = prices.crossfit_default(tried, tried[0], 3)
    for held in prices.folds(11, 3):
        assert set(found[held].tolist()) == {11 - int(held.sum())}


def test_lsth_is_tuned_on_its_whole_grid_in_every_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Exception):
        pass

    tried: list[str] = []

    def tally(training: Any, setup: Setup, only: Any = None) -> Any:
        tried.append(setup.name)
        if len(tried) == len(rules.lsth_grid()):
            raise Enough
        return np.zeros((60, FIELDS))

    monkeypatch.setattr(prices.TrainingPart, "tally", tally)
    monkeypatch.setattr(cases, "forecasts", lambda *_: {})
    with pytest.raises(Enough):
        cases.evaluate(cases.PRESETS["small"], "8h", 1.5, BUNDLED / "azure2019", None, lambda _: None)
    assert tried == [setup.name for setup in rules.lsth_grid()]


def test_a_cut_evaluation_makes_no_replay_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made is read; another rule, another seed or other functions are made."""
    work = Workload(
        name="x",
        names=("a", "b"),
        counts=np.array([[1, 0, 2], [0, 1, 0]]),
        run_s=np.full(2, 0.1),
        memory_gb=np.ones(2),
        load_s=1.0,
    )
    replays, keep = scores.Replays(tmp_path), Setup(name="keep", keep_s=30.0)
    made = replays.tally(work, keep, 0, 1)
    count = []

    def score(*_: object, **__: object) -> Any:
        count.append(1)
        return np.zeros((2, FIELDS))

    monkeypatch.setattr(scores, "score", score)
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
    found = scores.intervals(ours, theirs, np.ones(40, bool))
    assert found["rrw_wall_ratio"] == (pytest.approx(0.5), pytest.approx(0.5))
    assert found["rcs_diff"] == (0.0, 0.0)
