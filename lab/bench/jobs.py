"""
The queue of trainings under kills, and what its order is worth.

``python -m lab.bench.jobs --json`` starts a platform of its own with two CPU partitions in a temporary home. Two projects
hand in 30 trainings, four of them gangs of two ranks over gloo; the others are light processes that sleep and tell their
steps (lab/bench/pace.py). Meanwhile every process of the platform is killed twice, and the worker of one GPU instance is
stopped for longer than the silence after which its trainings count as lost. ``--quick``: 12 trainings, each process
killed once, shorter trainings for the order.

Figures:

* ``lost``: trainings that were accepted and did not succeed. ``doubled``: trainings of which two attempts ran at a time (by
  the attempts in Postgres, or by two workers' reports at once), or that have more iterations than they were to make.
  ``partial_gangs``: attempts of which some ranks were reported to run for 20 s without the others. ``orphans``: processes of
  trainings that no report names, at the end. ``jobs_killed``: attempts that ended otherwise than by success, those aside
  that were on the GPU instance that fell silent.
* ``worst_recovery_s``: from a kill to the beginning of the first round of the job scheduler that was published after it.
  ``silent_recovery_s``: from the stop of the worker to the decision that the attempt there is lost.
* ``placed_s``: from a training's row to its process, on an empty platform, the middle one of several; ``start_s``: from the
  request to the first report of an iteration.
* ``agrees``: 1 = the recorded events, told to the rule again, give the same placements.
* ``jct_ratio``: mean completion time of 4 trainings of 40 s and then 8 of 10 s, by smore-jobs over fifo.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import redis
from sqlalchemy.exc import SQLAlchemyError

from lab.bench.ports import free_port
from lab.bench.report import emit, end_on_sigterm, progress, rounded
from lab.bench.servers import pid_of
from lab.bench.told_again import replay
from smore.domain.job import OVER, JobState, Outcome
from smore.local import asking, machine
from smore.messages.reports import JobReport
from smore.postgres.connection import make_engine
from smore.postgres.jobs import Job, JobStore, PastAttempt
from smore.process.settings import Settings
from smore.redis.fleet import Fleet
from smore.redis.job_queue import JobQueue
from worker import proc

T = TypeVar("T")

PARTITIONS: Final = 2
#: The GPU instance that falls silent, and after how long that counts as lost.
SILENT: Final = "cpu1"
SILENT_S: Final = 12.0
EVERY_S: Final = 0.05
OTHER: Final = "others"
#: Seconds between two looks at reports.
_LOOK_S: Final = 0.1
#: Seconds for which ranks of a gang may run alone: while the others start, and while they end.
_PARTIAL_S: Final = 20.0
#: What takes longer counts with this.
_GIVEN_UP_S: Final = 120.0
#: Seconds between a recovery and the next kill.
_REST_S: Final = 1.0
_OUTAGE: Final = (redis.RedisError, SQLAlchemyError, httpx.HTTPError, OSError)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    singles: int
    gangs: int
    iterations: int
    rounds: int
    probes: int
    long_s: float
    short_s: float


WHOLE: Final = Size(singles=26, gangs=4, iterations=240, rounds=2, probes=9, long_s=40.0, short_s=10.0)
QUICK: Final = Size(singles=10, gangs=2, iterations=160, rounds=1, probes=5, long_s=10.0, short_s=2.5)


class Stage:
    """A platform and doors to it."""

    def __init__(self, home: Path, end: asking.Endpoints) -> None:
        self.home = home
        #: Of each training that was handed in.
        self.projects: dict[str, str] = {}
        self.key = (home / "key").read_text().strip()
        self.http = httpx.Client(base_url=end.gateway_url, timeout=30.0)
        self.store = JobStore(make_engine(end.postgres_url, "bench", statement_timeout_s=5.0))
        client, prefix = redis.from_url(end.redis_url, socket_timeout=5), Settings().redis.prefix
        self.fleet, self.queue = Fleet(client, prefix), JobQueue(client, prefix)

    def request(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        answer = self.http.request(method, path, json=body, headers={"Authorization": f"Bearer {key or self.key}"})
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def submit(self, name: str, iterations: int, key: str = "", **more: Any) -> str:
        argv = ["lab.bench.pace", "--every", str(EVERY_S), "--iterations", str(iterations)]
        length = {} if "duration" in more else {"iterations": iterations}
        id_: str = self.request("POST", "/v1/jobs", {"name": name, "argv": argv, **length, **more}, key)["id"]
        self.projects[id_] = OTHER if key else "default"
        return id_

    def job(self, id_: str) -> Job:
        return _patient(lambda: self.store.get(self.projects[id_], id_))

    def attempts(self, id_: str) -> Sequence[PastAttempt]:
        return _patient(lambda: self.store.attempts(id_))

    def wait(self, jobs: Sequence[str], within_s: float) -> list[str]:
        """Until all are over; those that are not in time."""
        until = time.monotonic() + within_s
        open_ = list(jobs)
        while open_ and time.monotonic() < until:
            open_ = [id_ for id_ in open_ if self.job(id_).state not in OVER]
            time.sleep(0.5 if open_ else 0.0)
        return open_


def _patient(read: Callable[[], T]) -> T:
    """What it gives, as soon as the servers answer."""
    until = time.monotonic() + _GIVEN_UP_S
    while True:
        try:
            return read()
        except _OUTAGE:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)


class Watch(threading.Thread):
    """Looks at what GPU workers report, beside everything else."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage = stage
        self._stopped = threading.Event()
        self._alone: dict[tuple[str, int], float] = {}
        #: The attempts that were on the GPU instance when it fell silent: their processes may live until it is heard.
        self.silenced: set[tuple[str, int]] = set()
        self.doubled: set[str] = set()
        self.partial: set[tuple[str, int]] = set()

    def run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            with contextlib.suppress(*_OUTAGE):
                self._look()

    def stop(self) -> None:
        self._stopped.set()

    def _look(self) -> None:
        ranks: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        worlds: dict[str, int] = {}
        for report in self._stage.fleet.reports():
            for job in report.jobs:
                if job.state == JobState.RUNNING and (job.id, job.attempt) not in self.silenced:
                    ranks[job.id][job.attempt].add(job.rank)
                    worlds[job.id] = job.world
        self.doubled |= {id_ for id_, attempts in ranks.items() if len(attempts) > 1}
        now, alone = time.monotonic(), set()
        for id_, attempts in ranks.items():
            alone |= {(id_, attempt) for attempt, here in attempts.items() if len(here) < worlds[id_]}
        self._alone = {key: self._alone.get(key, now) for key in alone}
        self.partial |= {key for key, since in self._alone.items() if now - since > _PARTIAL_S}


