"""The throttle of the run gate: functions work for no more of the time than was asked, however long their runs are."""

from hypothesis import given, settings
from hypothesis import strategies as st

from smore.testing import ManualClock
from worker.activity import Activity
from worker.training.run_gate import RunGate

LOOK_S = 0.25
#: What the bucket holds at first weighs little after a minute, and one run after so many turns of the longest.
LEAST_S = 60.0
TURNS = 12


@given(duty=st.floats(0.1, 0.75), runs_s=st.lists(st.floats(0.1, 60.0), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_real_over_asked_part_of_the_time(duty: float, runs_s: list[float]) -> None:
    """Somebody always wants to run; the part of the time is taken where a run begins, so that its debt counts."""
    clock = ManualClock(100.0)
    activity = Activity(clock)
    gate = RunGate(activity, clock)
    gate.protect({"j"})
    gate.throttle(duty)
    began, made, parts = clock(), 0, []
    while clock() < began + LEAST_S + TURNS * max(runs_s) / duty:
        gate.protect({"j"})
        if not gate.wait(0.0, lambda: True):
            clock.advance(LOOK_S)
            continue
        parts.append(activity.busy_s() / max(1e-9, clock() - began))
        activity.begin()
        clock.advance(runs_s[made % len(runs_s)])
        activity.end()
        made += 1
    assert parts[-1] <= 1.1 * duty
