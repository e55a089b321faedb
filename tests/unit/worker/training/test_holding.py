"""Whom the worker holds back, how much, and by what; the process that stops a training whose loop does not look."""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smore.domain.job import JobRequest
from smore.domain.loss import ClosedWindow, Sample
from smore.domain.windows import Closing, Probing, Windows
from smore.messages.commands import StartJob
from smore.tracking.hold import HoldFile
from tests.support.eventually import eventually
from worker import proc
from worker.training import pauser
from worker.training.governor import FRACTIONS, Governor
from worker.training.holding import Holding, Pace, wake
from worker.training.job import Rank
from worker.training.record import Records, to_start


def sample(mean: float, n: int = 50) -> Sample:
    return Sample(mean=mean, sd=0.02 * mean, n=n)


CLOSED = sample(0.1)
PROBING = Probing(seed="s", share=0.03, longest_s=10.0)


def windows(loss: float, *, since: float = 100.0, count: int = 3, scatter: float = 0.01) -> list[ClosedWindow]:
    """Of a host that loses so much, by turns a little less and a little more."""
    return [
        ClosedWindow(
            start=since + 10 * number,
            end=since + 10 * number + 1,
            before_s=0.1 * (1 + loss + scatter * (-1) ** number),
            before_n=7,
            closed_s=0.1,
            closed_n=7,
            closed_sd=0.002,
            after_s=0.1 * (1 + loss + scatter * (-1) ** number),
            after_n=7,
        )
        for number in range(count)
    ]


def test_a_guest_goes_down_to_what_its_host_allows_and_comes_back_when_the_host_would_bear_it() -> None:
    governor = Governor()
    # 38 % at full time: 20 % are allowed, so half of the time.
    assert governor.judge(130.0, 0.2, windows(0.38), None, None)
    assert governor.fraction == 0.5
    # Windows of the time before say nothing of now.
    assert not governor.judge(131.0, 0.2, windows(0.38), None, None)
    # In proportion: 19 % at half of the time would be 28 % at three quarters.
    assert not governor.judge(170.0, 0.2, windows(0.19, since=140.0), None, None)
    assert governor.judge(171.0, 0.2, windows(0.1, since=140.0), None, None)
    assert governor.fraction == 0.75


def test_what_is_not_proven_changes_nothing() -> None:
    governor = Governor()
    assert not governor.judge(130.0, 0.2, windows(0.38, count=2), None, None)
    # Windows that are too different to say that it is more than 20 %.
    assert not governor.judge(130.0, 0.2, windows(0.25, scatter=0.2), None, None)
    # The fast test alone, once: a machine that was slow for a while.
    assert not governor.judge(130.0, 0.2, [], sample(0.16), CLOSED)
    assert not governor.judge(134.0, 0.2, [], sample(0.12), CLOSED)
    assert not governor.judge(136.0, 0.2, [], sample(0.16), CLOSED)
    assert governor.fraction == 1.0


def test_a_host_that_is_slowed_much_is_helped_before_there_are_enough_windows() -> None:
    governor = Governor()
    assert not governor.judge(105.0, 0.2, [], sample(0.16), CLOSED)
    assert governor.judge(110.0, 0.2, [], sample(0.16), CLOSED)
    assert governor.fraction == 0.25
    # The iterations that are compared must be younger than the step.
    assert not any(governor.judge(now, 0.2, [], sample(0.16), CLOSED) for now in (111.0, 114.0, 115.5, 119.0))


def test_whoever_costs_too_much_at_any_time_keeps_the_least() -> None:
    governor = Governor()
    assert governor.judge(130.0, 0.1, windows(50.0), None, None)
    assert governor.fraction == FRACTIONS[-1] == 0.05
    assert not governor.judge(200.0, 0.1, windows(50.0, since=140.0), None, None)


class Steps:
    """A reader of steps without any."""

    count = length = 0
    ended = silent = False

    def look(self) -> None:
        pass

    def read_new(self, most: int) -> list[tuple[float, float]]:
        return []


def job(
    records: Records, name: str, began: float, *, hosts: tuple[str, ...] = (), share: float = 0.2, pid: int = 0
) -> Rank:
    request = JobRequest(share=share)
    command = StartJob(version=1, id=name, project="p", name=name, request=request, env={}, attempt=1, hosts=hosts)
    record = to_start(command, "gpu0")
    record.begin(pid, 0)
    record.started_at = began
    HoldFile(records.hold(record.key)).make()
    windows = Windows(seed=name, share=0.03, longest_s=10.0, since=0.0)
    return Rank(record, Steps(), windows)  # type: ignore[arg-type]


def looks(records: Records, of: Rank) -> None:
    """The loop of the training looks at its file."""
    path = records.hold(of.record.key)
    path.write_bytes(path.read_bytes()[:40] + struct.pack("<Q", 7) + bytes(16))


