"""The doctor's checks of this machine's GPUs: driver, CUDA, device files, memory faults, modes."""

import ctypes
import importlib.util
import runpy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from smore.local.findings import Finding, Site, broken, ok, warning
from smore.process.device_name import mps_daemon

_COMPUTE_MODES: Final = {1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def nvml(place: Site) -> Iterator[Finding]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if place.has("dev/nvidiactl"):
            fix = (
                "the device files exist and the library does not answer: reload the driver; in a container, restart the"
                " container"
            )
            yield broken("NVML", str(error), fix)
        else:
            yield ok("NVML", "no NVIDIA driver: CPU partitions stand in for GPUs")
        return
    try:
        driver, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        yield ok("NVML", f"driver {driver.decode() if isinstance(driver, bytes) else driver}, {count} GPUs")
        if count:
            yield _cuda(pynvml.nvmlSystemGetCudaDriverVersion_v2())
            yield from _gpu_host(place)
        for index in range(count):
            yield from _gpu(index)
    finally:
        pynvml.nvmlShutdown()


def torch_cuda() -> str | None:
    """
    The CUDA version that the installed torch was built for; None = a build without CUDA. torch itself is not imported.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = runpy.run_path(str(Path(spec.origin).parent / "version.py")).get("cuda")
    return version if isinstance(version, str) else None


def _cuda(newest: int) -> Finding:
    """``newest``: the newest CUDA version that the driver supports, 13000 = 13.0."""
    supported, built = f"{newest // 1000}.{newest % 1000 // 10}", torch_cuda()
    if built is None:
        return broken(
            "CUDA",
            f"the driver supports CUDA {supported}, and torch is a build without it",
            "install torch's build for CUDA",
        )
    if int(built.partition(".")[0]) > newest // 1000:
        versions = f"torch is built for CUDA {built}, and the driver supports {supported} at most"
        return broken(
            "CUDA",
            versions,
            "install a newer driver, or torch's build for an older CUDA (cu126, cu128): every load fails",
        )
    return ok("CUDA", f"torch is built for {built}, the driver supports {supported}")


def _gpu_host(place: Site) -> Iterator[Finding]:
    if not place.has("dev/nvidia-uvm"):
        fix = "`nvidia-modprobe -c0 -u`, or nvidia-persistenced: the first function after a boot would fail"
        yield warning("GPU device files", "no /dev/nvidia-uvm", fix)
    if place.kernel("proc/sys/vm/overcommit_memory") == "2":
        yield broken(
            "GPU address space",
            "vm.overcommit_memory=2",
            "sysctl vm.overcommit_memory=1: CUDA reserves more than it uses",
        )
    if (pipe := mps_daemon()) is not None:
        fix = "`echo quit | nvidia-cuda-mps-control`: no GPU worker starts while it runs"
        yield broken("MPS daemon", f"answers on {pipe}", fix)


def _gpu(index: int) -> Iterator[Finding]:
    """Checks of one GPU of this machine. What its driver does not report is not a finding."""
    import pynvml

    name = f"GPU {index}"
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        yield broken(name, str(error), "look at `dmesg` for its Xid; reset it, or restart the machine")
        return
    with suppress(pynvml.NVMLError):
        if (mode := pynvml.nvmlDeviceGetComputeMode(gpu)) != pynvml.NVML_COMPUTEMODE_DEFAULT:
            yield broken(
                f"{name} compute mode",
                _COMPUTE_MODES.get(mode, str(mode)),
                f"`nvidia-smi -i {index} -c DEFAULT`: one process has it",
            )
    with suppress(pynvml.NVMLError):
        current, pending = pynvml.nvmlDeviceGetMigMode(gpu)
        if current != pending:
            yield warning(
                f"{name} MIG",
                "its mode changes at the next reset",
                f"`nvidia-smi --gpu-reset -i {index}` when nothing runs there",
            )
    with suppress(pynvml.NVMLError):
        if not pynvml.nvmlDeviceGetPersistenceMode(gpu):
            yield warning(
                f"{name} persistence",
                "off",
                "run nvidia-persistenced: without it each first process waits for the driver",
            )
    with suppress(pynvml.NVMLError):
        _, _, waits, failed = pynvml.nvmlDeviceGetRemappedRows(gpu)
        if failed:
            yield broken(f"{name} memory", "faulty rows could not be remapped", "replace it")
        elif waits:
            yield warning(
                f"{name} memory",
                "rows are to be remapped",
                f"`nvidia-smi --gpu-reset -i {index}` when nothing runs there",
            )
    with suppress(pynvml.NVMLError):
        if pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu):
            yield warning(
                f"{name} memory",
                "pages are to be retired",
                f"`nvidia-smi --gpu-reset -i {index}` when nothing runs there",
            )
    with suppress(pynvml.NVMLError):
        info = pynvml.c_nvmlGpuFabricInfo_t()
        pynvml.nvmlDeviceGetGpuFabricInfo(gpu, ctypes.byref(info))
        ready = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == pynvml.NVML_SUCCESS
        if info.state != pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED and not ready:
            yield broken(
                f"{name} fabric", "not ready", "start nvidia-fabricmanager: CUDA cannot begin without it (error 802)"
            )
