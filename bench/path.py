"""
The path of one request, SMore beside the naive peer: ``python -m bench.path --json [--quick] [--only naive|smore]``.

A round runs the bare networks, then each side from start to stop while the other side is down; the sides take turns in
going first. Every point is a warm-up of 1 s and a window of 2 s (``--quick``: windows of 1 s and one round). Figures
are medians over the rounds, and a ratio is the median of the ratios of the rounds, because a noisy machine changes more
between rounds than within one. Nothing is pinned to cores on either side, and the processes of both sides get the same
environment. CPU per request is that of all processes of a side (Redis, Postgres and beat included) from before the
warm-up until the last answer, divided by all answers.

Figures (``echo`` unless another load is named; c = connections):

* ``peer_*``, ``smore_*``: ``p50_ms`` at c=1, ``rps_c64``, ``cpu_us`` at c=64 and ``cpu_us_c16`` per request,
  ``conv_p50_ms`` at c=1, ``first_answer_s`` (start of the processes to the first conv answer), ``idle_pss_mb`` (MiB of
  all processes, 15 s after that answer), ``idle_pss_at_2s_mb``, ``bad`` (sum over all points and rounds).
* ``p50_ratio_c1``, ``rps_ratio_c64``, ``cpu_ratio_c64``: SMore / peer. ``rps_ratio_c64_mixed``: SMore over 16 functions
  / the peer's echo.
* ``added_p50_ms``: SMore's conv p50 at c=1 less the bare network's run. ``peer_added_p50_ms`` likewise.
* ``batch_gain``: requests/s of mlp at c=16, batches of up to 8 over no batching. ``batch_alone_ms``: what batching
  costs a lone client, p50 at c=1 with batching less without.
* ``first_answer_s``, ``idle_pss_mb``, ``idle_pss_at_2s_mb``: SMore's. ``first_ever_s``: the same from an empty home
  (databases made, functions deployed).
* ``cold_s``: a request to the zoo's DeepFM (cpu preset) right after an offload, with a standby runner ready;
  ``cold_over_load``: ``cold_s`` over the time of its load and first run in a fork of a process that has torch.
* ``bare_*``: the networks with no platform around them (``bench/functions.py``); ``*_calibration_ms``: a fixed Python
  loop.
"""

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import sub, truediv
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from bench import cpu, load, report
from bench.peers import naive
from bench.ports import free_port
from smore import local
from smore.process.settings import Settings

DEEPFM = json.dumps({"dense": [[0.0] * 13], "sparse": [[0] * 26]}).encode()
BODIES = {"echo": b'{"x":[1,2,3,4,5,6,7,8],"id":"abc"}', "conv": b'{"v":0.5}', "mlp": b'{"v":0.5}', "deepfm": DEEPFM}
WARMUP_S = 1.0
#: Seconds between the first answer and the first reading of idle memory, in which the platform starts a standby runner;
#: and until the second, by which all processes have loaded what they need.
SETTLE_S = 2.0
SETTLED_S = 15.0


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
    Deployed(name="echo", entrypoint="bench.functions:Echo", max_batch=32),
    Deployed(name="conv", entrypoint="bench.functions:Conv"),
    Deployed(name="mlp", entrypoint="bench.functions:Mlp", max_batch=8),
    Deployed(name="mlp1", entrypoint="bench.functions:Mlp"),
    Deployed(name="deepfm", entrypoint="zoo.deepfm:Function"),
    *(Deployed(name=name, entrypoint="bench.functions:Echo", max_batch=32) for name in MIXED),
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
        self._platform: local.Endpoints | None = None
        self._key = ""
        self._deployed = False

    @property
    def platform(self) -> local.Endpoints:
        if self._platform is None:
            raise RuntimeError("SMore is not running")
        return self._platform

    def start(self) -> None:
        """Start the platform and wait for an answer of conv. The first call deploys the functions, which the home keeps."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        os.environ |= {**naive.ENVIRONMENT, "SMORE_API__PORT": str(free_port())}
        # Nothing is pinned: the platform and the one partition may both use every core, as the peer may.
        config = Settings(platform_cores=cores)
        self._platform = local.up(
            self._home, config=config, partitions=[local.Partition(gpu="cpu0", kind="cpu", device=cores)]
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
            local.down(self._home)

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
        answer = httpx.request(method, f"{self.platform.gateway_url}{path}", json=body, headers=headers, timeout=150)
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
        """A cold start: the median of three, each right after an offload."""
        colds = []
        for _ in range(3):
            self._offload("deepfm")
            colds.append(_timed(lambda: self._invoke("deepfm")))
        return {"cold_s": statistics.median(colds)}


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


Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The points of one round by (side, load, connections), and single figures under their final names."""

    points: Mapping[Key, Point]
    figures: Mapping[str, float]


