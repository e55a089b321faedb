"""
Training that runs elsewhere: it registers, is shown, is watched, and is never harmed by the platform's coming and
going.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from api.app import create_app
from scheduler.jobs.apart import Apart
from scheduler.jobs.attached import Attached
from smore.domain.access import Scope
from smore.domain.job import REFUSED
from smore.messages.commands import AllowJob, AttachJob, StopJob
from smore.messages.reports import Report, encode_report
from smore.postgres.catalog import Store
from smore.process.settings import Settings
from smore.redis import fleet
from smore.redis.catalog import Catalog
from smore.redis.queue import Queue
from tests.support.eventually import eventually
from tests.support.fake_platform import GPU, report
from tests.support.gateway import Served, add_key, problem
from tests.support.trainings import jobs as own_jobs
from worker import proc
from worker.training import rank_watch
from worker.training import remote_steps as feeds
from worker.training.remote_steps import RemoteSteps

ROOT = Path(__file__).resolve().parents[3]

#: A training of somebody else's: it says every step, so that a test can see it go on.
LOOP = """
import sys, smore
with smore.track(name="theirs", gpu="test0") as tracker:
    for line in sys.stdin:
        if line == "active\\n":
            print(tracker.active, flush=True)
            continue
        tracker.step()
        print(line.strip(), flush=True)
"""


class Worker:
    """The part of a GPU worker that knows of jobs, moved by hand."""

    def __init__(self, config: Settings, client: "redis.Redis", home: Path) -> None:
        prefix = config.redis.prefix
        self._queue = Queue(client, prefix, config.queue)
        self._fleet = fleet.Fleet(client, prefix)
        self._cursor = "0-0"
        self.moved: list[int] = []
        #: What the device says of who computes on it.
        self.computing: dict[int, float] | None = None
        self.jobs = own_jobs(
            home,
            gpu=GPU,
            computing=lambda: self.computing,
            users=frozenset({os.geteuid()}),
            steps_of=lambda id_: RemoteSteps(client, prefix, id_, GPU),
            started=self.moved.append,
        )
        self.jobs.adopt()

    def beat(self) -> None:
        for entry, command in self._fleet.commands(GPU, self._cursor, 0.001):
            self._cursor = entry
            match command:
                case AttachJob():
                    self.jobs.attach(command)
                case StopJob():
                    self.jobs.stop(command)
                case AllowJob():
                    self.jobs.allow(command.id)
        self.jobs.watch.read_steps()
        self.jobs.tick()
        # Of what is over by now.
        self.jobs.watch.read_steps()
        document = encode_report(Report(**{**_fields(report()), "jobs": self.jobs.reports()}))
        self._queue.report(GPU, document, ttl_s=60, lease_s=2, cursor="", running=[])


def _fields(one: Report) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def follow(store: Store, seen: fleet.Fleet) -> None:
    """The job scheduler's look at trainings that it did not start."""
    Attached(store.jobs, 60.0, Apart()).follow(0.0, store.jobs.unfinished(), seen.reports())


@pytest.fixture
def worker(config: Settings, redis_client: "redis.Redis", tmp_path: Path) -> Worker:
    made = Worker(config, redis_client, tmp_path)
    made.beat()
    return made


@pytest.fixture
def key(catalog: Catalog, store: Store) -> str:
    return add_key(catalog, *Scope)


