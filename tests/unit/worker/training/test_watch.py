"""Which processes may be watched as a training: at real processes, as their commands and users tell them apart."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from worker import proc
from worker.training import watch

WAIT = "import sys; print(flush=True); sys.stdin.read()"
#: Has a child that waits like it.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])"
CORES = sorted(os.sched_getaffinity(0))


@contextmanager
def process(*words: str, program: str = WAIT, **options: object) -> Iterator[int]:
    """The number of a Python process that waits; ``words`` stand behind it in its command."""
    command = [sys.executable, "-c", program, *words]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        child.stdout.readline()
        yield child.pid
    finally:
        child.communicate()


def refusal(pid: int, *, users: frozenset[int] | None = None, cores: tuple[int, ...] = ()) -> str:
    return watch.refusal(pid, cores=cores, users=users, token="TEST_TOKEN")


def test_a_training_may_be_watched() -> None:
    with process(cwd="/") as pid:
        assert refusal(pid, users=frozenset({os.geteuid()}), cores=tuple(CORES)) == ""


@pytest.mark.parametrize(
    "words",
    [("-m", "worker.app"), ("-m", "worker.runner.zygote", "7"), ("-m", "api.app"), ("-m", "scheduler.worker", "learn")],
)
def test_the_platforms_processes_may_not_whoever_asks(words: tuple[str, ...]) -> None:
    with process(*words) as pid:
        assert "platform's own" in refusal(pid)
    # Nor may what they have started: a runner's command is its zygote's, what a function starts has another.
    with process(*words, program=PARENT) as pid:
        (child,) = [one for one in proc.tree(pid) if one != pid]
        assert "platform's own" in refusal(child)


def test_nor_may_a_supervisor_and_its_session() -> None:
    with process("/opt/smore/local/daemon.py", start_new_session=True) as pid:
        assert "platform's own" in refusal(pid)
    with process("/opt/smore/local/daemon.py", program=PARENT, start_new_session=True) as pid:
        (child,) = [one for one in proc.tree(pid) if one != pid]
        assert "platform's own" in refusal(child)


def test_nor_may_the_worker_what_started_it_and_the_first_process() -> None:
    assert "platform's own" in refusal(os.getpid())
    for pid in proc.ancestors(os.getpid()):
        assert refusal(pid)
    assert "container's own" in refusal(1)
    assert "container's own" in refusal(0)


def test_nor_may_a_thread_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with process() as pid:
        assert not proc.kernel_thread(pid)
        monkeypatch.setattr(proc, "kernel_thread", lambda _: True)
        assert "kernel" in refusal(pid)


def test_nor_may_a_job_of_the_platform() -> None:
    with process(env={**os.environ, "TEST_TOKEN": "x"}) as pid:
        assert "job already" in refusal(pid)


def test_of_whom() -> None:
    with process() as pid:
        assert proc.user(pid) == os.geteuid()
        assert "SMORE_WORKER__ATTACH_USERS" in refusal(pid, users=frozenset({os.geteuid() + 1}))
        assert refusal(pid, users=frozenset({os.geteuid()})) == ""
    own = {os.geteuid()} - {0}
    assert watch.users_of(()) == own, "root's processes are the machine's"
    assert watch.users_of(("root", "4711")) == own | {0, 4711}
    assert watch.users_of(("4711", "*")) is None
    with pytest.raises(ValueError, match="no user nobody-at-all"):
        watch.users_of(("nobody-at-all",))


def test_where() -> None:
    elsewhere = max(CORES) + 1
    with process() as pid:
        assert f"({elsewhere})" in refusal(pid, cores=(elsewhere,))
        assert refusal(pid, cores=(elsewhere, CORES[0])) == ""
