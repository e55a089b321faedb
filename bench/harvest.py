"""
What sharing gives and costs, by sharing mode: ``python -m bench.harvest --device auto --json``.

One GPU instance, one real training on it, three functions of the zoo, and closed-loop clients that send their next request when the last
is answered (who is refused comes back when the refusal says). For each mode a platform of its own, from an empty home. It runs unchanged on
a CUDA GPU (``auto``: where NVML finds one; then the models have the paper's sizes) and on a CPU partition of one core, which the platform's
processes and the clients share with it.

1. *Solo*: what one invocation of each function takes with nothing beside it (median of the worker's run times).
2. *Alone*: the training without functions, for its utilisation.
3. *Shared*: training and clients, ``--seconds``.

Figures, for each ``<mode>``:

* ``harvest_s_per_s.<mode>``: sum over the invocations that met their deadline of their solo device-seconds, per second of wall time, with
  its 95 % interval over blocks of 5 s (``harvest_low_s_per_s``, ``harvest_high_s_per_s``).
* ``train_loss.<mode>``: what the training lost meanwhile, estimated from its closed windows (docs/budgets.md; a tenth of the time is closed
  here), and ``train_loss_low.<mode>``, ``train_loss_high.<mode>``: 95 %. Left out with fewer than eight windows.
* ``utilisation_gain.<mode>``: mean utilisation of the GPU instance with functions less without, by the worker's counter (``counter``); left
  out where there is none (MIG).
* ``sm_active.<mode>``, ``sm_active_gain.<mode>``: the share of SMs at work by NVML's GPM counters (Hopper and later); left out elsewhere.
* ``dsr.<mode>``: part of the admitted that met their deadline. ``solo_s.<function>``.

Modes: ``time-slice``; ``mps`` where a CUDA device and the MPS daemon's program are at hand (a daemon of its own is started and ended).
"""

import argparse
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from bench import overload, report
from bench.overload import Rig, Trained
from smore import local
from smore.domain.loss import DEFAULT_BUDGET

CONNECTIONS: Final = 8
ALONE_S: Final = 15.0
#: A training's first iterations choose kernels and set its input wait.
SETTLE_S: Final = 5.0
MPS: Final = "nvidia-cuda-mps-control"
#: On a CPU partition one that was profiled with short iterations, so that windows are short; on a GPU the paper's size.
TRAININGS: Final = {"cpu": Trained(model="resnet50", batch=2), "cuda": Trained(model="resnet50", batch=64, preset="paper")}

Device = Literal["cpu", "cuda"]


def partition(device: str) -> local.Partition:
    """The GPU instance to measure on. Raises SystemExit where there is none of the kind asked for."""
    found = local.gpu_partitions() if device != "cpu" else ()
    if found:
        return found[0]
    if device == "cuda":
        raise SystemExit("harvest: NVML finds no GPU")
    # The last core: what else the machine does is rather on the first.
    return overload.one_core_partitions()[-1]


def modes(kind: str) -> tuple[str, ...]:
    """Those that can be measured here."""
    return ("time-slice", "mps") if kind == "cuda" and shutil.which(MPS) else ("time-slice",)


@contextmanager
def sharing(mode: str, device: str) -> Iterator[dict[str, str]]:
    """What the platform's processes are told; for ``mps`` with a daemon of its own."""
    if mode != "mps":
        yield {"SMORE_WORKER__SHARING_MODE": mode}
        return
    with tempfile.TemporaryDirectory(prefix="smore-mps-") as folder:
        told = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | told
        subprocess.run([MPS, "-d"], env=environment | {"CUDA_VISIBLE_DEVICES": device}, check=True)
        try:
            yield told | {"SMORE_WORKER__SHARING_MODE": mode}
        finally:
            subprocess.run([MPS], env=environment, input="quit\n", text=True, check=False)


class SmActive:
    """Mean share of SMs at work since it was made, by NVML's GPM; :meth:`read` gives None where the device does not tell."""

    def __init__(self, where: local.Partition) -> None:
        self._first: Any = None
        if where.kind != "cuda":
            return
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(where.device)
            if pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                self._first = pynvml.nvmlGpmSampleGet(self._handle, pynvml.nvmlGpmSampleAlloc())
        except pynvml.NVMLError:
            self._first = None

    def read(self) -> float | None:
        if self._first is None:
            return None
        nvml = self._nvml
        try:
            last = nvml.nvmlGpmSampleGet(self._handle, nvml.nvmlGpmSampleAlloc())
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            asked.sample1, asked.sample2 = self._first, last
            asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            nvml.nvmlGpmMetricsGet(asked)
            nvml.nvmlGpmSampleFree(last)
        except nvml.NVMLError:
            return None
        value = float(asked.metrics[0].value) / 100
        return value if math.isfinite(value) else None


