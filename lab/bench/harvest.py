"""
The gain and the cost of sharing a GPU instance: ``python -m lab.bench.harvest --device auto --json``.

One GPU instance, one real training on it, three functions of the zoo, and closed-loop clients that send their next
request when the last is answered (a refused one repeats when ``Retry-After`` says). Each mode has a platform of its
own, from an empty home. It runs unchanged on a CUDA GPU (``auto``: where NVML finds one; then the models have the
paper's sizes) and on a CPU partition of one core, which the platform's processes and the clients share with it.

1. *Solo*: what one invocation of each function takes with nothing beside it (median of the worker's run times).
2. *Alone*: the training without functions, for its utilisation.
3. *Shared*: training and clients, ``--seconds``.

Figures, for each ``<mode>``, means over ``--turns``:

* ``harvest_s_per_s.<mode>``: sum over the invocations that met their deadline of their solo device-seconds, per second
  of wall time, with its 95 % interval over blocks of 5 s (``harvest_low_s_per_s``, ``harvest_high_s_per_s``).
* ``train_loss.<mode>``: what the training lost meanwhile, estimated from its closed windows (docs/guides/budgets.md; a
  tenth of the time is closed here), and ``train_loss_low.<mode>``, ``train_loss_high.<mode>``: 95 %; ``windows.<mode>``
  of all turns together. Left out with fewer than eight windows.
* ``utilisation_gain.<mode>``: mean utilisation of the GPU instance with functions less without, by the worker's counter
  (``counter``); left out where there is none (MIG).
* ``sm_active.<mode>``, ``sm_active_gain.<mode>``: the share of SMs at work by NVML's GPM counters (Hopper and later);
  left out elsewhere.
* ``dsr.<mode>``: part of the admitted that met their deadline. ``solo_s.<function>``.
* ``stated_s.<mode>``, ``stated_loss.<mode>``, ``stated_bound.<mode>``: what the job's statement says of its whole life:
  harvested seconds, mean loss and its upper 95 % bound; the last two where it has enough windows.

``--table``: a degradation table that holds for this device must be there (rows of it in ``ml/data``), else it ends;
``--no-table``: there is none, and the policy takes what nobody has measured as costing half the device. By default a
table is waited for on a CPU partition, wherever it holds, and there is none on a GPU.

The mode is ``time-slice``: a platform starts in no other. On a CPU partition ``--function-nice 5,0,-15`` measures the
priorities of functions instead, as ``nice5`` and so on, by turns. Pairs are measured first at each of them
(``lab.measure.profile``, about three minutes, below 0 ten), and its platforms have a table of these rows alone. Below 0 needs root.
``--precedence`` has the same functions with precedence beside them, as ``precedence``.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from lab.bench import report
from lab.bench.overload.client import BLOCK_S
from lab.bench.overload.rig import FUNCTIONS, Rig, Trained, one_core_partitions
from lab.bench.overload.run import measure, row, shown
from lab.bench.report import ROOT, end_on_sigterm
from ml.learn.learning import Learning
from smore.domain.loss import DEFAULT_BUDGET, ClosedWindow, estimate
from smore.local import layout
from smore.postgres.connection import make_engine
from smore.process.gpm import Gpm
from smore.redis.tables import Tables
from zoo.model import card
from zoo.train import input_wait

CONNECTIONS: Final = 8
ALONE_S: Final = 15.0
#: A training's first iterations choose kernels and set its input wait.
SETTLE_S: Final = 5.0
MODE: Final = "time-slice"
#: Of ``lab.measure.profile``: the trainings and functions of this benchmark in as many pairs as a predictor needs.
PROFILE: Final = (
    *("--device", "cpu", "--models", "resnet50,bert,roberta,deepfm", "--positions", "1", "--pairs", "16"),
    *("--functions", "0", "--several", "0", "--repeated", "0", "--solo", "2.5"),
)
#: Of its windows, seconds: for functions that come after the training, and for those that leave it a thirtieth of the core.
WINDOW_S: Final = 3.2, 25.6
#: On a CPU partition one that was profiled with short iterations, so that windows are short; on a GPU the paper's size.
TRAININGS: Final = {
    "cpu": Trained(model="resnet50", batch=2),
    "cuda": Trained(model="resnet50", batch=64, preset="paper"),
}

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """
    ``nice`` of functions, None = the platform's; ``rows``: a folder of what was measured at it; ``precedence``: whether
    all functions have it.
    """

    name: str
    nice: int | None = None
    rows: Path | None = None
    precedence: bool = False


def profiled(nice: int, where: layout.Partition, folder: Path) -> Mode:
    """Measure pairs at a priority of functions. Raises CalledProcessError."""
    mode = Mode(name=f"nice{nice}", nice=nice, rows=folder / str(nice))
    report.progress(f"pairs at {mode.name}")
    place = ("--out", f"{mode.rows}/rows.jsonl", "--cores", where.device, f"--function-nice={nice}")
    window = f"--window={WINDOW_S[nice < 0]}"
    (folder / str(nice)).mkdir(parents=True, exist_ok=True)
    # Its own line of figures is not this benchmark's.
    subprocess.run(
        [sys.executable, "-m", "lab.measure.profile", *place, window, *PROFILE], cwd=ROOT, stdout=sys.stderr, check=True
    )
    return mode


def publish(rig: Rig, rows: Path) -> None:
    """Have the platform's functions placed by a table of these rows alone. Raises SystemExit where it makes none."""
    learning = Learning(make_engine(rig.end.postgres_url, "bench"), Tables(rig.redis, rig.prefix), data=rows)
    # It logs to stdout, which is for the result.
    with redirect_stdout(sys.stderr):
        outcome = learning.retrain(anew=True)
    if outcome.result != "published":
        sys.exit(f"harvest: no degradation table of the rows that were measured: {outcome.reason}")


