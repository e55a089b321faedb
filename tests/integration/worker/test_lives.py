"""What outlives what: the worker, its zygote and runners, serverful jobs, Redis."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smore.domain.job import JobRequest
from smore.messages.commands import Cancel, StartJob, StopJob, Throttle
from smore.messages.reports import JobReport, WarmState
from tests.support.eventually import eventually
from tests.support.worker_stage import Bench, RedisProcess, bench
from worker import proc

HERE = "tests.support.handlers"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    one = RedisProcess(tmp_path / "redis")
    one.home.mkdir()
    one.start()
    yield one
    one.stop()


@pytest.fixture
def stage(tmp_path: Path, server: RedisProcess) -> Iterator[Bench]:
    with bench(tmp_path / "home", server, SMORE_JOB_ENTRYPOINTS=f'["zoo.train", "{LIGHT}", "timeit"]') as one:
        yield one


def find_job(stage: Bench, id_: str = "j1") -> JobReport | None:
    """None while the worker has not reported it."""
    return next((job for job in stage.report().jobs if job.id == id_), None)


def job(stage: Bench, id_: str = "j1") -> JobReport:
    job = find_job(stage, id_)
    assert job is not None, stage.log()
    return job


def start_job(stage: Bench, *argv: str, id_: str = "j1") -> None:
    env = {"SMORE_TRACK": "/elsewhere", "LD_PRELOAD": "x"}
    request = JobRequest(argv=argv, budget=0.05)
    command = StartJob(version=1, id=id_, project="p", name="t", request=request, env=env)
    stage.fleet.send("t0", command)
    stage.fleet.send("t0", command)


#: A model's training for what is measured of one; importing torch takes it seconds.
TRAIN = ("zoo.train", "--model", "mobilenet", "--batch", "2", "--input-wait", "0.5")
LIGHT = "tests.support.light_training"


def test_runners_have_no_credentials_and_the_worker_ends_in_order(stage: Bench) -> None:
    stage.call(stage.function("zoo.echo:Function"), 1)
    session = stage.session()
    for pid, _ in proc.session_members(session):
        assert not any(name.startswith("SMORE_") for name in proc.environment_of(pid))
        assert os.sched_getaffinity(pid) == {stage.core}
    start_job(stage, "http.server", "0")
    eventually(lambda: (one := find_job(stage)) is not None and one.state == "ended", what="it may not run")
    assert job(stage).exit_code == 126 and job(stage).pid == 0
    assert "'http.server'" in job(stage).reason
    assert stage.stop() == 0, stage.log()
    assert proc.session_members(session) == []
    assert not (stage.home / "run" / "worker-t0.json").exists()
    assert "Traceback" not in stage.log()


def test_what_runs_is_finished_before_the_worker_ends(stage: Bench) -> None:
    function = stage.function("zoo.misbehave:Sleep")
    stage.call(function, {"s": 0})
    id_ = stage.enqueue(function, json.dumps({"s": 0.7}).encode())
    stage.dispatch(function, [id_])
    stage.state(id_, "running")
    assert stage.stop() == 0
    assert stage.record(id_).state == "succeeded"


def test_kill_9_of_the_worker_ends_its_runners(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Fragile")
    id_ = stage.enqueue(function, b'{"do": "hang"}')
    stage.dispatch(function, [id_])
    pid = eventually(lambda: stage.said(function, "hangs"), what="it runs")
    session = stage.session()
    assert pid in [pid for pid, _ in proc.session_members(session)]
    stage.kill()
    eventually(lambda: not proc.session_members(session), what="zygote and runners are gone", within_s=2.0)
    # The next worker gives back what this one held, and counts the attempt.
    stage.start()
    record = stage.state(id_, "queued")
    assert (record.starts, record.attempt) == (1, 1)
    id_ = stage.enqueue(function, b'{"do": ""}')
    stage.dispatch(function, [id_])
    assert stage.ended(id_)[0].state == "succeeded"


def test_survivors_of_a_former_worker_are_ended(stage: Bench) -> None:
    stage.call(stage.function("zoo.echo:Function"), 1)
    session = stage.session()
    for pid, _ in proc.session_members(session):
        os.kill(pid, signal.SIGSTOP)  # stopped: they cannot see that their worker has gone
    stage.kill()
    assert proc.session_members(session)
    stage.start()
    assert proc.session_members(session) == [], "gone before the worker first reported"
    assert stage.session() != session


def test_a_zygote_that_dies_is_replaced(stage: Bench) -> None:
    function = stage.function("zoo.echo:Function")
    stage.call(function, 1)
    session = stage.session()
    os.kill(session, signal.SIGKILL)
    eventually(lambda: not proc.session_members(session), what="its runners have gone with it")
    eventually(lambda: not stage.warm(), what="the warm set is empty")
    # What is sent before may be given back to the queue, and nobody leads here who would send it again.
    eventually(lambda: stage.session() != session, what="the next zygote")
    assert stage.call(function, 2)[1].cold
    assert stage.session() != session
    assert os.sched_getaffinity(stage.session()) == {stage.core}, "it imports on more cores than it keeps"


def test_a_result_waits_for_redis(stage: Bench) -> None:
    function = stage.function("zoo.misbehave:Sleep")
    stage.call(function, {"s": 0})
    id_ = stage.enqueue(function, json.dumps({"s": 0.5}).encode())
    stage.dispatch(function, [id_])
    stage.state(id_, "running")
    stage.server.stop()
    # Longer than the run and its lease: the leader that would give it back is away as well.
    until = time.monotonic() + 1.5
    eventually(lambda: time.monotonic() > until, what="Redis has been away")
    stage.server.start()
    record, _ = stage.ended(id_)
    assert (record.state, record.starts) == ("succeeded", 1)
    assert stage.call(function, {"s": 0})[0].state == "succeeded"
    assert stage.worker is not None and stage.worker.poll() is None


def test_a_job_runs_and_reports_and_stops(stage: Bench) -> None:
    start_job(stage, *TRAIN)
    eventually(lambda: (one := find_job(stage)) is not None and one.solo_count > 5, what="it reports iterations")
    one = job(stage)
    assert (one.state, one.project, one.shared_count) == ("running", "p", 0) and one.solo_s > 0
    eventually(lambda: job(stage).memory_mib > 20, what="its memory is measured as it grows")
    assert os.getsid(one.pid) == one.pid and os.sched_getaffinity(one.pid) == {stage.core}
    environment = proc.environment_of(one.pid)
    assert not {"SMORE_REDIS__URL", "SMORE_POSTGRES__URL", "LD_PRELOAD"} & environment.keys()
    assert environment["SMORE_TRACK"].startswith(str(stage.home.resolve()))
    eventually(lambda: 0.05 < stage.report().utilisation <= 1, what="its work is seen")
    function = stage.function("zoo.misbehave:Sleep")
    stage.call(function, {"s": 0.5})
    eventually(lambda: job(stage).shared_count > 0, what="iterations beside a function are told apart")
    stage.fleet.send("t0", StopJob(version=1, id="j1"))
    eventually(lambda: job(stage).state == "ended", what="it has ended")
    assert job(stage).exit_code == 0
    assert "iterations" in (stage.home / "logs" / "job-j1.log").read_text()


def test_a_job_outlives_its_worker_and_is_adopted(stage: Bench) -> None:
    start_job(stage, LIGHT)
    eventually(lambda: (one := find_job(stage)) is not None and one.iterations > 5, what="it runs")
    pid = job(stage).pid
    stage.kill()
    before = job(stage).iterations
    assert proc.start_time(pid) is not None
    stage.start()
    eventually(
        lambda: (one := find_job(stage)) is not None and one.iterations > before, what="it goes on and is reported"
    )
    assert (job(stage).state, job(stage).pid, job(stage).budget) == ("running", pid, 0.05)
    # A signal stops it for a time: it still runs, and makes no steps.
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: job(stage).suspended, what="it is told that it is stopped")
    assert job(stage).state == "running"
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: not job(stage).suspended, what="it is told that it goes on")
    # What it dies of is known to a worker that is not its parent.
    os.kill(pid, signal.SIGSEGV)
    eventually(lambda: job(stage).state == "ended", what="its end is seen")
    assert job(stage).exit_code == -signal.SIGSEGV


#: Waits for as long as it is let, without the seconds that importing torch takes.
IDLE = ("timeit", "-n", "1", "-r", "1", "-s", "import time", "time.sleep(600)")


def test_what_became_of_jobs_while_no_worker_was_there(stage: Bench) -> None:
    for id_, argv in (("whole", IDLE), ("killed", IDLE), ("orphan", IDLE), ("short", ("timeit", "-n", "1", "pass"))):
        start_job(stage, *argv, id_=id_)
    pids: dict[str, int] = {}

    def begun() -> bool:
        pids.update({one.id: one.pid for one in stage.report().jobs if one.id != "short"})
        return len(pids) == 3 and all(pids.values())

    eventually(begun, what="they run")
    eventually(lambda: (one := find_job(stage, "short")) is not None and one.state == "ended", what="it has ended")
    assert job(stage, "short").exit_code == 0
    shims = {id_: proc.ancestors(pid)[0] for id_, pid in pids.items()}
    assert all(os.getsid(pid) == pid != os.getsid(shims[id_]) for id_, pid in pids.items())
    assert stage.stop() == 0
    assert all(proc.start_time(pid) is not None for pid in pids.values()), "an orderly end leaves them alone"
    os.kill(shims["orphan"], signal.SIGKILL)
    for id_ in ("killed", "orphan"):
        os.kill(pids[id_], signal.SIGKILL)
        eventually(lambda id_=id_: proc.start_time(pids[id_]) is None, what="it is gone")  # type: ignore[misc]
    stage.start()
    eventually(
        lambda: (one := find_job(stage, "orphan")) is not None and one.state == "lost",
        what="without its shim nobody saw its end",
    )
    assert (job(stage, "killed").state, job(stage, "killed").exit_code) == ("ended", -signal.SIGKILL)
    assert (job(stage, "orphan").exit_code, job(stage, "whole").state) == (None, "running")
    # An adopted one is stopped like one of this worker's own.
    stage.fleet.send("t0", StopJob(version=1, id="whole"))
    eventually(lambda: job(stage, "whole").state == "ended", what="it is stopped")
    assert job(stage, "whole").exit_code == -signal.SIGTERM


def test_a_share_is_a_control_group_where_one_may_be_made(tmp_path: Path, server: RedisProcess) -> None:
    with bench(tmp_path / "home", server, share="0.5", SMORE_JOB_ENTRYPOINTS=f'["{LIGHT}"]') as stage:
        stage.call(stage.function("zoo.echo:Function"), 1)
        start_job(stage, LIGHT)
        eventually(lambda: (one := find_job(stage)) is not None and one.pid > 0, what="the job runs")
        line = next(line for line in stage.log().splitlines() if "CPU share" in line)
        if "folder=" not in line:
            pytest.skip("no control group may be made here")
        members = set((Path(line.split("folder=")[1].split()[0]) / "cgroup.procs").read_text().split())
        runners = {str(pid) for pid, _ in proc.session_members(stage.session())}
        assert runners | {str(job(stage).pid)} <= members
        stage.fleet.send("t0", StopJob(version=1, id="j1"))
        eventually(lambda: job(stage).state == "ended", what="the job has ended")
        assert stage.stop() == 0
        assert not Path(line.split("folder=")[1].split()[0]).exists()


@pytest.fixture
def guarded(tmp_path: Path, server: RedisProcess) -> Iterator[Bench]:
    """A worker that looks after a job closely: a tenth of the time is closed windows."""
    with bench(tmp_path / "home", server, SMORE_JOB_ENTRYPOINTS=f'["{LIGHT}"]', probe_share="0.1") as one:
        yield one


def test_a_running_function_makes_room_for_training(tmp_path: Path, server: RedisProcess) -> None:
    """
    The job declares more than is left beside a function at work: that one goes within a heartbeat, and nobody is
    charged for it.
    """
    settings = {"memory_mib": "600", "standby": "false", "probe_share": "0", "SMORE_JOB_ENTRYPOINTS": f'["{LIGHT}"]'}
    with bench(tmp_path / "home", server, **settings) as stage:
        function = stage.function("zoo.misbehave:Sleep", timeout_s=60.0)
        id_ = stage.enqueue(function, b'{"s": 50}')
        stage.dispatch(function, [id_])
        stage.state(id_, "running")
        (busy,) = eventually(
            lambda: [one for one in stage.report().warm if one.state is WarmState.BUSY], what="it works"
        )
        request = JobRequest(argv=[LIGHT], memory_mib=590.0)
        command = StartJob(version=1, id="j1", project="p", name="t", request=request, env={})
        stage.fleet.send("t0", command)
        record = stage.state(id_, "queued")
        assert (record.starts, proc.start_time(busy.pid)) == (0, None)
        report = eventually(lambda: report if (report := stage.report()).jobs else None, what="the job is reported")
        assert report.jobs[0].reserve_mib == 619.5 and report.memory_used_mib >= 619.5 and not report.quarantined
        stage.dispatch(function, [id_])
        assert stage.state(id_, "queued").starts == 0, "nor is there room for it now"


def throttle(stage: Bench, duty: float) -> None:
    stage.fleet.send("t0", Throttle(version=1, duty=duty))
    eventually(lambda: stage.report().duty == duty, what=f"the gate stands at {duty}")


def test_a_throttle_holds_back_what_has_not_started(guarded: Bench) -> None:
    function = guarded.function("zoo.misbehave:Sleep")
    guarded.call(function, {"s": 0.3})
    eventually(
        lambda: 0.3 <= guarded.report().warm[0].longest_s < 5,
        what="it is told for how long the run could not have been stopped",
    )
    throttle(guarded, 0.0)
    assert guarded.call(function, {"s": 0})[0].state == "succeeded", "without a job nothing is held back"
    start_job(guarded, LIGHT)
    eventually(lambda: (one := find_job(guarded)) is not None and one.solo_count > 5, what="the job runs")
    id_ = guarded.enqueue(function, b'{"s": 0}')
    guarded.dispatch(function, [id_])
    guarded.state(id_, "running")
    record = guarded.state(id_, "queued")
    assert (record.starts, record.attempt) == (0, 1), "given back, and its start does not count"
    guarded.dispatch(function, [id_])
    guarded.state(id_, "running")
    throttle(guarded, 1.0)
    assert guarded.ended(id_)[0].state == "succeeded"
    guarded.fleet.send("t0", Throttle(version=1, duty=7.0))
    throttle(guarded, 0.5)
    assert "throttle passed over" in guarded.log()


def test_closed_windows_come_and_are_reported(guarded: Bench) -> None:
    """With functions at work without a pause, and nothing running in the windows."""
    function = guarded.function("zoo.misbehave:Sleep")
    guarded.call(function, {"s": 0})
    start_job(guarded, LIGHT)
    closed, waiting = 0, ""
    until = time.monotonic() + 60
    while (one := find_job(guarded)) is None or not one.windows:
        assert time.monotonic() < until, guarded.log()
        report = guarded.report()
        closed += report is not None and report.closed and report.closed_until > report.at
        if not waiting or guarded.record(waiting).state in ("succeeded", "queued"):
            waiting = (
                waiting
                if waiting and guarded.record(waiting).state == "queued"
                else guarded.enqueue(function, b'{"s": 0.02}')
            )
            guarded.dispatch(function, [waiting])
        time.sleep(0.005)
    assert closed, "a window at hand is told"
    for window in one.windows:
        assert window.closed_n >= 5
        assert (window.before_n, window.after_n) == (window.closed_n, window.closed_n)
        assert 0 < window.end - window.start < 10
    assert one.loss_windows == len(one.windows) and one.closed_n >= 5 and one.recent_n >= 20 and one.budget == 0.05
    assert one.loss is None, "so few windows say nothing"


def test_a_run_that_lasts_is_held_in_closed_windows_and_ended_where_it_stands(guarded: Bench) -> None:
    function = guarded.function(f"{HERE}:Fragile", timeout_s=600.0)
    start_job(guarded, LIGHT)
    session = guarded.session()

    def held_run(before: int | None = None) -> tuple[str, int]:
        """An invocation that goes on for ever, and its runner, stopped for a window."""
        id_ = guarded.enqueue(function, b'{"do": "hang"}')
        guarded.dispatch(function, [id_])
        guarded.state(id_, "running")
        eventually(lambda: guarded.said(function, "hangs") not in (None, before), what="it runs")
        pid = guarded.said(function, "hangs") or 0
        eventually(lambda: proc.suspended(pid), within_s=30.0, what="it is held")
        return id_, pid

    cancelled, pid = held_run()
    eventually(lambda: not proc.suspended(pid), what="it goes on")
    eventually(
        lambda: (one := find_job(guarded)) is not None and one.windows, within_s=30.0, what="quiet windows beside it"
    )
    eventually(lambda: proc.suspended(pid), within_s=30.0, what="it is held again")
    guarded.fleet.send("t0", Cancel(version=1, function=function, id=cancelled, attempt=1))
    eventually(lambda: proc.start_time(pid) is None, what="its runner is gone")
    eventually(lambda: guarded.report().running == 0, what="the slot is free")
    held_run(before=pid)
    guarded.kill()
    eventually(lambda: not proc.session_members(session), what="zygote and runners are gone")
