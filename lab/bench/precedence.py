"""
Who goes first on a core: ``python -m lab.bench.precedence --json``.

One core and no platform. Zoo BERT answers requests of one row, whose arrivals are Gamma with a coefficient of variation of
3, for 15 and for 30 % of the core; zoo ResNet-50 trains beside it (batch 2) and never waits for its input. The kernel
weighs both one by one, in a control group with a weight that leaves the core to them. By turns, with the same arrivals:

* ``alone``: the training is stopped.
* ``harvest``: functions at nice 5, as this platform runs them.
* ``precedence``: functions at nice -15.
* ``governor``: Dilu's (ASPLOS'25) token governor on this device. While requests wait or run the training has a quota of 1
  ms in 10, and after 20 ms without any all of the core. Dilu counts blocks of kernels every 5 ms; here the kernel counts
  processor time, and a process looks every 2 ms.
* ``quota``: a fixed quota, the training has a quarter of the core at all times.

A turn takes 1.4 times ``--seconds``: requests come in the first part, so that what waits is done in the rest and each way
has done the same work. What is not done by then counts as if it ended then. Figures, over all turns, for each ``<mode>``
and ``<load>`` in percent:

* ``p50_ms``, ``p99_ms``: from the instant a request was due to its end. ``violations``: part above five runs' time.
* ``iterations``: of the training, a second. ``longest_ms``: its longest one.
* ``p99_ratio``, ``p99_before``: P99 with precedence and as harvest over that of alone. ``violation_excess``: violations with
  precedence less those of alone. ``training_ratio``: iterations with precedence over those of harvest. Each of the worse
  load, and ``.<load>``.

Needs two cores, root and control groups of version 1.
"""

import argparse
import math
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from lab.bench import report

MODES: Final = ("alone", "harvest", "precedence", "governor", "quota")
#: Nice value of the function, where it is not that of the training.
NICE: Final[Mapping[str, int]] = {"harvest": 5, "precedence": -15}
LOADS: Final = (0.15, 0.3)
CV: Final = 3.0
#: A request is late after so many runs' time.
LATE: Final = 5.0
#: A turn over the time in which requests come.
SPAN: Final = 1.4
PERIOD_US: Final = 10_000
#: Microseconds of the training in a period.
GOVERNED_US: Final = 1_000
FIXED_US: Final = 2_500
IDLE_S: Final = 0.02
LOOK_S: Final = 0.002
SETTLE_S: Final = 1.0
SOLO_RUNS: Final = 40
_GROUPS: Final = Path("/sys/fs/cgroup/cpu")
#: Of the group beside all else on the core: as much as the kernel takes.
_WEIGHT: Final = 262_144


# ---- the two processes -----------------------------------------------------------------------------------------------
def serve(core: int, control: Connection, done: Any) -> None:
    """
    The function: reads a list of due times (CLOCK_MONOTONIC) and an end, answers each in its turn, and sends when each
    ended; ``done`` counts them. At first it sends the median time of a run.
    """
    os.sched_setaffinity(0, {core})
    import torch

    from lab.measure.member import FunctionSubject

    torch.set_num_threads(1)
    subject = FunctionSubject("bert", "cpu", "cpu")
    subject.prepare(1)
    runs = []
    for _ in range(SOLO_RUNS):
        began = time.monotonic()
        subject.run()
        runs.append(time.monotonic() - began)
    control.send(statistics.median(runs))
    while True:
        dues, until = control.recv()
        ends = []
        for due in dues:
            time.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() < until:
                subject.run()
            ends.append(min(time.monotonic(), until))
            done.value += 1
        control.send(ends)