def partition(device: str) -> layout.Partition:
    """The GPU instance to measure on. Raises SystemExit where there is none of the kind asked for."""
    gpus = layout.gpu_partitions() if device != "cpu" else ()
    if gpus:
        return gpus[0]
    if device == "cuda":
        raise SystemExit("harvest: NVML finds no GPU")
    # The last core: what else the machine does is rather on the first.
    return one_core_partitions()[-1]


class SmActive:
    """Mean share of busy SMs since its creation, by GPM; :meth:`read` returns None where the device has no counter."""

    def __init__(self, where: layout.Partition) -> None:
        self._gpm: Gpm | None = None
        if where.kind == "cpu":
            return
        import pynvml

        try:
            pynvml.nvmlInit()
            handle, instance = pynvml.nvmlDeviceGetHandleByUUID(where.device), None
            if where.kind == "mig":
                instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
                handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        except pynvml.NVMLError:
            return
        if Gpm.supported(handle):
            self._gpm = Gpm(handle, instance)

    def read(self) -> float | None:
        """Once."""
        if self._gpm is None:
            return None
        shares = self._gpm.sample()
        self._gpm.close()
        return shares.get("sm") if shares else None


def utilisation(rig: Rig, gpu: str, begin: float, end: float) -> float | None:
    """Mean over the reports of a time; None where no counter tells it."""
    shares = [
        sample.utilisation
        for at, sample in rig.witness.reports.get(gpu, [])
        if begin <= at < end and sample.utilisation_counter != "none"
    ]
    return statistics.fmean(shares) if shares else None


def measure_mode(
    mode: Mode,
    where: layout.Partition,
    *,
    seconds: float,
    connections: int,
    budget: float,
    training: Trained,
    seed: int,
    table: bool | None,
) -> tuple[dict[str, float], list[ClosedWindow], dict[str, object]]:
    """One turn of a mode from start to stop; its figures without the mode's name, the windows and the point behind them."""
    report.progress(f"{mode.name} on {where.gpu} ({where.kind} {where.device})")
    figures: dict[str, float] = {}
    environment = {} if mode.nice is None else {"SMORE_WORKER__FUNCTION_NICE": str(mode.nice)}
    with (
        tempfile.TemporaryDirectory(prefix="smore-harvest-") as folder,
        Rig(
            Path(folder),
            [where],
            functions=[replace(served, precedence=mode.precedence) for served in FUNCTIONS],
            preset=training.preset,
            environment=environment,
        ) as rig,
    ):
        if mode.rows is not None:
            publish(rig, mode.rows)
            rig.prepare(table=False)
        else:
            rig.prepare(table=where.kind == "cpu" if table is None else table, here=bool(table))
        solo = rig.solo()
        rig.train([training], budget=budget, lasting_s=300 + 2 * seconds)
        time.sleep(SETTLE_S)
        begin, active = time.time(), SmActive(where)
        time.sleep(ALONE_S)
        alone, alone_active = utilisation(rig, where.gpu, begin, time.time()), active.read()
        active = SmActive(where)
        point = measure(rig, solo, seconds=seconds, connections=connections, seed=seed)
        report.progress(shown(point))
        together, together_active = utilisation(rig, where.gpu, point.began, point.began + seconds), active.read()
        counter = next((sample.utilisation_counter for _, sample in rig.witness.reports.get(where.gpu, [])), "none")
        place = next((sample.device for _, sample in rig.witness.reports.get(where.gpu, [])), "")
        job = next(iter(rig.jobs.values()))
        stated, windows = rig.client.statement(job), rig.witness.within(job, point.began, time.time())
    figures |= {
        "harvest_s_per_s": point.harvest.value,
        "harvest_low_s_per_s": point.harvest.low,
        "harvest_high_s_per_s": point.harvest.high,
        "stated_s": stated.harvested_s,
    }
    if alone is not None and together is not None:
        figures["utilisation_gain"] = together - alone
    if alone_active is not None and together_active is not None:
        figures["sm_active"], figures["sm_active_gain"] = together_active, together_active - alone_active
    if point.admitted:
        figures["dsr"] = point.met / point.admitted
    if stated.loss is not None and stated.loss_high is not None:
        figures["stated_loss"], figures["stated_bound"] = stated.loss, stated.loss_high
    return (
        figures | {f"solo_s.{name}": value for name, value in solo.items()},
        windows,
        {
            "mode": mode.name,
            "place": place,
            "counter": counter,
            "utilisation_alone": alone,
            "utilisation": together,
            "stated": stated.summary,
            "load": os.getloadavg()[1],
            **row(point),
        },
    )


