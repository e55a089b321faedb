"""Functions for the tests of the worker."""

import asyncio
import logging
import os
import signal
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from smore.handler import Handler

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


class Sum(Handler):
    """
    Tensors: ``{"a": FP32 [n, 3], "k": INT64 [n, 1]}`` to the row sums of ``a`` times ``k`` and the size of the batch it
    was in.
    """

    example: ClassVar = {"a": np.ones((1, 3), np.float32), "k": np.ones((1, 1), np.int64)}

    def predict(self, inputs: Arrays) -> Arrays:
        rows = inputs["a"].shape[0]
        total = inputs["a"].sum(axis=1, keepdims=True) * inputs["k"].astype(np.float32)
        return {"total": total, "rows": np.full((rows,), rows, np.int32)}


class Wide(Handler):
    """Tensors: ``{"x": FP32 [n, 50000]}``, answered as they came: 200 kB a row."""

    example: ClassVar = {"x": np.zeros((1, 50_000), np.float32)}

    def predict(self, inputs: Arrays) -> Arrays:
        return {"x": inputs["x"]}


class WrongRows(Handler):
    example: ClassVar = {"a": np.ones((1, 3), np.float32)}

    def predict(self, inputs: Arrays) -> Arrays:
        rows = inputs["a"].shape[0]
        return {"a": inputs["a"] if rows == 1 else inputs["a"][:1]}


class Hasty(Handler):
    """JSON: takes half a second for its example, and next to nothing for anything else."""

    example: ClassVar = {"s": 0.5}

    def predict(self, inputs: list[Any]) -> list[Any]:
        time.sleep(max(item.get("s", 0.0) for item in inputs))
        return inputs


class Notes(Handler):
    """JSON: prints that its unload was called; answers its process number and where it works."""

    example: ClassVar = {}

    def predict(self, inputs: list[Any]) -> list[Any]:
        Path("note").write_text("mine")
        return [{"pid": os.getpid(), "cwd": str(Path.cwd())} for _ in inputs]

    def unload(self) -> None:
        print("unloaded", os.getpid())


class Awaits(Handler):
    """JSON: waits ``after_s`` seconds for each value, for all of a batch at once; says how many waited together."""

    example: ClassVar = {"after_s": 0}

    def load(self, device: str) -> None:
        self._loops: set[int] = set()

    async def predict(self, inputs: list[Any]) -> list[Any]:
        self._loops.add(id(asyncio.get_running_loop()))
        assert len(self._loops) == 1
        started = 0

        async def wait(after_s: float) -> None:
            nonlocal started
            started += 1
            await asyncio.sleep(after_s)

        await asyncio.gather(*(wait(item["after_s"]) for item in inputs))
        return [{"together": started} for _ in inputs]


class Unencodable(Handler):
    """JSON: answers what is no JSON."""

    example: ClassVar = {}

    def predict(self, inputs: list[Any]) -> list[Any]:
        return [{"when": object()} for _ in inputs]


@dataclass
class Person:
    income: float


@dataclass
class Share:
    share: float


class Typed(Handler):
    """JSON: one divided by ``income``; of 0 an output that is not as declared."""

    example: ClassVar = {"income": 1}

    def predict(self, inputs: list[Person]) -> list[Share]:
        return [Share(1 / each.income if each.income else "infinite") for each in inputs]  # type: ignore[arg-type]


class Broken(Handler):
    example: ClassVar = {}

    def load(self, device: str) -> None:
        raise FileNotFoundError("there are no weights")

    def predict(self, inputs: list[Any]) -> list[Any]:
        return inputs


class Fragile(Handler):
    """
    JSON: what each item's ``do`` asks for: crash, raise, hang (having printed ``hangs <its process number>``), print,
    set (no JSON).
    """

    example: ClassVar = {"do": ""}

    def predict(self, inputs: list[Any]) -> list[Any]:
        for item in inputs:
            match item["do"]:
                case "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "raise":
                    raise ValueError("it was asked to")
                case "hang":
                    print("hangs", os.getpid())
                    time.sleep(60)
                case "print":
                    print("hello from user code")
        return [{1, 2} if item["do"] == "set" else {"batch": len(inputs), "pid": os.getpid()} for item in inputs]


class Chatty(Handler):
    """
    JSON: prints its inputs and more, at its load too, and answers its process number; ``lines``: prints so many;
    ``long``: a line so long.
    """

    example: ClassVar = "example"

    def load(self, device: str) -> None:
        print("loaded")

    def predict(self, inputs: list[Any]) -> list[Any]:
        match inputs:
            case [{"lines": lines}]:
                for number in range(lines):
                    print("line", number)
            case [{"long": long}]:
                print("x" * long)
            case _:
                print(*inputs)
        if "three" in inputs:
            logging.warning("warned")
            subprocess.run(["echo", "from a process"], check=True)
            print("no end", end="")
        return [os.getpid() for _ in inputs]


class Native(Exception):
    """As ONNX runtime raises: no RuntimeError."""


class Hungry(Handler):
    """JSON: ``mib``: takes so much and holds it; ``raise``: raises that error with that text."""

    example: ClassVar = {"mib": 0}
    loads = 0

    def load(self, device: str) -> None:
        self.held = [self.take(self.loads)]

    def take(self, mib: int) -> list[bytes]:
        return [b"x" * (10 << 20) for _ in range(mib // 10)]

    def predict(self, inputs: list[Any]) -> list[Any]:
        for item in inputs:
            self.held.append(self.take(item.get("mib", 0)))
            if "raise" in item:
                raise {"MemoryError": MemoryError, "Native": Native}[item["raise"]](item.get("text", ""))
        return inputs


class Heavy(Hungry):
    """Its load takes 300 MiB."""

    loads = 300


class Tight(Hungry):
    """Its load takes 170 MiB."""

    loads = 170


class CrashesLoading(Handler):
    example: ClassVar = {}

    def load(self, device: str) -> None:
        os.abort()

    def predict(self, inputs: list[Any]) -> list[Any]:
        return inputs


class Large(Handler):
    """
    JSON: ``{"mb": n}`` to a text of n million characters (``escaped``: each takes six bytes), ``{"list": n}`` to a list
    of n zeros.
    """

    example: ClassVar = {"mb": 0}

    def predict(self, inputs: list[Any]) -> list[Any]:
        return [
            [0] * item["list"] if "list" in item else ("\1" if item.get("escaped") else "x") * (item["mb"] * 1_000_000)
            for item in inputs
        ]


class Forger(Handler):
    """JSON: ``{"say": hex}`` writes these bytes on the runner's socket, behind the platform's back."""

    example: ClassVar = {}

    def predict(self, inputs: list[Any]) -> list[Any]:
        for item in inputs:
            if "say" in item:
                numbers = [int(name) for name in os.listdir("/proc/self/fd")]
                (number,) = [
                    one
                    for one in numbers
                    if os.path.exists(f"/proc/self/fd/{one}") and stat.S_ISSOCK(os.fstat(one).st_mode)
                ]
                os.write(number, bytes.fromhex(item["say"]))
        return inputs
