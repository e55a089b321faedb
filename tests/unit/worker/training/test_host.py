"""
Trainings that a service of their own starts: they outlive the worker that asked, end in order with the service, and
with nobody else.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smore import alive
from smore.domain.job import JobRequest
from smore.messages.commands import StartJob, StopJob
from tests.support.eventually import eventually
from tests.support.trainings import jobs
from worker import proc
from worker.training import host, watch
from worker.training.jobs import Jobs
from worker.training.record import TOKEN, exit_status

ROOT = Path(__file__).resolve().parents[4]
#: A module of the standard library that runs until it is told to end.
ENTRY = "timeit"
ARGV = [ENTRY, "-n", "1", "-r", "1", "import time; time.sleep(600)"]


def worker_of(home: Path) -> Jobs:
    """What a worker knows of jobs; a new one is a worker that has started again."""
    made = jobs(home, entrypoints=(ENTRY,), cores=(0,), hosted=True)
    made.adopt()
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def service(home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("SMORE_")}
    given = own | {"SMORE_HOME": str(home), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "worker.keeper"], env=given, cwd=ROOT)
    try:
        eventually(lambda: healthy(home), what="the training host takes connections")
        yield process
    finally:
        process.terminate()
        process.wait(30)


def healthy(home: Path) -> bool:
    try:
        return not alive.alive("trainings", {"SMORE_HOME": str(home)})
    except OSError:
        return False


def start(worker: Jobs, name: str = "one") -> None:
    worker.start(
        StartJob(version=1, id=name, project="default", name=name, request=JobRequest(argv=ARGV), env={"MINE": "1"})
    )


def only(worker: Jobs) -> tuple[str, int, str]:
    """Of the one job, once it has begun or could not: state, process number, reason."""
    eventually(lambda: all(one.state != "starting" for one in worker.reports()), what="it has begun, or could not")
    worker.tick()
    (report,) = worker.reports()
    return report.state, report.pid, report.reason


def test_it_outlives_the_worker_and_hears_of_the_end(home: Path, service: "subprocess.Popen[bytes]") -> None:
    first = worker_of(home)
    start(first)
    state, pid, _ = only(first)
    assert state == "running"
    assert service.pid in proc.ancestors(pid), "it is the training host's, not the worker's"
    given = proc.environment_of(pid)
    assert (given["MINE"], given["PYTHONPATH"]) == ("1", str(ROOT))
    assert {name for name in given if name.startswith("SMORE_")} == {
        TOKEN,
        "SMORE_TRACK",
        "SMORE_ATTEMPT",
        "SMORE_CHECKPOINT",
        "SMORE_HOLD",
    }
    assert os.sched_getaffinity(pid) == {0}
    assert (home / "logs" / "job-one.log").stat().st_mode & 0o077 == 0
    assert "platform's own" in watch.refusal(service.pid, cores=(), users=None, token=TOKEN)

    # A worker that has started again finds it, and can end it.
    second = worker_of(home)
    assert only(second)[:2] == ("running", pid)
    second.stop(StopJob(1, "one"))
    eventually(lambda: only(second)[0] == "ended", what="the job has ended")
    assert second.reports()[0].exit_code == -signal.SIGTERM

    # The training host ends, and gives its trainings a SIGTERM and the time that they need.
    start(second, "two")
    eventually(lambda: {one.state for one in second.reports()} == {"ended", "running"}, what="the second has begun")
    service.terminate()
    assert service.wait(30) == 0
    assert exit_status(home / "run" / "jobs" / "two.status") == -signal.SIGTERM
    eventually(
        lambda: {one.state for one in worker_of(home).reports()} == {"ended"},
        what="a worker that starts later knows how it ended",
    )


def test_nothing_is_started_for_whom_it_does_not_know_or_who_has_left(
    home: Path, service: "subprocess.Popen[bytes]"
) -> None:
    training = host.Training(argv=ARGV, env={}, cores=(), status=str(home / "status"), log=str(home / "log"))
    pid, token = (home / "run" / "trainings.token").read_text().split()
    assert (home / "run" / "trainings.token").stat().st_mode & 0o777 == 0o600
    assert (home / "run" / "trainings.sock").stat().st_mode & 0o077 == 0

    def send(known: str) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(home / "run" / "trainings.sock"))
            connection.sendall(host._encode(host._Request(token=known, training=training)))
            connection.shutdown(socket.SHUT_WR)
            # Whoever knows the token leaves before the answer.
            return connection.recv(100) if known != token else b""

    assert send("0" * 64) == b""
    assert not (home / "status").exists()
    send(token)
    eventually(lambda: exit_status(home / "status") == -signal.SIGTERM, what="it was ended, for nobody knows of it")
    # One in another PID namespace would name numbers that mean other processes here.
    (home / "run" / "trainings.token").write_text(f"{int(pid) + 1} {token}")
    with pytest.raises(OSError, match="another PID namespace"):
        host.ask(home, training)


def test_without_the_service_a_job_is_refused_with_the_reason(home: Path) -> None:
    worker = worker_of(home)
    start(worker)
    state, _, reason = only(worker)
    assert state == "ended"
    assert "the service that keeps trainings does not answer" in reason