def fraction(records: Records, of: Rank) -> float:
    said: float = struct.unpack_from("<d", records.hold(of.record.key).read_bytes(), 8)[0]
    return said


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    records = Records(tmp_path)
    host, guest = job(records, "host", 10.0), job(records, "guest", 20.0, hosts=("host",))
    looks(records, guest)
    return SimpleNamespace(records=records, host=host, guest=guest, holding=Holding(records, PROBING))


def slow(host: Rank, now: float, *, closed_s: float = 0.1, open_s: float = 0.138) -> float:
    """Windows in which the host is seen to be slower beside its guest; the time after them."""
    windows = host.guest_windows
    assert windows is not None

    def train(until: float, seconds: float) -> None:
        nonlocal now
        while now < until:
            now += seconds
            windows.add(now, seconds, False)

    for _ in range(3):
        train(now + 4.0, open_s)
        shut = now
        train(now + 1.0, closed_s)
        windows.closed(Closing(shut=shut, quiet=shut, opened=now))
        train(now + 6.0, open_s)
        windows.settle(now)
    return now


def test_the_one_that_came_later_is_the_guest(stage: Any) -> None:
    stage.holding.look(100.0, [stage.guest, stage.host])
    assert (stage.holding.host, stage.holding.guest) == (stage.host, stage.guest)
    assert stage.holding.reported(stage.guest) == (1.0, 0.0)
    assert stage.holding.reported(stage.host) == (None, 0.0)
    # The host started again beside its former guest: that one was first.
    again = job(stage.records, "host", 30.0, hosts=("guest",))
    looks(stage.records, again)
    stage.holding.look(101.0, [stage.guest, again])
    assert (stage.holding.host, stage.holding.guest) == (stage.guest, again)


def test_a_guest_whose_process_began_before_that_of_its_host_is_the_guest(stage: Any) -> None:
    late = job(stage.records, "late", 30.0)
    early = job(stage.records, "early", 20.0, hosts=("late",))
    stage.holding.look(100.0, [early, late])
    assert (stage.holding.host, stage.holding.guest) == (late, early)


def test_two_that_know_nothing_of_each_other_are_no_pair(stage: Any) -> None:
    stage.holding.look(100.0, [stage.host, job(stage.records, "other", 30.0, hosts=("gone",))])
    assert stage.holding.guest is None and stage.host.guest_windows is None


def test_a_host_that_loses_too_much_has_its_guest_held_back_until_it_is_alone(stage: Any) -> None:
    both = [stage.host, stage.guest]
    stage.holding.look(100.0, both)
    now = slow(stage.host, 100.0)
    stage.holding.look(now, both)
    assert stage.holding.fraction == 0.5 == fraction(stage.records, stage.guest)
    assert stage.holding.reported(stage.guest)[0] == 0.5
    stage.host.kill_at = 1.0
    stage.holding.look(now + 1, both)
    assert fraction(stage.records, stage.guest) == 1.0
    assert (stage.holding.guest, stage.host.guest_windows) == (None, None)


def test_what_costs_little_is_left_alone(stage: Any) -> None:
    both = [stage.host, stage.guest]
    stage.holding.look(100.0, both)
    stage.holding.look(slow(stage.host, 100.0, open_s=0.11), both)
    assert stage.holding.fraction == 1.0


def test_in_a_window_the_guest_does_not_run_at_all(stage: Any) -> None:
    stage.holding.look(100.0, [stage.host, stage.guest])
    stage.holding.shut(True)
    assert fraction(stage.records, stage.guest) == 0.0
    assert not stage.holding.waits(), "it has not come to the end of its iteration"
    stage.holding.shut(False)
    assert fraction(stage.records, stage.guest) == 1.0


@pytest.mark.parametrize("computes", [True, False])
def test_a_guest_that_computes_while_it_says_that_it_waits_is_stopped(
    stage: Any, monkeypatch: pytest.MonkeyPatch, computes: bool
) -> None:
    clock, used, paused = 100.0, 0.0, []
    monkeypatch.setattr("worker.training.holding.time.monotonic", lambda: clock)
    monkeypatch.setattr(Holding, "_pause", lambda _, fraction: paused.append(fraction))
    holding = Holding(stage.records, PROBING, cpu_s=lambda _: used)
    path = stage.records.hold(stage.guest.record.key)

    def since(at: float) -> None:
        path.write_bytes(path.read_bytes()[:32] + struct.pack("<d", at) + path.read_bytes()[40:])

    holding.look(100.0, [stage.guest, stage.host])
    for _ in range(3):
        # It runs freely for 4 s, on two cores, then there is a window of 2 s.
        clock, used = clock + 4.0, used + 8.0
        holding.shut(True)
        # The iteration that had begun ends.
        clock, used = clock + 1.0, used + 2.0
        since(clock)
        assert holding.waits()
        clock, used = clock + 2.0, used + (4.0 if computes else 0.2)
        holding.shut(False)
        since(0.0)
    assert set(paused) == {1.0}
    holding.shut(True)
    since(clock)
    assert paused[-1] == (0.0 if computes else 1.0)
    assert holding.waits()


