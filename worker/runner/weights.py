"""
Weights of a loaded handler between its device and pinned host memory: what a parked runner does (digest A62).

For the runner's process; torch is imported by the first use. A handler says itself which modules may be moved
(:meth:`smore.Handler.modules`). All of a handler's weights lie in one block, taken for them and given back with them:
torch's own pinned memory is rounded up to powers of two, and kept when nobody needs it any more.
"""

import mmap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

MIB: Final = 2**20
#: The kind of device that weights are moved from.
_DEVICE: Final = "cuda"
#: Every tensor begins at a multiple of this, as torch's allocators have it.
_ALIGNED: Final = 64


class NotParked(RuntimeError):
    """Nothing can be moved; the message says why. All is as it was."""


class Weights:
    """Parameters and buffers of modules, each tensor once, however often it is shared. For one thread."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self._modules = tuple(modules)
        #: Tensors that lie in host memory, with the device that they come from.
        self._away: list[tuple[Any, Any]] = []
        self._block: _Pinned | None = None

    def park(self) -> float:
        """
        Move them to pinned host memory and give what they held back to the device. MiB of host memory.

        Raises NotParked where there is no module, or one that lies on no CUDA device, MemoryError where the host has no
        memory for them.
        """
        import torch

        if not self._modules:
            raise NotParked("the handler names no modules")
        there = list(self._tensors())
        if not there or any(tensor.device.type != _DEVICE for tensor in there):
            raise NotParked("a module lies on no CUDA device: there is no device memory to give back")
        block = _Pinned(sum(map(_room, there)))
        try:
            hosts = views(there, block.bytes)
            for tensor, host in zip(there, hosts, strict=True):
                host.copy_(tensor.detach(), non_blocking=True)
            # The copies read device memory that is let go of next.
            torch.cuda.synchronize()
        except BaseException:
            block.release()
            raise
        for tensor, host in zip(there, hosts, strict=True):
            self._away.append((tensor, tensor.device))
            tensor.data = host
        self._block = block
        torch.cuda.empty_cache()
        return block.size / MIB

    def restore(self) -> float:
        """
        Move them back to where they were, and give the host its memory back. Milliseconds. After an error some are
        back; it may be called again.
        """
        import torch

        began = time.perf_counter()
        while self._away:
            tensor, device = self._away[-1]
            tensor.data = tensor.data.to(device, non_blocking=True)
            self._away.pop()
        # Until the copies are done somebody must hold the memory that they read.
        torch.cuda.synchronize()
        if self._block is not None:
            self._block.release()
            self._block = None
        return (time.perf_counter() - began) * 1e3

    def _tensors(self) -> Iterator[Any]:
        seen: set[int] = set()
        for module in self._modules:
            for tensor in (*module.parameters(), *module.buffers()):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor


class _Pinned:
    """
    Memory of the host that the device reads and writes itself: whole pages, ``size`` bytes of them.

    They are the process's own pages, so that control groups and limits count them, and the kernel's when the last
    tensor in them has gone.
    """

    def __init__(self, nbytes: int) -> None:
        import torch

        self.size = -(-max(1, nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            pages = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"the host has no {self.size >> 20} MiB for weights: {error}") from error
        self.bytes = torch.frombuffer(pages, dtype=torch.uint8)
        self._runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.cuda.check_error(self._runtime.cudaHostRegister(self.bytes.data_ptr(), self.size, 0))

    def release(self) -> None:
        import torch

        torch.cuda.check_error(self._runtime.cudaHostUnregister(self.bytes.data_ptr()))
        del self.bytes


def views(tensors: Sequence[Any], block: Any) -> list[Any]:
    """A tensor like each of them, one after the other in a block of bytes of at least their :func:`_room` together."""
    import torch

    found, at = [], 0
    for tensor in tensors:
        # Where memory is not dense in it, the copy is.
        strides = torch.empty_like(tensor, device="meta").stride()
        flat = block[at : at + tensor.nbytes].view(tensor.dtype)
        found.append(flat.as_strided(tensor.shape, strides))
        at += _room(tensor)
    return found


def _room(tensor: Any) -> int:
    return -(-int(tensor.nbytes) // _ALIGNED) * _ALIGNED
