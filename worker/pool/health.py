"""
Whether anything can run on the device of this worker, used by the pool to tell a broken device from a broken function.

What must stay true: a function is never blamed for what a device did while :meth:`DeviceHealth.reason` names a reason.
"""

import math
import re
from typing import Final

from smore.process import observability
from worker.device.device import Device
from worker.pool.instance import Instance
from worker.pool.residents import Residents

log = observability.logger(__name__)

#: Errors of a process that cannot begin to use CUDA at all, whatever it runs (torch/cuda/__init__.py and CUDA's runtime
#: errors).
_NO_DEVICE: Final = re.compile(
    r"No CUDA GPUs are available|Found no NVIDIA driver|NVIDIA driver on your system is too old|Unexpected error from"
    r" cudaGetDeviceCount"
    r"|CUDA unknown error|CUDA driver initialization failed|no CUDA-capable device is detected|CUDA driver version is"
    r" insufficient"
    r"|CUDA error: (initialization error|unknown error|system not yet initialized|OS call failed|system has"
    r" unsupported)"
    r"|Torch not compiled with CUDA enabled|CUDA-capable device\(s\) is/are busy or unavailable"
)


def names_no_device(error: Exception) -> bool:
    """Whether the error says that its process could not begin to use the device."""
    return bool(_NO_DEVICE.search(str(error)))


class DeviceHealth:
    """The device's own health, and what standby runners have shown of it. Takes the pool's lock to change."""

    def __init__(self, device: Device, residents: Residents) -> None:
        self._device = device
        self._residents = residents
        #: Why no process can begin to use the device, '' = one can.
        self._unusable = ""

    @property
    def unusable(self) -> bool:
        """Whether the last process that tried to begin using the device could not."""
        return bool(self._unusable)

    def reason(self) -> str:
        """Why nothing can run on the device, '' = something can. Any thread, without the lock."""
        return self._device.health() or self._unusable

    def failed(self) -> bool:
        """
        Whether the device is at fault for an error of this moment. Asks the driver anew, which may take milliseconds.
        """
        self._device.refresh()
        return bool(self.reason())

    def full(self, instance: Instance) -> bool:
        """
        Whether others may have left a function less of the device than it declares, as its process says. To be called
        while that process still holds what it has.
        """
        self._device.refresh()
        free_mib = self._device.free_mib() if self._device.handler_device == "cuda" else math.inf
        return free_mib is None or free_mib < instance.spec.memory_mib

    def set_unusable(self, reason: str) -> None:
        """Note why no process can begin to use the device, '' = one could."""
        with self._residents.lock:
            if reason == self._unusable:
                return
            self._unusable = reason
            self._residents.changed()
        if reason:
            log.error("no process can begin to use the device", reason=reason)
        else:
            log.info("the device can be used again")
