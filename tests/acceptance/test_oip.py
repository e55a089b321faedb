"""
Strangers at the door of the Open Inference Protocol: tritonclient and KServe's client, unmodified, against the whole
platform.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from tritonclient.http import (
    InferenceServerClient,
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
    InferResult,
)

from smore.local.embedded import memory_folder
from smore_client import ApiError
from tests.support.eventually import eventually
from tests.support.tensor_handlers import Mirror
from tests.support.whole_platform import ROOT, STRICT, Platform

pytestmark = pytest.mark.acceptance

#: Made by `make test`, because kserve's requirements contradict the platform's own.
KSERVE = Path(sys.prefix) / "kserve" / "bin" / "python"
NAMES = tuple(Mirror.example)
ENVIRONMENT = STRICT


@pytest.fixture(scope="module")
def headers(platform: Platform) -> dict[str, str]:
    handlers = "tests.support.tensor_handlers"
    platform.deploy("mirror", f"{handlers}:Mirror", slo={"deadline": "20s"}, batching={"max_size": 8})
    platform.deploy("slow", f"{handlers}:Slow", slo={"deadline": "20s"})
    platform.client.deploy(ROOT / "zoo/functions/echo.yaml")
    with pytest.raises(ApiError):
        platform.deploy("broken", f"{handlers}:Broken")
    return {"Authorization": f"Bearer {platform.key}"}


@pytest.fixture(scope="module")
def triton(platform: Platform, headers: dict[str, str]) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(platform.url.removeprefix("http://")) as client:
        yield client


def arrays(rows: int = 2) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    rng = np.random.default_rng(rows)
    tensors: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    for name, example in Mirror.example.items():
        if name == "BYTES":
            tensors[name] = np.array([[b"\xc3\xa9", b""] for _ in range(rows)], object).reshape(rows, 2)
        elif example.dtype.kind == "f":
            tensors[name] = rng.standard_normal((rows, 2)).astype(example.dtype)
        else:
            tensors[name] = rng.integers(0, 2 if name == "BOOL" else 100, (rows, 2)).astype(example.dtype)
    return tensors


def inputs(sent: dict[str, np.ndarray[Any, np.dtype[Any]]], in_json: frozenset[str] = frozenset()) -> list[InferInput]:
    tensors = []
    for name, array in sent.items():
        tensor = InferInput(name, list(array.shape), name)
        tensor.set_data_from_numpy(array, binary_data=name not in in_json)
        tensors.append(tensor)
    return tensors


def same(result: InferResult, sent: dict[str, np.ndarray[Any, np.dtype[Any]]], names: tuple[str, ...] = NAMES) -> None:
    for name in names:
        received = result.as_numpy(name)
        if name == "BYTES" and received.size and isinstance(received.flat[0], str):
            received = np.fromiter((text.encode() for text in received.flat), object).reshape(received.shape)
        assert received.dtype == sent[name].dtype
        np.testing.assert_array_equal(received, sent[name])


def refused(error: pytest.ExceptionInfo[InferenceServerException], status: str) -> str:
    assert error.value.status() == status
    # tritonclient wraps what it cannot read into a message of its own.
    assert "exception occurred in the client" not in error.value.message()
    message: str = error.value.message()
    return message


def test_a_server_and_its_models(triton: InferenceServerClient, headers: dict[str, str]) -> None:
    assert triton.is_server_live() and triton.is_server_ready()
    server = triton.get_server_metadata()
    assert server["name"] == "smore" and {"binary_tensor_data", "model_repository", "statistics"} <= set(
        server["extensions"]
    )

    assert triton.is_model_ready("mirror", headers=headers) and triton.is_model_ready("mirror", "1", headers=headers)
    assert not triton.is_model_ready("nobody", headers=headers)
    assert not triton.is_model_ready("mirror", "2", headers=headers)
    assert not triton.is_model_ready("mirror")
    metadata = triton.get_model_metadata("mirror", headers=headers)
    assert {one["name"]: (one["datatype"], one["shape"]) for one in metadata["inputs"]} == {
        name: (name, [-1, 2]) for name in NAMES
    }
    assert metadata["versions"] == ["1"] and metadata["outputs"][-1] == {
        "name": "sum",
        "datatype": "FP32",
        "shape": [-1, 1],
    }
    assert metadata == triton.get_model_metadata("mirror", "1", headers=headers)
    config = triton.get_model_config("mirror", headers=headers)
    assert config["max_batch_size"] == 8 and {"name": "FP32", "data_type": "TYPE_FP32", "dims": [2]} in config["input"]
    with pytest.raises(InferenceServerException) as absent:
        triton.get_model_metadata("mirror", "two", headers=headers)
    refused(absent, "404")


def test_a_revision_that_failed_its_first_run_is_not_ready(
    platform: Platform, triton: InferenceServerClient, headers: dict[str, str]
) -> None:
    assert not triton.is_model_ready("broken", headers=headers)
    with pytest.raises(InferenceServerException) as unready:
        triton.infer(
            "broken",
            [InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.zeros((1, 1), np.float32))],
            headers=dict(headers),
        )
    assert "first run" in refused(unready, "409")
    index = {one["name"]: one["state"] for one in triton.get_model_repository_index(headers=headers)}
    assert (index["broken"], index["mirror"]) == ("UNAVAILABLE", "READY")
    # Beside a revision that serves, the failed one can be named, and is not ready either.
    with pytest.raises(ApiError):
        platform.deploy("echo", "tests.support.tensor_handlers:Broken")
    assert triton.is_model_ready("echo", headers=headers)
    newest = platform.client.function("echo").revision + 1
    assert not triton.is_model_ready("echo", str(newest), headers=headers)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_datatype_as_bytes(triton: InferenceServerClient, headers: dict[str, str], rows: int) -> None:
    sent = arrays(rows)
    result = triton.infer("mirror", inputs(sent), headers=dict(headers), request_id="echo me")

    same(result, sent)
    assert result.get_response()["id"] == "echo me"
    assert (result.get_response()["model_name"], result.get_response()["model_version"]) == ("mirror", "1")
    np.testing.assert_array_equal(result.as_numpy("sum"), sent["FP32"].sum(axis=1, keepdims=True))


def test_json_and_bytes_mixed_and_a_subset_of_outputs(triton: InferenceServerClient, headers: dict[str, str]) -> None:
    sent = arrays()
    wanted = [
        InferRequestedOutput("BYTES", binary_data=False),
        InferRequestedOutput("INT64"),
        InferRequestedOutput("FP32", binary_data=False),
    ]
    result = triton.infer(
        "mirror", inputs(sent, frozenset({"INT64", "BYTES", "BOOL"})), outputs=wanted, headers=dict(headers)
    )

    same(result, sent, ("BYTES", "INT64", "FP32"))
    assert [one["name"] for one in result.get_response()["outputs"]] == ["BYTES", "INT64", "FP32"]
    everything = frozenset(NAMES)
    plain = triton.infer(
        "mirror",
        inputs(sent, everything),
        outputs=[InferRequestedOutput("sum", binary_data=False)],
        headers=dict(headers),
    )
    assert len(plain.get_output("sum")["data"]) == 2


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_both_ways(triton: InferenceServerClient, headers: dict[str, str], coding: str) -> None:
    sent = arrays()
    result = triton.infer(
        "mirror",
        inputs(sent),
        headers=dict(headers),
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )

    same(result, sent)


def test_named_version_and_asynchronous_call(platform: Platform, headers: dict[str, str]) -> None:
    sent = arrays(1)
    with InferenceServerClient(platform.url.removeprefix("http://"), concurrency=4) as client:
        calls = [client.async_infer("mirror", inputs(sent), model_version="1", headers=dict(headers)) for _ in range(4)]
        for call in calls:
            same(call.get_result(), sent)


def test_function_of_json_values(triton: InferenceServerClient, headers: dict[str, str]) -> None:
    tensor = InferInput("input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([orjson.dumps({"x": [1, 2]})], object))
    assert triton.get_model_metadata("echo", headers=headers)["inputs"] == [
        {"name": "input", "datatype": "BYTES", "shape": [1]}
    ]

    answer = triton.infer("echo", [tensor], headers=dict(headers)).as_numpy("output")

    assert orjson.loads(answer[0]) == {"x": [1, 2]}


def test_errors_are_read_by_the_client(
    platform: Platform, triton: InferenceServerClient, headers: dict[str, str]
) -> None:
    sent = arrays()
    with pytest.raises(InferenceServerException) as keyless:
        triton.infer("mirror", inputs(sent))
    assert "API key" in refused(keyless, "401")
    with pytest.raises(InferenceServerException) as absent:
        triton.infer("nobody", inputs(sent), headers=dict(headers))
    refused(absent, "404")
    with pytest.raises(InferenceServerException) as wrong:
        triton.infer("mirror", inputs(sent | {"FP32": np.zeros((2, 3), np.float32)}), headers=dict(headers))
    assert "FP32" in refused(wrong, "422")
    with pytest.raises(InferenceServerException) as late:
        triton.infer("slow", seconds(0), timeout=1, headers=dict(headers))
    refused(late, "429")
    waiting = len(platform.client.queues())
    with pytest.raises(InferenceServerException) as sequence:
        triton.infer("mirror", inputs(sent), sequence_id=7, sequence_start=True, headers=dict(headers))
    assert "sequence" in refused(sequence, "400")
    for call in (
        triton.get_system_shared_memory_status,
        triton.get_cuda_shared_memory_status,
        triton.get_trace_settings,
        triton.get_log_settings,
        lambda **more: triton.register_system_shared_memory("r", "/r", 64, **more),
        lambda **more: triton.get_trace_settings("mirror", **more),
        lambda **more: triton.update_log_settings({"log_info": True}, **more),
    ):
        with pytest.raises(InferenceServerException) as unserved:
            call(headers=dict(headers))
        assert "not served" in refused(unserved, "400")
    assert len(platform.client.queues()) == waiting


def seconds(value: float) -> list[InferInput]:
    tensor = InferInput("s", [1, 1], "FP32")
    return [tensor.set_data_from_numpy(np.array([[value]], np.float32))]


def test_the_end_of_a_deadline_names_the_invocation(platform: Platform, headers: dict[str, str]) -> None:
    """What runs longer than its function's limit, or is cancelled, ends as an error with its id: never as a 202."""
    body, size = InferenceServerClient.generate_request_body(seconds(8))
    answer = httpx.post(
        f"{platform.url}/v2/models/slow/infer",
        content=body,
        timeout=30,
        headers=headers | {"Inference-Header-Content-Length": str(size), "Smore-Deadline-Ms": "800"},
    )

    assert answer.status_code == 504, answer.text
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["error"] == document["detail"] and len(document["id"]) == 32
    platform.client.cancel(document["id"])


