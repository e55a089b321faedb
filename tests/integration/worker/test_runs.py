"""The worker in real processes: batches from their Celery message to their results, and every way they go wrong."""

import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from api.app import create_app
from smore.domain.access import Scope
from smore.domain.artifact import Artifact
from smore.domain.invocation import Encoding
from smore.messages.commands import Cancel, Offload, Prewarm
from smore.messages.reports import WarmState
from smore.process.settings import RedisSettings, Settings
from smore.redis.celery import RUN, gpu_queue, message
from smore_client import Client, upload
from smore_client.pack import pack
from tests.support.eventually import eventually
from tests.support.gateway import Served, add_key
from tests.support.worker_stage import PREFIX, Bench, RedisProcess, bench
from worker import proc
from worker.sandbox.cgroup import ShareGroup

HERE = "tests.support.handlers"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    one = RedisProcess(tmp_path_factory.mktemp("redis"))
    one.start()
    yield one
    one.stop()


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[RedisProcess]:
    """For a worker of a test's own: two on one Redis would be two of the same name."""
    one = RedisProcess(tmp_path / "redis")
    one.home.mkdir()
    one.start()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, server: RedisProcess) -> Iterator[Served]:
    """On another host than the worker, as far as their folders tell."""
    config = Settings(home=tmp_path_factory.mktemp("gateway"), redis=RedisSettings(url=server.url, prefix=PREFIX))
    with Served(create_app(config)) as one:
        yield one


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, server: RedisProcess, gateway: Served) -> Iterator[Bench]:
    """One worker for all tests that do it no lasting harm."""
    with bench(tmp_path_factory.mktemp("home"), server, SMORE_BLOBS__URL=gateway.url) as one:
        yield one


def metas(stage: Bench) -> list[dict[str, Any]]:
    """The worker's execution records in the event stream."""
    found = []
    for fields in stage.events():
        event = msgspec.msgpack.decode(fields[b"e"])
        if event[0] == "t" and event[-1]:
            found.append(json.loads(event[-1]))
    return found


def test_first_cold_then_warm(stage: Bench) -> None:
    function = stage.function("zoo.echo:Function")
    record, result = stage.call(function, {"x": [1, 2]})
    assert (record.state, result.form, json.loads(result.body)) == ("succeeded", "json", {"x": [1, 2]})
    assert result.cold and result.load_us > 0
    record, result = stage.call(function, 7)
    assert (json.loads(result.body), result.cold, result.load_us) == (7, False, 0)
    cold, warm = metas(stage)[-2:]
    assert cold["cold"] is True and set(cold["load_ms"]) == {"process", "import", "weights", "first_run"}
    assert warm["cold"] is False and (warm["batch"], warm["rows"], warm["co"], warm["jobs"]) == (1, 1, [], [])
    assert cold["boot"] == stage.report().boot and cold["pid"] == warm["pid"]
    eventually(lambda: [one.pid for one in stage.report().warm] == [warm["pid"]], what="it is reported")


def test_a_function_with_precedence_comes_before_trainings(stage: Bench) -> None:
    group = ShareGroup.make("smore-test-precedence", 1.0) if os.geteuid() == 0 else None
    if group is None:
        pytest.skip("needs root and control groups")
    group.remove()
    priorities = []
    for precedence in (True, False):
        stage.call(stage.function("zoo.echo:Function", f"first-{precedence}".lower(), precedence=precedence), 1)
        priorities.append(os.getpriority(os.PRIO_PROCESS, metas(stage)[-1]["pid"]))
    assert priorities == [-15, 5]


