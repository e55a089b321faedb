"""
The gate between runs: the throttle by a clock that the test turns, the closed windows of a prober without waiting.
"""

import threading
from collections.abc import Callable, Sequence

import pytest

from smore.domain.windows import Closing
from smore.testing import ManualClock
from worker.activity import Activity
from worker.training.run_gate import Due, Prober, RunGate


class Stage:
    def __init__(self, duty: float = 1.0) -> None:
        self.clock = ManualClock(100.0)
        self.activity = Activity(self.clock)
        self.gate = RunGate(self.activity, self.clock)
        self.gate.protect({"j"})
        self.gate.throttle(duty)

    def run(self, seconds: float) -> None:
        self.activity.begin()
        self.clock.advance(seconds)
        self.activity.end()

    def may_run(self) -> bool:
        return self.gate.wait(0.0, lambda: True)

    def busy(self, batch_s: float, during_s: float) -> float:
        """Whoever wants to run always does: the part of the time in which something ran."""
        end, before = self.clock() + during_s, self.activity.busy_s()
        while self.clock() < end:
            if self.may_run():
                self.run(batch_s)
            else:
                self.clock.advance(0.001)
        return (self.activity.busy_s() - before) / during_s


@pytest.mark.parametrize("duty", [0.75, 0.5, 0.25])
@pytest.mark.parametrize("batch_s", [0.01, 0.2, 3.0])
def test_functions_work_for_their_part_of_the_time(duty: float, batch_s: float) -> None:
    assert Stage(duty).busy(batch_s, 200.0) == pytest.approx(duty, abs=0.03)


def test_all_and_nothing() -> None:
    assert Stage(1.0).busy(0.1, 10.0) == pytest.approx(1.0, abs=0.02)
    assert Stage(0.0).busy(0.1, 10.0) == 0.0


def test_what_was_not_used_is_no_right_to_a_burst() -> None:
    stage = Stage(0.5)
    stage.clock.advance(1000)
    assert stage.busy(0.01, 2.0) <= 0.5 + 0.3


def test_what_a_long_run_owes_is_owed_in_full() -> None:
    stage = Stage(0.5)
    stage.run(1000)
    stage.gate.protect({"j", "guest"})  # a heartbeat
    stage.clock.advance(998)
    assert not stage.may_run()
    stage.clock.advance(2)
    assert stage.may_run()


def test_a_debt_ends_with_the_trainings_and_with_the_throttle() -> None:
    stage = Stage(0.5)
    stage.run(100)
    for trainings, owed in (({"j", "k"}, True), ({"k"}, True), ({"l"}, False), ({"l"}, True), (set[str](), False)):
        stage.gate.protect(trainings)
        assert stage.may_run() is not owed, trainings
        stage.run(100)
    stage.gate.protect({"l"})
    assert stage.may_run()
    stage.run(100)
    stage.gate.throttle(0.75)
    assert not stage.may_run(), "another duty pays it sooner"
    stage.gate.throttle(1.0)
    stage.gate.throttle(0.75)
    assert stage.may_run()


def test_runs_side_by_side_count_once() -> None:
    stage = Stage(0.5)
    stage.activity.begin()
    stage.run(0.4)
    stage.activity.end()
    assert stage.may_run(), "0.1 s of the 0.5 s are left"


def test_taking_a_seat_is_not_held_against_a_batch_that_has_waited() -> None:
    stage = Stage(0.25)
    stage.run(1.0)
    while not stage.may_run():
        stage.clock.advance(0.001)
    stage.run(0.01)  # as long as it takes to get a seat: the few tokens are gone
    assert not stage.may_run()
    assert stage.gate.open()
    stage.gate.shut(200.0)
    assert not stage.gate.open()


def test_the_last_word_holds_at_once_and_what_is_no_duty_is_refused() -> None:
    stage = Stage()
    for duty, opened in ((0.0, False), (0.0, False), (0.25, True), (1.0, True)):
        stage.gate.throttle(duty)
        stage.clock.advance(0.1)
        assert (stage.may_run(), stage.gate.open(), stage.gate.duty) == (opened, opened, duty)
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="duty"):
            stage.gate.throttle(wrong)
    assert stage.gate.duty == 1.0


