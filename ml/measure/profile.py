"""
Measures workloads alone and together on this machine's device: ``python -m ml.profile --out rows.jsonl``.

Every model runs in its own process (``ml.measure.member``), as a runner or a serverful job would: resident, and idle
until it gets a command. A co-location first runs each member alone for a moment (the control), then all at once, and
counts the runs that lie wholly within the window. Rows are appended as they are measured; a second start continues
after the last one. The program needs torch, numpy and, for a GPU, nvidia-ml-py, and none of the platform's servers, so
it runs on a bare GPU machine. ``smore profiles import`` reads its rows.

On a GPU the models have their published sizes. On a **CPU partition**, which stands in for a GPU, they have the small
presets, a training waits for its input for a fixed part of each iteration (``ModelCard.input_wait``), and functions run
at a lower priority than the training. On a GPU a training waits only if ``--input-wait`` says so; without it, the rows
measure the sharing of a saturated device. The inputs are synthetic, in the shapes of the data sets of table I.

The utilisation of a GPU is the mean share of busy SMs by NVML's GPM (Hopper and later, MIG instances too), elsewhere
the share of time in which any kernel ran, by NVML. ``Place.counter`` names the source. A file can be continued on any
machine of the same device, sharing mode and counter; each row names its own driver.

The module is longer than 500 lines: the devices, the members' processes and the campaign make one program that a bare
GPU machine runs.
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
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ml.measure import rows
from ml.measure.plan import Amounts, Plan, Run
from ml.measure.rows import BadRow, Colocation, Member, Place, Solo, Timing, Workload
from smore.process.device_name import NVML_COUNTER, cpu_partition, mps_daemon, sharing
from zoo.model import NAMES, card
from zoo.train import input_wait

if TYPE_CHECKING:
    from smore.process.gpm import Gpm

ROOT = Path(__file__).parents[2]
#: The zoo's models in the order of table I.
MODELS = NAMES
#: Seconds of a run alone, which gives the reference.
SOLO_S = 4.0
#: Seconds of the control before each window, and its least number of runs.
CONTROL_S: Mapping[rows.Role, float] = {"training": 1.0, "function": 0.6}
CONTROL_RUNS = 4
#: Seconds that all members run before the window begins.
WARM_UP_S = 0.4
#: Processes that are kept; above that, the least recently used one ends.
PROCESSES = 30
#: Seconds between two samples of NVML.
SAMPLE_S = 0.2
#: NVML reports the utilisation of the past second, so samples of a window's first second are dropped. Seconds.
LAG_S = 1.0

#: As for runners and serverful jobs (worker/runner/runner.py): the allocator keeps its memory; returning it to the
#: system doubles some run times.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
}


class BadDevice(Exception):
    """The device cannot be measured; the message says why."""


class MemberFailed(Exception):
    """A workload could not be prepared or run; the message is that of its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """
    Shares of the device's time in a window, None = unknown; ``foreign``: by processes that are not measured;
    ``counters``: as in :class:`ml.measure.rows.Solo`.
    """

    total: float | None
    memory: float | None
    foreign: float | None
    counters: Mapping[str, float] = field(default_factory=dict)


class Device(Protocol):
    """The device to measure on. ``torch_device`` is for the members, ``preset`` the size of their models."""

    place: Place
    torch_device: str
    preset: str

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]": ...

    def watch(self, pids: Sequence[int]) -> "Watch": ...

    def counters(self, pid: int) -> Mapping[str, float]:
        """Figures of the device and of a process on it, as :class:`ml.measure.rows.Solo` has them."""


class Watch(Protocol):
    """Usage of the device from the watch's creation until :meth:`usage` is called."""

    def usage(self) -> Usage: ...


class CpuPartition:
    """Pinned cores. Functions run at ``nice`` beside a training at 0, all in one scheduling group."""

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

    def counters(self, pid: int) -> Mapping[str, float]:  # noqa: ARG002 - Device's signature
        return {}


