"""
Weights of a loaded handler between its device and pinned host memory: what a parked runner does (digest A62).

For the runner's process; torch is imported by the first use. A handler says itself which modules may be moved
(:meth:`smore.Handler.modules`).
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

MIB: Final = 2**20


class NotParked(RuntimeError):
    """Nothing can be moved; the message says why. All is as it was."""


class Weights:
    """Parameters and buffers of modules, each tensor once, however often it is shared. For one thread."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self._modules = tuple(modules)
        #: Tensors that lie in host memory, with the device that they come from.
        self._away: list[tuple[Any, Any]] = []

    def park(self) -> float:
        """
        Move them to pinned host memory and give what they held back to the device. MiB of host memory.

        Raises NotParked where there is no module, or one that lies on no CUDA device.
        """
        import torch

        if not self._modules:
            raise NotParked("the handler names no modules")
        there = list(self._tensors())
        if not there or any(tensor.device.type != "cuda" for tensor in there):
            raise NotParked("a module lies on no CUDA device: there is no device memory to give back")
        moved = []
        for tensor in there:
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            host.copy_(tensor.detach(), non_blocking=True)
            moved.append((tensor, host, tensor.device))
        # The copies read device memory that is let go of next.
        torch.cuda.synchronize()
        for tensor, host, device in moved:
            tensor.data = host
            self._away.append((tensor, device))
        torch.cuda.empty_cache()
        return sum(host.nbytes for _, host, _ in moved) / MIB

    def restore(self) -> float:
        """Move them back to where they were. Milliseconds. After an error some are back; it may be called again."""
        import torch

        began = time.perf_counter()
        hosts = []
        while self._away:
            tensor, device = self._away[-1]
            # Until the copy is done somebody must hold the memory that it reads.
            hosts.append(tensor.data)
            tensor.data = tensor.data.to(device, non_blocking=True)
            self._away.pop()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3

    def _tensors(self) -> Iterator[Any]:
        seen: set[int] = set()
        for module in self._modules:
            for tensor in (*module.parameters(), *module.buffers()):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor
