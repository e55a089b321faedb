"""
Moves the weights of a loaded handler from its device to pinned host memory and back: parking. The paper does not model
this state between warm and gone.

Used in the runner's process by :mod:`worker.runner.resident`; torch is imported by the first use. A handler names the
modules that may be moved (:meth:`~smore.handler.Handler.modules`). All weights of a handler lie in one block of host memory,
allocated for them and freed with them: torch's own pinned memory is rounded up to powers of two, and kept when nobody
needs it any more. What must stay true: after an error every weight is still readable.
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
    """Nothing can be moved; the message says why. Nothing has changed."""


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
        tensors = list(self._tensors())
        if not tensors or any(tensor.device.type != _DEVICE for tensor in tensors):
            raise NotParked("a module lies on no CUDA device: there is no device memory to give back")
        block = _Pinned(sum(map(_room, tensors)))
        try:
            hosts = views(tensors, block.bytes)
            for tensor, host in zip(tensors, hosts, strict=True):
                host.copy_(tensor.detach(), non_blocking=True)
            # The copies read device memory that is freed next.
            torch.cuda.synchronize()
        except BaseException:
            block.release()
            raise
        for tensor, host in zip(tensors, hosts, strict=True):
            self._away.append((tensor, tensor.device))
            tensor.data = host
        self._block = block
        torch.cuda.empty_cache()
        return block.size / MIB

    def restore(self) -> float:
        """
        Move them back to where they were and free the host memory. Milliseconds. After an error some are back; it may be
        called again.
        """
        import torch

        began = time.perf_counter()
        while self._away:
            tensor, device = self._away[-1]
            tensor.data = tensor.data.to(device, non_blocking=True)
            self._away.pop()
        # The memory that the copies read must stay until they are done.
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

    They are the process's own pages, so control groups and limits count them; the kernel gets them back when the last
    tensor in them is gone.
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
        """The device uses it no more."""
        import torch

        torch.cuda.check_error(self._runtime.cudaHostUnregister(self.bytes.data_ptr()))
        del self.bytes


def views(tensors: Sequence[Any], block: Any) -> list[Any]:
    """A tensor like each of them, one after the other in a block of bytes of at least their :func:`_room` together."""
    import torch

    views, start = [], 0
    for tensor in tensors:
        # The copy is dense, also where the tensor is not.
        strides = torch.empty_like(tensor, device="meta").stride()
        flat = block[start : start + tensor.nbytes].view(tensor.dtype)
        views.append(flat.as_strided(tensor.shape, strides))
        start += _room(tensor)
    return views


def _room(tensor: Any) -> int:
    return -(-int(tensor.nbytes) // _ALIGNED) * _ALIGNED
