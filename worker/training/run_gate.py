"""
The gate of a GPU instance: between batches, and nowhere else, functions can be held back from the training beside them.

It is shut for two reasons. A **throttle**, told by the leader: functions may be at work for ``duty`` of the time. A
**closed window**, drawn by chance for one job, in which is measured what that job does without them
(worker/training/windows.py, smore/domain/loss.py). Neither can stop a batch that runs: the gate stands between runs,
and how long a run may be is reported (``longest_s``). Where no job runs it is always open.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from smore.process import observability
from worker.activity import Activity
from worker.training.windows import Closing

log = observability.logger(__name__)

#: The throttle's tokens are seconds of work: ``duty`` of them come in each second, and no more than this long's are
#: kept.
PERIOD_S: Final = 1.0
#: A batch may owe so many: one that runs for longer is not made up for.
DEBT_S: Final = 5.0
#: How often the prober looks whether a window has become due.
_LOOK_S: Final = 0.25


class Gate:
    """
    Open or shut, for every thread that is about to run a batch. ``activity`` says how long functions have been at work.

    The throttle is a bucket: it fills with ``duty`` seconds a second, empties while anything runs, and a batch may
    start while it is not empty. So functions are at work for at most ``duty`` of the time in the long run, however long
    each batch is (up to :data:`DEBT_S`), and the training has at least ``1 - duty`` of it to itself.
    """

    def __init__(self, activity: Activity, clock: Callable[[], float] = time.monotonic) -> None:
        self._activity = activity
        self._clock = clock
        self._changed = threading.Condition()
        self._duty = 1.0
        self._tokens = PERIOD_S
        self._filled_at = clock()
        self._busy_s = activity.busy_s()
        self._protecting = False
        #: Epoch seconds by which the window at hand is over, None without one.
        self._closed_until: float | None = None

    # ---- for batches -------------------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Whether a batch that has waited here may start: nobody has shut it since. Its tokens it has had already."""
        with self._changed:
            return not self._protecting or (self._closed_until is None and self._duty > 0)

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
        Wait until no closed window is at hand: for work that is no batch and can be put off. False after ``within_s``.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._protecting or self._closed_until is None, within_s)

    def _wait_s(self) -> float:
        """For how long it stays shut as things are, 0 = it is open. inf: until somebody opens it."""
        if not self._protecting:
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
        self._tokens = max(-DEBT_S, min(self._duty * PERIOD_S, tokens))
        self._filled_at, self._busy_s = now, busy_s

    # ---- who shuts it ------------------------------------------------------------------------------------------------

    def protect(self, on: bool) -> None:
        """
        Whether there is a job here; without one the gate is open. Said with every heartbeat: so the bucket is never
        long out of date.
        """
        with self._changed:
            self._fill()
            if on != self._protecting:
                self._protecting = on
                self._changed.notify_all()

    def throttle(self, duty: float) -> None:
        """
        Functions may work for this part of the time, 0..1; at once for whatever has not started. Raises ValueError.
        """
        if not 0 <= duty <= 1:
            raise ValueError(f"duty: {duty} is not from 0 to 1")
        with self._changed:
            self._fill()
            if duty != self._duty:
                # What was saved up under another duty is no right to a burst, and what is owed is owed.
                self._duty, self._tokens = duty, min(self._tokens, duty * PERIOD_S)
                self._changed.notify_all()

    def shut(self, until: float) -> None:
        """A window begins that will be over at ``until`` (epoch seconds) at the latest."""
        with self._changed:
            self._closed_until = until

    def reopen(self) -> None:
        with self._changed:
            self._closed_until = None
            self._changed.notify_all()

    # ---- for reports -------------------------------------------------------------------------------------------------

    @property
    def duty(self) -> float:
        return self._duty

    @property
    def closed_until(self) -> float | None:
        """Epoch seconds by which the window at hand is over, None without one."""
        with self._changed:
            return self._closed_until if self._protecting else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """
    A window that is wanted for a job: from ``at`` on, quiet for ``length_s``, with ``side_s`` of open time before and
    after.
    """

    job: str
    at: float
    length_s: float
    side_s: float


class Probed(Protocol):
    """The jobs, as the prober needs them."""

    def due(self) -> Sequence[Due]:
        """Of every job that runs and is measured."""

    def closed(self, job: str, closing: Closing) -> None:
        """The gate was shut for a job."""

    def runs(self, job: str) -> bool:
        """Whether it still runs."""


class Prober:
    """
    One thread that shuts the gate for the windows of the jobs, one after the other, and never for longer than
    ``longest_s`` at a time.

    ``changed`` is called when it shuts and when it opens. ``clock`` gives epoch seconds, as the jobs' iterations do.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        activity: Activity,
        jobs: Probed,
        longest_s: float,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.time,
        stopped: threading.Event | None = None,
    ) -> None:
        self._gate = gate
        self._activity = activity
        self._jobs = jobs
        self._longest_s = longest_s
        self._changed = changed
        self._clock = clock
        self._stopped = stopped if stopped is not None else threading.Event()
        #: Until then the window before wants open time after it.
        self._clear_at = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="prober", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            wait_s = _LOOK_S
            try:
                wait_s = self.step()
            except Exception:
                # A window that went wrong must not end the measuring, and leaves the gate open.
                log.exception("window failed")
            if wait_s > 0:
                self._stopped.wait(wait_s)

    def step(self) -> float:
        """Make the window that is due, or say how long to wait before looking again, seconds."""
        now = self._clock()
        wanted = [(max(one.at, self._clear_at + one.side_s), one) for one in self._jobs.due()]
        if not wanted:
            return 1.0
        at, due = min(wanted, key=lambda pair: pair[0])
        if at > now:
            return min(at - now, _LOOK_S)
        closing = self._close(due)
        self._clear_at = 2 * closing.opened - closing.shut + due.length_s
        self._jobs.closed(due.job, closing)
        return 0.0

    def _close(self, due: Due) -> Closing:
        shut = self._clock()
        until = shut + self._longest_s
        self._gate.shut(until)
        quiet = None
        try:
            self._changed()
            if self._activity.wait_idle(self._longest_s - due.length_s):
                quiet = self._clock()
                end = quiet + due.length_s
                while (left_s := end - self._clock()) > 0 and self._jobs.runs(due.job):
                    if self._stopped.wait(min(left_s, _LOOK_S)):
                        break
        finally:
            opened = self._clock()
            self._gate.reopen()
            self._changed()
        return Closing(shut=shut, quiet=quiet, opened=opened)
