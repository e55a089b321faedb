"""
The device of a GPU worker behind one interface: a CUDA GPU, a MIG instance, or a CPU partition that stands in for one.

Used by the warm pool for memory and health, by jobs, and by the heartbeat for utilisation. What must stay true: a
driver that answers slowly delays no batch and no report, and this process has no context of the device.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final, Generic, Protocol, TypeVar

import pynvml

from smore.process import gpm, observability
from smore.process.device_name import NVML_COUNTER, cpu_partition, mps_daemon, refused, sharing
from smore.process.settings import WorkerSettings
from worker import proc

log = observability.logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """
    Parts of the device's time, 0..1, since the sample before. ``counters``: the values of the device's counters, by
    name.
    """

    total: float
    functions: float
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLoad:
    """
    The CPU seconds that the processes of this worker have used until ``at`` (monotonic seconds), for a device that does
    not measure by itself.
    """

    at: float
    functions_cpu_s: float
    jobs_cpu_s: float
    #: Process numbers of the runners.
    runners: Sequence[int]


class Device(Protocol):
    """Safe from any thread. Memory in MiB."""

    @property
    def description(self) -> str:
        """Model and size, the same for two devices of a kind."""

    @property
    def sharing_mode(self) -> str:
        """How its users share it; see smore/process/device_name.py."""

    @property
    def counter(self) -> str:
        """The name of the counter that measures utilisation."""

    @property
    def handler_device(self) -> str:
        """The argument of ``Handler.load``: ``cpu`` or ``cuda``."""

    @property
    def cores(self) -> Sequence[int]:
        """Cores to which runners and jobs are pinned; none = any."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables by which runners and jobs see this device and no other."""

    @property
    def memory_total_mib(self) -> float:
        """What processes may hold of it together, without what the driver keeps."""

    def start(self) -> None:
        """Begin to watch the device."""

    def close(self) -> None:
        """Watch it no more."""

    def health(self) -> str:
        """Why nothing can run on it, '' = something can."""

    def refresh(self) -> None:
        """Wait a moment for the next sample, so that :meth:`health` knows of an error of this moment."""

    def process_memory_mib(self, pid: int) -> float | None:
        """Memory of the device that a process holds; None where the device does not say."""

    def quick_memory_mib(self, pid: int) -> float | None:
        """The same, possibly too high, in microseconds; None where there is no such figure."""

    def runner_memory_mib(self, pid: int) -> float | None:
        """What a runner and its descendants hold, shared pages counted once; None where the device does not say."""

    def free_mib(self) -> float | None:
        """What no process holds, those of others counted too; None where the device does not say."""

    @property
    def looked_at(self) -> float:
        """The moment of its figures, monotonic seconds."""

    def computing(self) -> Mapping[int, float] | None:
        """MiB of every process that computes on it, by process number; None where the device does not say."""

    def utilisation(self, load: CpuLoad) -> Utilisation:
        """Since the last call."""


#: Most processes of a runner that are measured one by one.
_FAMILY: Final = 16


class CpuPartition:
    """
    Cores with pinned threads and a part of their time.

    Its time is ``share`` of its cores' time, so with neighbours idle it can be used beyond 1; that is reported as 1.
    """

    counter = "cpu-time"
    handler_device = "cpu"

    def __init__(self, config: WorkerSettings) -> None:
        named = [int(core) for core in config.device.split(",") if core.strip()]
        allowed = os.sched_getaffinity(0)
        missing = set(named) - set(range(os.cpu_count() or 1))
        if missing:
            raise ValueError(f"this machine has no core {', '.join(map(str, sorted(missing)))}")
        self.cores: Sequence[int] = tuple(sorted(named or allowed))
        self.share = config.share
        self.memory_total_mib = float(config.memory_mib)
        self.description = cpu_partition(len(self.cores), config.share)
        self.sharing_mode = sharing(config.sharing_mode, config.function_nice)
        # No process of a partition may use a GPU of the machine.
        self.environment: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": ""}
        self._last: CpuLoad | None = None

    def process_memory_mib(self, pid: int) -> float | None:
        return proc.private_mib(pid)

    def quick_memory_mib(self, pid: int) -> float | None:
        return proc.resident_mib(pid)

    def runner_memory_mib(self, pid: int) -> float | None:
        family = list(proc.tree(pid))
        if len(family) == 1:
            return proc.private_mib(pid)
        # Each takes milliseconds: of a large family some are measured, and the others count as much on average.
        measured = family[:_FAMILY]
        return proc.proportional_mib(measured) * len(family) / len(measured)

    def free_mib(self) -> float | None:
        return proc.available_mib()

    @property
    def looked_at(self) -> float:
        return time.monotonic()

    def start(self) -> None:
        """A partition needs no watching."""

    def close(self) -> None:
        """A partition holds nothing."""

    def health(self) -> str:
        return ""

    def refresh(self) -> None:
        """Every figure is taken when it is asked for."""

    def computing(self) -> Mapping[int, float] | None:
        # There is no list of the processes that compute on these cores.
        return None

    def utilisation(self, load: CpuLoad) -> Utilisation:
        last, self._last = self._last, load
        if last is None or load.at <= last.at:
            return Utilisation(total=0.0, functions=0.0)
        whole_s = self.share * len(self.cores) * (load.at - last.at)
        functions = max(0.0, load.functions_cpu_s - last.functions_cpu_s) / whole_s
        jobs = max(0.0, load.jobs_cpu_s - last.jobs_cpu_s) / whole_s
        return Utilisation(total=min(1.0, functions + jobs), functions=min(1.0, functions))


