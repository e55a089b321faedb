"""
What a tensor costs on its way in: ``python -m lab.bench.tensors --json [--quick]``.

A 1x3x224x224 FP32 tensor (602,112 bytes), one connection, one request after the other:

* ``oip``: ``tritonclient``, unmodified, its binary form, through the whole platform (gateway, Redis, scheduler, worker,
  runner and back).
* ``json``: the same function in the process of a FastAPI server (``lab/bench/naive_tensors.py``), tensors as JSON by orjson
  at both ends over one ``http.client`` connection: the quickest client that sends it as JSON.

In each round both sides are measured, one after the other, with a warm-up of 1 s and a window of 3 s (``--quick``: one
round, 1 s). The time of a request begins with the array in the client and ends with the answer's array there. CPU is
that of all processes of a side (Redis, Postgres and beat of the platform included, the client left out) within the
window, over the answers in it, so what the platform uses while it is idle counts too. Both sides compute the means of
the three channels (``predict_us``).

Figures: medians over the rounds; of a ratio, the median of the ratios of the rounds.

* ``oip_p50_ms``, ``json_p50_ms``; ``oip_cpu_us``, ``json_cpu_us`` per request; ``cpu_ratio`` (oip / json, aim 0.5),
  ``p50_ratio``.
* ``idle_cpu_ms_per_s``: CPU that the platform uses in a second without requests.

The JSON line also has the CPU of each of the platform's processes.
"""

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tritonclient.http import InferenceServerClient, InferInput

from lab.bench import cpu, naive, report
from lab.bench.means import ChannelMeans
from lab.bench.ports import free_port
from smore.local import layout, machine
from smore.process.settings import Settings
from smore_client import Client

IMAGE = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
FUNCTION = {
    "apiVersion": "smore/v1",
    "kind": "Function",
    "metadata": {"name": "means"},
    "spec": {
        "entrypoint": "lab.bench.means:ChannelMeans",
        "slo": {"deadline": "30s"},
        "resources": {"gpu_memory": "128MiB"},
        "scaling": {"keep_alive": -1},
    },
}
WARMUP_S = 1.0
#: A first start compiles the policy.
START_S = 180.0
#: Cores: a platform that uses less has finished the work of its start.
IDLE_CORES = 0.15

#: One request: the answer's array.
Request = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    name: str
    request: Request
    group: cpu.ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one side needed in one round; ``cpu_us`` per answer."""

    p50_ms: float
    cpu_us: float
    answers: int


@contextmanager
def platform(home: Path) -> Iterator[Side]:
    """SMore on a home of its own with one CPU partition, nothing pinned, the function deployed."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    port = free_port()
    os.environ |= {**naive.ENVIRONMENT, "SMORE_API__PORT": str(port)}
    end = machine.up(
        home, config=Settings(platform_cores=cores), partitions=[layout.Partition(gpu="cpu0", kind="cpu", device=cores)]
    )
    try:
        key = (home / "key").read_text().strip()
        with Client(end.gateway_url, key) as admin, InferenceServerClient(f"127.0.0.1:{port}") as client:
            _patiently(client.is_server_ready)
            admin.deploy(FUNCTION)
            group = cpu.ProcessGroup([end.supervisor_pid])
            # A platform that has just started looks for predictors to fit, once.
            _patiently(lambda: group.measure(lambda: time.sleep(0.5))[1].cores < IDLE_CORES)
            headers = {"Authorization": f"Bearer {key}"}

            def request() -> Any:
                image = InferInput("image", list(IMAGE.shape), "FP32")
                image.set_data_from_numpy(IMAGE)
                return client.infer("means", [image], headers=dict(headers)).as_numpy("mean")

            yield Side(name="oip", request=request, group=group)
    finally:
        machine.down(home)


