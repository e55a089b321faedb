"""The sides that ``lab.bench.path`` and its guard compare, SMore and the naive peer, and one of them under one load."""

import contextlib
import http.client
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import psutil
import redis
from sqlalchemy import func, select

from lab.bench import cpu, load, naive, report
from lab.bench.ports import free_port
from smore.local import asking, layout, machine
from smore.postgres.connection import make_engine
from smore.postgres.rows import ExecutionRow
from smore.process.settings import Settings
from smore.redis.celery import REFIT, RETRAIN, message

DEEPFM = json.dumps({"dense": [[0.0] * 13], "sparse": [[0] * 26]}).encode()
BODIES = {"echo": b'{"x":[1,2,3,4,5,6,7,8],"id":"abc"}', "conv": b'{"v":0.5}', "mlp": b'{"v":0.5}', "deepfm": DEEPFM}
WARMUP_S = 1.0
#: Seconds between the first answer and the first reading of idle memory, in which the platform starts a standby runner;
#: and until the second, by which all processes have loaded what they need.
SETTLE_S = 2.0
SETTLED_S = 15.0
#: Seconds in which a new platform has learned.
LEARN_S = 120.0


class Side(Protocol):
    """What is measured. ``loads``: the connections to measure each load at. ``extra`` runs after the points."""

    name: str
    loads: Mapping[str, Sequence[int]]

    def start(self) -> None:
        """Start the processes and return when a conv request has been answered."""
        ...

    def stop(self) -> None: ...

    def pids(self) -> Sequence[int]:
        """The roots of all its process trees."""
        ...

    @property
    def port(self) -> int: ...

    def requests(self, name: str) -> list[bytes]:
        """The requests of a load, to be cycled."""
        ...

    def learn(self) -> None:
        """Do now what a new platform does once, some time after its start: it would fall into what is measured."""
        ...

    def extra(self) -> dict[str, float]:
        """Figures of its own, under their final names."""
        ...


