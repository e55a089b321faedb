"""
What a worker prepares for its GPU before it has runners: the driver's device files and the cores of the GPU's socket.
Used by the composition root (worker/app.py).
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from smore.process import observability

log = observability.logger(__name__)

#: Made by a set-uid program at the first use of CUDA since the machine's start; a runner may not gain the rights for
#: that.
UNIFIED_MEMORY: Final = Path("/dev/nvidia-uvm")
_MODPROBE: Final = ("nvidia-modprobe", "-c0", "-u")
_MODPROBE_S: Final = 30.0
_WORD_BITS: Final = 64


def make_device_files(device: Path = UNIFIED_MEMORY, run: Callable[..., object] = subprocess.run) -> None:
    """
    Make the device files that a process without rights needs to open CUDA. A failure is logged; the doctor checks for
    it too.
    """
    if device.exists():
        return
    try:
        run(_MODPROBE, check=True, capture_output=True, timeout=_MODPROBE_S)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("a device file of the driver is missing and cannot be made", file=str(device), error=str(error))


def cores_of(mask: Iterable[int]) -> frozenset[int]:
    """The cores of NVML's mask: words of 64 bits, the lowest first."""
    return frozenset(
        index * _WORD_BITS + bit for index, word in enumerate(mask) for bit in range(_WORD_BITS) if word >> bit & 1
    )


def beside(uuid: str, allowed: Iterable[int], nvml: Any) -> Sequence[int]:
    """
    Those of the allowed cores that are on the socket of a GPU or MIG instance; all of them where NVML does not say, or
    names none of them.

    ``nvml`` is the module pynvml.
    """
    cores = frozenset(allowed)
    words = -(-(os.cpu_count() or 1) // _WORD_BITS)
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if uuid.startswith("MIG"):
            handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        near = cores_of(nvml.nvmlDeviceGetCpuAffinity(handle, words))
    except nvml.NVMLError as error:
        log.info("NVML does not say which cores are beside the GPU", gpu=uuid, error=str(error))
        near = frozenset()
    return sorted(cores & near or cores)
