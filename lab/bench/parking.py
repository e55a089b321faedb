"""
Parked instances on a CUDA device: ``python -m lab.bench.parking --json``. It compares a load, a return from pinned host
memory and a warm run.

For each model of the zoo in its paper preset, in one process with an open context: medians over ``--repeats``. Figures
for each model: ``load_ms`` (weights made and moved, and a first run), ``host_ms`` (weights back out of host memory, and
a run), ``warm_ms`` (a run), ``park_ms``, ``freed_mib`` (device memory that parking gave back) and ``left_mib`` (what
the process still holds of the allocator's). The context itself, some hundred MiB, stays with a parked process: the warm
pool measures it. Without a CUDA device it says so and ends with 3.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from statistics import median

import torch

from lab.bench import report
from worker.runner.weights import Weights
from zoo.model import ModelFunction

MODELS = ("resnet50", "vgg16", "mobilenet", "bert", "roberta", "deepvit", "deepfm", "segnet")


def timed(action: Callable[[], object]) -> float:
    """Milliseconds until the device has done it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def measure(kind: type[ModelFunction], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {
        name: [] for name in ("load_ms", "host_ms", "warm_ms", "park_ms", "freed_mib", "left_mib")
    }
    for _ in range(repeats):
        handler = kind()

        def run(handler: ModelFunction = handler) -> None:
            handler.predict(dict(handler.example))

        def load(handler: ModelFunction = handler) -> None:
            handler.load("cuda")
            handler.predict(dict(handler.example))

        times["load_ms"].append(timed(load))
        times["warm_ms"].append(timed(run))
        weights, before = Weights(handler.modules()), torch.cuda.memory_reserved()
        times["park_ms"].append(timed(weights.park))
        left = torch.cuda.memory_reserved()
        times["freed_mib"].append((before - left) / 2**20)
        times["left_mib"].append(left / 2**20)
        times["host_ms"].append(weights.restore() + timed(run))
        del handler, weights, run, load
        torch.cuda.empty_cache()
    return {name: median(values) for name, values in times.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="lab.bench.parking", description="Loads out of pinned host memory against cold ones."
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("there is no CUDA device here, and on a CPU nothing is given back by parking", file=sys.stderr)
        return 3
    figures: dict[str, float] = {}
    for name in MODELS:
        for figure, value in measure(import_module(f"zoo.{name}").PaperFunction, options.repeats).items():
            figures[f"{figure}.{name}"] = report.rounded(value)
            report.progress(f"{name} {figure} {value:.4g}")
    if options.json:
        print(
            json.dumps(
                report.result("lab.bench.parking", figures, gpu=torch.cuda.get_device_name(0), repeats=options.repeats)
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
