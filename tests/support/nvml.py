"""
A machine with GPUs for tests: the functions of the installed ``pynvml``, answered from a table. Constants, structures
and errors stay the real ones; a function that is not answered here raises ``NVMLError_NotSupported``.

In a test: ``fake = nvml.install(monkeypatch, Machine(gpus=[Gpu(uuid="GPU-a")]))``, then change ``fake.machine`` at
will. For another process: ``environment(folder, machine)`` is what it needs, and ``write`` changes its table while it
runs.
"""

import ctypes
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import pytest

#: Names the file with the table in another process.
VARIABLE: Final = "SMORE_TEST_NVML"
#: Stands first on the path of another process.
DRIVER: Final = Path(__file__).parent / "driver"
MIB: Final = 2**20


@dataclass
class Process:
    """
    ``mib`` None = the driver does not say. ``mps``: a client of the MPS server. ``sm``: share of time slices, 0..1.
    """

    pid: int
    mib: float | None = 0.0
    mps: bool = False
    sm: float = 0.0


@dataclass
class Instance:
    """A MIG GPU instance."""

    uuid: str
    id: int
    name: str = "NVIDIA H200 MIG 1g.18gb"
    total_mib: float = 18000.0
    reserved_mib: float = 10.0
    processes: list[Process] = field(default_factory=list)
    gpm: dict[str, float] | None = None
    #: Errors by the name of the call ("*" = every one): the part of NVML's name behind ``NVML_ERROR_``.
    errors: dict[str, str] = field(default_factory=dict)


@dataclass
class Gpu:
    """``gpm``: means as smore/process/gpm.py names them, shares 0..1; None = a GPU without GPM (before Hopper)."""

    uuid: str
    name: str = "NVIDIA H200"
    total_mib: float = 143_771.0
    #: What the driver keeps for itself; part of ``total_mib``.
    reserved_mib: float = 600.0
    #: None = what the processes hold.
    used_mib: float | None = None
    #: NVML's: the part of the time in which any kernel ran.
    utilisation: float = 0.0
    processes: list[Process] = field(default_factory=list)
    gpm: dict[str, float] | None = None
    #: Metrics whose ``nvmlReturn`` says that the driver did not measure them.
    gpm_failed: list[str] = field(default_factory=list)
    #: None = MIG is off.
    mig: list[Instance] | None = None
    #: That MIG will be on after the next reset; None = as it is.
    mig_pending: bool | None = None
    #: (Xid, GPU instance or None), from the first on; it only grows: every event set hears each of them once.
    events: list[tuple[int, int | None]] = field(default_factory=list)
    #: Errors by the name of the call ("*" = every one): the part of NVML's name behind ``NVML_ERROR_``.
    errors: dict[str, str] = field(default_factory=dict)
    compute_mode: int = 0
    persistence: bool = True
    remap_pending: bool = False
    remap_failed: bool = False
    pages_pending: bool = False
    #: ``NVML_GPU_FABRIC_STATE_*``; 0 = it has none.
    fabric: int = 0


@dataclass
class Machine:
    gpus: list[Gpu] = field(default_factory=list)
    driver: str = "580.95.05"
    #: As NVML gives it: 13000 = CUDA 13.0.
    cuda: int = 13_000
    #: Errors of calls that name no device, as :attr:`Gpu.errors`; ``nvmlInit`` is one.
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Handle:
    """Of a GPU, or of the MIG instance at a place."""

    gpu: int
    place: int | None = None


