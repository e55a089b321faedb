"""
Holds back the guest of a GPU instance: a training that came beside another one, its host, and costs it more than its owner
allows. Used under the lock of :class:`worker.training.ranks.Ranks`.

How much of the time the guest may run is the governor's (worker/training/governor.py). It is held back between iterations
and micro-batches by a word in a file that its loop looks at (smore/tracking/hold.py); a loop that does not look is stopped
and continued by a process of its own (worker/training/pauser.py). The file is the training's own, so what it says is held
against the processor time of its processes (:class:`Pace`): a training that computes while it is to wait is stopped too.
What must stay true: nothing here keeps a training back once the worker is silent, nor one that is being ended.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from smore.domain.windows import Probing
from smore.process import observability
from smore.tracking.hold import GANG_S, HoldFile
from worker import proc
from worker.training import pauser
from worker.training.governor import Governor
from worker.training.job import Rank
from worker.training.record import Records

log = observability.logger(__name__)

#: The longest window in which a guest is held back: so long a rank of a gang may be.
WINDOW_MAX_S: Final = GANG_S
#: Seconds between two looks of the worker: half of what makes it silent for a training.
LOOK_S: Final = 0.5
#: Seconds free, and seconds held back, of which a guest's pace is known.
KNOWN_S: Final = 5.0
#: Of the processor time that a guest would save by being held back, the part that it may spend all the same: its threads that
#: load data go on, and an iteration that has begun ends.
LEEWAY: Final = 0.5
#: A guest that takes less than this of a core when it is free shows nothing.
LEAST_RATE: Final = 0.05


class Pace:
    """
    A guest's processor time while it is free, and while it is held back. A training on a GPU that computes needs some too:
    it starts its kernels.
    """

    def __init__(self) -> None:
        self._free_s = self._free_cpu_s = 0.0
        self._held_s = self._held_cpu_s = self._due_s = 0.0

    def add(self, seconds: float, fraction: float, cpu_s: float) -> None:
        """For so long it was to run for this part of the time, and took so much processor time."""
        if fraction >= 1.0:
            self._free_s, self._free_cpu_s = self._free_s + seconds, self._free_cpu_s + cpu_s
        else:
            self._held_s, self._held_cpu_s = self._held_s + seconds, self._held_cpu_s + cpu_s
            self._due_s += fraction * seconds

    def believed(self) -> bool:
        """Whether it is held back as far as its processor time shows."""
        if min(self._free_s, self._held_s) < KNOWN_S:
            return True
        rate = self._free_cpu_s / self._free_s
        most_s = self._due_s + LEEWAY * (self._held_s - self._due_s)
        return rate < LEAST_RATE or self._held_cpu_s <= rate * most_s


class Holding:
    """
    Of one GPU instance; the caller's lock guards it. ``probing``: the host's closed windows.
    """

    def __init__(
        self,
        records: Records,
        probing: Probing,
        cpu_s: Callable[[Rank], float] = lambda job: sum(map(proc.cpu_s, proc.tree(job.record.pid))),
    ) -> None:
        self._records, self._cpu_s = records, cpu_s
        self._probing = replace(probing, longest_s=min(probing.longest_s, WINDOW_MAX_S))
        self.host: Rank | None = None
        self.guest: Rank | None = None
        self._governor = Governor()
        self._shut = False
        self._pauser: subprocess.Popen[bytes] | None = None
        #: What was said last, and when.
        self._said = 1.0
        self._said_at = 0.0
        #: The guest's, its processor time so far, and whether what it said last counts: in the file it says that it waits.
        self._pace = Pace()
        self._cpu = 0.0
        self._waited = False

    @property
    def fraction(self) -> float:
        """The part of the time in which the guest may run, 1 = freely."""
        return self._governor.fraction if self.guest is not None else 1.0

    def look(self, now: float, jobs: Collection[Rank]) -> None:
        """
        See who is here, judge, and say it again. ``now``: epoch seconds. Called every :data:`LOOK_S`.
        """
        host, guest = _pair([job for job in jobs if job.running and not job.record.attached and job.kill_at is None])
        if host is not self.host or guest is not self.guest:
            self._meet(now, host, guest)
        if host is None or host.guest_windows is None:
            return
        windows = host.guest_windows
        if self._governor.judge(now, host.record.share, windows.finished, windows.recent, windows.reference):
            log.info("guest held back", guest=self.guest and self.guest.record.key, fraction=self.fraction)
            # What the host took before compares with nothing from now on.
            host.windows.renew(now)
        self._say()

    def _meet(self, now: float, host: Rank | None, guest: Rank | None) -> None:
        self.release()
        self.host, self.guest = host, guest
        if host is not None and guest is not None:
            host.guest_windows = self._probing.windows(f"{host.record.key}/{guest.record.key}", now)
            host.windows.renew(now)
            self._pace, self._cpu = Pace(), self._cpu_s(guest)

    def release(self) -> None:
        """The guest runs freely from now on: it is about to be ended, or is a guest no more."""
        self._shut = False
        self._governor = Governor()
        self._say()
        if self.host is not None:
            self.host.guest_windows = None
        self.host = self.guest = None
        if self._pauser is not None and self._pauser.stdin is not None:
            # It ends with its input.
            self._pauser.stdin.close()
            self._pauser.wait()
            self._pauser = None

    def reported(self, job: Rank) -> tuple[float | None, float]:
        """The part of the time in which a job may run as a guest, None = it is none; seconds for which it was held back."""
        held_s = HoldFile(self._records.hold(job.record.key)).read().seconds if job.record.hosts else 0.0
        return (self.fraction if job is self.guest else None), held_s

    # ---- windows -----------------------------------------------------------------------------------------------------

    def shut(self, on: bool) -> None:
        """A window begins or is over: the guest is held back altogether in it."""
        self._shut = on
        self._say()

    def waits(self) -> bool:
        """Whether the guest computes nothing now because it is held back."""
        if self.guest is None:
            return True
        said = HoldFile(self._records.hold(self.guest.record.key)).read()
        if not said.pid or not self._pace.believed():
            return self._said == 0.0
        if said.waits and not self._waited:
            # From now on it must take no processor time.
            self._said_at, self._cpu, self._waited = time.monotonic(), self._cpu_s(self.guest), True
        return said.waits

    # ---- saying it ---------------------------------------------------------------------------------------------------

    def _say(self) -> None:
        if self.guest is None:
            return
        record, mono = self.guest.record, time.monotonic()
        fraction = 0.0 if self._shut else self.fraction
        file = HoldFile(self._records.hold(record.key))
        said = file.read()
        if said.pid and self._pace.believed():
            self._see(mono)
        if said.pid:
            file.write(fraction)
        if said.pid and self._pace.believed():
            self._pause(1.0)
        else:
            if self._said < 1.0:
                file.add((mono - self._said_at) * (1.0 - self._said))
            self._pause(fraction)
        self._said, self._said_at, self._waited = fraction, mono, said.waits

    def _see(self, mono: float) -> None:
        """What the guest has computed since it was told last; in a window, since it said that it waits."""
        assert self.guest is not None
        cpu_s = self._cpu_s(self.guest)
        if self._said_at and (self._said or self._waited):
            self._pace.add(mono - self._said_at, self._said, max(0.0, cpu_s - self._cpu))
        self._cpu = cpu_s
        if not self._pace.believed():
            log.warning("guest computes while it is to wait: it is stopped from now on", guest=self.guest.record.key)

    def _pause(self, fraction: float) -> None:
        """Have a training that does not look at its file stopped for the rest of the time."""
        assert self.guest is not None
        if fraction >= 1.0 and self._pauser is None:
            return
        if self._pauser is None or self._pauser.poll() is not None:
            if self._pauser is not None:
                # It may have left its training stopped.
                wake(self.guest)
            command = [sys.executable, "-I", "-S", str(Path(pauser.__file__))]
            # A session of its own: a signal to the worker's group must not end it while a training is stopped.
            self._pauser = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env={})
        record = self.guest.record
        assert self._pauser.stdin is not None
        try:
            self._pauser.stdin.write(b"%f %d %d\n" % (fraction, record.pid, record.start))
            self._pauser.stdin.flush()
        except BrokenPipeError:
            return  # another one is started at the next look


def wake(job: Rank) -> None:
    """Continue a training that may have been stopped to hold it back."""
    if job.record.alive():
        try:
            os.killpg(job.record.pid, signal.SIGCONT)
        except ProcessLookupError:
            return


def _pair(running: Collection[Rank]) -> tuple[Rank | None, Rank | None]:
    """
    The host and its guest, which was started beside it, whichever process began first. Where both were started beside the
    other, a former host has come back: the one that began later is the guest.
    """
    for guest in running:
        host = next((job for job in running if job.record.id in guest.record.hosts), None)
        if host is None:
            continue
        if guest.record.id in host.record.hosts:
            host, guest = sorted((host, guest), key=lambda job: job.record.started_at)
        return host, guest
    return None, None
