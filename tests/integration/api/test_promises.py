"""Promised ends as their owners ask for them: by a gateway, with a job scheduler that leads beside it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from sqlalchemy import Engine

from api.app import Application
from smore.domain.access import Scope
from smore.messages.job_queue import PublishedQueue
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.job_queue import JobQueue
from tests.support.eventually import eventually
from tests.support.gateway import Served, add_key, problem
from tests.support.job_stage import Stage

BODY: dict[str, Any] = {"name": "night", "argv": ["zoo.train", "--model", "bert"], "duration": "1h"}


@pytest.fixture
def http(application: Application, catalog: Catalog, engine: Engine) -> Iterator[httpx.Client]:
    del engine  # it is empty
    token = add_key(catalog, *Scope)
    with (
        Served(application) as gateway,
        httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client,
    ):
        eventually(lambda: client.get("/v1/functions").status_code == 200, what="the key")
        yield client


@pytest.fixture
def stage(config: Settings, redis_client: "redis.Redis", engine: Engine, tmp_path: Path) -> Iterator[Stage]:
    """Four GPU instances, and a job scheduler that leads in a thread while the test asks."""
    stage, over = Stage(config.model_copy(update={"home": tmp_path}), redis_client, engine), threading.Event()
    stage.pass_by()

    def lead() -> None:
        while not over.is_set():
            stage.queue.lead("t", 60.0)
            stage.pass_by(0.01)
            stage.queue.wait(0.02)

    thread = threading.Thread(target=lead)
    thread.start()
    yield stage
    over.set()
    thread.join()


def ahead(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def test_an_end_is_promised_or_refused_before_anything_waits(stage: Stage, http: httpx.Client) -> None:
    trial = http.post("/v1/jobs:dryRun", json=BODY).json()
    assert (trial["no_promise"], trial["earliest_promise_at"] > ahead(1)) == (None, True)
    by = ahead(9)
    made = http.post("/v1/jobs", json=BODY | {"count": 4, "by": by})
    assert made.status_code == 201, made.text
    job = made.json()
    promise = job["promise"]
    assert (promise["outcome"], promise["why"]) == ("kept_so_far", None)
    assert datetime.fromisoformat(promise["by"]) == datetime.fromisoformat(by)
    assert promise["latest_start_at"] < promise["by"]
    assert http.get(f"/v1/jobs/{job['id']}").json()["promise"] == promise
    assert http.get("/v1/jobs").json()["jobs"][0]["promise"] == promise
    eventually(lambda: http.get("/v1/jobs/queue").json()["jobs"][0]["promised_by"] == promise["by"], what="the queue")

    wanted = BODY | {"name": "late", "by": "3h"}
    tried = problem(http.post("/v1/jobs:dryRun", json=wanted), 429, "slo_infeasible")
    trial = http.post("/v1/jobs:dryRun", json=wanted | {"unless": "queue"}).json()
    assert "no room until then" in trial["no_promise"] and trial["earliest_promise_at"] > ahead(3)
    assert http.post("/v1/jobs:dryRun", json=wanted | {"by": "40h"}).json()["no_promise"] is None
    late = problem(http.post("/v1/jobs", json=wanted), 429, "slo_infeasible")
    assert late["field"] == tried["field"] == "by" and min(late["earliest"], tried["earliest"]) > ahead(3)
    assert late["earliest"] in late["detail"] and "no room until then: night." in late["detail"]
    refused = http.get("/v1/jobs/late").json()
    assert (refused["outcome"], refused["promise"]["outcome"], refused["promise"]["by"]) == ("refused", "none", None)
    waits = http.post("/v1/jobs", json=BODY | {"name": "waits", "by": "3h", "unless": "queue"}).json()
    assert (waits["state"], waits["promise"]["why"]) == ("queued", "others")
    earliest = http.post("/v1/jobs", json=BODY | {"name": "soon", "by": "earliest"}).json()
    assert earliest["promise"]["by"] >= late["earliest"][:16]


@pytest.mark.parametrize(
    ("asked", "status", "code", "field"),
    [
        ({"by": "2020-01-01T00:00:00+00:00"}, 422, "invalid_input", "by"),
        ({"by": "2030-01-01T00:00:00"}, 422, "invalid_input", "by"),
        ({"by": "soon"}, 422, "invalid_input", "by"),
        ({"by": "4000d"}, 422, "invalid_input", "by"),
        ({"by": "1h"}, 422, "invalid_input", "by"),
        ({"by": "earliest", "duration": None}, 422, "invalid_input", "duration"),
        ({"by": "9h", "count": 3}, 429, "limit_reached", "by"),
    ],
)
def test_what_cannot_be_promised_names_its_field(
    stage: Stage, http: httpx.Client, asked: dict[str, Any], status: int, code: str, field: str
) -> None:
    http.patch("/v1/projects/default/limits", json={"promised": 2}).raise_for_status()
    eventually(lambda: stage.lead._limits.get("default"), what="the limit")
    answer = problem(http.post("/v1/jobs", json=BODY | asked), status, code)
    assert answer["field"] == field
    assert ("earliest" in answer) == (asked == {"by": "1h"})


def test_a_repeated_request_is_promised_once(stage: Stage, http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "night-1"}
    first = http.post("/v1/jobs", json=BODY | {"by": "9h"}, headers=headers)
    again = http.post("/v1/jobs", json=BODY | {"by": "9h"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json()["id"] == first.json()["id"] and again.json()["promise"] == first.json()["promise"]
    assert ("Idempotency-Replayed" in first.headers, again.headers["Idempotency-Replayed"]) == (False, "true")
    problem(http.post("/v1/jobs", json=BODY | {"by": "8h"}, headers=headers), 422, "idempotency_mismatch")
    refused = [
        problem(http.post("/v1/jobs", json=BODY | {"by": "1h"}, headers={"Idempotency-Key": "n"}), 422, "invalid_input")
        for _ in range(2)
    ]
    assert refused[0]["detail"] == refused[1]["detail"]
    assert len(http.get("/v1/jobs").json()["jobs"]) == 2
    with ThreadPoolExecutor(4) as pool:
        body, key = BODY | {"name": "twice"}, {"Idempotency-Key": "twice"}
        answers = list(pool.map(lambda _: http.post("/v1/jobs", json=body, headers=key), range(4)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_what_would_break_a_promise_is_asked_for_again(stage: Stage, http: httpx.Client) -> None:
    stage.submit("runs", duration_s=3600.0, gpus=("a0",))
    eventually(lambda: http.get("/v1/jobs/queue").json()["jobs"], what="the training that runs")
    job = http.post("/v1/jobs", json=BODY | {"count": 4, "by": "9h"}).json()
    eventually(lambda: len(http.get("/v1/jobs/queue").json()["jobs"]) == 2, what="the promise in the queue")
    limits, held = "/v1/projects/default/limits", f"/v1/jobs/{job['id']}/hold"
    for path in ("/v1/gpus/b1/pause", "/v1/gpus/b1/drain", "/v1/queues/pause", limits, held):
        method, body = ("PATCH", {"gpus": 3}) if path == limits else ("POST", {})
        refused = problem(http.request(method, path, json=body), 409, "conflict")
        assert refused["breaks"] == [job["id"]] and "ends of night." in refused["detail"]
        assert http.request(method, path, json=body, params={"anyway": True}).status_code < 300
        # It is broken already, so it is asked for no more.
        eventually(lambda: http.get(f"/v1/jobs/{job['id']}").json()["promise"]["outcome"] == "at_risk", what="the risk")
        assert path == held or http.request(method, path, json=body).status_code < 300
        http.patch(limits, json={"gpus": None}).raise_for_status()
        for undo in (
            "/v1/gpus/b1/resume",
            "/v1/queues/resume",
            *([f"/v1/jobs/{job['id']}/release"] if path == held else []),
        ):
            http.post(undo).raise_for_status()
        eventually(
            lambda: http.get(f"/v1/jobs/{job['id']}").json()["promise"]["outcome"] == "kept_so_far", what="no risk"
        )


def test_without_a_job_scheduler_nothing_is_promised_and_nothing_waits(http: httpx.Client) -> None:
    assert problem(http.post("/v1/jobs", json=BODY | {"by": "9h"}), 503, "unavailable")["part"] == "job_leader"
    assert http.get("/v1/jobs").json()["jobs"] == []


def test_a_leader_that_dies_before_it_decides_leaves_nothing_that_nobody_knows_of(
    config: Settings, redis_client: "redis.Redis", engine: Engine, tmp_path: Path, http: httpx.Client
) -> None:
    """It holds the lease and decides nothing. Whoever can repeat the request finds its job, which the next one promises."""
    stage = Stage(config.model_copy(update={"home": tmp_path}), redis_client, engine)
    stage.pass_by()
    assert stage.queue.lead("dead", 60.0)
    body = BODY | {"by": "9h"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.routes.jobs.PROMISED_S", 0.1)
        patch.setattr("api.routes.jobs.check_ever", lambda *_: None)
        assert problem(http.post("/v1/jobs", json=body), 503, "unavailable")["part"] == "job_leader"
        assert [job["state"] for job in http.get("/v1/jobs").json()["jobs"]] == ["ended"]
        problem(http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"}), 503, "unavailable")
    stage.new_lead()
    stage.pass_by()
    again = http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["promise"]["outcome"]) == (201, "kept_so_far")
    assert len(http.get("/v1/jobs").json()["jobs"]) == 2


def test_whoever_waits_is_told_of_a_publication(redis_client: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smore.redis.job_queue._LOOK_S", 60.0)
    queue = JobQueue(redis_client, "smore:")
    looks = queue.publications(60.0)
    next(looks)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(next, looks)
        queue.publish(PublishedQueue(at=0.0, leader="t", setting="s"))
        eventually(second.done, what="the second look")
