"""
Measures workloads alone and together on this machine's device: ``python -m lab.measure.profile --out rows.jsonl``.

A co-location first runs each member alone for a moment (the control), then all at once, and counts the runs that lie
wholly within the window. Two trainings are measured by turns: each alone, both at once, each alone again, so that a change
of the machine's speed cancels. Rows are appended as they are measured; a second start continues after the last one. The
program needs torch, numpy and, for a GPU, nvidia-ml-py, and none of the platform's servers, so it runs on a bare GPU
machine. ``smore profiles import`` reads its rows.

On a GPU the models have their published sizes. On a **CPU partition**, which stands in for a GPU, they have the small
presets, a training waits for its input for a fixed part of each iteration (``ModelCard.input_wait``), and functions run
at a lower priority than the training. On a GPU a training waits only if ``--input-wait`` says so; without it, the rows
measure the sharing of a saturated device. The inputs are synthetic, in the shapes of the data sets of table I. A file
can be continued on any machine of the same device, sharing mode and counter; each row names its own driver.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from lab.measure.device import BadDevice, CpuPartition, CudaGpu, Device, Usage
from lab.measure.plan import Amounts, Plan, Run
from lab.measure.processes import MemberFailed, Process, Processes
from ml import rows
from ml.rows import BadRow, Colocation, Member, Solo, Timing, Workload
from zoo.model import card
from zoo.options import NAMES
from zoo.train import input_wait

#: The zoo's models in the order of table I.
MODELS = NAMES
#: Models of a short run (``--few``): 8 workloads alone and 16 pairs, of which a predictor needs 10.
FEW_MODELS = 4
#: Seconds of a run alone, which gives the reference.
SOLO_S = 4.0
#: Seconds of the control before each window, and its least number of runs.
CONTROL_S: Mapping[rows.Role, float] = {"training": 1.0, "function": 0.6}
CONTROL_RUNS = 4
#: Least number of iterations of a training in each of its runs alone around a window with another training, the seconds
#: of such a run, and the iterations alone of the slower training that the window lasts for at least.
TURN_RUNS, TURN_S, WINDOW_RUNS = 3, 0.8, 5
#: Seconds that all members run before the window begins.
WARM_UP_S = 0.4


class Campaign:
    """Measures runs and writes their rows."""

    def __init__(
        self,
        device: Device,
        out: Path,
        *,
        window_s: float,
        command: str,
        solo_s: float = SOLO_S,
        wait: str | None = None,
    ) -> None:
        self._device, self._out, self._window_s, self._command = device, out, window_s, command
        self._solo_s, self._wait = solo_s, wait
        self._processes = Processes(device)
        self._solo: dict[Workload, Solo] = {}
        self.done: set[Run] = set()
        #: Failed workloads with the error; runs with them are skipped.
        self.failed: dict[Workload, str] = {}
        for row in rows.read(out) if out.exists() else ():
            # Another driver is allowed: each row names its driver, and predictions hold for the device.
            if (row.place.key, row.place.counter) != (device.place.key, device.place.counter):
                place = f"{row.place.device} ({row.place.sharing_mode}, {row.place.counter})"
                raise BadRow(f"{out.name} holds rows of {place}: use another file")
            if isinstance(row, Solo):
                if row.workload.role == "training" and (row.input_wait_s > 0) != (self._share(row.workload) > 0):
                    raise BadRow(
                        f"{out.name} holds {row.workload} with another input wait ({row.input_wait_s:g} s): use another"
                        " file"
                    )
                self._solo[row.workload] = row
            else:
                self.done.add(Run(members=tuple(member.workload for member in row.members), repeat=row.repeat))

    def _share(self, workload: Workload) -> float:
        """Share of an undisturbed iteration in which the workload waits for its input."""
        return (
            input_wait(workload.wait or self._wait, card(workload.model), self._device.torch_device)
            if workload.role == "training"
            else 0.0
        )

    def end(self) -> None:
        self._processes.end()

    def start(self, runs: Iterable[Run]) -> None:
        """Start the processes that these runs need, so that they load at the same time."""
        self._processes.start(workload for run in runs for workload in run.members)

    def measure(self, run: Run) -> None:
        """
        Measure one co-location, after a solo run of each member that has none yet. A failing workload is recorded in
        ``failed``, not raised.
        """
        for workload in run.members:
            if workload in self.failed:
                return
            try:
                self._alone(workload)
            except (MemberFailed, BadRow) as error:
                self._processes.drop([workload])
                self.failed[workload] = str(error)
                return
        try:
            row = self._by_turns(run) if run.trainings else self._together(run)
        except (MemberFailed, BadRow) as error:
            # The fault may not be one workload's: together they may need too much memory.
            self._processes.drop(run.members)
            print(f"\nskipped: {' + '.join(map(str, run.members))}: {error}", file=sys.stderr)
            return
        rows.write(self._out, row)
        self.done.add(run)

    def _alone(self, workload: Workload) -> None:
        if workload in self._solo:
            return
        (process,) = self._processes.of([workload])
        process.ask(do="prepare", batch=workload.batch)
        prepared = process.answer()
        wait_s = 0.0
        if (share := self._share(workload)) > 0:
            answer = self._run(process, workload, 0.0, CONTROL_S["training"], least=8)
            # Processor time on a CPU; clock time on a GPU, whose work is not process time.
            busy_s = answer["busy_s"] if self._device.torch_device == "cpu" else sum(answer["seconds"])
            wait_s = busy_s / len(answer["seconds"]) * share / (1 - share)
        watch = self._device.watch([process.pid])
        answer = self._run(process, workload, wait_s, self._solo_s)
        usage = watch.usage()
        solo = Solo(
            place=self._device.place,
            workload=workload,
            features=prepared["features"],
            timing=Timing.of(answer["seconds"]),
            utilisation=usage.total,
            memory_utilisation=usage.memory,
            device_memory_bytes=prepared["device_memory_bytes"],
            input_wait_s=wait_s,
            cold_s=prepared["cold_s"],
            kernels=prepared["kernels"],
            seconds=self._solo_s,
            at=_now(),
            command=self._command,
            counters={**usage.counters, **self._device.counters(process.pid)},
        )
        rows.write(self._out, solo)
        self._solo[workload] = solo

    def _run(
        self, process: Process, workload: Workload, wait_s: float, seconds: float, *, least: int = 1
    ) -> dict[str, Any]:
        """Run alone for ``seconds``, or longer if fewer than ``least`` runs fit."""
        while True:
            start = time.monotonic() + WARM_UP_S / 5
            process.ask(do="run", batch=workload.batch, wait_s=wait_s, **{"from": start, "until": start + seconds})
            answer = process.answer()
            if len(answer["seconds"]) >= least or seconds > 60:
                return answer
            seconds *= 2

    def _together(self, run: Run) -> Colocation:
        processes = self._ready(run)
        solos = [self._solo[workload] for workload in run.members]
        controls: dict[Workload, Timing] = {}
        for process, solo in zip(processes, solos, strict=True):
            if solo.workload in controls:
                continue
            seconds = max(CONTROL_S[solo.workload.role], (CONTROL_RUNS + 1) * solo.timing.mean)
            answer = self._run(process, solo.workload, solo.input_wait_s, seconds)
            controls[solo.workload] = Timing.of(answer["seconds"])
        timings, usage = self._at_once(processes, solos, self._window_s)
        members = [
            Member(workload=s.workload, timing=timing, control=controls[s.workload], solo=s.timing)
            for s, timing in zip(solos, timings, strict=True)
        ]
        return self._row(run, members, usage, usage.foreign, self._window_s)

    def _by_turns(self, run: Run) -> Colocation:
        """Two trainings: each alone, both at once, each alone again."""
        processes = self._ready(run)
        solos = [self._solo[workload] for workload in run.members]
        alone: list[list[float]] = [[] for _ in solos]
        foreign: list[float] = []

        def each_alone() -> None:
            for process, solo, seconds in zip(processes, solos, alone, strict=True):
                watch = self._device.watch([process.pid])
                lasting = max(TURN_S, TURN_RUNS * solo.timing.mean)
                seconds += self._run(process, solo.workload, solo.input_wait_s, lasting)["seconds"]
                foreign.append(watch.usage().foreign or 0.0)

        each_alone()
        window_s = max(self._window_s, WINDOW_RUNS * max(solo.timing.mean for solo in solos))
        timings, usage = self._at_once(processes, solos, window_s)
        each_alone()
        members = [
            Member(workload=solo.workload, timing=timing, control=Timing.of(seconds), solo=solo.timing)
            for solo, timing, seconds in zip(solos, timings, alone, strict=True)
        ]
        disturbance = None if usage.foreign is None else max(usage.foreign, *foreign)
        return self._row(run, members, usage, disturbance, window_s)

    def _ready(self, run: Run) -> list[Process]:
        processes = self._processes.of(run.members)
        for process, workload in zip(processes, run.members, strict=True):
            process.ask(do="ready", batch=workload.batch)
        for process in processes:
            process.answer()
        return processes

    def _at_once(
        self, processes: Sequence[Process], solos: Sequence[Solo], window_s: float
    ) -> tuple[list[Timing], Usage]:
        """Times of all members in a window in which all run."""
        start = time.monotonic() + WARM_UP_S
        until = start + window_s
        for process, solo in zip(processes, solos, strict=True):
            command = {"from": start, "until": until}
            process.ask(do="run", batch=solo.workload.batch, wait_s=solo.input_wait_s, **command)
        time.sleep(max(0.0, start - time.monotonic()))
        watch = self._device.watch([process.pid for process in processes])
        time.sleep(max(0.0, until - time.monotonic()))
        usage = watch.usage()
        answers = [process.answer() for process in processes]
        return [Timing.of(answer["seconds"]) for answer in answers], usage

    def _row(
        self, run: Run, members: Sequence[Member], usage: Usage, disturbance: float | None, seconds: float
    ) -> Colocation:
        return Colocation(
            place=self._device.place,
            members=tuple(members),
            utilisation=usage.total,
            disturbance=disturbance,
            seconds=seconds,
            at=_now(),
            repeat=run.repeat,
            command=self._command,
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def progress(done: int, total: int, seconds: float, left_s: float) -> str:
    """One line of progress: runs done, minutes used and minutes left."""
    width = 30
    filled = int(width * seconds / max(1.0, seconds + left_s))
    return (
        f"[{'#' * filled}{'.' * (width - filled)}] {done} of {total} runs, {seconds / 60:.1f} min,"
        f" {left_s / 60:.1f} min to go "
    )


def time_left(runs_s: float, minutes: float | None, used_s: float) -> float:
    """Seconds until the end: ``runs_s`` of what is planned, or what is left of ``minutes`` where that is less."""
    return runs_s if minutes is None else max(0.0, min(runs_s, minutes * 60 - used_s))


def fits(longest_s: float, minutes: float | None, used_s: float) -> bool:
    """Whether one more run ends within ``minutes`` if it takes as long as the longest one yet."""
    return minutes is None or used_s + longest_s <= minutes * 60


def _cores(text: str) -> list[int]:
    cores = [int(core) for core in text.split(",")]
    missing = set(cores) - set(range(os.cpu_count() or 1))
    if missing:
        raise argparse.ArgumentTypeError(f"this machine has no core {', '.join(map(str, sorted(missing)))}")
    return cores


def _trainings(text: str) -> list[Workload]:
    workloads = []
    for name in filter(None, text.split(",")):
        model, preset, role, batch = name.split("/") if name.count("/") == 3 else ("", "", "", "")
        if model not in NAMES or role != "training" or not (batch.isascii() and batch.isdecimal() and int(batch)):
            raise argparse.ArgumentTypeError(f"{name!r} is not MODEL/PRESET/training/BATCH with a model of the zoo")
        workload = Workload(model=model, preset=preset, role="training", batch=int(batch))
        try:
            input_wait(workload.wait, card(model), "cpu")
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name!r}: {error}") from error
        workloads.append(workload)
    return workloads


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.measure.profile", description="Measure workloads alone and together on this machine's device."
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="file of rows (JSON lines); an existing file is continued"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--index", type=int, default=0, help="GPU number")
    parser.add_argument("--cores", type=_cores, default="0", help="CPU partition: its cores, separated by commas")
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="CPU partition: the part of its cores' time that belongs to it, above 0 to 1; keep the others idle",
    )
    parser.add_argument(
        "--function-nice",
        type=int,
        default=5,
        help="CPU partition: by how much the priority of functions is below training, -20 to 19 (below 0: root)",
    )
    parser.add_argument(
        "--minutes", type=float, help="stop after so many minutes; the most informative runs come first"
    )
    parser.add_argument("--window", type=float, default=12.0, help="seconds of a co-location's window")
    parser.add_argument("--solo", type=float, default=SOLO_S, help="seconds of a run alone")
    parser.add_argument(
        "--input-wait",
        help="share of a training's iteration that waits for input: 0 to <1, card (the model's) or none (default: card on a CPU)",
    )
    parser.add_argument(
        "--positions",
        type=int,
        choices=range(1, 5),
        help=(
            "use only so many of each model's four batches in the first rounds of pairs, so that few workloads have to be"
            " measured alone (default: mixed)"
        ),
    )
    parser.add_argument(
        "--order", choices=("mixed", "pairs"), default="mixed", help="pairs: all pairs before the other kinds"
    )
    parser.add_argument("--parallel", action="store_true", help="load the first processes at the same time")
    parser.add_argument("--pairs", type=int, default=240, help="number of the 1,024 pairs of training and function")
    parser.add_argument("--functions", type=int, default=64, help="number of pairs of functions")
    parser.add_argument("--several", type=int, default=60, help="number of sets with two or more functions")
    parser.add_argument(
        "--training-pairs", type=int, default=0, help="number of the 528 pairs of two trainings (default: none)"
    )
    parser.add_argument(
        "--trainings",
        type=_trainings,
        default="",
        help=(
            "all pairs of these trainings, separated by commas, as MODEL/PRESET/training/BATCH; PRESET-wait-0.6 waits for"
            " input for 0.6 of an iteration"
        ),
    )
    parser.add_argument("--repeated", type=int, default=20, help="number of pairs measured repeatedly")
    parser.add_argument(
        "--repeated-functions", type=int, default=10, help="number of pairs of functions measured repeatedly"
    )
    parser.add_argument(
        "--repeated-trainings", type=int, default=20, help="number of pairs of trainings measured repeatedly"
    )
    parser.add_argument("--times", type=int, default=5, help="measurements of each repeated pair")
    parser.add_argument("--k-max", type=int, default=4, choices=range(2, 9), help="most functions at a time")
    parser.add_argument(
        "--priority",
        type=int,
        default=0,
        choices=range(-20, 1),
        metavar="NICE",
        help="nice value of all measured processes and of their session, -20 to 0, on a machine that does other work too",
    )
    parser.add_argument("--models", help="models, separated by commas (default: all)")
    parser.add_argument(
        "--few",
        action="store_true",
        help=f"default to the first {FEW_MODELS} models, so that a short run has enough pairs",
    )
    options = parser.parse_args(arguments)
    if options.models is None:
        options.models = ",".join(MODELS[: FEW_MODELS if options.few else None])
    unknown = set(options.models.split(",")) - set(NAMES)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if not -20 <= options.function_nice <= 19:
        parser.error("--function-nice must be within -20 to 19")
    if not 0 < options.share <= 1:
        parser.error("--share must be above 0, and 1 at most")
    if options.solo <= 0 or options.window <= 0:
        parser.error("--solo and --window must be above 0")
    try:
        input_wait(options.input_wait, card(MODELS[0]), options.device)
    except ValueError as error:
        parser.error(f"--input-wait: {error}")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    # Record the file's name only, not its folder on that machine.
    words = [options.out.name if word == str(options.out) else word for word in arguments]
    command = "python -m lab.measure.profile " + shlex.join(words)
    # The budget includes the imports, which the process has spent its processor time on.
    began = time.monotonic() - time.process_time()
    try:
        device: Device = (
            CpuPartition(options.cores, options.function_nice, options.share)
            if options.device == "cpu"
            else CudaGpu(options.index)
        )
    except BadDevice as error:
        print(error, file=sys.stderr)
        return 2

    def batches(model: str, role: rows.Role) -> Sequence[int]:
        preset = card(model).presets[device.preset]
        return preset.training_batches if role == "training" else preset.function_batches

    amounts = Amounts(
        pairs=options.pairs,
        functions=options.functions,
        several=options.several,
        trainings=options.training_pairs,
        named=options.trainings,
        repeated=options.repeated,
        repeated_functions=options.repeated_functions,
        repeated_trainings=options.repeated_trainings,
        times=options.times,
        k_max=options.k_max,
        positions=options.positions,
        pairs_first=options.order == "pairs",
    )
    if wrong := [workload for workload in options.trainings if workload.size != device.preset]:
        print(f"--trainings: on this device models have the preset {device.preset!r}, not {wrong[0]}", file=sys.stderr)
        return 2
    runs = Plan(options.models.split(","), device.preset, batches).runs(amounts)
    with ExitStack() as stack:
        try:
            campaign = Campaign(
                device,
                options.out,
                window_s=options.window,
                command=command,
                solo_s=options.solo,
                wait=options.input_wait,
            )
        except BadRow as error:
            print(error, file=sys.stderr)
            return 2
        stack.callback(campaign.end)
        todo = [run for run in runs if run not in campaign.done]
        if options.parallel:
            campaign.start(todo)
        started, longest = time.monotonic(), options.window + 6
        for measured, run in enumerate(todo):
            now = time.monotonic()
            seconds = now - began
            each = (now - started) / measured if measured else longest
            if not fits(longest, options.minutes, seconds):
                break
            left_s = time_left(each * (len(todo) - measured), options.minutes, seconds)
            print(
                "\r" + progress(len(campaign.done), len(runs), seconds, left_s),
                end="",
                file=sys.stderr,
                flush=True,
            )
            campaign.measure(run)
            longest = max(longest, time.monotonic() - now)
    print(file=sys.stderr)
    for workload, reason in campaign.failed.items():
        print(f"{workload} could not be measured: {reason}", file=sys.stderr)
    figures = {
        "runs_done": len(campaign.done),
        "runs_planned": len(runs),
        "workloads_failed": len(campaign.failed),
        "pairs": sum(run.pair for run in campaign.done),
    }
    print(json.dumps({"figures": figures}))
    return 0


def stand_aside(options: argparse.Namespace) -> None:
    """
    Keep this process from disturbing its measurements.

    It leaves the partition's cores, and takes all members into one session: a kernel that divides time between sessions
    first (autogroup) then weighs each process by itself, as within a container. The leader of a process group cannot
    leave its session and does not need to.
    """
    with suppress(PermissionError):
        os.setsid()
    others = os.sched_getaffinity(0) - set(options.cores)
    if options.device == "cpu" and others:
        os.sched_setaffinity(0, others)
    if options.priority:
        os.setpriority(os.PRIO_PROCESS, 0, options.priority)
        # Where time is divided between sessions first, the session's nice value counts.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(options.priority))


if __name__ == "__main__":
    stand_aside(parse(sys.argv[1:]))
    sys.exit(main(sys.argv[1:]))