class NaiveSide:
    name = "peer"
    loads: Mapping[str, Sequence[int]] = {"echo": (1, 16, 64), "conv": (1, 16, 64)}

    def __init__(self) -> None:
        self._peer: naive.Peer | None = None

    @property
    def peer(self) -> naive.Peer:
        if self._peer is None:
            raise RuntimeError("the naive peer is not running")
        return self._peer

    def start(self) -> None:
        self._peer = naive.start()
        if naive.call(self.port, "/conv", BODIES["conv"]) != 200:
            raise RuntimeError("the naive peer did not answer a conv request")

    def stop(self) -> None:
        if self._peer is not None:
            naive.stop(self._peer)
            self._peer = None

    def pids(self) -> Sequence[int]:
        return self.peer.pids

    @property
    def port(self) -> int:
        return self.peer.port

    def requests(self, name: str) -> list[bytes]:
        return [load.request_bytes(host=f"127.0.0.1:{self.port}", path=f"/{name}", body=BODIES[name])]

    def learn(self) -> None: ...

    def extra(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A function under load: its name, its handler and the largest batch."""

    name: str
    entrypoint: str
    max_batch: int = 1


MIXED = tuple(f"echo{number:02}" for number in range(16))

FUNCTIONS = (
    Deployed(name="echo", entrypoint="lab.bench.functions:Echo", max_batch=32),
    Deployed(name="conv", entrypoint="lab.bench.functions:Conv"),
    Deployed(name="mlp", entrypoint="lab.bench.functions:Mlp", max_batch=8),
    Deployed(name="mlp1", entrypoint="lab.bench.functions:Mlp"),
    Deployed(name="deepfm", entrypoint="zoo.deepfm:Function"),
    *(Deployed(name=name, entrypoint="lab.bench.functions:Echo", max_batch=32) for name in MIXED),
)


class SmoreSide:
    """One CPU worker on a home of its own, driven over HTTP; nothing else in this module depends on SMore."""

    name = "smore"
    loads: Mapping[str, Sequence[int]] = {
        "echo": (1, 16, 64),
        "conv": (1, 16, 64),
        "mixed": (64,),
        "mlp": (1, 16),
        "mlp1": (1, 16),
    }

    def __init__(self, home: Path, functions: Sequence[Deployed] = FUNCTIONS) -> None:
        self._home, self._functions = home, functions
        self._platform: asking.Endpoints | None = None
        self._key = ""
        self._deployed = False
        # One for all calls: making one takes 25 ms of a core, which would be measured.
        self._client = httpx.Client(timeout=150)

    @property
    def platform(self) -> asking.Endpoints:
        if self._platform is None:
            raise RuntimeError("SMore is not running")
        return self._platform

    def start(self) -> None:
        """Start the platform and wait for an answer of conv. The first call deploys the functions, which the home keeps."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        os.environ |= {**naive.ENVIRONMENT, "SMORE_API__PORT": str(free_port())}
        # Nothing is pinned: the platform and the one partition may both use every core, as the peer may.
        config = Settings(platform_cores=cores)
        self._platform = machine.up(
            self._home, config=config, partitions=[layout.Partition(gpu="cpu0", kind="cpu", device=cores)]
        )
        self._key = (self._home / "key").read_text().strip()
        if not self._deployed:
            for function in self._functions:
                self._deploy(function)
            self._deployed = True
        self._patiently(lambda: self._invoke("conv"))

    def stop(self) -> None:
        if self._platform is not None:
            self._platform = None
            machine.down(self._home)

    def learn(self) -> None:
        """Fit the first predictor and the first forecaster; without this the platform would, a minute after its start."""
        with redis.Redis.from_url(self.platform.redis_url) as connection:
            queue = f"{Settings().redis.prefix}learn"
            connection.lpush(queue, *(message(task, [], "learn") for task in (RETRAIN, REFIT)))
        until = time.monotonic() + LEARN_S
        while not self._learns():
            if time.monotonic() > until:
                raise RuntimeError("SMore does not learn")
            time.sleep(0.02)
        while self._learns():
            if time.monotonic() > until:
                raise RuntimeError(f"SMore learns for more than {LEARN_S:.0f} s")
            time.sleep(0.1)

    def _learns(self) -> bool:
        """Whether a process of the platform fits something."""
        commands = []
        for process in psutil.Process(self.platform.supervisor_pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                commands.append(process.cmdline())
        return any({"ml.learn.learning", "scheduler.tasks.forecasting"} & set(command) for command in commands)

    def pids(self) -> Sequence[int]:
        """The supervisor, from which all other processes descend: Redis, Postgres, the platform's, the runners."""
        return [self.platform.supervisor_pid]

    @property
    def port(self) -> int:
        return urlsplit(self.platform.gateway_url).port or 80

    def _deploy(self, function: Deployed) -> None:
        spec = {
            "entrypoint": function.entrypoint,
            "batching": {"max_size": function.max_batch},
            "slo": {"deadline": "30s"},
            "resources": {"gpu_memory": "128MiB"},
            "scaling": {"keep_alive": -1},
            "limits": {"max_pending": 10_000},
        }
        document = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": function.name}, "spec": spec}
        self._patiently(lambda: self._call("PUT", f"/v1/functions/{function.name}", document))

    def _patiently(self, action: Callable[[], object]) -> None:
        """Repeat the action until it succeeds: the gateway answers before the first worker has reported."""
        until = time.monotonic() + 30
        while True:
            try:
                action()
                return
            except (RuntimeError, httpx.HTTPError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def _offload(self, name: str) -> None:
        """Offload the function; returns when no instance is warm and a standby runner has had time to start."""
        self._call("POST", f"/v1/functions/{name}/offload", {})
        until = time.monotonic() + 10
        while any(
            instance["function"] == name for gpu in self._call("GET", "/v1/gpus")["gpus"] for instance in gpu["warm"]
        ):
            if time.monotonic() > until:
                raise RuntimeError(f"{name} is still warm after its offload")
            time.sleep(0.02)
        time.sleep(SETTLE_S)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self._key}"}
        answer = self._client.request(method, f"{self.platform.gateway_url}{path}", json=body, headers=headers)
        if not answer.is_success:
            raise RuntimeError(f"SMore answered {answer.status_code} to {method} {path}: {answer.text}")
        return answer.json()

    def _invoke(self, name: str) -> None:
        self._call("POST", f"/v1/functions/{name}/invocations", json.loads(self._body(name)))

    @staticmethod
    def _body(name: str) -> bytes:
        """The peer's body of the same load as an invocation: ``mlp1`` and ``echo00`` take what ``mlp`` and ``echo`` do."""
        return b'{"input":' + BODIES[name.rstrip("0123456789")] + b"}"

    def request(self, name: str) -> bytes:
        """One invocation of a function, ready to send."""
        return load.request_bytes(
            host=f"127.0.0.1:{self.port}",
            path=f"/v1/functions/{name}/invocations",
            body=self._body(name),
            headers={"Authorization": f"Bearer {self._key}"},
        )

    def requests(self, name: str) -> list[bytes]:
        return [self.request(function) for function in (MIXED if name == "mixed" else (name,))]

    def extra(self) -> dict[str, float]:
        """The median run of conv, and a cold start: the median of three, each right after an offload."""
        run_s = func.percentile_cont(0.5).within_group(ExecutionRow.run_s)
        with make_engine(self.platform.postgres_url, "bench").connect() as connection:
            conv_run_s = connection.scalar(select(run_s).where(ExecutionRow.function == "conv"))
        colds = []
        for _ in range(3):
            self._offload("deepfm")
            colds.append(timed(lambda: self._invoke("deepfm")))
        return {"cold_s": statistics.median(colds), "conv_run_s": float(conv_run_s or 0.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One side under one load: fields as in ``load.LoadResult``, ``cpu_us`` per answer, ``cores`` kept busy."""

    side: str
    load: str
    connections: int
    rps: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    cores: float
    bad: int


def timed(action: Callable[[], object]) -> float:
    """Seconds that ``action`` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def warm(side: Side, name: str) -> None:
    """
    One answer to each request of a load, so that no cold start falls into its warm-up. ``RuntimeError`` for a refusal.
    """
    connection = http.client.HTTPConnection("127.0.0.1", side.port, timeout=60)
    try:
        for request in side.requests(name):
            head, _, body = request.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            connection.request("POST", first.split()[1], body, dict(line.split(": ", 1) for line in lines))
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise RuntimeError(f"{side.name} answered {response.status} to {first}: {answer[:200]!r}")
    finally:
        connection.close()


def measure_point(side: Side, group: cpu.ProcessGroup, name: str, connections: int, seconds: float) -> Point:
    requests = side.requests(name)
    result, usage = group.measure(
        lambda: load.run_apart("127.0.0.1", side.port, requests, connections, seconds, WARMUP_S)
    )
    if not result.done:
        raise RuntimeError(
            f"{side.name} gave no good answer to {name} at c={connections}: {dict(result.statuses)}, {result.bad} bad"
        )
    point = Point(
        side=side.name,
        load=name,
        connections=connections,
        rps=result.rps,
        p50_ms=result.p50_ms,
        p99_ms=result.p99_ms,
        cpu_us=usage.cpu_us / result.answers,
        cores=usage.cores,
        bad=result.bad,
    )
    report.progress(
        f"  {side.name:6}{name:6} c={connections:<3}{point.rps:8.0f}/s  p50 {point.p50_ms:7.2f} ms  p99"
        f" {point.p99_ms:7.2f} ms  {point.cpu_us:6.0f} CPU us  {point.cores:.2f} cores"
        + (f"  {point.bad} BAD" if point.bad else "")
    )
    return point