class _CpuWatch:
    def __init__(self, cores: Sequence[int], pids: Sequence[int]) -> None:
        self._cores, self._pids = cores, pids
        self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        """Clock, processor seconds of the members, and processor seconds of all processes on the cores."""
        tick = os.sysconf("SC_CLK_TCK")
        own = 0.0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own += (int(fields[11]) + int(fields[12])) / tick
        all_processes = 0.0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *values = line.split()
            if name in {f"cpu{core}" for core in self._cores}:
                all_processes += (sum(map(int, values[:8])) - int(values[3]) - int(values[4])) / tick
        return time.monotonic(), own, all_processes

    def usage(self) -> Usage:
        before, now = self._began, self._read()
        whole = (now[0] - before[0]) * len(self._cores)
        own, all_processes = (now[1] - before[1]) / whole, (now[2] - before[2]) / whole
        return Usage(total=min(1.0, own), memory=None, foreign=max(0.0, all_processes - own))


class CudaGpu:
    """
    A GPU by index, or the first device of CUDA_VISIBLE_DEVICES (also a MIG instance), shared by processes.

    Raises BadDevice for a GPU with MIG instances: CUDA would silently use the first of them.
    """

    preset = "paper"

    def __init__(self, index: int) -> None:
        import pynvml

        from smore.process import gpm

        self._nvml = pynvml
        pynvml.nvmlInit()
        self.torch_device = "cuda:0"
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or str(index)
        handle = pynvml.nvmlDeviceGetHandleByIndex
        self._mig = self._visible.startswith("MIG-")
        self._handle = (
            handle(int(self._visible)) if self._visible.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(self._visible)
        )
        if not self._mig and self._divided():
            raise BadDevice(
                "this GPU is divided into MIG instances: name one of them (nvidia-smi -L) in CUDA_VISIBLE_DEVICES"
            )
        #: GPM counts on a handle of the whole GPU, with the number of the MIG instance on it.
        self._whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle) if self._mig else self._handle
        self._instance: int | None = pynvml.nvmlDeviceGetGpuInstanceId(self._handle) if self._mig else None
        self._gpm = gpm.Gpm.supported(self._whole)
        self.place = Place(
            device=_text(pynvml.nvmlDeviceGetName(self._handle)),
            sharing_mode=sharing("mps" if mps_daemon() is not None else "time-slice"),
            driver=f"{_text(pynvml.nvmlSystemGetDriverVersion())}, torch {torch.__version__}",
            counter=gpm.COUNTER if self._gpm else "none" if self._mig else NVML_COUNTER,
        )

    def _divided(self) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(self._handle)[0] == self._nvml.NVML_DEVICE_MIG_ENABLE)
        except self._nvml.NVMLError:
            return False  # the GPU does not support MIG

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]":  # noqa: ARG002 - the same for both roles
        # A kernel profile must not leave the profiler in a process that is measured afterwards.
        environment = {"CUDA_VISIBLE_DEVICES": self._visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TEARDOWN_CUPTI": "1"}
        return _popen(list(argv), environment)

    def watch(self, pids: Sequence[int]) -> Watch:  # noqa: ARG002 - the device is counted as a whole
        from smore.process.gpm import Gpm

        rates = None if self._mig else _NvmlRates(self._nvml, self._handle)
        return _GpuWatch(rates, Gpm(self._whole, self._instance) if self._gpm else None)

    def counters(self, pid: int) -> Mapping[str, float]:
        nvml = self._nvml
        queries: Mapping[str, Callable[[], float]] = {
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(self._whole) / 1e3,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._whole, nvml.NVML_CLOCK_SM),
        }
        counters: dict[str, float] = {}
        for name, query in queries.items():
            with suppress(nvml.NVMLError):
                counters[name] = float(query())
        with suppress(nvml.NVMLError):
            memory_by_pid = {
                process.pid: process.usedGpuMemory
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            }
            # In a container NVML may name other process numbers, or no memory.
            if memory_by_pid.get(pid):
                counters["process_memory_bytes"] = float(memory_by_pid[pid])
        return counters


