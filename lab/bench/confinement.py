"""
The cost of the runners' sandbox: ``python -m lab.bench.confinement --json``.

One zygote that sandboxes its runners and one that does not, on one core like a CPU partition, without a platform. By
turns each forks a runner, loads a function in it and ends it. A cold start with a standby runner costs the load alone;
one without costs the fork too.

====================================== ==========================================================================================
figure                                 milliseconds, median over the rounds
====================================== ==========================================================================================
fork_open_ms, fork_shut_ms             request to the runner's process, its control group included
load_<function>_open_ms, …_shut_ms     import, weights, first run
end_open_ms, end_shut_ms               unload to the process's end
====================================== ==========================================================================================
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.bench.report import emit, progress, rounded
from smore.process.settings import WorkerSettings
from worker.child_env import ROOT
from worker.frames import SLACK_MIB, Confinement, Load, Results
from worker.runner.runner_handle import Bounds
from worker.runner.zygote_handle import Zygote, setup

FUNCTIONS = {"echo": "zoo.echo:Function", "mobilenet": "zoo.mobilenet:Function"}
LOAD_S = 60.0
RESULTS = Results(one=1 << 20, together=1 << 20)


@contextmanager
def nursery(folder: Path) -> Iterator[Path]:
    place = folder / "nursery.sock"
    words = [sys.executable, "-m", "worker.runner.nursery", str(place)]
    process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    try:
        yield place
    finally:
        process.terminate()
        process.wait()


def zygote(home: Path, place: Path, *, shut: bool, own_users: bool = True, device: str = "cpu") -> Zygote:
    """One of the nursery at ``place``; on a CPU it keeps to one core, as on a partition."""
    (home / "run").mkdir(parents=True)
    # The sandbox of worker/app.py.
    gpu, given = device != "cpu", WorkerSettings()
    confinement = Confinement(on=shut, own_users=own_users, tcp_ports=[53, 443], unix_sockets=gpu, affinity=gpu)
    bounds = Bounds(
        group="smore-bench-r",
        beyond_mib=SLACK_MIB + confinement.scratch_mib,
        processes=confinement.processes,
        host_mib=given.host_memory_mib if gpu else 0.0,
        host_per_mib=2.0 if gpu else 1.0,
    )
    made = Zygote(
        nursery=place,
        setup=setup(
            scratch=home / "run" / "scratch",
            home=home,
            confinement=confinement,
            cores=(max(os.sched_getaffinity(0)),) if device == "cpu" else (),
            threads=given.threads,
        ),
        record=home / "run" / "record",
        bounds=bounds if shut else None,
    )
    # Not before it is there.
    made.fork().end()
    return made


def measure(zygotes: dict[str, Zygote], function: str, rounds: int) -> dict[str, float]:
    took: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name in sorted(zygotes, reverse=bool(number % 2)):
            began = time.perf_counter()
            runner = zygotes[name].fork()
            forked = time.perf_counter()
            runner.load(
                Load(entrypoint=FUNCTIONS[function], device="cpu", memory_mib=512.0, label=function, results=RESULTS),
                LOAD_S,
            )
            loaded = time.perf_counter()
            runner.unload()
            took[f"fork_{name}_ms"].append(forked - began)
            took[f"load_{function}_{name}_ms"].append(loaded - forked)
            took[f"end_{name}_ms"].append(time.perf_counter() - loaded)
    return {figure: statistics.median(values) * 1e3 for figure, values in took.items()}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.confinement", description="What shutting runners in costs."
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(words)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = stack.enter_context(nursery(Path(folder)))
        zygotes = {}
        for name in ("open", "shut"):
            zygotes[name] = zygote(Path(folder) / name, place, shut=name == "shut")
            stack.callback(zygotes[name].close)
        # The lightest function last: its forks and ends are the ones that count.
        for function in ("mobilenet", "echo"):
            progress(f"{function}, {asked.rounds} rounds")
            figures |= measure(zygotes, function, asked.rounds)
    for figure, value in figures.items():
        progress(f"{figure:28} {value:8.1f}")
    if asked.json:
        emit("python -m lab.bench.confinement", {figure: rounded(value) for figure, value in figures.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
