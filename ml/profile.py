"""
Measures workloads alone and together on this machine's device: ``python -m ml.profile --out rows.jsonl``.

Every model runs in a process of its own (``ml.member``), as a runner or a serverful job would: resident, idle until it is told to run. A
co-location first runs each member alone for a moment (the control), then all at once, and counts what lies wholly within the window.
The rows are appended as they are measured; started again, it goes on after the last one. It needs torch, numpy and, for a GPU,
nvidia-ml-py, and none of the platform's servers, so it runs on a bare GPU machine; ``smore profiles import`` takes its rows in.

On a GPU the models have their published sizes; on a **CPU partition**, which stands in for one, the small presets, with a training waiting
for its input for a fixed part of each iteration (``ModelCard.input_wait``) and functions at a lower priority than training. The inputs are
synthetic, in the shapes of the data sets of table I.
"""

import argparse
import itertools
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from ml import rows
from ml.plan import Amounts, Plan, Run
from ml.rows import BadRow, Colocation, Member, Place, Solo, Timing, Workload
from smore.place import cpu_partition, sharing
from zoo.model import NAMES, card

ROOT = Path(__file__).parents[1]
#: The zoo's names in the order of table I.
MODELS = NAMES
#: Seconds of a run alone, the reference.
SOLO_S = 4.0
#: Seconds of the control before each window, and the least number of runs in it.
CONTROL_S: Mapping[rows.Role, float] = {"training": 1.0, "function": 0.6}
CONTROL_RUNS = 4
#: Seconds in which all members run already, before the window.
WARM_UP_S = 0.4
#: Processes kept at the same time; the one used longest ago makes room.
PROCESSES = 30

#: As for runners and serverful jobs (worker/processes.py): the allocator keeps what it has, or it alone doubles some run times.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
}


class MemberFailed(Exception):
    """A workload could not be prepared or run; the message is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Shares of the device's time in a window, None where nothing tells; ``foreign`` by processes that are not measured."""

    total: float | None
    memory: float | None
    foreign: float | None


class Device(Protocol):
    """What is measured on. ``torch_device`` is for the members, ``preset`` the size of their models."""

    place: Place
    torch_device: str
    preset: str

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]": ...

    def watch(self, pids: Sequence[int]) -> "Watch": ...


class Watch(Protocol):
    """Usage from its making until it is asked."""

    def usage(self) -> Usage: ...


class CpuPartition:
    """Cores with pinned processes; functions run at ``nice`` beside a training at 0, all in one scheduling group."""

    torch_device = "cpu"
    preset = "cpu"

    def __init__(self, cores: Sequence[int], nice: int) -> None:
        self._cores, self._nice = tuple(cores), nice
        self.place = Place(
            device=cpu_partition(len(cores)),
            sharing_mode=sharing("time-slice", nice),
            driver=f"Linux {platform.release()}, torch {torch.__version__}",
            counter="cpu-time",
        )

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]":
        nice = self._nice if role == "function" else 0
        prefix = ["taskset", "-c", ",".join(map(str, self._cores)), "nice", "-n", str(nice)]
        return _popen([*prefix, *argv], {"OMP_NUM_THREADS": "1"})

    def watch(self, pids: Sequence[int]) -> Watch:
        return _CpuWatch(self._cores, pids)


class _CpuWatch:
    def __init__(self, cores: Sequence[int], pids: Sequence[int]) -> None:
        self._cores, self._pids = cores, pids
        self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        """Clock, processor seconds of the members, and of everybody on the cores."""
        tick = os.sysconf("SC_CLK_TCK")
        own = 0.0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own += (int(fields[11]) + int(fields[12])) / tick
        everybody = 0.0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *values = line.split()
            if name in {f"cpu{core}" for core in self._cores}:
                everybody += (sum(map(int, values[:8])) - int(values[3]) - int(values[4])) / tick
        return time.monotonic(), own, everybody

    def usage(self) -> Usage:
        then, now = self._began, self._read()
        whole = (now[0] - then[0]) * len(self._cores)
        own, everybody = (now[1] - then[1]) / whole, (now[2] - then[2]) / whole
        return Usage(total=min(1.0, own), memory=None, foreign=max(0.0, everybody - own))