#: Xids after which a device needs a reset or another look before anything may run on it: uncorrectable memory errors
#: (48, 63, 64, 92, 95, 140), NVLink (74), a GPU that has fallen off its bus (79), its firmware (119, 120).
UNHEALTHY_XIDS: Final = frozenset({48, 63, 64, 74, 79, 92, 95, 119, 120, 140})
#: Seconds for which an answer of the driver is used while it gives no new one: a single error of it means nothing.
KEPT_S: Final = 5.0
#: Seconds that a refresh waits at most.
REFRESH_S: Final = 1.0
#: Samples in a heartbeat.
_SAMPLES: Final = 2
#: The instance of an event that concerns the whole GPU.
_WHOLE: Final = 0xFFFFFFFF


class _Last(Generic[T]):
    """The driver's last answer; None once that is older than :data:`KEPT_S`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answer: tuple[float, T] | None = None

    def put(self, value: T) -> None:
        self._answer = self._clock(), value

    def get(self) -> T | None:
        answer = self._answer
        return answer[1] if answer is not None and self._clock() - answer[0] <= KEPT_S else None


class CudaDevice:
    """
    A whole GPU or a MIG instance, by NVML index or UUID. One worker at a time has it (within one network namespace).

    One thread asks NVML, :data:`_SAMPLES` times a heartbeat; all other methods read its last answers. So a driver that
    answers slowly (it holds its lock while a large allocation is freed) delays no batch and no report.

    Utilisation is the share of SMs at work where the driver has GPM (Hopper and later), else NVML's share of time in
    which any kernel ran; of a MIG instance without GPM there is none: 0, by the counter ``none``.
    """

    handler_device = "cuda"
    cores: Sequence[int] = ()

    def __init__(self, config: WorkerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        pynvml.nvmlInit()
        name = config.device or "0"
        self._handle = (
            pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(name)
        )
        uuid = _text(pynvml.nvmlDeviceGetUUID(self._handle))
        self._mine = _reserve(uuid)
        self._clock = clock
        self._period_s = config.heartbeat_s / _SAMPLES
        #: Of a MIG instance: the GPU that it is part of, and its number there.
        self._parent, self._instance = _mig(self._handle) if uuid.startswith("MIG-") else (self._handle, None)
        self._sliced = uuid.startswith("MIG-")
        self.memory_total_mib = self._memory()[0]
        self.description = _text(pynvml.nvmlDeviceGetName(self._handle))
        self.sharing_mode = sharing(config.sharing_mode)
        self.environment: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._gpm = (
            gpm.Gpm(self._parent, self._instance)
            if self._parent is not None and gpm.Gpm.supported(self._parent)
            else None
        )
        self._events = self._listen()
        self._free_mib: _Last[float] = _Last(clock)
        self._held: _Last[Mapping[int, float]] = _Last(clock)
        self._shares: _Last[Mapping[int, float]] = _Last(clock)
        self._counters: _Last[Mapping[str, float]] = _Last(clock)
        self._sampled_us = 0
        self._began = self._asked_at = self._answered_at = clock()
        self._error = ""
        #: Why nothing can run on it until the driver says otherwise, and for as long as this worker lives.
        self._lost, self._failed = "", ""
        self._lock = threading.Lock()
        #: Since they were last asked for.
        self._totals: list[float] = []
        #: Samples that have ended.
        self._samples = 0
        self._sampled = threading.Condition()
        self._stopped = threading.Event()
        self._sampler: threading.Thread | None = None
        self.sample()

    def start(self) -> None:
        self._sampler = threading.Thread(target=self._watch, name="device", daemon=True)
        self._sampler.start()

    def close(self) -> None:
        self._stopped.set()
        if self._sampler is not None:
            # No longer: the driver may hang.
            self._sampler.join(self._period_s)
        self._mine.close()

    def _watch(self) -> None:
        while not self._stopped.wait(self._period_s):
            try:
                self.sample()
            except Exception:
                # Without this thread an unhealthy device would go unnoticed.
                log.exception("device not sampled")

    # ---- in the thread that asks the driver --------------------------------------------------------------------------

    def sample(self) -> None:
        """
        Ask the driver for everything, once. An error of one question does not keep the others from being asked.
        """
        lost = ""
        for ask in (self._ask_memory, self._ask_processes, self._ask_utilisation, self._ask_events):
            try:
                ask()
            except pynvml.NVMLError as error:
                self._error = str(error)
                if isinstance(error, _LOST):
                    lost = lost or str(error)
        self._lost = lost
        with self._sampled:
            self._samples += 1
            self._sampled.notify_all()

    def _memory(self) -> tuple[float, float]:
        """MiB: what processes may hold together, and what no process holds."""
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        return (memory.total - memory.reserved) / 2**20, memory.free / 2**20

    def _ask_memory(self) -> None:
        asked_at = self._clock()
        self._free_mib.put(self._memory()[1])
        self._asked_at, self._answered_at, self._error = asked_at, self._clock(), ""

    def _ask_processes(self) -> None:
        running = list(pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        try:
            clients = list(pynvml.nvmlDeviceGetMPSComputeRunningProcesses(self._handle))
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
            clients = []
        self._held.put({process.pid: (process.usedGpuMemory or 0) / 2**20 for process in (*running, *clients)})
        if clients and not self._failed:
            self._failed = (
                f"processes {', '.join(str(client.pid) for client in clients)} use it through MPS: {_MPS_WRONG}"
            )

    def _ask_utilisation(self) -> None:
        counters: dict[str, float] = {}
        if self._gpm is not None and (metrics := self._gpm.sample()) is not None:
            counters = {f"gpm-{_METRICS.get(name, name)}": round(share, 4) for name, share in metrics.items()}
        if not self._sliced:
            counters[NVML_COUNTER] = pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        counter = gpm.COUNTER if self._gpm is not None else NVML_COUNTER
        if counter in counters:
            self._counters.put(counters)
            with self._lock:
                self._totals.append(min(1.0, counters[counter]))
        if not self._sliced:
            self._ask_shares()

    def _ask_shares(self) -> None:
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, self._sampled_us)
        except pynvml.NVMLError_NotFound:
            samples = []  # no process has run since the sample before
        self._sampled_us = max((sample.timeStamp for sample in samples), default=self._sampled_us)
        by_process: dict[int, list[float]] = {}
        for sample in samples:
            by_process.setdefault(sample.pid, []).append(sample.smUtil / 100)
        self._shares.put({pid: fmean(shares) for pid, shares in by_process.items()})

    def _listen(self) -> Any:
        """NVML's set of events for Xid errors; None where it has none. A MIG instance has its GPU's."""
        if self._parent is None:
            return None
        try:
            events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(self._parent, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError as error:
            log.warning("no events of the device", error=str(error))
            return None
        return events

    def _ask_events(self) -> None:
        while self._events is not None:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError_Timeout:
                return  # nothing more has come
            xid, instance = int(event.eventData), int(event.gpuInstanceId)
            if self._instance is not None and instance not in (self._instance, _WHOLE):
                continue
            log.error("device error", xid=xid)
            # Other errors concern one process, which shows by its end or its lost context; no other process is blamed.
            if xid in UNHEALTHY_XIDS:
                self._failed = (
                    self._failed
                    or f"it reported Xid {xid}: look at the kernel's log, reset the GPU, then restart this worker"
                )

    # ---- for all -----------------------------------------------------------------------------------------------------

    def health(self) -> str:
        if self._failed:
            return self._failed
        if self._lost:
            return f"NVML says: {self._lost}"
        silent_s = self._clock() - self._answered_at
        if silent_s > KEPT_S:
            return f"NVML has not answered for {silent_s:.0f} s{f' ({self._error})' if self._error else ''}"
        return ""

    def refresh(self) -> None:
        if self._sampler is None:
            return
        with self._sampled:
            # The sample under way may have begun before.
            after = self._samples + 2
            self._sampled.wait_for(lambda: self._samples >= after or self._stopped.is_set(), REFRESH_S)

    @property
    def counter(self) -> str:
        if self._gpm is not None:
            # Without an answer there is no utilisation: 0 would read as a device that idles.
            silent = self._counters.get() is None and self._clock() - self._began > KEPT_S
            return "none" if silent else gpm.COUNTER
        return "none" if self._sliced else NVML_COUNTER

    def computing(self) -> Mapping[int, float] | None:
        return self._held.get() if proc.sees_all() else None

    def process_memory_mib(self, pid: int) -> float | None:
        # In a container NVML names the host's process numbers, or none at all; 0 is its figure for memory that it does
        # not know.
        return (self._held.get() or {}).get(pid) or None

    quick_memory_mib = runner_memory_mib = process_memory_mib

    def free_mib(self) -> float | None:
        return self._free_mib.get()

    @property
    def looked_at(self) -> float:
        return self._asked_at

    def utilisation(self, load: CpuLoad) -> Utilisation:
        """The functions' figure is their part of the time slices of all processes, as NVML gives it."""
        counters = self._counters.get()
        with self._lock:
            totals, self._totals = self._totals, self._totals[-1:]
        if counters is None or not totals:
            return Utilisation(total=0.0, functions=0.0)
        shares, total = self._shares.get() or {}, fmean(totals)
        runners = set(load.runners)
        functions = sum(share for pid, share in shares.items() if pid in runners)
        if self._gpm is not None and functions:
            functions = total * functions / sum(shares.values())
        return Utilisation(total=total, functions=min(total, functions), counters=counters)


