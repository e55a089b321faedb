"""
As much of torch.cuda as a runner touches, without a GPU: ``python tests/support/fake_torch.py DESCRIPTOR`` is a runner
that finds it as its torch.

Errors have torch's own words, and one that is fatal is told by every later call, as CUDA does.
"""

import os
import resource
import socket
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from smore.handler import Handler

MIB = 2**20
ASSERT = (
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API"
    " call"
)


class AcceleratorError(RuntimeError):
    pass


class OutOfMemoryError(RuntimeError):
    pass


class Device:
    """torch.cuda; a GPU of 1000 MiB."""

    def __init__(self) -> None:
        self.initialized = False
        self.queued: list[Callable[[], None]] = []
        self.fatal = ""
        self.reserved = 0.0
        self.free = 1000.0
        self.fraction = 1.0

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self) -> None:
        if not self.initialized:
            for call in self.queued:
                call()
            self.initialized = True

    def _lazy_call(self, call: Callable[[], None]) -> None:
        if self.initialized:
            call()
        else:
            self.queued.append(call)

    def get_device_properties(self, _device: int) -> Any:
        return types.SimpleNamespace(total_memory=1000 * MIB)

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.fraction = fraction

    def synchronize(self) -> None:
        if self.fatal:
            raise AcceleratorError(self.fatal)

    def memory_reserved(self) -> float:
        return self.reserved * MIB

    max_memory_reserved = memory_reserved

    def mem_get_info(self) -> tuple[float, float]:
        return self.free * MIB, 1000 * MIB


cuda = Device()


class Obedient(Handler):
    """JSON: what each item's ``do`` asks for; it answers what it finds of its process."""

    example: ClassVar = {"do": ""}

    def load(self, device: str) -> None:
        self.device = device
        if "OPEN" in os.environ:
            cuda.init()
        if text := os.environ.get("REFUSED"):
            raise AcceleratorError(text)

    def predict(self, inputs: list[Any]) -> list[Any]:
        for item in inputs:
            match item["do"]:
                case "open":
                    cuda.init()
                case "assert":
                    cuda.fatal = ASSERT
                case "raise":
                    cuda.reserved, cuda.free = item.get("reserved", 0.0), item.get("free", 1000.0)
                    raise (OutOfMemoryError if item["text"].startswith("CUDA out of") else RuntimeError)(item["text"])
                case "take":
                    # The kernel has given it nothing yet; RLIMIT_DATA counts what could be written.
                    np.empty(item["mib"] << 20, np.uint8)
        return [
            {
                "device": self.device,
                "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "opened": cuda.initialized,
                "fraction": cuda.fraction,
                "data": resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY,
            }
        ] * len(inputs)


class Batches(Handler):
    """Tensors: how many rows each run so far has had, the latest last."""

    example: ClassVar = {"x": np.zeros((1, 2), np.float32)}

    def load(self, device: str) -> None:
        self.seen: list[int] = []
        self.fails = "FAILS" in os.environ

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        rows = inputs["x"].shape[0]
        self.seen.append(rows)
        if self.fails and rows > 1:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return {"seen": np.full((rows, 1), int("".join(map(str, self.seen))), np.int64)}


def main(descriptor: int) -> None:
    from worker.frames import Channel
    from worker.runner.runner import serve

    # Under its own name, so that handlers imported from here have the same device.
    sys.modules["tests.support.fake_torch"] = sys.modules["__main__"]
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda, zeros=lambda *_, **__: None)  # type: ignore[assignment]
    serve(Channel(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
