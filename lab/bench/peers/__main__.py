"""
SMore beside servers of models that keep nothing: ``python -m lab.bench.peers --json``.

Mosec, LitServe and MLServer, each in a virtual environment of its own, which is made at the first run. Behind its own
packages each finds those of this environment, so that all run the same torch, and torch is not installed again. Each
serves the echo and the small network of :mod:`lab.bench.path` from one worker process (MLServer: in its own process) and
gets the same JSON; SMore's comes as ``{"input": JSON}`` and with a key. Everything else is the server's default, but
for access logs, which are off.

All sides are started once and run side by side; one at a time is under load. They take turns at each load, and each of
the three turns begins with another side. Nothing is pinned; the environment of the processes is that of
:mod:`lab.bench.path`.

Figures (c = connections; a ratio is SMore's over the peer's, the median over the turns):

* ``rps_ratio_<peer>_c64``, ``p50_ratio_<peer>_c1``, ``cpu_ratio_<peer>_c64`` (per request, all processes of a side):
  echo. SMore's function takes batches of up to 32, as in :mod:`lab.bench.path`; the peers run one request at a time.
* ``rps_ratio_<peer>_c64_single``: echo, SMore's function without batches too.
* ``rps_ratio_<peer>_c64_conv``, ``p50_ratio_<peer>_c1_conv``: the small network, one at a time on both sides.
* ``rps_ratio_mosec_c64_batched``, ``p50_ratio_mosec_c1_batched``: echo, Mosec with batches of up to 32 too. It waits
  for one to fill, at least 1 ms.
"""

import argparse
import http.client
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.bench import cpu, load, naive, path, report
from lab.bench.path import Key
from lab.bench.ports import free_port
from lab.bench.sides import BODIES, SETTLED_S, Deployed, Point, Side, SmoreSide, measure_point, warm
from lab.bench.sides import FUNCTIONS as PLATFORM_FUNCTIONS
from smore.postgres.connection import make_engine
from smore.postgres.predictors import Profiles

START_S: Final = 60.0
STOP_S: Final = 10.0
TURNS: Final = 3
WINDOW_S: Final = 1.5
#: The functions of SMore; "echo1" is the echo without batches.
FUNCTIONS: Final = (
    *(each for each in PLATFORM_FUNCTIONS if each.name in ("echo", "conv")),
    Deployed(name="echo1", entrypoint="lab.bench.functions:Echo"),
)
#: Figure's ending, SMore's load and the peer's.
PAIRS: Final = (
    ("", "echo", "echo"),
    ("_single", "echo1", "echo"),
    ("_conv", "conv", "conv"),
    ("_batched", "echo", "echo32"),
)


class Absent(Exception):
    """A peer that could not be installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A peer: its package with version, and what it serves."""

    name: str
    requirement: str
    loads: tuple[str, ...] = ("echo", "conv")


PEERS: Final = (
    Kind(name="mosec", requirement="mosec==0.9.8", loads=("echo", "echo32", "conv")),
    Kind(name="litserve", requirement="litserve==0.2.19"),
    Kind(name="mlserver", requirement="mlserver==1.7.1"),
)