def test_malformed_requests_reach_no_queue(platform: Platform, headers: dict[str, str]) -> None:
    body, size = InferenceServerClient.generate_request_body(inputs(arrays()))
    url = f"{platform.url}/v2/models/mirror/infer"
    before = {queue.function: queue.depth for queue in platform.client.queues()}
    length = "Inference-Header-Content-Length"
    for more, content, status in (
        ({length: "abc"}, body, 400),
        ({length: "-1"}, body, 400),
        ({length: str(len(body) + 1)}, body, 400),
        ({length: str(size - 1)}, body, 400),
        ({length: str(size)}, body[:-1], 422),
        ({length: str(size)}, body + b"\0", 422),
        ({}, body, 400),
        ({}, b"", 400),
        ({"Content-Encoding": "br", length: str(size)}, body, 415),
        ({"Content-Encoding": "gzip", length: str(size)}, body, 400),
        ({"Content-Encoding": "gzip", length: "2"}, gzip.compress(bytes(9 << 20)), 413),
    ):
        answer = httpx.post(url, content=content, headers=headers | more, timeout=30)
        assert answer.status_code == status, answer.text
        document = answer.json()
        assert document["error"] and document["status"] == status and document["code"]
    assert {queue.function: queue.depth for queue in platform.client.queues()} == before
    gone = httpx.get(f"{platform.url}/v2/nothing/here", headers=headers, timeout=30)
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found") and gone.json()["error"]


