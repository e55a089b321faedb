"""What pages that stay open are told: each topic whole, then what changes, for as long as they read."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import redis

from api import live
from api.app import Application
from api.problems import REFUSED
from api.schemas.live import Topic
from api.server.sse import Event
from smore.domain.access import Scope
from smore.domain.function import FunctionSpec, Profile
from smore.domain.job import Action
from smore.messages.overrides import Paused, encode_paused
from smore.messages.reports import JobReport, ParkedInstance, Report, WarmInstance, WarmState, encode_report
from smore.postgres.catalog import Store
from smore.postgres.jobs import JobChange
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.fleet import Fleet
from smore.redis.queue import Queue
from tests.support.eventually import eventually
from tests.support.gateway import Served, add_key, problem
from tests.support.placed_jobs import placed

ALL = ",".join(Topic)


@pytest.fixture
def http(application: Application, store: Store, catalog: Catalog, report: Any) -> Iterator[httpx.Client]:
    """With a key of the operators; gpu0 reports."""
    number, _ = store.register(
        "default",
        "echo",
        FunctionSpec(entrypoint="zoo.echo:Function", deadline_s=2.0, profile=Profile(memory_mib=50.0)),
    )
    store.activate("default", "echo", number, {})
    store.create_project("other")
    report("gpu0")
    with (
        Served(application) as served,
        httpx.Client(base_url=served.url, headers={"X-API-Key": add_key(catalog, *Scope)}, timeout=30) as client,
    ):
        eventually(lambda: client.get("/v1/me").status_code == 200, what="the key")
        yield client


@pytest.fixture
def report(redis_client: "redis.Redis", config: Settings) -> Any:
    queue = Queue(redis_client, config.redis.prefix, config.queue)

    def write(gpu: str, ttl_s: float = 60, **of: Any) -> None:
        told = Report(
            **{
                "gpu": gpu,
                "boot": "b",
                "at": time.time(),
                "kind": "cuda",
                "device": "H",
                "sharing_mode": "time-slice",
                "slots": 8,
                "memory_total_mib": 1,
                "memory_used_mib": 0,
                "utilisation": 0,
                "utilisation_counter": "n",
                "function_utilisation": 0,
                "running": 0,
                "node": "host-a",
                **of,
            }
        )
        queue.report(gpu, encode_report(told), ttl_s=ttl_s, lease_s=2, cursor="", running=[])

    return write


class Stream:
    """The events of one viewer, and the rows that a page would have."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.read()
        self.headers = answer.headers
        self._lines = answer.iter_lines()
        self.rows: dict[str, dict[str, Any]] = {}
        self.kinds: dict[str, list[str]] = {}

    def read(self) -> tuple[str, str]:
        """Take the next event: its kind and topic."""
        kind = ""
        for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "event":
                kind = value
                if kind == "end":
                    break
            elif field == "data":
                data = json.loads(value)
                topic = data["topic"]
                rows = self.rows.setdefault(topic, {})
                if kind == "snapshot":
                    rows.clear()
                rows.update({name(topic, row): row for row in data["rows"]})
                for gone in data["gone"]:
                    del rows[gone]
                self.kinds.setdefault(topic, []).append(kind)
                return kind, topic
        raise EOFError

    def until(self, told: Any) -> None:
        """Read until something is told."""
        until = time.monotonic() + 20
        while not told(self.rows):
            assert time.monotonic() < until, self.rows
            self.read()


def name(topic: str, row: dict[str, Any]) -> str:
    return f"{row['project']}/{row['function']}" if topic == "queues" else str(row["id"])


@contextmanager
def watching(http: httpx.Client, topics: str = ALL, key: str = "", **query: Any) -> Iterator[Stream]:
    headers = {"X-API-Key": key} if key else {}
    with http.stream("GET", "/v1/live", params={"topics": topics, **query}, headers=headers) as answer:
        yield Stream(answer)