#: What GPM's metrics are called among a device's counters.
_METRICS: Final = {
    "sm": gpm.COUNTER.removeprefix("gpm-"),
    "occupancy": "sm-occupancy",
    "tensor": "tensor-util",
    "dram": "dram-util",
}
_LOST: Final = (
    pynvml.NVMLError_GpuIsLost,
    pynvml.NVMLError_ResetRequired,
    pynvml.NVMLError_DriverNotLoaded,
    pynvml.NVMLError_LibRmVersionMismatch,
)
_MPS_WRONG: Final = (
    "this worker shares it by time slices, under MPS functions of different users would wait for one another and a"
    " fault of one would end the training; end the daemon (`echo quit | nvidia-cuda-mps-control`) and restart what"
    " uses it"
)


def _mig(handle: Any) -> tuple[Any, int | None]:
    """The GPU of a MIG instance and the instance's number there; (None, None) where the driver does not say."""
    try:
        return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle), int(
            pynvml.nvmlDeviceGetGpuInstanceId(handle)
        )
    except pynvml.NVMLError as error:
        log.warning("the driver does not name the GPU of this MIG instance", error=str(error))
        return None, None


def _reserve(uuid: str) -> socket.socket:
    """
    A socket whose name only one process can have; the kernel frees it with the process. Raises ValueError where another
    worker has the device.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0smore-gpu-{uuid}")
    except OSError as error:
        held.close()
        raise ValueError(
            f"another worker of this machine has {uuid}: two would each take the other's runners for strangers"
        ) from error
    return held


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def open_device(config: WorkerSettings) -> Device:
    """
    The device that the settings name. Raises ValueError, also where they name another sharing mode than the device's, and
    NVML's error where there is no such GPU.
    """
    if reason := refused(config.sharing_mode):
        raise ValueError(reason)
    if config.kind == "cpu":
        return CpuPartition(config)
    if (pipe := mps_daemon()) is not None:
        raise ValueError(f"an MPS daemon answers on {pipe}: {_MPS_WRONG}")
    return CudaDevice(config)


_affinity = threading.Lock()


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """
    Processes that this thread starts within the ``with`` start on these cores (none = the thread's own); the thread
    itself returns to its cores.
    """
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