# ---- kills ---------------------------------------------------------------------------------------------------------------


def kill_all(stage: Stage, recoveries: dict[str, float]) -> None:
    """Kill each process of the platform once, one after the other."""
    for program in machine.status(stage.home):
        struck = time.time()
        pid = _patient_pid(stage.home, program.name)
        os.kill(pid, signal.SIGKILL)
        recovery_s = _until(lambda struck=struck: _published_at(stage) > struck) - struck  # type: ignore[misc]
        recoveries[program.name] = max(recoveries.get(program.name, 0.0), recovery_s)
        progress(f"killed {program.name:14} next decision after {recovery_s:5.2f} s")
        _until(lambda name=program.name, old=pid: _patient_pid(stage.home, name) != old)  # type: ignore[misc]
        time.sleep(_REST_S)


def _patient_pid(home: Path, name: str) -> int:
    until = time.monotonic() + _GIVEN_UP_S
    while (pid := pid_of(home, name)) is None:
        if time.monotonic() > until:
            raise RuntimeError(f"{name} does not come back")
        time.sleep(_LOOK_S)
    return pid


def _published_at(stage: Stage) -> float:
    """When the round began that was published last, epoch seconds."""
    with contextlib.suppress(*_OUTAGE):
        published = stage.queue.queue()
        return published.at if published is not None else 0.0
    return 0.0


def _until(condition: Callable[[], bool]) -> float:
    """When it was first seen to hold, epoch seconds; at most :data:`_GIVEN_UP_S` from now."""
    until = time.monotonic() + _GIVEN_UP_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return time.time()


def silence(stage: Stage, watch: Watch) -> float:
    """Stop a worker until what it ran is lost; seconds until that was decided."""
    name = f"worker-{SILENT}"
    there: set[tuple[str, int]] = set()

    def running() -> bool:
        with contextlib.suppress(*_OUTAGE):
            reports = [report for report in stage.fleet.reports() if report.gpu == SILENT]
            there.update(
                (job.id, job.attempt) for report in reports for job in report.jobs if job.state == JobState.RUNNING
            )
        return bool(there)

    _until(running)
    pid = _patient_pid(stage.home, name)
    os.kill(pid, signal.SIGSTOP)
    struck = time.time()
    # What it had just begun counts too.
    watch.silenced |= there
    try:
        first = next(iter(there))
        decided = _until(lambda: any(one.attempt == first[1] and one.ended_at for one in stage.attempts(first[0])))
    finally:
        os.kill(pid, signal.SIGCONT)
    progress(f"silenced {name}: {len(there)} lost after {decided - struck:.2f} s")
    return decided - struck


