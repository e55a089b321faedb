"""Ranks of trainings: what each is given, what two of them on one machine share, and which attempts may live."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from smore.domain.job import JobRequest
from smore.messages.commands import ForgetJob, StartJob, StopJob
from smore.messages.reports import JobReport, Report
from smore.redis.rendezvous import Meeting, Rendezvous
from smore.tracking.ring import Tracker
from tests.support.eventually import eventually
from tests.support.trainings import jobs
from worker import proc
from worker.training import record as records
from worker.training import starting
from worker.training.fences import Fences
from worker.training.jobs import Jobs
from worker.training.record import Record, Records, to_start

#: A module of the standard library that runs until it is told to end.
ENTRY = "timeit"
ARGV = [ENTRY, "-n", "1", "-r", "1", "import time; time.sleep(600)"]
COMMAND = StartJob(1, "j", "p", "n", JobRequest(argv=ARGV), {}, attempt=1)


def command(*, asked: JobRequest = COMMAND.request, **changed: Any) -> StartJob:
    return msgspec.structs.replace(COMMAND, request=asked, **changed)


class Node:
    """A machine with two GPU workers of one home."""

    def __init__(self, home: Path, client: "redis.Redis") -> None:
        self.home, self.client = home, client
        self.workers: list[Jobs] = []

    def worker(self, gpu: str, **more: Any) -> Jobs:
        made = jobs(self.home, gpu=gpu, client=self.client, **{"entrypoints": (ENTRY,), **more})
        made.adopt()
        self.workers.append(made)
        return made


@pytest.fixture
def node(tmp_path: Path, redis_client: "redis.Redis") -> Iterator[Node]:
    made = Node(tmp_path, redis_client)
    yield made
    for worker in made.workers:
        for pid in worker.ranks.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def report_of(worker: Jobs, attempt: int = 1, rank: int = 0) -> JobReport:
    worker.watch.read_steps()
    worker.tick()
    return next(one for one in worker.reports() if (one.attempt, one.rank) == (attempt, rank))


def running(worker: Jobs, attempt: int = 1, rank: int = 0) -> JobReport:
    eventually(lambda: report_of(worker, attempt, rank).state == "running", what=f"rank {rank} of {attempt} runs")
    return report_of(worker, attempt, rank)


def over(worker: Jobs, attempt: int = 1, rank: int = 0) -> JobReport:
    eventually(lambda: report_of(worker, attempt, rank).state == "ended", what=f"rank {rank} of {attempt} is over")
    return report_of(worker, attempt, rank)


def environment_of(pid: int) -> dict[str, str]:
    """Of a rank; a process has its variables only once its program is loaded."""
    eventually(lambda: "RANK" in proc.environment_of(pid), what="the program of a rank")
    return dict(proc.environment_of(pid))


def test_two_ranks_of_one_home_share_nothing_and_find_each_other(node: Node) -> None:
    first, second = node.worker("g0"), node.worker("g1")
    asked = JobRequest(argv=ARGV, iterations=90)
    gang: dict[str, Any] = {"world": 2, "local_world": 2, "gpus": ["g0", "g1"], "asked": asked}
    second.start(command(rank=1, local_rank=1, **gang))
    assert report_of(second, rank=1).state == "starting", "it waits for rank 0, and nothing waits for it"
    first.start(command(rank=0, **gang))
    first.start(command(rank=0, **gang))
    one, other = running(first), running(second, rank=1)
    assert len(first.reports()) == 1, "the same command twice is one rank"
    environments = [environment_of(pid) for pid in (one.pid, other.pid)]
    assert [(env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) for env in environments] == [
        ("0", "0", "2", "2"),
        ("1", "1", "2", "2"),
    ]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"], env["SMORE_CHECKPOINT"]) for env in environments}) == 1
    assert environments[0]["MASTER_ADDR"] == "127.0.0.1", "all are on one machine"
    assert environments[0]["SMORE_ITERATIONS"] == "90" and environments[0]["SMORE_ATTEMPT"] == "1"
    # Each tells its own steps.
    for environment, steps in zip(environments, (1, 3), strict=True):
        tracker = Tracker(environment["SMORE_TRACK"], length=90)
        for _ in range(steps):
            tracker.step()
        tracker.close()
    counted = [(report_of(first).iterations, report_of(first).length)]
    counted.append((report_of(second, rank=1).iterations, report_of(second, rank=1).length))
    assert counted == [(1, 90), (3, 90)]
    # Workers that start again adopt their own.
    again = [node.worker("g0"), node.worker("g1")]
    assert [running(again[0]).pid, running(again[1], rank=1).pid] == [one.pid, other.pid]
    again[0].stop(StopJob(1, "j", 1))
    again[1].stop(StopJob(1, "j", 1))
    # What they did stays told, with another start of their worker between, until it is recorded.
    assert (over(again[0]).iterations, over(again[1], rank=1).iterations) == (1, 3)
    (node.home / "run" / "jobs" / "j.1.1.track").unlink()
    last = node.worker("g1")
    assert (over(last, rank=1).iterations, over(last, rank=1).exit_code) == (3, -signal.SIGTERM)
    last.forget(ForgetJob(1, "j", 1))
    assert last.reports() == [] and not list((node.home / "run" / "jobs").glob("j.1.1.*"))
    last.start(command(rank=1, local_rank=1, **gang))
    assert last.reports() == [], "its end is recorded: it does not start again"


def test_a_gang_over_several_nodes_meets_where_rank_0_is_reached(node: Node) -> None:
    first = node.worker("g0")
    first.start(command(world=2, gpus=["g0", "elsewhere"]))
    assert environment_of(running(first).pid)["MASTER_ADDR"] == "10.0.0.7"
    meeting = Rendezvous(node.client, "smore:").find("j", 1)
    assert meeting is not None and meeting.address == "10.0.0.7"
    assert Rendezvous(node.client, "smore:").open("j", 1, Meeting("a", 1)) == meeting, "the first word holds"


def test_local_rank_is_the_number_of_the_device(node: Node) -> None:
    device: dict[str, Any] = {
        **dict.fromkeys(("at", "memory_total_mib", "memory_used_mib", "utilisation", "function_utilisation"), 0.0),
        **dict.fromkeys(("boot", "kind", "device", "sharing_mode", "utilisation_counter"), ""),
        "slots": 1,
        "running": 0,
    }
    near = [Report(gpu=gpu, node="here", visible=f"GPU-{gpu}", **device) for gpu in ("g0", "g1")]
    worker = node.worker("g1", reports=[*near, Report(gpu="g2", node="there", visible="GPU-g2", **device)])
    worker.start(command(world=3, rank=0, local_rank=0, local_world=2, gpus=["g1", "g2", "g0"]))
    assert environment_of(running(worker).pid)["CUDA_VISIBLE_DEVICES"] == "GPU-g1,GPU-g0"


def test_an_older_attempt_ends_and_never_starts_again(node: Node) -> None:
    worker = node.worker("g0")
    worker.start(command())
    old = running(worker)
    worker.start(command(attempt=2))
    assert over(worker).exit_code == -signal.SIGKILL and proc.start_time(old.pid) is None
    running(worker, attempt=2)
    worker.start(command(attempt=1, rank=1))
    assert {one.attempt for one in worker.reports() if one.state != "ended"} == {2}
    # Told that an attempt is over before it was heard of: what comes later, or was read together with that, is past.
    worker.fence(StopJob(1, "k", 3))
    worker.start(command(id="k", attempt=3))
    assert not [one for one in worker.reports() if one.id == "k"]
    worker.start(command(id="k", attempt=4))
    assert [one.attempt for one in worker.reports() if one.id == "k"] == [4]
    worker.stop(StopJob(1, "k", 3))
    assert [one.state for one in worker.reports() if one.id == "k"] != ["ended"], "an older end is not its own"
    # A worker that was away finds both attempts alive.
    stale = Records(node.home / "run" / "jobs")
    aside = to_start(command(attempt=1, rank=7), "g0")
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={records.TOKEN: aside.token},
        start_new_session=True,
    ) as process:
        aside.begin(process.pid, 0)
        eventually(aside.alive, what="the program of the older attempt")
        stale.write(aside)
        node.worker("g0")
        assert process.wait() == -signal.SIGKILL


def test_grace_is_the_time_between_the_two_signals(node: Node) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    worker = node.worker("g0")
    worker.start(command(asked=JobRequest(argv=[ENTRY, "-n", "1", "-r", "1", deaf])))
    running(worker)
    log = node.home / "logs" / "job-j.1.0.log"
    eventually(lambda: "deaf" in log.read_text(), what="it hears no SIGTERM")
    worker.stop(StopJob(1, "j", 1, grace_s=600.0))
    assert report_of(worker).state == "running"
    worker.stop(StopJob(1, "j", 1, grace_s=0.2))
    assert over(worker).exit_code == -signal.SIGKILL


def test_a_start_that_was_cut_short_is_taken_up(node: Node) -> None:
    """A worker that was killed before the process, or after it and before its number was written down."""
    kept = Records(node.home / "run" / "jobs")
    never, unnoted = to_start(command(), "g0"), to_start(command(id="k"), "g0")
    kept.write(never)
    kept.write(unnoted)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={records.TOKEN: unnoted.token},
        start_new_session=True,
    ) as process:
        worker = node.worker("g0")
        (found,) = worker.reports()
        assert (found.id, found.pid, found.state) == ("k", process.pid, "running")
        worker.start(command())
        running(worker)
        process.communicate(b"\n")


def test_secrets_are_given_by_the_worker_and_may_undo_nothing(node: Node) -> None:
    worker = node.worker("g0", secrets={"token": "s3cret"})
    worker.start(
        command(env={"PLAIN": "1"}, asked=JobRequest(argv=ARGV, secrets={"HF_TOKEN": "token", "SMORE_TRACK": "token"}))
    )
    given = environment_of(running(worker).pid)
    assert (given["PLAIN"], given["HF_TOKEN"]) == ("1", "s3cret") and given["SMORE_TRACK"].endswith("j.1.0.track")
    written = (node.home / "run" / "jobs" / "j.1.0.json").read_text()
    assert "s3cret" not in written and "PLAIN" not in written
    worker.start(command(id="k", asked=JobRequest(argv=ARGV, secrets={"A": "missing"})))
    eventually(lambda: len(worker.reports()) == 2 and worker.reports()[1].state == "ended", what="it is refused")
    assert (worker.reports()[1].exit_code, worker.reports()[1].reason) == (
        126,
        "it could not be started: There is no secret missing.",
    )


def test_an_operators_command_is_any_program_in_its_folder(node: Node, tmp_path: Path) -> None:
    worker, folder = node.worker("g0"), tmp_path / "own"
    folder.mkdir()
    program = ["sh", "-c", "pwd; echo $PYTHONPATH; exec sleep 600"]
    worker.start(command(asked=JobRequest(argv=program)))
    assert "not an entry point" in over(worker).reason, "a project's may not"
    own = JobRequest(argv=program, trusted=True, cwd=str(folder))
    worker.start(command(id="k", asked=own, env={"PYTHONPATH": "/theirs"}))
    worker.start(command(id="l", asked=JobRequest(argv=["no-such-program"], trusted=True)))
    worker.start(command(id="m", asked=JobRequest(argv=ARGV, cwd=str(folder))))
    log = node.home / "logs" / "job-k.1.0.log"
    eventually(lambda: log.exists() and len(log.read_text().splitlines()) == 2, what="it has begun")
    where, path = log.read_text().splitlines()
    assert where == str(folder) and path.startswith("/theirs:")

    def states() -> dict[str, str]:
        return {one.id: one.state for one in worker.reports() if one.id != "j"}

    eventually(lambda: states() == {"k": "running", "l": "ended", "m": "running"}, what="all have begun, or not")
    reasons = {one.id: (one.reason, one.pid) for one in worker.reports()}
    assert reasons["l"][0] == "it could not be started: there is no program no-such-program"
    assert os.readlink(f"/proc/{reasons['m'][1]}/cwd") != str(folder), "modules come from where it begins"


def test_a_rank_whose_others_never_come_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "PATIENCE_S", 0.1)
    worker = node.worker("g1")
    worker.start(command(rank=1, world=2))
    assert "rank 0 has not begun on its worker" in over(worker, rank=1).reason
    worker.start(command(id="k", rank=1, world=2))
    worker.stop(StopJob(1, "k"))
    assert [one.state for one in worker.reports() if one.id == "k"] == ["ended"], "stopped while it waits"


def test_each_attempt_has_a_folder_of_checkpoints_that_begins_with_the_last(node: Node) -> None:
    worker = node.worker("g0")
    worker.start(command())
    folder = Path(environment_of(running(worker).pid)["SMORE_CHECKPOINT"])
    assert folder.stat().st_mode & 0o077 == 0 and list(folder.iterdir()) == []
    for name in ("checkpoint-8.pt", "checkpoint-10.pt", "checkpoint-12.pt.tmp", "other-99"):
        (folder / name).write_text(name)
    eventually(lambda: report_of(worker).checkpoint_iterations == 10, what="it is seen")
    # Attempt 2 never began anywhere; 3 goes on from what 1 left.
    worker.start(command(attempt=3, seed_attempt=2))
    later = Path(environment_of(running(worker, attempt=3).pid)["SMORE_CHECKPOINT"])
    assert later != folder and [path.name for path in later.iterdir()] == ["checkpoint-10.pt"]
    assert report_of(worker, attempt=3).checkpoint_iterations == 10
    (folder / "checkpoint-20.pt").write_text("of an attempt that is past")
    assert [path.name for path in later.iterdir()] == ["checkpoint-10.pt"]


def test_a_rank_0_whose_port_was_taken_meanwhile_ends_with_an_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = node.worker("g0")
    listens = 'import os, socket; socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))'
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(starting, "_free_port", lambda: taken.getsockname()[1])
        gang = {"world": 2, "local_world": 2, "gpus": ["g0", "g1"]}
        worker.start(command(asked=JobRequest(argv=[ENTRY, "-n", "1", "-r", "1", listens]), **gang))
        assert over(worker).exit_code == 1


def test_a_fence_of_attempt_0_is_put_by_its_recorded_end_alone() -> None:
    fences = Fences()
    fences.put("j", 0)
    assert not fences.stands("j", 0)
    fences.put("j", 0, recorded=True)
    assert fences.stands("j", 0) and not fences.stands("j", 1)


def test_a_record_from_before_ranks_is_read(tmp_path: Path) -> None:
    kept = Records(tmp_path)
    old = b'{"id":"j","project":"p","name":"n","argv":[],"pid":1,"start":2,"boot":"b","token":"t","gpu":"g","state":"running"}'
    (tmp_path / "j.json").write_bytes(old)
    (read,) = kept.all("g")
    assert isinstance(read, Record) and (read.key, read.attempt, read.rank, read.world) == ("j", 0, 0, 1)