def utilisation(rig: Rig, gpu: str, begin: float, end: float) -> float | None:
    """Mean over the reports of a time; None where no counter tells it."""
    found = [one.utilisation for at, one in rig.witness.reports.get(gpu, []) if begin <= at < end and one.utilisation_counter != "none"]
    return statistics.fmean(found) if found else None


def measure_mode(
    mode: str, where: local.Partition, *, seconds: float, connections: int, budget: float, training: Trained, seed: int
) -> tuple[dict[str, float], dict[str, object]]:
    """One mode from start to stop; its figures by their final names, and the point behind them."""
    report.progress(f"{mode} on {where.gpu} ({where.kind} {where.device})")
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="smore-harvest-") as folder,
        sharing(mode, where.device) as told,
        Rig(Path(folder), [where], preset=training.preset, environment=told) as rig,
    ):
        rig.prepare()
        solo = rig.solo()
        rig.train([training], budget=budget, lasting_s=300 + 2 * seconds)
        time.sleep(SETTLE_S)
        begin, active = time.time(), SmActive(where)
        time.sleep(ALONE_S)
        alone, alone_active = utilisation(rig, where.gpu, begin, time.time()), active.read()
        active = SmActive(where)
        point = overload.measure(rig, solo, seconds=seconds, connections=connections, seed=seed)
        report.progress(overload.shown(point))
        together, together_active = utilisation(rig, where.gpu, point.began, point.began + seconds), active.read()
        counter = next((one.utilisation_counter for _, one in rig.witness.reports.get(where.gpu, [])), "none")
        place = next((one.device for _, one in rig.witness.reports.get(where.gpu, [])), "")
    found[f"harvest_s_per_s.{mode}"] = point.harvest.value
    found[f"harvest_low_s_per_s.{mode}"], found[f"harvest_high_s_per_s.{mode}"] = point.harvest.low, point.harvest.high
    if point.worst is not None:
        found[f"train_loss.{mode}"] = point.worst.mean
        found[f"train_loss_low.{mode}"], found[f"train_loss_high.{mode}"] = point.worst.low, point.worst.high
    if alone is not None and together is not None:
        found[f"utilisation_gain.{mode}"] = together - alone
    if alone_active is not None and together_active is not None:
        found[f"sm_active.{mode}"], found[f"sm_active_gain.{mode}"] = together_active, together_active - alone_active
    if point.admitted:
        found[f"dsr.{mode}"] = point.met / point.admitted
    found |= {f"solo_s.{name}": value for name, value in solo.items()}
    return found, {
        "mode": mode, "place": place, "counter": counter, "utilisation_alone": alone, "utilisation": together, **overload.row(point),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.harvest", description="What sharing gives and costs; see the docstring.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--modes", type=lambda text: tuple(text.split(",")), help="sharing modes, with commas (default: all there are)")
    parser.add_argument("--seconds", type=float, default=60.0, help="with functions")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="closed-loop clients")
    parser.add_argument("--budget", type=float, default=DEFAULT_BUDGET, help="of the training, a fraction")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(arguments)
    if asked.seconds < 2 * overload.BLOCK_S or asked.connections < 1:
        parser.error(f"--seconds must be at least {2 * overload.BLOCK_S:g} and --connections above 0")
    where = partition(asked.device)
    kind: Device = "cpu" if where.kind == "cpu" else "cuda"
    known = modes(kind)
    wanted = asked.modes or known
    for mode in wanted:
        if mode not in known:
            parser.error(f"--modes: {mode!r} cannot be measured here; there are {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    figures: dict[str, float] = {}
    points: list[Mapping[str, object]] = []
    for mode in wanted:
        found, point = measure_mode(
            mode, where, seconds=asked.seconds, connections=asked.connections, budget=asked.budget, training=TRAININGS[kind],
            seed=asked.seed,
        )  # fmt: skip
        figures |= found
        points.append(point)
    if asked.json:
        report.emit("bench.harvest", figures, training=TRAININGS[kind].workload, budget=asked.budget, points=points)
    else:
        for name, value in sorted(figures.items()):
            print(f"{name:32}{report.rounded(value):>12g}")


if __name__ == "__main__":
    main()
