"""
The run gate of a GPU instance: holds functions back from the training beside them, between batches.

It is shut for two reasons. A **throttle**, set by the leader: functions may work for ``duty`` of the time. A **closed
window**, drawn at random for one job, in which the job's iterations are measured without functions
(smore/domain/windows.py, smore/domain/loss.py). A throttle stops no batch that runs: what it takes beyond its part is
owed. In a closed window a run that lasts is held within: its process is stopped until the window is over. Where no job
runs the gate is always open.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from smore.domain.windows import Closing
from smore.process import observability
from smore.tracking.hold import GANG_S
from worker.activity import Activity

log = observability.logger(__name__)

#: The throttle is a token bucket of seconds of work: ``duty`` tokens are added each second, and the bucket holds those
#: of this many seconds.
PERIOD_S: Final = 1.0
#: Seconds between two looks of the prober for a window that has become due.
_LOOK_S: Final = 0.25
#: And for a guest that is to be held back to have come to the end of its iteration.
_GUEST_LOOK_S: Final = 0.01


class RunGate:
    """
    Open or shut, for every thread that is about to run a batch. ``activity`` says how long functions have worked;
    ``clock`` gives seconds. A condition of its own guards everything.

    The throttle is a token bucket: it fills with ``duty`` seconds a second, empties while anything runs, and a batch
    may start while it is not empty. So functions work for at most ``duty`` of the time in the long run, however long
    each batch is, and the training has at least ``1 - duty`` of it to itself. What a batch leaves owed is owed to the
    trainings beside which it ran, as long as one of them is here and throttles.
    """

    def __init__(self, activity: Activity, clock: Callable[[], float] = time.monotonic) -> None:
        self._activity = activity
        self._clock = clock
        self._changed = threading.Condition()
        self._duty = 1.0
        self._tokens = PERIOD_S
        self._filled_at = clock()
        self._busy_s = activity.busy_s()
        #: Ids of the trainings that run here.
        self._trainings: Collection[str] = ()
        #: Epoch seconds by which the present window is over, None without one.
        self._closed_until: float | None = None

    # ---- for batches -------------------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Whether a batch that :meth:`wait` has let pass may still start; the bucket is not asked again."""
        with self._changed:
            return not self._trainings or (self._closed_until is None and self._duty > 0)

    def wait(self, within_s: float, wanted: Callable[[], bool]) -> bool:
        """Wait until a batch may start; False after ``within_s``, or when it is not wanted any more."""
        until = self._clock() + within_s
        with self._changed:
            while (shut_s := self._wait_s()) > 0:
                left_s = until - self._clock()
                if left_s <= 0 or not wanted():
                    return False
                self._changed.wait(min(shut_s, left_s, _LOOK_S))
        return True

    def window_over(self, within_s: float) -> bool:
        """
        Wait until no closed window is under way: for work that is no batch and can be put off. False after
        ``within_s``.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._trainings or self._closed_until is None, within_s)

    def _wait_s(self) -> float:
        """Seconds for which it stays shut as things are, 0 = it is open, inf = until it is opened."""
        if not self._trainings:
            return 0.0
        if self._closed_until is not None:
            return math.inf
        self._fill()
        if self._duty >= 1:
            return 0.0
        if self._duty <= 0:
            return math.inf
        return 0.0 if self._tokens > 0 else max(0.001, -self._tokens / self._duty)

    def _fill(self) -> None:
        now, busy_s = self._clock(), self._activity.busy_s()
        tokens = self._tokens + self._duty * (now - self._filled_at) - (busy_s - self._busy_s)
        self._tokens = min(self._duty * PERIOD_S, tokens)
        self._filled_at, self._busy_s = now, busy_s

    # ---- who shuts it ------------------------------------------------------------------------------------------------

    def protect(self, trainings: Collection[str]) -> None:
        """
        Which trainings run here; without one the gate is open. Called with every heartbeat, so the bucket is never long
        out of date.
        """
        with self._changed:
            self._fill()
            if not set(self._trainings) & set(trainings):
                self._tokens = self._duty * PERIOD_S
            if trainings != self._trainings:
                self._trainings = trainings
                self._changed.notify_all()

    def throttle(self, duty: float) -> None:
        """
        Functions may work for this part of the time, 0..1; applies at once to what has not started. Raises ValueError.
        """
        if not 0 <= duty <= 1:
            raise ValueError(f"duty: {duty} is not from 0 to 1")
        with self._changed:
            self._fill()
            if duty != self._duty:
                # Tokens of another duty allow no burst; a debt stays as long as there is a throttle.
                self._tokens = duty * PERIOD_S if duty >= 1 else min(self._tokens, duty * PERIOD_S)
                self._duty = duty
                self._changed.notify_all()

    def shut(self, until: float) -> None:
        """A window begins that will be over at ``until`` (epoch seconds) at the latest."""
        with self._changed:
            self._closed_until = until

    def reopen(self) -> None:
        """The window is over."""
        with self._changed:
            self._closed_until = None
            self._changed.notify_all()

    # ---- for reports -------------------------------------------------------------------------------------------------

    @property
    def duty(self) -> float:
        """The part of the time in which functions may work, 0..1."""
        return self._duty

    @property
    def closed_until(self) -> float | None:
        """Epoch seconds by which the present window is over, None without one."""
        with self._changed:
            return self._closed_until if self._trainings else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """
    The next window of a job: from ``at`` (epoch seconds) on, quiet for ``length_s``, with ``side_s`` of open time before
    and after. ``guest``: the training beside it is held back, and functions run on.
    """

    job: str
    at: float
    length_s: float
    side_s: float
    guest: bool = False


class Probed(Protocol):
    """The jobs, as the prober needs them."""

    def due(self) -> Sequence[Due]:
        """Of every job that runs and is measured."""

    def closed(self, job: str, closing: Closing, *, guest: bool) -> None:
        """The gate was shut for a job, or its guest was held back."""

    def shut_guest(self, on: bool) -> None:
        """Hold back the guest of this GPU instance altogether, or let it run as before."""

    def guest_waits(self) -> bool:
        """Whether it computes nothing now."""

    def runs(self, job: str) -> bool:
        """Whether it still runs."""


class Runs(Protocol):
    """The batches that run, as the prober needs them."""

    def hold(self) -> None:
        """Stop them where they are, and return when they stand still: they are at work no more."""

    def go_on(self) -> None:
        """Let those that were stopped run again."""


@dataclass(eq=False, kw_only=True)
class Prober:
    """
    One thread that shuts the run gate for the windows of the jobs, one after the other, and never for longer than
    ``longest_s`` at a time. Runs have as long as the window lasts to end by themselves and are held then: a window keeps
    nothing for longer than twice its length, and no run is held that could have ended in the meantime.

    ``changed`` is called when it shuts and when it opens. ``clock`` gives epoch seconds, as the jobs' iterations do.
    """

    gate: RunGate
    activity: Activity
    jobs: Probed
    runs: Runs
    longest_s: float
    changed: Callable[[], None]
    clock: Callable[[], float] = time.time
    stopped: threading.Event = field(default_factory=threading.Event)
    #: Epoch seconds until which the window before needs open time after it.
    _clear_at: float = field(default=0.0, init=False)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        threading.Thread(target=self._run, name="prober", daemon=True).start()

    def stop(self) -> None:
        """End the thread and, at once, a window that is under way."""
        self.stopped.set()

    def _run(self) -> None:
        while not self.stopped.is_set():
            wait_s = _LOOK_S
            try:
                wait_s = self.step()
            except Exception:
                # A window that went wrong must not end the measuring, and leaves the gate open.
                log.exception("window failed")
            if wait_s > 0:
                self.stopped.wait(wait_s)

    def step(self) -> float:
        """Make the window that is due, or say how long to wait before looking again, seconds."""
        now = self.clock()
        windows = [(max(due.at, self._clear_at + due.side_s), due) for due in self.jobs.due()]
        if not windows:
            return 1.0
        at, due = min(windows, key=lambda pair: pair[0])
        if at > now:
            return min(at - now, _LOOK_S)
        closing = self._close(due)
        self._clear_at = 2 * closing.opened - closing.shut + due.length_s
        self.jobs.closed(due.job, closing, guest=due.guest)
        return 0.0

    def _close(self, due: Due) -> Closing:
        shut = self.clock()
        longest_s = min(self.longest_s, GANG_S) if due.guest else self.longest_s
        quiet = None
        try:
            self._shut(due, shut + longest_s)
            if self._quiet(due, longest_s - due.length_s):
                quiet = self.clock()
                end = quiet + due.length_s
                while (left_s := end - self.clock()) > 0 and self.jobs.runs(due.job):
                    if self.stopped.wait(min(left_s, _LOOK_S)):
                        break
        finally:
            opened = self.clock()
            if due.guest:
                self.jobs.shut_guest(False)
            else:
                self.runs.go_on()
                self.gate.reopen()
                self.changed()
        return Closing(shut=shut, quiet=quiet, opened=opened)

    def _shut(self, due: Due, until: float) -> None:
        if due.guest:
            self.jobs.shut_guest(True)
        else:
            self.gate.shut(until)
            self.changed()

    def _quiet(self, due: Due, within_s: float) -> bool:
        """Whether nothing that the window keeps out runs any more, within that time."""
        if not due.guest:
            alone_s = min(due.length_s, within_s)
            if self.activity.wait_idle(alone_s):
                return True
            self.runs.hold()
            return self.activity.wait_idle(within_s - alone_s)
        until = self.clock() + within_s
        while not (waits := self.jobs.guest_waits()) and self.clock() < until and not self.stopped.is_set():
            self.stopped.wait(_GUEST_LOOK_S)
        return waits