@contextmanager
def peer() -> Iterator[Side]:
    port = free_port()
    # Its turns are further apart than the five seconds for which uvicorn keeps a connection.
    options = ("--no-access-log", "--log-level", "warning", "--timeout-keep-alive", "600")
    command = (
        sys.executable,
        "-m",
        "uvicorn",
        "--factory",
        "lab.bench.naive_tensors:gateway",
        "--port",
        str(port),
        *options,
    )
    process = subprocess.Popen(
        command, env={**os.environ, **naive.ENVIRONMENT, "PYTHONPATH": str(report.ROOT)}, stdin=subprocess.DEVNULL
    )
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def request() -> Any:
        tensor = {"name": "image", "datatype": "FP32", "shape": IMAGE.shape, "data": IMAGE.reshape(-1)}
        connection.request("POST", "/infer", orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY))
        answer = connection.getresponse()
        (output,) = orjson.loads(answer.read())["outputs"]
        return np.array(output["data"], np.float32).reshape(output["shape"])

    def answers() -> bool:
        try:
            return bool(len(request()))
        except OSError:
            connection.close()
            return False

    try:
        _patiently(answers)
        yield Side(name="json", request=request, group=cpu.ProcessGroup([process.pid]))
    finally:
        connection.close()
        process.terminate()
        process.wait(15)


def _patiently(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"a server did not start within {START_S:g} s")
        time.sleep(0.05)


def measure(side: Side, seconds: float) -> tuple[Window, dict[int, float]]:
    """Warm up, then measure a window; the CPU seconds of each process in it. RuntimeError for a wrong answer."""
    if not np.allclose(side.request(), IMAGE.mean(axis=(2, 3)), atol=1e-5):
        raise RuntimeError(f"{side.name} answers something else")
    _repeat(side.request, WARMUP_S)
    before = {pid: cpu.cpu_s(pid) or 0.0 for pid in side.group.pids()}
    times, used = side.group.measure(lambda: _repeat(side.request, seconds))
    spent = {pid: (cpu.cpu_s(pid) or 0.0) - before.get(pid, 0.0) for pid in side.group.pids()}
    return Window(p50_ms=statistics.median(times) * 1e3, cpu_us=used.cpu_us / len(times), answers=len(times)), spent


def _repeat(request: Request, seconds: float) -> list[float]:
    times = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        request()
        times.append(time.perf_counter() - began)
    return times


def _name(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").split()
    return " ".join(word.rpartition("/")[2] for word in words[:4])[:60]


def compare(sides: Sequence[Side], rounds: int, seconds: float) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Figures, and what each of the platform's processes used per request in the last round."""
    windows: dict[str, list[Window]] = {side.name: [] for side in sides}
    parts: list[dict[str, object]] = []
    for number in range(rounds):
        report.progress(f"round {number + 1} of {rounds}")
        for side in sides if number % 2 == 0 else sides[::-1]:
            window, spent = measure(side, seconds)
            windows[side.name].append(window)
            if side.name == "oip":
                most = sorted(spent.items(), key=lambda item: -item[1])[:8]
                parts = [
                    {"process": _name(pid), "cpu_us": report.rounded(used * 1e6 / window.answers)} for pid, used in most
                ]
    oip, json = windows["oip"], windows["json"]
    (idle,) = (side.group for side in sides if side.name == "oip")
    _, resting = idle.measure(lambda: time.sleep(seconds))
    own = ChannelMeans()
    return {
        "oip_p50_ms": statistics.median(window.p50_ms for window in oip),
        "json_p50_ms": statistics.median(window.p50_ms for window in json),
        "oip_cpu_us": statistics.median(window.cpu_us for window in oip),
        "json_cpu_us": statistics.median(window.cpu_us for window in json),
        "cpu_ratio": statistics.median(a.cpu_us / b.cpu_us for a, b in zip(oip, json, strict=True)),
        "p50_ratio": statistics.median(a.p50_ms / b.p50_ms for a, b in zip(oip, json, strict=True)),
        "idle_cpu_ms_per_s": resting.cores * 1000,
        "predict_us": statistics.median(_repeat(lambda: own.predict({"image": IMAGE}), 0.2)) * 1e6,
    }, parts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.tensors", description="A tensor through the whole path, and as JSON."
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="one round, a window of one second")
    options = parser.parse_args(arguments)
    report.end_on_sigterm()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="smore-bench-tensors-")))
        sides = [stack.enter_context(platform(home)), stack.enter_context(peer())]
        figures, parts = compare(sides, 1 if options.quick else 5, 1.0 if options.quick else 3.0)
    if options.json:
        report.emit("tensors", figures, processes=parts)
    else:
        for name, value in figures.items():
            print(f"{name:20}{report.rounded(value):>10g}")


if __name__ == "__main__":
    main()
