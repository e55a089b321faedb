"""When functions ran, and which iterations met them."""

from smore.testing import ManualClock
from worker.activity import KEPT_S, Activity


def ran(activity: Activity, clock: ManualClock, start: float, stop: float) -> None:
    clock.advance_to(start)
    activity.begin()
    clock.advance_to(stop)
    activity.end()


def test_overlap_is_of_half_open_intervals() -> None:
    clock = ManualClock(100.0)
    activity = Activity(clock)
    ran(activity, clock, 101, 102)
    ran(activity, clock, 105, 106)
    met = {
        (start, stop): activity.overlaps(start, stop)
        for start, stop in [(100, 101), (100, 101.5), (101.2, 101.3), (102, 105), (90, 110)]
    }
    assert met == {(100, 101): False, (100, 101.5): True, (101.2, 101.3): True, (102, 105): False, (90, 110): True}


def test_runs_side_by_side_are_one_interval_and_one_that_goes_on_counts() -> None:
    clock = ManualClock(100.0)
    activity = Activity(clock)
    activity.begin()
    clock.advance_to(101)
    activity.begin()
    clock.advance_to(102)
    activity.end()
    assert activity.overlaps(101.5, 103), "one still runs"
    assert not activity.overlaps(98, 99)
    clock.advance_to(104)
    activity.end()
    assert activity.overlaps(103, 103.5) and not activity.overlaps(104, 105)


def test_the_past_is_forgotten() -> None:
    clock = ManualClock(100.0)
    activity = Activity(clock)
    ran(activity, clock, 100, 101)
    ran(activity, clock, 101 + KEPT_S, 102 + KEPT_S)
    assert not activity.overlaps(100, 101)
