"""Closed windows of one job: when they come, which iterations count in them, what comes out of a ring made by hand."""

import math
import random
import sys
from types import SimpleNamespace

import pytest

from smore.domain import loss
from smore.domain.windows import LOSS_WINDOWS, RECENT_S, REPEATED_S, Closing, Windows
from smore.tracking.ring import Tracker, TrackReader

SHARE = 0.03


def windows(share: float = SHARE, longest_s: float = 10.0, since: float = 0.0, seed: str = "boot/j") -> Windows:
    return Windows(seed=seed, share=share, longest_s=longest_s, since=since)


class Training:
    """Iterations of 0.1 s one after the other, 0.15 s where the gate is open, from second 1000 on."""

    def __init__(self, made: Windows) -> None:
        self.windows = made
        self.now = 1000.0

    def train(self, count: int, seconds: float = 0.15, met: bool = True) -> None:
        for _ in range(count):
            self.now += seconds
            self.windows.add(self.now, seconds, met)

    def close(self, count: int = 7, *, drain: float = 0.05, met: bool = False, stub: float = 0.05) -> Closing:
        """A window with so many iterations in it, after a run of ``drain`` seconds and a piece of an iteration."""
        shut = self.now
        self.train(1, drain + stub)
        quiet = shut + drain
        self.train(count, 0.1, met)
        closing = Closing(shut=shut, quiet=quiet, opened=self.now + 0.01)
        self.windows.closed(closing)
        return closing


def test_nothing_is_due_before_iterations_are_known() -> None:
    training = Training(windows())
    assert training.windows.due(0.0) is None
    training.train(19)
    assert training.windows.due(training.now) is None
    training.train(1)
    due = training.windows.due(training.now)
    assert due is not None
    length_s = training.windows.length_s
    assert length_s is not None and length_s == pytest.approx(7 * 0.15)
    assert training.now <= due <= training.now + length_s * (1 - SHARE) / SHARE / 2
    assert training.windows.due(training.now + 5) == due, "drawn once"


def test_never_without_a_share_nor_for_iterations_that_are_too_long() -> None:
    for made, seconds in ((windows(share=0.0), 0.15), (windows(longest_s=1.0), 0.15), (windows(), 2.0)):
        training = Training(made)
        training.train(40, seconds)
        assert made.due(training.now) is None


def test_short_iterations_get_the_least_window() -> None:
    training = Training(windows())
    training.train(600, 0.01)
    assert training.windows.length_s == loss.LEAST_WINDOW_S


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
def test_the_share_is_kept_and_the_times_are_chance(share: float) -> None:
    made = windows(share)
    training = Training(made)
    training.train(40, 0.1)
    began, closed, gaps = training.now, 0.0, []
    for _ in range(400):
        due = made.due(training.now)
        assert due is not None
        gaps.append(due - training.now)
        training.now = due
        training.train(25, 0.1)  # keeps the iteration time known
        training.now -= 2.5
        made.closed(Closing(shut=training.now, quiet=training.now + 0.1, opened=training.now + 0.8))
        training.now += 0.8
        closed += 0.8
    assert closed / (training.now - began) == pytest.approx(share, rel=0.15)
    # Both sides of a window, and its neighbour's, always have room.
    assert min(gaps[1:]) >= 2 * (2 * 0.7 + 0.1) - 1e-6
    assert len({round(gap, 6) for gap in gaps}) > 350


def test_the_same_seed_draws_the_same_times() -> None:
    found = []
    for seed in ("a/j", "a/j", "b/j"):
        training = Training(windows(seed=seed))
        training.train(40)
        found.append(training.windows.due(training.now))
    assert found[0] == found[1] != found[2]


def test_what_lies_in_a_window_and_beside_it() -> None:
    training = Training(windows())
    training.train(30, 0.15)
    closing = training.close(7)
    guard_s = closing.opened - closing.shut
    training.windows.settle(training.now)
    assert training.windows.fresh() == []
    # Caught up with: slower than any, and dropped.
    while training.now < closing.opened + guard_s:
        training.train(1, 0.5)
    training.train(6, 0.16)
    training.windows.settle(training.now)
    assert training.windows.fresh() == [], "one is missing after it"
    training.train(1, 0.16)
    training.windows.settle(training.now)
    (found,) = training.windows.fresh()
    assert (found.start, found.end) == (closing.quiet, closing.opened)
    assert (found.before_n, found.closed_n, found.after_n) == (7, 7, 7)
    assert (found.before_s, found.closed_s, found.after_s) == pytest.approx((0.15, 0.1, 0.16))
    assert found.closed_sd == pytest.approx(0.0, abs=1e-9)
    assert (training.windows.count, training.windows.loss) == (1, None)