def _timed(action: Callable[[], object]) -> float:
    """Seconds that ``action`` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def calibration_ms() -> float:
    """Milliseconds of a fixed loop in one thread: how fast the machine was when a side was measured."""

    def spin() -> None:
        total = 0
        for number in range(1_000_000):
            total += number

    return min(_timed(spin) for _ in range(3)) * 1e3


def bare() -> dict[str, float]:
    """``functions.bare`` in a process of its own, in the environment of both sides."""
    environment = {**os.environ, **naive.ENVIRONMENT}
    command = [sys.executable, "-m", "bench.functions"]
    figures: dict[str, float] = json.loads(subprocess.check_output(command, cwd=report.ROOT, env=environment))
    return figures


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


def measure_round(sides: Sequence[Side], seconds: float) -> Round:
    points: dict[Key, Point] = {}
    figures = {f"bare_{name}": value for name, value in bare().items()}
    for side in sides:
        figures[f"{side.name}_calibration_ms"] = calibration_ms()
        try:
            figures[f"{side.name}_first_answer_s"] = _timed(side.start)
            group = cpu.ProcessGroup(side.pids())
            time.sleep(SETTLE_S)
            figures[f"{side.name}_idle_pss_at_2s_mb"] = group.pss_mib()
            time.sleep(SETTLED_S - SETTLE_S)
            figures[f"{side.name}_idle_pss_mb"] = group.pss_mib()
            for name, counts in side.loads.items():
                warm(side, name)
                for connections in counts:
                    points[side.name, name, connections] = measure_point(side, group, name, connections, seconds)
            figures.update(side.extra())
        finally:
            side.stop()
    return Round(points=points, figures=figures | ratios(points, figures))


def ratios(points: Mapping[Key, Point], singles: Mapping[str, float]) -> dict[str, float]:
    """One round's figures, as the module's docstring names them, as far as their points were measured."""
    figures: dict[str, float] = {}

    def of(side: str, name: str, connections: int, field: str) -> float | None:
        point = points.get((side, name, connections))
        return None if point is None else float(getattr(point, field))

    def put(name: str, value: float | None, other: float | None, how: Callable[[float, float], float]) -> None:
        if value is not None and other is not None:
            figures[name] = how(value, other)

    echo: dict[str, dict[str, float | None]] = {}
    for side in ("peer", "smore"):
        echo[side] = {
            "p50_ms": of(side, "echo", 1, "p50_ms"),
            "rps_c64": of(side, "echo", 64, "rps"),
            "cpu_us": of(side, "echo", 64, "cpu_us"),
            "cpu_us_c16": of(side, "echo", 16, "cpu_us"),
            "conv_p50_ms": of(side, "conv", 1, "p50_ms"),
        }
        figures |= {f"{side}_{name}": value for name, value in echo[side].items() if value is not None}
    smore, peer = echo["smore"], echo["peer"]
    put("p50_ratio_c1", smore["p50_ms"], peer["p50_ms"], truediv)
    put("rps_ratio_c64", smore["rps_c64"], peer["rps_c64"], truediv)
    put("rps_ratio_c64_mixed", of("smore", "mixed", 64, "rps"), peer["rps_c64"], truediv)
    put("cpu_ratio_c64", smore["cpu_us"], peer["cpu_us"], truediv)
    put("added_p50_ms", smore["conv_p50_ms"], singles.get("bare_conv_ms"), sub)
    put("peer_added_p50_ms", peer["conv_p50_ms"], singles.get("bare_conv_ms"), sub)
    put("batch_gain", of("smore", "mlp", 16, "rps"), of("smore", "mlp1", 16, "rps"), truediv)
    put("batch_alone_ms", of("smore", "mlp", 1, "p50_ms"), of("smore", "mlp1", 1, "p50_ms"), sub)
    put("cold_over_load", singles.get("cold_s"), singles.get("bare_deepfm_load_s"), truediv)
    for name in ("first_answer_s", "idle_pss_mb", "idle_pss_at_2s_mb"):
        if f"smore_{name}" in singles:
            figures[name] = singles[f"smore_{name}"]
    return figures


def medians(rounds: Sequence[Round]) -> dict[str, float]:
    """Every figure's median over the rounds that have it; refusals and breaks are summed instead."""
    names = dict.fromkeys(name for measured in rounds for name in measured.figures)
    figures: dict[str, float] = {
        name: statistics.median(measured.figures[name] for measured in rounds if name in measured.figures)
        for name in names
    }
    for measured in rounds:
        for point in measured.points.values():
            figures[f"{point.side}_bad"] = figures.get(f"{point.side}_bad", 0) + point.bad
    return figures