def test_load_and_unload_are_the_platforms_own(
    platform: Platform, triton: InferenceServerClient, headers: dict[str, str]
) -> None:
    eventually(lambda: platform.runner_pids("mirror"), 20, "a warm instance")
    triton.unload_model("mirror", headers=headers)
    eventually(lambda: not platform.runner_pids("mirror"), 20, "no warm instance")
    # Cold, but deployed.
    assert triton.is_model_ready("mirror", headers=headers)
    triton.load_model("mirror", headers=headers)
    assert platform.runner_pids("mirror")
    with pytest.raises(InferenceServerException) as foreign:
        triton.load_model("mirror", headers=headers, config=json.dumps({"max_batch_size": 1}))
    assert "smore deploy" in refused(foreign, "400")


def test_statistics_count_what_ran(triton: InferenceServerClient, headers: dict[str, str]) -> None:
    def stats() -> dict[str, Any]:
        (one,) = triton.get_inference_statistics("mirror", headers=headers)["model_stats"]
        found: dict[str, Any] = one
        return found

    before = (
        stats()["inference_stats"]["success"]["count"]
        if eventually(
            lambda: triton.get_inference_statistics("mirror", headers=headers)["model_stats"],
            15,
            "a first run in the history",
        )
        else 0
    )
    for _ in range(3):
        triton.infer("mirror", inputs(arrays(2)), headers=dict(headers))
    eventually(lambda: stats()["inference_stats"]["success"]["count"] >= before + 3, 15, "the runs in the history")
    one = stats()
    spent = one["inference_stats"]
    assert one["version"] == "1" and one["inference_count"] >= 6 and one["last_inference"] > 1_600_000_000_000
    assert (
        0 < spent["compute_infer"]["ns"] <= spent["success"]["ns"]
        and spent["queue"]["count"] == spent["success"]["count"]
    )
    assert 0 < one["execution_count"] <= spent["success"]["count"] and any(
        batch["batch_size"] == 2 for batch in one["batch_stats"]
    )
    everything = triton.get_inference_statistics(headers=headers)["model_stats"]
    assert {"mirror"} <= {model["name"] for model in everything}


