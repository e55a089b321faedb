"""A few faults under load; `python -m lab.bench.kills` holds the whole matrix."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from smore.local import machine
from smore_client import Client
from tests.support.eventually import eventually
from tests.support.whole_platform import BYSTANDER, STRICT, Platform

pytestmark = pytest.mark.acceptance

ENVIRONMENT = STRICT
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
                    answer = http.post(
                        "/v1/functions/nap/invocations", json={"input": {"s": 0.02, "v": value}}, headers=asynchronous
                    )
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


def zygote(platform: Platform) -> int:
    record = platform.home / "run" / f"{platform.worker}.json"
    return int(
        json.loads(eventually(lambda: record.read_text() if record.exists() else None, what="a zygote"))["session"]
    )


KILLS: dict[str, Callable[[Platform], list[int]]] = {
    "gateway": lambda p: [p.pid("gateway")],
    "worker and its zygote": lambda p: [p.pid(p.worker), zygote(p)],
    "nursery and a zygote": lambda p: [p.pid("nursery"), zygote(p)],
    "runner": lambda p: eventually(lambda: p.runner_pids("nap"), what="a runner")[:1],
    "redis and leader": lambda p: [p.pid("redis"), p.leader_pid()],
    "postgres": lambda p: [p.pid("postgres")],
}


@pytest.fixture(scope="module")
def nap(platform: Platform) -> Platform:
    assert platform.redis.config_get("appendfsync") == {"appendfsync": "always"}
    platform.deploy(
        "nap",
        "zoo.misbehave:Sleep",
        slo={"deadline": "20s"},
        batching={"max_size": 8},
        retries={"max_attempts": 6},
        limits={"max_pending": 10000},
        profile={"run_ms": {1: 20, 8: 20}, "load_ms": 100},
    )
    # It goes on through all tests of the module; nothing here depends on what it computes.
    platform.client.start_job("bystander", BYSTANDER)
    eventually(
        lambda: any(job.iterations > 3 for report in platform.reports() for job in report.jobs), 40, "iterations"
    )
    return platform


def job_iterations(platform: Platform) -> int:
    from smore.tracking.ring import TrackReader

    return max(TrackReader(str(track)).count for track in (platform.home / "run" / "jobs").glob("*.track"))


@pytest.mark.parametrize("victim", list(KILLS))
@pytest.mark.timeout(900)
def test_a_kill_loses_nothing(nap: Platform, victim: str) -> None:
    """
    kill -9 of each process in the middle of traffic: everything accepted ends, every answer is right, training goes on.
    """
    traffic = Traffic(nap)
    with traffic.running():
        before = job_iterations(nap)
        moment = time.monotonic()
        for pid in KILLS[victim](nap):
            with suppress(ProcessLookupError):  # a zygote may end with its worker
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: traffic.recovered(moment), 30, f"a success after the kill of {victim}")
        eventually(lambda: job_iterations(nap) > before, 20, "training going on")
    all_have_ended(nap, traffic)
    # Postgres takes longest to be back; the next kill is to find everything there.
    jobs = httpx.Request("GET", f"{nap.url}/v1/jobs", headers={"X-API-Key": nap.key})
    with httpx.Client(timeout=30) as http:
        eventually(lambda: http.send(jobs).status_code == 200, 20, "an answer out of Postgres")
    assert traffic.wrong == []


#: In which Redis refuses what takes memory, and every write as where its disk is full.
REFUSALS = {"maxmemory": "1mb", "min-replicas-to-write": "1"}


@pytest.mark.parametrize("setting", list(REFUSALS))
@pytest.mark.timeout(900)
def test_a_redis_that_refuses_writes_is_waited_for(nap: Platform, setting: str) -> None:
    """Every route says 503 and when to come again, readiness says why, nobody leaves, and what was accepted ends."""
    names = [one.name for one in machine.status(nap.home)]
    before = {name: nap.pid(name) for name in names}
    job = {"name": "refused", "argv": ["zoo.train", "--model", "bert", "--seconds", "1"]}
    function = {
        "apiVersion": "smore/v1",
        "kind": "Function",
        "metadata": {"name": "late"},
        "spec": {"entrypoint": "zoo.misbehave:Sleep"},
    }
    writes: list[tuple[str, str, object]] = [
        ("POST", "/v1/functions/nap/invocations", {"input": {"s": 0}}),
        ("POST", "/v1/jobs", job),
        ("PUT", "/v1/functions/late", function),
    ]
    traffic = Traffic(nap)
    usual = nap.redis.config_get(setting)[setting]
    assert usual is not None
    with (
        traffic.running(),
        httpx.Client(base_url=nap.url, headers={"Authorization": f"Bearer {nap.key}"}, timeout=60) as http,
    ):
        nap.redis.config_set(setting, REFUSALS[setting])
        try:
            readiness = eventually(
                lambda: found if (found := http.get("/readyz")).status_code == 503 else None, what="no readiness"
            )
            assert readiness.headers["retry-after"] == "1"
            assert (
                readiness.json()["checks"]["redis"]["ok"] is False
                and "refuses writes" in readiness.json()["checks"]["redis"]["detail"]
            )
            for method, path, body in writes:
                answer = http.request(method, path, json=body)
                assert answer.status_code == 503, (path, answer.text)
                assert answer.headers["retry-after"] == "1", path
                # A platform whose reports have run out meanwhile knows no GPU instance to start a job on.
                assert answer.json()["code"] == "writes_refused" or (
                    path == "/v1/jobs" and answer.json()["code"] == "unavailable"
                ), path
        finally:
            moment = time.monotonic()
            nap.redis.config_set(setting, usual)
        eventually(lambda: http.get("/readyz").status_code == 200, 20, "readiness")
        eventually(lambda: traffic.recovered(moment), 30, "a success")
    all_have_ended(nap, traffic)
    assert {one.state for one in nap.client.jobs() if one.name == "refused"} <= {"lost"}, "nobody will ever start it"
    assert {name: nap.pid(name) for name in names} == before, "whoever left lost time by it"
    assert traffic.wrong == []


def all_have_ended(platform: Platform, traffic: Traffic) -> None:
    with Client(platform.url, platform.key) as client:
        open_ = set(traffic.accepted)

        def all_ended() -> bool:
            open_.difference_update({id_ for id_ in open_ if client.invocation(id_).state in TERMINAL})
            return not open_

        eventually(all_ended, 40, f"the end of {len(open_)} invocations")