class Fake:
    """The functions. ``before`` is called with the name of every call; ``calls`` counts them."""

    def __init__(self, real: ModuleType, machine: Callable[[], Machine]) -> None:
        self._real = real
        self._table = machine
        self.before: Callable[[str], None] = lambda _: None
        self.calls: dict[str, int] = {}
        #: GPM samples that were taken and not freed, by address.
        self.samples: dict[int, tuple[object, Gpu | Instance | None]] = {}
        #: Event sets: how many events of each GPU were read.
        self._sets: list[dict[int, int]] = []

    @property
    def machine(self) -> Machine:
        return self._table()

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What takes the place of the real module's, by name."""
        real = {
            name: value
            for name, value in vars(self._real).items()
            if name.startswith("nvml") and inspect.isfunction(value)
        }
        return {name: self._of(name, getattr(self, name, None)) for name in real}

    def _of(self, name: str, own: Callable[..., Any] | None) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            self.before(name)
            if own is None:
                raise self._error("NOT_SUPPORTED")
            if (wrong := self.machine.errors.get(name) or self.machine.errors.get("*")) is not None:
                raise self._error(wrong)
            for one in (*arguments, *named.values()):
                if isinstance(one, Handle):
                    self._raise(name, one)
            return own(*arguments, **named)

        return call

    def _raise(self, name: str, handle: Handle) -> None:
        for one in (self.machine.gpus[handle.gpu], self._what(handle)):
            if (wrong := one.errors.get(name) or one.errors.get("*")) is not None:
                raise self._error(wrong)

    def _error(self, name: str) -> Exception:
        error: Exception = self._real.NVMLError(getattr(self._real, f"NVML_ERROR_{name}"))
        return error

    def _what(self, handle: Handle) -> Gpu | Instance:
        gpu = self.machine.gpus[handle.gpu]
        if handle.place is None:
            return gpu
        assert gpu.mig is not None
        return gpu.mig[handle.place]

    def _whole(self, handle: Handle) -> Gpu:
        """The GPU. Raises NotSupported for a MIG instance, as NVML does."""
        found = self._what(handle)
        if isinstance(found, Instance):
            raise self._error("NOT_SUPPORTED")
        return found

    # ---- the machine -------------------------------------------------------------------------------------------------

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.machine.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.machine.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.machine.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        if not 0 <= index < len(self.machine.gpus):
            raise self._error("INVALID_ARGUMENT")
        self._raise("nvmlDeviceGetHandleByIndex", Handle(index))
        return Handle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:
        for index, gpu in enumerate(self.machine.gpus):
            found = [Handle(index)] if gpu.uuid == uuid else []
            found += [Handle(index, place) for place, one in enumerate(gpu.mig or ()) if one.uuid == uuid]
            for handle in found:
                self._raise("nvmlDeviceGetHandleByUUID", handle)
                return handle
        raise self._error("NOT_FOUND")

    # ---- a device ----------------------------------------------------------------------------------------------------

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        return self._what(handle).uuid

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        return self._what(handle).name

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> Any:
        one = self._what(handle)
        held = sum(process.mib or 0.0 for process in one.processes)
        used = one.used_mib if isinstance(one, Gpu) and one.used_mib is not None else held
        free = max(0.0, one.total_mib - one.reserved_mib - used)
        if version is None:
            # The first version counts what the driver keeps as used.
            return self._real.c_nvmlMemory_t(
                total=_bytes(one.total_mib), free=_bytes(free), used=_bytes(used + one.reserved_mib)
            )
        return self._real.c_nvmlMemory_v2_t(
            version=version,
            total=_bytes(one.total_mib),
            reserved=_bytes(one.reserved_mib),
            free=_bytes(free),
            used=_bytes(used),
        )

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        return [self._process(one) for one in self._what(handle).processes if not one.mps]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        return [self._process(one) for one in self._what(handle).processes if one.mps]

    def _process(self, one: Process) -> Any:
        held = None if one.mib is None else _bytes(one.mib)
        return self._real.nvmlFriendlyObject(
            {"pid": one.pid, "usedGpuMemory": held, "gpuInstanceId": 0, "computeInstanceId": 0}
        )

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Any:
        return self._real.c_nvmlUtilization_t(gpu=round(100 * self._whole(handle).utilisation), memory=0)

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, timeStamp: int) -> list[Any]:
        found = [one for one in self._whole(handle).processes if one.sm]
        if not found:
            raise self._error("NOT_FOUND")
        return [
            self._real.c_nvmlProcessUtilizationSample_t(
                pid=one.pid, timeStamp=timeStamp + 1, smUtil=round(100 * one.sm)
            )
            for one in found
        ]

    def nvmlDeviceGetComputeMode(self, handle: Handle) -> int:
        return self._whole(handle).compute_mode

    def nvmlDeviceGetPersistenceMode(self, handle: Handle) -> int:
        return int(self._whole(handle).persistence)

    def nvmlDeviceGetRemappedRows(self, device: Handle) -> tuple[int, int, int, int]:
        gpu = self._whole(device)
        return 0, 0, int(gpu.remap_pending), int(gpu.remap_failed)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: Handle) -> int:
        return int(self._whole(device).pages_pending)

    def nvmlDeviceGetGpuFabricInfo(self, device: Handle, gpuFabricInfo: Any) -> int:
        gpu = self._whole(device)
        if not gpu.fabric:
            raise self._error("NOT_SUPPORTED")
        # ``byref`` of the structure.
        info = gpuFabricInfo._obj
        info.state, info.status = gpu.fabric, 0
        return int(self._real.NVML_SUCCESS)

    # ---- MIG ---------------------------------------------------------------------------------------------------------

    def nvmlDeviceGetMigMode(self, device: Handle) -> list[int]:
        gpu = self._whole(device)
        on = gpu.mig is not None
        return [int(on), int(on if gpu.mig_pending is None else gpu.mig_pending)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Handle) -> int:
        return len(self._whole(device).mig or ()) + 1

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Handle, index: int) -> Handle:
        if index >= len(self._whole(device).mig or ()):
            raise self._error("NOT_FOUND")
        return Handle(device.gpu, index)

    def nvmlDeviceIsMigDeviceHandle(self, device: Handle) -> int:
        return int(device.place is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Handle) -> Handle:
        if migDevice.place is None:
            raise self._error("INVALID_ARGUMENT")
        return Handle(migDevice.gpu)

    def nvmlDeviceGetGpuInstanceId(self, device: Handle) -> int:
        found = self._what(device)
        if isinstance(found, Gpu):
            raise self._error("NOT_SUPPORTED")
        return found.id

    # ---- events ------------------------------------------------------------------------------------------------------

    def nvmlEventSetCreate(self) -> int:
        self._sets.append({})
        return len(self._sets) - 1

    def nvmlEventSetFree(self, eventSet: int) -> None:
        self._sets[eventSet].clear()

    def nvmlDeviceRegisterEvents(self, handle: Handle, eventTypes: int, eventSet: int) -> None:
        self._sets[eventSet][handle.gpu] = len(self._whole(handle).events)

    def nvmlEventSetWait_v2(self, eventSet: int, timeoutms: int) -> Any:
        none = 0xFFFFFFFF
        for index, read in self._sets[eventSet].items():
            self._raise("nvmlEventSetWait_v2", Handle(index))
            events = self.machine.gpus[index].events
            if read < len(events):
                self._sets[eventSet][index] = read + 1
                xid, instance = events[read]
                return self._real.c_nvmlEventData_t(
                    eventType=self._real.nvmlEventTypeXidCriticalError,
                    eventData=xid,
                    gpuInstanceId=none if instance is None else instance,
                    computeInstanceId=none,
                )
        raise self._error("TIMEOUT")

    # ---- GPM ---------------------------------------------------------------------------------------------------------

    def nvmlGpmQueryDeviceSupport(self, device: Handle) -> Any:
        gpu = self._whole(device)
        has = gpu.gpm is not None or any(one.gpm is not None for one in gpu.mig or ())
        return self._real.c_nvmlGpmSupport_t(version=1, isSupportedDevice=int(has))

    def nvmlGpmSampleAlloc(self) -> Any:
        memory = ctypes.create_string_buffer(16)
        address = ctypes.addressof(memory)
        self.samples[address] = memory, None
        return ctypes.cast(memory, self._real.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, gpmSample: Any) -> None:
        self._known(gpmSample)
        del self.samples[_address(gpmSample)]

    def nvmlGpmSampleGet(self, device: Handle, gpmSample: Any) -> Any:
        gpu = self._whole(device)
        if gpu.gpm is None:
            raise self._error("NOT_SUPPORTED")
        return self._taken(gpmSample, gpu)

    def nvmlGpmMigSampleGet(self, device: Handle, gpuInstanceId: int, gpmSample: Any) -> Any:
        of = next((one for one in self._whole(device).mig or () if one.id == gpuInstanceId), None)
        if of is None or of.gpm is None:
            raise self._error("NOT_SUPPORTED")
        return self._taken(gpmSample, of)

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> Any:
        first, second = (self._known(one) for one in (metricsGet.sample1, metricsGet.sample2))
        if metricsGet.version != self._real.NVML_GPM_METRICS_GET_VERSION or first is None or second is None:
            raise self._error("INVALID_ARGUMENT")
        names = {
            self._real.NVML_GPM_METRIC_SM_UTIL: "sm",
            self._real.NVML_GPM_METRIC_SM_OCCUPANCY: "occupancy",
            self._real.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor",
            self._real.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram",
            self._real.NVML_GPM_METRIC_GRAPHICS_UTIL: "graphics",
        }
        failed = second.gpm_failed if isinstance(second, Gpu) else []
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            name = names.get(metric.metricId, "")
            has = name in (second.gpm or {}) and name not in failed
            metric.nvmlReturn = self._real.NVML_SUCCESS if has else self._real.NVML_ERROR_NOT_SUPPORTED
            metric.value = 100 * (second.gpm or {})[name] if has else 0.0
        return metricsGet

    def _taken(self, sample: Any, of: Gpu | Instance) -> Any:
        self._known(sample)
        self.samples[_address(sample)] = self.samples[_address(sample)][0], of
        return sample

    def _known(self, sample: Any) -> Gpu | Instance | None:
        try:
            return self.samples[_address(sample)][1]
        except KeyError:
            raise self._error("INVALID_ARGUMENT") from None