class CudaGpu:
    """A GPU or MIG instance by index, shared by processes; NVML's utilisation: the share of time in which any kernel ran."""

    preset = "paper"

    def __init__(self, index: int) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self.torch_device = "cuda:0"
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or str(index)
        handle = pynvml.nvmlDeviceGetHandleByIndex
        self._mig = self._visible.startswith("MIG-")
        self._handle = handle(int(self._visible)) if self._visible.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(self._visible)
        self.place = Place(
            device=_text(pynvml.nvmlDeviceGetName(self._handle)),
            sharing_mode=sharing("mps" if _mps() else "time-slice"),
            driver=f"{_text(pynvml.nvmlSystemGetDriverVersion())}, torch {torch.__version__}",
            counter="none" if self._mig else "nvml-utilization",
        )

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]":  # noqa: ARG002 - the same for both roles
        return _popen(list(argv), {"CUDA_VISIBLE_DEVICES": self._visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})

    def watch(self, pids: Sequence[int]) -> Watch:  # noqa: ARG002 - NVML counts the device
        return _NvmlWatch(self._nvml, None if self._mig else self._handle)


class _NvmlWatch:
    """Samples NVML from a thread, five times a second."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        import threading

        self._samples: list[tuple[float, float]] = []
        self._end = threading.Event()
        self._nvml, self._handle = nvml, handle
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if handle is not None:
            self._thread.start()

    def _sample(self) -> None:
        while not self._end.wait(0.2):
            rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
            self._samples.append((rates.gpu / 100, rates.memory / 100))

    def usage(self) -> Usage:
        self._end.set()
        if self._handle is not None:
            self._thread.join()
        if not self._samples:
            return Usage(total=None, memory=None, foreign=None)
        total, memory = (statistics.fmean(values) for values in zip(*self._samples, strict=True))
        return Usage(total=total, memory=memory, foreign=None)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _mps() -> bool:
    """Whether an MPS daemon serves this machine's processes."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()  # noqa: S108 - NVIDIA's own path


