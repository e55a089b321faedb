"""
What a worker writes down about a job's rank, so that its successor finds it: ``<home>/run/jobs/<key>.json``, and beside
it the file of its steps and the file in which its shim notes how it ended. The key is ``<job>.<attempt>.<rank>``;
trainings that were not started from the queue of jobs have no attempt (0), and their key is ``<job>``.

Used by :mod:`worker.training.jobs`. What must stay true: a record is whole or not there, only its owner can read it, and
a process counts as the job only with its number, its start time, the machine's boot and the token in its environment.
"""

import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from smore.domain.job import JobState
from smore.domain.loss import DEFAULT_BUDGET
from smore.messages.commands import AttachJob, StartJob
from smore.process import observability
from smore.tracking.regular import open_regular
from smore.tracking.ring import MOST_COUNT
from worker import proc
from worker.training import shim
from worker.training.watch import Watched

log = observability.logger(__name__)

#: The variable in the environment of every job that the platform has started.
TOKEN: Final = "SMORE_JOB_TOKEN"  # noqa: S105 - the name of a variable
#: Seconds that a shim has to begin its training, and between two looks.
_BEGIN_S: Final = 10.0
_LOOK_S: Final = 0.05


def key_of(job: str, attempt: int, rank: int) -> str:
    """What the files of a rank are named after; ``attempt`` 0: a job that was started before there was a queue."""
    return f"{job}.{attempt}.{rank}" if attempt else job


def log_name(key: str) -> str:
    """The name of the file that a rank prints to."""
    return f"job-{key}.log"


class Record(msgspec.Struct, kw_only=True):
    """What is written down about a job's rank. ``start`` in clock ticks since the boot ``boot``."""

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
    #: Why it counts for nothing, "" = it counts: its worker sees no such process, and no operator has vouched for it.
    unseen: str = ""
    attempt: int = 0
    rank: int = 0
    world: int = 1
    #: When its process began, epoch seconds, and how many iterations it had made at its end.
    started_at: float = 0.0
    iterations: int = 0
    #: What other trainings may cost it, a fraction; those beside which it was started as their guest.
    share: float = 0.0
    hosts: Sequence[str] = ()
    #: Its iterations while no other training was here: mean seconds, count, standard error of the mean.
    alone: tuple[float, int, float] = (0.0, 0, 0.0)

    def __post_init__(self) -> None:
        # A former worker believed what no counter holds.
        self.iterations = min(max(self.iterations, 0), MOST_COUNT)

    @property
    def key(self) -> str:
        """What its files are named after."""
        return key_of(self.id, self.attempt, self.rank)

    def begin(self, pid: int, shim_: int) -> None:
        """Its process and its shim have these numbers."""
        self.pid, self.start = pid, proc.start_time(pid) or 0
        self.shim, self.shim_start = shim_, proc.start_time(shim_) or 0
        self.state, self.started_at = JobState.RUNNING, time.time()

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
        """Those of a GPU instance, in the order of their keys; one that cannot be read is logged and left out."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                with open(open_regular(path), "rb") as file:
                    record = _decode(file.read())
            except (OSError, msgspec.DecodeError) as error:
                log.warning("unreadable record of a job", path=str(path), error=str(error))
                continue
            if record.gpu == gpu:
                yield record

    def write(self, record: Record) -> None:
        """Raises OSError."""
        path = self._path(record.key)
        new = path.with_name(f"{path.name}.new")
        # The token proves a process to be the job: nobody but the owner may read it.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_encode(record))
        new.replace(path)

    def remove(self, key: str) -> None:
        """With the files beside it."""
        for path in (self._path(key), self.track(key), self.hold(key), self.status(key)):
            path.unlink(missing_ok=True)

    def exit_code(self, record: Record) -> int | None:
        """As its shim wrote it down, negative = by that signal; None = it did not."""
        return None if record.attached else exit_status(self.status(record.key))

    def track(self, key: str) -> Path:
        """The file of its steps (smore/tracking/ring.py)."""
        return self._folder / f"{key}.track"

    def hold(self, key: str) -> Path:
        """The file that says whether it is held back (smore/tracking/hold.py)."""
        return self._folder / f"{key}.hold"

    def status(self, key: str) -> Path:
        """The file in which its shim notes how it ended."""
        return self._folder / f"{key}.status"

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def exit_status(path: Path) -> int | None:
    """What a shim has written into such a file; None where the end was not written (yet), or what stands there is no end."""
    try:
        with open(open_regular(path), "rb") as file:
            words = file.read(shim.LENGTH).split()
    except OSError:
        return None
    if len(words) != 2 or words[0] != b"exit" or not re.fullmatch(rb"-?\d{1,3}", words[1]):
        return None
    return int(words[1])


def to_start(command: StartJob, gpu: str) -> Record:
    """The record of a rank that has no process yet."""
    return Record(
        id=command.id,
        project=command.project,
        name=command.name,
        argv=list(command.request.argv),
        pid=0,
        start=0,
        boot=proc.boot_id(),
        token=secrets.token_hex(16),
        gpu=gpu,
        workload=command.request.workload,
        budget=command.request.budget,
        memory_mib=command.request.memory_mib,
        state=JobState.STARTING,
        attempt=command.attempt,
        rank=command.rank,
        world=command.world,
        share=command.request.share,
        hosts=list(command.hosts),
    )


def to_attach(command: AttachJob, gpu: str, process: Watched) -> Record:
    """The record of a training that runs elsewhere."""
    return Record(
        id=command.id,
        project=command.project,
        name=command.name,
        argv=[],
        pid=process.pid,
        start=process.start,
        boot=proc.boot_id(),
        token="",
        gpu=gpu,
        workload=command.workload,
        budget=command.budget,
        attached=True,
        tracked=command.tracked,
        unseen="" if process.there or command.any_user else process.reason,
    )


def begun(token: str) -> tuple[int, int]:
    """
    The numbers of the training's process with this token in its environment, and of its shim; 0 = there is none. A worker
    that was killed while it started a job has not written them down. Waits while a shim has still to begin its training.
    """
    until = time.monotonic() + _BEGIN_S
    while True:
        pid, shim_ = _look_for(token)
        if pid or not shim_ or time.monotonic() > until:
            return pid, shim_
        time.sleep(_LOOK_S)


def _look_for(token: str) -> tuple[int, int]:
    leaders = {
        pid: proc.ancestors(pid)[:1]
        for pid in proc.numbers()
        if proc.session(pid) == pid and proc.environment_of(pid).get(TOKEN) == token
    }
    # The training too is one until it has begun its own program.
    shims = {pid for pid in leaders if str(Path(shim.__file__)) in proc.command(pid)}
    for pid, (parent, *_) in leaders.items():
        if parent in shims:
            return pid, parent
    return next((pid for pid in leaders if pid not in shims), 0), next(iter(shims), 0)