def orphans(stage: Stage) -> list[int]:
    """Processes of trainings of this home that no report names, and that are still there after a while."""
    until = time.monotonic() + _PARTIAL_S
    while True:
        named = {
            pid
            for report in stage.fleet.reports()
            for job in report.jobs
            for pid in (proc.tree(job.pid) if job.pid else ())
        }
        left = [
            pid
            for pid in proc.numbers()
            if pid not in named
            and proc.environment_of(pid).get("SMORE_TRACK", "").startswith(str(stage.home.resolve()))
        ]
        if not left or time.monotonic() > until:
            return left
        time.sleep(_LOOK_S)


# ---- phases --------------------------------------------------------------------------------------------------------------


def placed(stage: Stage, size: Size) -> tuple[float, float]:
    """Seconds to a process, and to the first report of an iteration, of trainings that come alone: the middle ones."""
    to_process, to_iteration = [], []
    for number in range(size.probes):
        sent = time.time()
        id_ = stage.submit(f"alone-{number}", 20)
        first = _until(lambda id_=id_: any(job.iterations for job in _ranks(stage, id_)))  # type: ignore[misc]
        to_iteration.append(first - sent)
        began = [job.started_at for job in _ranks(stage, id_) if job.started_at]
        to_process.append(min(began, default=sent + _GIVEN_UP_S) - stage.job(id_).created_at)
        stage.wait([id_], _GIVEN_UP_S)
    return statistics.median(to_process), statistics.median(to_iteration)


def _ranks(stage: Stage, id_: str) -> list[JobReport]:
    return [job for report in stage.fleet.reports() for job in report.jobs if job.id == id_]


