"""Prewarming rules, one function at a time, with numbers that can be followed by hand."""

import math

import numpy as np
import pytest

from scheduler.policy.prewarm.hold import Forecast, Hold
from scheduler.policy.prewarm.rules import rule


def forecast(at: float, *mean: float) -> Forecast:
    values = np.array(mean)
    return Forecast(from_at=at, mean=values, any=1 - np.exp(-values))


def held(holds: object, at: float) -> int:
    return max((hold.instances for hold in holds if hold.from_at <= at < hold.until_at), default=0)  # type: ignore[attr-defined]


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
    assert counted.minute(0.0, 0, forecast(0.0, 120.0, 0.0)) == (Hold(from_at=0.0, until_at=60.0, instances=6),)
    assert counted.minute(60.0, 120, forecast(60.0, 0.4, 0.0)) == ()
    assert held(rule("ls-lstm", run_s=2.0, load_s=1.5, how="literal").minute(0.0, 0, forecast(0.0, 121.0)), 1.0) == 3


def test_the_paper_rule_closes_on_count() -> None:
    """Digest 2.19 (9): with rqnum = 5 the fifth request drains, so that nothing is held for the sixth."""
    counted = rule("ls-lstm", run_s=0.01, load_s=1.5)
    counted.minute(0.0, 0, forecast(0.0, 5.0, 0.0))
    assert [counted.arrived(float(at)) for at in range(1, 6)] == [None, None, None, None, ()]


def test_the_paper_rule_does_not_close_for_less_than_a_cold_start() -> None:
    """A42."""
    for guard, expected in ((True, None), (False, ())):
        counted = rule("ls-lstm", run_s=0.01, load_s=5.0, guard=guard)
        counted.minute(0.0, 0, forecast(0.0, 1.0, 1.0))
        assert counted.arrived(56.0) == expected


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0])
def test_a_forecast_that_is_none_leaves_a_keep_alive(number: float) -> None:
    counted = rule("ls-lstm", run_s=0.01, load_s=1.5, keep_s=30.0)
    assert counted.minute(0.0, 0, forecast(0.0, number)) is None
    holds = counted.idle(10.0, 1)
    assert [held(holds, at) for at in (39.9, 40.0)] == [1, 0]