@pytest.mark.parametrize("part", [0.25, 1.0])
def test_a_guest_that_does_not_heed_its_part_of_the_time_is_not_believed(part: float) -> None:
    pace = Pace()
    pace.add(10.0, 1.0, 10.0)
    pace.add(4.0, 0.25, 4.0)
    assert pace.believed(), "too short to say"
    pace = Pace()
    pace.add(10.0, 1.0, 10.0)
    pace.add(10.0, 0.25, 10.0 * part)
    assert pace.believed() is (part < 1.0)


def test_a_guest_that_is_being_ended_runs(stage: Any) -> None:
    stage.holding.look(100.0, [stage.host, stage.guest])
    stage.holding.shut(True)
    stage.holding.release()
    assert fraction(stage.records, stage.guest) == 1.0


@contextmanager
def asleep() -> Iterator[int]:
    """A process in a session of its own, as a training is."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_loop_that_does_not_look_is_stopped_and_goes_on_when_its_worker_dies(tmp_path: Path) -> None:
    records = Records(tmp_path)
    with asleep() as pid:
        host, guest = job(records, "host", 10.0), job(records, "guest", 20.0, hosts=("host",), pid=pid)
        holding = Holding(records, PROBING)
        holding.look(100.0, [host, guest])
        assert holding._pauser is None, "there is nothing to stop yet"
        holding.shut(True)
        eventually(lambda: proc.suspended(pid), what="it is stopped")
        assert holding.waits()
        holding.shut(False)
        eventually(lambda: not proc.suspended(pid), what="it goes on")
        assert holding.reported(guest)[1] > 0
        holding.shut(True)
        eventually(lambda: proc.suspended(pid), what="it is stopped again")
        # A worker that dies says nothing any more; its end of the pipe is closed by the kernel.
        assert holding._pauser is not None and holding._pauser.stdin is not None
        holding._pauser.stdin.close()
        eventually(lambda: not proc.suspended(pid), what="it goes on without its worker")
        holding._pauser.wait()


@pytest.mark.parametrize(
    ("now", "fraction", "stopped", "left_s"),
    [(1000.2, 0.5, False, 0.3), (1000.7, 0.5, True, 0.3), (1000.7, 0.75, False, 0.05), (1000.7, 0.0, True, 0.3)],
)
def test_all_ranks_of_a_training_are_stopped_in_the_same_part_of_a_second(
    now: float, fraction: float, stopped: bool, left_s: float
) -> None:
    assert pauser.phase(now, fraction) == (stopped, pytest.approx(left_s))
    assert pauser.phase(now, 1.0)[0] is False


def test_a_worker_that_hangs_leaves_nobody_stopped() -> None:
    """Its end of the pipe stays open, and nothing is written any more."""
    hurried = "import pauser; pauser.PERIOD_S = pauser.SILENT_S = 0.2; pauser.main()"
    command = [sys.executable, "-c", hurried]
    with (
        asleep() as pid,
        subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(pauser.__file__).parent) as helper,
    ):
        assert helper.stdin is not None

        def stopped() -> bool:
            assert helper.stdin is not None
            helper.stdin.write(b"0.0 %d %d\n" % (pid, proc.start_time(pid) or 0))
            helper.stdin.flush()
            return proc.suspended(pid)

        eventually(stopped, what="it is stopped")
        eventually(lambda: not proc.suspended(pid), what="it goes on")
        assert helper.poll() is None


def test_a_process_that_has_the_number_of_a_training_that_ended_is_not_stopped() -> None:
    with asleep() as pid:
        target = pauser.Target()
        target.take(0.0, pid, (proc.start_time(pid) or 0) + 1)
        target.turn(True)
        assert not target.stopped and not proc.suspended(pid)


def test_what_a_former_worker_left_stopped_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with asleep() as pid:
        guest = job(Records(tmp_path), "guest", time.time(), pid=pid)
        monkeypatch.setattr(type(guest.record), "alive", lambda _: True)
        eventually(lambda: proc.session(pid) == pid, what="it has its session")
        os.killpg(pid, signal.SIGSTOP)
        eventually(lambda: proc.suspended(pid), what="it is stopped")
        wake(guest)
        eventually(lambda: not proc.suspended(pid), what="it goes on")
