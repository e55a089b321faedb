"""How jobs are started, and found where they call themselves by other numbers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smore.messages.commands import AttachJob, ForgetJob, StartJob
from smore.testing import ManualClock
from tests.support.eventually import eventually
from tests.support.trainings import jobs
from worker import proc
from worker.activity import Activity
from worker.training.job import Job
from worker.training.record import Record
from worker.training.windows import Windows


def test_a_gpus_training_has_the_machines_cores_and_its_own_allocator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A core of a CPU partition has one thread and one arena; on a GPU the worker may keep to a core that is not
    training's.
    """
    started: list[tuple[set[int], dict[str, str]]] = []

    def popen(*_: object, env: dict[str, str], **__: object) -> Any:
        started.append((os.sched_getaffinity(0), env))
        raise OSError("enough")

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    # What the platform's own processes have.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    mine = os.sched_getaffinity(0)
    asked = {"MALLOC_ARENA_MAX": "16"}
    one, command = {min(mine)}, StartJob(version=1, id="j", project="p", name="n", argv=["zoo.train"], env={})
    try:
        os.sched_setaffinity(0, one)
        for name, cores, born_on, env in (
            ("gpu", (), sorted(mine), {}),
            ("cpu", sorted(one), (), asked),
            ("asked", (), (), asked),
        ):
            allowed = jobs(tmp_path / name, entrypoints=["zoo.train"], cores=cores, born_on=born_on)
            allowed.start(msgspec.structs.replace(command, env=env))
            eventually(lambda worker=allowed: worker.reports()[0].state == "ended", what="it could not be started")  # type: ignore[misc]
    finally:
        os.sched_setaffinity(0, mine)
    (on_gpu, gpu), (on_cpu, cpu), (_, chosen) = started
    assert (on_gpu, on_cpu) == (mine, one)
    assert not {"MALLOC_ARENA_MAX", "OMP_NUM_THREADS"} & gpu.keys()
    assert (cpu["MALLOC_ARENA_MAX"], cpu["OMP_NUM_THREADS"]) == ("1", "1")
    assert chosen["MALLOC_ARENA_MAX"] == "16"


def test_a_rank_is_forgotten_only_after_all_that_it_printed_was_sent(tmp_path: Path) -> None:
    sent: set[str] = set()
    worker = jobs(tmp_path, shipped=lambda key: key in sent)
    worker.start(StartJob(version=1, id="j", project="p", name="n", argv=["not.allowed"], env={}, attempt=1))
    assert [report.state for report in worker.reports()] == ["ended"]
    worker.forget(ForgetJob(version=1, id="j", attempt=1))
    worker.tick()
    assert len(worker.reports()) == 1, "its log is not sent"
    sent.add("j.1.0")
    worker.tick()
    assert worker.reports() == []


def test_only_functions_make_an_iteration_shared_and_nobody_knows_of_those_before_the_worker(tmp_path: Path) -> None:
    """A worker that has just started prepares a runner: the training is slower meanwhile, and not by a function."""
    clock = ManualClock(1000.0)
    activity = Activity(clock)

    class Steps:
        """Five iterations, their ends and durations."""

        count, length, steps = 5, 0, [(999.0, 1.0), (1001.0, 1.0), (1003.0, 1.5), (1005.0, 2.0), (1007.0, 1.0)]

        def read_new(self) -> list[tuple[float, float]]:
            new, self.steps = self.steps, []
            return new

    record = Record(id="j", project="p", name="n", argv=[], pid=0, start=0, boot="", token="", gpu="g")
    windows = Windows(seed="s", share=0.03, longest_s=10.0, since=1000.0)
    job = Job(record, Steps(), windows)  # type: ignore[arg-type]
    for at, function in ((1002.0, False), (1004.0, True)):
        clock.advance_to(at)
        with activity.working(function=function):
            clock.advance_to(at + 0.5)
    job.read_steps(1008.0, activity)
    report = job.report()
    assert (report.solo_count, report.solo_s) == (2, 1.0)
    assert (report.shared_count, report.shared_s) == (1, 2.0)
    assert activity.overlaps(1002.0, 1003.0), "no window is closed there either"


def _namespaces() -> bool:
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and not subprocess.run([unshare, "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode
    )


@pytest.mark.skipif(not _namespaces(), reason="no PID namespace may be made here")
def test_a_training_in_a_container_is_found_by_the_number_and_start_that_it_tells(tmp_path: Path) -> None:
    code = "import os; from worker import proc; print(own := os.getpid(), proc.start_time(own), flush=True); input()"
    argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    root = Path(__file__).resolve().parents[4]
    with subprocess.Popen(argv, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, start = map(int, process.stdout.readline().split())
        outer = list(proc.tree(process.pid))[-1]
        assert pid != outer
        watching = jobs(tmp_path, users=frozenset({os.geteuid()}))
        told: dict[str, Any] = {"project": "p", "name": "n", "pid": pid, "tracked": False}
        watching.attach(AttachJob(version=1, id="there", start=start, boot=proc.boot_id(), **told))
        watching.attach(AttachJob(version=1, id="another", start=start + 1, boot=proc.boot_id(), **told))
        watching.attach(AttachJob(version=1, id="elsewhere", start=start, boot="another machine's", **told))
        watching.tick()
        seen = {one.id: (one.pid, one.memory_mib) for one in watching.reports()}
        assert seen == {"there": (outer, 1.0), "another": (0, 0.0), "elsewhere": (0, 0.0)}
        assert outer in watching.ranks.pids()
        process.communicate("\n")
