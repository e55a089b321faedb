"""A training under its shim: how it ends is written down, and a signal to the shim reaches it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from worker import proc
from worker.training import shim
from worker.training.record import exit_status

Start = Callable[[str], tuple["subprocess.Popen[bytes]", int]]


@pytest.fixture
def status(tmp_path: Path) -> Path:
    return tmp_path / "status"


@pytest.fixture
def start(status: Path) -> Iterator[Start]:
    """Start a Python program: its shim and its process number."""
    left: list[tuple[subprocess.Popen[bytes], int]] = []

    def started(program: str) -> tuple["subprocess.Popen[bytes]", int]:
        reader, writer = os.pipe()
        words = [sys.executable, "-I", "-S", shim.__file__, str(status), str(writer), sys.executable, "-c", program]
        process = subprocess.Popen(words, pass_fds=[writer], start_new_session=True)
        os.close(writer)
        with open(reader, "rb") as file:
            left.append((process, int(file.read())))
        return left[-1]

    yield started
    for process, pid in left:
        if proc.session(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 11)", -11),
    ],
)
def test_the_end_is_written_down(start: Start, status: Path, program: str, code: int) -> None:
    process, _ = start(program)
    assert process.wait(30) == 0
    assert exit_status(status) == code


def test_it_has_a_session_of_its_own_and_hears_what_the_shim_is_told(start: Start, status: Path) -> None:
    process, pid = start("import time; time.sleep(600)")
    assert exit_status(status) is None, "it has not ended"
    assert proc.session(pid) == pid != proc.session(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert exit_status(status) == -15


def test_without_its_shim_it_goes_on(start: Start, status: Path) -> None:
    process, pid = start("import time; time.sleep(600)")
    began = proc.start_time(pid)
    process.kill()
    process.wait()
    assert proc.start_time(pid) == began
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: proc.start_time(pid) != began, what="it has ended")
    assert exit_status(status) is None, "nobody saw how"


def test_what_is_no_record_tells_nothing(tmp_path: Path) -> None:
    assert exit_status(tmp_path / "none") is None
    for text in ("", "runs", "exit", "exit x", f"exit {2**63}"):
        (tmp_path / "odd").write_text(text)
        assert exit_status(tmp_path / "odd") is None
    os.mkfifo(tmp_path / "pipe")
    assert exit_status(tmp_path / "pipe") is None, "nobody writes into it, and nobody waits"
