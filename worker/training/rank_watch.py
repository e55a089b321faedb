"""What becomes of the ranks of one GPU instance: their ends, their memory, their iterations, and who else trains there."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from smore.domain.job import JobState
from smore.domain.windows import Probing
from smore.process import observability
from smore.tracking.ring import TrackReader
from worker.activity import Activity
from worker.device.device import Device
from worker.training.checkpoints import Checkpoints
from worker.training.job import Rank
from worker.training.ranks import Ranks
from worker.training.record import Record, Records
from worker.training.remote_steps import RemoteSteps

log = observability.logger(__name__)

#: Seconds within which an attached process must compute on the GPU; otherwise it is let go of.
PLACED_S: Final = 60.0
#: Seconds that a shim has to write down how its training ended.
_SHIM_S: Final = 10.0
#: Seconds between two reads of iterations.
READ_S: Final = 0.25


@dataclass(eq=False, kw_only=True)
class RankWatch:
    """
    Every method but :meth:`read_steps` is called with the lock of ``ranks`` held.

    ``steps_of`` makes the reader of an attached job's steps.
    """

    gpu: str
    ranks: Ranks
    records: Records
    checkpoints: Checkpoints
    activity: Activity
    device: Device
    steps_of: Callable[[str], RemoteSteps]
    probing: Probing
    #: Keys of ranks of which it was logged that they are passed over.
    _failing: set[str] = field(default_factory=set, init=False)

    def open(self, record: Record) -> Rank:
        """A rank, which is watched from now on."""
        tracked = record.tracked
        reader = self.steps_of(record.id) if tracked else TrackReader(str(self.records.track(record.key)))
        job = Rank(record, reader, self.probing.windows(record.key, time.time()))
        self.ranks.add(job)
        return job

    def forget(self, job: Rank) -> None:
        """It is watched no more."""
        self._failing.discard(job.record.key)

    def look(self, now: float, mono: float) -> bool:
        """Look at all; whether one has ended since the last look."""
        ended = False
        for job in self.ranks.all():
            if job.running:
                with self.apart(job):
                    ended |= self._look_at(job, now, mono)
        return ended

    def _look_at(self, job: Rank, now: float, mono: float) -> bool:
        """Whether it has ended since the last look."""
        ended = self._notice_end(job, mono) or self._notice_misplaced(job, now)
        if job.running and job.kill_at is not None and mono >= job.kill_at:
            job.signal(signal.SIGKILL)
        job.measure(mono, self.device.process_memory_mib, self.device.quick_memory_mib)
        job.note_peak(mono)
        return ended

    @contextmanager
    def apart(self, job: Rank) -> Iterator[None]:
        """What goes wrong with one job stops no other; it is logged once."""
        try:
            yield
        except Exception:
            if job.record.key not in self._failing:
                log.exception("job passed over", job=job.record.key)
            self._failing.add(job.record.key)

    def read_steps(self) -> None:
        """
        Take the new iterations of all trainings; called every :data:`READ_S`. Apart from :meth:`look`: a heartbeat must wait
        for nothing that a training sends.
        """
        for job in self.ranks.all():
            if job.running:
                with self.apart(job):
                    steps = job.fetch()
                    with self.ranks.lock:
                        job.take(steps, time.time(), self.activity)
            else:
                job.refuse_steps()

    def _notice_end(self, job: Rank, mono: float) -> bool:
        """Whether it has ended since the last look."""
        record = job.record
        if job.alive():
            return False
        if record.pid == 0 and isinstance(job.reader, RemoteSteps) and not job.reader.ended:
            log.warning("job lost: it has fallen silent", job=record.key)
            self.close(job, JobState.LOST, None)
            return True
        # In this order: a shim writes before it ends.
        writing = record.shim_alive()
        code = self.records.exit_code(record)
        if code is None and writing:
            job.gone_at = job.gone_at if job.gone_at is not None else mono
            if mono - job.gone_at < _SHIM_S:
                return False
        log.info("job ended", job=record.key, exit_code=code)
        self.close(job, JobState.ENDED, code)
        return True

    def meet(self, now: float) -> None:
        """Tell each training which others are here."""
        running = [job for job in self.ranks.all() if job.counts]
        for job in running:
            with self.apart(job):
                if job.meet(now, [other for other in running if other.record.id != job.record.id]):
                    self.records.write(job.record)

    def _notice_misplaced(self, job: Rank, now: float) -> bool:
        """Whether an attached process is let go of now, because it does not compute on the GPU."""
        record = job.record
        if not job.running or not record.attached or record.tracked or record.placed:
            return False
        computing = self.device.computing()
        if computing is None:
            return False
        if not computing.keys().isdisjoint(record.processes()):
            record.placed = True
            self.records.write(record)
        elif now - record.attached_at > PLACED_S:
            record.reason = f"process {record.pid} did not compute on {self.gpu} within {PLACED_S:g} s"
            log.warning("job let go", job=record.key, reason=record.reason)
            self.close(job, JobState.ENDED, None)
            return True
        return False

    def close(self, job: Rank, state: JobState, code: int | None) -> None:
        """It is over."""
        job.close(state, code)
        self.records.write(job.record)
        job.reap()
        self.checkpoints.look_soon()