def test_each_topic_comes_whole_and_then_what_changes(
    http: httpx.Client, report: Any, redis_client: "redis.Redis", store: Store, catalog: Catalog
) -> None:
    job = placed(store, "night", ["gpu0"])
    with watching(http) as stream:
        stream.until(lambda rows: set(rows) == set(Topic))
        assert [kinds[0] for kinds in stream.kinds.values()] == ["snapshot"] * 4
        assert stream.headers["x-accel-buffering"] == "no"
        assert list(stream.rows["gpus"].values()) == http.get("/v1/gpus").json()["gpus"]
        assert list(stream.rows["trainings"].values()) == http.get("/v1/jobs").json()["jobs"]
        shown = http.get("/v1/queues").json()["queues"]
        assert list(stream.rows["queues"].values()) == shown
        # Nobody leads here.
        assert {"leader", "job_leader"} <= set(stream.rows["problems"])

        report("gpu0", utilisation=0.5)
        report("gpu1", health="XID 79")
        stream.until(lambda rows: rows["gpus"].get("gpu0", {}).get("utilisation") == 0.5)
        stream.until(lambda rows: "gpu1" in rows["gpus"] and "health:gpu1" in rows["problems"])
        store.delete_function("default", "echo")
        stream.until(lambda rows: not rows["queues"])
        told = JobReport(id=job.id, project="default", state="running", pid=1, memory_mib=1, iterations=7, attempt=1)
        report("gpu0", jobs=[told])
        stream.until(lambda rows: rows["trainings"][job.id]["iterations"] == 7)
        redis_client.delete("smore:gpu:gpu1")
        stream.until(lambda rows: rows["gpus"]["gpu1"]["silent_since"] and "silent:gpu1" in rows["problems"])
        assert "health:gpu1" not in stream.rows["problems"]
        assert set(stream.kinds["gpus"][1:]) == {"change"}
        # A second viewer begins with all of it.
        with watching(http, "gpus") as second:
            assert second.read() == ("snapshot", "gpus")
            assert set(second.rows["gpus"]) == {"gpu0", "gpu1"}


def test_problems_have_a_page_and_a_command(
    http: httpx.Client,
    application: Application,
    report: Any,
    redis_client: "redis.Redis",
    store: Store,
    catalog: Catalog,
) -> None:
    failed = placed(store, "night", ["gpu0"], running=True)
    store.jobs.move(failed.id, Action.END, JobChange(exit_code=3))
    beyond = JobReport(
        id="1" * 32,
        project="other",
        state="running",
        pid=1,
        memory_mib=1,
        iterations=7,
        budget=0.05,
        loss=0.1,
        loss_low=0.08,
        loss_high=0.12,
        loss_windows=30,
    )
    report("gpu0", jobs=[beyond])
    fleet = Fleet(redis_client, "smore:")
    for target in ("*", "f:default/echo", "-g:gpu0", "f:other/x"):
        fleet.pause(target, by="k")
        redis_client.hset("smore:paused:by", target, encode_paused(Paused(at=time.time() - 1900, by="k")))

    for name in ("echo", "seldom"):
        for _ in range(REFUSED - (name == "seldom")):
            application.state.gateway.refused.count(f"default/{name}", "slo_infeasible")

    with watching(http, "problems") as stream:
        stream.until(lambda rows: len(rows.get("problems", ())) == 9)
    found = stream.rows["problems"]
    assert found[f"budget:{'1' * 32}:gpu0"]["text"] == (
        f"{'1' * 32} loses 8.0 to 12.0 % to functions on gpu0, of a budget of 5 %."
    )
    commands = {one["id"]: one["command"] for one in found.values() if one["kind"] == "paused"}
    assert commands == {
        "paused:platform::False": "smore queues resume --all",
        "paused:function:default/echo:False": "smore queues resume echo",
        "paused:function:other/x:False": "smore queues resume x",
        "paused:gpu:gpu0:True": "smore gpus resume gpu0",
    }
    assert found["refused:default/echo"]["text"] == (
        "10 calls of echo were refused in the last 5 minutes: slo_infeasible 10."
    )
    over = found[f"failed:{failed.id}"]
    assert (over["text"], over["command"]) == ("night is over: failed, exit code 3.", "smore jobs explain night")
    assert all(one["page"].startswith("/ui/") for one in found.values())

    stranger = {"X-API-Key": add_key(catalog, Scope.READ, project="third")}
    eventually(lambda: http.get("/v1/me", headers=stranger).status_code == 200, what="the key")
    with http.stream("GET", "/v1/live", params={"topics": "problems"}, headers=stranger) as answer:
        stream = Stream(answer)
        stream.read()
    # Neither the trainings of other projects nor their functions.
    assert set(stream.rows["problems"]) == {"leader", "job_leader", "paused:platform::False", "paused:gpu:gpu0:True"}


def test_a_change_of_a_training_is_shown_at_once(
    http: httpx.Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "RECORDS_S", 1e6)
    job = placed(store, "night", ["gpu0"])
    with watching(http, "trainings") as stream:
        stream.until(lambda rows: job.id in rows.get("trainings", ()))
        http.put(f"/v1/jobs/{job.id}/slo", json={"budget": 0.2}).raise_for_status()
        stream.until(lambda rows: rows["trainings"][job.id]["budget"] == 0.2)


