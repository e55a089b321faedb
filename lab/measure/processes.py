"""
The processes of a profiling run, one for each member of a co-location.

Every model runs in its own process (``lab.measure.member``), as a runner or a serverful job would: resident, and idle
until it gets a command.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from lab.measure.device import Device
from ml.rows import Workload

#: Processes that are kept; above that, the least recently used one ends.
PROCESSES = 30


class MemberFailed(Exception):
    """A workload could not be prepared or run; the message is that of its process."""


class Process:
    """
    The process of a member: one model in one role. Requests and replies are lines; ``ask`` may be called for several
    processes before ``answer``.

    The process loads its model in the background; :meth:`loaded` waits for it.
    """

    def __init__(self, device: Device, workload: Workload) -> None:
        argv = [sys.executable, "-m", "lab.measure.member", "--model", workload.model, "--role", workload.role]
        self._process = device.start([*argv, "--preset", workload.size, "--device", device.torch_device], workload.role)
        self.pid = self._process.pid
        self._loaded = False
        #: Whether it has run since it returned its memory to the device.
        self.ran = False

    def loaded(self) -> None:
        """Wait until the model is loaded. Raises MemberFailed at the first call if it could not be loaded."""
        if not self._loaded:
            self._loaded = True
            self.answer()

    def ask(self, **command: object) -> None:
        assert self._process.stdin is not None
        self.ran = self.ran or command["do"] != "rest"
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise MemberFailed(f"its process ended with status {self._process.wait()}") from None

    def answer(self) -> dict[str, Any]:
        """The reply to the oldest request. Raises MemberFailed with the error of the process."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MemberFailed(f"its process ended with status {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise MemberFailed(reply["error"])
        return reply

    def end(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Processes:
    """The processes of all members by model, role and instance. They start when first needed."""

    def __init__(self, device: Device, limit: int = PROCESSES) -> None:
        self._device, self._limit = device, limit
        self._processes: dict[tuple[str, str, int], Process] = {}

    def start(self, workloads: Iterable[Workload]) -> None:
        """Start one process for each model and role, up to the limit. All load at the same time."""
        for workload in workloads:
            key = (workload.model, workload.role, 0)
            if key not in self._processes and len(self._processes) < self._limit:
                self._processes[key] = Process(self._device, workload)

    def of(self, members: Sequence[Workload]) -> list[Process]:
        """One process for each workload; workloads of the same model and role get different ones."""
        keys = []
        for workload in members:
            for instance in itertools.count():
                key = (workload.model, workload.role, instance)
                if key not in keys:
                    keys.append(key)
                    break
        for key, workload in zip(keys, members, strict=True):
            # Popped and inserted again, so that the most recently used are last.
            self._processes[key] = (
                self._processes.pop(key) if key in self._processes else Process(self._device, workload)
            )
            for old in [other for other in self._processes if other not in keys][
                : max(0, len(self._processes) - self._limit)
            ]:
                self._processes.pop(old).end()
        for key in keys:
            self._processes[key].loaded()
        self._rest([key for key, process in self._processes.items() if key not in keys and process.ran])
        return [self._processes[key] for key in keys]

    def _rest(self, keys: Sequence[tuple[str, str, int]]) -> None:
        """Let them return their memory to the device; a process that fails is ended."""
        for key in keys:
            try:
                self._processes[key].ask(do="rest")
                self._processes[key].answer()
            except MemberFailed:
                self._processes.pop(key).end()
            else:
                self._processes[key].ran = False

    def drop(self, members: Sequence[Workload]) -> None:
        """End all processes of these models: after a failure their state is unknown."""
        for key in [key for key in self._processes if key[:2] in {(w.model, w.role) for w in members}]:
            self._processes.pop(key).end()

    def end(self) -> None:
        while self._processes:
            self._processes.popitem()[1].end()
