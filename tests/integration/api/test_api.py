"""The gateway over a real Redis and Postgres, with a scripted leader and worker behind the real queue."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import orjson
import pytest
import redis
import structlog
from sqlalchemy import update
from sqlalchemy.orm import Session

from api.app import Application, create_app
from api.invoke import explain
from smore.domain.access import Scope
from smore.domain.errors import Conflict
from smore.domain.function import FunctionSpec, TensorSpec
from smore.domain.invocation import Cause, State
from smore.domain.job import Action, JobRequest
from smore.messages import stream
from smore.messages.commands import ALL_REVISIONS, AttachJob, Offload, decode_command
from smore.messages.degradation import Table, Weight
from smore.messages.job_queue import PublishedQueue, TrialAnswer
from smore.messages.results import Result
from smore.postgres.catalog import Store
from smore.postgres.jobs import JobChange
from smore.postgres.predictors import Profiles
from smore.postgres.rows import ExecutionRow, GpuSampleRow, JobAttemptRow, JobRow, JobWindowRow, LossWindowRow
from smore.postgres.sums import JobHarvestRow
from smore.process.settings import RedisSettings, Settings
from smore.redis.catalog import Catalog, FunctionEntry
from smore.redis.fleet import Fleet
from smore.redis.job_queue import JobQueue
from smore.redis.queue import Queue, StartedInvocation
from smore.redis.records import FIELDS
from smore.redis.tables import Tables
from tests.support.eventually import eventually
from tests.support.fake_platform import GPU, Failure, FakePlatform, echo
from tests.support.gateway import Served, add_key, problem
from tests.support.placed_jobs import placed
from tests.support.redis_server import RedisServer
from tests.support.tables import place

ROOT = Path(__file__).resolve().parents[3]
ECHO, IMAGE, TEXT = "default/echo", "default/image", "default/text"
SPECS = {
    ECHO: FunctionSpec(entrypoint="zoo.echo:Function", payload_bytes=1 << 20, max_pending=5),
    IMAGE: FunctionSpec(
        entrypoint="a:B", inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 3)),), payload_bytes=1024
    ),
    TEXT: FunctionSpec(entrypoint="a:B", inputs=(TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1)),)),
    "default/many": FunctionSpec(entrypoint="a:B", max_pending=1000, deadline_s=60.0),
    "default/never-ready": FunctionSpec(entrypoint="a:B"),
}


@pytest.fixture
def queue(config: Settings, redis_client: "redis.Redis") -> Queue:
    return Queue(redis_client, config.redis.prefix, config.queue)


@pytest.fixture
def functions(catalog: Catalog) -> None:
    for key, spec in SPECS.items():
        project, _, name = key.partition("/")
        catalog.put_revision(key, 1, spec)
        catalog.put_function(FunctionEntry(project=project, name=name, revision=0 if name == "never-ready" else 1))


@pytest.fixture
def platform(config: Settings, redis_client: "redis.Redis", queue: Queue) -> Iterator[FakePlatform]:
    with FakePlatform(redis_client, queue) as fake:
        yield fake


@pytest.fixture
def gateway(application: Application, functions: None, platform: FakePlatform) -> Iterator[Served]:
    with Served(application) as served:
        yield served


@pytest.fixture
def http(gateway: Served, catalog: Catalog) -> Iterator[httpx.Client]:
    """With a key that may do everything."""
    token = add_key(catalog, *Scope)
    with httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
        eventually(lambda: client.get("/v1/functions").status_code == 200, what="the key")
        yield client


@pytest.fixture
def foreign(gateway: Served, catalog: Catalog) -> Iterator[httpx.Client]:
    """The same, of another project."""
    token = add_key(catalog, *Scope, project="other")
    with httpx.Client(base_url=gateway.url, headers={"X-API-Key": token}, timeout=30) as client:
        eventually(lambda: client.get("/v1/functions").status_code == 200, what="the key")
        yield client


def later(call: Callable[[], httpx.Response]) -> Callable[[], httpx.Response]:
    """Start a call in a thread; the result joins it."""
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()

    def join() -> httpx.Response:
        thread.join(20)
        assert found, "no answer within 20 s"
        return found[0]

    return join


def submit(http: httpx.Client, value: object = 1, function: str = "echo", **headers: str) -> str:
    response = http.post(
        f"/v1/functions/{function}/invocations", json={"input": value}, headers={"Prefer": "respond-async", **headers}
    )
    assert response.status_code == 202, response.text
    id_: str = response.json()["id"]
    return id_


# ---- synchronous -----------------------------------------------------------------------------------------------------


def test_sync(http: httpx.Client) -> None:
    value = {"x": [1, 2.5, None, "é"], "deep": [[{}]]}
    response = http.post("/v1/functions/echo/invocations", json={"input": value}, headers={"X-Request-Id": "abc"})

    assert response.status_code == 200
    answer = response.json()
    begun, ended, due = (
        datetime.fromisoformat(answer.pop(name)) for name in ("arrival_at", "finished_at", "deadline_at")
    )
    assert begun <= ended
    assert due - begun == timedelta(seconds=SPECS[ECHO].deadline_s)
    assert len(answer.pop("id")) == 32
    about = {"function": "echo", "revision": 1, "attempt": 1, "gpu": GPU, "late_ms": 0, "cold": False, "cause": "ok"}
    assert answer == {"state": "succeeded", "output": value, **about}
    assert response.headers["x-request-id"] == "abc"
    phases = [entry.strip().partition(";dur=") for entry in response.headers["server-timing"].split(",")]
    assert [name for name, _, _ in phases] == ["queue", "schedule", "dispatch", "load", "run"]
    assert all(float(duration) >= 0 for _, _, duration in phases)
    assert phases[-1][2] == "1.500"


def test_many_at_once(http: httpx.Client) -> None:
    platform_wide = [later(partial(http.post, "/v1/functions/echo/invocations", json={"input": n})) for n in range(5)]

    assert [join().json()["output"] for join in platform_wide] == list(range(5))


def test_raw_tensors_in_and_out(http: httpx.Client) -> None:
    body = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
    headers = {
        "Content-Type": "application/octet-stream",
        "Accept": "application/octet-stream",
        "Smore-Deadline-Ms": "2500",
    }
    response = http.post("/v1/functions/image/invocations", content=body, headers=headers)

    assert (response.status_code, response.content) == (200, body)
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["smore-outputs"] == "x:FP32:2,3"
    assert len(response.headers["smore-invocation"]) == 32
    assert (response.headers["smore-function"], response.headers["smore-revision"]) == ("image", "1")
    assert re.fullmatch(
        r"gpu=\w+;attempt=1;arrival=\d{16};deadline=\d{16};finished=\d{16}", response.headers["smore-run"]
    )


def test_raw_tensors_with_free_axes_need_shapes(http: httpx.Client) -> None:
    body = struct.pack("<4q", 1, 2, 3, 4)
    headers = {"Content-Type": "application/octet-stream", "Accept": "application/octet-stream"}

    assert (
        problem(http.post("/v1/functions/text/invocations", content=body, headers=headers), 422, "invalid_input")[
            "field"
        ]
        == "Smore-Shape"
    )
    response = http.post(
        "/v1/functions/text/invocations", content=body, headers={**headers, "Smore-Shape": "tokens=2,2"}
    )
    assert response.headers["smore-outputs"] == "tokens:INT64:2,2"


def test_several_inputs(http: httpx.Client, platform: FakePlatform) -> None:
    platform.handlers[ECHO] = lambda begun: (
        Failure(cause=Cause.HANDLER_ERROR, message="odd") if begun.payload == b"1" else echo(begun)
    )
    response = http.post("/v1/functions/echo/invocations", json={"inputs": [0, 1, 2]})

    assert response.status_code == 200
    items = response.json()["invocations"]
    assert [item["state"] for item in items] == ["succeeded", "failed", "succeeded"]
    assert [item["status"] for item in items] == [200, 422, 200]
    assert (items[0]["output"], items[1]["detail"], items[1]["code"]) == (0, "odd", "handler_error")
    assert len({item["id"] for item in items}) == 3
    assert [(item["attempt"], item["gpu"]) for item in items] == [(1, items[0]["gpu"])] * 3 and items[1]["gpu"]
    assert all(item["arrival_at"] <= item["finished_at"] <= item["deadline_at"] for item in items)


def test_of_several_inputs_some_may_be_refused(http: httpx.Client, platform: FakePlatform) -> None:
    platform.held.add(ECHO)
    response = http.post(
        "/v1/functions/echo/invocations", json={"inputs": list(range(7))}, headers={"Prefer": "respond-async"}
    )

    assert response.status_code == 202
    items = response.json()["invocations"]
    assert [item["state"] for item in items] == ["queued"] * 5 + ["rejected"] * 2
    assert [(item["id"], item["code"], item["status"]) for item in items[5:]] == [("", "queue_full", 429)] * 2
    assert {(item["function"], item["revision"]) for item in items} == {("echo", 1)}


def test_more_inputs_than_a_waiting_call_may_have(http: httpx.Client) -> None:
    document = {"inputs": list(range(300))}
    refused = problem(http.post("/v1/functions/many/invocations", json=document), 422, "invalid_input")
    assert "respond-async" in refused["detail"]

    response = http.post("/v1/functions/many/invocations", json=document, headers={"Prefer": "respond-async"})
    items = response.json()["invocations"]
    assert [item["state"] for item in items] == ["queued"] * 300
    outputs: dict[str, int] = {}
    left = [item["id"] for item in items]
    while left:
        ended = http.post("/v1/invocations:wait", json={"ids": left, "wait_s": 20}).json()["invocations"]
        assert ended, "none ended within 20 s"
        outputs |= {each["id"]: each["output"] for each in ended}
        left = [id_ for id_ in left if id_ not in outputs]
    assert [outputs[item["id"]] for item in items] == document["inputs"]


def test_waiting_for_any(http: httpx.Client, foreign: httpx.Client, platform: FakePlatform, store: Store) -> None:
    platform.held.add(ECHO)
    waiting, done = submit(http, 1), submit(http, 2, function="many")
    answer = http.post("/v1/invocations:wait", json={"ids": [waiting, done], "wait_s": 20}).json()["invocations"]
    assert [(each["id"], each["function"], each["revision"], each["output"]) for each in answer] == [
        (done, "many", 1, 2)
    ]
    assert http.post("/v1/invocations:wait", json={"ids": [waiting]}).json() == {"invocations": []}
    problem(foreign.post("/v1/invocations:wait", json={"ids": [done]}), 404, "invocation_not_found")
    problem(http.post("/v1/invocations:wait", json={"ids": []}), 422, "invalid_input")

    cancelled = http.post(f"/v1/invocations/{waiting}/cancel").json()
    assert (cancelled["state"], cancelled["function"], cancelled["revision"]) == ("cancelled", "echo", 1)


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (Cause.HANDLER_ERROR, 422),
        (Cause.CRASHED, 502),
        (Cause.OUT_OF_MEMORY, 502),
        (Cause.LOAD_FAILED, 502),
        (Cause.TIMED_OUT, 504),
    ],
)
def test_failures_are_problems(http: httpx.Client, platform: FakePlatform, cause: Cause, status: int) -> None:
    platform.handlers[ECHO] = lambda begun: Failure(cause=cause, message="ValueError: because")
    body = problem(http.post("/v1/functions/echo/invocations", json={"input": 1}), status, cause.value)

    assert (body["detail"], body["state"]) == ("ValueError: because", "failed")
    assert problem(http.get(f"/v1/invocations/{body['id']}/result"), status, cause.value)["id"] == body["id"]


def test_a_record_that_does_not_fit_is_named_by_its_place(http: httpx.Client, platform: FakePlatform) -> None:
    platform.handlers[ECHO] = lambda begun: Failure(
        cause=Cause.INVALID_INPUT, message="input.age: missing", field="input.age"
    )
    body = problem(http.post("/v1/functions/echo/invocations", json={"input": {}}), 422, "invalid_input")
    assert (body["detail"], body["field"]) == ("input.age: missing", "input.age")
    assert http.get(f"/v1/invocations/{body['id']}").json()["field"] == "input.age"
    (item,) = http.post("/v1/functions/echo/invocations", json={"inputs": [{}]}).json()["invocations"]
    assert (item["code"], item["field"]) == ("invalid_input", "input.age")


def test_a_rejection_after_the_gate(http: httpx.Client, platform: FakePlatform) -> None:
    platform.rejected.add(ECHO)
    response = http.post("/v1/functions/echo/invocations", json={"input": 1})

    assert problem(response, 429, "slo_infeasible")["state"] == "rejected"
    assert "retry-after" not in response.headers


# ---- asynchronous ----------------------------------------------------------------------------------------------------


def test_async_then_long_poll_then_result(http: httpx.Client, platform: FakePlatform, gateway: Served) -> None:
    platform.held.add(ECHO)
    response = http.post(
        "/v1/functions/echo/invocations", json={"input": {"a": 1}}, headers={"Prefer": "respond-async"}
    )
    accepted = response.json()
    assert (response.status_code, accepted["state"], accepted["durability"]) == (202, "queued", "standard")
    assert response.headers["location"] == f"/v1/invocations/{accepted['id']}"
    assert http.get(response.headers["location"]).json()["state"] == "queued"
    assert http.get(f"{response.headers['location']}/result").status_code == 202

    poll = later(lambda: http.get(response.headers["location"], params={"wait": 20}))
    eventually(lambda: gateway.waiting)
    platform.held.clear()

    found = poll().json()
    assert (found["state"], found["output"], found["function"], found["gpu"]) == ("succeeded", {"a": 1}, "echo", GPU)
    assert found["cold"] is False
    result = http.get(f"{response.headers['location']}/result")
    assert (result.status_code, result.json()["output"]) == (200, {"a": 1})
    assert "server-timing" in result.headers


def test_a_wait_that_ends_becomes_202_and_is_kept(
    http: httpx.Client, platform: FakePlatform, redis_client: "redis.Redis"
) -> None:
    platform.held.add(ECHO)
    response = http.post(
        "/v1/functions/echo/invocations", json={"input": 7, "deadline_ms": 60000}, headers={"Prefer": "wait=1"}
    )

    assert (response.status_code, response.json()["state"]) == (202, "queued")
    assert redis_client.hget(f"smore:i:default:{response.json()['id']}", "sync") == b"0"
    platform.held.clear()
    polled = http.get(response.headers["location"], headers={"Prefer": "wait=10"})
    assert polled.json()["output"] == 7


def test_a_call_names_its_class_and_may_not_raise_it(http: httpx.Client, platform: FakePlatform) -> None:
    seen: list[bool] = []

    def note(begun: StartedInvocation) -> Result:
        seen.append(begun.bulk)
        return echo(begun)

    platform.handlers[ECHO] = note
    call = partial(http.post, "/v1/functions/echo/invocations")
    assert call(json={"input": 1}).status_code == 200
    assert call(json={"input": 1}, headers={"Smore-Class": "batch"}).status_code == 200
    assert call(json={"input": 1, "class": "batch"}, headers={"Smore-Class": "standard"}).status_code == 200
    assert seen == [False, True, True]
    for asked, expected in (({}, "standard"), ({"deadline_ms": 60_001}, "batch")):
        assert call(json={"inputs": [1], **asked}).json()["class"] == expected
    assert call(json={"inputs": [1], "deadline_ms": 60_001, "class": "standard"}).json()["class"] == "standard"
    for name in ("guaranteed", "bulk", 3):
        assert problem(call(json={"input": 1, "class": name}), 422, "invalid_input")["field"] == "class"


def test_a_deadline_that_passes_is_504(
    http: httpx.Client, platform: FakePlatform, queue: Queue, redis_client: "redis.Redis"
) -> None:
    redis_client.hset("smore:feasible", IMAGE, f"{int(time.time() * 1e6)}:3000:3000:0:0")
    running, finish = threading.Event(), threading.Event()

    def hold(begun: StartedInvocation) -> Result:
        running.set()
        finish.wait(10)
        return echo(begun)

    platform.handlers[ECHO] = hold
    first = later(lambda: http.post("/v1/functions/echo/invocations", json={"input": 1}))
    assert running.wait(10)
    second = later(
        lambda: http.post("/v1/functions/image/invocations?deadline_ms=20", json={"input": {"x": [[1, 2, 3]]}})
    )
    (waiting,) = eventually(lambda: queue.snapshot().waiting)
    # An attempt of it was lost with its worker, say.
    for field, value in (("lost_gpu", "gpu7"), ("lost_us", "1800000000000000")):
        redis_client.hset(f"smore:i:default:{waiting.id}", FIELDS[field], value)
    eventually(lambda: time.time() > waiting.deadline_us / 1e6 + 0.05)
    finish.set()

    assert first().status_code == 200
    # What the gate would take now.
    body = problem(second(), 504, "deadline_expired")
    assert body["earliest_deadline_ms"] == 14
    assert "with the worker of gpu7, which reported last at 2027-01-15 08:00:00 UTC" in body["detail"]
    assert (
        problem(http.get(f"/v1/invocations/{waiting.id}/result"), 504, "deadline_expired")["earliest_deadline_ms"] == 14
    )


def test_what_succeeds_after_its_deadline_says_how_late(http: httpx.Client, platform: FakePlatform) -> None:
    def overrun(begun: StartedInvocation) -> Result:
        eventually(lambda: time.time() > begun.deadline_us / 1e6 + 0.002)
        return echo(begun)

    platform.handlers[ECHO] = overrun
    call = partial(http.post, "/v1/functions/echo/invocations")
    with structlog.testing.capture_logs() as logged:
        answer = call(json={"input": 1, "deadline_ms": 2000}, headers={"X-Request-Id": "late-1"})
    (line,) = [each for each in logged if each["event"] == "ended late"]
    assert answer.status_code == 200 and answer.json()["output"] == 1
    late_ms = answer.json()["late_ms"]
    assert (line["request_id"], line["id"], line["function"]) == ("late-1", answer.json()["id"], "echo")
    assert line["late_ms"] == late_ms
    assert late_ms >= 2 and float(answer.headers["smore-late-ms"]) == late_ms
    id_ = answer.json()["id"]
    assert http.get(f"/v1/invocations/{id_}").json()["late_ms"] == late_ms
    assert http.get(f"/v1/invocations/{id_}/result").json()["late_ms"] == late_ms
    with structlog.testing.capture_logs() as logged:
        several = call(json={"inputs": [1], "deadline_ms": 2000}).json()["invocations"]
    assert several[0]["status"] == 200 and several[0]["late_ms"] >= 2
    assert [each["id"] for each in logged if each["event"] == "ended late"] == [several[0]["id"]]
    platform.handlers.clear()
    assert "smore-late-ms" not in call(json={"input": 1}).headers


def test_cancel(http: httpx.Client, platform: FakePlatform) -> None:
    platform.held.add(ECHO)
    id_ = submit(http)

    assert http.post(f"/v1/invocations/{id_}/cancel").json()["state"] == "cancelled"
    assert http.post(f"/v1/invocations/{id_}/cancel").status_code == 200
    assert problem(http.get(f"/v1/invocations/{id_}/result"), 409, "cancelled")["id"] == id_
    platform.held.clear()
    done = http.post("/v1/functions/echo/invocations", json={"input": 1}).json()["id"]
    assert problem(http.post(f"/v1/invocations/{done}/cancel"), 409, "conflict")["state"] == "succeeded"


def test_cancelling_ends_the_wait_of_a_sync_caller(
    http: httpx.Client, platform: FakePlatform, gateway: Served, queue: Queue
) -> None:
    platform.held.add(ECHO)
    call = later(lambda: http.post("/v1/functions/echo/invocations", json={"input": 1}))
    (waiting,) = eventually(lambda: queue.snapshot().waiting)

    assert http.post(f"/v1/invocations/{waiting.id}/cancel").status_code == 200

    problem(call(), 409, "cancelled")
    assert gateway.waiting == 0


# ---- idempotency -----------------------------------------------------------------------------------------------------


def test_a_replay_gets_the_known_result(http: httpx.Client, platform: FakePlatform) -> None:
    runs: list[bytes] = []

    def count(begun: StartedInvocation) -> Result:
        runs.append(begun.payload)
        return echo(begun)

    platform.handlers[ECHO] = count
    headers = {"Idempotency-Key": "k-1"}
    first = http.post("/v1/functions/echo/invocations", json={"input": 1}, headers=headers)
    again = http.post("/v1/functions/echo/invocations", json={"input": 1}, headers=headers)
    listed = http.post(
        "/v1/functions/echo/invocations", json={"input": 1}, headers={**headers, "Prefer": "respond-async"}
    )

    assert again.json() == listed.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert runs == [b"1"]
    # The order of members and white space make no other request; the order of items does.
    headers = {"Idempotency-Key": "k-2", "Content-Type": "application/json"}
    first = http.post("/v1/functions/echo/invocations", content=b'{"input": {"a": 1, "b": [2, 3]}}', headers=headers)
    again = http.post("/v1/functions/echo/invocations", content=b'{"input":{"b":[2,3],"a":1}}', headers=headers)
    assert again.json() == first.json() and len(runs) == 2
    other = http.post("/v1/functions/echo/invocations", content=b'{"input":{"a":1,"b":[3,2]}}', headers=headers)
    assert problem(other, 422, "idempotency_mismatch")["differs"] == ["input"]
    several = b'{"inputs": [{"a": 1, "b": 2}, 3], "deadline_ms": 900}'
    headers = {"Idempotency-Key": "k-3", "Content-Type": "application/json"}
    first = http.post("/v1/functions/echo/invocations", content=several, headers=headers)
    again = http.post(
        "/v1/functions/echo/invocations",
        content=b'{"deadline_ms": 900, "inputs": [{"b": 2, "a": 1}, 3]}',
        headers=headers,
    )
    assert first.json() == again.json() and first.status_code == 200
    headers = {"Idempotency-Key": "k-1"}
    other = http.post("/v1/functions/echo/invocations", json={"input": 2}, headers=headers)
    assert problem(other, 422, "idempotency_mismatch")["differs"] == ["input"]
    other = http.post("/v1/functions/image/invocations", json={"input": {"x": [[1, 2, 3]]}}, headers=headers)
    assert problem(other, 422, "idempotency_mismatch")["differs"] == ["function", "input"]
    later_deadline = {"input": 1, "deadline_ms": 900}
    other = http.post("/v1/functions/echo/invocations", json=later_deadline, headers=headers)
    assert "differs in: deadline_ms." in problem(other, 422, "idempotency_mismatch")["detail"]


def test_a_replay_in_flight_waits_for_the_same_invocation(
    http: httpx.Client, platform: FakePlatform, gateway: Served
) -> None:
    platform.held.add(ECHO)
    calls = [
        later(lambda: http.post("/v1/functions/echo/invocations", json={"input": 5}, headers={"Idempotency-Key": "k"}))
        for _ in range(3)
    ]
    # The replays' own waiters (ids that came to nothing) are there beside those on the one invocation.
    eventually(lambda: gateway.waiting >= 3)
    platform.held.clear()

    answers = [call() for call in calls]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.headers.get("idempotency-replayed", "") for answer in answers) == ["", "true", "true"]
    assert gateway.waiting == 0


def test_a_replay_of_a_failure_is_the_failure(http: httpx.Client, platform: FakePlatform) -> None:
    platform.handlers[ECHO] = lambda begun: Failure(cause=Cause.HANDLER_ERROR, message="no")
    tensors = {"inputs": [{"name": "input", "shape": [1], "datatype": "BYTES", "data": ["1"]}]}
    for path, body in (("/v1/functions/echo/invocations", {"input": 1}), ("/v2/models/echo/infer", tensors)):
        for replayed in (None, "true"):
            response = http.post(path, json=body, headers={"Idempotency-Key": path})
            assert (response.status_code, response.json()["code"]) == (422, "handler_error")
            assert response.headers.get("idempotency-replayed") == replayed


def test_several_inputs_are_replayed_one_by_one(http: httpx.Client) -> None:
    first, again = (
        http.post("/v1/functions/echo/invocations", json={"inputs": [1, 2]}, headers={"Idempotency-Key": "s"})
        for _ in range(2)
    )

    assert [item["id"] for item in first.json()["invocations"]] == [item["id"] for item in again.json()["invocations"]]
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("body", [{"inputs": [1, 2, 3]}, {"inputs": [2, 1]}, {"inputs": [1]}, {"input": 1}])
def test_another_list_under_a_known_key_runs_nothing(
    http: httpx.Client, platform: FakePlatform, body: dict[str, object]
) -> None:
    headers = {"Idempotency-Key": f"l-{body}".replace(" ", "")}
    first = http.post("/v1/functions/echo/invocations", json={"inputs": [1, 2]}, headers=headers)
    runs: list[bytes] = []

    def count(begun: StartedInvocation) -> Result:
        runs.append(begun.payload)
        return echo(begun)

    platform.handlers[ECHO] = count
    refused = problem(
        http.post("/v1/functions/echo/invocations", json=body, headers=headers), 422, "idempotency_mismatch"
    )
    assert refused["id"] == first.json()["invocations"][0]["id"] and refused["differs"]
    again = http.post("/v1/functions/echo/invocations", json={"inputs": [1, 2]}, headers=headers)
    assert again.json()["invocations"] == first.json()["invocations"] and runs == []


def test_a_replay_whose_result_is_gone(http: httpx.Client, redis_client: "redis.Redis") -> None:
    id_ = http.post("/v1/functions/echo/invocations", json={"input": 1}, headers={"Idempotency-Key": "g"}).json()["id"]
    redis_client.delete(f"smore:i:default:{id_}", f"smore:r:default:{id_}")

    assert (
        problem(
            http.post("/v1/functions/echo/invocations", json={"input": 1}, headers={"Idempotency-Key": "g"}),
            410,
            "result_dropped",
        )["id"]
        == id_
    )


# ---- refusals --------------------------------------------------------------------------------------------------------

JSON = {"Content-Type": "application/json"}
RAW = {"Content-Type": "application/octet-stream"}


def arrivals(client: "redis.Redis") -> int:
    """Invocations that the event stream has; leases that run out and the like come at any time."""
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange("smore:ev"))
    return sum(isinstance(stream.decode(fields[b"e"]), stream.Arrived) for _, fields in entries)


@pytest.mark.parametrize(
    ("path", "content", "headers", "status", "code", "field"),
    [
        ("nothing", b'{"input":1}', JSON, 404, "function_not_found", None),
        ("never-ready", b'{"input":1}', JSON, 409, "not_ready", None),
        ("echo", b"", JSON, 400, "malformed", None),
        ("echo", b"{", JSON, 400, "malformed", None),
        ("echo", b'{"input":NaN}', JSON, 400, "malformed", None),
        ("echo", b'{"input":"\xff"}', JSON, 400, "malformed", None),
        ("echo", b'{"input":"\\ud800"}', JSON, 400, "malformed", None),
        ("echo", b"[" * 100_000, JSON, 400, "malformed", None),
        ("echo", b'{"input":' + b"[" * 900 + b"]" * 900 + b"}", JSON, 422, "invalid_input", "input"),
        ("echo", b"[]", JSON, 422, "invalid_input", "body"),
        ("echo", b"{}", JSON, 422, "invalid_input", "input"),
        ("echo", b'{"input":1,"inputs":[1]}', JSON, 422, "invalid_input", "inputs"),
        ("echo", b'{"input":1,"deadline":5}', JSON, 422, "invalid_input", "deadline"),
        ("echo", b'{"inputs":[]}', JSON, 422, "invalid_input", "inputs"),
        ("echo", b'{"inputs":{}}', JSON, 422, "invalid_input", "inputs"),
        ("echo", b'{"inputs":[' + b",".join([b"1"] * 65) + b"]}", JSON, 422, "invalid_input", "inputs"),
        ("image", b'{"inputs":[{"x":[[1,2,3]]},{"x":[[1,2,"3"]]}]}', JSON, 422, "invalid_input", "inputs[1].x[0][2]"),
        ("image", b"\0" * 13, RAW, 422, "invalid_input", "body"),
        ("echo", b"\0" * 12, RAW, 422, "invalid_input", "body"),
        ("image", b"\0" * 1200, RAW, 413, "payload_too_large", None),
        ("echo", b'{"input":"' + b"x" * (1 << 20) + b'"}', JSON, 413, "payload_too_large", None),
        ("echo", b"x" * ((8 << 20) + 1), JSON, 413, "payload_too_large", None),
        ("echo", b"a=1", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type", None),
        *(
            ("echo", b'{"input":1,"deadline_ms":%b}' % bad, JSON, 422, "invalid_input", "deadline_ms")
            for bad in (b"-1", b"0", b'"5"', b"true", b"1e12")
        ),
        *(
            ("echo", body, JSON | {"Smore-Deadline-Ms": bad}, 422, "invalid_input", "Smore-Deadline-Ms")
            for body in (b'{"input":1}', b'{"input":1,"deadline_ms":500}')
            for bad in ("nan", "inf", "-1", "x", "0", "")
        ),
        ("echo?deadline_ms=-5", b'{"input":1}', JSON, 422, "invalid_input", "deadline_ms"),
        *(
            ("echo", b'{"input":1}', JSON | {"Idempotency-Key": bad}, 422, "invalid_input", "Idempotency-Key")
            for bad in ("", "a b", "k" * 256)
        ),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_queued(
    http: httpx.Client,
    redis_client: "redis.Redis",
    path: str,
    content: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
    field: str | None,
) -> None:
    name, _, query = path.partition("?")
    before = arrivals(redis_client)
    body = problem(
        http.post(f"/v1/functions/{name}/invocations?{query}", content=content, headers=headers), status, code
    )

    assert body.get("field") == field
    assert arrivals(redis_client) == before
    if status == 413:
        assert body["size"] > body["limit"] and str(body["size"]) in body["detail"]


def test_a_streamed_body_is_cut_at_the_limit(http: httpx.Client) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 200 << 20:
            sent += 1 << 20
            yield b" " * (1 << 20)

    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
        problem(http.post("/v1/functions/echo/invocations", content=endless(), headers=JSON), 413, "payload_too_large")
    assert sent < 100 << 20


def test_a_streamed_body_within_it_is_taken(http: httpx.Client) -> None:
    assert http.post("/v1/functions/echo/invocations", content=iter([b'{"inp', b'ut":', b"[3]}"]), headers=JSON).json()[
        "output"
    ] == [3]


def test_a_full_queue_is_429(http: httpx.Client, platform: FakePlatform, store: Store) -> None:
    platform.held.add(ECHO)
    for _ in range(5):
        submit(http)
    with structlog.testing.capture_logs() as logged:
        response = http.post("/v1/functions/echo/invocations", json={"input": 1}, headers={"X-Request-Id": "full-1"})

    body = problem(response, 429, "queue_full")
    assert (body["limit"], body["request_id"]) == ("function", "full-1")
    assert "5 invocations of the function wait" in body["detail"]
    assert response.headers["retry-after"] == "1"
    (line,) = [each for each in logged if each.get("request_id") == "full-1" and each["log_level"] != "debug"]
    about = {name: line[name] for name in ("project", "function", "status", "code", "detail")}
    assert about == {
        "project": "default",
        "function": "echo",
        "status": 429,
        "code": "queue_full",
        "detail": body["detail"],
    }
    with structlog.testing.capture_logs() as logged:
        http.get("/v1/jobs/no-such-job", headers={"X-Request-Id": "absent-1"})
    (line,) = [each for each in logged if each.get("request_id") == "absent-1"]
    assert (line["project"], line["request"], line["status"]) == ("default", "GET /v1/jobs/{job}", 404)


def test_an_infeasible_deadline_is_429_and_names_one_that_would_do(
    http: httpx.Client, redis_client: "redis.Redis"
) -> None:
    redis_client.hset("smore:feasible", ECHO, "0:0:2500000:0:0")
    response = http.post("/v1/functions/echo/invocations", json={"input": 1, "deadline_ms": 400})

    body = problem(response, 429, "slo_infeasible")
    assert body["earliest_deadline_ms"] == 2760
    assert "it would end after 2.5 s (a run takes 2.5 s at the least" in body["detail"]
    assert body["earliest_deadline_at"].endswith("+00:00")
    assert "retry-after" not in response.headers, "no waiting makes a run of 2.5 s fit"
    # Behind a backlog it is worth another attempt.
    redis_client.hset("smore:feasible", ECHO, f"{int(time.time() * 1e6) + 3600_000_000}:2500000:1000:0:0")
    response = http.post("/v1/functions/echo/invocations", json={"input": 1, "deadline_ms": 400})
    problem(response, 429, "slo_infeasible")
    assert response.headers["retry-after"] == "3"
    # What takes longer than at the least is no queue where nothing waits.
    stamp = int(time.time() * 1e6) + 3600_000_000
    redis_client.hset("smore:feasible", ECHO, f"{stamp}:2500000:1000:0:0:0:0:2500000:0:")
    detail = http.post("/v1/functions/echo/invocations", json={"input": 1, "deadline_ms": 400}).json()["detail"]
    assert "(a run takes 1.0 ms at the least, and 2.5 s as things are, with nothing before it)" in detail
    redis_client.hset("smore:feasible", ECHO, "0:0:1000:0:0")
    assert http.post("/v1/functions/echo/invocations", json={"input": 1, "deadline_ms": 2500}).status_code == 200


def test_a_quarantined_revision_is_refused_at_once(
    http: httpx.Client, redis_client: "redis.Redis", catalog: Catalog, platform: FakePlatform
) -> None:
    revision = catalog.functions()[ECHO].revision
    stamp = int(time.time() * 1e6) + 3600_000_000
    redis_client.hset("smore:feasible", ECHO, f"{stamp}:1000:1000:0:0:31557600000000:0:0:0:{revision}")
    for headers in ({}, {"Prefer": "respond-async"}):
        response = http.post("/v1/functions/echo/invocations", json={"input": 1}, headers=headers)
        body = problem(response, 503, "quarantined")
        assert "All GPU instances keep the revision out after crashes" in body["detail"]
        assert "earliest_deadline_ms" not in body
        assert response.headers["retry-after"] == "5"
    platform.answer = json.dumps({"at": time.time(), "reasons": {"refused": {"quarantined": 1}}}).encode()
    told = http.post(DRY_RUN, json={"input": {"x": 1}}).json()
    assert (told["outcome"], told["reason"], told["feasible"]) == ("refused", "quarantined", False)
    redis_client.hset("smore:feasible", ECHO, "0:0:1000:0:0")


def test_without_a_key_or_its_scope(gateway: Served, catalog: Catalog) -> None:
    with httpx.Client(base_url=gateway.url, timeout=30) as anyone:
        response = anyone.post("/v1/functions/echo/invocations", json={"input": 1})
        assert problem(response, 401, "unauthorised")["detail"].startswith("The request has no API key: ")
        assert response.headers["www-authenticate"] == "Bearer"
        for headers, said in (
            ({"Authorization": "Bearer smk_k_wrong"}, "The API key is not valid: "),
            ({"X-API-Key": "wrong"}, "The API key is not valid: "),
            ({"Authorization": "Basic eDp5"}, "The header Authorization has no API key: "),
        ):
            refused = anyone.post("/v1/functions/echo/invocations", json={"input": 1}, headers=headers)
            assert problem(refused, 401, "unauthorised")["detail"].startswith(said)
        reader = {"Authorization": f"Bearer {add_key(catalog, Scope.READ)}"}
        eventually(lambda: anyone.get("/v1/functions", headers=reader).status_code == 200)
        assert (
            problem(anyone.post("/v1/functions/echo/invocations", json={"input": 1}, headers=reader), 403, "forbidden")[
                "scope"
            ]
            == "invoke"
        )
        problem(anyone.get("/v1/no/such/path"), 404, "not_found")
        problem(anyone.delete("/healthz"), 405, "method_not_allowed")
        # Each method is a route of its own; all of them are named.
        for path, methods in {
            "/v1/jobs": "GET, POST",
            "/v1/functions/echo": "DELETE, GET, PATCH, PUT",
            "/v1/functions/echo/invocations": "POST",
        }.items():
            refused = anyone.options(path)
            problem(refused, 405, "method_not_allowed")
            assert refused.headers["allow"] == methods


# ---- who sees what ---------------------------------------------------------------------------------------------------

#: Of what a body must have, a value that is valid.
PATCHES = {
    "first": True,
    "inputs": [{"name": "input", "shape": [1], "datatype": "BYTES", "data": ["1"]}],
    "scaling": {},
    "ids": ["0" * 32],
    "value": None,
    "revision": 1,
    "deadline_ms": 5,
    "name": "x",
    "argv": ["zoo.train", "--model", "bert"],
    "scopes": ["read"],
    "factor": 2,
    "gpus": ["test0"],
    "budget": 0.1,
    "pid": 1,
    "gpu": "test0",
    "steps": [],
    "apiVersion": "smore/v1",
    "kind": "Function",
    "metadata": {"name": "echo"},
    "spec": {"entrypoint": "a:B", "inputs": "nonsense"},
}


def test_a_foreign_projects_key_sees_nothing(
    http: httpx.Client, foreign: httpx.Client, store: Store, gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each id of another project is 404 to a body that is valid: the same request of its own project finds it."""
    id_ = submit(http, {"mine-alone": 1})
    eventually(lambda: http.get(f"/v1/invocations/{id_}").json()["state"] == "succeeded")
    store.register("default", "echo", SPECS[ECHO])
    store.put_secret("default", "MINE_ALONE", b"sealed")
    job = placed(store, "train", [GPU])
    entry, _ = store.create_key("default", "mine", [Scope.READ])
    arrivals = f"function,timestamp\necho,{time.time() - 120:.0f}\n"  # a minute that is over
    imported = http.post("/v1/traces?name=mine-alone.csv", content=arrivals, headers={"Content-Type": "text/csv"})
    assert imported.status_code == 201, imported.text
    attached = AttachJob(version=1, id=job.id, project="default", name="train", pid=1, start=1, boot="b", tracked=True)
    gateway.app.state.gateway.fleet().attach(GPU, attached)
    monkeypatch.setattr("api.openinference.routes.LOAD_S", 0.0)
    things = {
        "function": "echo",
        "invocation": id_,
        "job": job.id,
        "key": entry.id,
        "gpu": GPU,
        "project": "default",
        "secret": "MINE_ALONE",
        "digest": "0" * 64,
        "trace": str(imported.json()["id"]),
        "model": "echo",
        "version": "1",
    }
    mine: list[tuple[str, str, Any]] = []
    document = http.get("/openapi.json").json()
    tried = 0
    for path, operations in document["paths"].items():
        if not path.startswith(("/v1/", "/v2/")):
            continue
        for method, operation in operations.items():
            names = [parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            if "$ref" in body:
                body = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
            sent = {name: PATCHES[name] for name in body.get("required", [])} or (
                {"input": 1} if "input" in body.get("properties", {}) else {}
            )
            response = foreign.request(method, path.format(**things), json=sent if "requestBody" in operation else None)
            tried += 1
            what = f"{method} {path}: {response.status_code} {response.text}"
            if len(names) == 1 and method == "put" and path.endswith(("{function}", "{secret}")):
                assert response.status_code == 422, what  # a name of one's own project may be the same
            elif path.startswith("/v1/blobs/"):
                # Any digest may be asked for and sent, into one's own project (test_uploads.py).
                assert response.status_code in (404, 422) or not response.json()["complete"], what
            elif path.endswith("/lanes"):
                # Of a shared GPU instance each project sees its own work.
                own = response.json()
                assert (own["warm"], set(own["ended"])) == ([], {None}), what
            elif (names and path.startswith(("/v1/gpus/", "/v1/projects/"))) or path.endswith(
                ("/boost", "/pin", "/move", "/allow")
            ):
                assert response.status_code == 403, what  # the operators' alone
            elif names:
                assert response.status_code == 404, what
                # Nothing of it is in quarantine, which is 404 too.
                if not path.startswith("/v1/quarantine/"):
                    mine.append((method, path, sent if "requestBody" in operation else None))
            for word in (id_, job.id, entry.id, "mine-alone", "MINE_ALONE", "zoo.echo"):
                assert word not in response.text or response.status_code in (404, 403), what
    assert tried >= 28
    # What takes something away comes last.
    last = ("pause", "drain", "resume", "purge", "stop", "cancel")
    mine.sort(key=lambda one: (one[0] == "delete", one[1].endswith(last)))
    for method, path, sent in mine:
        answer = http.request(method, path.format(**things), json=sent)
        assert answer.status_code not in (400, 404, 415, 422), f"{method} {path}: {answer.status_code} {answer.text}"
    assert len(mine) >= 30
    assert foreign.get("/v1/functions").json() == {"functions": []}
    assert foreign.get("/v1/jobs").json()["jobs"] == []
    problem(foreign.get(f"/v1/invocations/{id_}"), 404, "invocation_not_found")
    with contextlib.suppress(Conflict):
        store.create_project("other")
    (own,) = foreign.get("/v1/projects").json()["projects"]
    assert own["name"] != "default" and own["use"]["jobs"] == 0, "its own limits, and what it uses"
    problem(foreign.post("/v1/queues/pause"), 403, "forbidden")
    problem(foreign.post("/v1/keys", json={"name": "x", "scopes": ["read"], "project": "default"}), 403, "forbidden")


@pytest.mark.parametrize("id_", ["x", "0" * 31, "0" * 32, "../../etc", "%00", "i:default:1", "*"])
def test_ids_that_are_none(http: httpx.Client, store: Store, id_: str) -> None:
    assert http.get(f"/v1/invocations/{id_}").status_code == 404
    assert http.post(f"/v1/invocations/{id_}/cancel").status_code == 404
    assert http.get(f"/v1/invocations/{id_}/result").status_code == 404


# ---- breaks ----------------------------------------------------------------------------------------------------------


def test_waiters_outlive_a_broken_subscription(
    http: httpx.Client,
    platform: FakePlatform,
    gateway: Served,
    redis_client: "redis.Redis",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The reply is published while nobody is subscribed, and nobody doubts in time, so only the reconnect's re-read can
    answer.
    """
    monkeypatch.setattr("api.waiters.DOUBT_S", 600.0)
    running, finish = threading.Event(), threading.Event()

    def hold(begun: StartedInvocation) -> Result:
        running.set()
        finish.wait(10)
        # Every subscriber is cut off, and the reply goes out in the same moment.
        redis_client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        return echo(begun)

    platform.handlers[ECHO] = hold
    call = later(lambda: http.post("/v1/functions/echo/invocations", json={"input": "kept"}))
    assert running.wait(10)
    finish.set()

    assert call().json()["output"] == "kept"
    assert eventually(gateway.app.state.gateway.waiters.connected.is_set)


def test_all_connections_may_break_while_callers_wait(
    http: httpx.Client, platform: FakePlatform, gateway: Served, redis_client: "redis.Redis"
) -> None:
    platform.held.add(ECHO)
    calls = [later(lambda n=n: http.post("/v1/functions/echo/invocations", json={"input": n})) for n in range(4)]  # type: ignore[misc]
    eventually(lambda: gateway.waiting == 4)
    redis_client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    redis_client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    platform.held.clear()

    assert sorted(call().json()["output"] for call in calls) == [0, 1, 2, 3]
    assert http.post("/v1/functions/echo/invocations", json={"input": 9}).json()["output"] == 9


def test_scripts_that_redis_forgot_are_loaded_again(http: httpx.Client, redis_client: "redis.Redis") -> None:
    assert http.post("/v1/functions/echo/invocations", json={"input": 1}).status_code == 200
    redis_client.script_flush()

    assert http.post("/v1/functions/echo/invocations", json={"input": 1}).status_code == 200


def test_redis_away_and_back() -> None:
    with RedisServer() as server:
        config = Settings(redis=RedisSettings(url=server.url))
        client = server.client()
        catalog = Catalog(client, config.redis.prefix)
        catalog.put_revision(ECHO, 1, SPECS[ECHO])
        catalog.put_function(FunctionEntry(project="default", name="echo", revision=1))
        token = add_key(catalog, *Scope)
        with (
            Served(create_app(config)) as served,
            httpx.Client(base_url=served.url, headers={"X-API-Key": token}, timeout=20) as http,
        ):
            refused = http.post("/v1/functions/echo/invocations", json={"input": 1})
            problem(refused, 503, "no_leader")
            assert refused.headers["retry-after"] == "1"
            queue = Queue(client, config.redis.prefix, config.queue)
            leader = queue.lead("", 3600.0)
            served.app.state.gateway.queue.patience_s = 0.3
            assert (
                http.post(
                    "/v1/functions/echo/invocations", json={"input": 1}, headers={"Prefer": "respond-async"}
                ).status_code
                == 202
            )
            waiting = later(lambda: http.post("/v1/functions/echo/invocations", json={"input": 2}))
            # Queued, not only on its way there.
            eventually(lambda: [one["depth"] for one in http.get("/v1/queues").json()["queues"]] == [2])
            queue.resign(leader)
            server.stop()

            response = http.post("/v1/functions/echo/invocations", json={"input": 3})
            problem(response, 503, "unavailable")
            assert response.headers["retry-after"] == "1"
            assert http.get("/readyz").status_code == 503
            assert http.get("/healthz").status_code == 200

            server.start()
            with FakePlatform(server.client(), Queue(server.client(), config.redis.prefix, config.queue)):
                assert waiting().json()["output"] == 2
                assert http.post("/v1/functions/echo/invocations", json={"input": 4}).json()["output"] == 4


def test_postgres_away(http: httpx.Client, gateway: Served) -> None:
    gateway.app.state.gateway.settings = gateway.app.state.gateway.settings.model_copy(
        update={
            "postgres": type(gateway.app.state.gateway.settings.postgres)(url="postgresql://nobody@127.0.0.1:1/none")
        }
    )

    assert http.post("/v1/functions/echo/invocations", json={"input": 1}).status_code == 200
    assert http.get("/v1/functions/echo").status_code == 200
    assert http.get("/v1/queues").status_code == 200
    response = http.put("/v1/functions/echo/slo", json={"deadline_ms": 5})
    refused = problem(response, 503, "unavailable")
    assert response.headers["retry-after"] == "1"
    assert refused["part"] == "postgres" and str(refused["detail"]).startswith("Postgres is away: functions can be")
    problem(http.get("/v1/invocations"), 503, "unavailable")

    def warned() -> dict[str, Any] | None:
        ready = http.get("/readyz")
        assert ready.status_code == 200, "invocations go on"
        return ready.json() if not ready.json()["checks"]["postgres"]["ok"] else None

    ready = eventually(warned, what="readiness asks Postgres again")
    assert ready["ready"] and any(warning.startswith("Postgres does not answer.") for warning in ready["warnings"])
    problem(http.get(f"/v1/invocations/{'0' * 32}/explain"), 503, "unavailable")


def test_sigterm_waits_for_callers(config: Settings, functions: None, platform: FakePlatform, catalog: Catalog) -> None:
    token = add_key(catalog, *Scope)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert config.redis.url is not None
    env = {**os.environ, "SMORE_REDIS__URL": config.redis.url, "SMORE_API__PORT": str(port), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "api.app"], env=env, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        running, finish = threading.Event(), threading.Event()

        def hold(begun: StartedInvocation) -> Result:
            running.set()
            finish.wait(10)
            return echo(begun)

        platform.handlers[ECHO] = hold
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}, timeout=20
        ) as client:

            def up() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return client.get("/healthz").status_code == 200
                return False

            eventually(up)
            call = later(lambda: client.post("/v1/functions/echo/invocations", json={"input": 1}))
            assert running.wait(10)
            process.send_signal(signal.SIGTERM)

            def refused() -> bool:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                except OSError:
                    return True
                return False

            eventually(refused)
            finish.set()
            assert call().json()["output"] == 1
        process.wait(10)
    finally:
        process.kill()
        process.wait()


# ---- the platform ----------------------------------------------------------------------------------------------------


def test_health_ready_metrics_and_documents(
    http: httpx.Client,
    foreign: httpx.Client,
    gateway: Served,
    platform: FakePlatform,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    http.post("/v1/functions/echo/invocations", json={"input": 1})
    with httpx.Client(base_url=gateway.url, timeout=30) as anyone:
        assert anyone.get("/healthz").status_code == 200
        ready = eventually(lambda: (found := anyone.get("/readyz")).status_code == 200 and found)
        assert ready.json()["checks"]["gpus"] == {"ok": True, "detail": GPU}
        problem(anyone.get("/metrics"), 401, "unauthorised")
        problem(foreign.get("/metrics"), 403, "forbidden")
        scraper = {"Authorization": f"Bearer {add_key(catalog, Scope.READ)}"}
        scraped = eventually(
            lambda: (found := anyone.get("/metrics", headers=scraper)).status_code == 200 and found, what="the key"
        )
        assert 'smore_awaited_invocations_total{function="default/echo",outcome="succeeded"}' in scraped.text
        monkeypatch.setattr(gateway.app.state.gateway.settings.api, "metrics", "open")
        assert anyone.get("/metrics").status_code == 200
        loaded = re.findall(r'(?:src|href)="([^"]+)"', anyone.get("/docs").text)
        assert len(loaded) == 3
        assert all(path.startswith("/docs/static/") and anyone.get(path).status_code == 200 for path in loaded)
        document = anyone.get("/openapi.json", headers={"Host": "gpus.example", "X-Forwarded-Proto": "https"}).json()
        assert document["servers"] == [{"url": "https://gpus.example"}]
        assert "SMORE_URL=https://gpus.example\n" in document["info"]["description"]
        invoke = document["paths"]["/v1/functions/{function}/invocations"]["post"]
        assert set(invoke["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
        assert {"200", "202"} <= set(invoke["responses"])


def test_not_ready_without_a_leader_or_gpu_instances(
    application: Application, config: Settings, redis_client: "redis.Redis"
) -> None:
    with Served(application) as served, httpx.Client(base_url=served.url, timeout=30) as anyone:
        response = anyone.get("/readyz")

        assert response.status_code == 503
        assert response.json()["warnings"] == ["No job scheduler leads. What runs goes on, and nothing is started."], (
            "a warning keeps nothing from being served"
        )
        JobQueue(redis_client, config.redis.prefix).refuse("SMORE_JOBS__POLICY: no")
        (warning,) = anyone.get("/readyz").json()["warnings"]
        assert warning.startswith("No job scheduler leads: SMORE_JOBS__POLICY: no. What runs")
        redis_client.hset(
            f"{config.redis.prefix}seen",
            mapping={"cpu1": int((time.time() - 60) * 1e6), "taken-away": int((time.time() - 90_000) * 1e6)},
        )
        warnings = anyone.get("/readyz").json()["warnings"]
        assert warnings[1].startswith("GPU instances silent: cpu1 since 20") and "taken-away" not in warnings[1]
        trainings, prefix = JobQueue(redis_client, config.redis.prefix), config.redis.prefix
        trainings.lead("host:1:a", 60.0)
        trainings.failed("j1 is passed over (DataError)")
        redis_client.sadd(f"{prefix}gpus", "cpu1")
        redis_client.set(f"{prefix}gpu:cpu1", b'{"gpu": "cpu1", "jobs": null}')
        failing = anyone.get("/readyz").json()
        assert (failing["job_leader"], failing["job_leader_fails"]) == ("host:1:a", "j1 is passed over (DataError)")
        assert [warning.partition(":")[0] for warning in failing["warnings"]] == [
            "The leader of the queue of trainings fails",
            "The report of cpu1 cannot be read, so it counts as silent",
        ]
        assert not failing["checks"]["gpus"]["ok"]
        redis_client.delete(f"{prefix}job:failed")
        trainings.publish(PublishedQueue(at=time.time(), leader="host:1:a", setting="s"))
        assert anyone.get("/readyz").json()["job_leader_fails"] == ""
        trainings.publish(PublishedQueue(at=time.time() - 60, leader="host:1:a", setting="s"))
        assert anyone.get("/readyz").json()["job_leader_fails"].startswith("its last round ended 6")
        assert {name: check["ok"] for name, check in response.json()["checks"].items()} == {
            "redis": True,
            "leader": False,
            "gpus": False,
            "subscription": True,
            **({} if config.postgres.url is None else {"postgres": True}),
        }


def test_queues_and_pauses(
    http: httpx.Client, platform: FakePlatform, redis_client: "redis.Redis", gateway: Served, engine: Any
) -> None:
    platform.held.add(ECHO)
    submit(http)
    (queue,) = (queue for queue in http.get("/v1/queues").json()["queues"] if queue["function"] == "echo")
    assert (queue["depth"], queue["paused"]) == (1, False)
    assert 0 <= queue["oldest_wait_s"] < 10

    assert http.post("/v1/queues/echo/pause").status_code == 204
    assert http.post(f"/v1/gpus/{GPU}/pause").status_code == 204
    assert redis_client.smembers("smore:paused") == {b"f:default/echo", f"g:{GPU}".encode()}
    assert next(gpu["paused"] for gpu in http.get("/v1/gpus").json()["gpus"])
    with httpx.Client(base_url=gateway.url, timeout=30) as anyone:
        public = " ".join(anyone.get("/readyz").json()["warnings"])
    assert f"GPU instances paused: {GPU} since" in public and "Functions paused: 1." in public
    assert "echo" not in public and " key " not in public, "whoever has no key learns no names"
    ready = http.get("/readyz").json()
    assert (ready["gpus"], ready["checks"]["gpus"]["detail"]) == ([GPU], f"{GPU} (paused)")
    known = " ".join(http.get("/readyz").json()["warnings"])
    key = http.headers["Authorization"].split("_")[1]
    assert re.search(rf"Functions paused: default/echo since \S+ \S+ UTC by key {key}\.", known)
    assert http.post("/v1/queues/echo/resume").status_code == 204
    assert http.post(f"/v1/gpus/{GPU}/resume").status_code == 204
    assert http.post("/v1/queues/pause").status_code == 204
    assert redis_client.smembers("smore:paused") == {b"*"}
    assert all(queue["paused"] for queue in http.get("/v1/queues").json()["queues"])
    assert http.post("/v1/queues/resume").status_code == 204
    problem(http.post("/v1/queues/nothing/pause"), 404, "function_not_found")
    problem(http.post("/v1/gpus/nothing/pause"), 404, "not_found")


def test_warm_and_offload_are_commands(http: httpx.Client, redis_client: "redis.Redis") -> None:
    assert http.post("/v1/functions/echo/warm", json={}).json() == {"gpus": [GPU]}
    assert http.post("/v1/functions/echo/offload", json={"gpu": GPU}).json() == {"gpus": [GPU]}
    assert redis_client.xlen(f"smore:cmd:{GPU}") == 2
    problem(http.post("/v1/functions/echo/warm", json={"gpu": "no"}), 404, "not_found")
    problem(http.post("/v1/functions/echo/warm", json={"gpus": []}), 422, "invalid_input")
    problem(http.post("/v1/functions/echo/warm", content=b"{", headers=JSON), 400, "malformed")


# ---- deploying and the catalog ---------------------------------------------------------------------------------------


def function_yaml(name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "smore/v1",
        "kind": "Function",
        "metadata": {"name": name},
        "spec": {"entrypoint": "zoo.echo:Function", **spec},
    }


def test_operators_alone_put_a_function_before_trainings(
    http: httpx.Client, foreign: httpx.Client, store: Store, catalog: Catalog
) -> None:
    document = function_yaml("first", slo={"precedence": True})
    deployer = add_key(catalog, Scope.DEPLOY, Scope.READ)
    problem(foreign.put("/v1/functions/first", json=document), 403, "forbidden")
    problem(foreign.put("/v1/functions/first", json=document, headers={"X-API-Key": deployer}), 403, "forbidden")
    assert http.put("/v1/functions/first", json=document).json()["precedence"] is True
    assert http.put("/v1/functions/last", json=function_yaml("last")).json()["precedence"] is False


def test_deploy_canary_activate_rollback_delete(http: httpx.Client, store: Store, platform: FakePlatform) -> None:
    made = http.put("/v1/functions/fresh", json=function_yaml("fresh"))
    assert made.status_code == 201, made.text
    assert (made.json()["revision"], made.json()["created"], made.json()["measured"]["run_ms"]) == (1, True, 1.0)
    assert http.post("/v1/functions/fresh/invocations", json={"input": 4}).json()["output"] == 4
    again = http.put("/v1/functions/fresh", json=function_yaml("fresh"))
    assert (again.status_code, again.json()["revision"], again.json()["created"]) == (200, 1, False)
    text = (
        "apiVersion: smore/v1\nkind: Function\nmetadata: {name: fresh}\nspec:\n  entrypoint: zoo.echo:Function\n  slo:"
        " {deadline: 2s}\n"
    )
    second = http.put("/v1/functions/fresh", content=text, headers={"Content-Type": "application/yaml"})
    assert (second.status_code, second.json()["revision"], second.json()["deadline_ms"]) == (201, 2, 2000.0)

    assert second.json()["changed"] == []
    platform.handlers["default/fresh"] = lambda begun: Failure(
        cause=Cause.LOAD_FAILED, message="ImportError: no module"
    )
    failed = problem(
        http.put("/v1/functions/fresh", json=function_yaml("fresh", slo={"deadline": 3})), 422, "canary_failed"
    )
    assert (failed["detail"], failed["cause"], failed["revision"]) == ("ImportError: no module", "load_failed", 3)
    assert failed["serving"] == 2
    assert http.get("/v1/functions/fresh").json()["revision"] == 2
    revisions = http.get("/v1/functions/fresh/revisions").json()["revisions"]
    assert [(one["revision"], one["state"], one.get("error")) for one in revisions] == [
        (3, "failed", "ImportError: no module"),
        (2, "active", None),
        (1, "active", None),
    ]

    assert http.post("/v1/functions/fresh/rollback", json={"revision": 1}).json()["revision"] == 1
    problem(http.post("/v1/functions/fresh/rollback", json={"revision": 3}), 409, "conflict")
    assert http.put("/v1/functions/fresh/slo", json={"deadline_ms": 750}).json()["deadline_ms"] == 750
    problem(http.put("/v1/functions/fresh/slo", json={"deadline_ms": -1}), 422, "invalid_input")
    assert http.delete("/v1/functions/fresh").status_code == 204
    assert http.get("/v1/functions/fresh").status_code == 404
    problem(http.post("/v1/functions/fresh/invocations", json={"input": 1}), 404, "function_not_found")


def test_outputs_of_a_first_run_are_held_against_what_is_declared_and_what_was(
    http: httpx.Client, store: Store, platform: FakePlatform
) -> None:
    assert http.put("/v1/functions/fresh", json=function_yaml("fresh")).status_code == 201
    scores = {"name": "score", "datatype": "FP32", "shape": [-1, 3]}
    platform.handlers["default/fresh"] = lambda begun: Result(
        form="json", body=orjson.dumps({"inputs": None, "outputs": [scores], "run_ms": 1.0, "memory_mib": 50.0})
    )
    declared = [scores | {"shape": [-1, 5]}]
    failed = problem(
        http.put("/v1/functions/fresh", json=function_yaml("fresh", outputs=declared)), 422, "canary_failed"
    )
    assert (failed["cause"], failed["detail"]) == (
        "bad_output",
        "outputs.score: the shape [-1, 5] is declared, and the handler gives [-1, 3]",
    )
    made = http.put("/v1/functions/fresh", json=function_yaml("fresh", outputs=[scores]))
    assert (made.status_code, made.json()["changed"]) == (201, ["outputs: tensors, before: JSON values"])


@pytest.mark.parametrize(("peak", "near"), [(590.0, True), (500.0, False)])
def test_a_first_run_that_comes_near_its_bound_of_memory_is_a_warning(
    http: httpx.Client, store: Store, platform: FakePlatform, peak: float, near: bool
) -> None:
    found = {"inputs": None, "outputs": None, "run_ms": 1.0, "memory_mib": 50.0, "peak_mib": peak, "limit_mib": 640.0}
    platform.handlers["default/fresh"] = lambda begun: Result(form="json", body=orjson.dumps(found))
    made = http.put("/v1/functions/fresh", json=function_yaml("fresh")).json()
    assert (made["measured"]["peak_mib"], made["measured"]["limit_mib"]) == (peak, 640.0)
    said = "The first run held up to 590 of the 640 MiB that the instance may hold"
    assert [words.startswith(said) for words in made["warnings"]] == [True] * near


def test_a_first_revision_that_fails_leaves_a_function_that_is_not_ready_and_nothing_loaded(
    http: httpx.Client, store: Store, platform: FakePlatform, redis_client: "redis.Redis"
) -> None:
    platform.handlers["default/fresh"] = lambda begun: Failure(cause=Cause.CRASHED, message="signal 11")

    failed = problem(http.put("/v1/functions/fresh", json=function_yaml("fresh")), 422, "canary_failed")
    assert failed["serving"] == 0

    problem(http.post("/v1/functions/fresh/invocations", json={"input": 1}), 409, "not_ready")
    # Nothing of the revision stays, and by its name all of the function goes.
    assert http.post("/v1/functions/fresh/offload", json={}).json() == {"gpus": [GPU]}
    sent = [command for _, command in Fleet(redis_client, "smore:").commands(GPU, "0-0", 0.001)]
    assert sent == [
        Offload(version=1, function="default/fresh", revision=1, gone=True),
        Offload(version=1, function="default/fresh", revision=ALL_REVISIONS),
    ]


def test_a_change_is_known_when_its_answer_comes(
    http: httpx.Client, gateway: Served, store: Store, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = gateway.app.state.gateway.catalog
    apply = catalog.changed

    async def late(message: str) -> None:
        await asyncio.sleep(0.2)
        await apply(message)

    monkeypatch.setattr(catalog, "changed", late)

    assert http.put("/v1/functions/fresh", json=function_yaml("fresh")).status_code == 201
    assert http.post("/v1/functions/fresh/invocations", json={"input": 4}).status_code == 200
    made = http.post("/v1/keys", json={"name": "ci", "scopes": ["read"]}).json()
    with httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {made['key']}"}, timeout=30) as theirs:
        assert theirs.get("/v1/functions").status_code == 200
        assert http.delete(f"/v1/keys/{made['id']}").status_code == 204
        assert theirs.get("/v1/functions").status_code == 401
    assert http.delete("/v1/functions/fresh").status_code == 204
    assert http.get("/v1/functions/fresh").status_code == 404


@pytest.mark.parametrize(
    ("document", "status", "field"),
    [
        (function_yaml("other"), 422, "metadata.name"),
        (function_yaml("fresh", entrypoint="os.system"), 422, "spec.entrypoint"),
        (function_yaml("fresh", sacling={}), 422, "spec.sacling"),
        (function_yaml("fresh", slo={"deadline": "soon"}), 422, "spec.slo.deadline"),
        (function_yaml("fresh") | {"apiVersion": "v1"}, 422, "apiVersion"),
        (function_yaml("fresh") | {"more": 1}, 422, "more"),
        ({"name": "fresh"}, 422, "apiVersion"),
        ([], 422, "body"),
    ],
)
def test_documents_that_are_wrong(http: httpx.Client, store: Store, document: object, status: int, field: str) -> None:
    assert problem(http.put("/v1/functions/fresh", json=document), status, "invalid_spec")["field"] == field
    assert http.get("/v1/functions/fresh").status_code == 404


def test_keys_and_projects(http: httpx.Client, gateway: Served, store: Store) -> None:
    assert http.post("/v1/projects", json={"name": "vision"}).status_code == 201
    problem(http.post("/v1/projects", json={"name": "vision"}), 409, "conflict")
    assert [one["name"] for one in http.get("/v1/projects").json()["projects"]] == ["default", "vision"]
    made = http.post("/v1/keys", json={"name": "ci", "scopes": ["read"], "project": "vision"}).json()
    with httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {made['key']}"}, timeout=30) as theirs:
        assert theirs.get("/v1/functions").status_code == 200
        own = http.post("/v1/keys", json={"name": "mine", "scopes": ["read", "invoke"]}).json()
        listed = http.get("/v1/keys")
        assert [one["id"] for one in listed.json()["keys"]] == [own["id"]]
        assert own["key"] not in listed.text
        problem(http.delete(f"/v1/keys/{made['id']}"), 404, "not_found")
        store.revoke_key("vision", made["id"])
        eventually(lambda: theirs.get("/v1/functions").status_code == 401)
    problem(http.post("/v1/keys", json={"name": "x", "scopes": ["root"]}), 422, "invalid_input")
    assert http.delete(f"/v1/keys/{own['id']}").status_code == 204


def test_jobs(http: httpx.Client, store: Store, redis_client: "redis.Redis", platform: FakePlatform) -> None:
    eventually(lambda: http.get("/v1/gpus").json()["gpus"])
    made = http.post("/v1/jobs", json={"name": "train", "argv": ["zoo.train", "--model", "bert", "--seconds", "1"]})
    assert made.status_code == 201, made.text
    job = made.json()
    assert (job["state"], job["gpus"], job["degradation"]) == ("queued", [], None)
    assert redis_client.xlen(f"smore:cmd:{GPU}") == 0, "the job scheduler starts it"
    assert redis_client.llen("smore:job:bell") == 1
    assert http.get(f"/v1/jobs/{job['id']}").json()["id"] == job["id"]
    made_entry = http.get("/v1/audit").json()["entries"][0]
    assert (made_entry["target"], made_entry["target_name"]) == (f"job/{job['id']}", "train")
    assert [one["id"] for one in http.get("/v1/jobs").json()["jobs"]] == [job["id"]]
    assert http.post(f"/v1/jobs/{job['id']}/stop").json()["state"] == "ended"
    problem(
        http.post("/v1/jobs", json={"name": "train", "argv": ["zoo.train", "--model", "bert"], "gpus": ["nope"]}),
        422,
        "invalid_input",
    )
    problem(
        http.post("/v1/jobs", json={"name": "Train!", "argv": ["zoo.train", "--model", "bert"]}), 422, "invalid_spec"
    )
    problem(http.get("/v1/jobs/none"), 404, "not_found")


def test_what_a_training_cannot_be_is_refused_with_the_field(
    http: httpx.Client, foreign: httpx.Client, store: Store, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a start and by a dry run alike."""
    eventually(lambda: http.get("/v1/gpus").json()["gpus"])
    body: dict[str, Any] = {"name": "t", "argv": ["zoo.train", "--model", "bert"]}

    def refused(field: str, code: str = "invalid_input", of: httpx.Client = http, **asked: Any) -> dict[str, Any]:
        answers = [problem(of.post(path, json=body | asked), 422, code) for path in ("/v1/jobs", "/v1/jobs:dryRun")]
        assert [answer["field"] for answer in answers] == [field, field], answers
        assert len({answer["detail"] for answer in answers}) == 1
        return answers[0]

    def wrong(field: str, value: object, code: str = "invalid_input") -> None:
        asked: dict[str, Any] = {field: value}
        refused(field, code, **asked)

    assert refused("count", count=2, gpus=[GPU])["largest"] == 1
    refused("gpus[0]", gpus=["none"])
    refused("gpus[1]", gpus=[GPU, GPU])
    refused("duration", iterations=5, duration=60)
    for field, longest in (("duration", 4e8), ("grace", 3601)):
        for number in (0, -1, longest):
            wrong(field, number)
        for word in ("-1s", "nan", "inf", "10.1y", "soon"):
            wrong(field, word, "invalid_spec")
    for name in ("iterations", "count", "restarts"):
        for value in (-1, 1.5, "many", 10**13):
            wrong(name, value)
    for name in ("iterations", "count"):
        wrong(name, 0)
    for name in ("duration", "grace"):
        answer = http.post(
            "/v1/jobs", content=b'{"name":"t","argv":["zoo.train","--model","bert"],"%b":NaN}' % name.encode()
        )
        assert answer.status_code in (400, 415, 422), answer.text
    refused("env.TOKEN", env={"TOKEN": {"secret": "NONE"}})
    refused("argv[0]", of=foreign, argv=["os"])
    # What the job scheduler says of the GPU instances that there are.
    for field, largest in (("count", 4), ("memory", 80_000.0)):
        told = TrialAnswer(field=field, largest=largest, message="There is no more.")
        monkeypatch.setattr(JobQueue, "trial", lambda *_, told=told: told)
        assert refused(field, count=8)["largest"] == largest
    assert http.get("/v1/jobs").json()["jobs"] == []


def test_a_training_is_accepted_once_though_redis_goes_away_behind_it(
    http: httpx.Client, store: Store, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: http.get("/v1/gpus").json()["gpus"])

    def away(*_: object) -> None:
        raise redis.ConnectionError("away")

    for call in ("wake", "queue"):
        monkeypatch.setattr(JobQueue, call, away)
    made = http.post("/v1/jobs", json={"name": "t", "argv": ["zoo.train", "--model", "bert"]})
    assert (made.status_code, made.json()["state"]) == (201, "queued")
    assert http.post(f"/v1/jobs/{made.json()['id']}/hold").json()["state"] == "held"
    assert [job.name for job in store.jobs.unfinished()] == ["t"]


def test_what_does_not_fit_a_trainings_state_is_a_conflict(
    http: httpx.Client, store: Store, platform: FakePlatform
) -> None:
    running = placed(store, "running", [GPU], running=True).id
    waits = store.jobs.submit("default", "waits", JobRequest(argv=["zoo.train"])).id
    attached = store.jobs.attach("default", "attached", GPU, source="attached", group="g", rank="r").id
    over = store.jobs.submit("default", "over", JobRequest(argv=["zoo.train"])).id
    store.jobs.stop("default", over)
    bodies = {"move": {"first": True}}
    conflicts = {
        running: ("move", "hold", "release", "restart", "allow"),
        waits: ("release", "restart", "allow"),
        attached: ("move", "hold", "release", "restart", "allow"),
        over: ("move", "hold", "release", "allow"),
    }
    for id_, actions in conflicts.items():
        before = http.get(f"/v1/jobs/{id_}").json()
        for action in actions:
            problem(http.post(f"/v1/jobs/{id_}/{action}", json=bodies.get(action)), 409, "conflict")
        assert http.get(f"/v1/jobs/{id_}").json() == before
    store.jobs.move(attached, Action.LOSE)
    problem(http.post(f"/v1/jobs/{attached}/restart"), 409, "conflict")
    for id_, action, state in ((waits, "hold", "held"), (waits, "release", "queued"), (over, "restart", "queued")):
        assert http.post(f"/v1/jobs/{id_}/{action}").json()["state"] == state


def test_a_project_has_as_many_trainings_as_its_limit_says(
    http: httpx.Client, store: Store, platform: FakePlatform
) -> None:
    """Those that wait count as those that run."""
    eventually(lambda: http.get("/v1/gpus").json()["gpus"])
    body = {"name": "t", "argv": ["zoo.train", "--model", "bert"]}
    assert http.patch("/v1/projects/default/limits", json={"jobs": 2}).status_code == 200
    made = [http.post("/v1/jobs", json=body).json() for _ in range(2)]
    assert [job["state"] for job in made] == ["queued", "queued"]
    for path in ("/v1/jobs", "/v1/jobs:dryRun"):
        answer = http.post(path, json=body)
        told = problem(answer, 429, "limit_reached")
        assert (told["field"], told["limit"], answer.headers["retry-after"]) == ("jobs", 2, "60")
    http.post(f"/v1/jobs/{made[0]['id']}/stop")
    assert http.post("/v1/jobs", json=body).status_code == 201


def test_a_job_may_say_which_workload_it_is(
    http: httpx.Client, store: Store, redis_client: "redis.Redis", platform: FakePlatform
) -> None:
    eventually(lambda: http.get("/v1/gpus").json()["gpus"])
    body = {"name": "train", "argv": ["zoo.train", "--model", "bert"], "workload": "resnet50/cpu/training/8"}
    made = http.post("/v1/jobs", json=body).json()
    assert made["workload"] == "resnet50/cpu/training/8"
    assert store.jobs.get("default", made["id"]).request.workload == "resnet50/cpu/training/8"
    for wrong in ("resnet50", "resnet50/cpu/function/8", "resnet50/cpu/training/0", ""):
        assert (
            problem(http.post("/v1/jobs", json=body | {"workload": wrong}), 422, "invalid_spec")["field"] == "workload"
        )


def last_command(redis_client: "redis.Redis") -> Any:
    ((_, fields),) = cast("list[tuple[bytes, dict[bytes, bytes]]]", redis_client.xrevrange(f"smore:cmd:{GPU}", count=1))
    return decode_command(fields[b"c"])


def test_a_budget_that_cannot_be_told_from_noise_is_refused(
    http: httpx.Client, store: Store, redis_client: "redis.Redis", engine: Any, platform: FakePlatform
) -> None:
    eventually(lambda: http.get("/v1/gpus").json()["gpus"])
    body: dict[str, Any] = {"name": "train", "argv": ["zoo.train", "--model", "bert"]}
    made = http.post("/v1/jobs", json=body | {"budget": 0.01}).json()
    assert made["budget"] == 0.01
    assert store.jobs.get("default", made["id"]).request.budget == 0.01
    assert http.post("/v1/jobs", json=body | {"budget": 19}).json()["budget"] == 19
    for wrong in (0.0099, 0, -0.1, 19.1):
        refused = problem(http.post("/v1/jobs", json=body | {"budget": wrong}), 422, "invalid_input")
        assert (refused["field"], refused["smallest"]) == ("budget", 0.01)
    problem(http.post("/v1/jobs", json=body | {"budget": "much"}), 422, "invalid_input")

    (gpu,) = http.get("/v1/gpus").json()["gpus"]
    place = {"device": gpu["device"], "sharing_mode": gpu["sharing_mode"]}
    timings = {
        "noisy": {"n": 50, "mean": 0.1, "p50": 0.1, "p95": 0.14},
        "calm": {"n": 50, "mean": 0.1, "p50": 0.1, "p95": 0.101},
        "slow": {"n": 50, "mean": 3.0, "p50": 3.0, "p95": 3.1},
        "few": {"n": 3, "mean": 0.1, "p50": 0.1, "p95": 0.2},
    }
    rows = [
        {
            "row": "solo",
            "workload": {"model": model, "preset": "s", "role": "training", "batch": 8},
            "timing": timing,
            "place": place,
            "at": "2026-11-21T10:00:00+00:00",
        }
        for model, timing in timings.items()
    ]
    Profiles(engine).add(rows, "imported")
    workloads = {model: body | {"workload": f"{model}/s/training/8"} for model in [*timings, "unknown"]}
    for model in ("calm", "few", "unknown"):
        assert http.post("/v1/jobs", json=workloads[model] | {"budget": 0.01}).status_code == 201, model
    smallest = problem(http.post("/v1/jobs", json=workloads["noisy"] | {"budget": 0.01}), 422, "invalid_input")[
        "smallest"
    ]
    assert 0.01 < smallest < 0.1
    problem(http.post("/v1/jobs", json=workloads["noisy"] | {"budget": smallest - 0.001}), 422, "invalid_input")
    assert http.post("/v1/jobs", json=workloads["noisy"] | {"budget": smallest}).status_code == 201
    assert (
        "too slow"
        in problem(http.post("/v1/jobs", json=workloads["slow"] | {"budget": 0.5}), 422, "invalid_input")["detail"]
    )
    assert http.post("/v1/jobs", json=workloads["slow"]).json()["budget"] == 0.1, "an aim, and no demand"


def test_the_statement_of_a_job(
    http: httpx.Client, foreign: httpx.Client, store: Store, engine: Any, platform: FakePlatform
) -> None:
    job = placed(store, "train", [GPU], running=True)
    at = datetime.now(UTC)
    alone = http.get(f"/v1/jobs/{job.id}/statement").json()
    assert (alone["verdict"], alone["loss"]) == ("kept", 0.0), "no function ran beside it"
    assert http.get(f"/v1/jobs/{job.id}").json()["loss"] == 0.0
    with Session(engine) as session:
        for owner, gpu in ((job.id, GPU), ("other", GPU), (job.id, "x")):
            session.add(JobHarvestRow(job=owner, gpu=gpu, seconds=3.0, invocations=3))
        session.commit()
    untracked = http.get(f"/v1/jobs/{job.id}/statement").json()
    assert (untracked["verdict"], untracked["windows_to_go"]) == ("unmeasured", None), "it has told no iteration"
    assert "smore.track in its loop" in untracked["summary"]
    with Session(engine) as session:
        session.get_one(JobAttemptRow, (job.id, job.attempt)).iterations = 5
        session.commit()
    early = http.get(f"/v1/jobs/{job.id}/statement").json()
    assert (early["loss"], early["kept"], early["missing_windows"], early["missing_s"]) == (None, None, 8, None)
    assert (early["verdict"], early["windows_to_go"], early["to_go_s"]) == ("not_proven", 8, None)
    assert early["summary"].endswith("budget 10 % not proven: 8 closed windows to go")

    def window(number: int, open_s: float = 0.104) -> LossWindowRow:
        return LossWindowRow(
            job=job.id,
            gpu=GPU,
            start_at=at + timedelta(seconds=30 * number),
            end_at=at + timedelta(seconds=30 * number + 1),
            project="default",
            before_s=open_s + 0.001 * (number % 2),
            before_n=6,
            closed_s=0.1,
            closed_n=6,
            closed_sd=0.002,
            after_s=open_s - 0.001 * (number % 3),
            after_n=6,
        )

    with Session(engine) as session:
        session.add_all([window(number) for number in range(5)])
        session.commit()
    some = http.get(f"/v1/jobs/{job.id}/statement").json()
    assert (some["windows"], some["missing_windows"], some["missing_s"]) == (5, 3, pytest.approx(90.0))
    assert (some["harvested_s"], some["invocations"]) == (6.0, 6), "an attempt on another GPU instance counts too"
    assert (
        some["summary"] == "6.0 function-seconds harvested; budget 10 % not proven: 3 closed windows to go, about 90 s"
    )

    with Session(engine) as session:
        session.add_all([window(number) for number in range(5, 40)])
        session.commit()
    full = http.get(f"/v1/jobs/{job.id}/statement").json()
    assert (full["windows"], full["missing_windows"], full["kept"], full["budget"]) == (40, 0, True, 0.1)
    assert full["loss"] == pytest.approx(0.04, abs=0.005)
    assert full["loss_low"] < full["loss"] < full["loss_high"] < 0.05
    assert full["summary"].startswith("6.0 function-seconds harvested; training lost <= 4.")
    assert full["summary"].endswith("% with 95 % confidence (budget 10 %): kept")
    assert (full["verdict"], full["windows_to_go"]) == ("kept", 0)

    # Of two GPU instances both must be known, and the slower one counts.
    pair = placed(store, "pair", [GPU, "gpu1"], budget=0.02)
    with Session(engine) as session:
        session.add(JobHarvestRow(job=pair.id, gpu=GPU, seconds=3.0, invocations=3))
        for gpu, open_s in ((GPU, 0.101), ("gpu1", 0.105)):
            for number in range(10):
                row = window(number, open_s)
                row.job, row.gpu = pair.id, gpu
                session.add(row)
            session.commit()
            found = http.get(f"/v1/jobs/{pair.id}/statement").json()
            assert (found["loss"] is None) == (gpu == GPU)
    assert (found["kept"], found["loss"]) == (False, pytest.approx(0.05, abs=0.005))
    assert found["verdict"] == "not_kept"
    # A lower budget judges what comes, and what was keeps its verdict; so it does on another GPU instance and at the end.
    with Session(engine) as session:
        session.execute(update(LossWindowRow).values(start_at=LossWindowRow.start_at - timedelta(hours=1)))
        session.get_one(JobRow, job.id).started_at = at - timedelta(hours=2)
        session.execute(update(JobAttemptRow).values(started_at=at - timedelta(hours=2)))
        session.commit()
    http.put(f"/v1/jobs/{job.id}/slo", json={"budget": 0.02})
    store.jobs.move(job.id, Action.REQUEUE, JobChange())
    store.jobs.move(job.id, Action.START, JobChange(gpus=["gpu1"]))
    store.jobs.move(job.id, Action.END, JobChange(exit_code=0))
    judged = http.get(f"/v1/jobs/{job.id}/statement").json()
    [past] = judged["past_budgets"]
    assert (past["budget"], past["verdict"], past["windows"]) == (0.1, "kept", 40)
    assert (judged["budget"], judged["verdict"], judged["windows"], judged["loss"]) == (
        0.02,
        "not_proven",
        40,
        full["loss"],
    )
    # A list knows what one that is over has lost, as its statement does.
    ended = next(one for one in http.get("/v1/jobs").json()["jobs"] if one["id"] == job.id)
    assert ended == http.get(f"/v1/jobs/{job.id}").json()
    assert (ended["loss"], ended["loss_windows"], ended["iterations"]) == (full["loss"], 40, 5)
    problem(foreign.get(f"/v1/jobs/{job.id}/statement"), 404, "not_found")
    problem(http.get("/v1/jobs/none/statement"), 404, "not_found")


def test_predictions(
    http: httpx.Client, store: Store, redis_client: "redis.Redis", config: Settings, platform: FakePlatform
) -> None:
    ask = {"job": "t0/s/training/8", "function": "f0/s"}
    assert http.get("/v1/predictor").json()["version"] == 0
    assert http.get("/v1/predictions", params=ask).json() == {"version": 0, "predictions": [], "pairs": []}
    weights = [Weight("training", 2, "t0", "f0", 1.5), Weight("functions", 2, "f0", "f0", 2.0)]
    table = Table(version=7, source="test", created_at=0.0, places=[place([[0.1]], [[0.3]], [[0.5]], weights=weights)])
    Tables(redis_client, config.redis.prefix).publish(table)
    known = http.get("/v1/predictor").json()
    assert (known["version"], known["places"][0]["trainings"], known["places"][0]["weights"]) == (
        7,
        ["t0/s/training/8"],
        2,
    )
    (alone,) = http.get("/v1/predictions", params=ask).json()["predictions"]
    assert (alone["training_degradation"], alone["function_degradation"], alone["known"]) == (0.1, 0.3, True)
    assert alone["training_degradation_upper"] == pytest.approx(0.6)
    (three,) = http.get("/v1/predictions", params=ask | {"k": "3"}).json()["predictions"]
    assert three["training_degradation"] == pytest.approx(3 * 1.5 * 0.1)
    assert three["function_degradation"] == pytest.approx(0.3 + 2 * 2.0 * 0.5)
    (stranger,) = http.get("/v1/predictions", params=ask | {"function": "nobody/s"}).json()["predictions"]
    assert (stranger["known"], stranger["training_degradation"]) == (False, 1.0)
    assert stranger["training_degradation_upper"] is stranger["function_degradation_upper"] is None
    # A function as the answer names it.
    (named,) = http.get("/v1/predictions", params=ask | {"function": alone["function"]}).json()["predictions"]
    assert named == alone
    for wrong, code in ({"rows": "9"}, "invalid_input"), ({"function": "f0/s/function/0"}, "invalid_spec"):
        problem(http.get("/v1/predictions", params=ask | {"function": alone["function"]} | wrong), 422, code)
    problem(http.get("/v1/predictions", params=ask | {"k": "9"}), 422, "invalid_input")
    no_job = problem(http.get("/v1/predictions", params=ask | {"job": "t0"}), 404, "not_found")
    assert "model/size/training/batch" in no_job["detail"] and "did you mean t0/s/training/8?" in no_job["detail"]
    no_function = problem(http.get("/v1/predictions", params=ask | {"function": "f0"}), 404, "function_not_found")
    assert "did you mean f0/s?" in no_function["detail"]
    problem(http.get("/v1/predictions", params=ask | {"function": "Bert/"}), 422, "invalid_spec")
    problem(http.get("/v1/predictions", params={"job": ask["job"]}), 422, "invalid_input")
    redis_client.set(f"{config.redis.prefix}degradation:table", b"cut")
    problem(http.get("/v1/predictor"), 503, "unavailable")


def test_predictions_of_two_trainings(
    http: httpx.Client, store: Store, redis_client: "redis.Redis", config: Settings, platform: FakePlatform
) -> None:
    ask = {"training": "t0/s/training/8", "beside": "t1/s/training/8"}
    assert http.get("/v1/predictions", params=ask).json() == {"version": 0, "predictions": [], "pairs": []}
    both = place([[0.1], [0.1]], [[0.3], [0.3]], [[0.5]], trainings=[[0.9, 0.2], [0.4, 0.8]])
    without = place([[0.1], [0.1]], [[0.3], [0.3]], [[0.5]], device="another device")
    tables = Tables(redis_client, config.redis.prefix)
    tables.publish(Table(version=7, source="test", created_at=0.0, places=[both, without]))
    (known, unknown) = http.get("/v1/predictions", params=ask).json()["pairs"]
    assert (known["known"], known["measured"], unknown["known"]) == (True, False, False)
    assert (known["training_degradation"], known["beside_degradation"]) == (0.2, 0.4)
    assert (known["training_degradation_upper"], known["beside_degradation_upper"]) == pytest.approx((0.7, 0.9))
    assert unknown["training_degradation"] is None
    places = http.get("/v1/predictor").json()["places"]
    assert [found["measured_trainings"] for found in places] == [0, None]
    # Of a job: its workload, on the device where it runs.
    job = placed(store, "t", [GPU], workload="t0/s/training/8")
    pairs = http.get("/v1/predictions", params=ask | {"training": job.id}).json()["pairs"]
    assert {pair["training"] for pair in pairs} == {"t0/s/training/8"}
    unnamed = placed(store, "u", [GPU])
    problem(http.get("/v1/predictions", params=ask | {"training": unnamed.id}), 422, "invalid_input")
    problem(http.get("/v1/predictions", params=ask | {"beside": "t1/s/function/8"}), 422, "invalid_spec")
    problem(http.get("/v1/predictions", params=ask | {"beside": ""}), 422, "invalid_spec")
    problem(http.get("/v1/predictions", params=ask | {"beside": "0" * 32}), 404, "not_found")
    problem(http.get("/v1/predictions", params=ask | {"job": "t0/s/training/8"}), 422, "invalid_input")


# ---- explain and ask -------------------------------------------------------------------------------------------------

REASONS = {
    "v": 1,
    "policy": "smore-product",
    "table": 4,
    "seed": 7,
    "priority": 0.5,
    "schedule_us": 250,
    "candidates": [
        {
            "gpu": GPU,
            "warm": True,
            "delay_s": 0.0,
            "run_s": 0.001,
            "finish_at": time.time() + 3600,
            "impact": 0.1,
            "function_degradation": 0.2,
            "function_degradation_upper": 0.3,
            "training_degradation": 0.05,
            "training_degradation_upper": 0.08,
            "known": True,
            "refusal": None,
        },
        {"gpu": "test1", "warm": False, "finish_at": None, "refusal": "memory"},
    ],
    "refused": {"memory": 1},
    "shadow": {"policy": "edf-util", "gpu": None},
}


def test_a_gateway_that_ends_tells_those_who_still_wait(
    config: Settings, functions: None, platform: FakePlatform, catalog: Catalog
) -> None:
    platform.held.add(ECHO)
    headers = {"Authorization": f"Bearer {add_key(catalog, *Scope)}"}
    with Served(create_app(config)) as served:
        http = httpx.Client(base_url=served.url, headers=headers, timeout=30)
        eventually(lambda: http.get("/v1/functions").status_code == 200, what="the key")
        invoked = later(lambda: http.post("/v1/functions/echo/invocations", json={"input": 1, "deadline_ms": 20_000}))
        eventually(lambda: served.waiting == 1, what="a caller who waits")
        accepted = http.post(
            "/v1/functions/echo/invocations", json={"input": 2}, headers={"Prefer": "respond-async"}
        ).json()["id"]
        read = later(lambda: http.get(f"/v1/invocations/{accepted}", headers={"Prefer": "wait=20"}))
        eventually(lambda: served.waiting == 2, what="another one, on an ordinary route")
    for answer in (invoked(), read()):
        problem(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "1"


@pytest.fixture
def recording(config: Settings, redis_client: "redis.Redis", engine: Any) -> Iterator[None]:
    """The recorder, at work all the time."""
    from smore.postgres.history.recorder import Recorder

    stop, recorder = threading.Event(), Recorder(engine, redis_client, config.redis.prefix)

    def drain() -> None:
        while not stop.wait(0.05):
            recorder.drain()

    thread = threading.Thread(target=drain)
    thread.start()
    yield
    stop.set()
    thread.join()


def test_explain_what_ran(
    http: httpx.Client, foreign: httpx.Client, platform: FakePlatform, recording: None, redis_client: "redis.Redis"
) -> None:
    platform.decision = json.dumps(REASONS)
    redis_client.hset("smore:feasible", ECHO, f"{int(time.time() * 1e6)}:2000:1000:0:0")
    id_ = http.post("/v1/functions/echo/invocations", json={"input": 1}).json()["id"]
    found = http.get(f"/v1/invocations/{id_}/explain").json()

    assert (found["state"], found["cause"], found["complete"]) == ("succeeded", "ok", True)
    assert found["summary"].startswith(f"It succeeded on {GPU}, ")
    assert found["gate"]["needed_ms"] == 2.0
    assert found["gate"]["allowed_ms"] > found["gate"]["needed_ms"]
    (attempt,) = found["attempts"]
    assert (attempt["gpu"], attempt["batch"], attempt["phases_ms"]["schedule"]) == (GPU, 1, 0.25)
    assert attempt["predicted"]["run_s"] == pytest.approx(0.0012)
    assert (attempt["predicted"]["training_degradation"], attempt["predicted"]["training_degradation_upper"]) == (
        0.05,
        0.08,
    )
    assert attempt["measured"]["finish_at"] == found["finished_at"]
    assert attempt["measured"]["slack_s"] == pytest.approx(found["slack_s"])
    assert found["gate"]["now_ms"] is not None
    assert http.post("/v1/queues/echo/pause").status_code == 204
    assert http.get(f"/v1/invocations/{id_}/explain").json()["gate"].get("now_ms") is None
    assert http.post("/v1/queues/echo/resume").status_code == 204
    decision = attempt["decision"]
    assert (decision["policy"], decision["seed"], decision["table"], decision["refused"]) == (
        "smore-product",
        7,
        4,
        {"memory": 1},
    )
    assert [(one["gpu"], one.get("refusal")) for one in decision["candidates"]] == [(GPU, None), ("test1", "memory")]
    assert decision["shadow"]["policy"] == "edf-util"

    redis_client.delete(f"smore:i:default:{id_}", f"smore:r:default:{id_}")
    later = http.get(f"/v1/invocations/{id_}/explain").json()
    assert (later["attempts"], later["gate"]["needed_ms"], later["complete"]) == (found["attempts"], 2.0, True)
    problem(foreign.get(f"/v1/invocations/{id_}/explain"), 404, "invocation_not_found")
    problem(http.get(f"/v1/invocations/{'0' * 32}/explain"), 404, "invocation_not_found")
    problem(http.get("/v1/invocations/none/explain"), 404, "invocation_not_found")


def test_measured_training_stands_beside_the_predicted(http: httpx.Client, platform: FakePlatform, engine: Any) -> None:
    """The job's last window that covers the run says what its training lost."""
    platform.held.add(ECHO)
    platform.answer = b"{}"
    id_ = submit(http)
    at = datetime.now(UTC)
    with Session(engine) as session, session.begin():
        session.add(
            ExecutionRow(
                invocation=id_,
                attempt=1,
                project="default",
                function="echo",
                gpu=GPU,
                decision_id=None,
                state=State.SUCCEEDED,
                cause="ok",
                cold=True,
                load_s={"import": 0.25, "weights": 0.25},
                run_s=0.1,
                batch=1,
                rows=1,
                co_runners=[],
                jobs=["j"],
                predicted=None,
                device="d",
                sharing_mode="s",
                claimed_at=at,
                started_at=at,
                finished_at=at + timedelta(seconds=1),
            )
        )
        for gpu, shared_s, before in ((GPU, 0.11, 3), (GPU, 0.2, 30), ("other", 0.3, 3)):
            session.add(
                JobWindowRow(
                    job="j",
                    at=at - timedelta(seconds=before),
                    gpu=gpu,
                    project="default",
                    iterations=100,
                    window_s=60,
                    solo_s=0.1,
                    solo_count=50,
                    shared_s=shared_s,
                    shared_count=50,
                    device="d",
                    sharing_mode="s",
                )
            )
    (attempt,) = http.get(f"/v1/invocations/{id_}/explain").json()["attempts"]

    assert attempt["measured"]["training_degradation"] == pytest.approx(0.1)
    assert (attempt["phases_ms"]["load"], attempt["phases_ms"]["loading"]) == (500, {"import": 250, "weights": 250})
    assert "predicted" not in attempt


def test_an_attempt_that_was_lost_says_when_its_worker_was_heard_of_last(
    http: httpx.Client, platform: FakePlatform, engine: Any
) -> None:
    platform.held.add(ECHO)
    platform.answer = b"{}"
    id_ = submit(http)
    at = datetime(2026, 1, 31, 12, 0, 9, tzinfo=UTC)
    with Session(engine) as session, session.begin():
        session.add(lost_attempt(id_, at))
        for second in (5, 8, 30):
            session.add(gpu_sample(at.replace(second=second)))
    found = http.get(f"/v1/invocations/{id_}/explain").json()
    (attempt,) = found["attempts"]
    assert (attempt["worker_seen_at"], attempt["finished_at"]) == ("2026-01-31T12:00:08Z", "2026-01-31T12:00:09Z")
    assert (
        f"Attempt 1 was lost with the worker of {GPU}, which reported last at 2026-01-31 12:00:08" in found["summary"]
    )


def lost_attempt(id_: str, at: datetime) -> ExecutionRow:
    return ExecutionRow(
        invocation=id_,
        attempt=1,
        project="default",
        function="echo",
        gpu=GPU,
        state=State.QUEUED,
        cause="worker_lost",
        claimed_at=at,
        finished_at=at,
    )


def gpu_sample(at: datetime) -> GpuSampleRow:
    return GpuSampleRow(
        gpu=GPU,
        at=at,
        utilisation=0.0,
        function_utilisation=0.0,
        memory_used_mib=0.0,
        memory_total_mib=0.0,
        running=0,
        counter="cpu",
        device="d",
        sharing_mode="s",
    )


def test_explain_what_waits(http: httpx.Client, platform: FakePlatform, recording: None) -> None:
    platform.held.add(ECHO)
    first = submit(http, **{"Smore-Deadline-Ms": "50000"})
    second = submit(http, **{"Smore-Deadline-Ms": "60000"})
    platform.answer = json.dumps(
        {"at": time.time(), "reasons": {**REASONS, "candidates": [], "refused": {"busy": 2}}}
    ).encode()

    found = http.get(f"/v1/invocations/{second}/explain").json()
    assert (found["state"], found["summary"], found["attempts"], found["complete"]) == ("queued", "It waits.", [], True)
    assert (found["waits"]["before"], found["waits"]["detail"]) == (1, "2 GPU instances are busy with the function.")
    assert found["waits"]["decision"]["refused"] == {"busy": 2}
    http.post("/v1/queues/echo/pause")
    assert (
        http.get(f"/v1/invocations/{first}/explain").json()["waits"]["detail"] == "The queue of its function is paused."
    )
    http.post(f"/v1/invocations/{first}/cancel")
    cancelled = http.get(f"/v1/invocations/{first}/explain").json()
    assert (cancelled["summary"], cancelled.get("waits"), cancelled["attempts"]) == (
        "It was cancelled.",
        None,
        [],
    )


def test_explain_what_was_refused_after_the_gate(http: httpx.Client, platform: FakePlatform, recording: None) -> None:
    platform.rejected.add(ECHO)
    id_ = http.post("/v1/functions/echo/invocations", json={"input": 1}).json()["id"]
    found = http.get(f"/v1/invocations/{id_}/explain").json()

    assert (found["state"], found["cause"], found["attempts"]) == ("rejected", "infeasible", [])
    assert found["summary"] == "It was rejected: It needs more memory than any GPU instance has."


def test_explain_without_a_recorder_says_that_it_is_not_complete(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "HISTORY_S", 0.2)
    id_ = http.post("/v1/functions/echo/invocations", json={"input": 1}).json()["id"]
    found = http.get(f"/v1/invocations/{id_}/explain").json()

    assert (found["state"], found["attempts"], found["complete"]) == ("succeeded", [], False)


INVOKE = "/v1/functions/echo/invocations"
DRY_RUN = f"{INVOKE}:dryRun"


def test_a_dry_run_asks_and_places_nothing(
    http: httpx.Client, platform: FakePlatform, queue: Queue, catalog: Catalog
) -> None:
    platform.held.add(ECHO)
    now = time.time()
    answer = {
        "at": now,
        "gpu": GPU,
        "cold": False,
        "start_at": now,
        "finish_at": now + 0.1,
        "earliest_deadline_at": now + 3.0,
    }
    platform.answer = json.dumps({**answer, "finish_s": 0.1, "reasons": REASONS}).encode()

    found = http.post(DRY_RUN, json={"input": {"x": 1}, "deadline_ms": 5000}).json()
    assert (found["outcome"], found["feasible"], found["gpu"], found["cold"]) == ("placed", True, GPU, False)
    assert found["predicted"] == {
        "function": 0.2,
        "function_upper": 0.3,
        "training": 0.05,
        "training_upper": 0.08,
        "known": True,
    }
    assert 0 < found["earliest_deadline_ms"] <= 3310
    assert found["decision"]["candidates"][1]["refusal"] == "memory"
    assert queue.snapshot().waiting == []

    image = http.post("/v1/functions/image/invocations:dryRun?deadline_ms=1000", json={"rows": 8})
    assert image.status_code == 200, image.text
    body = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
    raw = http.post(
        "/v1/functions/image/invocations:dryRun", content=body, headers={"Content-Type": "application/octet-stream"}
    )
    assert raw.status_code == 200, raw.text

    for wrong, field in (({"rows": 2}, "rows"), ({"rows": 1, "x": 1}, "x"), ({"inputs": [1]}, "inputs"), ({}, "input")):
        assert problem(http.post(DRY_RUN, json=wrong), 422, "invalid_input")["field"] == field
    for path, refused, said in (
        (
            DRY_RUN,
            {"inputs": [1]},
            "'inputs': taken by POST /v1/functions/NAME/invocations, in place of input; a dry run",
        ),
        (
            DRY_RUN,
            {"rows": 1, "inputs": [1]},
            "'inputs': taken by POST /v1/functions/NAME/invocations, in place of input",
        ),
        (DRY_RUN, {"rows": 1, "x": 1}, "'x': unknown field; a dry run is of one invocation, with input or rows"),
        (DRY_RUN, {"input": 1, "x": 1}, "'x': unknown field; a dry run is of one invocation, with input or rows"),
        (
            INVOKE,
            {"input": 1, "inputs": [1]},
            "'inputs': taken by POST /v1/functions/NAME/invocations, in place of input",
        ),
        (INVOKE, {"input": 1, "rows": 1}, "'rows': taken by a dry run"),
    ):
        assert problem(http.post(path, json=refused), 422, "invalid_input")["detail"].startswith(said)
    assert (
        problem(http.post(DRY_RUN, json={"rows": 1, "deadline_ms": -1}), 422, "invalid_input")["field"] == "deadline_ms"
    )
    problem(http.post("/v1/functions/nobody/invocations:dryRun", json={"rows": 1}), 404, "function_not_found")
    problem(http.post("/v1/functions/never-ready/invocations:dryRun", json={"rows": 1}), 409, "not_ready")
    reader = add_key(catalog, Scope.READ)
    eventually(lambda: http.get("/v1/functions", headers={"Authorization": f"Bearer {reader}"}).status_code == 200)
    problem(http.post(DRY_RUN, json={"rows": 1}, headers={"Authorization": f"Bearer {reader}"}), 403, "forbidden")


def test_a_dry_run_is_bounded_and_ends_without_an_answer(
    http: httpx.Client, platform: FakePlatform, redis_client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "ANSWER_S", 0.2)
    response = http.post(DRY_RUN, json={"rows": 1})
    problem(response, 503, "unavailable")
    assert response.headers["retry-after"] == "1"

    platform.answer = b'{"known":false}'
    problem(http.post(DRY_RUN, json={"rows": 1}), 409, "not_ready")
    redis_client.set("smore:asks", 1000, px=5000)
    response = http.post(DRY_RUN, json={"rows": 1})
    assert problem(response, 429, "queue_full")["limit"] == "asks"
    assert response.headers["retry-after"] == "1"


def test_history_serves_what_redis_has_dropped(
    http: httpx.Client, store: Store, config: Settings, redis_client: "redis.Redis", engine: Any
) -> None:
    from smore.postgres.history.recorder import Recorder

    id_ = http.post("/v1/functions/echo/invocations", json={"input": 1}).json()["id"]
    recorder = Recorder(engine, redis_client, config.redis.prefix)
    eventually(lambda: recorder.drain() == 0)
    redis_client.delete(f"smore:i:default:{id_}", f"smore:r:default:{id_}")

    found = http.get(f"/v1/invocations/{id_}").json()
    assert (found["state"], found["function"], found["revision"], found["cold"]) == ("succeeded", "echo", 1, False)
    problem(http.get(f"/v1/invocations/{id_}/result"), 410, "result_dropped")
    problem(http.post(f"/v1/invocations/{id_}/cancel"), 409, "conflict")
    page = http.get("/v1/invocations", params={"function": "echo", "state": "succeeded", "limit": 1}).json()
    assert ([one["id"] for one in page["invocations"]], page.get("next_cursor")) == ([id_], None)
    problem(http.get("/v1/invocations", params={"state": "odd"}), 422, "invalid_input")
    problem(http.get("/v1/invocations", params={"cursor": "'; drop table"}), 422, "invalid_input")


def test_pages_of_named_origins_alone_may_read_answers(
    config: Settings, functions: None, platform: FakePlatform
) -> None:
    api = config.api.model_copy(update={"cors_origins": ("https://app.example.org",)})
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with (
        Served(create_app(config.model_copy(update={"api": api}))) as served,
        httpx.Client(base_url=served.url) as http,
    ):
        for origin, named in (("https://app.example.org", True), ("https://other.example.org", False)):
            for path in ("/v1/functions/echo/invocations", "/healthz"):
                preflight = http.options(path, headers={"Origin": origin, **asks})
                assert (preflight.status_code == 200) == named, path
                answer = http.post(path, headers={"Origin": origin}, json={"input": 1})
                assert answer.status_code in (401, 405), path
                assert (answer.headers.get("access-control-allow-origin") == origin) == named, path


def test_no_page_may_read_answers_by_default(http: httpx.Client) -> None:
    answer = http.get("/healthz", headers={"Origin": "https://app.example.org"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
