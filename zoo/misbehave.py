"""
Functions that fail on demand, for the tests of the platform. Without a command they return their inputs; none needs torch.
"""

import os
import signal
import time
from typing import Any, ClassVar

from smore.handler import Handler

Values = list[dict[str, Any]]


class Crash(Handler):
    """
    ``{"do": "crash"}`` ends the process by a segmentation fault, ``{"do": "exit"}`` with status 3 and no clean-up.
    """

    example: ClassVar = {"do": "nothing"}

    def predict(self, inputs: Values) -> Values:
        for item in inputs:
            match item.get("do"):
                case "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "exit":
                    os._exit(3)
        return inputs


class Sleep(Handler):
    """``{"s": seconds}``: takes that long, a batch as long as its longest member."""

    example: ClassVar = {"s": 0.0}

    def predict(self, inputs: Values) -> Values:
        time.sleep(max((float(item.get("s", 0.0)) for item in inputs), default=0.0))
        return inputs


class Allocate(Handler):
    """
    ``{"mib": n}`` takes n MiB and holds them until it is unloaded, ``{"do": "allocate"}`` takes memory without end.
    """

    example: ClassVar = {"mib": 0}

    def load(self, device: str) -> None:  # noqa: ARG002 - it uses none
        self._held: list[bytes] = []

    def predict(self, inputs: Values) -> Values:
        for item in inputs:
            self._take(int(item.get("mib", 0)))
            while item.get("do") == "allocate":
                self._take(16)
        return inputs

    def _take(self, mib: int) -> None:
        # Not zeros: those would be pages that nobody has touched, which count for nothing.
        self._held.append(b"\x01" * (mib << 20))


class Raise(Handler):
    """``{"message": text}`` raises ValueError(text)."""

    example: ClassVar = {"id": 1}

    def predict(self, inputs: Values) -> Values:
        for item in inputs:
            if "message" in item:
                raise ValueError(item["message"])
        return inputs
