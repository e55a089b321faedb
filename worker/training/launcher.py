"""
Starts the jobs of one GPU instance: builds their environment, and has the worker itself or the training host start them.

Used by :mod:`worker.training.jobs`. What must stay true: a job's own variables may not undo what keeps it to its entry
point, its device and its file of steps.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from smore.messages.commands import StartJob
from smore.tracking import hold
from smore.tracking.hold import HoldFile
from worker.child_env import MALLOC, ROOT
from worker.training import host
from worker.training.host import Started, Training
from worker.training.record import TOKEN, Record, Records, log_name

#: Variables, or their first letters, that no job may set, and those that none may that an operator has not started.
_PLATFORM: Final = ("SMORE_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_RESERVED: Final = (*_PLATFORM, "LD_", "PYTHON", "PATH")


@dataclass(eq=False, kw_only=True)
class Launcher:
    """
    ``entrypoints``: the modules that jobs may run. ``cores``: of a CPU partition, which its jobs keep to; ``born_on``:
    of the machine, on which those of a GPU are started (none = where the worker is). ``environment``: what names the
    device. ``hosted``: the training host of ``home`` starts them, and not this process. Immutable, needs no lock.
    """

    home: Path
    records: Records
    entrypoints: Sequence[str]
    cores: Sequence[int]
    born_on: Sequence[int]
    environment: Mapping[str, str]
    hosted: bool

    def __post_init__(self) -> None:
        self._logs = self.home / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)

    def log(self, record: Record) -> Path:
        """The file of a rank's output."""
        return self._logs / log_name(record.key)

    def refusal(self, command: StartJob) -> str:
        """Why this command may not be obeyed, '' = it may."""
        argv = command.request.argv
        if argv and (command.request.trusted or argv[0] in self.entrypoints):
            return ""
        return f"{' '.join(argv[:1])!r} is not an entry point that this worker allows"

    def start(
        self, record: Record, command: StartJob, secrets: Mapping[str, str], given: Mapping[str, str]
    ) -> tuple["subprocess.Popen[bytes] | None", Started]:
        """
        Start a rank. ``secrets``: the values of the command's secrets, by variable; ``given``: what the platform tells the
        rank. Returns its shim, where that is a child of this process, and process numbers. Raises OSError.
        """
        asked = {**command.env, **secrets}
        reserved = _PLATFORM if command.request.trusted else _RESERVED
        own = {name: value for name, value in asked.items() if not name.startswith(reserved)}
        paths = [own["PYTHONPATH"]] if own.get("PYTHONPATH") else []
        threads = {"OMP_NUM_THREADS": "1"} if self.cores else {}
        # A core of a partition has one arena. A training that feeds a GPU has many threads.
        allocator = MALLOC if self.cores else {}
        platform = {
            "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)]),
            "PYTHONUNBUFFERED": "1",
            "SMORE_TRACK": str(self.records.track(record.key)),
            hold.VARIABLE: str(self.records.hold(record.key)),
            TOKEN: record.token,
        }
        training = Training(
            argv=record.argv,
            program=command.request.trusted,
            # Modules are looked for in the folder where `python -m` begins: only an operator names another.
            cwd=command.request.cwd if command.request.trusted else "",
            env={**threads, **own, **allocator, **self.environment, **given, **platform},
            cores=self.cores or self.born_on,
            status=str(self.records.status(record.key)),
            log=str(self.log(record)),
        )
        HoldFile(self.records.hold(record.key)).make()
        if self.hosted:
            return None, host.ask(self.home, training)
        child, pid = host.start(training)
        return child, Started(pid=pid, shim=child.pid)
