"""What a GPU worker is pinned to, behind one interface: a CUDA GPU, a MIG instance, or a CPU partition that stands in for one."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from smore.place import cpu_partition, sharing
from smore.settings import WorkerSettings
from worker import proc


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Parts of the device's time, 0..1, since the sample before."""

    total: float
    functions: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the processes of this worker have used so far, for a device that cannot say by itself."""

    at: float
    functions_cpu_s: float
    jobs_cpu_s: float
    #: Process numbers of the runners.
    runners: Sequence[int]


class Device(Protocol):
    @property
    def description(self) -> str:
        """What it is: model and size, without what tells two of a kind apart."""

    @property
    def sharing_mode(self) -> str:
        """How its users share it; see smore/place.py."""

    @property
    def counter(self) -> str:
        """The name of what utilisation is measured by."""

    @property
    def handler_device(self) -> str:
        """What ``Handler.load`` is given: ``cpu`` or ``cuda``."""

    @property
    def cores(self) -> Sequence[int]:
        """Cores to which runners and jobs are pinned; none = wherever."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What runners and jobs find in their environment so that they see this device and no other."""

    @property
    def memory_total_mib(self) -> float: ...

    def process_memory_mib(self, pid: int) -> float | None:
        """Device memory of a process; None where the device does not tell."""

    def quick_memory_mib(self, pid: int) -> float | None:
        """The same, from above and at next to no cost, for looking often; None where there is no such look."""

    def runner_memory_mib(self, pid: int) -> float | None:
        """What a runner holds with all that it has started, counted once; None where the device does not tell."""

    def free_mib(self) -> float | None:
        """What nobody on the device holds, whoever they are; None where it does not tell."""

    def faults(self) -> Sequence[int]:
        """Errors of the device since the look before, by their number (NVIDIA's Xid)."""

    def computing(self) -> Mapping[int, float] | None:
        """MiB of every process that computes on it, by number; None where the device cannot tell."""

    def utilisation(self, load: Load) -> Utilisation: ...


#: Processes of a runner that are measured one by one.
_FAMILY: Final = 16


class CpuPartition:
    """
    Cores with pinned threads and a part of their time.

    Its time is ``share`` of its cores' time, so with neighbours idle it can be used beyond 1; that is reported as 1.
    """

    counter = "cpu-time"
    handler_device = "cpu"

    def __init__(self, config: WorkerSettings) -> None:
        wanted = [int(core) for core in config.device.split(",") if core.strip()]
        allowed = os.sched_getaffinity(0)
        missing = set(wanted) - set(range(os.cpu_count() or 1))
        if missing:
            raise ValueError(f"this machine has no core {', '.join(map(str, sorted(missing)))}")
        self.cores: Sequence[int] = tuple(sorted(wanted or allowed))
        self.share = config.share
        self.memory_total_mib = float(config.memory_mib)
        self.description = cpu_partition(len(self.cores), config.share)
        self.sharing_mode = sharing(config.sharing_mode, config.function_nice)
        # Nothing here may take a GPU that happens to be in the machine.
        self.environment: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": ""}
        self._last: Load | None = None

    def process_memory_mib(self, pid: int) -> float | None:
        return proc.private_mib(pid)

    def quick_memory_mib(self, pid: int) -> float | None:
        return proc.resident_mib(pid)

    def runner_memory_mib(self, pid: int) -> float | None:
        family = list(proc.tree(pid))
        if len(family) == 1:
            return proc.private_mib(pid)
        # Each takes milliseconds: of many some stand for the others.
        seen = family[:_FAMILY]
        return proc.proportional_mib(seen) * len(family) / len(seen)

    def free_mib(self) -> float | None:
        return proc.available_mib()

    def faults(self) -> Sequence[int]:
        return ()

    def computing(self) -> Mapping[int, float] | None:
        # Whatever runs on these cores: there is no list of who means to compute.
        return None

    def utilisation(self, load: Load) -> Utilisation:
        last, self._last = self._last, load
        if last is None or load.at <= last.at:
            return Utilisation(total=0.0, functions=0.0)
        whole_s = self.share * len(self.cores) * (load.at - last.at)
        functions = max(0.0, load.functions_cpu_s - last.functions_cpu_s) / whole_s
        jobs = max(0.0, load.jobs_cpu_s - last.jobs_cpu_s) / whole_s
        return Utilisation(total=min(1.0, functions + jobs), functions=min(1.0, functions))


class CudaDevice:
    """
    A whole GPU or a MIG instance, by NVML index or UUID.

    NVML gives no utilisation of a MIG instance: 0 is reported there, by the counter ``none``.
    """

    handler_device = "cuda"
    cores: Sequence[int] = ()

    def __init__(self, config: WorkerSettings) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        name = config.device or "0"
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(name)
        uuid = _text(pynvml.nvmlDeviceGetUUID(self._handle))
        self.memory_total_mib = pynvml.nvmlDeviceGetMemoryInfo(self._handle).total / 2**20
        self.description = _text(pynvml.nvmlDeviceGetName(self._handle))
        self.sharing_mode = sharing(config.sharing_mode)
        self.counter = "nvml-utilization" if config.kind == "cuda" else "none"
        self.environment: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._sampled_us = 0
        self._events = self._listen()

    def computing(self) -> Mapping[int, float] | None:
        if not proc.sees_all():
            return None
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        return {process.pid: (process.usedGpuMemory or 0) / 2**20 for process in running}

    def process_memory_mib(self, pid: int) -> float | None:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        # In a container NVML names the host's process numbers, or none at all.
        found = [process.usedGpuMemory for process in running if process.pid == pid and process.usedGpuMemory]
        return found[0] / 2**20 if found else None

    def quick_memory_mib(self, pid: int) -> float | None:  # noqa: ARG002 - Device's signature
        return None

    def runner_memory_mib(self, pid: int) -> float | None:
        return self.process_memory_mib(pid)

    def free_mib(self) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free / 2**20)
        except self._nvml.NVMLError:
            return None

    def _listen(self) -> object | None:
        """NVML's set of events for Xid errors; None where it has none (a MIG instance, a driver that does not tell)."""
        try:
            events = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(self._handle, self._nvml.nvmlEventTypeXidCriticalError, events)
        except self._nvml.NVMLError:
            return None
        return events  # type: ignore[no-any-return]

    def faults(self) -> Sequence[int]:
        found: list[int] = []
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                break  # a timeout: nothing more has come
            found.append(int(event.eventData))
        return found

    def utilisation(self, load: Load) -> Utilisation:
        if self.counter == "none":
            return Utilisation(total=0.0, functions=0.0)
        try:
            total = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        except self._nvml.NVMLError:
            return Utilisation(total=0.0, functions=0.0)
        return Utilisation(total=total, functions=min(total, self._functions(frozenset(load.runners))))

    def _functions(self, runners: frozenset[int]) -> float:
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._sampled_us)
        except self._nvml.NVMLError:
            return 0.0  # no process has run since the sample before
        self._sampled_us = max((sample.timeStamp for sample in samples), default=self._sampled_us)
        return float(sum(sample.smUtil for sample in samples if sample.pid in runners) / 100)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def open_device(config: WorkerSettings) -> Device:
    """The device of the settings. Raises ValueError, or NVML's error where there is no such GPU."""
    return CpuPartition(config) if config.kind == "cpu" else CudaDevice(config)


_affinity = threading.Lock()


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """What this thread starts within the ``with`` is born on these cores (none = as it is); the thread itself comes back."""
    if not cores:
        yield
        return
    with _affinity:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
