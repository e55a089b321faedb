"""
Ends that are promised, live: ``python -m lab.bench.promises --json``.

On a platform of its own with two CPU partitions 30 trainings of 20 to 90 s come one after the other, at 1.2 times what the
partitions can do; 12 of them ask for the earliest end that can be promised, all say how long they are, and a function is called
beside them. The trainings sleep and tell their steps (lab/bench/pace.py). While promises stand, the leader of the queue is killed
after a third of the trainings has come, and the worker of one partition after two thirds. ``--quick``: trainings of a third of the
length.

Figures:

* ``promised``: of the trainings that asked, the part that was promised an end. ``kept``: of these, but for those that lost their
  host or whose attempt failed (``excused``), the part that ended by it. ``told_over_length``: the median of promised completion
  over what owners said.
* ``told_end_90``: of the ``told`` trainings that asked for nothing and had to wait, the part that ended by the later end in the
  answer to their request.
* ``dry_run_ms``: the median of dry runs, one after each training that has come; ``dry_run_ms_95``.
* ``lost``: trainings that were accepted and did not succeed. ``jobs_killed``: attempts that ended otherwise than by success.
  ``recovery_s.leader``, ``recovery_s.worker``: from the kill to the next round of the queue, and to the worker's next report.
* ``calls_failed``: of the ``calls`` of the function those that were not answered with 200, the kills included.
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
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx

from lab.bench.jobs import EVERY_S, PARTITIONS, Stage, platform
from lab.bench.report import emit, end_on_sigterm, progress, rounded
from lab.bench.servers import pid_of
from smore.domain.job import Outcome, PromiseState

COUNT, ASK = 30, 12
SECONDS: Final = (20.0, 90.0)
LOAD: Final = 1.2
FUNCTION: Final = "beside"
#: Seconds between two calls of the function.
CALLED_S: Final = 0.5
WORKER: Final = "worker-cpu0"
#: Broken promises with these causes are not the platform's.
EXCUSES: Final = ("host_lost", "failed")
_LOOK_S: Final = 0.05
_GIVEN_UP_S: Final = 120.0


@dataclass(slots=True)
class Training:
    """One that has come: ``late_at`` is the later end that it was told, None = it had not to wait."""

    id: str
    seconds: float
    asks: bool
    late_at: float | None = None


def asked(stage: Stage, path: str, body: Any, key: str = "") -> Any:
    """The answer to a request that is repeated until somebody leads. Raises RuntimeError."""
    until = time.monotonic() + _GIVEN_UP_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            headers = {"Authorization": f"Bearer {stage.key}"} | ({"Idempotency-Key": key} if key else {})
            answer = stage.http.post(path, json=body, headers=headers)
            if answer.status_code < 400:
                return answer.json()
            if answer.status_code != 503:
                raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
        if time.monotonic() > until:
            raise RuntimeError(f"{path}: no answer")
        time.sleep(_LOOK_S)


def come(stage: Stage, name: str, seconds: float, *, asks: bool) -> Training:
    argv = ["lab.bench.pace", "--every", str(EVERY_S), "--iterations", str(round(seconds / EVERY_S))]
    body = {"name": name, "argv": argv, "duration": seconds, "restarts": 3}
    job = asked(stage, "/v1/jobs", body | ({"by": "earliest", "unless": "queue"} if asks else {}), name)
    stage.projects[job["id"]] = "default"
    expected = job["expected"] or {}
    late = expected.get("end_late_at") if job["state"] == "queued" else None
    told = (
        time.strftime("%H:%M:%S", time.gmtime(moment(job["promise"]["by"]))) if asks and job["promise"]["by"] else "-"
    )
    progress(f"{name}: {seconds:.0f} s, {job['state']}, promised {told}")
    return Training(job["id"], seconds, asks, moment(late) if late is not None and not asks else None)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def strike(pid: int | None, over: Callable[[], bool]) -> float:
    """Kill a process; seconds until ``over``."""
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    struck = time.monotonic()
    while not over() and time.monotonic() - struck < _GIVEN_UP_S:
        time.sleep(_LOOK_S)
    return time.monotonic() - struck


def kill_leader(stage: Stage) -> float:
    queue = stage.queue.queue()
    assert queue is not None
    promised = sum(job.promised is not None for job in queue.jobs)
    _, pid, _ = queue.leader.split(":")
    progress(f"the leader is killed; {promised} promises stand")
    return strike(int(pid), lambda: (now := stage.queue.queue()) is not None and now.leader != queue.leader)


def kill_worker(stage: Stage) -> float:
    progress(f"{WORKER} is killed")
    since = time.time()
    gpu = WORKER.removeprefix("worker-")
    pid = pid_of(stage.home, WORKER)
    return strike(pid, lambda: any(report.gpu == gpu and report.at > since + 1.0 for report in stage.fleet.reports()))


def call(stage: Stage, over: threading.Event, statuses: list[int]) -> None:
    """Call the function until the trainings are over."""
    with httpx.Client(base_url=stage.http.base_url, headers={"Authorization": f"Bearer {stage.key}"}) as http:
        while not over.wait(CALLED_S):
            try:
                statuses.append(
                    http.post(f"/v1/functions/{FUNCTION}/invocations", json={"input": {"x": 1}}).status_code
                )
            except httpx.HTTPError:
                statuses.append(0)


def run(stage: Stage, part: float) -> dict[str, float]:
    """All figures; trainings take ``part`` of their length."""
    spec = {"entrypoint": "lab.bench.functions:Echo", "slo": {"deadline": "1s"}, "resources": {"gpu_memory": "64MiB"}}
    document = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": FUNCTION}, "spec": spec}
    stage.request("PUT", f"/v1/functions/{FUNCTION}", document)
    over, statuses = threading.Event(), list[int]()
    caller = threading.Thread(target=call, args=(stage, over, statuses))
    caller.start()
    draw = Random(0)
    asking = set(draw.sample(range(COUNT), ASK))
    gap_s = part * sum(SECONDS) / 2 / PARTITIONS / LOAD
    trainings: list[Training] = []
    dry_ms: list[float] = []
    recoveries: dict[str, float] = {}
    due = time.monotonic()
    try:
        for number in range(COUNT):
            time.sleep(max(0.0, due - time.monotonic()))
            due += draw.expovariate(1 / gap_s)
            seconds = part * draw.uniform(*SECONDS)
            trainings.append(come(stage, f"t{number:02d}", seconds, asks=number in asking))
            began = time.perf_counter()
            asked(stage, "/v1/jobs:dryRun", {"name": "dry", "argv": ["lab.bench.pace"], "duration": seconds})
            dry_ms.append(1e3 * (time.perf_counter() - began))
            if number == COUNT // 3:
                recoveries["recovery_s.leader"] = kill_leader(stage)
            if number == 2 * COUNT // 3:
                recoveries["recovery_s.worker"] = kill_worker(stage)
        stage.wait([one.id for one in trainings], 1800.0)
    finally:
        over.set()
        caller.join()
    return recoveries | {
        "dry_run_ms": statistics.median(dry_ms),
        "dry_run_ms_95": statistics.quantiles(dry_ms, n=20)[-1],
        "calls": len(statuses),
        "calls_failed": sum(status != 200 for status in statuses),
        **outcomes(stage, trainings),
    }


def outcomes(stage: Stage, trainings: list[Training]) -> dict[str, float]:
    promises = stage.store.promises([one.id for one in trainings])
    jobs = {one.id: stage.job(one.id) for one in trainings}
    given = [one for one in trainings if one.asks and promises[one.id].by is not None]
    excused = [
        one for one in given if promises[one.id].outcome is PromiseState.BROKEN and promises[one.id].why in EXCUSES
    ]
    judged = [one for one in given if one not in excused]
    for one in judged:
        promise, ended_at = promises[one.id], jobs[one.id].ended_at or float("inf")
        if promise.outcome is not PromiseState.KEPT:
            progress(
                f"{jobs[one.id].name}: {promise.outcome.value} ({promise.why}) by {ended_at - (promise.by or 0):.1f} s"
            )
    told = [(jobs[one.id].ended_at or float("inf")) <= one.late_at for one in trainings if one.late_at is not None]
    over = [((promises[one.id].by or 0.0) - jobs[one.id].created_at) / one.seconds for one in given]
    lost = [job for job in jobs.values() if job.outcome is not Outcome.SUCCEEDED]
    for job in lost:
        progress(f"lost: {job.name} {job.state.value} {job.outcome} {job.reason}")
    return {
        "promised": len(given) / ASK,
        "kept": sum(promises[one.id].outcome is PromiseState.KEPT for one in judged) / len(judged),
        "excused": len(excused),
        "told_over_length": statistics.median(over),
        "told": len(told),
        **({"told_end_90": sum(told) / len(told)} if told else {}),
        "lost": len(lost),
        "jobs_killed": sum(one.why != "succeeded" for job in jobs for one in stage.attempts(job)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="trainings of a third of the length")
    options = parser.parse_args()
    end_on_sigterm()
    part = 1 / 3 if options.quick else 1.0
    with (
        tempfile.TemporaryDirectory(prefix="smore-promises-") as folder,
        platform("smore-jobs", Path(folder, "record.jsonl")) as stage,
    ):
        figures = run(stage, part)
    if options.json:
        emit("lab.bench.promises", figures, trainings=COUNT, part=rounded(part))
    else:
        print(json.dumps({name: rounded(value) for name, value in figures.items()}, indent=1))
    sys.exit(1 if figures["lost"] or figures["jobs_killed"] else 0)


if __name__ == "__main__":
    main()
