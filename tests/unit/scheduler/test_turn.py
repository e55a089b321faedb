"""Schedulers of a machine load one after the other, and none waits for a process that is gone or stopped."""

import subprocess
import sys
import threading
from pathlib import Path

from scheduler.turn import LONGEST_S, take
from tests.support.eventually import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[3]


def second(folder: Path) -> threading.Thread:
    thread = threading.Thread(target=lambda: take(folder, PATIENCE * LONGEST_S).close(), daemon=True)
    thread.start()
    return thread


def test_a_turn_lasts_until_it_is_closed(tmp_path: Path) -> None:
    first = take(tmp_path / "home")
    waiting = second(tmp_path / "home")
    waiting.join(0.2)
    assert waiting.is_alive()
    first.close()
    waiting.join(PATIENCE * 10)
    assert not waiting.is_alive()


def test_a_turn_ends_with_its_process(tmp_path: Path) -> None:
    code = f"import sys; from scheduler.turn import take; turn = take(__import__('pathlib').Path({str(tmp_path)!r}));"
    command = [sys.executable, "-c", code + "print('mine', flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"mine\n"
        waiting = second(tmp_path)
        waiting.join(0.2)
        assert waiting.is_alive()
        process.kill()
        eventually(lambda: not waiting.is_alive(), what="the turn")


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    """A process that was stopped while it loads."""
    with take(tmp_path):
        take(tmp_path, longest_s=0.0).close()
