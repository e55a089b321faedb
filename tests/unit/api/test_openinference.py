"""The Open Inference Protocol's routes, as far as they need no server."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import orjson
import pytest

from api.errors import Malformed, UnsupportedMediaType, explain, hybrid
from api.invoke.request import Call
from api.invoke.submit import Submitted
from api.openinference import routes
from api.openinference.request import _coding, _json_size
from smore.domain.errors import FunctionNotFound, QueueFull
from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause, Encoding, State
from smore.domain.limits import NO_LIMITS
from smore.postgres.history.values import BatchTotal, Totals
from smore.redis.catalog import FunctionEntry, KeyEntry
from smore.redis.records import Reply


def call(slo_us: int = 5_000_000) -> Call:
    nobody: Any = None
    return Call(
        gateway=nobody,
        key=KeyEntry(id="k", project="default", digest="", scopes=[]),
        entry=FunctionEntry(project="default", name="f", revision=1),
        spec=FunctionSpec(entrypoint="a:B"),
        payloads=[],
        several=False,
        accept=Encoding.RAW,
        slo_us=slo_us,
        wait_s=6.0,
        trace="",
        idempotency_key="",
        request_hash="",
        request_id="r",
        limits=NO_LIMITS,
        volatile=True,
    )


def submitted(state: State, cause: Cause) -> Submitted:
    reply = Reply(
        id="i",
        state=state,
        cause=cause,
        attempt=1,
        arrival_us=0,
        claimed_us=0,
        started_us=0,
        finished_us=0,
        gpu="",
        schedule_us=0,
        deadline_us=0,
        result=b"",
    )
    return Submitted(id="i", reply=reply, state=state)


@pytest.mark.parametrize(("slo_us", "runs"), [(5_000_000, 3), (1, 1)])
def test_what_redis_forgot_is_queued_again_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch, slo_us: int, runs: int
) -> None:
    lost, done = submitted(State.FAILED, Cause.PAYLOAD_LOST), submitted(State.SUCCEEDED, Cause.OK)
    endings = [lost, lost, done]
    seen: list[tuple[int, float]] = []

    async def run(one: Call, wait_s: float, _began: float) -> Submitted:
        seen.append((one.slo_us, wait_s))
        return endings[len(seen) - 1]

    monkeypatch.setattr(routes, "submit_and_wait", run)
    found = asyncio.run(routes._submit(call(slo_us), time.perf_counter()))

    assert found is endings[runs - 1] and len(seen) == runs
    # Neither the deadline nor the caller's patience begins anew.
    assert all(later <= earlier for earlier, later in pairwise(seen)) and seen[0] == (slo_us, 6.0)


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [(b"gzip", "gzip"), (b" Deflate ", "deflate"), (b"gzip, deflate, br", ""), (b"identity", ""), (b"", "")],
)
def test_only_a_coding_that_is_asked_for_alone_is_used(accepted: bytes, coding: str) -> None:
    assert routes._coding(accepted) == coding


def test_headers_of_a_request() -> None:
    assert (_json_size({}), _json_size({b"inference-header-content-length": b"12"})) == (None, 12)
    for wrong in (b"", b"-1", b"1.5", b"1" * 16, "²".encode("latin-1"), b"0x10"):
        with pytest.raises(Malformed):
            _json_size({b"inference-header-content-length": wrong})
    assert (_coding({}), _coding({b"content-encoding": b"identity"}), _coding({b"content-encoding": b"GZIP"})) == (
        "",
        "",
        "gzip",
    )
    with pytest.raises(UnsupportedMediaType):
        _coding({b"content-encoding": b"gzip, deflate"})


def test_an_error_is_one_document_for_all_clients() -> None:
    plain = explain(QueueFull("Too much.", limit="pending", retry_after_s=1), "rid")
    answer = hybrid(plain)
    body = orjson.loads(answer.body)

    assert answer.status_code == 429 and answer.headers["content-type"] == "application/json"
    assert (answer.headers["retry-after"], answer.headers["x-request-id"]) == ("1", "rid")
    assert body["error"] == body["detail"] == "Too much." and (body["code"], body["limit"]) == ("queue_full", "pending")
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert (
        orjson.loads(hybrid(explain(FunctionNotFound(), "rid")).body)["error"]
        == "There is no such function in this project."
    )


def test_statistics_are_tritons() -> None:
    one = Totals(
        function="f",
        revision=3,
        succeeded=4,
        failed=1,
        rows=9,
        total_s=2.0,
        failed_s=0.5,
        wait_s=0.25,
        run_s=1.0,
        last_at=1.7e9,
        batches=(BatchTotal(rows=1, batches=1, run_s=0.25), BatchTotal(rows=4, batches=2, run_s=0.5)),
    )
    shown = routes._statistics(one)

    assert (shown["name"], shown["version"], shown["inference_count"], shown["execution_count"]) == ("f", "3", 9, 3)
    assert shown["last_inference"] == 1_700_000_000_000
    spent = shown["inference_stats"]
    assert spent["success"] == {"count": 4, "ns": 2_000_000_000} and spent["fail"] == {"count": 1, "ns": 500_000_000}
    assert (
        sum(spent[name]["ns"] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
        == spent["success"]["ns"]
    )
    assert shown["batch_stats"][1]["batch_size"] == 4 and shown["batch_stats"][1]["compute_infer"]["count"] == 2
