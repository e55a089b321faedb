"""
The device that a profiling run measures on: how its processes start there, and how much of it they use.

The utilisation of a GPU is the mean share of busy SMs by NVML's GPM (Hopper and later, MIG instances too), elsewhere
the share of time in which any kernel ran, by NVML. ``DeviceMode.counter`` names the source.
"""

import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ml import rows
from ml.rows import DeviceMode
from smore.process.device_name import NVML_COUNTER, cpu_partition, mps_daemon, sharing

if TYPE_CHECKING:
    from smore.process.gpm import Gpm


ROOT = Path(__file__).parents[2]

#: Seconds between two samples of NVML.
SAMPLE_S = 0.2
#: NVML reports the utilisation of the past second, so samples of a window's first second are dropped. Seconds.
LAG_S = 1.0
#: As for runners and serverful jobs (worker/runner/runner.py): the allocator keeps its memory; returning it to the
#: system doubles some run times.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_ARENA_MAX": "1",
}


class BadDevice(Exception):
    """The device cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """
    Shares of the device's time in a window, None = unknown; ``foreign``: by processes that are not measured;
    ``counters``: as in :class:`ml.rows.Solo`.
    """

    total: float | None
    memory: float | None
    foreign: float | None
    counters: Mapping[str, float] = field(default_factory=dict)


class Device(Protocol):
    """The device to measure on. ``torch_device`` is for the members, ``preset`` the size of their models."""

    place: DeviceMode
    torch_device: str
    preset: str

    def start(self, argv: Sequence[str], role: rows.Role) -> "subprocess.Popen[str]": ...

    def watch(self, pids: Sequence[int]) -> "Watch": ...

    def counters(self, pid: int) -> Mapping[str, float]:
        """Figures of the device and of a process on it, as :class:`ml.rows.Solo` has them."""


class Watch(Protocol):
    """Usage of the device from the watch's creation until :meth:`usage` is called."""

    def usage(self) -> Usage: ...


class CpuPartition:
    """
    Pinned cores. Functions run at ``nice`` beside a training at 0, all in one scheduling group. ``share``: the part of
    the cores' time that belongs to the partition; it is measured while those that share the cores with it are idle.
    """

    torch_device = "cpu"
    preset = "cpu"

    def __init__(self, cores: Sequence[int], nice: int, share: float = 1.0) -> None:
        self._cores, self._nice = tuple(cores), nice
        self.place = DeviceMode(
            device=cpu_partition(len(cores), share),
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
        self.place = DeviceMode(
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
    # torch's profiler writes to the terminal below this level, into the line of progress.
    quiet = {"KINETO_LOG_LEVEL": "99"}
    own = {**inherited, **ALLOCATOR, **quiet, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=own,
    )
