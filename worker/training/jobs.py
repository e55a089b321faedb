"""
Serverful jobs: training processes that outlive their worker, and those that run elsewhere and were attached.

A job's attempt is one process on each of its GPU instances, its ranks. The worker of a GPU instance knows the rank there.
It starts it in a session of its own, under a shim that writes down how it ended (worker/training/shim.py). What is known
of it is in its record (worker/training/record.py), so a worker that starts adopts the ranks that live, reports how those
ended that did so meanwhile, and reports the others lost. An end is reported until ``ForgetJob`` says that it is recorded.
A rank's iterations come from the file that ``smore.track`` writes or through the gateway, and count as shared where a
function ran meanwhile.

Used by the worker's heartbeat. What must stay true: a job is never a child that ends with its worker, an attached process
is never started, signalled or moved, and no rank of an attempt starts here after a later attempt, or the end of its own,
was heard of.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from smore.domain.job import REFUSED, JobState
from smore.messages.commands import AttachJob, ForgetJob, StartJob, StopJob
from smore.messages.reports import JobReport
from smore.process import observability
from worker.training.checkpoints import Checkpoints
from worker.training.fences import Fences
from worker.training.holding import Holding, wake
from worker.training.job import Rank
from worker.training.launcher import Launcher
from worker.training.rank_watch import RankWatch
from worker.training.ranks import Ranks
from worker.training.record import TOKEN, Record, Records, begun, to_attach, to_start
from worker.training.run_gate import RunGate
from worker.training.starting import RankRefused, Starting, Unwanted
from worker.training.watch import find

log = observability.logger(__name__)

_LOOK_S: Final = 0.05


class Jobs:
    """
    Begins and ends the ranks of one GPU instance; ``watch`` notices their ends. ``tick`` is called with every heartbeat;
    every method is safe from any thread.

    ``users`` are those whose processes may be attached (None = anybody's). ``started`` is called with the process number of
    every job of our own, adopted ones too; ``changed`` when reports would say something new. ``shipped``: whether all that
    the rank of a record's key has printed is in its log. ``starting`` readies ranks, whose checkpoints are in
    ``checkpoints``. ``cores``: of a CPU partition. ``gate`` learns whether a job runs. ``holding`` holds back guests.
    """

    def __init__(
        self,
        *,
        gpu: str,
        ranks: Ranks,
        holding: Holding,
        records: Records,
        launcher: Launcher,
        checkpoints: Checkpoints,
        starting: Starting,
        watch: RankWatch,
        gate: RunGate,
        users: frozenset[int] | None,
        started: Callable[[int], None],
        changed: Callable[[], None],
        shipped: Callable[[str], bool],
        cores: Sequence[int] = (),
    ) -> None:
        self._gpu = gpu
        self.ranks = ranks
        self.watch = watch
        self._holding = holding
        self._records = records
        self._launcher = launcher
        self._checkpoints = checkpoints
        self._starting = starting
        self._cores = cores
        self._gate = gate
        self._users = users
        self._started = started
        self._changed = changed
        self._shipped = shipped
        self._fences = Fences()

    # ---- begin -------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Find the jobs that a former worker of this GPU instance has left running; called once, at the start."""
        with self.ranks.lock:
            for record in self._records.all(self._gpu):
                try:
                    self._adopt(record)
                except Exception:
                    log.exception("job not adopted", job=record.key)
            for record in [job.record for job in self.ranks.all()]:
                self._end(record.id, up_to=record.attempt - 1, grace_s=0.0)

    def _adopt(self, record: Record) -> None:
        if record.state is JobState.STARTING:
            pid, shim = begun(record.token)
            if not pid:
                # Its process never was: the command comes again.
                self._records.remove(record.key)
                return
            record.begin(pid, shim)
            self._records.write(record)
        job = self.watch.open(record)
        if job.over:
            return
        if job.alive():
            log.info("job adopted", job=record.key, pid=record.pid)
            if record.hosts:
                # A former worker may have stopped it.
                wake(job)
            if not record.attached:
                self._started(record.pid)
        elif (code := self._records.exit_code(record)) is not None:
            log.info("job ended meanwhile", job=record.key, exit_code=code)
            self.watch.close(job, JobState.ENDED, code)
        elif not record.shim_alive():
            log.warning("job lost", job=record.key, pid=record.pid)
            self.watch.close(job, JobState.LOST, None)

    def start(self, command: StartJob) -> None:
        """
        Start a rank unless it exists already (the command may come again), or its attempt is past. Ranks of older
        attempts are killed: what they do does not count any more. Returns at once; a rank that may not run ends.
        """
        with self.ranks.lock:
            record = to_start(command, self._gpu)
            if not self._new(record) or self._past(command):
                return
            self._end(command.id, up_to=command.attempt - 1, grace_s=0.0)
            job = self.watch.open(record)
            if reason := self._launcher.refusal(command):
                self._refuse(job, reason)
                return
            # Written before the process exists: a worker that is killed in between must find it, and never start it a
            # second time.
            self._records.write(record)
        self._changed()
        threading.Thread(target=self._begin, args=(job, command), name=f"start {record.key}", daemon=True).start()

    def _past(self, command: StartJob) -> bool:
        """Whether a later attempt, or the end of this one, was heard of."""
        latest = max((job.record.attempt for job in self.ranks.of(command.id)), default=0)
        if command.attempt >= latest and not self._fences.stands(command.id, command.attempt):
            return False
        log.warning("job passed over: its attempt is past", job=command.id, attempt=command.attempt)
        return True

    def _begin(self, job: Rank, command: StartJob) -> None:
        record = job.record

        def wanted() -> bool:
            return record.state is JobState.STARTING

        try:
            values = self._starting.secrets(command, wanted)
            given = self._starting.environment(command, wanted)
            while wanted() and any(one.record.alive() for one in self.ranks.of(record.id) if one is not job):
                time.sleep(_LOOK_S)
            with self.ranks.lock:
                if not wanted():
                    return
                job.child, started = self._launcher.start(record, command, values, given)
                record.begin(started.pid, started.shim)
                self._records.write(record)
                self._started(record.pid)
                log.info("job started", job=record.key, pid=record.pid, argv=record.argv)
                self._gate.protect(self.ranks.running())
        except Unwanted:
            return
        except Exception as error:
            if not isinstance(error, RankRefused | OSError):
                log.exception("job not started", job=record.key)
            with self.ranks.lock:
                if wanted():
                    self._refuse(job, f"it could not be started: {error}")
        self._changed()

    def attach(self, command: AttachJob) -> None:
        """
        Watch a training that runs already. One that reports no steps and cannot be seen here, or may not be watched,
        ends at once; one that reports steps is then watched by them alone.
        """
        with self.ranks.lock:
            if command.id in self.ranks:
                return
            users = None if command.any_user else self._users
            process = find(
                command, self._gpu, cores=self._cores, users=users, token=TOKEN, watched={*self.ranks.pids()}
            )
            record = to_attach(command, self._gpu, process)
            if not self._new(record):
                return
            job = self.watch.open(record)
            if not process.pid and not command.tracked:
                self._refuse(job, process.reason)
            else:
                self._records.write(record)
                log.info("job attached", job=record.key, pid=record.pid, unwatched=process.reason, unseen=record.unseen)
                self._gate.protect(self.ranks.running())
        self._changed()

    def allow(self, id_: str) -> None:
        """An operator vouches for an attached training whose process is not seen here: from now on it counts."""
        with self.ranks.lock:
            for job in self.ranks.of(id_):
                if job.record.unseen:
                    job.record.unseen = ""
                    self._records.write(job.record)
            self._gate.protect(self.ranks.running())
        self._changed()

    def _new(self, record: Record) -> bool:
        """Whether this rank is still to be made, and may be."""
        if record.key in self.ranks:
            return False
        if not _file_name(record.id):
            log.error("job refused: its id is no file name", job=record.id)
            return False
        return True

    def _refuse(self, job: Rank, reason: str) -> None:
        log.error("job refused", job=job.record.key, reason=reason)
        job.record.reason = reason
        self.watch.close(job, JobState.ENDED, REFUSED)

    # ---- commands ----------------------------------------------------------------------------------------------------

    def stop(self, command: StopJob) -> None:
        """
        End the ranks of an attempt and of those before it; an attached training is let go of and trains on.
        """
        with self.ranks.lock:
            self._fences.put(command.id, command.attempt)
            self._end(command.id, up_to=command.attempt or None, grace_s=command.grace_s)
        self._changed()

    def fence(self, command: StopJob) -> None:
        """The command follows: what would be stopped by it need not start before."""
        with self.ranks.lock:
            self._fences.put(command.id, command.attempt)

    def forget(self, command: ForgetJob) -> None:
        """The ends of an attempt and of those before it are recorded: report them no more."""
        with self.ranks.lock:
            self._fences.put(command.id, command.attempt, recorded=True)
            for job in self.ranks.of(command.id):
                if job.over and job.record.attempt <= command.attempt:
                    job.recorded = True
            self._forget_shipped()
        self._changed()

    def _end(self, id_: str, *, up_to: int | None, grace_s: float) -> None:
        """End the job's ranks up to an attempt, None = all: SIGTERM now, SIGKILL after ``grace_s``."""
        for job in self.ranks.of(id_):
            record = job.record
            if job.over or (up_to is not None and record.attempt > up_to):
                continue
            if record.attached:
                log.info("job let go", job=record.key)
                self.watch.close(job, JobState.ENDED, None)
            elif not job.running:
                self.watch.close(job, JobState.ENDED, None)
            else:
                self._signal_end(job, grace_s)

    def _signal_end(self, job: Rank, grace_s: float) -> None:
        if job is self._holding.guest:
            self._holding.release()
        kill_at = time.monotonic() + grace_s
        if grace_s and job.kill_at is None:
            job.signal(signal.SIGTERM)
        job.kill_at = kill_at if job.kill_at is None else min(job.kill_at, kill_at)
        if not grace_s:
            job.signal(signal.SIGKILL)

    def aged(self) -> Sequence[str]:
        """Jobs none of whose ranks is here, and whose checkpoints were not touched for long."""
        with self.ranks.lock:
            here = {job.record.id for job in self.ranks.all()}
            return [job for job in self._checkpoints.aged() if job not in here and _file_name(job)]

    def drop_checkpoints(self, id_: str) -> None:
        """They are needed no more."""
        with self.ranks.lock:
            if not self.ranks.of(id_) and _file_name(id_):
                self._checkpoints.drop(id_)

    def set_budget(self, id_: str, budget: float, share: float | None) -> None:
        """Change what functions may cost a job, and another training (None = as before), fractions."""
        with self.ranks.lock:
            for job in self.ranks.of(id_):
                if not job.over:
                    job.record.budget = budget
                    job.record.share = job.record.share if share is None else share
                    self._records.write(job.record)
        self._changed()

    # ---- every heartbeat ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Notice ends, measure memory, carry out kills."""
        now, mono = time.time(), time.monotonic()
        with self.ranks.lock:
            ended = self.watch.look(now, mono)
            self._forget_shipped()
            self.watch.meet(now)
            self._gate.protect(self.ranks.running())
        if ended:
            self._changed()

    def _forget_shipped(self) -> None:
        """Forget ranks whose end is recorded once all that they printed is in their logs."""
        for job in self.ranks.all():
            if job.recorded and self._shipped(job.record.key):
                self._forget(job)

    def _forget(self, job: Rank) -> None:
        self.ranks.remove(job)
        self.watch.forget(job)
        self._records.remove(job.record.key)
        self._checkpoints.unwatch(job.record.id, job.record.attempt)
        if job.child is not None:
            job.child.poll()

    # ---- for reports -------------------------------------------------------------------------------------------------

    def reports(self) -> list[JobReport]:
        """Of all ranks, those too whose end is not recorded yet."""
        reports = []
        with self.ranks.lock:
            for job in self.ranks.all():
                with self.watch.apart(job):
                    reports.append(job.report(self._checkpointed(job.record), *self._holding.reported(job)))
        return reports

    def _checkpointed(self, record: Record) -> int:
        if record.rank or not record.attempt or record.reason:
            return 0
        return self._checkpoints.iterations(record.id, record.attempt)


def _file_name(id_: str) -> bool:
    """Whether the id may be part of a file's name."""
    return bool(id_) and len(id_) <= 128 and all(char.isalnum() or char in "-_" for char in id_)
