"""
What a function's process may hold of the machine's memory, the most that it has held, and how it is told that this was
too little. The bound is set in the runner (worker/runner/runner.py); the worker words the ends that the kernel brought
about.
"""

import errno
import os
import resource
from dataclasses import dataclass
from typing import Final

from smore.domain.function import NEAR_BOUND
from worker import proc

#: What native libraries say where they get no memory: C++ (ONNX runtime raises it as an error of its own), torch, ONNX
#: runtime's and OpenCV's allocators.
_REFUSED: Final = ("std::bad_alloc", "DefaultCPUAllocator", "Failed to allocate memory", "Insufficient memory")
#: Kept until the process has no other memory left, so that it can say so.
SPARE_BYTES: Final = 2**20
#: The field of function.yaml to raise.
_FIELD: Final = "`resources.gpu_memory`"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBound:
    """
    All in MiB: what a function declares, what it may hold of the machine's memory therefore (on a CPU partition the
    same), and what the platform adds.
    """

    declared_mib: float = 0.0
    host_mib: float = 0.0
    beyond_mib: float = 0.0

    @property
    def limit_mib(self) -> float:
        return self.host_mib + self.beyond_mib

    def exceeded(self, held_mib: float | None = None) -> str:
        """
        That it was too little, in a sentence. ``held_mib``: the most that the process has held, None = the kernel or the
        worker has ended it at its bound.
        """
        parts, field = f"{_FIELD} {self.declared_mib:g} MiB", _FIELD
        if self.host_mib != self.declared_mib:
            parts, field = f"SMORE_WORKER__HOST_MEMORY_MIB and twice {_FIELD}", f"{_FIELD}, or that setting"
        bound = (
            f"The instance may hold {self.limit_mib:.0f} MiB of the machine's memory ({parts} + {self.beyond_mib:.0f})"
        )
        if held_mib is None:
            return f"{bound}; it reached that: raise {field}."
        if held_mib >= NEAR_BOUND * self.limit_mib:
            return f"{bound}; it held {held_mib:.0f} MiB and asked for more: raise {field}."
        return (
            f"{bound}; it held {held_mib:.0f} MiB at the most. Where it asked for more than the rest at once, raise {field};"
            " it may also have raised this error itself."
        )


def device_exceeded(memory_mib: float) -> str:
    """That what a function declares of a GPU was too little, in a sentence."""
    return f"The instance may hold {memory_mib:g} MiB of the GPU ({_FIELD}); it asked for more: raise it."


def refused(error: BaseException) -> bool:
    """Whether an error says that the machine's memory was refused."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(mark in str(error) for mark in _REFUSED)


class HostMemory:
    """The machine's memory in this process, within ``bound`` once :meth:`limit` was called."""

    def __init__(self, bound: HostBound) -> None:
        self.bound = bound
        self._spare = bytearray()
        self._began()

    def _began(self) -> None:
        pid = os.getpid()
        self._data, self._held_mib = proc.data_bytes(pid), proc.resident_mib(pid)

    def limit(self) -> None:
        """From now on this process may take so much more of the machine's memory."""
        self._spare = bytearray(SPARE_BYTES)
        self._began()
        # RLIMIT_AS would count the libraries' address space too, gigabytes of it; RLIMIT_DATA counts what the process may
        # write to alone.
        limit = self._data + int(self.bound.limit_mib * 2**20)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        # A function that takes too much gets a MemoryError; it must not leave a core file of that size either.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def spend_spare(self) -> None:
        """Make room for the answer of a process that has no memory left."""
        self._spare = bytearray()

    def peak_mib(self) -> float:
        """
        The most that it has held since then, an estimate: pages that it had written to, or what it may write to now where
        that is more.
        """
        pid = os.getpid()
        may_write_mib = (proc.data_bytes(pid) - self._data) / 2**20
        return max(0.0, may_write_mib, proc.peak_mib(pid) - self._held_mib)
