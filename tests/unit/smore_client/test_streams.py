"""Many inputs at once, and results that are iterated over: flows driven against a scripted platform."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from smore_client import AsyncClient, Client, admin
from smore_client.many import IDS_PER_WAIT, INPUTS_PER_SUBMIT
from smore_client.types import Invocation, State


class Platform:
    """Answers both clients, and keeps what it was sent. Of what is waited for the last half has ended."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.full_after = 10**9
        self.accepted = 0
        self.problem: dict[str, Any] = {"code": "queue_full", "detail": "The queue is full."}
        #: In place of an input's invocation.
        self.refused: dict[Any, dict[str, Any]] = {}

    def client(self) -> Client:
        return Client("http://test", "sk", transport=httpx.MockTransport(self.answer))

    def async_client(self) -> AsyncClient:
        return AsyncClient("http://test", "sk", transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path
        if path == "/v1/functions/f/invocations":
            return self.submitted(json.loads(request.content)["inputs"])
        if path == "/v1/invocations:wait":
            ids = json.loads(request.content)["ids"]
            return self.json(invocations=[self.shown(id_) for id_ in ids[len(ids) // 2 :]])
        first = int(request.url.params.get("cursor", 0))
        page, following = [str(first), str(first + 1)], first + 2 if first < 4 else None
        if path == "/v1/invocations":
            return self.json(invocations=[self.shown(id_) for id_ in page], next_cursor=following and str(following))
        if path == "/v1/jobs":
            return self.json(jobs=[{"id": id_} for id_ in page], next_cursor=following and str(following))
        assert path == "/v1/audit"
        return self.json(entries=[{"id": int(id_)} for id_ in page], next_cursor=following)

    def submitted(self, inputs: list[Any]) -> httpx.Response:
        if self.accepted + len(inputs) > self.full_after:
            return httpx.Response(429, json={"status": 429, **self.problem})
        self.accepted += len(inputs)
        return self.json(
            invocations=[self.refused.get(value, {"id": str(value), "state": "queued"}) for value in inputs]
        )

    @staticmethod
    def shown(id_: str) -> dict[str, Any]:
        return {"id": id_, "state": "succeeded", "function": "f", "revision": 3, "output": int(id_)}

    @staticmethod
    def json(**body: Any) -> httpx.Response:
        return httpx.Response(200, json=body)


@pytest.fixture
def platform() -> Platform:
    return Platform()


def test_any_number_of_inputs_is_submitted_in_portions(platform: Platform) -> None:
    with platform.client() as client:
        submitted = client.submit_all("f", range(INPUTS_PER_SUBMIT + 1), deadline_ms=5.0)
    assert [each.id for each in submitted] == [str(number) for number in range(INPUTS_PER_SUBMIT + 1)]
    assert {(each.function, each.state) for each in submitted} == {("f", State.QUEUED)}
    first, second = platform.requests
    assert json.loads(second.content) == {"inputs": [INPUTS_PER_SUBMIT], "deadline_ms": 5.0}
    assert first.headers["Prefer"] == second.headers["Prefer"] == "respond-async"
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


def test_large_inputs_are_sent_apart(platform: Platform) -> None:
    with platform.client() as client:
        client.submit_all("f", ["x" * (3 << 20), "y" * (3 << 20)])
    assert len(platform.requests) == 2


def test_a_portion_that_is_refused_as_a_whole_raises_nothing(platform: Platform) -> None:
    platform.full_after = INPUTS_PER_SUBMIT
    with platform.client() as client:
        *accepted, last = client.submit_all("f", range(INPUTS_PER_SUBMIT + 1))
    assert all(each.id for each in accepted)
    assert last == Invocation(
        id="", function="f", state=State.REJECTED, cause="queue_full", detail="The queue is full."
    )


@pytest.mark.parametrize("count", [3, IDS_PER_WAIT + 3])
def test_each_is_given_once_when_it_has_ended(platform: Platform, count: int) -> None:
    ids = [str(number) for number in range(count)]
    with platform.client() as client:
        ended = [each.output for each in client.as_completed([*ids, ids[0]])]
    assert sorted(ended) == list(range(count))
    assert ended != list(range(count))
    waits = [json.loads(request.content) for request in platform.requests]
    assert all(len(wait["ids"]) <= IDS_PER_WAIT for wait in waits)
    assert (waits[0]["wait_s"] > 0) == (count <= IDS_PER_WAIT)


def test_what_was_submitted_is_given_whole_and_what_was_refused_first(platform: Platform) -> None:
    refused = {"id": "", "state": "rejected", "cause": "slo_infeasible", "detail": "No.", "earliest_deadline_ms": 70}
    platform.refused[1] = refused

    async def asynchronous() -> list[Invocation]:
        async with platform.async_client() as client:
            submitted = await client.submit_all("f", [0, 1, 2])
            return [each async for each in client.as_completed(submitted)]

    with platform.client() as client:
        blocking = list(client.as_completed(client.submit_all("f", [0, 1, 2])))
    assert blocking == asyncio.run(asynchronous())
    first, *others = blocking
    assert (first.state, first.cause, first.earliest_deadline_ms) == (State.REJECTED, "slo_infeasible", 70)
    assert sorted(each.output for each in others) == [0, 2]


def test_where_all_are_refused_the_earliest_deadline_is_kept(platform: Platform) -> None:
    platform.full_after, platform.problem = 0, {"code": "slo_infeasible", "earliest_deadline_ms": 70}
    with platform.client() as client:
        ended = list(client.as_completed(client.submit_all("f", [0, 1])))
    assert [(each.cause, each.earliest_deadline_ms) for each in ended] == [("slo_infeasible", 70)] * 2


def test_an_empty_id_is_an_error_that_says_what_to_pass(platform: Platform) -> None:
    with platform.client() as client, pytest.raises(ValueError, match="pass what submit_all returned"):
        list(client.as_completed(["0", ""]))
    assert not platform.requests


def test_pages_follow_each_other(platform: Platform) -> None:
    async def asynchronous() -> list[list[Any]]:
        async with platform.async_client() as client:
            return [
                [each.id async for each in client.each_invocation(function="f", state="failed")],
                [each.id async for each in client.each_job()],
                [each.id async for each in client.stream(admin.each_audit_entry({}))],
                sorted([each.id async for each in client.as_completed(["1", "2"])]),
            ]

    with platform.client() as client:
        blocking = [
            [each.id for each in client.each_invocation(function="f", state="failed")],
            [each.id for each in client.each_job()],
            [each.id for each in client.stream(admin.each_audit_entry({}))],
            sorted(each.id for each in client.as_completed(["1", "2"])),
        ]
    texts = [str(number) for number in range(6)]
    assert blocking == asyncio.run(asynchronous()) == [texts, texts, list(range(6)), ["1", "2"]]
    asked = [dict(request.url.params) for request in platform.requests if request.url.path == "/v1/invocations"]
    assert [each.get("cursor") for each in asked[:3]] == [None, "2", "4"]
    assert {(each["function"], each["state"]) for each in asked} == {("f", "failed")}


def test_nothing_is_fetched_before_it_is_needed(platform: Platform) -> None:
    with platform.client() as client:
        next(client.each_invocation())
    assert len(platform.requests) == 1