def median_points(rounds: Sequence[Round]) -> list[dict[str, object]]:
    """The points' medians over the rounds; ``rps_range`` shows how far the rounds were apart."""
    table: list[dict[str, object]] = []
    for side, name, connections in rounds[0].points:
        same = [measured.points[side, name, connections] for measured in rounds]
        fields = ("rps", "p50_ms", "p99_ms", "cpu_us", "cores")
        middle = {field: report.rounded(statistics.median(getattr(point, field) for point in same)) for field in fields}
        spread = [report.rounded(extreme(point.rps for point in same)) for extreme in (min, max)]
        table.append({"side": side, "load": name, "connections": connections, **middle, "rps_range": spread})
    return table


def compare(sides: Sequence[Side], *, rounds: int, seconds: float) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Measure the sides; the figures and the table of points."""
    first_ever: dict[str, float] = {}
    for side in sides:
        if isinstance(side, SmoreSide):
            report.progress("smore from an empty home")
            try:
                first_ever["first_ever_s"] = _timed(side.start)
            finally:
                side.stop()
    done = []
    for number in range(rounds):
        report.progress(f"round {number + 1} of {rounds}")
        done.append(measure_round(sides if number % 2 == 0 else sides[::-1], seconds))
    return medians(done) | first_ever, median_points(done)


def _show(figures: Mapping[str, float], deviations: Mapping[str, naive.Deviation]) -> None:
    for name, value in sorted(figures.items()):
        print(f"{name:24}{report.rounded(value):>12g}")
    for name, deviation in deviations.items():
        print(
            f"peer {name}: {deviation.ratio:.2f} of the published {deviation.published:g}"
            + (", FAR" if deviation.far else "")
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.path", description="SMore beside FastAPI + Celery; see the module's docstring."
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="one round, windows of one second")
    parser.add_argument("--only", choices=("naive", "smore"), help="measure one side")
    options = parser.parse_args(arguments)
    # A terminated run still ends the processes that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="smore-bench-home-") as home:
        sides: list[Side] = []
        if options.only != "smore":
            sides.append(NaiveSide())
        if options.only != "naive":
            sides.append(SmoreSide(Path(home)))
        figures, points = compare(sides, rounds=1 if options.quick else 3, seconds=1.0 if options.quick else 2.0)
    measured = {name: figures[f"peer_{name}"] for name in naive.PUBLISHED if f"peer_{name}" in figures}
    deviations = naive.off_by(measured)
    for name, deviation in deviations.items():
        if deviation.far:
            report.progress(f"the peer's {name} is far from the published figure: {deviation.ratio:.2f} of it")
    if options.json:
        published = {name: asdict(deviation) for name, deviation in deviations.items()}
        report.emit("path", figures, points=points, peer_published=published)
    else:
        _show(figures, deviations)


if __name__ == "__main__":
    main()
