"""
Starts the jobs of one GPU instance: builds their environment, and has the worker itself or the training host start them.

Used by :mod:`worker.training.jobs`. What must stay true: a job's own variables may not undo what keeps it to its entry
point, its device and its file of steps.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from worker.inherited import MALLOC, ROOT
from worker.training import host
from worker.training.host import Started, Training
from worker.training.record import TOKEN, Record, Records

#: Variables, or their first letters, that a job may not set.
_RESERVED: Final = ("SMORE_", "LD_", "PYTHON", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PATH")


class Launcher:
    """
    ``entrypoints``: the modules that jobs may run. ``cores``: of a CPU partition, which its jobs keep to; ``born_on``:
    of the machine, on which those of a GPU are started (none = where the worker is). ``environment``: what names the
    device. ``hosted``: the training host of ``home`` starts them, and not this process. Immutable, needs no lock.
    """

    def __init__(
        self,
        *,
        home: Path,
        records: Records,
        entrypoints: Sequence[str],
        cores: Sequence[int],
        born_on: Sequence[int],
        environment: Mapping[str, str],
        hosted: bool,
    ) -> None:
        self._home = home
        self._records = records
        self._entrypoints = entrypoints
        self._cores = cores
        self._born_on = born_on
        self._environment = environment
        self._hosted = hosted
        self._logs = home / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)

    def refusal(self, argv: Sequence[str]) -> str:
        """Why this command may not be started, '' = it may."""
        if argv and argv[0] in self._entrypoints:
            return ""
        return f"{' '.join(argv[:1])!r} is not an entry point that this worker allows"

    def start(self, record: Record, env: Mapping[str, str]) -> tuple["subprocess.Popen[bytes] | None", Started]:
        """Start a job. Returns its shim, where that is a child of this process, and process numbers. Raises OSError."""
        own = {name: value for name, value in env.items() if not name.startswith(_RESERVED)}
        threads = {"OMP_NUM_THREADS": "1"} if self._cores else {}
        # A core of a partition has one arena. A training that feeds a GPU has many threads.
        allocator = MALLOC if self._cores else {}
        platform = {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "SMORE_TRACK": str(self._records.track(record.id)),
            TOKEN: record.token,
        }
        training = Training(
            argv=record.argv,
            env={**threads, **own, **allocator, **self._environment, **platform},
            cores=self._cores or self._born_on,
            status=str(self._records.status(record.id)),
            log=str(self._logs / f"job-{record.id}.log"),
        )
        if self._hosted:
            return None, host.ask(self._home, training)
        child, pid = host.start(training)
        return child, Started(pid=pid, shim=child.pid)