def summary(mode: str, turns: Sequence[Mapping[str, float]], windows: Sequence[ClosedWindow]) -> dict[str, float]:
    """Figures of all turns of a mode by their final names."""
    names = dict.fromkeys(name for figures in turns for name in figures)
    figures = {
        name if name.startswith("solo_s.") else f"{name}.{mode}": statistics.fmean(
            figures[name] for figures in turns if name in figures
        )
        for name in names
    }
    if (loss := estimate(windows)) is not None:
        figures |= {f"train_loss.{mode}": loss.mean, f"windows.{mode}": loss.windows}
        figures |= {f"train_loss_low.{mode}": loss.low, f"train_loss_high.{mode}": loss.high}
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.harvest", description="What sharing gives and costs; see the docstring."
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--function-nice",
        type=lambda text: tuple(map(int, text.split(","))),
        default=(),
        help="CPU partition: priorities of functions to compare, -20 to 19, with commas",
    )
    parser.add_argument("--precedence", action="store_true", help="beside it, the same functions with precedence")
    parser.add_argument(
        "--rows", type=Path, help="folder that keeps the pairs for another run (default: they are not kept)"
    )
    parser.add_argument("--turns", type=int, default=1, help="of each mode, by turns")
    parser.add_argument("--seconds", type=float, default=60.0, help="with functions")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="closed-loop clients")
    parser.add_argument("--budget", type=float, default=DEFAULT_BUDGET, help="of the training, a fraction")
    parser.add_argument(
        "--input-wait",
        help="of the training: share of an iteration, 0 to <1; card; none (default: card on a CPU, else none)",
    )
    parser.add_argument(
        "--table",
        action=argparse.BooleanOptionalAction,
        help="a degradation table that holds here must be there, or there is none",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(arguments)
    if asked.seconds < 2 * BLOCK_S or asked.connections < 1:
        parser.error(f"--seconds must be at least {2 * BLOCK_S:g} and --connections above 0")
    where = partition(asked.device)
    if asked.function_nice and where.kind != "cpu":
        parser.error("--function-nice: a GPU knows no such priority")
    kind: Device = "cpu" if where.kind == "cpu" else "cuda"
    training = replace(TRAININGS[kind], input_wait=asked.input_wait)
    try:
        input_wait(training.input_wait, card(training.model), kind)
    except ValueError as error:
        parser.error(f"--input-wait: {error}")
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="smore-harvest-rows-") as folder:
        rows = asked.rows or Path(folder)
        modes = [profiled(nice, where, rows) for nice in asked.function_nice] or [Mode(name=MODE)]
        modes += [Mode(name="precedence", precedence=True)] if asked.precedence else []
        measured = {
            (mode.name, turn): measure_mode(
                mode,
                where,
                seconds=asked.seconds,
                connections=asked.connections,
                budget=asked.budget,
                training=training,
                seed=asked.seed + turn,
                table=asked.table,
            )
            for turn in range(asked.turns)
            for mode in modes
        }
    figures: dict[str, float] = {}
    for mode in modes:
        turns = [measured[mode.name, turn] for turn in range(asked.turns)]
        windows = [window for _, of_turn, _ in turns for window in of_turn]
        figures |= summary(mode.name, [of_turn for of_turn, _, _ in turns], windows)
    if asked.json:
        report.emit(
            "lab.bench.harvest",
            figures,
            training=training.workload,
            input_wait=training.input_wait,
            budget=asked.budget,
            points=[point for _, _, point in measured.values()],
        )
    else:
        for name, value in sorted(figures.items()):
            print(f"{name:32}{report.rounded(value):>12g}")


if __name__ == "__main__":
    main()