def test_without_a_job_nothing_is_shut() -> None:
    stage = Stage(0.0)
    stage.gate.shut(200.0)
    assert (stage.gate.open(), stage.gate.closed_until) == (False, 200.0)
    stage.gate.protect(())
    assert (stage.gate.open(), stage.gate.closed_until) == (True, None)
    stage.gate.protect({"j"})
    assert not stage.gate.open()


def test_a_batch_waits_and_goes_when_it_opens_or_gives_up() -> None:
    gate = RunGate(Activity())
    gate.protect({"j"})
    gate.throttle(0.0)
    assert not gate.wait(0.0, lambda: True)
    assert not gate.wait(60.0, lambda: False), "nobody wants it any more"
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(gate.wait(60.0, lambda: True)))
    waiting.start()
    gate.throttle(1.0)
    waiting.join(10)
    assert answers == [True]


# ---- windows ---------------------------------------------------------------------------------------------------------


class FakeJobs:
    def __init__(self, *due: Due) -> None:
        self.wanted = list(due)
        self.told: list[tuple[str, Closing]] = []
        #: What was said to the guest, and after how many looks it waits.
        self.shut: list[bool] = []
        self.looks = 0

    def due(self) -> Sequence[Due]:
        return self.wanted

    def runs(self, job: str) -> bool:
        return any(one.job == job for one in self.wanted)

    def closed(self, job: str, closing: Closing, *, guest: bool) -> None:
        self.told.append((job, closing))
        self.wanted = [one for one in self.wanted if one.job != job]

    def shut_guest(self, on: bool) -> None:
        self.shut.append(on)

    def guest_waits(self) -> bool:
        self.looks -= 1
        return self.looks < 0


class FakeRuns:
    """One run, which stands still when it is told to, where it can be held."""

    def __init__(self, activity: Activity, *, holds: bool = False) -> None:
        self._activity, self._holds = activity, holds
        self.said: list[str] = []

    def hold(self) -> None:
        self.said.append("hold")
        if self._holds:
            self._activity.end()

    def go_on(self) -> None:
        self.said.append("go on")
        if self._holds and "hold" in self.said:
            self._activity.begin()


class Ticking(threading.Event):
    """An event whose waits take no time but on the clock."""

    def __init__(self, clock: ManualClock, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._clock, self._meanwhile = clock, meanwhile

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0.0)
        self._meanwhile()
        return self.is_set()


def probe(
    stage: Stage,
    jobs: FakeJobs,
    meanwhile: Callable[[], None] = lambda: None,
    longest_s: float = 4.0,
    runs: FakeRuns | None = None,
) -> Prober:
    return Prober(
        gate=stage.gate,
        activity=stage.activity,
        jobs=jobs,
        runs=runs or FakeRuns(stage.activity),
        longest_s=longest_s,
        changed=meanwhile,
        clock=stage.clock,
        stopped=Ticking(stage.clock, meanwhile),
    )


def test_a_window_shuts_the_gate_for_its_length() -> None:
    stage, jobs = Stage(), FakeJobs(Due(job="j", at=100.1, length_s=1.0, side_s=2.0))
    seen: list[tuple[bool, float | None]] = []
    prober = probe(stage, jobs, lambda: seen.append((stage.gate.open(), stage.gate.closed_until)))
    prober._clear_at = 0.0
    stage.clock.advance_to(100.0)
    assert prober.step() == pytest.approx(0.1)
    stage.clock.advance_to(100.2)
    assert prober.step() == 0.0
    ((job, closing),) = jobs.told
    assert (job, closing.shut, closing.quiet, closing.opened) == ("j", 100.2, 100.2, pytest.approx(101.2))
    assert seen[0] == (False, pytest.approx(104.2)), "told at once, with the time by which it is over"
    assert seen[-1] == (True, None)
    assert prober.step() == 1.0, "nothing is due"


