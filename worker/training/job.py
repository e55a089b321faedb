"""
One rank of a job as its worker sees it: its record, its steps, its memory. Guarded by the lock of
:class:`worker.training.ranks.Ranks`.
"""

import os
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from smore.domain.job import OVER, RESERVE, JobState
from smore.domain.loss import Sample
from smore.domain.windows import Windows
from smore.messages.reports import JobReport
from smore.tracking.ring import TrackReader
from worker import proc
from worker.activity import Activity
from worker.training.beside import IterationTimes, PaceBeside
from worker.training.record import Record
from worker.training.remote_steps import RemoteSteps

#: Seconds of iterations that a report averages.
WINDOW_S: Final = 60.0
#: Of more iterations a second as many as this count, evenly spaced: what a report and a window need, whatever a loop calls
#: an iteration. And for how many seconds it may have fewer before.
STEPS_PER_S: Final = 500
_SAVED_S: Final = 5.0
#: A step that took longer, seconds, or that ended so much later than now, is none.
_LONGEST_S: Final = 1e6
_AHEAD_S: Final = 2.0
#: Most seconds between two exact measurements of a job's memory.
_MEASURE_S: Final = 5.0
#: A training whose memory was not declared has found its size when its peak has stood still for so many seconds and so
#: many iterations, or for the longer time where it reports no steps.
SETTLED_S: Final = 60.0
SETTLED_ITERATIONS: Final = 50
UNTRACKED_SETTLED_S: Final = 600.0
#: A training that tells no iterations has begun them after so many seconds.
_BEGUN_S: Final = 30.0
#: Growth of its peak by no more than this fraction is none.
_STILL: Final = 0.01

_NOTHING: Final = Sample(mean=0.0, sd=0.0, n=0)


@dataclass(slots=True)
class Sum:
    """Iterations: seconds and count."""

    seconds: float = 0.0
    n: int = 0

    def add(self, seconds: float, n: int = 1) -> None:
        self.seconds, self.n = self.seconds + seconds, self.n + n

    @property
    def mean(self) -> float:
        return self.seconds / self.n if self.n else 0.0