@pytest.mark.parametrize("recorded_s", [0.0, 60.0])
def test_of_a_training_that_has_long_been_over_the_past_is_read_once(
    http: httpx.Client, application: Application, store: Store, monkeypatch: pytest.MonkeyPatch, recorded_s: float
) -> None:
    monkeypatch.setattr(live, "RECORDED_S", recorded_s)
    job = placed(store, "night", ["gpu0"], running=True)
    store.jobs.move(job.id, Action.END, JobChange(exit_code=0))
    with watching(http, "trainings") as stream:
        stream.read()
        (maker,) = application.state.live._makers.values()
        shown = maker._records._shown
        application.state.gateway.changed_jobs += 1
        again = eventually(lambda: maker._records._shown is not shown and maker._records._shown, what="another read")

    assert (again.past[job.id] is shown.past[job.id]) == (recorded_s == 0)


def test_who_may_watch_what(http: httpx.Client, catalog: Catalog) -> None:
    reader = {"X-API-Key": add_key(catalog, Scope.READ)}
    eventually(lambda: http.get("/v1/me", headers=reader).status_code == 200, what="the key")

    problem(http.get("/v1/live", params={"topics": "gpus,moon"}), 422, "invalid_input")
    problem(http.get("/v1/live"), 422, "invalid_input")
    problem(http.get("/v1/live", params={"topics": "gpus", "project": "other"}, headers=reader), 403, "forbidden")
    problem(http.get("/v1/live", params={"topics": "gpus", "all_projects": "true"}, headers=reader), 403, "forbidden")


def test_a_maker_works_while_somebody_looks(
    http: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application.state.gateway.settings.logs, "followers", 2)
    looks = application.state.live
    with watching(http, "gpus") as first, watching(http, "gpus") as second:
        first.read(), second.read()
        (maker,) = looks._makers.values()
        assert len(maker._viewers) == 2
        refused = http.get("/v1/live", params={"topics": "gpus"})
        assert problem(refused, 503, "unavailable") and refused.headers["retry-after"] == "1"
    eventually(lambda: not looks.viewers and maker._task.done(), what="nobody looks")
    assert maker._rows == {}


def test_one_project_leaves_room_for_others(
    http: httpx.Client, application: Application, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application.state.gateway.settings.logs, "followers", 4)
    readers = [add_key(catalog, Scope.READ, project=name) for name in ("other", "third")]
    known = application.state.gateway.catalog.keys
    eventually(lambda: all(key.split("_")[1] in known for key in readers), what="the keys")
    with watching(http, "gpus", key=readers[0]) as first:
        first.read()
        with http.stream("GET", "/v1/live?topics=gpus", headers={"X-API-Key": readers[0]}) as refused:
            assert refused.status_code == 503
        with watching(http, "gpus", key=readers[1]) as second:
            second.read()


def test_who_does_not_read_is_cut_off() -> None:
    asyncio.run(_not_reading())