def test_a_run_that_lasts_is_held_for_the_window() -> None:
    stage, jobs = Stage(), FakeJobs(Due(job="j", at=0.0, length_s=0.98, side_s=2.0))
    stage.activity.begin()
    runs = FakeRuns(stage.activity, holds=True)
    probe(stage, jobs, longest_s=1.0, runs=runs).step()
    ((_, closing),) = jobs.told
    assert closing.quiet is not None
    assert runs.said == ["hold", "go on"]
    assert not stage.activity.overlaps(closing.quiet, closing.opened)
    before = stage.activity.busy_s()
    stage.clock.advance(1.0)
    assert stage.activity.busy_s() - before == 1.0, "it is at work again"


def test_what_cannot_be_held_and_does_not_end_voids_the_window() -> None:
    stage, jobs = Stage(), FakeJobs(Due(job="j", at=0.0, length_s=0.98, side_s=2.0))
    stage.activity.begin()
    probe(stage, jobs, longest_s=1.0).step()
    ((_, closing),) = jobs.told
    assert closing.quiet is None
    assert stage.gate.open()


def test_a_window_waits_for_what_runs() -> None:
    stage, jobs = Stage(), FakeJobs(Due(job="j", at=0.0, length_s=8.0, side_s=2.0))
    stage.activity.begin()
    runs, told = FakeRuns(stage.activity), threading.Event()
    prober = probe(stage, jobs, told.set, longest_s=20.0, runs=runs)
    step = threading.Thread(target=prober.step)
    step.start()
    assert told.wait(10)
    assert not stage.gate.open()
    stage.activity.end()
    step.join(10)
    ((_, closing),) = jobs.told
    assert closing.quiet is not None and "hold" not in runs.said
    assert closing.shut <= closing.quiet <= closing.opened - 0.1


def test_it_opens_when_the_job_ends() -> None:
    stage, jobs = Stage(), FakeJobs(Due(job="j", at=0.0, length_s=3.0, side_s=2.0))
    probe(stage, jobs, jobs.wanted.clear).step()
    ((_, closing),) = jobs.told
    assert closing.opened - closing.shut <= 0.25
    assert stage.gate.open()


def test_two_jobs_windows_keep_clear_of_each_other() -> None:
    stage = Stage()
    jobs = FakeJobs(Due(job="a", at=100.0, length_s=1.0, side_s=2.0), Due(job="b", at=100.5, length_s=0.5, side_s=1.0))
    prober = probe(stage, jobs)
    stage.clock.advance_to(102.5)
    while jobs.wanted:
        stage.clock.advance(prober.step())
    (first, a), (second, b) = jobs.told
    assert (first, second) == ("a", "b")
    assert b.shut >= a.opened + (a.opened - a.shut) + 1.0 + 1.0, "a's distance and its side, then b's"


def test_in_a_window_of_a_guest_functions_run_on() -> None:
    stage, jobs = Stage(), FakeJobs(Due(job="j", at=0.0, length_s=1.0, side_s=2.0, guest=True))
    jobs.looks = 3
    seen: list[tuple[bool, list[bool]]] = []
    began = stage.clock()
    probe(stage, jobs, lambda: seen.append((stage.gate.open(), list(jobs.shut)))).step()
    ((_, closing),) = jobs.told
    assert all(shown == (True, [True]) for shown in seen)
    assert jobs.shut == [True, False]
    assert closing.shut == began < (closing.quiet or 0) == pytest.approx(closing.opened - 1.0)


def test_a_guest_whose_iteration_does_not_end_in_time_voids_the_window() -> None:
    stage, jobs = Stage(), FakeJobs(Due(job="j", at=0.0, length_s=1.0, side_s=2.0, guest=True))
    jobs.looks = 10_000
    probe(stage, jobs, longest_s=10.0).step()
    ((_, closing),) = jobs.told
    assert closing.quiet is None and jobs.shut == [True, False]
    # A rank of several is never held back for longer.
    assert closing.opened - closing.shut <= 4.1