def _popen(argv: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    own = {**inherited, **ALLOCATOR, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=own,
    )


class Process:
    """A member's process: one model in one role. Requests and answers are lines; ``ask`` may be called for several before ``answer``."""

    def __init__(self, device: Device, workload: Workload) -> None:
        argv = [sys.executable, "-m", "ml.member", "--model", workload.model, "--role", workload.role]
        self._process = device.start([*argv, "--preset", workload.preset, "--device", device.torch_device], workload.role)
        self.pid = self._process.pid
        self.answer()

    def ask(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Raises MemberFailed with what went wrong there."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MemberFailed(f"its process ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise MemberFailed(found["error"])
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Processes:
    """The processes of all members, by model, role and instance; started when first needed."""

    def __init__(self, device: Device, limit: int = PROCESSES) -> None:
        self._device, self._limit = device, limit
        self._found: dict[tuple[str, str, int], Process] = {}

    def of(self, members: Sequence[Workload]) -> list[Process]:
        """A process for each; workloads of the same model and role get different ones."""
        keys = []
        for workload in members:
            for instance in itertools.count():
                key = (workload.model, workload.role, instance)
                if key not in keys:
                    keys.append(key)
                    break
        for key, workload in zip(keys, members, strict=True):
            # Popped and put back: the last used stand last.
            self._found[key] = self._found.pop(key) if key in self._found else Process(self._device, workload)
            for old in [other for other in self._found if other not in keys][: max(0, len(self._found) - self._limit)]:
                self._found.pop(old).end()
        return [self._found[key] for key in keys]

    def drop(self, members: Sequence[Workload]) -> None:
        """End all processes of these models: one of them has failed, and which state it is in nobody knows."""
        for key in [key for key in self._found if key[:2] in {(w.model, w.role) for w in members}]:
            self._found.pop(key).end()

    def end(self) -> None:
        while self._found:
            self._found.popitem()[1].end()


class Campaign:
    """Measures runs and writes their rows."""

    def __init__(self, device: Device, out: Path, *, window_s: float, command: str) -> None:
        self._device, self._out, self._window_s, self._command = device, out, window_s, command
        self._processes = Processes(device)
        self._solo: dict[Workload, Solo] = {}
        self.done: set[Run] = set()
        #: Workloads that failed, with their words: runs with them are passed over.
        self.failed: dict[Workload, str] = {}
        for row in rows.read(out) if out.exists() else ():
            if row.place != device.place:
                raise BadRow(
                    f"{out.name} holds rows of {row.place.device} ({row.place.sharing_mode}, {row.place.driver}): use another file"
                )
            if isinstance(row, Solo):
                self._solo[row.workload] = row
            else:
                self.done.add(Run(members=tuple(member.workload for member in row.members), repeat=row.repeat))

    def end(self) -> None:
        self._processes.end()

    def measure(self, run: Run) -> None:
        """One co-location, after a run alone of each member that has none yet. A workload that fails is noted, not raised."""
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
            row = self._together(run)
        except (MemberFailed, BadRow) as error:
            # Not a workload's fault alone: it may be memory that lacks for all of them together.
            self._processes.drop(run.members)
            print(f"\npassed over: {' + '.join(map(str, run.members))}: {error}", file=sys.stderr)
            return
        rows.write(self._out, row)
        self.done.add(run)

    def _alone(self, workload: Workload) -> None:
        if workload in self._solo:
            return
        (process,) = self._processes.of([workload])
        process.ask(do="prepare", batch=workload.batch)
        found = process.answer()
        wait_s = 0.0
        if workload.role == "training" and self._device.torch_device == "cpu":
            share = card(workload.model).input_wait
            answer = self._run(process, workload, 0.0, CONTROL_S["training"], least=8)
            wait_s = answer["busy_s"] / len(answer["seconds"]) * share / (1 - share)
        watch = self._device.watch([process.pid])
        answer = self._run(process, workload, wait_s, SOLO_S)
        usage = watch.usage()
        solo = Solo(
            place=self._device.place,
            workload=workload,
            features=found["features"],
            timing=Timing.of(answer["seconds"]),
            utilisation=usage.total,
            memory_utilisation=usage.memory,
            device_memory_bytes=found["device_memory_bytes"],
            input_wait_s=wait_s,
            cold_s=found["cold_s"],
            kernels=found["kernels"],
            seconds=SOLO_S,
            at=_now(),
            command=self._command,
        )
        rows.write(self._out, solo)
        self._solo[workload] = solo

    def _run(self, process: Process, workload: Workload, wait_s: float, seconds: float, *, least: int = 1) -> dict[str, Any]:
        """Alone for so long, or a little longer where ``least`` runs did not fit."""
        while True:
            start = time.monotonic() + WARM_UP_S / 5
            process.ask(do="run", batch=workload.batch, wait_s=wait_s, **{"from": start, "until": start + seconds})
            answer = process.answer()
            if len(answer["seconds"]) >= least or seconds > 60:
                return answer
            seconds *= 2

    def _together(self, run: Run) -> Colocation:
        processes = self._processes.of(run.members)
        solos = [self._solo[workload] for workload in run.members]
        controls: dict[Workload, Timing] = {}
        for process, solo in zip(processes, solos, strict=True):
            if solo.workload in controls:
                continue
            seconds = max(CONTROL_S[solo.workload.role], (CONTROL_RUNS + 1) * solo.timing.mean)
            answer = self._run(process, solo.workload, solo.input_wait_s, seconds)
            controls[solo.workload] = Timing.of(answer["seconds"])
        start = time.monotonic() + WARM_UP_S
        until = start + self._window_s
        for process, solo in zip(processes, solos, strict=True):
            command = {"from": start, "until": until}
            process.ask(do="run", batch=solo.workload.batch, wait_s=solo.input_wait_s, **command)
        time.sleep(max(0.0, start - time.monotonic()))
        watch = self._device.watch([process.pid for process in processes])
        time.sleep(max(0.0, until - time.monotonic()))
        usage = watch.usage()
        answers = [process.answer() for process in processes]
        return Colocation(
            place=self._device.place,
            members=tuple(
                Member(workload=s.workload, timing=Timing.of(answer["seconds"]), control=controls[s.workload], solo=s.timing)
                for s, answer in zip(solos, answers, strict=True)
            ),
            utilisation=usage.total,
            disturbance=usage.foreign,
            seconds=self._window_s,
            at=_now(),
            repeat=run.repeat,
            command=self._command,
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def progress(done: int, total: int, seconds: float, left_s: float) -> str:
    """One line: how far, and how long still."""
    width = 30
    filled = width * done // max(1, total)
    return f"[{'#' * filled}{'.' * (width - filled)}] {done}/{total} runs, {seconds / 60:.1f} min, {left_s / 60:.1f} min to go"


def _cores(text: str) -> list[int]:
    cores = [int(core) for core in text.split(",")]
    missing = set(cores) - set(range(os.cpu_count() or 1))
    if missing:
        raise argparse.ArgumentTypeError(f"this machine has no core {', '.join(map(str, sorted(missing)))}")
    return cores


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ml.profile", description="Measure workloads alone and together on this machine's device.")
    parser.add_argument("--out", type=Path, required=True, help="file of rows (JSON lines); goes on where it ends")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--index", type=int, default=0, help="GPU number")
    parser.add_argument("--cores", type=_cores, default="0", help="CPU partition: its cores, by comma")
    parser.add_argument("--function-nice", type=int, default=5, help="CPU partition: priority of functions below training, 0 to 19")
    parser.add_argument("--minutes", type=float, help="stop in time; the most informative runs come first")
    parser.add_argument("--window", type=float, default=12.0, help="seconds of a co-location")
    parser.add_argument("--pairs", type=int, default=240, help="of the 1,024 training x function")
    parser.add_argument("--functions", type=int, default=64, help="function x function")
    parser.add_argument("--several", type=int, default=60, help="with two or more functions")
    parser.add_argument("--repeated", type=int, default=20, help="pairs measured again and again")
    parser.add_argument("--repeated-functions", type=int, default=10, help="pairs of functions measured again and again")
    parser.add_argument("--times", type=int, default=5, help="how often those are measured")
    parser.add_argument("--k-max", type=int, default=4, choices=range(2, 9), help="functions at a time")
    parser.add_argument("--models", default=",".join(MODELS), help="by comma")
    options = parser.parse_args(arguments)
    unknown = set(options.models.split(",")) - set(NAMES)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if not 0 <= options.function_nice <= 19:
        parser.error("--function-nice must be within 0 to 19")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    # The file's name alone: where it lay on that machine is nobody's business.
    words = [options.out.name if word == str(options.out) else word for word in arguments]
    command = "python -m ml.profile " + shlex.join(words)
    began = time.monotonic()
    device: Device = CpuPartition(options.cores, options.function_nice) if options.device == "cpu" else CudaGpu(options.index)

    def batches(model: str, role: rows.Role) -> Sequence[int]:
        preset = card(model).presets[device.preset]
        return preset.training_batches if role == "training" else preset.function_batches

    amounts = Amounts(
        pairs=options.pairs, functions=options.functions, several=options.several, repeated=options.repeated,
        repeated_functions=options.repeated_functions, times=options.times, k_max=options.k_max,
    )  # fmt: skip
    runs = Plan(options.models.split(","), device.preset, batches).runs(amounts)
    with ExitStack() as stack:
        try:
            campaign = Campaign(device, options.out, window_s=options.window, command=command)
        except BadRow as error:
            print(error, file=sys.stderr)
            return 2
        stack.callback(campaign.end)
        todo = [run for run in runs if run not in campaign.done]
        for measured, run in enumerate(todo):
            seconds = time.monotonic() - began
            each = seconds / measured if measured else options.window + 6
            if options.minutes is not None and seconds + each > options.minutes * 60:
                break
            print(
                "\r" + progress(len(campaign.done), len(runs), seconds, each * (len(todo) - measured)), end="", file=sys.stderr, flush=True
            )
            campaign.measure(run)
    print(file=sys.stderr)
    for workload, reason in campaign.failed.items():
        print(f"{workload} could not be measured: {reason}", file=sys.stderr)
    figures = {"runs_done": len(campaign.done), "runs_planned": len(runs), "workloads_failed": len(campaign.failed)}
    print(json.dumps({"figures": figures}))
    return 0


def stand_aside(options: argparse.Namespace) -> None:
    """
    Keep this process from disturbing what it measures.

    It leaves the partition's cores, and takes all members into one session, so that a kernel which divides time between sessions
    first (autogroup) weighs each process by itself, as it does within a container. The leader of a process group cannot leave its
    session, and need not.
    """
    with suppress(PermissionError):
        os.setsid()
    others = os.sched_getaffinity(0) - set(options.cores)
    if options.device == "cpu" and others:
        os.sched_setaffinity(0, others)


if __name__ == "__main__":
    stand_aside(parse(sys.argv[1:]))
    sys.exit(main(sys.argv[1:]))
