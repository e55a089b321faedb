"""
Serverful jobs: training processes that outlive their worker, and those that run elsewhere and were attached.

A job is started in a session of its own, under a shim that writes down how it ended (worker/training/shim.py), and
known by process number, start time and a token in its environment. What is known is written to
``<home>/run/jobs/<id>.json``, so a worker that starts adopts the jobs that live, tells how those ended that did so
meanwhile, and reports the others lost. Its iterations are read from the ring that ``smore.track`` writes and told apart
by whether a function ran meanwhile.
"""

import os
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from smore.domain.job import REFUSED, RESERVE, JobState
from smore.domain.loss import DEFAULT_BUDGET, Sample
from smore.messages.commands import AttachJob, StartJob
from smore.messages.reports import JobReport
from smore.process import observability
from smore.tracking.ring import TrackReader
from worker import keeper, proc
from worker.activity import Activity
from worker.inherited import MALLOC
from worker.keeper import Started, Training
from worker.runner.processes import ROOT
from worker.training import shim, watch
from worker.training.remote_steps import Feed
from worker.training.run_gate import Due, Gate
from worker.training.windows import Closing, Windows

log = observability.logger(__name__)

TOKEN: Final = "SMORE_JOB_TOKEN"  # noqa: S105 - the name of a variable
WINDOW_S: Final = 60.0
#: SIGTERM to SIGKILL.
STOP_S: Final = 10.0
#: How long a job that has ended is reported and its record kept.
REMEMBERED_S: Final = 600.0
#: An attached process that does not compute on the GPU within this is watched no longer.
PLACED_S: Final = 60.0
_MEASURE_S: Final = 5.0
#: A training whose memory was not declared has found its size when its peak has stood still for so long and for so many
#: iterations, or for the longer time where it tells none.
SETTLED_S: Final = 60.0
SETTLED_ITERATIONS: Final = 50
UNTOLD_S: Final = 600.0
#: Growth of its peak by no more than this fraction is none.
_STILL: Final = 0.01
#: For its shim to write down how it ended.
_SHIM_S: Final = 10.0
#: A job's own variables may not undo what keeps it to its entry point, its device and its tracking file.
_RESERVED: Final = ("SMORE_", "LD_", "PYTHON", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PATH")


_NOTHING: Final = Sample(mean=0.0, sd=0.0, n=0)


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
    #: Declared, 0 = not; the most that was measured. MiB.
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


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


@dataclass(slots=True)
class _Job:
    record: Record
    reader: TrackReader | Feed
    windows: Windows
    #: Its shim; None where it was adopted or is the keeper's child.
    child: "subprocess.Popen[bytes] | None" = None
    #: Monotonic time at which its process was first seen to have ended, while its shim had still to say how.
    gone_at: float | None = None
    #: (end, duration, shared) of the iterations in the window.
    iterations: deque[tuple[float, float, bool]] = field(default_factory=deque)
    memory_mib: float = 0.0
    #: What a quick look counts too much, MiB.
    shared_mib: float = 0.0
    #: Monotonic times of the first look and of the last measurement.
    found_at: float | None = None
    measured_at: float = 0.0
    #: Its peak when it last grew, MiB, and since when (monotonic) and since which iteration it has stood there.
    still_mib: float = 0.0
    still_since: float | None = None
    still_from: int = 0
    #: Monotonic time after which it is killed.
    kill_at: float | None = None

    @property
    def running(self) -> bool:
        return self.record.state is JobState.RUNNING

    @property
    def reserve_mib(self) -> float:
        """What no function may take from it: its declared memory, or the most that was measured, and a little more."""
        return max(self.record.memory_mib, self.record.peak_mib) * (1 + RESERVE) if self.running else 0.0

    def stand(self, mono: float) -> None:
        """Note whether its peak stands still."""
        peak_mib = self.record.peak_mib
        if self.still_since is None or peak_mib > self.still_mib * (1 + _STILL):
            self.still_mib, self.still_since, self.still_from = peak_mib, mono, self.reader.count

    def growing(self, mono: float) -> bool:
        """
        Whether it may still grow into all that its device has left: nobody has said how much it needs, and it has not
        shown it.
        """
        record = self.record
        if not self.running or record.memory_mib or self.still_since is None:
            return self.running and not record.memory_mib
        if not record.peak_mib and record.pid:
            return True  # nothing of it is seen on the device: it has not begun, or the driver does not tell
        still_s = mono - self.still_since
        if self.reader.count:
            return still_s < SETTLED_S or self.reader.count - self.still_from < SETTLED_ITERATIONS
        # What was started here may be reading its data before its first iteration.
        return still_s < (SETTLED_S if record.attached else UNTOLD_S)


class Jobs:
    """
    The jobs of one GPU instance. ``tick`` is called with every heartbeat; every method is safe from any thread.

    ``memory_of`` gives the MiB of the device that a process holds, ``computing`` those of every process on it, None
    where it cannot tell; ``users`` are those whose processes may be attached (None = anybody's); ``started`` is told
    the process number of every job of our own, adopted ones too. ``feed`` makes the reader of an attached job's steps.
    ``kept``: jobs are started by the keeper of this home and not by this process. ``cores``: of a CPU partition, which
    its jobs keep to; ``born_on``: of the machine, on which those of a GPU are started (none = where the worker is).
    ``gate`` is told whether a job runs. ``probe_share`` and ``probe_max_s``: see
    :class:`~worker.training.windows.Windows`, whose times follow from ``seed`` and the job's id. ``owns_rest``: a
    training whose memory nobody has declared is left all of the device until it has shown what it needs (on a GPU its
    first iteration takes most of that at once).
    """

    def __init__(
        self,
        *,
        gpu: str,
        home: Path,
        entrypoints: Sequence[str],
        cores: Sequence[int],
        environment: Mapping[str, str],
        activity: Activity,
        gate: Gate,
        seed: str,
        probe_share: float,
        probe_max_s: float,
        memory_of: Callable[[int], float | None],
        quick_memory_of: Callable[[int], float | None],
        computing: Callable[[], Mapping[int, float] | None],
        users: frozenset[int] | None,
        feed: Callable[[str], Feed],
        started: Callable[[int], None],
        changed: Callable[[], None],
        born_on: Sequence[int] = (),
        owns_rest: bool = False,
        kept: bool = False,
    ) -> None:
        self._gpu = gpu
        self._owns_rest = owns_rest
        self._home = home
        self._kept = kept
        self._folder = home / "run" / "jobs"
        self._logs = home / "logs"
        self._entrypoints = entrypoints
        self._cores = cores
        self._born_on = born_on
        self._environment = environment
        self._activity = activity
        self._gate = gate
        self._seed = seed
        self._probe_share = probe_share
        self._probe_max_s = probe_max_s
        self._memory_of = memory_of
        self._quick_memory_of = quick_memory_of
        self._computing = computing
        self._users = users
        self._feed = feed
        self._started = started
        self._changed = changed
        self._lock = threading.RLock()
        self._jobs: dict[str, _Job] = {}
        self._folder.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)

    def adopt(self) -> None:
        """Find the jobs that a former worker of this GPU instance has left running; called once, at the start."""
        with self._lock:
            for path in sorted(self._folder.glob("*.json")):
                try:
                    record = _decode(path.read_bytes())
                except (OSError, msgspec.DecodeError) as error:
                    log.warning("unreadable record of a job", path=str(path), error=str(error))
                    continue
                if record.gpu != self._gpu:
                    continue
                job = self._jobs[record.id] = self._job(record)
                if not job.running:
                    continue
                if _lives(job):
                    log.info("job adopted", job=record.id, pid=record.pid)
                    if not record.attached:
                        self._started(record.pid)
                elif (code := self._exit_code(record)) is not None:
                    log.info("job ended meanwhile", job=record.id, exit_code=code)
                    self._close(job, JobState.ENDED, code)
                elif not _shim_lives(record):
                    log.warning("job lost", job=record.id, pid=record.pid)
                    self._close(job, JobState.LOST, None)

    def start(self, command: StartJob) -> None:
        """Start a job unless it is known already (the command may come twice). One that may not run ends at once."""
        with self._lock:
            if command.id in self._jobs:
                return
            if not _plain(command.id):
                log.error("job refused: its id is no file name", job=command.id)
                return
            record = Record(
                id=command.id,
                project=command.project,
                name=command.name,
                argv=command.argv,
                pid=0,
                start=0,
                boot=proc.boot_id(),
                token=secrets.token_hex(16),
                gpu=self._gpu,
                workload=command.workload,
                budget=command.budget,
                memory_mib=command.memory_mib,
            )
            job = self._jobs[command.id] = self._job(record)
            if not command.argv or command.argv[0] not in self._entrypoints:
                self._refuse(job, f"{' '.join(command.argv[:1])!r} is not an entry point that this worker allows")
                return
            # Written before the process is there: a worker that is killed in between must not start it again, only lose
            # it.
            self._write(record)
            try:
                job.child, begun = self._begin(record, command.env)
            except OSError as error:
                self._refuse(job, f"it could not be started: {error}")
                return
            record.pid, record.start = begun.pid, proc.start_time(begun.pid) or 0
            record.shim, record.shim_start = begun.shim, proc.start_time(begun.shim) or 0
            self._write(record)
            self._started(record.pid)
            log.info("job started", job=record.id, pid=record.pid, argv=record.argv)
            self._gate.protect(True)
        self._changed()

    def attach(self, command: AttachJob) -> None:
        """
        Watch a training that runs already. One that tells no steps and cannot be seen here, or may not be watched, ends
        at once; one that tells its steps is then known by them alone.
        """
        with self._lock:
            if command.id in self._jobs:
                return
            if not _plain(command.id):
                log.error("job refused: its id is no file name", job=command.id)
                return
            boot = proc.boot_id()
            pid = (
                command.pid
                if not command.boot
                else proc.find(command.pid, command.start)
                if command.boot == boot
                else 0
            )
            start = proc.start_time(pid) if pid else None
            seen = start is not None
            reason = (
                self._unwatchable(pid, command)
                if seen
                else f"there is no process {command.pid} on the machine of {self._gpu}"
            )
            seen = seen and not reason
            record = Record(
                id=command.id,
                project=command.project,
                name=command.name,
                argv=[],
                pid=pid if seen else 0,
                start=(start or 0) if seen else 0,
                boot=boot,
                token="",
                gpu=self._gpu,
                workload=command.workload,
                budget=command.budget,
                attached=True,
                tracked=command.tracked,
            )
            job = self._jobs[command.id] = self._job(record)
            if not seen and not command.tracked:
                self._refuse(job, reason)
            else:
                self._write(record)
                log.info("job attached", job=record.id, pid=record.pid, tracked=record.tracked, unseen=reason)
                self._gate.protect(True)
        self._changed()

    def _unwatchable(self, pid: int, command: AttachJob) -> str:
        """
        Why this process may not be watched, '' = it may. Who tells its start and the boot too proves nothing: everybody
        can read them in /proc, a function as well.
        """
        users = None if command.any_user else self._users
        if reason := watch.refusal(pid, cores=self._cores, users=users, token=TOKEN):
            return reason
        family, watched = set(proc.tree(pid)), set(self.pids())
        if pid in watched or not watched.isdisjoint(family):
            return f"process {pid} is watched already, or one that it has started is"
        return ""

    def _refuse(self, job: _Job, reason: str) -> None:
        log.error("job refused", job=job.record.id, reason=reason)
        job.record.reason = reason
        self._close(job, JobState.ENDED, REFUSED)

    def _job(self, record: Record) -> _Job:
        seed = f"{self._seed}/{record.id}"
        windows = Windows(seed=seed, share=self._probe_share, longest_s=self._probe_max_s, since=time.time())
        return _Job(
            record, self._feed(record.id) if record.tracked else TrackReader(str(self._track(record.id))), windows
        )

    def _begin(self, record: Record, env: Mapping[str, str]) -> tuple["subprocess.Popen[bytes] | None", Started]:
        """Its shim, where that is our child, and the process numbers. Raises OSError."""
        own = {name: value for name, value in env.items() if not name.startswith(_RESERVED)}
        threads = {"OMP_NUM_THREADS": "1"} if self._cores else {}
        # A core of a partition has one arena. A training that feeds a GPU has many threads.
        allocator = MALLOC if self._cores else {}
        ours = {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "SMORE_TRACK": str(self._track(record.id)),
            TOKEN: record.token,
        }
        training = Training(
            argv=record.argv,
            env={**threads, **own, **allocator, **self._environment, **ours},
            cores=self._cores or self._born_on,
            status=str(self._status(record.id)),
            log=str(self._logs / f"job-{record.id}.log"),
        )
        if self._kept:
            return None, keeper.ask(self._home, training)
        child, pid = keeper.start(training)
        return child, Started(pid=pid, shim=child.pid)

    def stop(self, id_: str) -> None:
        """SIGTERM now, SIGKILL after :data:`STOP_S`; an attached one is let go and trains on."""
        with self._lock:
            job = self._jobs.get(id_)
            if job is not None and job.running and job.record.attached:
                log.info("job let go", job=id_)
                self._close(job, JobState.ENDED, None)
            elif job is not None and job.running and job.kill_at is None:
                job.kill_at = time.monotonic() + STOP_S
                self._signal(job, signal.SIGTERM)

    def set_budget(self, id_: str, budget: float) -> None:
        with self._lock:
            job = self._jobs.get(id_)
            if job is not None and job.running:
                job.record.budget = budget
                self._write(job.record)
        self._changed()

    def _signal(self, job: _Job, number: int) -> None:
        if _alive(job.record):
            try:
                os.killpg(job.record.pid, number)
            except ProcessLookupError:
                return

    def tick(self) -> None:
        """Notice ends, read iterations, carry out kills."""
        now, mono = time.time(), time.monotonic()
        ended = False
        with self._lock:
            for job in list(self._jobs.values()):
                if job.running:
                    self._read(job, now)
                    ended |= self._look(job, mono) or self._misplaced(job, now)
                    if job.running and job.kill_at is not None and mono >= job.kill_at:
                        self._signal(job, signal.SIGKILL)
                    self._measure(job, mono)
                    job.stand(mono)
                elif now - job.record.ended_at > REMEMBERED_S:
                    self._forget(job)
            self._gate.protect(any(job.running for job in self._jobs.values()))
        if ended:
            self._changed()

    def _measure(self, job: _Job, mono: float) -> None:
        """
        Often while it grows, less often later: twice as long each time, up to :data:`_MEASURE_S`. What it grows between
        is seen at once where looking costs little.
        """
        if job.found_at is None:
            job.found_at = mono
        elif mono - job.measured_at < min(_MEASURE_S, job.measured_at - job.found_at):
            looks = [self._quick_memory_of(pid) for pid in _tree(job.record)]
            job.memory_mib = max(job.memory_mib, sum(look or 0.0 for look in looks) - job.shared_mib)
            job.record.peak_mib = max(job.record.peak_mib, job.memory_mib)
            return
        family = _tree(job.record)
        job.memory_mib, job.measured_at = sum(self._memory_of(pid) or 0.0 for pid in family), mono
        job.shared_mib = max(0.0, sum(self._quick_memory_of(pid) or 0.0 for pid in family) - job.memory_mib)
        job.record.peak_mib = max(job.record.peak_mib, job.memory_mib)

    def _look(self, job: _Job, mono: float) -> bool:
        """Whether it has ended just now."""
        record = job.record
        if _lives(job):
            return False
        if record.pid == 0 and isinstance(job.reader, Feed) and not job.reader.ended:
            log.warning("job lost: it has fallen silent", job=record.id)
            self._close(job, JobState.LOST, None)
            return True
        # In this order: a shim writes before it ends.
        writing = _shim_lives(record)
        code = self._exit_code(record)
        if code is None and writing:
            job.gone_at = job.gone_at if job.gone_at is not None else mono
            if mono - job.gone_at < _SHIM_S:
                return False
        log.info("job ended", job=record.id, exit_code=code)
        self._close(job, JobState.ENDED, code)
        return True

    def _misplaced(self, job: _Job, now: float) -> bool:
        """Whether an attached process is let go just now, because it does not compute on the GPU."""
        record = job.record
        if not job.running or not record.attached or record.tracked or record.placed:
            return False
        listed = self._computing()
        if listed is None:
            return False
        if not listed.keys().isdisjoint(_tree(record)):
            record.placed = True
            self._write(record)
        elif now - record.attached_at > PLACED_S:
            record.reason = f"process {record.pid} did not compute on {self._gpu} within {PLACED_S:g} s"
            log.warning("job let go", job=record.id, reason=record.reason)
            self._close(job, JobState.ENDED, None)
            return True
        return False

    def _close(self, job: _Job, state: JobState, code: int | None) -> None:
        job.record.state, job.record.exit_code, job.record.ended_at = state, code, time.time()
        job.memory_mib = 0.0
        self._write(job.record)
        if job.child is not None:
            job.child.poll()
        if isinstance(job.reader, Feed):
            job.reader.close()

    def _forget(self, job: _Job) -> None:
        del self._jobs[job.record.id]
        for path in (self._path(job.record.id), self._track(job.record.id), self._status(job.record.id)):
            path.unlink(missing_ok=True)
        if job.child is not None:
            job.child.poll()

    def _read(self, job: _Job, now: float) -> None:
        for end, duration in job.reader.read_new():
            if end > now - WINDOW_S:
                shared = self._activity.overlaps(end - duration, end)
                job.iterations.append((end, duration, shared))
                job.windows.add(end, duration, shared)
        job.windows.settle(now)
        while job.iterations and job.iterations[0][0] <= now - WINDOW_S:
            job.iterations.popleft()

    # ---- for the prober ----------------------------------------------------------------------------------------------

    def due(self) -> list[Due]:
        now = time.time()
        with self._lock:
            found = []
            for id_, job in self._jobs.items():
                at = job.windows.due(now) if job.running else None
                if at is not None:
                    found.append(Due(job=id_, at=at, length_s=job.windows.length_s or 0.0, side_s=job.windows.side_s))
            return found

    def runs(self, id_: str) -> bool:
        with self._lock:
            return id_ in self._jobs and self._jobs[id_].running

    def closed(self, id_: str, closing: Closing) -> None:
        """The gate was shut for one job: for the others it is a disturbance."""
        with self._lock:
            for other, job in self._jobs.items():
                if other == id_:
                    job.windows.closed(closing)
                else:
                    job.windows.disturbed(closing)

    # ---- for reports -------------------------------------------------------------------------------------------------

    def reports(self) -> list[JobReport]:
        with self._lock:
            return [_report(job) for job in self._jobs.values()]

    def running(self) -> list[str]:
        """Ids."""
        with self._lock:
            return [id_ for id_, job in self._jobs.items() if job.running]

    def memory_mib(self) -> float:
        """Held or reserved, whichever is more."""
        # No lock: read under the pool's, and a sum that is a moment old does.
        return sum(max(job.memory_mib, job.reserve_mib) for job in list(self._jobs.values()))

    def owed_mib(self) -> float:
        """Reserved and not yet held."""
        return sum(max(0.0, job.reserve_mib - job.memory_mib) for job in list(self._jobs.values()))

    def growing(self) -> str:
        """Why all that the device has left belongs to a job for now, '' = it does not."""
        # No lock, as above.
        mono = time.monotonic()
        found = [job.record.id for job in list(self._jobs.values()) if self._owns_rest and job.growing(mono)]
        if not found:
            return ""
        return f"Nobody has said how much memory the training {found[0]} needs (--memory), and it has not shown it yet."

    def cpu_s(self) -> float:
        """CPU seconds of all running jobs with their descendants."""
        return sum(proc.cpu_s(pid) for pid in self.pids())

    def pids(self) -> list[int]:
        """Of all running jobs with their descendants, as far as they can be seen."""
        with self._lock:
            records = [job.record for job in self._jobs.values() if job.running]
        return [pid for record in records for pid in _tree(record)]

    # ---- files -------------------------------------------------------------------------------------------------------

    def _path(self, id_: str) -> Path:
        return self._folder / f"{id_}.json"

    def _track(self, id_: str) -> Path:
        return self._folder / f"{id_}.track"

    def _status(self, id_: str) -> Path:
        return self._folder / f"{id_}.status"

    def _exit_code(self, record: Record) -> int | None:
        """As its shim wrote it down; None = it did not."""
        return None if record.attached else shim.read(str(self._status(record.id)))

    def _write(self, record: Record) -> None:
        path = self._path(record.id)
        new = path.with_suffix(".new")
        # The token proves a process to be the job: it is for its owner's eyes.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_encode(record))
        new.replace(path)


