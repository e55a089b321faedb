"""
Activity of a GPU's SMs, by NVML's GPM (GPU Performance Monitoring): Hopper and later, whole GPUs and MIG instances.

NVML's ``utilization.gpu`` is the part of the time in which any kernel ran: a training alone reads nearly 1, however few
SMs it keeps busy. GPM counts SMs.
"""

import math
from typing import Any, Final

import pynvml

#: Name of the counter in reports and on rows.
COUNTER: Final = "gpm-sm-util"
_METRICS: Final = {
    "sm": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "graphics": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
}


class Gpm:
    """
    Means between two samples of one device. NVML must be initialised.

    ``handle``: NVML's of the GPU. ``instance``: the id of a MIG GPU instance; ``handle`` is then that of its parent.
    """

    def __init__(self, handle: Any, instance: int | None = None) -> None:
        self._handle = handle
        self._instance = instance
        self._last: Any = self._take()

    @staticmethod
    def supported(handle: Any) -> bool:
        """Whether this GPU has the counters."""
        try:
            return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        except pynvml.NVMLError:
            return False

    def sample(self) -> dict[str, float] | None:
        """
        Means since the previous call, or since this object was made: ``sm``, ``occupancy``, ``tensor``, ``dram``,
        ``graphics`` as shares, 0..1. A metric that the driver does not give is left out; None where it gives none.
        """
        now = self._take()
        if now is None:
            return None
        before, self._last = self._last, now
        if before is None:
            return None
        try:
            asked = pynvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
            asked.sample1, asked.sample2 = before, now
            for place, number in enumerate(_METRICS.values()):
                asked.metrics[place].metricId = number
            pynvml.nvmlGpmMetricsGet(asked)
        except pynvml.NVMLError:
            return None
        finally:
            _free(before)
        means = {
            name: asked.metrics[place].value / 100
            for place, name in enumerate(_METRICS)
            if asked.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(asked.metrics[place].value)
        }
        return means or None

    def close(self) -> None:
        if self._last is not None:
            _free(self._last)
            self._last = None

    def _take(self) -> Any:
        """A sample; None where the driver gives none."""
        try:
            sample = pynvml.nvmlGpmSampleAlloc()
        except pynvml.NVMLError:
            return None
        try:
            if self._instance is None:
                return pynvml.nvmlGpmSampleGet(self._handle, sample)
            return pynvml.nvmlGpmMigSampleGet(self._handle, self._instance, sample)
        except pynvml.NVMLError:
            _free(sample)
            return None


def _free(sample: Any) -> None:
    try:
        pynvml.nvmlGpmSampleFree(sample)
    except pynvml.NVMLError:
        return  # the driver is gone, and its memory with it