def test_kserves_client(platform: Platform, headers: dict[str, str]) -> None:
    assert KSERVE.exists(), "`make test` makes the environment of KServe's client"
    script = Path(__file__).with_name("kserve_client.py")
    ran = subprocess.run([KSERVE, script, platform.url, platform.key], capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr[-2000:]
    report = json.loads(ran.stdout.splitlines()[-1])

    assert (report["live"], report["ready"], report["model"], report["absent"], report["broken"]) == (
        True,
        True,
        True,
        False,
        False,
    )
    assert report["id"] == "mine"
    for form in ("binary True", "binary False"):
        assert report[form]["BYTES"] == ["one", "zwö"]
        assert report[form]["sum"] == ["float32", [[1.0]]]
        for name in set(NAMES) - {"BYTES"}:
            assert report[form][name] == [str(Mirror.example[name].dtype), [[1.0, 0.0]]], name
    assert report["error"].startswith("There is no function 'nobody'") and "404" in report["error"]
    assert report["key"].startswith("The request has no API key") and "401" in report["key"]


def test_redis_dies_while_a_large_tensor_waits(
    platform: Platform, triton: InferenceServerClient, headers: dict[str, str]
) -> None:
    """
    The tensor was on no disk, and what lay in memory is gone too. The gateway has it still, and its caller only waits
    longer.
    """
    sent = arrays(4000)
    platform.client.pause("mirror")
    with (
        ThreadPoolExecutor() as pool,
        InferenceServerClient(platform.url.removeprefix("http://"), network_timeout=90) as client,
    ):
        # An hour: a new leader knows one row's canary alone, and four thousand rows in proportion to that take minutes
        # on a busy machine.
        waiting = pool.submit(
            lambda: client.infer("mirror", inputs(sent), timeout=3_600_000_000, headers=dict(headers))
        )
        eventually(
            lambda: any(queue.function == "mirror" and queue.depth for queue in platform.client.queues()),
            20,
            "the tensor in the queue",
        )
        eventually(lambda: platform.redis.info("persistence")["aof_buffer_length"] == 0, 20, "its record on the disk")
        (lying,) = [
            path
            for path in (memory_folder(platform.home) or platform.home).iterdir()
            if path.name.startswith("default.")
        ]
        lying.unlink()
        os.kill(platform.pid("redis"), signal.SIGKILL)

        def resumed() -> bool:
            try:
                platform.client.resume("mirror")
            except (ApiError, httpx.HTTPError):
                return False
            return True

        eventually(resumed, 40, "Redis again")
        same(waiting.result(timeout=90), sent)
    with httpx.Client(base_url=platform.url, headers=headers, timeout=30) as http:
        eventually(lambda: http.get("/readyz").status_code == 200, 30, "readiness")

        def lost() -> bool:
            told = http.get("/v1/invocations", params={"function": "mirror"})
            return any(one["cause"] == "payload_lost" for one in told.json()["invocations"])

        eventually(lost, 15, "the lost one in the history")
