"""How jobs are started, and found where they call themselves by other numbers."""

import os
import shutil
import subprocess
import sys
import time
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from smore.domain.job import JobRequest
from smore.domain.windows import Windows
from smore.messages.commands import AttachJob, ForgetJob, StartJob
from smore.messages.reports import decode_report, encode_report
from smore.testing import ManualClock
from tests.support.eventually import eventually
from tests.support.fake_platform import report as a_report
from tests.support.trainings import jobs
from worker import proc
from worker.activity import Activity
from worker.training.job import STEPS_PER_S, Rank
from worker.training.record import Record, Records


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
    one, command = (
        {min(mine)},
        StartJob(version=1, id="j", project="p", name="n", request=JobRequest(argv=["zoo.train"]), env={}),
    )
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
    worker.start(
        StartJob(version=1, id="j", project="p", name="n", request=JobRequest(argv=["not.allowed"]), env={}, attempt=1)
    )
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

        def read_new(self, most: int) -> list[tuple[float, float]]:
            new, self.steps = self.steps, []
            return new

    record = Record(id="j", project="p", name="n", argv=[], pid=0, start=0, boot="", token="", gpu="g")
    windows = Windows(seed="s", share=0.03, longest_s=10.0, since=1000.0)
    job = Rank(record, Steps(), windows)  # type: ignore[arg-type]
    for at, function in ((1002.0, False), (1004.0, True)):
        clock.advance_to(at)
        with activity.working(function=function):
            clock.advance_to(at + 0.5)
    job.take(job.fetch(), 1008.0, activity)
    report = job.report()
    assert (report.solo_count, report.solo_s) == (2, 1.0)
    assert (report.shared_count, report.shared_s) == (1, 2.0)
    assert activity.overlaps(1002.0, 1003.0), "no window is closed there either"


class Ring:
    """A reader of as many steps as are asked for, by a training that makes more; or of these."""

    count = length = 0

    def __init__(self, steps: list[tuple[float, float]] | None = None) -> None:
        self.steps = steps

    def look(self) -> None:
        pass

    def read_new(self, most: int) -> list[tuple[float, float]]:
        return [(time.time(), 1e-6)] * most if self.steps is None else self.steps


def running(steps: list[tuple[float, float]] | None = None, **of: Any) -> Rank:
    told: dict[str, Any] = {"id": "j", "argv": [], "pid": os.getpid(), "start": 0, "boot": "", "token": "", "gpu": "g"}
    windows = Windows(seed="s", share=0.03, longest_s=10.0, since=0.0)
    return Rank(Record(project="p", name="n", **{**told, **of}), Ring(steps), windows)  # type: ignore[arg-type]


def test_what_is_no_iteration_counts_for_nothing() -> None:
    now = time.time()
    honest = (now, 0.1)
    forged = [
        (inf, 0.1),
        (inf, inf),
        (nan, 0.1),
        (now, nan),
        (now, inf),
        (now, -inf),
        (now, -1.0),
        (now, 1e308),
        (now + 60, 0.1),
    ]
    job = running([*forged, honest])
    job.take(job.fetch(), now, Activity())
    report = decode_report(encode_report(structs.replace(a_report(), jobs=[job.report()])))
    assert (report.jobs[0].solo_count, report.jobs[0].solo_s) == (0, 0.0), "it began before this worker"
    job.take(job.fetch(), now, Activity(ManualClock(now - 10)))
    report = decode_report(encode_report(structs.replace(a_report(), jobs=[job.report()])))
    assert (report.jobs[0].solo_count, report.jobs[0].recent_n) == (1, 1)
    assert (report.jobs[0].solo_s, report.jobs[0].recent_s) == pytest.approx((0.1, 0.1))


def test_a_flood_of_steps_is_taken_by_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1000.0)
    monkeypatch.setattr(time, "monotonic", clock)
    job = running()
    job.allowed_at = clock()
    first = len(job.fetch())
    clock.advance_to(1001.0)
    assert len(job.fetch()) == STEPS_PER_S
    clock.advance_to(1001.25)
    assert len(job.fetch()) == STEPS_PER_S // 4
    assert STEPS_PER_S <= first <= 10 * STEPS_PER_S


class Broken(Ring):
    """A reader of what nobody has thought of."""

    def look(self) -> None:
        raise ValueError("no reader expects that")

    def read_new(self, most: int) -> list[tuple[float, float]]:
        raise ValueError("no reader expects that")


def test_one_job_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    worker = jobs(tmp_path)
    stranger, honest = running(id="evil"), running([(time.time(), 0.0)], id="j")
    stranger.reader = Broken()  # type: ignore[assignment]
    worker.ranks.add(stranger)
    worker.ranks.add(honest)
    worker.watch.read_steps()
    worker.tick()
    assert {report.id: report.state for report in worker.reports()} == {"evil": "running", "j": "ended"}


def test_a_record_with_numbers_that_no_counter_holds_is_mended(tmp_path: Path) -> None:
    records = Records(tmp_path)
    record = running().record
    records.write(record)
    path = tmp_path / "j.json"
    for number in (2**64 - 6, -6):
        path.write_bytes(path.read_bytes().replace(b'"iterations":0', b'"iterations":%d' % number))
        [read] = records.all("g")
        assert 0 <= read.iterations <= 2**53
        path.write_bytes(path.read_bytes().replace(b'"iterations":%d' % number, b'"iterations":0'))
    os.mkfifo(tmp_path / "pipe.json")
    assert [read.id for read in records.all("g")] == ["j"]


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
