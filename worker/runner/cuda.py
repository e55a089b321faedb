"""
The CUDA device in a runner's process: the bound on torch's memory, the wait for its work, and the meaning of its errors.

Used by :mod:`worker.runner.runner` and :mod:`worker.runner.resident`. What must stay true: nothing here opens the
device's context, the first use by the function does. A context takes half a gigabyte of the device, which a function
that computes elsewhere must not cost.
"""

import re
import sys
from collections.abc import Callable
from typing import Any, Final

from smore.domain.invocation import Cause

MIB: Final = 2**20
#: torch's error where its allocator is refused memory, by the device or by its own bound.
_ASKED: Final = re.compile(r"Tried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)")
_UNITS_MIB: Final = {"bytes": 1 / MIB, "KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}
#: torch rounds the amount to hundredths.
_ROUNDED: Final = 0.005
#: Refused without torch's allocator: the context itself, a library's handle, pinned memory.
_REFUSED: Final = (
    "CUDA error: out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
#: cuDNN has no memory for any of its algorithms, or no algorithm.
_NO_ENGINE: Final = ("unable to find an engine", "Unable to find a valid cuDNN algorithm")
#: After these nothing on the device works any more in this process.
_LOST: Final = ("CUDA error:", "CUBLAS_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_EXECUTION_FAILED")
#: Errors of a call that leave the context as it was (CUDA's runtime API, cudaError_t). Any other one is fatal.
_HARMLESS: Final = (
    "invalid argument",
    "invalid configuration argument",
    "invalid device ordinal",
    "invalid device function",
    "invalid resource handle",
    "no kernel image is available",
    "too many resources requested",
    "operation not supported",
    "operation not permitted",
)


def _torch_cuda() -> Any:
    """torch.cuda with its device open, None where it is not."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def opened() -> bool:
    """Whether this process has a context of the device."""
    return _torch_cuda() is not None


def limit(memory_mib: float, then: Callable[[], None]) -> None:
    """
    Bound what torch takes of the device and call ``then``, both as soon as it has a context: at once where it has one.
    """
    import torch

    def apply() -> None:
        total = torch.cuda.get_device_properties(0).total_memory / MIB
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory_mib / total))
        then()

    torch.cuda._lazy_call(apply)  # type: ignore[no-untyped-call]  # torch's own way to set what needs a context, before there is one


def settle() -> None:
    """Wait until the device has done its work. Raises the error of any of it."""
    device = _torch_cuda()
    if device is not None:
        device.synchronize()


def held_mib() -> float:
    """The most that torch has held of the device."""
    device = _torch_cuda()
    return float(device.max_memory_reserved()) / MIB if device is not None else 0.0


def fault(error: BaseException, cap_mib: float) -> Cause | None:
    """
    What an exception means for the device, None = nothing: CONTEXT_LOST (this process cannot use it any more),
    OUT_OF_MEMORY (it asked for more than ``cap_mib``), DEVICE_FULL (others left it less than that).
    """
    text = f"{type(error).__name__}: {error}"
    device = _torch_cuda()
    reserved_mib, free_mib = 0.0, None
    if device is not None:
        try:
            # A lost context fails every later call, so also this one.
            device.synchronize()
            reserved_mib, free_mib = device.memory_reserved() / MIB, device.mem_get_info()[0] / MIB
        except RuntimeError:
            return Cause.CONTEXT_LOST
    return whose(text, cap_mib=cap_mib, reserved_mib=reserved_mib, free_mib=free_mib) or (
        Cause.CONTEXT_LOST if lost(text) else None
    )


def lost(text: str) -> bool:
    """Whether this error leaves the context of its process useless."""
    return any(mark in text for mark in _LOST) and not any(mark in text for mark in (*_HARMLESS, *_REFUSED))


def whose(text: str, *, cap_mib: float, reserved_mib: float, free_mib: float | None) -> Cause | None:
    """
    Who has taken the memory that was missing: OUT_OF_MEMORY = the function, DEVICE_FULL = others, None = the error is
    another one. ``reserved_mib`` is what torch holds, ``free_mib`` what the device has left, None where it could not
    even be opened.
    """
    if asked := _ASKED.search(text):
        most_mib = (float(asked[1]) + _ROUNDED) * _UNITS_MIB[asked[2]]
        return Cause.OUT_OF_MEMORY if reserved_mib + most_mib > cap_mib else Cause.DEVICE_FULL
    short = free_mib is None or free_mib < cap_mib - reserved_mib
    if any(mark in text for mark in _REFUSED):
        return Cause.DEVICE_FULL if short else Cause.OUT_OF_MEMORY
    return Cause.DEVICE_FULL if short and any(mark in text for mark in _NO_ENGINE) else None