def train(core: int, count: Any, longest: Any) -> None:
    """The training: counts its iterations, and keeps the seconds of the longest one."""
    os.sched_setaffinity(0, {core})
    import torch

    from lab.measure.member import TrainingSubject

    torch.set_num_threads(1)
    subject = TrainingSubject("resnet50", "cpu", "cpu")
    subject.prepare(2)
    last = time.monotonic()
    while True:
        subject.run()
        now = time.monotonic()
        longest.value, last = max(longest.value, now - last), now
        count.value += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Latencies of requests, seconds; iterations of the training a second, and its longest one, seconds."""

    latencies: Sequence[float]
    iterations: float
    longest_s: float


def arrivals(load: float, run_s: float, seconds: float, seed: int) -> list[float]:
    """When requests of ``run_s`` come, so that they are ``load`` of the time: seconds from the beginning."""
    gaps = np.random.default_rng(seed).gamma(1 / CV**2, size=max(1, round(load * seconds / run_s)) + 1)
    return list(map(float, np.cumsum(gaps)[:-1] / gaps.sum() * seconds))


class Pair:
    """A function and a training on a core."""

    def __init__(self, core: int, groups: tuple[Path, Path]) -> None:
        self._quota = groups[1] / "cpu.cfs_quota_us"
        start = multiprocessing.get_context("spawn")
        self._control, theirs = start.Pipe()
        self._done, self._count, self._longest = start.Value("Q"), start.Value("Q"), start.Value("d")
        self._function = start.Process(target=serve, args=(core, theirs, self._done), daemon=True)
        self._training = start.Process(target=train, args=(core, self._count, self._longest), daemon=True)
        for process, group in zip((self._function, self._training), groups, strict=True):
            process.start()
            (group / "cgroup.procs").write_text(str(process.pid))
            if process is self._function:
                self.run_s: float = self._control.recv()
        while not self._count.value:
            time.sleep(LOOK_S)

    def end(self) -> None:
        for process in (self._function, self._training):
            process.kill()
            process.join()

    def turn(self, mode: str, load: float, seconds: float, seed: int) -> Turn:
        assert self._function.pid is not None
        assert self._training.pid is not None
        os.setpriority(os.PRIO_PROCESS, self._function.pid, NICE.get(mode, 0))
        self._quota.write_text(str(FIXED_US if mode == "quota" else -1))
        os.kill(self._training.pid, signal.SIGSTOP if mode == "alone" else signal.SIGCONT)
        # What an iteration took that was stopped is no turn's.
        time.sleep(SETTLE_S)
        self._longest.value = 0.0
        begin, before, answered = time.monotonic(), self._count.value, self._done.value
        dues, until = [begin + at for at in arrivals(load, self.run_s, seconds, seed)], begin + SPAN * seconds
        self._control.send((dues, until))
        self._watch(dues, answered, until, governed=mode == "governor")
        iterations = (self._count.value - before) / (SPAN * seconds)
        latencies = [end - due for due, end in zip(dues, self._control.recv(), strict=True)]
        return Turn(latencies=latencies, iterations=iterations, longest_s=self._longest.value)

    def _watch(self, dues: Sequence[float], answered: int, until: float, *, governed: bool) -> None:
        """Wait for the end of a turn; ``governed``: give the training its quota meanwhile."""
        came, busy_at, held = 0, -math.inf, False
        while (now := time.monotonic()) < until:
            while came < len(dues) and dues[came] <= now:
                came += 1
            busy_at = now if came > self._done.value - answered else busy_at
            if governed and held != (hold := now - busy_at < IDLE_S):
                self._quota.write_text(str(GOVERNED_US if hold else -1))
                held = hold
            time.sleep(LOOK_S if governed else min(0.5, until - now))


@contextmanager
def control_groups() -> Iterator[tuple[Path, Path]]:
    """The function's group, and in it the training's, which weighs as much as one process. Raises SystemExit."""
    outer = _GROUPS / f"smore-precedence-{os.getpid()}"
    inner = outer / "training"
    try:
        inner.mkdir(parents=True)
        (outer / "cpu.shares").write_text(str(_WEIGHT))
        (inner / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    except OSError as error:
        sys.exit(f"precedence: needs root and control groups of version 1: {error}")
    try:
        yield outer, inner
    finally:
        inner.rmdir()
        outer.rmdir()


# ---- figures ---------------------------------------------------------------------------------------------------------
def figures(turns: Mapping[tuple[str, float], Sequence[Turn]], run_s: float) -> dict[str, float]:
    """All figures; ``turns`` by mode and load."""
    made: dict[str, float] = {"run_ms": 1e3 * run_s}
    ratios: dict[str, list[float]] = {}
    for (mode, load), of_mode in turns.items():
        name = f"{mode}.{100 * load:.0f}"
        latencies = [latency for turn in of_mode for latency in turn.latencies]
        made[f"p50_ms.{name}"], made[f"p99_ms.{name}"] = (np.percentile(latencies, (50, 99)) * 1e3).tolist()
        made[f"violations.{name}"] = statistics.fmean(latency > LATE * run_s for latency in latencies)
        if mode != "alone":
            made[f"iterations.{name}"] = statistics.fmean(turn.iterations for turn in of_mode)
            made[f"longest_ms.{name}"] = 1e3 * max(turn.longest_s for turn in of_mode)
    for at in dict.fromkeys(f"{100 * load:.0f}" for _, load in turns):
        of_load = {
            "p99_ratio": made[f"p99_ms.precedence.{at}"] / made[f"p99_ms.alone.{at}"],
            "p99_before": made[f"p99_ms.harvest.{at}"] / made[f"p99_ms.alone.{at}"],
            "violation_excess": made[f"violations.precedence.{at}"] - made[f"violations.alone.{at}"],
            "training_ratio": made[f"iterations.precedence.{at}"] / made[f"iterations.harvest.{at}"],
        }
        for name, value in of_load.items():
            ratios.setdefault(name, []).append(value)
            made[f"{name}.{at}"] = value
    return made | {name: (min if name == "training_ratio" else max)(values) for name, values in ratios.items()}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.precedence", description="Who goes first on a core.")
    parser.add_argument("--seconds", type=float, default=60.0, help="in which requests come, of a turn")
    parser.add_argument("--turns", type=int, default=3, help="of each way and load")
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(words)
    *others, core = sorted(os.sched_getaffinity(0))
    if not others:
        sys.exit("precedence: two cores are needed")
    report.end_on_sigterm()
    os.sched_setaffinity(0, others)
    turns: dict[tuple[str, float], list[Turn]] = {(mode, load): [] for load in LOADS for mode in MODES}
    loads = []
    with control_groups() as groups:
        pair = Pair(core, groups)
        try:
            for number in range(asked.turns):
                for (mode, load), made in turns.items():
                    made.append(pair.turn(mode, load, asked.seconds, number))
                    p50, p99 = np.percentile(made[-1].latencies, (50, 99)) * 1e3
                    rate = f"{made[-1].iterations:.1f} iterations/s"
                    report.progress(f"{mode:10} {load:.0%}: p50 {p50:.0f} p99 {p99:.0f} ms, {rate}")
                    loads.append(os.getloadavg()[0])
        finally:
            pair.end()
    os.sched_setaffinity(0, {*others, core})
    found = figures(turns, pair.run_s) | {"load": statistics.fmean(loads)}
    if asked.json:
        report.emit("lab.bench.precedence", found, seconds=asked.seconds, turns=asked.turns)
    else:
        for name, value in found.items():
            print(f"{name:32}{report.rounded(value):>12g}")


if __name__ == "__main__":
    main(sys.argv[1:])
