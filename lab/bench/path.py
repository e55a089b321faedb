"""
The path of one request, SMore beside the naive peer: ``python -m lab.bench.path --json [--quick] [--only naive|smore]``.

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
* ``p50_ratio_c1``, ``p99_ratio_c1``, ``rps_ratio_c64``, ``cpu_ratio_c64``, ``rps_ratio_c16_conv``,
  ``cpu_ratio_c16_conv``: SMore / peer. ``runner_share_c16_conv``: the part of the time in which conv's runner worked
  (requests/s at c=16 times the median run, ``conv_run_s``). ``rps_ratio_c64_mixed``: SMore over 16 functions / the peer's echo.
* ``added_p50_ms``: SMore's conv p50 at c=1 less the bare network's run. ``peer_added_p50_ms`` likewise.
* ``batch_gain``: requests/s of mlp at c=16, batches of up to 8 over no batching. ``batch_alone_ms``: what batching
  costs a lone client, p50 at c=1 with batching less without.
* ``first_answer_s``, ``idle_pss_mb``, ``idle_pss_at_2s_mb``: SMore's. ``first_ever_s``: the same from an empty home
  (databases made, functions deployed).
* ``cold_s``: a request to the zoo's DeepFM (cpu preset) right after an offload, with a standby runner ready;
  ``cold_over_load``: ``cold_s`` over the time of its load and first run in a fork of a process that has torch.
* ``bare_*``: the networks with no platform around them (``lab/bench/functions.py``); ``*_calibration_ms``: a fixed Python
  loop.

``--guard`` is the short check of CI instead: lab/bench/guard.py.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import mul, sub, truediv
from pathlib import Path

from lab.bench import cpu, guard, naive, report
from lab.bench.sides import SETTLE_S, SETTLED_S, NaiveSide, Point, Side, SmoreSide, measure_point, timed, warm

Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The points of one round by (side, load, connections), and single figures under their final names."""

    points: Mapping[Key, Point]
    figures: Mapping[str, float]


def calibration_ms() -> float:
    """Milliseconds of a fixed loop in one thread: how fast the machine was when a side was measured."""

    def spin() -> None:
        total = 0
        for number in range(1_000_000):
            total += number

    return min(timed(spin) for _ in range(3)) * 1e3


def bare() -> dict[str, float]:
    """``functions.bare`` in a process of its own, in the environment of both sides."""
    environment = {**os.environ, **naive.ENVIRONMENT}
    command = [sys.executable, "-m", "lab.bench.functions"]
    figures: dict[str, float] = json.loads(subprocess.check_output(command, cwd=report.ROOT, env=environment))
    return figures


def measure_round(sides: Sequence[Side], seconds: float) -> Round:
    points: dict[Key, Point] = {}
    figures = {f"bare_{name}": value for name, value in bare().items()}
    for side in sides:
        figures[f"{side.name}_calibration_ms"] = calibration_ms()
        try:
            figures[f"{side.name}_first_answer_s"] = timed(side.start)
            group = cpu.ProcessGroup(side.pids())
            time.sleep(SETTLE_S)
            figures[f"{side.name}_idle_pss_at_2s_mb"] = group.pss_mib()
            time.sleep(SETTLED_S - SETTLE_S)
            figures[f"{side.name}_idle_pss_mb"] = group.pss_mib()
            side.learn()
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
            "p99_ms": of(side, "echo", 1, "p99_ms"),
            "rps_c64": of(side, "echo", 64, "rps"),
            "cpu_us": of(side, "echo", 64, "cpu_us"),
            "cpu_us_c16": of(side, "echo", 16, "cpu_us"),
            "conv_p50_ms": of(side, "conv", 1, "p50_ms"),
            "conv_rps_c16": of(side, "conv", 16, "rps"),
            "conv_cpu_us_c16": of(side, "conv", 16, "cpu_us"),
        }
        figures |= {f"{side}_{name}": value for name, value in echo[side].items() if value is not None}
    smore, peer = echo["smore"], echo["peer"]
    put("p50_ratio_c1", smore["p50_ms"], peer["p50_ms"], truediv)
    put("p99_ratio_c1", smore["p99_ms"], peer["p99_ms"], truediv)
    put("rps_ratio_c16_conv", smore["conv_rps_c16"], peer["conv_rps_c16"], truediv)
    put("cpu_ratio_c16_conv", smore["conv_cpu_us_c16"], peer["conv_cpu_us_c16"], truediv)
    put("runner_share_c16_conv", smore["conv_rps_c16"], singles.get("conv_run_s"), mul)
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
                first_ever["first_ever_s"] = timed(side.start)
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
        prog="python -m lab.bench.path", description="SMore beside FastAPI + Celery; see the module's docstring."
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="one round, windows of one second")
    parser.add_argument("--only", choices=("naive", "smore"), help="measure one side")
    parser.add_argument("--guard", action="store_true", help="fail where it takes more than lab/bench/guard.json has")
    parser.add_argument("--write", action="store_true", help="with --guard: make this run's figures the bounds")
    options = parser.parse_args(arguments)
    report.end_on_sigterm()
    if options.guard:
        if wrong := guard.check(write=options.write):
            sys.exit("\n".join(wrong))
        return
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
