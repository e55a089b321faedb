"""Runners on SCHED_IDLE and back."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.eventually import eventually
from worker.idle import end_idle, go_idle, may_return

#: A process of four threads.
THREADS = """
import os, threading, time
os.nice(5)
for _ in range(3):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def threads(pid: int) -> list[int]:
    return [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]


def policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(thread) for thread in threads(pid)}


def nices(pid: int) -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads(pid)}


def test_all_threads_go_and_come_back(process: "subprocess.Popen[bytes]") -> None:
    go_idle(process.pid)
    assert policies(process.pid) == {os.SCHED_IDLE}
    if not may_return():
        pytest.skip("without CAP_SYS_NICE there is no way back")
    end_idle(process.pid)
    assert policies(process.pid) == {os.SCHED_OTHER}
    assert nices(process.pid) == {5}


def test_all_threads_get_the_last_nice_value_where_it_is_forbidden(
    process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    go_idle(process.pid)
    assert policies(process.pid) == {os.SCHED_OTHER}
    assert nices(process.pid) == {19}


def test_a_process_that_was_killed_in_between_is_passed_over(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    eventually(lambda: not os.path.exists(f"/proc/{process.pid}"))
    end_idle(process.pid)
