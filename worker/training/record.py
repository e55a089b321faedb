"""
What a worker writes down about a job, so that its successor finds it: ``<home>/run/jobs/<id>.json``, and beside it the
file of its steps and the file in which its shim notes how it ended.

Used by :mod:`worker.training.jobs`. What must stay true: a record is whole or not there, only its owner can read it, and
a process counts as the job only with its number, its start time, the machine's boot and the token in its environment.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from smore.domain.job import JobState
from smore.domain.loss import DEFAULT_BUDGET
from smore.process import observability
from worker import proc
from worker.training import shim

log = observability.logger(__name__)

#: The variable in the environment of every job that the platform has started.
TOKEN: Final = "SMORE_JOB_TOKEN"  # noqa: S105 - the name of a variable


class Record(msgspec.Struct, kw_only=True):
    """What is written down about a job. ``start`` in clock ticks since the boot ``boot``."""

    id: str
    project: str
    name: str
    argv: list[str]
    pid: int
    start: int
    boot: str
    token: str
    #: Of the worker's GPU instance.
    gpu: str
    workload: str = ""
    budget: float = DEFAULT_BUDGET
    #: MiB: declared, 0 = not; the most that was measured.
    memory_mib: float = 0.0
    peak_mib: float = 0.0
    state: JobState = JobState.RUNNING
    exit_code: int | None = None
    ended_at: float = 0.0
    #: Somebody else's process: watched, never started, signalled or moved. ``pid`` 0 = it cannot be seen from here.
    attached: bool = False
    #: Its steps come through the gateway, and not in a file.
    tracked: bool = False
    #: The shim's process number and start, 0 = it has none.
    shim: int = 0
    shim_start: int = 0
    #: Epoch seconds. ``placed``: it has been seen to compute on the GPU.
    attached_at: float = msgspec.field(default_factory=time.time)
    placed: bool = False
    #: Why the platform refused it or let it go by itself.
    reason: str = ""

    def alive(self) -> bool:
        """Whether the process with that number is still the job."""
        return (
            self.pid > 0
            and self.boot == proc.boot_id()
            and proc.start_time(self.pid) == self.start
            and (self.attached or proc.environment_of(self.pid).get(TOKEN) == self.token)
        )

    def shim_alive(self) -> bool:
        """Whether its shim still runs, and so may still write down how it ends."""
        return self.shim > 0 and self.boot == proc.boot_id() and proc.start_time(self.shim) == self.shim_start

    def processes(self) -> list[int]:
        """Numbers of its process and its living descendants; none where they cannot be seen from here."""
        return list(proc.tree(self.pid)) if self.pid > 0 else []


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Records:
    """The files of the jobs in ``folder``, which is made. Keeps no state: the caller's lock orders the writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def all(self, gpu: str) -> Iterator[Record]:
        """Those of a GPU instance, in the order of their ids; one that cannot be read is logged and left out."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                record = _decode(path.read_bytes())
            except (OSError, msgspec.DecodeError) as error:
                log.warning("unreadable record of a job", path=str(path), error=str(error))
                continue
            if record.gpu == gpu:
                yield record

    def write(self, record: Record) -> None:
        """Raises OSError."""
        path = self._path(record.id)
        new = path.with_suffix(".new")
        # The token proves a process to be the job: nobody but the owner may read it.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_encode(record))
        new.replace(path)

    def remove(self, id_: str) -> None:
        """With the files beside it."""
        for path in (self._path(id_), self.track(id_), self.status(id_)):
            path.unlink(missing_ok=True)

    def exit_code(self, record: Record) -> int | None:
        """As its shim wrote it down, negative = by that signal; None = it did not."""
        return None if record.attached else shim.read(str(self.status(record.id)))

    def track(self, id_: str) -> Path:
        """The file of its steps (smore/tracking/ring.py)."""
        return self._folder / f"{id_}.track"

    def status(self, id_: str) -> Path:
        """The file in which its shim notes how it ended."""
        return self._folder / f"{id_}.status"

    def _path(self, id_: str) -> Path:
        return self._folder / f"{id_}.json"
