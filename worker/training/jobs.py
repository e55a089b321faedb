"""
Serverful jobs: training processes that outlive their worker, and those that run elsewhere and were attached.

A job is started in a session of its own, under a shim that writes down how it ended (worker/training/shim.py). What is
known of it is in its record (worker/training/record.py), so a worker that starts adopts the jobs that live, reports how
those ended that did so meanwhile, and reports the others lost. Its iterations come from the file that ``smore.track``
writes or through the gateway, and count as shared where a function ran meanwhile.

Used by the worker's heartbeat, by its prober and, for memory, by its warm pool. What must stay true: a job is never a
child that ends with its worker, and an attached process is never started, signalled or moved.
"""

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from smore.domain.job import REFUSED, JobState
from smore.messages.commands import AttachJob, ForgetJob, StartJob
from smore.messages.reports import JobReport
from smore.process import observability
from smore.tracking.ring import TrackReader
from worker import proc
from worker.activity import Activity
from worker.training import watch
from worker.training.job import Job
from worker.training.launcher import Launcher
from worker.training.record import TOKEN, Record, Records
from worker.training.remote_steps import RemoteSteps
from worker.training.run_gate import Due, RunGate
from worker.training.windows import Closing, Windows

log = observability.logger(__name__)

#: Seconds from SIGTERM to SIGKILL.
STOP_S: Final = 10.0
#: Seconds for which a job that has ended is reported and its record kept.
REMEMBERED_S: Final = 600.0
#: Seconds within which an attached process must compute on the GPU; otherwise it is let go of.
PLACED_S: Final = 60.0
#: Seconds that a shim has to write down how its training ended.
_SHIM_S: Final = 10.0