async def _not_reading() -> None:
    left: list[live.Viewer] = []
    viewer = live.Viewer(SimpleNamespace(leave=left.append), [Topic.GPUS])  # type: ignore[arg-type]  # nobody makes events
    piece = b"x" * (live.MOST_BYTES // 4)
    viewer.put(Event(id="1", kind="snapshot", data=piece * 8))
    for _ in range(5):
        viewer.put(Event(id="1", kind="change", data=piece))
    # One turn may bring more than may wait for longer.
    assert not viewer.cut and len(await viewer.take()) == 6
    viewer.turned()
    for _ in range(5):
        viewer.put(Event(id="2", kind="change", data=piece))
    assert not viewer.cut
    viewer.turned()
    assert viewer.cut and left == [viewer] and await viewer.take() == []


def test_a_session_that_ends_ends_its_stream(
    http: httpx.Client, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.live.SESSION_S", 0.1)
    url, key = str(http.base_url).rstrip("/"), http.headers["X-API-Key"]
    with httpx.Client(base_url=url, headers={"Origin": url}, timeout=30) as page:
        opened = page.post("/v1/session", json={"key": key}).json()
        page.headers["X-SMore-Session"] = opened["session"]
        with watching(page, "gpus") as stream:
            stream.read()
            page.delete("/v1/session").raise_for_status()
            with pytest.raises(EOFError):
                stream.until(lambda _: False)


def test_a_row_of_a_gpu_says_what_its_worker_reports(http: httpx.Client, report: Any, catalog: Catalog) -> None:
    job = JobReport(
        id="1" * 32,
        project="other",
        state="running",
        pid=1,
        memory_mib=1,
        iterations=9,
        budget=0.2,
        held=0.5,
        guest=True,
    )
    parked = ParkedInstance(function="default/echo", revision=1, memory_mib=1.0, host_mib=2.0, left_s=3.0)
    report(
        "gpu0",
        jobs=[job],
        parked=[parked],
        warm=[
            WarmInstance(function=f"{project}/echo", revision=1, state=WarmState.IDLE, memory_mib=memory, pid=2)
            for project, memory in (("default", 300.0), ("other", 500.0))
        ],
        quarantined=["default/echo@1", "other/x@2"],
        duty=0.75,
        closed=True,
        closed_until=1769860800.0,
    )

    (row,) = http.get("/v1/gpus").json()["gpus"]

    assert (row["node"], row["duty"], row["silent_since"]) == ("host-a", 0.75, None)
    assert [each["memory_mib"] for each in row["warm"]] == [300] and row["memory_warm_mib"] == 800
    assert row["closed_until"].startswith("2026-01-31T12:00:00")
    assert row["quarantined"] == ["echo@1"] and row["parked"][0]["host_mib"] == 2.0
    (training,) = row["jobs"]
    assert (training["budget"], training["held"], training["iterations"], training["loss"]) == (0.2, 0.5, 9, None)


def test_operators_see_the_queues_of_all_projects(http: httpx.Client, store: Store) -> None:
    number, _ = store.register("other", "echo", FunctionSpec(entrypoint="zoo.echo:Function"))
    store.activate("other", "echo", number, {})

    def shown(**query: str) -> list[tuple[str, str]]:
        rows = http.get("/v1/queues", params=query).json()["queues"]
        return [(row["project"], row["function"]) for row in rows]

    eventually(lambda: len(shown(all_projects="true")) == 2, what="the function")
    assert shown(all_projects="true") == [("default", "echo"), ("other", "echo")]
    assert (shown(), shown(project="other")) == ([("default", "echo")], [("other", "echo")])
    with watching(http, "queues", all_projects="true") as stream:
        stream.read()
        assert set(stream.rows["queues"]) == {"default/echo", "other/echo"}


def test_a_queue_says_which_deadline_would_be_met(
    http: httpx.Client, redis_client: "redis.Redis", config: Settings
) -> None:
    def row() -> dict[str, Any]:
        (found,) = http.get("/v1/queues").json()["queues"]
        return dict(found)

    assert (row()["deadline_ms"], row()["earliest_deadline_ms"]) == (2000.0, None)
    queue = Queue(redis_client, config.redis.prefix, config.queue)
    queue.publish_feasible({"default/echo": f"{int(time.time() * 1e6)}:100000:50000:0:0:200000"}, {})
    # A tenth more than the cold start, and 10 ms, rounded up.
    assert 230 <= row()["earliest_deadline_ms"] <= 231
    http.post("/v1/queues/echo/pause").raise_for_status()
    assert row()["earliest_deadline_ms"] is None
    http.put("/v1/functions/echo/slo", json={"deadline_ms": 500}).raise_for_status()
    assert row()["deadline_ms"] == 500.0


def test_a_wait_grows_while_nothing_else_happens(http: httpx.Client, redis_client: "redis.Redis") -> None:
    redis_client.set("smore:leader", "somebody")
    with watching(http, "queues") as stream:
        stream.until(lambda rows: rows.get("queues"))
        http.post("/v1/queues/echo/pause").raise_for_status()
        body, later = {"input": 1}, {"Prefer": "respond-async", "Smore-Deadline-Ms": "60000"}
        http.post("/v1/functions/echo/invocations", json=body, headers=later).raise_for_status()
        waits: list[float] = []
        for _ in range(3):
            stream.until(lambda rows: rows["queues"]["default/echo"]["oldest_wait_s"] > max(waits, default=0.0))
            waits.append(stream.rows["queues"]["default/echo"]["oldest_wait_s"])
        assert stream.rows["queues"]["default/echo"]["paused"]


def test_a_stream_is_compressed_for_those_who_take_that_and_says_the_same(http: httpx.Client) -> None:
    read: dict[str, Any] = {}
    for coding in ("gzip", "identity"):
        with http.stream("GET", "/v1/live", params={"topics": "gpus"}, headers={"Accept-Encoding": coding}) as answer:
            assert answer.headers.get("content-encoding", "identity") == coding
            lines = answer.iter_lines()
            data = next(line for line in lines if line.startswith("data: "))
            read[coding] = json.loads(data.removeprefix("data: "))

    assert read["gzip"] == read["identity"]
    assert [row["id"] for row in read["gzip"]["rows"]] == ["gpu0"]