def test_a_batch_of_tensors_is_joined_and_split(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Sum", max_batch=8)
    ids = [
        stage.enqueue(function, json.dumps({"a": [[1, 2, 3]], "k": [[2]]}).encode()),
        stage.enqueue(function, json.dumps({"k": [[1], [10]], "a": [[1, 1, 1], [4, 5, 6]]}).encode(), rows=2),
        stage.enqueue(function, json.dumps({"a": [[0, 0, 1]], "k": [[5]]}).encode(), accept=Encoding.RAW),
    ]
    stage.dispatch(function, ids)
    first, second, third = (stage.ended(id_)[1] for id_ in ids)
    assert json.loads(first.body) == {"total": [[12.0]], "rows": [4]}
    assert json.loads(second.body) == {"total": [[3.0], [150.0]], "rows": [4, 4]}
    assert (third.form, third.shapes) == ("raw", "total:FP32:1,1;rows:INT32:1")
    assert third.body == np.float32(5).tobytes() + np.int32(4).tobytes()
    assert metas(stage)[-1]["batch"] == 3 and metas(stage)[-1]["rows"] == 4


def test_an_uploaded_function_is_fetched_through_the_gateway(stage: Bench, gateway: Served, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "handler.py").write_text(
        "from pathlib import Path\nimport smore\n\nclass Own(smore.Handler):\n    example = 1\n\n    def predict(self,"
        " inputs):\n        return [one + Path(__file__).with_name('weights.bin').stat().st_size for one in inputs]\n"
    )
    (folder / "weights.bin").write_bytes(os.urandom(2 << 20))
    packed = pack(folder, tmp_path)
    assert packed is not None
    key = add_key(stage.catalog, Scope.DEPLOY, project="p")
    headers = {"Authorization": f"Bearer {key}"}
    eventually(lambda: httpx.get(f"{gateway.url}/v1/functions", headers=headers).status_code != 401, what="the key")
    with Client(gateway.url, key) as client:
        client.carry(upload.send(packed))
    function = stage.function("handler:Own", artifact=Artifact(code=packed.code, files=packed.files))
    record, result = stage.call(function, 7)
    assert (record.state, result.body) == ("succeeded", str(7 + (2 << 20)).encode()), result
    assert set(metas(stage)[-1]["load_ms"]) == {"process", "fetch", "import", "weights", "first_run"}
    assert not (stage.home / "blobs").exists(), "they share no folder"

    missing = stage.function("handler:Gone", artifact=Artifact(code="0" * 64))
    record, result = stage.call(missing, 1)
    assert (record.cause, result.message) == (
        "load_failed",
        "The uploaded folder cannot be had: There is no such blob in this project.",
    )


def raw(shapes: str, *arrays: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    """As smore/definition/inputs.py frames them."""
    return len(shapes).to_bytes(2, "big") + shapes.encode() + b"".join(array.tobytes() for array in arrays)


def test_raw_tensors_go_there_and_back(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Sum", max_batch=8)
    body = raw("a:FP32:2,3;k:INT64:2,1", np.arange(6, dtype=np.float32), np.array([1, 2], np.int64))
    id_ = stage.enqueue(function, body, rows=2, encoding=Encoding.RAW, accept=Encoding.RAW)
    stage.dispatch(function, [id_])
    record, result = stage.ended(id_)
    assert record.state == "succeeded", result
    assert result.shapes == "total:FP32:2,1;rows:INT32:2"
    assert np.frombuffer(result.body[:8], np.float32).tolist() == [3.0, 24.0]


def test_a_large_tensor_goes_there_and_back(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Wide")
    array = np.random.default_rng(0).random((20, 50_000), np.float32)
    id_ = stage.enqueue(function, raw("x:FP32:20,50000", array), rows=20, encoding=Encoding.RAW, accept=Encoding.RAW)
    stage.dispatch(function, [id_])
    _, result = stage.ended(id_)
    assert result.body == array.tobytes()


def test_the_canary_describes_the_function(stage: Bench) -> None:
    record, result = stage.canary(stage.function(f"{HERE}:Sum", max_batch=8))
    described = json.loads(result.body)
    assert record.state == "succeeded" and result.form == "json"
    assert described["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "k", "datatype": "INT64", "shape": [-1, 1]},
    ]
    assert described["outputs"] == [
        {"name": "total", "datatype": "FP32", "shape": [-1, 1]},
        {"name": "rows", "datatype": "INT32", "shape": [-1]},
    ]
    assert described["load_ms"] > 0 and described["run_ms"] >= 0 and described["memory_mib"] > 0
    _, result = stage.canary(stage.function("zoo.echo:Function"))
    assert json.loads(result.body)["inputs"] is None


def test_a_canary_whose_output_no_call_could_be_answered_with_fails(stage: Bench) -> None:
    record, result = stage.canary(stage.function(f"{HERE}:Unencodable"))
    assert (record.state, record.cause) == ("failed", "bad_output")
    assert "the output is not JSON: Type is not JSON serializable: object" in result.message


def test_a_canary_of_two_together_fails_where_a_batch_may_have_two(stage: Bench) -> None:
    assert stage.canary(stage.function(f"{HERE}:WrongRows", "alone"))[0].state == "succeeded"
    record, result = stage.canary(stage.function(f"{HERE}:WrongRows", "together", max_batch=2))
    assert (record.state, record.cause) == ("failed", "bad_output")
    assert result.message.startswith("Two inputs in one batch: ") and "2 rows are expected" in result.message


def test_a_record_that_does_not_fit_is_refused_by_its_place(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Typed")
    record, result = stage.call(function, {"incom": 1})
    assert (record.cause, result.field) == ("invalid_input", "input.income")
    assert result.message == "input.income: missing; input.incom: unknown field; did you mean income?"
    record, result = stage.call(function, {"income": 0})
    assert (record.cause, result.message) == ("bad_output", "output.share: a number is expected, not a string")
    assert stage.line(function, f"bad_output: {result.message}").invocations == [record.id]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"a": [[1, 2, 3]]}, "the input 'k' is missing"),
        ({"a": [[1, 2, 3]], "k": [[1]], "z": [1]}, "there is no input 'z'"),
        ({"a": [[1, 2, 3]], "k": [[1], [2]]}, "the inputs differ in their number of rows"),
        ({"a": [[1, 2], [1]], "k": [[1], [2]]}, "ValueError"),
        ([1], "an object"),
    ],
)
def test_an_unreadable_input_fails_alone(stage: Bench, payload: object, said: str) -> None:
    function = stage.function(f"{HERE}:Sum", max_batch=8)
    bad = stage.enqueue(function, json.dumps(payload).encode())
    good = stage.enqueue(function, json.dumps({"a": [[1, 2, 3]], "k": [[1]]}).encode())
    stage.dispatch(function, [bad, good])
    record, result = stage.ended(bad)
    assert (record.state, record.cause) == ("failed", "invalid_input") and result.message.startswith(said)
    assert stage.ended(good)[0].state == "succeeded"


def test_an_output_of_the_wrong_shape(stage: Bench) -> None:
    function = stage.function(f"{HERE}:WrongRows")
    id_ = stage.enqueue(function, json.dumps({"a": [[1, 1, 1], [2, 2, 2]]}).encode(), rows=2)
    stage.dispatch(function, [id_])
    record, result = stage.ended(id_)
    assert (record.state, record.cause) == ("failed", "bad_output") and "2 rows are expected" in result.message
    record, result = stage.call(stage.function(f"{HERE}:Fragile", max_batch=8), {"do": "set"})
    assert (record.state, record.cause) == ("failed", "bad_output")


def test_an_exception_in_a_batch_hits_only_the_guilty_one(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Fragile", max_batch=8)
    good, bad = (stage.enqueue(function, json.dumps({"do": what}).encode()) for what in ("", "raise"))
    stage.dispatch(function, [good, bad])
    for id_ in (good, bad):
        record = stage.state(id_, "queued")
        assert (record.attempt, record.starts) == (1, 0)
        stage.dispatch(function, [id_])
    assert json.loads(stage.ended(good)[1].body)["batch"] == 1
    record, result = stage.ended(bad)
    assert (record.cause, record.starts, result.message) == ("handler_error", 1, "ValueError: it was asked to")
    first, *own = result.traceback.splitlines()
    assert first == "Traceback (most recent call last):" and own[-1] == "ValueError: it was asked to"
    assert [line for line in own if line.startswith("  File ")] == [line for line in own if "handlers.py" in line]
    # It ran twice, first in a batch, and each printed it.
    eventually(lambda: stage.lines(function, [bad]) == [first, *own], what="the log has it")
    assert stage.lines(function, [good, bad]) == [first, *own]


def test_a_crash_in_a_batch_hits_only_the_guilty_one(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Fragile", max_batch=8)
    good, bad = (stage.enqueue(function, json.dumps({"do": what}).encode(), max_attempts=2) for what in ("", "crash"))
    stage.dispatch(function, [good, bad])
    for id_ in (good, bad):
        assert stage.state(id_, "queued").starts == 0
    stage.dispatch(function, [good])
    assert stage.ended(good)[0].state == "succeeded"
    stage.dispatch(function, [bad])
    assert stage.state(bad, "queued").starts == 1
    stage.dispatch(function, [bad])
    record, result = stage.ended(bad)
    assert (record.state, record.cause, record.starts) == ("failed", "crashed", 2)
    assert result.message == "The runner ended by SIGSEGV."


def test_an_answer_that_is_none_is_charged_and_not_tried_again(stage: Bench) -> None:
    """Of a batch each runs alone once more: the one that did it is told apart, and none is tried again after that."""
    forged = {"say": "ff" * 64}
    function = stage.function(f"{HERE}:Forger", max_batch=8)
    boot = stage.report().boot
    record, result = stage.call(function, forged, max_attempts=5)
    assert (record.state, record.cause, record.starts) == ("failed", "crashed", 1)
    assert result.message.startswith("The runner broke the protocol: its answer would have 4294967295 bytes of meta")

    bad, *good = [
        stage.enqueue(function, json.dumps(one).encode(), max_attempts=5) for one in (forged, {"n": 1}, {"n": 2})
    ]
    stage.dispatch(function, [bad, *good])
    for id_ in (bad, *good):
        assert stage.state(id_, "queued").starts == 0
    for id_, number in zip(good, (1, 2), strict=True):
        stage.dispatch(function, [id_])
        assert json.loads(stage.ended(id_)[1].body) == {"n": number}
    stage.dispatch(function, [bad])
    record, _ = stage.ended(bad)
    assert (record.state, record.cause, record.starts) == ("failed", "crashed", 1)
    assert stage.report().boot == boot

    # Three different ones within ten minutes: no worker runs it any more.
    stage.call(function, forged, max_attempts=5)
    eventually(lambda: stage.call(function, {})[0].cause == "quarantined", what="it is shut out")


def test_nobody_gets_the_result_that_was_meant_for_another(stage: Bench) -> None:
    """A runner that has said more than it was asked for is a step ahead: every later answer would be the one before."""
    function = stage.function(f"{HERE}:Forger", "ahead", max_batch=8)
    answer = msgspec.msgpack.encode(["predicted", [["json", 1]], 2**63 - 1, 1])
    forged = struct.pack("<IQ", len(answer), 1) + answer + b"7"
    record, result = stage.call(function, {"say": forged.hex()}, max_attempts=5)
    # Its own answer is its own affair; how long it took is not.
    assert record.state == "failed" or (json.loads(result.body), result.run_us < 10**9) == (7, True)
    first = [stage.call(function, {"n": number}, max_attempts=5) for number in range(3)]
    assert [record.state for record, _ in first if record.state != "succeeded"] in ([], ["failed"])
    assert all(
        json.loads(result.body) == {"n": number}
        for number, (record, result) in enumerate(first)
        if record.state == "succeeded"
    )
    for meta in metas(stage):
        assert (meta["run_ms"] or 0) < 1e6


def test_a_result_too_large_is_the_functions_error_and_no_crash(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Large")
    for _ in range(4):
        record, result = stage.call(function, {"mb": 60})
        assert (record.state, record.cause, record.starts) == ("failed", "result_too_large", 1)
        assert result.message == "a result may take 24 MiB, this one takes more"
    record, result = stage.call(function, {"mb": 20})
    assert (record.state, len(result.body), result.cold) == ("succeeded", 20_000_002, False)


def test_a_run_beyond_its_limit_is_killed(stage: Bench) -> None:
    stage.function(f"{HERE}:Fragile", "hangs", timeout_s=0.3)
    record, result = stage.call("p/hangs", {"do": "hang"})
    assert (record.state, record.cause) == ("failed", "timed_out") and "0.3 s" in result.message
    pid = eventually(lambda: stage.said("p/hangs", "hangs"), what="the line")
    assert proc.start_time(pid) is None
    assert stage.line("p/hangs", "timed_out: It ran longer than its limit of 0.3 s.").stream == "smore"


def test_memory_is_bounded(stage: Bench) -> None:
    function = stage.function("zoo.misbehave:Allocate")
    record, result = stage.call(function, {"do": "allocate"}, max_attempts=1)
    assert (record.state, record.cause) == ("failed", "out_of_memory"), result
    record, result = stage.call(function, {"mib": 20})
    assert record.state == "succeeded" and result.cold, "the runner that ran out of memory was ended"


def test_too_little_memory_is_named(stage: Bench) -> None:
    """With what it may hold, what it held and the field to raise: in a run, in a load, in the log, and for native code."""
    hungry = stage.function(f"{HERE}:Hungry")
    bound = "The instance may hold 192 MiB of the machine's memory (`resources.gpu_memory` 64 MiB + 128); it held "
    reached = re.compile(re.escape(bound) + r"(1[6-9]\d) MiB and asked for more: raise `resources.gpu_memory`. (.*)")
    itself = re.compile(re.escape(bound) + r"\d{1,2} MiB at the most. .* raised this error itself. MemoryError: no")

    def said(**item: Any) -> str:
        record, result = stage.call(hungry, item, max_attempts=1)
        assert (record.state, record.cause) == ("failed", "out_of_memory")
        return result.message

    told = reached.fullmatch(said(mib=300))
    assert told is not None and told[2] == "MemoryError"
    assert int(told[1]) >= 180, "all but the last 10 MiB, which were refused"
    assert stage.line(hungry, f"out_of_memory: {bound}").stream == "smore"
    told = reached.fullmatch(native := said(mib=170, **{"raise": "Native", "text": "std::bad_alloc"}))
    assert told is not None and told[2] == "Native: std::bad_alloc", native
    own = said(mib=20, **{"raise": "MemoryError", "text": "no"})
    assert itself.fullmatch(own), own
    record, result = stage.canary(stage.function(f"{HERE}:Heavy"))
    assert record.cause == "out_of_memory" and reached.match(result.message), result.message
    record, result = stage.canary(stage.function(f"{HERE}:Tight"))
    described = json.loads(result.body)
    assert 170 < described["peak_mib"] < described["limit_mib"] == 192


def test_a_cancelled_run_is_killed(stage: Bench) -> None:
    stage.function(f"{HERE}:Fragile", "cancelled", timeout_s=60.0)
    id_ = stage.enqueue("p/cancelled", b'{"do": "hang"}')
    stage.dispatch("p/cancelled", [id_])
    pid = eventually(lambda: stage.said("p/cancelled", "hangs"), what="it runs")
    stage.fleet.send("t0", Cancel(version=1, function="p/cancelled", id=id_, attempt=1))
    eventually(lambda: proc.start_time(pid) is None, what="its runner is gone")
    eventually(lambda: stage.report().running == 0, what="the slot is free")
    # Redis still holds it as running, for this command came without its script; nothing was told of an end.
    assert stage.record(id_).state == "running"


def test_what_user_code_prints_is_in_its_log(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Chatty", max_batch=8)
    one, two = (stage.enqueue(function, json.dumps(value).encode()) for value in ("one", "two"))
    stage.dispatch(function, [one, two])
    assert stage.ended(two)[0].state == "succeeded"
    last = stage.enqueue(function, json.dumps("three").encode())
    stage.dispatch(function, [last])
    said = {
        text: (piece.stream, piece.invocations)
        for text in ("loaded", "example", "one two", "three", "warned", "from a process", "no end")
        for piece in [stage.line(function, text)]
    }
    assert said == {
        # At the load, in its first run: no invocation was the cause.
        "loaded": ("stdout", []),
        "example": ("stdout", []),
        "one two": ("stdout", [one, two]),
        "three": ("stdout", [last]),
        "warned": ("stderr", [last]),
        "from a process": ("stdout", [last]),
        "no end": ("stdout", [last]),
    }
    piece = stage.line(function, "three")
    assert (piece.gpu, piece.node, piece.revision) == ("t0", socket.gethostname(), 1)
    assert abs(piece.at - time.time()) < 3600 and piece.pid == json.loads(stage.ended(last)[1].body)
    assert "three" not in stage.log(), "the worker's own log has nothing of it"


def test_a_flood_of_output_holds_nobody_up_and_is_cut(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Chatty", "flood", max_batch=8)
    record, _ = stage.call(function, {"lines": 40_000})
    assert record.state == "succeeded"

    def counted() -> tuple[int, int]:
        """Lines that are there, and lines that are said to be missing."""
        kept = missing = 0
        for piece in stage.printed(function):
            for line in piece.lines:
                kept += line.startswith("line ")
                missing += int(line.partition(" ")[0]) if "lines were dropped" in line else 0
        return kept, missing

    eventually(lambda: sum(counted()) == 40_000, what="every line is there or counted")
    assert min(counted()) > 1000
    record, _ = stage.call(function, {"long": 100_000})
    assert record.state == "succeeded"
    assert stage.line(function, "bytes cut]").stream == "stdout"


def test_a_load_that_fails(stage: Bench) -> None:
    broken = stage.function(f"{HERE}:Broken")
    record, result = stage.call(broken, {})
    assert (record.state, record.cause, result.message) == (
        "failed",
        "load_failed",
        "FileNotFoundError: there are no weights",
    )
    noted = stage.line(broken, "load_failed: FileNotFoundError: there are no weights")
    assert (noted.stream, noted.invocations) == ("smore", [record.id])
    _, result = stage.canary(broken)
    assert result.message.startswith("FileNotFoundError: there are no weights\nIts log:\nTraceback"), (
        "its deployer is told more"
    )
    assert "runner.py" not in result.message and result.traceback.endswith("there are no weights\n")
    record, result = stage.call(stage.function("tests.integration.nowhere:Function", "nowhere"), {})
    assert record.cause == "load_failed" and "there is no module tests.integration.nowhere;" in result.message


def test_an_unknown_revision_fails(stage: Bench) -> None:
    assert stage.call("p/nobody", {})[0].cause == "function_deleted"


def test_a_crash_loop_is_quarantined(stage: Bench) -> None:
    function = stage.function(f"{HERE}:CrashesLoading")
    for _ in range(3):
        record, result = stage.call(function, {})
        assert record.cause == "load_failed" and "SIGABRT" in result.message
    assert stage.call(function, {})[0].cause == "quarantined"
    eventually(lambda: f"{function}@1" in stage.report().quarantined, what="it is reported")


def test_prewarm_and_offload(stage: Bench) -> None:
    function = stage.function(f"{HERE}:Notes")
    stage.fleet.send("t0", Prewarm(version=1, function=function, revision=1))
    stage.fleet.send("t0", Prewarm(version=1, function=function, revision=1))
    eventually(lambda: ("notes", "idle") in stage.warm(), what="it is warm")
    _, result = stage.call(function, {})
    assert not result.cold
    answer = json.loads(result.body)
    assert answer["cwd"].startswith(str(stage.home.resolve()))
    assert proc.private_mib(answer["pid"]) > 0
    stage.fleet.send("t0", Offload(version=1, function=function, revision=1))
    eventually(lambda: all(name != "notes" for name, _ in stage.warm()), what="it is gone")
    # What leaves is not reported any more, and may still be at it.
    eventually(
        lambda: proc.start_time(answer["pid"]) is None and not Path(answer["cwd"]).exists(),
        what="its process and folder are gone",
    )
    assert eventually(lambda: stage.said(function, "unloaded"), what="what it printed last") == answer["pid"]


def test_keep_alive_ends(stage: Bench) -> None:
    stage.function("zoo.echo:Function", "brief", keep_alive_s=0.5)
    stage.call("p/brief", 1)
    eventually(lambda: ("brief", "idle") in stage.warm(), what="it is warm")
    eventually(lambda: all(name != "brief" for name, _ in stage.warm()), what="its keep-alive is over")
    assert stage.call("p/brief", 1)[1].cold


def test_max_warm_instances_run_side_by_side(stage: Bench) -> None:
    stage.function("zoo.misbehave:Sleep", "twice", max_warm=2)
    ids = [stage.enqueue("p/twice", json.dumps({"s": 0.3}).encode()) for _ in range(4)]
    for id_ in ids:
        stage.dispatch("p/twice", [id_])
    for id_ in ids:
        assert stage.ended(id_)[0].state == "succeeded"
    assert sum(name == "twice" for name, _ in stage.warm()) == 2


def test_an_idle_runner_that_dies_is_noticed(stage: Bench) -> None:
    function = stage.function("zoo.echo:Function")
    stage.call(function, 1)
    pid = next(one.pid for one in stage.report().warm if one.function == function)
    os.kill(pid, 9)
    eventually(lambda: all(name != "function" for name, _ in stage.warm()), what="the report says so")
    assert stage.call(function, 2)[1].cold


def test_a_second_delivery_does_nothing(stage: Bench) -> None:
    function = stage.function("zoo.echo:Function")
    id_ = stage.enqueue(function, b"1")
    stage.dispatch(function, [id_])
    stage.ended(id_)
    events = stage.client.xlen(f"{PREFIX}ev")
    stage.client.lpush(PREFIX + gpu_queue("t0"), message(RUN, [function, 1, [[id_, 1]]], gpu_queue("t0")))
    eventually(lambda: not stage.client.llen(PREFIX + gpu_queue("t0")), what="it is taken")
    stage.call(function, 1)
    settled = [event for fields in stage.events() if (event := msgspec.msgpack.decode(fields[b"e"]))[0] == "t"]
    assert sum(event[4] == id_ for event in settled) == 1 and stage.client.xlen(f"{PREFIX}ev") > events


def test_memory_pressure_evicts_the_least_recently_used(tmp_path: Path, other_server: RedisProcess) -> None:
    with bench(tmp_path, other_server, memory_mib="260", standby="false") as stage:
        for name in ("one", "two"):
            stage.call(stage.function("zoo.misbehave:Allocate", name), {"mib": 30})
        stage.call("p/one", {"mib": 0})
        # Not what was declared, nor what was found before the run.
        eventually(
            lambda: all(30 < one.memory_mib < 60 for one in stage.report().warm), what="what they hold is measured"
        )
        stage.function("zoo.echo:Function", "big", memory_mib=200.0)
        before = {one.function: one.pid for one in stage.report().warm}
        record, _ = stage.call("p/big", 1)
        assert record.state == "succeeded"
        eventually(
            lambda: [name for name, _ in stage.warm()] == ["big", "one"], what="the one used longest ago has gone"
        )
        assert proc.start_time(before["p/two"]) is None
        record, result = stage.call(stage.function("zoo.echo:Function", "huge", memory_mib=1000.0), 1)
        assert (record.cause, "has 260 MiB" in result.message) == ("load_failed", True)


def test_the_report_tells_the_truth(stage: Bench) -> None:
    function = stage.function("zoo.misbehave:Sleep")
    stage.call(function, {"s": 0.0})
    eventually(lambda: ("sleep", "idle") in stage.warm(), what="it is warm")
    report = stage.report()
    assert (report.kind, report.utilisation_counter, report.slots) == ("cpu", "cpu-time", 8)
    (one,) = [one for one in report.warm if one.function == function]
    assert one.state is WarmState.IDLE and one.pid in {pid for pid, _ in proc.session_members(stage.session())}
    # Declared at first, then measured.
    eventually(
        lambda: any(w.function == function and 0 < w.memory_mib < 64 for w in stage.report().warm),
        what="it is measured",
    )
