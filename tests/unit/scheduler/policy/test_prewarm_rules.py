"""Prewarming rules, one function at a time, with numbers that can be followed by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm.ls_lstm import requests_of
from scheduler.policy.prewarm.rules import rule
from scheduler.policy.prewarm.window import WarmWindow
from smore.domain.prewarming import OWN


def forecast(at: float, *mean: float) -> Forecast:
    values = np.array(mean)
    return Forecast(from_at=at, mean=values, any=1 - np.exp(-values))


def held(holds: Sequence[WarmWindow] | None, at: float) -> int:
    assert holds is not None
    return max((hold.instances for hold in holds if hold.from_at <= at < hold.until_at), default=0)


def test_an_unknown_rule_or_knob_is_refused() -> None:
    with pytest.raises(ValueError, match="no prewarming rule"):
        rule("hope")
    with pytest.raises(ValueError, match="minutes"):
        rule("keep-alive", minutes=1)
    with pytest.raises(ValueError, match="at least 0"):
        rule("keep-alive", seconds=math.nan)


def test_never_holds_nothing_and_always_what_was_ever_at_work() -> None:
    assert rule("never").idle(10.0, 1) == ()
    always = rule("always")
    assert held(always.minute(0.0, None, None), 1e9) == 1
    assert held(always.idle(10.0, 2, 1), 1e9) == 3


def test_a_keep_alive_keeps_each_instance_from_its_own_last_work() -> None:
    kept = rule("keep-alive", seconds=60)
    kept.idle(100.0, 1, 1)  # the second of two ends
    holds = kept.idle(130.0, 2, 0)
    assert [held(holds, at) for at in (130.0, 159.9, 160.0, 189.9, 190.0)] == [2, 2, 1, 1, 0]


def test_a_keep_alive_of_nothing_is_never() -> None:
    assert not rule("keep-alive", seconds=0).idle(5.0, 1)


def test_an_oracle_holds_through_pauses_shorter_than_a_load() -> None:
    told = rule("oracle", work=[(10.0, 11.0, 1), (12.0, 13.0, 2), (20.0, 21.0, 1)], load_s=1.5)
    holds = told.minute(0.0, None, None)
    assert [held(holds, at) for at in (9.9, 10.0, 11.5, 12.5, 13.0, 19.9, 20.5)] == [0, 1, 1, 2, 0, 0, 1]


def test_the_paper_rule_holds_what_the_minute_needs() -> None:
    counted = rule("ls-lstm", run_s=2.0, load_s=1.5)
    # 120 in a minute at 2 s each are 4 at once, times 1.5.
    assert counted.minute(0.0, 0, forecast(0.0, 120.0, 0.0)) == (WarmWindow(from_at=0.0, until_at=60.0, instances=6),)
    assert counted.minute(60.0, 120, forecast(60.0, 0.4, 0.0)) == ()
    assert held(rule("ls-lstm", run_s=2.0, load_s=1.5, how="literal").minute(0.0, 0, forecast(0.0, 121.0)), 1.0) == 3


def test_the_paper_rule_closes_on_count() -> None:
    """With rqnum = 5 the fifth request drains, so that nothing is held for the sixth."""
    counted = rule("ls-lstm", run_s=0.01, load_s=1.5)
    counted.minute(0.0, 0, forecast(0.0, 5.0, 0.0))
    assert [counted.arrived(float(at)) for at in range(1, 6)] == [None, None, None, None, ()]


def test_the_paper_rule_does_not_close_for_less_than_a_cold_start() -> None:
    """A42."""
    for guard, expected in ((True, None), (False, ())):
        counted = rule("ls-lstm", run_s=0.01, load_s=5.0, guard=guard)
        counted.minute(0.0, 0, forecast(0.0, 1.0, 1.0))
        assert counted.arrived(56.0) == expected


@pytest.mark.parametrize("mean", [0.02, 0.7, 5.0, 120.0, 499.0, 501.0, 4000.0])
@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_a_quantile_of_the_forecast_is_the_least_that_is_seldom_exceeded(mean: float, quantile: float) -> None:
    """Held against SciPy's Poisson distribution; above 500 by the normal approximation, to one in a thousand."""
    expected = float(stats.poisson.ppf(quantile, mean))
    assert requests_of(mean, quantile) == pytest.approx(expected, abs=0 if mean < 500 else 1 + mean / 1000)