@dataclass(slots=True)
class Rank:
    """Times are monotonic seconds where nothing else is said."""

    record: Record
    reader: TrackReader | RemoteSteps
    windows: Windows
    #: Its shim; None where it was adopted or is the training host's child.
    child: "subprocess.Popen[bytes] | None" = None
    #: When its process was first seen to have ended, while its shim had still to say how.
    gone_at: float | None = None
    #: Its iterations of the last :data:`WINDOW_S`, by the second in which they ended: without a function and with one.
    seconds: dict[int, tuple[Sum, Sum]] = field(default_factory=dict)
    #: How many more of its iterations may count now, and when that was said.
    allowed: float = STEPS_PER_S * _SAVED_S
    allowed_at: float = field(default_factory=time.monotonic)
    #: Whether the end of its attempt is recorded, so that it may be forgotten.
    recorded: bool = False
    memory_mib: float = 0.0
    #: MiB that a quick measurement counts too much.
    shared_mib: float = 0.0
    #: Of the first and of the last exact measurement.
    first_measured_at: float | None = None
    measured_at: float = 0.0
    #: Its peak when it last grew, MiB, and since when and since which iteration it has stood there.
    still_mib: float = 0.0
    still_since: float | None = None
    still_from: int = 0
    #: When it is killed.
    kill_at: float | None = None
    #: Its iterations by who else trains here.
    beside: PaceBeside = field(init=False)
    #: Closed windows in which its guest is held back, None = it is no host.
    guest_windows: Windows | None = None

    def __post_init__(self) -> None:
        self.beside = PaceBeside(IterationTimes(*self.record.alone))

    @property
    def running(self) -> bool:
        return self.record.state is JobState.RUNNING

    @property
    def counts(self) -> bool:
        """Whether it runs, and functions and other trainings are held back for it."""
        return self.running and not self.record.unseen

    @property
    def over(self) -> bool:
        return self.record.state in OVER

    @property
    def reserve_mib(self) -> float:
        """What no function may take from it: its declared memory, or the most that was measured, and a little more."""
        return 0.0 if self.over else max(self.record.memory_mib, self.record.peak_mib) * (1 + RESERVE)

    def alive(self) -> bool:
        """Whether it still trains: by its process, or, where that cannot be seen from here, by the steps it reports."""
        if isinstance(self.reader, RemoteSteps):
            if self.reader.ended:
                return False
            if self.record.pid == 0:
                return not self.reader.silent
        return self.record.alive()

    def signal(self, number: int) -> None:
        """Send a signal to its process group, if it lives."""
        if self.record.alive():
            with suppress(ProcessLookupError):
                os.killpg(self.record.pid, number)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def measure(
        self, mono: float, exact_mib: Callable[[int], float | None], quick_mib: Callable[[int], float | None]
    ) -> None:
        """
        Measure its memory: exactly after twice as long as the time before, up to :data:`_MEASURE_S`, and between with
        what takes microseconds. Both functions give a process's MiB of the device, None where they cannot.
        """
        record, family = self.record, self.record.processes()
        if self.first_measured_at is None:
            self.first_measured_at = mono
        elif mono - self.measured_at < min(_MEASURE_S, self.measured_at - self.first_measured_at):
            quick = sum(quick_mib(pid) or 0.0 for pid in family)
            self.memory_mib = max(self.memory_mib, quick - self.shared_mib)
            record.peak_mib = max(record.peak_mib, self.memory_mib)
            return
        self.memory_mib, self.measured_at = sum(exact_mib(pid) or 0.0 for pid in family), mono
        self.shared_mib = max(0.0, sum(quick_mib(pid) or 0.0 for pid in family) - self.memory_mib)
        record.peak_mib = max(record.peak_mib, self.memory_mib)

    def note_peak(self, mono: float) -> None:
        """Note whether its peak stands still."""
        peak_mib = self.record.peak_mib
        if self.still_since is None or peak_mib > self.still_mib * (1 + _STILL):
            self.still_mib, self.still_since, self.still_from = peak_mib, mono, self.reader.count

    def growing(self, mono: float) -> bool:
        """
        Whether it may still grow into all that its device has left: nobody has declared how much it needs, and it has
        not shown it.
        """
        record = self.record
        if not self.counts or record.memory_mib or self.still_since is None:
            return self.counts and not record.memory_mib
        if not record.peak_mib and record.pid:
            return True  # nothing of it is seen on the device: it has not begun, or the driver does not tell
        still_s = mono - self.still_since
        if self.reader.count:
            return still_s < SETTLED_S or self.reader.count - self.still_from < SETTLED_ITERATIONS
        # What was started here may be reading its data before its first iteration.
        return still_s < (SETTLED_S if record.attached else UNTRACKED_SETTLED_S)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def fetch(self) -> list[tuple[float, float]]:
        """
        Its new iterations, :data:`STEPS_PER_S` at most: (end in epoch seconds, duration in seconds) each. It needs no lock:
        one thread calls it, and it may wait for Redis.
        """
        mono = time.monotonic()
        self.allowed = min(self.allowed + (mono - self.allowed_at) * STEPS_PER_S, STEPS_PER_S * _SAVED_S)
        self.allowed_at = mono
        steps = self.reader.read_new(max(1, int(self.allowed)))
        self.allowed -= len(steps)
        return steps

    def refuse_steps(self) -> None:
        """It is over: let whoever sends steps know that they are not wanted any more. Waits for Redis, as :meth:`fetch`."""
        if isinstance(self.reader, RemoteSteps):
            self.reader.close()

    def take(self, steps: Sequence[tuple[float, float]], now: float, activity: Activity) -> None:
        """
        Count its new iterations; ``now`` in epoch seconds. One within which a function ran is shared; where what met it was
        the worker's own work, it is neither shared nor solo. Those that began before this worker are left out: nobody knows
        what ran then. So is what is no iteration.
        """
        for end, duration in steps:
            begin = end - duration
            # A clock that is ahead of ours would put steps into windows that are still to come.
            if not (
                now - WINDOW_S < end <= now + _AHEAD_S and 0.0 <= duration <= _LONGEST_S and begin >= activity.since
            ):
                continue
            met = activity.overlaps(begin, end)
            solo, shared = self.seconds.setdefault(int(end), (Sum(), Sum()))
            if activity.by_function(begin, end):
                shared.add(duration)
            elif not met:
                solo.add(duration)
            self.windows.add(end, duration, met)
            if self.guest_windows is not None:
                # Functions run in them as they do outside.
                self.guest_windows.add(end, duration, False)
            if not met:
                self.beside.add(end, duration)
        self.windows.settle(now)
        if self.guest_windows is not None:
            self.guest_windows.settle(now)
        for second in [second for second in self.seconds if second <= now - WINDOW_S]:
            del self.seconds[second]

    @property
    def iterates(self) -> bool:
        """Whether its iterations have begun; one that tells none is taken to need a while."""
        return self.reader.count > 0 or time.time() - self.record.started_at > _BEGUN_S

    def meet(self, now: float, others: Collection["Rank"]) -> bool:
        """
        Which other trainings are here from ``now`` (epoch seconds) on. Returns whether the record has changed: what it took
        alone must outlive the worker.
        """
        ready = all(job.iterates for job in (self, *others))
        if not self.beside.meet(now, frozenset(job.record.id for job in others) if ready else None):
            return False
        alone = self.beside.alone
        before, self.record.alone = self.record.alone, (alone.mean, alone.n, alone.error)
        return before != self.record.alone

    @property
    def iterations_made(self) -> int:
        """By its process; of one that is over they stay known when the file of its steps is gone."""
        return max(self.reader.count, self.record.iterations)

    # ---- its end -----------------------------------------------------------------------------------------------------

    def close(self, state: JobState, code: int | None) -> None:
        """It has ended so; nothing of it is read any more. The caller writes the record."""
        self.reader.look()
        self.record.state, self.record.exit_code, self.record.ended_at = state, code, time.time()
        self.record.iterations = self.iterations_made
        self.memory_mib = 0.0

    def reap(self) -> None:
        """Let the kernel forget its shim."""
        if self.child is not None:
            self.child.poll()

    def report(self, checkpoint_iterations: int = 0, held: float | None = None, held_s: float = 0.0) -> JobReport:
        """
        ``checkpoint_iterations``: of the last complete checkpoint in its folder; ``held``: the part of the time in which it
        may run as a guest, None = it is none; ``held_s``: seconds for which it was held back.
        """
        solo, shared = Sum(), Sum()
        for alone, met in self.seconds.values():
            solo.add(alone.seconds, alone.n)
            shared.add(met.seconds, met.n)
        windows, loss, record = self.windows, self.windows.loss, self.record
        recent, closed = windows.recent or _NOTHING, windows.reference or _NOTHING
        pace, beside = self.beside.alone, self.beside.beside
        pair = self.guest_windows.loss if self.guest_windows is not None else None
        return JobReport(
            id=record.id,
            project=record.project,
            state=record.state.value,
            pid=record.pid,
            memory_mib=round(self.memory_mib, 1),
            reserve_mib=round(self.reserve_mib, 1),
            iterations=self.iterations_made,
            window_s=WINDOW_S,
            solo_s=solo.mean,
            solo_count=solo.n,
            shared_s=shared.mean,
            shared_count=shared.n,
            exit_code=record.exit_code,
            workload=record.workload,
            budget=record.budget,
            share=record.share,
            measured=record.tracked or not record.attached,
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
            # One that is held back is not suspended by somebody.
            suspended=self.running and held in (None, 1.0) and proc.suspended(record.pid),
            reason=record.reason,
            unseen=record.unseen,
            attempt=record.attempt,
            rank=record.rank,
            world=record.world,
            checkpoint_iterations=checkpoint_iterations,
            started_at=record.started_at,
            length=self.reader.length,
            alone_s=pace.mean,
            alone_n=pace.n,
            alone_se=pace.error,
            beside=sorted(self.beside.others or ()),
            beside_since=self.beside.since if self.beside.others else 0.0,
            beside_s=beside.mean,
            beside_n=beside.n,
            beside_se=beside.error,
            held_s=held_s,
            guest=held is not None,
            held=1.0 if held is None else held,
            pair_loss=pair.mean if pair else None,
            pair_loss_low=pair.low if pair else None,
            pair_loss_high=pair.high if pair else None,
            pair_windows=self.guest_windows.count if self.guest_windows is not None else 0,
        )