class _NvmlRates:
    """Samples NVML's utilisation five times a second, in a thread."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._samples: list[tuple[float, float]] = []
        self._end = threading.Event()
        self._error = ""
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        began = time.monotonic()
        while not self._end.wait(SAMPLE_S):
            try:
                rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
            except self._nvml.NVMLError as error:
                self._error = str(error)
                return
            if time.monotonic() - began >= LAG_S:
                self._samples.append((rates.gpu / 100, rates.memory / 100))

    def means(self) -> tuple[float, float] | None:
        """
        Mean utilisation of kernels and of memory; None if the window is shorter than the lag, or after an error
        (printed).
        """
        self._end.set()
        self._thread.join()
        if self._error:
            print(f"\nNVML's utilisation is left out of this row: {self._error}", file=sys.stderr)
            return None
        if not self._samples:
            return None
        total, memory = (statistics.fmean(values) for values in zip(*self._samples, strict=True))
        return total, memory


class _GpuWatch:
    def __init__(self, rates: _NvmlRates | None, gpm: "Gpm | None") -> None:
        self._rates, self._gpm = rates, gpm

    def usage(self) -> Usage:
        shares: Mapping[str, float] = {}
        if self._gpm is not None:
            shares = self._gpm.sample() or {}
            self._gpm.close()
            if not shares:
                print("\nGPM returned no shares for this row", file=sys.stderr)
        rates = self._rates.means() if self._rates is not None else None
        total = shares.get("sm") if self._gpm is not None else rates[0] if rates else None
        counters = {**shares, **({"nvml": rates[0]} if rates else {})}
        return Usage(total=total, memory=rates[1] if rates else None, foreign=None, counters=counters)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


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
    """
    The process of a member: one model in one role. Requests and replies are lines; ``ask`` may be called for several
    processes before ``answer``.

    The process loads its model in the background; :meth:`loaded` waits for it.
    """

    def __init__(self, device: Device, workload: Workload) -> None:
        argv = [sys.executable, "-m", "ml.measure.member", "--model", workload.model, "--role", workload.role]
        self._process = device.start(
            [*argv, "--preset", workload.preset, "--device", device.torch_device], workload.role
        )
        self.pid = self._process.pid
        self._loaded = False
        #: Whether it has run since it returned its memory to the device.
        self.ran = False

    def loaded(self) -> None:
        """Wait until the model is loaded. Raises MemberFailed at the first call if it could not be loaded."""
        if not self._loaded:
            self._loaded = True
            self.answer()

    def ask(self, **command: object) -> None:
        assert self._process.stdin is not None
        self.ran = self.ran or command["do"] != "rest"
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise MemberFailed(f"its process ended with status {self._process.wait()}") from None

    def answer(self) -> dict[str, Any]:
        """The reply to the oldest request. Raises MemberFailed with the error of the process."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MemberFailed(f"its process ended with status {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise MemberFailed(reply["error"])
        return reply

    def end(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Processes:
    """The processes of all members by model, role and instance. They start when first needed."""

    def __init__(self, device: Device, limit: int = PROCESSES) -> None:
        self._device, self._limit = device, limit
        self._processes: dict[tuple[str, str, int], Process] = {}

    def start(self, workloads: Iterable[Workload]) -> None:
        """Start one process for each model and role, up to the limit. All load at the same time."""
        for workload in workloads:
            key = (workload.model, workload.role, 0)
            if key not in self._processes and len(self._processes) < self._limit:
                self._processes[key] = Process(self._device, workload)

    def of(self, members: Sequence[Workload]) -> list[Process]:
        """One process for each workload; workloads of the same model and role get different ones."""
        keys = []
        for workload in members:
            for instance in itertools.count():
                key = (workload.model, workload.role, instance)
                if key not in keys:
                    keys.append(key)
                    break
        for key, workload in zip(keys, members, strict=True):
            # Popped and inserted again, so that the most recently used are last.
            self._processes[key] = (
                self._processes.pop(key) if key in self._processes else Process(self._device, workload)
            )
            for old in [other for other in self._processes if other not in keys][
                : max(0, len(self._processes) - self._limit)
            ]:
                self._processes.pop(old).end()
        for key in keys:
            self._processes[key].loaded()
        self._rest([key for key, process in self._processes.items() if key not in keys and process.ran])
        return [self._processes[key] for key in keys]

    def _rest(self, keys: Sequence[tuple[str, str, int]]) -> None:
        """Let them return their memory to the device; a process that fails is ended."""
        for key in keys:
            try:
                self._processes[key].ask(do="rest")
                self._processes[key].answer()
            except MemberFailed:
                self._processes.pop(key).end()
            else:
                self._processes[key].ran = False

    def drop(self, members: Sequence[Workload]) -> None:
        """End all processes of these models: after a failure their state is unknown."""
        for key in [key for key in self._processes if key[:2] in {(w.model, w.role) for w in members}]:
            self._processes.pop(key).end()

    def end(self) -> None:
        while self._processes:
            self._processes.popitem()[1].end()


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
            input_wait(self._wait, card(workload.model), self._device.torch_device)
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
            row = self._together(run)
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
        processes = self._processes.of(run.members)
        solos = [self._solo[workload] for workload in run.members]
        for process, workload in zip(processes, run.members, strict=True):
            process.ask(do="ready", batch=workload.batch)
        for process in processes:
            process.answer()
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
                Member(
                    workload=s.workload,
                    timing=Timing.of(answer["seconds"]),
                    control=controls[s.workload],
                    solo=s.timing,
                )
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
    """One line of progress: runs done, minutes used and minutes left."""
    width = 30
    filled = width * done // max(1, total)
    return (
        f"[{'#' * filled}{'.' * (width - filled)}] {done}/{total} runs, {seconds / 60:.1f} min, {left_s / 60:.1f} min"
        " to go"
    )


def _cores(text: str) -> list[int]:
    cores = [int(core) for core in text.split(",")]
    missing = set(cores) - set(range(os.cpu_count() or 1))
    if missing:
        raise argparse.ArgumentTypeError(f"this machine has no core {', '.join(map(str, sorted(missing)))}")
    return cores


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ml.profile", description="Measure workloads alone and together on this machine's device."
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="file of rows (JSON lines); an existing file is continued"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--index", type=int, default=0, help="GPU number")
    parser.add_argument("--cores", type=_cores, default="0", help="CPU partition: its cores, separated by commas")
    parser.add_argument(
        "--function-nice", type=int, default=5, help="CPU partition: priority of functions below training, 0 to 19"
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
    parser.add_argument("--repeated", type=int, default=20, help="number of pairs measured repeatedly")
    parser.add_argument(
        "--repeated-functions", type=int, default=10, help="number of pairs of functions measured repeatedly"
    )
    parser.add_argument("--times", type=int, default=5, help="measurements of each repeated pair")
    parser.add_argument("--k-max", type=int, default=4, choices=range(2, 9), help="most functions at a time")
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas")
    options = parser.parse_args(arguments)
    unknown = set(options.models.split(",")) - set(NAMES)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if not 0 <= options.function_nice <= 19:
        parser.error("--function-nice must be within 0 to 19")
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
    command = "python -m ml.profile " + shlex.join(words)
    began = time.monotonic()
    try:
        device: Device = (
            CpuPartition(options.cores, options.function_nice) if options.device == "cpu" else CudaGpu(options.index)
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
        repeated=options.repeated,
        repeated_functions=options.repeated_functions,
        times=options.times,
        k_max=options.k_max,
        positions=options.positions,
        pairs_first=options.order == "pairs",
    )
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
        for measured, run in enumerate(todo):
            seconds = time.monotonic() - began
            each = seconds / measured if measured else options.window + 6
            if options.minutes is not None and seconds + each > options.minutes * 60:
                break
            print(
                "\r" + progress(len(campaign.done), len(runs), seconds, each * (len(todo) - measured)),
                end="",
                file=sys.stderr,
                flush=True,
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


if __name__ == "__main__":
    stand_aside(parse(sys.argv[1:]))
    sys.exit(main(sys.argv[1:]))