def test_the_quantile_rule_prepares_for_more_than_the_mean_and_closes_later() -> None:
    literal, tried = rule("ls-lstm", run_s=0.01, load_s=1.5), rule("ls-lstm-quantile", run_s=0.01, load_s=1.5)
    assert held(literal.minute(0.0, 0, forecast(0.0, 0.4, 0.0)), 1.0) == 0
    assert held(tried.minute(0.0, 0, forecast(0.0, 0.4, 0.0)), 1.0) == 1
    # Two are the 95th percentile of a mean of 0.4.
    assert [tried.arrived(float(at)) for at in (1, 2)] == [None, ()]
    with pytest.raises(ValueError, match="between 0 and 1"):
        rule("ls-lstm", run_s=0.01, load_s=1.5, quantile=1.0)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0])
def test_a_forecast_that_is_none_leaves_a_keep_alive(number: float) -> None:
    counted = rule("ls-lstm", run_s=0.01, load_s=1.5, keep_s=30.0)
    assert counted.minute(0.0, 0, forecast(0.0, number)) is None
    holds = counted.idle(10.0, 1)
    assert [held(holds, at) for at in (39.9, 40.0)] == [1, 0]


def busy_with(gap_s: float, name: str, times: int = 60, **knobs: Any) -> tuple[Sequence[WarmWindow], float]:
    """
    A rule that has seen a request every ``gap_s``, each at work for 0.1 s; what it said at the last end of work, and
    when that was.
    """
    tried = rule(name, **knobs)
    at = told = 0.0
    holds: Sequence[WarmWindow] | None = None
    for _ in range(times):
        while told <= at:
            tried.minute(told, None, None)
            told += 60.0
        tried.arrived(at)
        holds = tried.idle(at + 0.1, 1, 0)
        at += gap_s
    assert holds is not None
    return holds, at - gap_s + 0.1


@pytest.mark.parametrize("name", ["hhp", "lsth"])
def test_a_histogram_unloads_and_comes_back_before_the_next_request(name: str) -> None:
    """Idle for 299.9 s: bin 4, of which 4 min less a tenth is stayed away and 5 min and a tenth kept."""
    holds, ended = busy_with(300.0, name, least=2, short_minutes=120)
    (hold,) = holds
    assert hold.from_at - ended == pytest.approx(4 * 60 * 0.9)
    assert hold.until_at - ended == pytest.approx(5 * 60 * 1.1)


def test_a_histogram_without_a_pattern_keeps_for_its_range() -> None:
    holds, ended = busy_with(300.0, "hhp", times=3, range_minutes=30)
    (hold,) = holds
    assert (hold.from_at - ended, hold.until_at - ended) == (pytest.approx(0.0), pytest.approx(1800.0))


def test_lsth_is_between_its_two_spans() -> None:
    """Idle for 5 min all day, for 2 min in the last hour: halfway between both windows."""
    tried = rule("lsth", least=2, short_minutes=30)
    at = told = 0.0
    for gap in [300.0] * 200 + [120.0] * 16:
        while told <= at:
            tried.minute(told, None, None)
            told += 60.0
        tried.arrived(at)
        holds = tried.idle(at + 0.1, 1, 0)
        at += gap
    ended = at - gap + 0.1
    assert holds is not None
    (hold,) = holds
    assert hold.from_at - ended == pytest.approx(0.5 * (1 + 1) * 60 * 0.9, abs=0.5 * 3 * 60)
    assert 0 < hold.from_at - ended < 4 * 60 * 0.9