def _plain(id_: str) -> bool:
    return bool(id_) and len(id_) <= 128 and all(char.isalnum() or char in "-_" for char in id_)


def _alive(record: Record) -> bool:
    """Whether the process with that number is still the job."""
    return (
        record.pid > 0
        and record.boot == proc.boot_id()
        and proc.start_time(record.pid) == record.start
        and (record.attached or proc.environment_of(record.pid).get(TOKEN) == record.token)
    )


def _shim_lives(record: Record) -> bool:
    return record.shim > 0 and record.boot == proc.boot_id() and proc.start_time(record.shim) == record.shim_start


def _lives(job: _Job) -> bool:
    """By its process, or, where that cannot be seen, by what it says."""
    record, reader = job.record, job.reader
    if isinstance(reader, Feed):
        if reader.ended:
            return False
        if record.pid == 0:
            return not reader.silent
    return _alive(record)


def _tree(record: Record) -> list[int]:
    return list(proc.tree(record.pid)) if record.pid > 0 else []


def _report(job: _Job) -> JobReport:
    solo = [duration for _, duration, shared in job.iterations if not shared]
    shared = [duration for _, duration, shared in job.iterations if shared]
    windows, loss = job.windows, job.windows.loss
    recent, closed = windows.recent or _NOTHING, windows.reference or _NOTHING
    return JobReport(
        id=job.record.id,
        project=job.record.project,
        state=job.record.state.value,
        pid=job.record.pid,
        memory_mib=round(job.memory_mib, 1),
        reserve_mib=round(job.reserve_mib, 1),
        iterations=job.reader.count,
        window_s=WINDOW_S,
        solo_s=sum(solo) / len(solo) if solo else 0.0,
        solo_count=len(solo),
        shared_s=sum(shared) / len(shared) if shared else 0.0,
        shared_count=len(shared),
        exit_code=job.record.exit_code,
        workload=job.record.workload,
        budget=job.record.budget,
        measured=job.record.tracked or not job.record.attached,
        windows=windows.fresh(),
        loss=loss.mean if loss else None,
        loss_low=loss.low if loss else None,
        loss_high=loss.high if loss else None,
        loss_windows=windows.count,
        recent_s=recent.mean,
        recent_n=recent.n,
        recent_sd=recent.sd,
        closed_s=closed.mean,
        closed_n=closed.n,
        closed_sd=closed.sd,
        suspended=job.running and proc.suspended(job.record.pid),
        reason=job.record.reason,
    )