class Jobs:
    """
    The jobs of one GPU instance. ``tick`` is called with every heartbeat; every method is safe from any thread. One
    reentrant lock guards all jobs; the sums of memory are read without it, because the pool asks for them with its own
    lock held, and a sum that is a moment old does.

    ``memory_of`` and ``quick_memory_of`` give the MiB of the device that a process holds, exactly and quickly;
    ``computing`` those of every process on it, None where it cannot tell. ``users`` are those whose processes may be
    attached (None = anybody's). ``started`` is called with the process number of every job of our own, adopted ones
    too; ``changed`` when reports would say something new. ``steps_of`` makes the reader of an attached job's steps.
    ``entrypoints``, ``cores``, ``born_on``, ``environment`` and ``hosted``: see
    :class:`~worker.training.launcher.Launcher`. ``gate`` learns whether a job runs. ``probe_share`` and
    ``probe_max_s``: see :class:`~worker.training.windows.Windows`, whose times follow from ``seed`` and the job's id.
    ``owns_rest``: a training whose memory nobody has declared is left all of the device until it has shown what it
    needs (on a GPU its first iteration takes most of that at once).
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
        gate: RunGate,
        seed: str,
        probe_share: float,
        probe_max_s: float,
        memory_of: Callable[[int], float | None],
        quick_memory_of: Callable[[int], float | None],
        computing: Callable[[], Mapping[int, float] | None],
        users: frozenset[int] | None,
        steps_of: Callable[[str], RemoteSteps],
        started: Callable[[int], None],
        changed: Callable[[], None],
        born_on: Sequence[int] = (),
        owns_rest: bool = False,
        hosted: bool = False,
    ) -> None:
        self._gpu = gpu
        self._owns_rest = owns_rest
        self._records = Records(home / "run" / "jobs")
        self._launcher = Launcher(
            home=home,
            records=self._records,
            entrypoints=entrypoints,
            cores=cores,
            born_on=born_on,
            environment=environment,
            hosted=hosted,
        )
        self._cores = cores
        self._activity = activity
        self._gate = gate
        self._seed = seed
        self._probe_share = probe_share
        self._probe_max_s = probe_max_s
        self._memory_of = memory_of
        self._quick_memory_of = quick_memory_of
        self._computing = computing
        self._users = users
        self._steps_of = steps_of
        self._started = started
        self._changed = changed
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}

    # ---- begin -------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Find the jobs that a former worker of this GPU instance has left running; called once, at the start."""
        with self._lock:
            for record in self._records.all(self._gpu):
                job = self._jobs[record.id] = self._job(record)
                if not job.running:
                    continue
                if job.alive():
                    log.info("job adopted", job=record.id, pid=record.pid)
                    if not record.attached:
                        self._started(record.pid)
                elif (code := self._records.exit_code(record)) is not None:
                    log.info("job ended meanwhile", job=record.id, exit_code=code)
                    self._close(job, JobState.ENDED, code)
                elif not record.shim_alive():
                    log.warning("job lost", job=record.id, pid=record.pid)
                    self._close(job, JobState.LOST, None)

    def start(self, command: StartJob) -> None:
        """Start a job unless it exists already (the command may come twice). One that may not run ends at once."""
        with self._lock:
            if not self._new(command.id):
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
            if reason := self._launcher.refusal(command.argv):
                self._refuse(job, reason)
                return
            # Written before the process exists: a worker that is killed in between must not start it again, only lose
            # it.
            self._records.write(record)
            try:
                job.child, started = self._launcher.start(record, command.env)
            except OSError as error:
                self._refuse(job, f"it could not be started: {error}")
                return
            record.pid, record.start = started.pid, proc.start_time(started.pid) or 0
            record.shim, record.shim_start = started.shim, proc.start_time(started.shim) or 0
            self._records.write(record)
            self._started(record.pid)
            log.info("job started", job=record.id, pid=record.pid, argv=record.argv)
            self._gate.protect(True)
        self._changed()

    def attach(self, command: AttachJob) -> None:
        """
        Watch a training that runs already. One that reports no steps and cannot be seen here, or may not be watched,
        ends at once; one that reports steps is then watched by them alone.
        """
        with self._lock:
            if not self._new(command.id):
                return
            boot = proc.boot_id()
            pid = _process_of(command, boot)
            start = proc.start_time(pid) if pid else None
            if start is None:
                reason = f"there is no process {command.pid} on the machine of {self._gpu}"
            else:
                reason = self._unwatchable(pid, command)
            seen = start is not None and not reason
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
                self._records.write(record)
                log.info("job attached", job=record.id, pid=record.pid, tracked=record.tracked, unseen=reason)
                self._gate.protect(True)
        self._changed()

    def _new(self, id_: str) -> bool:
        """Whether a job of this id is still to be made, and may be."""
        if id_ in self._jobs:
            return False
        if not _file_name(id_):
            log.error("job refused: its id is no file name", job=id_)
            return False
        return True

    def _unwatchable(self, pid: int, command: AttachJob) -> str:
        """
        Why this process may not be watched, '' = it may. A command that names its start and the boot proves nothing:
        everybody can read them in /proc, a function as well.
        """
        users = None if command.any_user else self._users
        if reason := watch.refusal(pid, cores=self._cores, users=users, token=TOKEN):
            return reason
        family, watched = set(proc.tree(pid)), set(self.pids())
        if pid in watched or not watched.isdisjoint(family):
            return f"process {pid} is watched already, or one that it has started is"
        return ""

    def _refuse(self, job: Job, reason: str) -> None:
        log.error("job refused", job=job.record.id, reason=reason)
        job.record.reason = reason
        self._close(job, JobState.ENDED, REFUSED)

    def _job(self, record: Record) -> Job:
        seed = f"{self._seed}/{record.id}"
        windows = Windows(seed=seed, share=self._probe_share, longest_s=self._probe_max_s, since=time.time())
        tracked = record.tracked
        reader = self._steps_of(record.id) if tracked else TrackReader(str(self._records.track(record.id)))
        return Job(record, reader, windows)

    # ---- commands ----------------------------------------------------------------------------------------------------

    def stop(self, id_: str) -> None:
        """SIGTERM now, SIGKILL after :data:`STOP_S`; an attached one is let go of and trains on."""
        with self._lock:
            job = self._jobs.get(id_)
            if job is not None and job.running and job.record.attached:
                log.info("job let go", job=id_)
                self._close(job, JobState.ENDED, None)
            elif job is not None and job.running and job.kill_at is None:
                job.kill_at = time.monotonic() + STOP_S
                _signal(job, signal.SIGTERM)

    def forget(self, command: ForgetJob) -> None:
        """Let go of a job whose end is recorded."""
        with self._lock:
            job = self._jobs.get(command.id)
            if job is not None and not job.running:
                self._forget(job)

    def set_budget(self, id_: str, budget: float) -> None:
        """Change the degradation budget of a running job (a ratio)."""
        with self._lock:
            job = self._jobs.get(id_)
            if job is not None and job.running:
                job.record.budget = budget
                self._records.write(job.record)
        self._changed()

    # ---- every heartbeat ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Notice ends, read iterations, measure memory, carry out kills."""
        now, mono = time.time(), time.monotonic()
        ended = False
        with self._lock:
            for job in list(self._jobs.values()):
                if job.running:
                    job.read_steps(now, self._activity.overlaps)
                    ended |= self._notice_end(job, mono) or self._notice_misplaced(job, now)
                    if job.running and job.kill_at is not None and mono >= job.kill_at:
                        _signal(job, signal.SIGKILL)
                    job.measure(mono, self._memory_of, self._quick_memory_of)
                    job.note_peak(mono)
                elif now - job.record.ended_at > REMEMBERED_S:
                    self._forget(job)
            self._gate.protect(any(job.running for job in self._jobs.values()))
        if ended:
            self._changed()

    def _notice_end(self, job: Job, mono: float) -> bool:
        """Whether it has ended since the last look."""
        record = job.record
        if job.alive():
            return False
        if record.pid == 0 and isinstance(job.reader, RemoteSteps) and not job.reader.ended:
            log.warning("job lost: it has fallen silent", job=record.id)
            self._close(job, JobState.LOST, None)
            return True
        # In this order: a shim writes before it ends.
        writing = record.shim_alive()
        code = self._records.exit_code(record)
        if code is None and writing:
            job.gone_at = job.gone_at if job.gone_at is not None else mono
            if mono - job.gone_at < _SHIM_S:
                return False
        log.info("job ended", job=record.id, exit_code=code)
        self._close(job, JobState.ENDED, code)
        return True

    def _notice_misplaced(self, job: Job, now: float) -> bool:
        """Whether an attached process is let go of now, because it does not compute on the GPU."""
        record = job.record
        if not job.running or not record.attached or record.tracked or record.placed:
            return False
        computing = self._computing()
        if computing is None:
            return False
        if not computing.keys().isdisjoint(record.processes()):
            record.placed = True
            self._records.write(record)
        elif now - record.attached_at > PLACED_S:
            record.reason = f"process {record.pid} did not compute on {self._gpu} within {PLACED_S:g} s"
            log.warning("job let go", job=record.id, reason=record.reason)
            self._close(job, JobState.ENDED, None)
            return True
        return False

    def _close(self, job: Job, state: JobState, code: int | None) -> None:
        job.close(state, code)
        self._records.write(job.record)
        job.reap()

    def _forget(self, job: Job) -> None:
        del self._jobs[job.record.id]
        self._records.remove(job.record.id)
        if job.child is not None:
            job.child.poll()

    # ---- for the prober ----------------------------------------------------------------------------------------------

    def due(self) -> list[Due]:
        """The next closed window of every running job that is measured."""
        now = time.time()
        with self._lock:
            windows = []
            for id_, job in self._jobs.items():
                at = job.windows.due(now) if job.running else None
                if at is not None:
                    windows.append(Due(job=id_, at=at, length_s=job.windows.length_s or 0.0, side_s=job.windows.side_s))
            return windows

    def runs(self, id_: str) -> bool:
        """Whether the job still runs."""
        with self._lock:
            return id_ in self._jobs and self._jobs[id_].running

    def closed(self, id_: str, closing: Closing) -> None:
        """The run gate was shut for one job: for the others it is a disturbance."""
        with self._lock:
            for other, job in self._jobs.items():
                if other == id_:
                    job.windows.closed(closing)
                else:
                    job.windows.disturbed(closing)

    # ---- for reports and the pool ------------------------------------------------------------------------------------

    def reports(self) -> list[JobReport]:
        """Of all jobs, those that ended a short while ago too."""
        with self._lock:
            return [job.report() for job in self._jobs.values()]

    def running(self) -> list[str]:
        """Ids."""
        with self._lock:
            return [id_ for id_, job in self._jobs.items() if job.running]

    def memory_mib(self) -> float:
        """Of the device, held or reserved, whichever is more for each job. No lock, see the class."""
        return sum(max(job.memory_mib, job.reserve_mib) for job in list(self._jobs.values()))

    def owed_mib(self) -> float:
        """Of the device, reserved and not yet held. No lock, see the class."""
        return sum(max(0.0, job.reserve_mib - job.memory_mib) for job in list(self._jobs.values()))

    def growing(self) -> str:
        """Why all that the device has left belongs to a job for now, '' = it does not. No lock, see the class."""
        if not self._owns_rest:
            return ""
        mono = time.monotonic()
        id_ = next((job.record.id for job in list(self._jobs.values()) if job.growing(mono)), None)
        if id_ is None:
            return ""
        return f"Nobody has said how much memory the training {id_} needs (--memory), and it has not shown it yet."

    def cpu_s(self) -> float:
        """CPU seconds of all running jobs with their descendants."""
        return sum(proc.cpu_s(pid) for pid in self.pids())

    def pids(self) -> list[int]:
        """Process numbers of all running jobs with their descendants, as far as they can be seen."""
        with self._lock:
            records = [job.record for job in self._jobs.values() if job.running]
        return [pid for record in records for pid in record.processes()]


def _process_of(command: AttachJob, boot: str) -> int:
    """The number here of the process that the command names; 0 where it is not on this machine."""
    if not command.boot:
        return command.pid
    return proc.find(command.pid, command.start) if command.boot == boot else 0


def _file_name(id_: str) -> bool:
    """Whether the id may be part of a file's name."""
    return bool(id_) and len(id_) <= 128 and all(char.isalnum() or char in "-_" for char in id_)


def _signal(job: Job, number: int) -> None:
    """Send a signal to the process group of a job that lives."""
    if job.record.alive():
        try:
            os.killpg(job.record.pid, number)
        except ProcessLookupError:
            return
