"""
The process of one workload in a profiling run: ``python -m lab.measure.member --model bert --role function ...``,
started by ``lab.measure.profile``.

It loads one model in one role, then reads commands from its standard input, one JSON object a line, and writes one line
in reply to each:

``{"do": "prepare", "batch": 4}``
    Prepares that batch. The reply has the features of table III, the kernel profile, the most device memory that the
    allocator held at this batch, and the cold start by phase.
``{"do": "ready", "batch": 4}``
    Prepares that batch and runs it once if it has not run since the last rest, so that it allocates memory before a
    measured run.
``{"do": "rest"}``
    Returns the memory that the allocator keeps to the device, because the next runs are of other processes.
``{"do": "run", "batch": 4, "wait_s": 0.02, "from": t, "until": u}``
    Runs one after the other without a pause until ``u`` (seconds of CLOCK_MONOTONIC, which all processes share). A
    training waits ``wait_s`` for its input before each iteration. The reply has the seconds of every run that lies
    within ``t`` to ``u``, and the processor seconds of these runs.

The parent ends the process by closing its standard input.
"""

import time

_BEGAN = time.monotonic()

import argparse  # noqa: E402 - the time of the imports is measured
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from typing import Any, Protocol, cast  # noqa: E402

import torch  # noqa: E402

from lab.measure.layers import kernel_profile, table_iii  # noqa: E402
from zoo.model import ModelFunction, card  # noqa: E402
from zoo.options import NAMES  # noqa: E402
from zoo.train import Options, Training  # noqa: E402

_IMPORTED = time.monotonic()


class Subject(Protocol):
    """A workload that can run once at a time."""

    def prepare(self, batch: int) -> None: ...

    def run(self) -> object:
        """One iteration or inference, until the device has finished it."""
        ...

    @property
    def module(self) -> torch.nn.Module: ...


class TrainingSubject:
    def __init__(self, model: str, preset: str, device: str) -> None:
        self._model, self._preset, self._device = model, preset, device
        self._card = card(model)
        self._number = 0

    def prepare(self, batch: int) -> None:
        self._training = Training(
            self._card, Options(model=self._model, preset=self._preset, device=self._device, batch=batch)
        )

    def run(self) -> object:
        self._number += 1
        return self._training.iterate(self._number)

    @property
    def module(self) -> torch.nn.Module:
        return self._training.module


class FunctionSubject:
    """Calls the zoo's handler on arrays in memory, as a runner does between receiving and replying."""

    def __init__(self, model: str, preset: str, device: str) -> None:
        class_ = cast(type[ModelFunction], importlib.import_module(f"zoo.{model}").Function)
        self._handler = type("Profiled", (class_,), {"preset": preset})()
        self._handler.load(device)
        self._card, self._preset = card(model), preset

    def prepare(self, batch: int) -> None:
        drawn = self._card.sample(self._preset, batch, torch.Generator().manual_seed(batch))
        self._inputs = {name: tensor.numpy() for name, tensor in drawn.items()}

    def run(self) -> object:
        return self._handler.predict(self._inputs)

    @property
    def module(self) -> torch.nn.Module:
        module: torch.nn.Module = self._handler.module
        return module


class Member:
    """Carries out commands for one subject."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._role, self._device = arguments.role, arguments.device
        began = time.monotonic()
        if self._cuda:
            torch.zeros(1, device=self._device)
            torch.cuda.synchronize()
        context_s = time.monotonic() - began
        began = time.monotonic()
        subject = TrainingSubject if self._role == "training" else FunctionSubject
        self._subject: Subject = subject(arguments.model, arguments.preset, self._device)
        self._cold = {"import": _IMPORTED - _BEGAN, "context": context_s, "weights": time.monotonic() - began}
        self._batch = 0
        #: Whether this batch has run since memory was returned to the device.
        self._warm = False
        self._described: dict[int, dict[str, Any]] = {}

    @property
    def _cuda(self) -> bool:
        return str(self._device).startswith("cuda")

    def prepare(self, batch: int) -> dict[str, Any]:
        self.ready(batch)
        if batch not in self._described:
            training = self._role == "training"
            self._described[batch] = {
                "features": table_iii(self._subject.module, batch, self._subject.run, training=training),
                "kernels": kernel_profile(self._subject.run, cuda=self._cuda),
            }
        memory = float(torch.cuda.max_memory_reserved()) if self._cuda else None
        return self._described[batch] | {"cold_s": self._cold, "device_memory_bytes": memory}

    def ready(self, batch: int) -> None:
        if batch != self._batch:
            self._subject.prepare(batch)
            self._batch, self._warm = batch, False
            # Memory of the previous batch must not count for this one.
            self.rest()
            if self._cuda:
                torch.cuda.reset_peak_memory_stats()
        if not self._warm:
            began = time.monotonic()
            self._subject.run()
            self._cold.setdefault("first_run", time.monotonic() - began)
            self._warm = True

    def rest(self) -> None:
        if self._cuda:
            torch.cuda.empty_cache()
            self._warm = False

    def run(self, batch: int, wait_s: float, start: float, until: float) -> dict[str, Any]:
        self.ready(batch)
        seconds: list[float] = []
        busy_s = 0.0
        now = time.monotonic()
        while now < until:
            began, processor = now, time.process_time()
            if wait_s:
                time.sleep(wait_s)
            self._subject.run()
            now = time.monotonic()
            if began >= start and now <= until:
                seconds.append(now - began)
                busy_s += time.process_time() - processor
        return {"seconds": seconds, "busy_s": busy_s}


def _carry_out(member: Member, command: dict[str, Any]) -> dict[str, Any]:
    match command["do"]:
        case "prepare":
            return member.prepare(command["batch"])
        case "ready":
            member.ready(command["batch"])
            return {}
        case "rest":
            member.rest()
            return {}
        case "run":
            return member.run(command["batch"], command["wait_s"], command["from"], command["until"])
        case other:
            raise ValueError(f"unknown command: {other!r}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lab.measure.member", description="One workload's process; lab.measure.profile starts it."
    )
    parser.add_argument("--model", required=True, choices=NAMES)
    parser.add_argument("--role", required=True, choices=("training", "function"))
    parser.add_argument("--preset", required=True)
    parser.add_argument("--device", required=True)
    options = parser.parse_args(arguments)
    # Replies use a descriptor of their own, so that the output of a library cannot mix with them.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    reply: Callable[[dict[str, Any]], None] = lambda content: print(json.dumps(content), file=replies, flush=True)  # noqa: E731
    try:
        member = Member(options)
    except Exception as error:  # noqa: BLE001 - reported to the parent, which decides
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    reply({"ready": True})
    for line in sys.stdin:
        try:
            reply(_carry_out(member, json.loads(line)))
        except Exception as error:  # noqa: BLE001
            reply({"error": f"{type(error).__name__}: {error}"})
    # Exit at once: Python would unload torch module by module, for up to a second in which the next run waits.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
