"""
The parts of a cold start: ``python -m lab.bench.cold --json``.

One zygote that sandboxes its runners, without a platform. Each model of the zoo in ``--preset``; medians over
``--repeats``.

===================== ============================================================================================================
figure                milliseconds
===================== ============================================================================================================
``fork_ms``           request to the runner's process, its control group included
``context_ms``        the device opened in it, as a standby runner does (CUDA alone)
``cold_ms.<model>``   fork, device and load: a cold start without a standby runner
``standby_ms.<model>`` the load alone, the device being open: a cold start with one
``import_ms.<model>``, ``weights_ms.<model>``, ``first_run_ms.<model>``: the parts of the latter
``host_ms.<model>``   a return out of pinned host memory (CUDA alone)
``park_ms.<model>``   moving the weights to pinned host memory
``paused_ms.<model>`` as ``standby_ms``, right after ``--after-pause`` seconds in which nothing was loaded
===================== ============================================================================================================

``cold_first_after_pause``: the median over the models of ``paused_ms`` over ``standby_ms``.

Without a device of the requested kind it prints the reason and ends with 3.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lab.bench import confinement, report
from worker.frames import Load, Results
from worker.runner.runner_handle import Runner, RunnerFailed
from worker.runner.zygote_handle import Zygote
from zoo.options import NAMES

TIMEOUT_S: Final = 120.0
#: Declared of each; the largest takes less than a GiB with its first run.
MEMORY_MIB: Final = {"cpu": 1024.0, "paper": 8192.0}
RESULTS: Final = Results(one=64 << 20, together=64 << 20)


def absent(device: str) -> str:
    """Why this machine cannot measure on such a device; "" where it can."""
    import torch

    if device == "cpu" or torch.cuda.is_available():
        return ""
    return f"torch {torch.__version__} finds no CUDA device here"


class Starts:
    """Cold starts of one model after the other; milliseconds by figure."""

    def __init__(self, zygote: Zygote, device: str, preset: str) -> None:
        self._zygote, self._device, self._preset = zygote, device, preset
        self.took: defaultdict[str, list[float]] = defaultdict(list)

    def once(self, model: str) -> None:
        """One start without a standby runner, one with; from that to host memory and back where there is a GPU."""
        began = time.perf_counter()
        runner = self._fork()
        self._load(runner, model)
        self.took[f"cold_ms.{model}"].append(since(began))
        runner.unload()
        runner = self._fork()
        if self._device == "cuda":
            began = time.perf_counter()
            runner.prepare(self._device, TIMEOUT_S)
            self.took["context_ms"].append(since(began))
        began = time.perf_counter()
        phases = self._load(runner, model)
        self.took[f"standby_ms.{model}"].append(since(began))
        for phase, value in phases.items():
            self.took[f"{phase}_ms.{model}"].append(value)
        if self._device == "cuda":
            began = time.perf_counter()
            runner.park(TIMEOUT_S)
            self.took[f"park_ms.{model}"].append(since(began))
            began = time.perf_counter()
            runner.restore(TIMEOUT_S)
            self.took[f"host_ms.{model}"].append(since(began))
        runner.unload()

    def after_pause(self, model: str, pause_s: float) -> None:
        """One start with a standby runner after a pause."""
        runner = self._fork()
        if self._device == "cuda":
            runner.prepare(self._device, TIMEOUT_S)
        time.sleep(pause_s)
        began = time.perf_counter()
        self._load(runner, model)
        self.took[f"paused_ms.{model}"].append(since(began))
        runner.unload()

    def _fork(self) -> Runner:
        began = time.perf_counter()
        runner = self._zygote.fork()
        self.took["fork_ms"].append(since(began))
        return runner

    def _load(self, runner: Runner, model: str) -> dict[str, float]:
        kind = "PaperFunction" if self._preset == "paper" else "Function"
        request = Load(
            entrypoint=f"zoo.{model}:{kind}",
            device=self._device,
            memory_mib=MEMORY_MIB[self._preset],
            label=model,
            results=RESULTS,
        )
        return runner.load(request, TIMEOUT_S).phases


def since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.cold", description="What a cold start is made of; see the docstring."
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--preset", choices=("cpu", "paper"), help="default: paper on cuda, cpu on cpu")
    parser.add_argument("--models", default=",".join(NAMES), help="with commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--after-pause", type=float, default=0.0, metavar="SECONDS", help="measure starts after pauses too"
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(words)
    models = asked.models.split(",")
    if unknown := set(models) - set(NAMES):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    preset = asked.preset or ("cpu" if asked.device == "cpu" else "paper")
    if reason := absent(asked.device):
        print(reason, file=sys.stderr)
        return 3
    figures: dict[str, float] = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = stack.enter_context(confinement.nursery(Path(folder)))
        zygote = confinement.zygote(Path(folder) / "home", place, shut=True, device=asked.device)
        stack.callback(zygote.close)
        starts = Starts(zygote, asked.device, preset)
        for model in models:
            report.progress(f"{model}, {asked.repeats} times")
            try:
                for _ in range(asked.repeats):
                    starts.once(model)
                    if asked.after_pause:
                        starts.after_pause(model, asked.after_pause)
            except RunnerFailed as error:
                failed[model] = str(error)
                report.progress(f"{model} failed: {error}")
    figures = {name: statistics.median(values) for name, values in starts.took.items()} | {"models_failed": len(failed)}
    if paused := [model for model in models if f"paused_ms.{model}" in figures]:
        figures["cold_first_after_pause"] = statistics.median(
            figures[f"paused_ms.{model}"] / figures[f"standby_ms.{model}"] for model in paused
        )
    for name, value in figures.items():
        report.progress(f"{name:28} {value:10.1f}")
    if asked.json:
        report.emit(
            "python -m lab.bench.cold", figures, preset=preset, on=asked.device, repeats=asked.repeats, failed=failed
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