def test_idle_times_beyond_the_range_keep_for_the_range() -> None:
    holds, ended = busy_with(1200.0, "hhp", times=12, range_minutes=5)
    (hold,) = holds
    assert (hold.from_at - ended, hold.until_at - ended) == pytest.approx((0.0, 5 * 60.0))


def test_a_price_decides_between_keeping_and_coming_back() -> None:
    """
    A request every 5 min to the second, at one GB: a dear cold start is worth a load before it, a cheap one nothing.
    """
    holds, ended = busy_with(300.0, "priced", price_gb_s=200.0, load_s=1.5, run_s=0.1)
    assert held(holds, ended + 299.9) == 1
    assert held(holds, ended + 200.0) == 0
    assert held(busy_with(300.0, "priced", price_gb_s=1.0, load_s=1.5, run_s=0.1)[0], ended + 299.9) == 0


def test_more_memory_is_held_for_less_time() -> None:
    def kept(memory_gb: float) -> float:
        holds, ended = busy_with(20.0, "priced", times=1, price_gb_s=300.0, load_s=1.5, run_s=0.1, memory_gb=memory_gb)
        return max((hold.until_at - ended for hold in holds), default=0.0)

    assert kept(0.5) > kept(2.0) > 0


def test_a_forecast_that_is_sure_holds_the_minute_and_one_of_nothing_does_not() -> None:
    tried = rule("priced", price_gb_s=200.0, load_s=1.5, run_s=0.1)
    sure = Forecast(from_at=0.0, mean=np.array([1.0, 1.0]), any=np.array([1.0, 0.0]), source="renewal")
    assert held(tried.minute(0.0, 0, sure), 30.0) == 1
    assert held(tried.minute(60.0, 1, sure), 90.0) == 0
    many = Forecast(from_at=120.0, mean=np.array([600.0]), any=np.array([1.0]), source="renewal")
    # Ten a second, 0.1 s each: one at work on average, some more by chance.
    assert 3 <= held(tried.minute(120.0, 1, many), 121.0) <= 8


def test_a_forecast_by_the_gaps_is_not_gone_by() -> None:
    tried = rule("priced", price_gb_s=200.0, load_s=1.5, run_s=0.1)
    own = Forecast(from_at=0.0, mean=np.array([1.0]), any=np.array([1.0]), source=OWN)
    assert tried.minute(0.0, 0, own) is None


NUMBERS = st.one_of(st.floats(0, 1e4), st.sampled_from([math.nan, math.inf, -1.0]))


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("never", {}),
        ("always", {}),
        ("keep-alive", {"seconds": 60.0}),
        ("hhp", {"least": 2}),
        ("lsth", {"least": 2}),
        ("ls-lstm", {"run_s": 0.1, "load_s": 1.5}),
        ("priced", {"price_gb_s": 100.0, "load_s": 1.5, "run_s": 0.1}),
    ],
)
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["arrived", "idle", "minute"]), st.floats(0, 500), st.integers(0, 3), NUMBERS),
        max_size=40,
    )
)
def test_no_rule_ever_answers_nan_or_a_hold_that_ends_before_it_begins(
    name: str, knobs: dict[str, float], steps: list[tuple[str, float, int, float]]
) -> None:
    tried = rule(name, **knobs)
    at = 1.7e9
    for what, after, busy, number in steps:
        at += after
        if what == "arrived":
            answer = tried.arrived(at)
        elif what == "idle":
            answer = tried.idle(at, 1, busy)
        else:
            values = np.array([number, number])
            answer = tried.minute(at, None, Forecast(from_at=at, mean=values, any=values / 1e4, source="made up"))
        for hold in answer or ():
            assert math.isfinite(hold.from_at)
            assert hold.until_at >= hold.from_at
            assert hold.until_at >= at
            assert hold.instances >= 1
