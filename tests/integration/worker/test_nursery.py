"""The process that zygotes are forked from: what its end means, and who waits for it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import nursery
from tests.support.eventually import eventually
from tests.support.nursery import zygote
from worker import proc
from worker.runner.runner_handle import NoRunner
from worker.runner.zygote_handle import Zygote

START = """
import sys
from pathlib import Path
from tests.support.nursery import start
start(Path(sys.argv[1])).wait()
"""
ASK_AND_LEAVE = """
import sys
from pathlib import Path
from tests.support.nursery import zygote
zygote(Path(sys.argv[1]))._ask()
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(nursery.ROOT)}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Zygote]:
    made = zygote(tmp_path)
    yield made
    made.close()


def test_zygotes_outlive_their_nursery_and_its_successor_gives_the_next(one: Zygote, tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", START, tmp_path / "nursery.sock"], env=ENVIRONMENT, cwd=nursery.ROOT
    )
    try:
        # Asked for while torch is imported, or before there is a socket.
        runner = one.fork()
        pid = one.pid
        assert pid is not None
        its_nursery = proc.ancestors(pid)[0]
        assert os.getsid(pid) == pid == os.getsid(runner.pid)
        assert "SMORE" not in str(proc.environment_of(pid)), "what the nursery was started with, every runner can read"
    finally:
        first.kill()
        first.wait()
    eventually(lambda: proc.start_time(its_nursery) is None, what="it ends with who started it, and was killed")
    assert not one.fork().ended.is_set() and not runner.ended.is_set() and one.pid == pid
    os.kill(pid, signal.SIGKILL)
    assert runner.ended.wait(20), "its runners go with it"
    eventually(lambda: one.pid is None, what="there is none")
    second = nursery.start(tmp_path / "nursery.sock")
    try:
        runner = one.fork()
        assert one.pid not in (None, pid)
        one.close()
        assert runner.ended.is_set() and not (tmp_path / "one.json").exists() and not (tmp_path / "one").exists()
        with pytest.raises(NoRunner):
            one.fork()
    finally:
        second.kill()
        second.wait()


def test_a_runner_is_had_from_the_next_zygote_where_the_first_has_just_died(one: Zygote, tmp_path: Path) -> None:
    process = nursery.start(tmp_path / "nursery.sock")
    try:
        one.fork()
        pid = one.pid
        assert pid is not None
        # It cannot answer, and that it is dead is not known yet.
        os.kill(pid, signal.SIGSTOP)
        killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
        killer.start()
        assert not one.fork().ended.is_set() and one.pid != pid
    finally:
        process.kill()
        process.wait()


def test_a_worker_that_ended_while_it_waited_gets_none(one: Zygote, tmp_path: Path) -> None:
    """Its successor may have one by then, with the same scratch folder."""
    process = nursery.start(tmp_path / "nursery.sock")
    try:
        one.fork()
        kept = tmp_path / "one" / "of a runner"
        kept.touch()
        os.kill(process.pid, signal.SIGSTOP)
        subprocess.run([sys.executable, "-c", ASK_AND_LEAVE, tmp_path], env=ENVIRONMENT, cwd=nursery.ROOT, check=True)
        os.kill(process.pid, signal.SIGCONT)
        other = zygote(tmp_path, "other")
        other.fork()
        # Connections are taken in the order in which they were made.
        theirs = {one.pid, other.pid}
        eventually(
            lambda: {child.pid for child in psutil.Process(process.pid).children()} == theirs, what="it has left"
        )
        assert kept.exists()
        other.close()
    finally:
        process.kill()
        process.wait()