def _bytes(mib: float) -> int:
    return int(mib * MIB)


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0


def install(monkeypatch: "pytest.MonkeyPatch", machine: Machine) -> Fake:
    """Every user of ``pynvml`` in this process sees that machine until the test ends."""
    import pynvml

    fake = Fake(pynvml, lambda: machine)
    for name, function in fake.functions().items():
        monkeypatch.setattr(pynvml, name, function)
    return fake


def environment(folder: Path, machine: Machine) -> dict[str, str]:
    """
    What another process needs in its environment to see that machine; its own PYTHONPATH goes behind what is named
    here.
    """
    path = folder / "nvml.json"
    write(path, machine)
    behind = os.environ.get("PYTHONPATH", "")
    return {VARIABLE: str(path), "PYTHONPATH": f"{DRIVER}{os.pathsep}{behind}" if behind else str(DRIVER)}


def write(path: Path, machine: Machine) -> None:
    """Change the table that other processes see."""
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(machine))
    new.replace(path)


def read(path: Path) -> Callable[[], Machine]:
    """The table in a file, as it is now."""
    known: list[tuple[tuple[int, int], Machine]] = []

    def machine() -> Machine:
        info = path.stat()
        version = info.st_ino, info.st_mtime_ns
        if not known or known[0][0] != version:
            known[:] = [(version, msgspec.json.decode(path.read_bytes(), type=Machine))]
        return known[0][1]

    return machine