@pytest.fixture
def http(config: Settings, worker: Worker, key: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    # The worker looks when a test moves it, which mostly is after the answer.
    monkeypatch.setattr("api.routes.attached.SEEN_S", 0.0)
    with (
        Served(create_app(config)) as served,
        httpx.Client(base_url=served.url, headers={"X-API-Key": key}, timeout=30) as client,
    ):
        eventually(lambda: client.get("/v1/jobs").status_code == 200, what="the key")
        yield client


Train = Callable[[str, str], "subprocess.Popen[str]"]


@pytest.fixture
def train() -> Iterator[Train]:
    """Starts a training outside the platform: (URL, key) → its process."""
    started: list[subprocess.Popen[str]] = []

    def start(url: str, key: str) -> "subprocess.Popen[str]":
        env = os.environ | {"PYTHONPATH": str(ROOT), "SMORE_URL": url, "SMORE_API_KEY": key}
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def step(process: "subprocess.Popen[str]", count: int = 1) -> None:
    """Let it make steps, and see that it has made them."""
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(count):
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{number}\n"


def jobs(http: httpx.Client, worker: Worker) -> list[dict[str, Any]]:
    worker.beat()
    found: list[dict[str, Any]] = http.get("/v1/jobs").json()["jobs"]
    return found


def test_a_script_outside_attaches_is_shown_and_trains_on_when_the_platform_goes(
    config: Settings, redis_client: "redis.Redis", worker: Worker, key: str, train: Train, store: Store, tmp_path: Path
) -> None:
    with (
        Served(create_app(config)) as served,
        httpx.Client(base_url=served.url, headers={"X-API-Key": key}, timeout=30) as http,
    ):
        eventually(lambda: http.get("/v1/jobs").status_code == 200, what="the key")
        process = train(served.url, key)
        step(process, 3)
        (job,) = eventually(
            lambda: [one for one in jobs(http, worker) if one["iterations"] == 3], within_s=15, what="three steps"
        )
        assert (job["name"], job["gpus"], job["state"], job["source"], job["measured"]) == (
            "theirs",
            [GPU],
            "running",
            "tracked",
            True,
        )
        (seen,) = worker.jobs.reports()
        assert (seen.pid, seen.solo_count) == (process.pid, 3), "it is known by its process, and its iterations count"
        assert worker.moved == [], "its process is left where it is"
    # No gateway: it trains on, and what it did meanwhile is told to the next one, by the same job.
    step(process, 5)
    again = Worker(config, redis_client, tmp_path)
    assert again.jobs.ranks.running() == [job["id"]], "a worker that starts anew adopts it"
    port = int(served.url.rpartition(":")[2])
    with (
        Served(create_app(config), port) as back,
        httpx.Client(base_url=back.url, headers={"X-API-Key": key}, timeout=30) as http,
    ):
        step(process, 1)
        eventually(
            lambda: sum(one["iterations"] for one in jobs(http, again)) >= 6,
            within_s=20,
            what="the steps made meanwhile",
        )
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
        eventually(lambda: jobs(http, again)[0]["state"] == "ended", within_s=15, what="its end")
    assert again.jobs.ranks.running() == []


def test_a_process_is_attached_by_its_number_and_let_go(http: httpx.Client, worker: Worker, store: Store) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        made = http.post("/v1/jobs/attach", json={"name": "theirs", "pid": process.pid}).json()
        (job,) = jobs(http, worker)
        assert (job["id"], job["source"], job["measured"], job["state"]) == (made["id"], "attached", False, "running")
        assert job["degradation"] is None
        (seen,) = worker.jobs.reports()
        assert (seen.measured, seen.memory_mib) == (False, 1.0)
        assert http.post(f"/v1/jobs/{made['id']}/stop").status_code == 202
        worker.beat()
        assert worker.jobs.ranks.running() == []
        assert process.poll() is None, "it trains on"
        (again,) = [http.post("/v1/jobs/attach", json={"name": "theirs", "pid": process.pid, "gpu": GPU}).json()]
        worker.beat()
        assert worker.jobs.ranks.running() == [again["id"]]
    finally:
        process.kill()
        process.communicate()
    worker.beat()
    assert worker.jobs.ranks.running() == [], "its end is seen"


def test_what_cannot_be_attached_is_refused(http: httpx.Client, worker: Worker) -> None:
    def attach(**body: object) -> httpx.Response:
        return http.post("/v1/jobs/attach", json={"name": "theirs", "pid": 2**30} | body)

    assert problem(attach(gpu="none"), 422, "invalid_input")["field"] == "gpu"
    assert problem(attach(budget=0.05), 422, "invalid_input")["field"] == "budget"
    assert problem(attach(workload="x"), 422, "invalid_spec")["field"] == "workload"
    assert attach().status_code == 201
    worker.beat()
    assert [(one.exit_code, one.reason) for one in worker.jobs.reports()] == [
        (REFUSED, f"there is no process {2**30} on the machine of {GPU}")
    ]
    assert problem(attach(pid=1), 422, "invalid_input")["field"] == "pid"
    problem(http.post("/v1/jobs/none/steps", json={"gpu": GPU, "steps": []}), 404, "not_found")


def test_the_platforms_processes_are_refused_and_what_is_watched_already(
    http: httpx.Client, worker: Worker, redis_client: "redis.Redis", store: Store, config: Settings
) -> None:
    """Whoever asks: this key is an operator's."""

    def attach(**body: object) -> dict[str, Any]:
        id_ = http.post("/v1/jobs/attach", json={"name": "squat"} | body).json()["id"]
        worker.beat()
        follow(store, fleet.Fleet(redis_client, config.redis.prefix))
        found: dict[str, Any] = http.get(f"/v1/jobs/{id_}").json()
        return found

    for pid in (os.getpid(), int(redis_client.info("server")["process_id"])):
        job = attach(pid=pid)
        assert (job["state"], job["outcome"], job["memory_mib"]) == ("ended", "refused", 0.0)
        assert "platform's own" in job["reason"]
    # One that tells its steps is known by them; its process is not looked at.
    job = attach(pid=os.getpid(), tracked=True)
    assert (job["state"], [one.pid for one in worker.jobs.reports() if one.id == job["id"]]) == (
        "running",
        [0],
    )
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert attach(pid=process.pid)["state"] == "running"
        again = attach(pid=process.pid, boot=proc.boot_id(), start=proc.start_time(process.pid))
        assert "watched already" in again["reason"]
    finally:
        process.communicate(b"\n")


def test_a_projects_key_may_have_its_own_users_processes_watched(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        start, boot = proc.start_time(process.pid) or 0, proc.boot_id()
        monkeypatch.setattr(worker.jobs, "_users", frozenset({os.geteuid() + 1}))

        def attach(id_: str, **more: Any) -> tuple[int, float, str]:
            """(The process that is watched, 0 = none; its memory that is counted; why it is refused)."""
            given: dict[str, Any] = {"start": 0, "boot": "", "tracked": False} | more
            worker.jobs.attach(AttachJob(version=1, id=id_, project="tenant", name="n", pid=process.pid, **given))
            worker.jobs.tick()
            (one,) = [one for one in worker.jobs.reports() if one.id == id_]
            worker.jobs.stop(StopJob(1, id_))
            return one.pid, one.memory_mib, one.reason

        itself: dict[str, Any] = {"start": start, "boot": boot}
        for id_, known in (("number", {}), ("itself", itself)):
            pid, memory, reason = attach(id_, **known)
            assert (pid, memory) == (0, 0.0)
            assert "SMORE_WORKER__ATTACH_USERS" in reason, "everybody can read the start and the boot of any process"
        assert attach("tracked", **itself, tracked=True) == (0, 0.0, ""), "known by its steps alone"
        assert attach("operator", any_user=True) == (process.pid, 1.0, "")
        assert "no process" in attach("another", start=start + 1, boot=boot)[2]
        monkeypatch.setattr(worker.jobs, "_users", frozenset({os.geteuid()}))
        assert (
            attach("allowed", **itself) == attach("allowed-tracked", **itself, tracked=True) == (process.pid, 1.0, "")
        )
    finally:
        process.communicate(b"\n")


def test_what_does_not_compute_on_the_gpu_is_let_go(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))

    def seen() -> dict[str, tuple[str, str]]:
        worker.jobs.tick()
        return {one.id: (one.state, one.reason) for one in worker.jobs.reports()}

    try:
        for process, id_ in ((first, "there"), (second, "elsewhere")):
            command = AttachJob(
                version=1, id=id_, project="p", name="n", pid=process.pid, start=0, boot="", tracked=False
            )
            worker.jobs.attach(command)
        running = ("running", "")
        worker.computing = {first.pid: 500.0}
        assert seen() == {"there": running, "elsewhere": running}, "it has time to open the device"
        monkeypatch.setattr(rank_watch, "PLACED_S", -1.0)
        worker.computing = None
        assert seen() == {"there": running, "elsewhere": running}, "where the device cannot tell nobody is let go"
        # It was seen there once: it need not compute all the time.
        worker.computing = {}
        found = seen()
        assert (found["there"], found["elsewhere"][0]) == (running, "ended")
        assert f"process {second.pid} did not compute on {GPU}" in found["elsewhere"][1]
        assert second.poll() is None
    finally:
        for process in (first, second):
            process.communicate(b"\n")


def test_what_a_project_may_reserve(http: httpx.Client, worker: Worker) -> None:
    def start(name: str, memory: str | None) -> httpx.Response:
        return http.post("/v1/jobs", json={"name": name, "argv": ["zoo.train", "--model", "bert"], "memory": memory})

    assert start("a", "1000MiB").status_code == 201
    first = http.patch("/v1/projects/default/limits", json={"job_memory_mib": 1500})
    assert first.json()["limits"]["job_memory_mib"] == 1500
    eventually(lambda: start("b", "500MiB").status_code == 429, what="the limit")
    assert problem(start("b", "500MiB"), 429, "limit_reached")["field"] == "job_memory_mib"
    assert start("b", "400MiB").status_code == 201
    http.patch("/v1/projects/default/limits", json={"jobs": 2})
    for refusal in (start("c", None), http.post("/v1/jobs/attach", json={"name": "c", "pid": 2**30})):
        assert problem(refusal, 429, "limit_reached")["field"] == "jobs"
    (project,) = http.get("/v1/projects").json()["projects"]
    assert (project["use"]["jobs"], project["use"]["job_memory_mib"]) == (2, 0), "they wait"


def test_ranks_of_one_training_make_one_job(store: Store) -> None:
    attach = partial(store.jobs.attach, "default", "big", source="tracked", group="g")
    first = attach("a", rank="1")
    assert attach("a", rank="1").id == first.id, "the same process twice"
    both = attach("b", rank="2")
    assert (both.id, both.gpus) == (first.id, ["a", "b"])
    with pytest.raises(Exception, match="Another rank"):
        attach("a", rank="3")
    anew = attach("a", rank="1", former=first.id)
    assert anew.id != first.id
    assert store.jobs.get("default", first.id).state == "lost"


def test_one_that_cannot_be_seen_lives_by_its_word(
    http: httpx.Client,
    worker: Worker,
    config: Settings,
    redis_client: "redis.Redis",
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = {"name": "far", "pid": os.getpid(), "start": 1, "boot": "another machine's", "tracked": True, "gpu": GPU}
    id_ = http.post("/v1/jobs/attach", json=body).json()["id"]
    end = time.time()
    # They began after the worker did.
    steps = {"gpu": GPU, "first": 0, "steps": [[end - 0.002, 0.001], [end - 0.001, 0.001], [end + 3600, 0.1]]}
    for _ in range(2):  # the same again counts once
        assert http.post(f"/v1/jobs/{id_}/steps", json=steps).status_code == 204
    (job,) = jobs(http, worker)
    (seen,) = worker.jobs.reports()
    assert (seen.pid, seen.iterations, seen.solo_count) == (0, 3, 2), "a step in the future is counted, and in no mean"
    assert worker.jobs.ranks.pids() == []
    monkeypatch.setattr(feeds, "SILENT_S", -1.0)
    worker.beat()
    assert [one.state for one in worker.jobs.reports()] == ["lost"]
    follow(store, fleet.Fleet(redis_client, config.redis.prefix))
    assert http.get(f"/v1/jobs/{id_}").json()["state"] == "lost"
    problem(http.post(f"/v1/jobs/{id_}/steps", json=steps), 404, "not_found")
    assert job["id"] == id_


def test_one_that_nobody_sees_counts_for_nothing_until_an_operator_allows_it(
    http: httpx.Client, worker: Worker, catalog: Catalog, store: Store
) -> None:
    store.create_project("tenant")
    tenant = {"X-API-Key": add_key(catalog, Scope.JOBS, Scope.READ, Scope.ADMIN, project="tenant")}
    eventually(lambda: http.get("/v1/jobs", headers=tenant).status_code == 200, what="the key")
    made_up = {"name": "made-up", "pid": 4711, "tracked": True, "gpu": GPU, "budget": 0.01}
    body = made_up | {"start": 1, "boot": "another machine's"}
    id_ = http.post("/v1/jobs/attach", json=body, headers=tenant).json()["id"]
    numbered = http.post("/v1/jobs/attach", json=made_up | {"pid": os.getpid()}, headers=tenant).json()["id"]

    def counting() -> tuple[list[str], bool]:
        """(Jobs for which functions are held back, whether the GPU instance is taken to train)."""
        worker.beat()
        (gpu,) = http.get("/v1/gpus").json()["gpus"]
        return worker.jobs.ranks.running(), gpu["trainings"] > 0

    assert counting() == ([], False), "neither a made-up process nor a number alone proves that something trains"
    job = http.get(f"/v1/jobs/{id_}", headers=tenant).json()
    assert (job["state"], job["unseen"]) == ("running", f"there is no process 4711 on the machine of {GPU}")
    told = http.get(f"/v1/jobs/{id_}/explain", headers=tenant).json()["summary"]
    assert "counts for nothing" in told and "smore jobs allow made-up" in told
    problem(http.post(f"/v1/jobs/{id_}/allow", headers=tenant), 403, "forbidden")
    assert http.post(f"/v1/jobs/{id_}/allow", params={"project": "tenant"}).status_code == 202
    assert counting() == ([id_], True)
    assert http.get(f"/v1/jobs/{id_}", headers=tenant).json()["unseen"] is None
    assert http.get(f"/v1/jobs/{numbered}", headers=tenant).json()["unseen"]


def test_a_flood_of_steps_is_bounded_by_job_and_second(
    http: httpx.Client, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "STEPS", 1000)
    # From 1970 to 2286.
    monkeypatch.setattr(fleet, "STEPS_IN_S", 10**10)
    body = {"start": 1, "boot": "another machine's", "tracked": True, "gpu": GPU}
    flood, honest = (
        http.post("/v1/jobs/attach", json=body | {"name": name, "pid": pid}).json()["id"]
        for name, pid in (("flood", 11), ("honest", 12))
    )
    end = time.time()

    def told(id_: str, first: int, count: int, ended: bool = False) -> httpx.Response:
        steps = {"gpu": GPU, "first": first, "steps": [[end, 0.001]] * count, "ended": ended}
        return http.post(f"/v1/jobs/{id_}/steps", json=steps)

    assert told(flood, 0, 1000).status_code == 204
    refused = problem(told(flood, 1000, 1), 429, "limit_reached")
    assert refused["field"] == "steps" and "once for an iteration" in refused["detail"]
    assert told(honest, 0, 10).status_code == 204
    worker.beat()
    assert {one.id: one.iterations for one in worker.jobs.reports()} == {flood: 1000, honest: 10}
    assert told(flood, 1001, 0, ended=True).status_code == 204, "its end is heard"
    worker.beat()
    assert {one.id: one.state for one in worker.jobs.reports()} == {flood: "ended", honest: "running"}


def test_a_tracked_one_that_is_let_go_does_not_come_back(http: httpx.Client, worker: Worker) -> None:
    body = {"name": "far", "pid": os.getpid(), "tracked": True, "gpu": GPU}
    id_ = http.post("/v1/jobs/attach", json=body).json()["id"]
    assert http.post("/v1/jobs/attach", json=body).json()["id"] == id_, "told twice, because the first answer was lost"
    worker.beat()
    assert http.post(f"/v1/jobs/{id_}/stop").status_code == 202
    worker.beat()
    assert worker.jobs.ranks.running() == []
    problem(http.post(f"/v1/jobs/{id_}/steps", json={"gpu": GPU, "steps": []}), 410, "let_go")


def test_a_tracked_one_that_is_stopped_trains_on_and_tells_no_more(
    http: httpx.Client,
    worker: Worker,
    config: Settings,
    redis_client: "redis.Redis",
    store: Store,
    key: str,
    train: Train,
) -> None:
    process = train(str(http.base_url).rstrip("/"), key)

    def active() -> bool:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("active\n")
        process.stdin.flush()
        return process.stdout.readline() == "True\n"

    step(process, 3)
    (job,) = eventually(
        lambda: [one for one in jobs(http, worker) if one["iterations"] == 3], within_s=15, what="three steps"
    )
    stopped = http.post(f"/v1/jobs/{job['id']}/stop")
    assert (stopped.status_code, stopped.json()["state"], stopped.json()["source"]) == (202, "stopping", "tracked")
    worker.beat()
    assert worker.jobs.ranks.running() == []
    follow(store, fleet.Fleet(redis_client, config.redis.prefix))
    ended = http.get(f"/v1/jobs/{job['id']}").json()
    assert (ended["state"], ended["exit_code"], ended["outcome"]) == ("ended", None, "stopped"), (
        "the platform does not know how it ended, for it has not"
    )
    assert http.post(f"/v1/jobs/{job['id']}/stop").json()["state"] == "ended", "twice is once"

    step(process, 2)
    eventually(lambda: not active(), within_s=15, what="the end of its reports")
    step(process, 2)
    assert process.poll() is None, "it trains on"
    assert [one["id"] for one in jobs(http, worker)] == [job["id"]], "and does not come back"


def test_our_own_are_no_strangers() -> None:
    assert proc.name(os.getpid())
    assert proc.name(2**30) == ""
    assert isinstance(proc.sees_all(), bool)
