"""One kill of each kind under load; `python -m bench.kills` holds the whole matrix."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from smore.client import Client
from tests.acceptance.conftest import Platform
from tests.eventually import eventually

pytestmark = pytest.mark.acceptance

#: Where an fsync takes long, a Redis of standard durability answers up to two seconds before it writes.
ENVIRONMENT = {"SMORE_REDIS__DURABILITY": "strict"}
TERMINAL = {"succeeded", "failed", "rejected", "expired", "cancelled"}


class Traffic:
    """A few threads that invoke as fast as they are answered; remembers what was accepted."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._stop = threading.Event()
        self.accepted: dict[str, object] = {}
        self.successes: list[tuple[float, float]] = []
        self.wrong: list[str] = []

    def _loop(self, worker: int) -> None:
        headers = {"Authorization": f"Bearer {self._platform.key}"}
        with httpx.Client(base_url=self._platform.url, headers=headers, timeout=20) as http:
            n = 0
            while not self._stop.is_set():
                n += 1
                value = [worker, n]
                asynchronous = {"Prefer": "respond-async"} if n % 4 == 0 else {}
                sent = time.monotonic()
                try:
                    answer = http.post("/v1/functions/nap/invocations", json={"input": {"s": 0.02, "v": value}}, headers=asynchronous)
                except httpx.HTTPError:
                    self._stop.wait(0.02)
                    continue
                if answer.status_code in (200, 202):
                    said = answer.json()
                    self.accepted[said["id"]] = value
                    if answer.status_code == 200:
                        self.successes.append((sent, time.monotonic()))
                        if said["output"]["v"] != value:
                            self.wrong.append(said["id"])
                else:
                    self._stop.wait(0.02)

    @contextmanager
    def running(self, threads: int = 6) -> Iterator["Traffic"]:
        workers = [threading.Thread(target=self._loop, args=(n,), daemon=True) for n in range(threads)]
        for worker in workers:
            worker.start()
        eventually(lambda: len(self.successes) > 20, 30, "traffic")
        try:
            yield self
        finally:
            self._stop.set()
            for worker in workers:
                worker.join(30)

    def recovered(self, moment: float) -> bool:
        """A success of a request sent after ``moment``."""
        return any(sent > moment for sent, _ in self.successes[-50:])


KILLS: dict[str, Callable[[Platform], int]] = {
    "gateway": lambda p: p.pid("gateway"),
    "leader": lambda p: p.leader_pid(),
    "beat": lambda p: p.pid("beat"),
    "worker": lambda p: p.pid("worker-cpu0"),
    "runner": lambda p: eventually(lambda: p.runner_pids("nap"), what="a runner")[0],
    "redis": lambda p: p.pid("redis"),
    "postgres": lambda p: p.pid("postgres"),
}


@pytest.fixture(scope="module")
def nap(platform: Platform) -> Platform:
    assert platform.redis.config_get("appendfsync") == {"appendfsync": "always"}
    platform.deploy("nap", "zoo.misbehave:Sleep", slo={"deadline": "20s"}, batching={"max_size": 8}, retries={"max_attempts": 6},
        limits={"max_pending": 10000}, profile={"run_ms": {1: 20, 8: 20}, "load_ms": 100})  # fmt: skip
    argv = ["zoo.train", "--model", "deepfm", "--preset", "cpu", "--batch", "16", "--input-wait", "0.5", "--seconds", "3600"]
    platform.client.start_job("bystander", argv)
    eventually(lambda: any(job.iterations > 3 for report in platform.reports() for job in report.jobs), 40, "iterations")
    return platform


def job_iterations(platform: Platform) -> int:
    from smore.track import TrackReader

    return max(TrackReader(str(track)).count for track in (platform.home / "run" / "jobs").glob("*.track"))


@pytest.mark.parametrize("victim", list(KILLS))
@pytest.mark.timeout(900)
def test_a_kill_loses_nothing(nap: Platform, victim: str) -> None:
    """kill -9 of each process in the middle of traffic: everything accepted ends, every answer is right, training goes on."""
    traffic = Traffic(nap)
    with traffic.running():
        before = job_iterations(nap)
        moment = time.monotonic()
        os.kill(KILLS[victim](nap), signal.SIGKILL)
        eventually(lambda: traffic.recovered(moment), 30, f"a success after the kill of {victim}")
        eventually(lambda: job_iterations(nap) > before, 20, "training going on")
    with Client(nap.url, nap.key) as client:
        open_ = set(traffic.accepted)

        def all_ended() -> bool:
            open_.difference_update({id_ for id_ in open_ if client.invocation(id_).state in TERMINAL})
            return not open_

        eventually(all_ended, 40, f"the end of {len(open_)} invocations")
        # Postgres takes longest to be back; the next kill is to find everything there.
        jobs = httpx.Request("GET", f"{nap.url}/v1/jobs", headers={"X-API-Key": nap.key})
        with httpx.Client(timeout=30) as http:
            eventually(lambda: http.send(jobs).status_code == 200, 20, "an answer out of Postgres")
    assert traffic.wrong == []
