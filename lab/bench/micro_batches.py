"""
What running a batch in micro-batches changes: ``python -m lab.bench.micro_batches --json``.

Every model of the zoo trains on the same batches from the same weights, its batch as a whole and in 2 and 4 micro-batches
(``tracker.micro_batches``), each in a process of its own. Dropout is off: a mask that is drawn for each part is another
one, as with another seed. Figures, ``.<model>.<micro-batches>`` behind the name of each:

``difference``: relative difference of the loss of a whole batch after 20 steps in double precision, in which rounding does
not grow to what a mistake would be. The bare name is the largest of the models without batch statistics.
``difference_batch_statistics``: the same of those with them, which normalise each part by itself. ``difference_single``:
the first in single precision. ``memory_ratio``: the most memory of the process over that with the whole batch (resident,
Python and torch included; on a CUDA device what torch's allocator held). ``time_ratio``: median time of a step over that
with the whole batch. The bare names of both are geometric means over the models, with the most micro-batches.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from lab.bench import report
from smore.tracking.micro_batches import VARIABLE
from smore.tracking.track import track
from zoo.model import card
from zoo.options import NAMES
from zoo.train import WARM_UP, Options, Training

STEPS = 20
#: Rows of the batches whose losses are compared: every micro-batch has two.
ROWS = 8
COUNTS = (1, 2, 4)
#: Steps of which memory and time are taken, at the largest batch of the profile.
MEASURED = 6


def trained(model: str, device: str, batch: int, steps: int, *, double: bool = False) -> tuple[Training, list[float]]:
    """A model after so many steps, in as many micro-batches as the environment says, and the seconds of each."""
    described = card(model)
    preset = "cpu" if device == "cpu" else "paper"
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    training = Training(described, Options(model=model, preset=preset, batch=batch, device=device))
    for part in training.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    times = []
    with track() as tracker:
        for number in range(steps):
            began = time.perf_counter()
            training.iterate(number, tracker.micro_batches)
            times.append(time.perf_counter() - began)
    return training, times


def measure(model: str, device: str) -> dict[str, float]:
    """Train in this process."""
    torch.set_num_threads(1)
    batch = max(card(model).presets["cpu" if device == "cpu" else "paper"].training_batches)
    # First: the most memory of a process never falls again.
    training, times = trained(model, device, batch, MEASURED)
    if device == "cpu":
        memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    else:
        memory_mib = torch.cuda.max_memory_allocated() / 2**20
    norms = any(isinstance(part, nn.BatchNorm2d) for part in training.module.modules())
    del training
    return {
        "loss": trained(model, device, ROWS, STEPS, double=True)[0].iterate(STEPS),
        "loss_single": trained(model, device, ROWS, STEPS)[0].iterate(STEPS),
        "memory_mib": memory_mib,
        "step_s": statistics.median(times[WARM_UP:]),
        "batch_statistics": norms,
    }


def apart(model: str, device: str, count: int) -> dict[str, float]:
    """:func:`measure` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "lab.bench.micro_batches", "--one", model, "--device", device],
        env=os.environ | {VARIABLE: str(count), "SMORE_TRACK": "", "OMP_NUM_THREADS": "1"},
        cwd=report.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def figures(measured: Mapping[str, Mapping[int, Mapping[str, float]]]) -> dict[str, float]:
    """``measured``: by model and number of micro-batches, as :func:`measure` gives it."""
    found: dict[str, float] = {}
    worst = {"difference": 0.0, "difference_batch_statistics": 0.0, "difference_single": 0.0}
    for model, by_count in measured.items():
        alone = by_count[1]
        for count, those in by_count.items():
            if count == 1:
                continue
            double, single = (abs(those[loss] / alone[loss] - 1) for loss in ("loss", "loss_single"))
            if alone["batch_statistics"]:
                differences = {"difference_batch_statistics": double}
            else:
                differences = {"difference": double, "difference_single": single}
            for name, value in differences.items():
                worst[name] = max(worst[name], value)
                found[f"{name}.{model}.{count}"] = value
            found[f"memory_ratio.{model}.{count}"] = those["memory_mib"] / alone["memory_mib"]
            found[f"time_ratio.{model}.{count}"] = those["step_s"] / alone["step_s"]
    for name in ("memory_ratio", "time_ratio"):
        most = max(max(by_count) for by_count in measured.values())
        worst[name] = statistics.geometric_mean(found[f"{name}.{model}.{most}"] for model in measured)
    return worst | found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="lab.bench.micro_batches", description="A batch as a whole and in micro-batches."
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--one", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one, options.device)))
        return 0
    measured: dict[str, dict[int, dict[str, float]]] = {}
    for model in options.models.split(","):
        measured[model] = {}
        for count in COUNTS:
            those = measured[model][count] = apart(model, options.device, count)
            report.progress(
                f"{model} in {count}: loss {those['loss']:.9g}, {those['memory_mib']:.0f} MiB, {those['step_s'] * 1e3:.1f} ms"
            )
    done = figures(measured)
    for name, value in done.items():
        print(f"{name:40} {value:.3g}")
    if options.json:
        report.emit("lab.bench.micro_batches", done)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
