"""
The naive peer: FastAPI in front of Celery with its defaults, a common way to put a model behind a queue. Frozen: do not
tune it.

``PUBLISHED`` are reference figures of this set-up on 2 cores that it shared with the load generator: echo p50 2.76 ms
at c=1, 640 requests/s at c=64, 2810 CPU microseconds per request at c=16 (all its processes, Redis included).
``off_by`` compares measured figures with them. A ratio above 1.6 or below its inverse is ``far``: the machine or the
set-up differs.

One uvicorn with one worker; the endpoint waits on ``run_in_executor(None, lambda: task.delay(body).get())`` (default
executor); one Celery worker, pool prefork, one child; Redis as broker and result backend, a server of its own with
Redis' defaults; hiredis installed. Weights are built in the worker at the first call. Access logs are off, which
favours the peer.
"""

import asyncio
import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery

from lab.bench import functions, report
from lab.bench.ports import free_port
from smore.local.embedded import redis_program

if TYPE_CHECKING:
    from fastapi import FastAPI

#: What ``off_by`` compares with: p50 at c=1 and requests/s at c=64 of echo, CPU per echo request at c=16.
PUBLISHED = {"p50_ms": 2.76, "rps_c64": 640.0, "cpu_us_c16": 2810.0}
FAR = 1.6

#: For every process of a comparison, on both sides: one core for each process's arithmetic, and glibc's heap trimming
#: off, which otherwise doubles the time of some networks in some processes and makes a comparison a lottery.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
}

_URL_VARIABLE = "SMORE_BENCH_PEER_REDIS_URL"
_URL = os.environ.get(_URL_VARIABLE, "redis://127.0.0.1:6379/0")

app = Celery("naive", broker=_URL, backend=_URL)


@app.task
def echo(body: dict[str, Any]) -> dict[str, Any]:
    return body


@cache
def _conv() -> functions.Network:
    return functions.build_conv()


@app.task
def conv(body: dict[str, Any]) -> dict[str, Any]:
    return {"y": _conv()([body["v"]])[0]}


def gateway() -> "FastAPI":
    """The HTTP side. FastAPI is imported here, so that the Celery worker does not have it in memory."""
    from fastapi import FastAPI

    api = FastAPI()

    @api.post("/echo")
    async def call_echo(body: dict[str, Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: echo.delay(body).get())

    @api.post("/conv")
    async def call_conv(body: dict[str, Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: conv.delay(body).get())

    return api


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """
    A running peer. ``pids``: the roots of its process trees (Redis, Celery, uvicorn). ``port``: HTTP on 127.0.0.1.
    """

    pids: tuple[int, ...]
    port: int
    processes: tuple[subprocess.Popen[bytes], ...]
    directory: tempfile.TemporaryDirectory[str]


def start(redis_url: str | None = None) -> Peer:
    """
    Start the peer and wait until it answers an echo.

    ``redis_url``: None starts a Redis of its own. ``RuntimeError`` with the end of its log when a process ends or 30 s
    pass.
    """
    directory = tempfile.TemporaryDirectory(prefix="smore-bench-naive-")
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(report.ROOT)}
    processes: list[subprocess.Popen[bytes]] = []

    def spawn(name: str, *command: str) -> None:
        with (Path(directory.name) / f"{name}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    command,
                    cwd=directory.name,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    port = free_port()
    try:
        if redis_url is None:
            redis_port = free_port()
            redis_url = f"redis://127.0.0.1:{redis_port}/0"
            spawn("redis", redis_program(), "--bind", "127.0.0.1", "--port", str(redis_port))
        environment[_URL_VARIABLE] = redis_url
        spawn("celery", sys.executable, "-m", "celery", "-A", "lab.bench.naive", "worker", "--concurrency", "1")
        web = (
            "--factory",
            "lab.bench.naive:gateway",
            "--port",
            str(port),
            "--no-access-log",
            "--log-level",
            "warning",
        )
        spawn("uvicorn", sys.executable, "-m", "uvicorn", *web)
        peer = Peer(
            pids=tuple(process.pid for process in processes), port=port, processes=tuple(processes), directory=directory
        )
        _wait(peer)
    except BaseException:
        _end(processes)
        directory.cleanup()
        raise
    return peer


def call(port: int, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
    """One POST to 127.0.0.1 on a connection of its own; the status of the answer. ``OSError`` when nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def _wait(peer: Peer) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any(process.poll() is not None for process in peer.processes):
            break
        try:
            if call(peer.port, "/echo", b"{}") == 200:
                return
        except OSError:
            time.sleep(0.02)
    logs = "\n".join(
        path.read_text(errors="replace")[-2000:] for path in sorted(Path(peer.directory.name).glob("*.log"))
    )
    raise RuntimeError(f"the naive peer did not start:\n{logs}")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """
    End the processes in reverse order, Redis last: a Celery worker without its broker waits for it and does not end.
    """
    for process in reversed(processes):
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def stop(peer: Peer) -> None:
    """End the peer's processes and remove its directory."""
    _end(list(peer.processes))
    peer.directory.cleanup()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A measured figure beside the reference: ``ratio`` = ours / published, ``far`` = off by more than ``FAR``."""

    ours: float
    published: float
    ratio: float
    far: bool


def off_by(ours: Mapping[str, float]) -> dict[str, Deviation]:
    """Compare with ``PUBLISHED`` under its names; a figure not measured is left out."""
    deviations = {}
    for name, published in PUBLISHED.items():
        if name in ours:
            ratio = ours[name] / published
            far = not 1 / FAR <= ratio <= FAR
            deviations[name] = Deviation(ours=ours[name], published=published, ratio=report.rounded(ratio), far=far)
    return deviations