def python_of(kind: Kind, folder: Path) -> Path:
    """The interpreter of the peer's environment, which is made where it is missing. Raises Absent."""
    place = folder / kind.requirement
    python = place / "bin" / "python"
    shared = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(place)})) / "shared.pth"
    if not shared.exists():
        report.progress(f"installing {kind.requirement}")
        for command in (
            (sys.executable, "-m", "venv", str(place)),
            (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", kind.requirement),
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Absent(f"{kind.requirement} cannot be installed: {(done.stderr or done.stdout).strip()[-1000:]}")
        # Last, so that an environment which was left half made is made again.
        shared.write_text(sysconfig.get_path("purelib") + "\n")
    return python


class ServerSide:
    """One peer as a :class:`lab.bench.sides.Side`."""

    def __init__(self, kind: Kind, python: Path) -> None:
        self.name = kind.name
        self.loads: Mapping[str, Sequence[int]] = dict.fromkeys(kind.loads, (1, 64))
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process

    @property
    def port(self) -> int:
        return self._port

    def pids(self) -> Sequence[int]:
        return [self.process.pid]

    def start(self) -> None:
        self._port = free_port()
        environment = {**os.environ, **naive.ENVIRONMENT, "PYTHONPATH": str(report.ROOT)}
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [str(self._python), "-m", f"lab.bench.peers.{self.name}", str(self._port)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            until = time.monotonic() + START_S
            while not self._answers():
                if self._process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    said = log.read().decode(errors="replace")[-2000:]
                    raise RuntimeError(f"{self.name} did not answer a conv request:\n{said}")
                time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return naive.call(self._port, "/conv", BODIES["conv"]) == 200
        except (OSError, http.client.HTTPException):
            return False

    def stop(self) -> None:
        """End the server, and after that whatever it left."""
        if self._process is not None:
            process, self._process = self._process, None
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def requests(self, name: str) -> list[bytes]:
        body = BODIES[name.rstrip("0123456789")]
        return [load.request_bytes(host=f"127.0.0.1:{self._port}", path=f"/{name}", body=body)]

    def learn(self) -> None: ...

    def extra(self) -> dict[str, float]:
        return {}


class Unshared(SmoreSide):
    loads: Mapping[str, Sequence[int]] = {"echo": (1, 64), "echo1": (64,), "conv": (1, 64)}


def measure_turn(sides: Sequence[Side], groups: Mapping[str, cpu.ProcessGroup], seconds: float) -> path.Round:
    """Every point of every side; the sides take turns at each load, and the next load begins when all have had it."""
    points: dict[Key, Point] = {}
    for name in dict.fromkeys(name for side in sides for name in side.loads):
        for connections in (1, 64):
            for side in sides:
                if connections in side.loads.get(name, ()):
                    point = measure_point(side, groups[side.name], name, connections, seconds)
                    points[side.name, name, connections] = point
    return path.Round(points=points, figures={"calibration_ms": path.calibration_ms(), **ratios(points)})


def measured(sides: Sequence[Side], smore: SmoreSide, turns: int, seconds: float) -> list[path.Round]:
    """Start all sides, wait until nothing starts any more, and measure."""
    with ExitStack() as stack:
        for side in sides:
            stack.callback(side.stop)
            side.start()
        # The first predictor would be fitted meanwhile, for many seconds of a core.
        stack.enter_context(Profiles(make_engine(smore.platform.postgres_url, "peers")).exclusive(wait=True))
        for side in sides:
            for name in side.loads:
                warm(side, name)
        time.sleep(SETTLED_S)
        groups = {side.name: cpu.ProcessGroup(side.pids()) for side in sides}
        done = []
        for turn in range(turns):
            report.progress(f"turn {turn + 1} of {turns}")
            begin = turn % len(sides)
            done.append(measure_turn([*sides[begin:], *sides[:begin]], groups, seconds))
        return done


def ratios(points: Mapping[Key, Point]) -> dict[str, float]:
    """One turn's ratios, as the module's docstring names them, as far as their points were measured."""
    figures: dict[str, float] = {}
    for kind in PEERS:
        for ending, ours, theirs in PAIRS:
            for figure, field, connections in (("rps", "rps", 64), ("p50", "p50_ms", 1), ("cpu", "cpu_us", 64)):
                mine = points.get(("smore", ours, connections))
                other = points.get((kind.name, theirs, connections))
                if mine is not None and other is not None:
                    ratio = getattr(mine, field) / getattr(other, field)
                    figures[f"{figure}_ratio_{kind.name}_c{connections}{ending}"] = ratio
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.peers", description="SMore beside servers of models; see the module's docstring."
    )
    names = [kind.name for kind in PEERS]
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="one turn, windows of one second")
    parser.add_argument("--only", choices=names, action="append", help="a peer; default: all")
    parser.add_argument(
        "--environments", type=Path, default=Path(sys.prefix) / "peers", help="folder of the peers' environments"
    )
    parser.add_argument("--install", action="store_true", help="make the environments and end")
    options = parser.parse_args(arguments)
    report.end_on_sigterm()
    kinds = [kind for kind in PEERS if kind.name in (options.only or names)]
    try:
        peers = [ServerSide(kind, python_of(kind, options.environments.absolute())) for kind in kinds]
    except Absent as error:
        print(error, file=sys.stderr)
        return 3
    if options.install:
        return 0
    with tempfile.TemporaryDirectory(prefix="smore-bench-home-") as home:
        smore = Unshared(Path(home), FUNCTIONS)
        turns, seconds = (1, 1.0) if options.quick else (TURNS, WINDOW_S)
        done = measured([smore, *peers], smore, turns, seconds)
    figures, points = path.medians(done), path.median_points(done)
    if options.json:
        report.emit("peers", figures, points=points, versions=[kind.requirement for kind in kinds])
    else:
        for name, value in sorted(figures.items()):
            print(f"{name:36}{report.rounded(value):>12g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