def storm(stage: Stage, size: Size) -> dict[str, float]:
    """Trainings of two projects through kills and a silence."""
    stage.request("POST", "/v1/projects", {"name": OTHER})
    other = stage.request("POST", "/v1/keys", {"name": "bench", "project": OTHER, "scopes": ["jobs", "read"]})["key"]
    watch = Watch(stage)
    watch.start()
    lengths: dict[str, int] = {}
    total = size.singles + size.gangs
    gangs_at = {(2 * gang + 1) * total // (2 * size.gangs) for gang in range(size.gangs)}
    for number in range(total):
        gang = number in gangs_at
        length = size.iterations // 2 if gang else size.iterations * (2 + number % 3) // 3
        more = {"count": 2 if gang else 1, "restarts": 5}
        id_ = stage.submit(f"{'gang' if gang else 'single'}-{number}", length, other if number % 2 else "", **more)
        lengths[id_] = length
    gangs = [id_ for id_ in lengths if stage.job(id_).request.count > 1]
    progress(f"{len(lengths)} trainings accepted, {len(gangs)} of them gangs")
    recoveries: dict[str, float] = {}
    silent_s = 0.0
    for turn in range(size.rounds):
        kill_all(stage, recoveries)
        if not turn:
            silent_s = silence(stage, watch)
    waiting = len([id_ for id_ in lengths if stage.job(id_).state not in OVER])
    progress(f"the last process is killed; {waiting} trainings are not over yet")
    open_ = stage.wait(list(lengths), 900.0)
    jobs = {id_: stage.job(id_) for id_ in lengths}
    attempts = {id_: stage.attempts(id_) for id_ in lengths}
    left = orphans(stage)
    watch.stop()
    for id_ in open_:
        progress(f"not over: {jobs[id_].name} {jobs[id_].state.value} {jobs[id_].reason}")
    lost = [job for job in jobs.values() if job.outcome is not Outcome.SUCCEEDED]
    for job in lost:
        progress(f"lost: {job.name} {job.state.value} {job.outcome} {job.reason}")
    too_many = {id_ for id_, job in jobs.items() if job.iterations > lengths[id_]}
    for id_ in too_many:
        progress(f"doubled: {jobs[id_].name} made {jobs[id_].iterations} iterations of {lengths[id_]}: {attempts[id_]}")
    together = {id_ for id_, made in attempts.items() if _overlap(made)}
    killed = [
        (jobs[id_].name, one)
        for id_, made in attempts.items()
        for one in made
        if one.why != "succeeded" and (id_, one.attempt) not in watch.silenced
    ]
    for name, one in killed:
        progress(f"ended otherwise: {name} attempt {one.attempt}: {one.why} {one.exit_code} {one.message}")
    restarted = sum(len(made) > 1 for made in attempts.values())
    return {
        "lost": len(lost),
        "doubled": len(watch.doubled | too_many | together),
        "partial_gangs": len(watch.partial),
        "orphans": len(left),
        "jobs_killed": len(killed),
        "worst_recovery_s": max(recoveries.values()),
        "silent_recovery_s": silent_s,
        "kills": len(recoveries) * size.rounds,
        "trainings": len(lengths),
        "gangs": len(gangs),
        "restarted": restarted,
        "open_at_last_kill": waiting,
        **{f"recovery_s.{name}": seconds for name, seconds in recoveries.items()},
    }


def _overlap(attempts: Sequence[PastAttempt]) -> bool:
    """Whether two attempts went on at a time."""
    return any(before.ended_at is None or before.ended_at > after.started_at for before, after in pairwise(attempts))


def agrees(record: Path) -> float:
    """1 = the rule places the same again when it is told the same."""
    differing = [(was, again) for was, again in replay(record) if was != again]
    for was, again in differing[:3]:
        progress(f"placed {was}, and again {again}")
    return 0.0 if differing else 1.0


def completion_s(stage: Stage, size: Size) -> float:
    """Mean time from row to end of 4 long trainings and 8 short ones that come after them."""
    jobs = []
    for number, seconds in enumerate([size.long_s] * 4 + [size.short_s] * 8):
        jobs.append(stage.submit(f"order-{number}", round(seconds / EVERY_S), duration=seconds))
    if open_ := stage.wait(jobs, 900.0):
        raise RuntimeError(f"{len(open_)} trainings do not end")
    ends = [(job.ended_at or 0.0) - job.created_at for job in map(stage.job, jobs)]
    return statistics.fmean(ends)


@contextlib.contextmanager
def platform(setting: str, record: Path) -> Iterator[Stage]:
    """A platform in a temporary home."""
    with tempfile.TemporaryDirectory(prefix="smore-jobs-") as folder:
        home = Path(folder, "home")
        os.environ |= {
            "SMORE_API__PORT": str(free_port()),
            "SMORE_JOB_ENTRYPOINTS": "lab.bench.pace",
            "SMORE_JOBS__POLICY": setting,
            "SMORE_JOBS__SILENT_S": str(SILENT_S),
            "SMORE_JOBS__RECORD": str(record),
        }
        end = machine.up(home, config=Settings(), partitions=PARTITIONS)
        try:
            yield Stage(home, end)
        finally:
            for pid in proc.numbers():
                if proc.environment_of(pid).get("SMORE_TRACK", "").startswith(str(home.resolve())):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            machine.down(home)


def run(size: Size) -> dict[str, float]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="smore-jobs-record-") as folder:
        record = Path(folder, "record.jsonl")
        with platform("smore-jobs", record) as stage:
            placed_s, start_s = placed(stage, size)
            progress(f"placed after {placed_s:.3f} s, first iteration reported after {start_s:.3f} s")
            figures = storm(stage, size) | {"placed_s": placed_s, "start_s": start_s}
            shortest_s = completion_s(stage, size)
        figures["agrees"] = agrees(record)
        with platform("fifo", Path(folder, "fifo.jsonl")) as stage:
            fifo_s = completion_s(stage, size)
    progress(f"mean completion {shortest_s:.1f} s, by fifo {fifo_s:.1f} s")
    return figures | {"jct_s": shortest_s, "jct_fifo_s": fifo_s, "jct_ratio": shortest_s / fifo_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter trainings, each process killed once")
    options = parser.parse_args()
    end_on_sigterm()
    figures = run(QUICK if options.quick else WHOLE)
    if options.json:
        emit("lab.bench.jobs", figures, silent_s=SILENT_S)
    else:
        print(json.dumps({name: rounded(value) for name, value in figures.items()}, indent=1))
    bad = [name for name in ("lost", "doubled", "partial_gangs", "orphans", "jobs_killed") if figures[name]]
    sys.exit(1 if bad or figures["agrees"] < 1 else 0)


if __name__ == "__main__":
    main()