def test_iterations_that_met_a_function_or_the_edge_are_not_closed() -> None:
    training = Training(windows())
    training.train(30)
    shut = training.now
    training.train(1, 0.1, met=False)  # begins with the gate shut and a run going on
    training.train(2, 0.1, met=True)  # a load that the gate did not stop
    training.train(5, 0.2, met=False)
    training.windows.closed(Closing(shut=shut, quiet=shut + 0.05, opened=training.now - 0.01))  # the last one is cut
    training.train(40)
    training.windows.settle(training.now)
    assert training.windows.fresh() == [], "four whole ones are too few"
    assert training.windows.reference is None


def test_a_window_that_never_was_quiet_says_nothing() -> None:
    training = Training(windows())
    training.train(40)
    shut = training.now
    training.train(20, 0.1, met=True)
    training.windows.closed(Closing(shut=shut, quiet=None, opened=training.now))
    training.train(60)
    training.windows.settle(training.now)
    assert (training.windows.fresh(), training.windows.count) == ([], 0)
    assert training.windows.due(training.now) is not None


def test_another_jobs_window_does_not_count_as_open() -> None:
    made = windows()
    training = Training(made)
    training.train(60, 0.15)
    other = training.now
    training.train(10, 0.1, met=False)
    made.disturbed(Closing(shut=other, quiet=other, opened=training.now))
    training.train(4, 0.3)  # caught up with
    recent = made.recent
    assert recent is not None
    assert recent.mean == pytest.approx(0.15), "neither those in it nor those just after it"
    training.train(1, 0.15)
    training.close(7)
    training.train(40, 0.15)
    made.settle(training.now)
    (found,) = made.fresh()
    assert found.before_s == pytest.approx(0.15)


def test_recent_iterations_are_those_of_the_last_seconds_and_twenty_at_least() -> None:
    for seconds, count in ((0.05, RECENT_S / 0.05), (0.15, int(RECENT_S / 0.15) + 1), (1.0, loss.LEAST_RECENT)):
        training = Training(windows())
        training.train(300, seconds)
        recent = training.windows.recent
        assert recent is not None
        assert recent.n == pytest.approx(count, abs=1)
        assert recent.mean == pytest.approx(seconds)


def test_a_former_workers_iterations_are_not_looked_at() -> None:
    training = Training(windows(since=1010.0))
    training.train(60)
    assert training.windows.due(training.now) is None
    training.train(40)
    assert training.windows.due(training.now) is not None


def test_reports_repeat_a_window_for_a_while_and_the_loss_is_of_the_last_ones() -> None:
    made = windows()
    training = Training(made)
    rng = random.Random(1)
    training.train(40)
    for _ in range(LOSS_WINDOWS + 20):
        training.train(40, 0.15 * rng.uniform(0.95, 1.05))
        training.close(7)
        training.train(8, 0.15)
        training.train(8, 0.15)
        made.settle(training.now)
    assert made.count == LOSS_WINDOWS
    assert made.loss is not None
    assert made.loss.low <= 0.5 <= made.loss.high
    assert made.reference is not None
    assert made.reference.n == 5 * 7
    starts = [window.start for window in made.fresh()]
    assert starts == sorted(set(starts))
    assert all(window.end > training.now - REPEATED_S - 10 for window in made.fresh())
    made.settle(training.now + REPEATED_S + 1)
    assert made.fresh() == []


def test_a_window_without_an_after_is_given_up() -> None:
    made = windows()
    training = Training(made)
    training.train(40)
    training.close(7)
    made.settle(training.now + 1000)
    training.train(1, 1000)
    training.train(30)
    made.settle(training.now)
    assert made.fresh() == []


def test_from_a_ring_as_the_job_writes_it(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A real tracker on a clock that is turned: 10 % slower where the gate is open, and a machine that grows slower by
    itself.
    """
    now = 5000.0
    clock = SimpleNamespace(time=lambda: now, perf_counter=lambda: now, monotonic=lambda: now)
    monkeypatch.setattr(sys.modules["smore.tracking.ring"], "time", clock)
    tracker = Tracker(f"{tmp_path}/ring")
    reader = TrackReader(f"{tmp_path}/ring")
    made = windows(since=5000.0)
    rng = random.Random(2)

    def train(count: int, closed: bool = False) -> None:
        nonlocal now
        for _ in range(count):
            now += 0.1 * (1 + (now - 5000) / 3000) * rng.lognormvariate(0, 0.02) * (1 if closed else 1.1)
            tracker.step()
        for end, duration in reader.read_new():
            made.add(end, duration, not closed)

    train(40)
    for _ in range(LOSS_WINDOWS):
        train(30)
        shut = now
        train(7, closed=True)
        made.closed(Closing(shut=shut, quiet=shut, opened=now))
        train(16)
        made.settle(now)
    assert made.loss is not None
    assert made.loss.windows == LOSS_WINDOWS
    assert made.loss.low <= 0.10 <= made.loss.high
    assert made.loss.high - made.loss.low < 0.03
    assert math.isclose(made.loss.mean, 0.10, abs_tol=0.01)
    tracker.close()
