"""
The closed windows of one job: when the run gate must be shut for it, and what its iterations in and beside them show.

Used under the lock of :class:`worker.training.ranks.Ranks`. Pure: times are arguments, epoch seconds like the ends in the
job's file of steps. A window is shut from ``shut`` on, quiet (nothing runs any more) from ``quiet`` on and opens at
``opened``. With ``g = opened - shut`` and an iteration as the interval from its begin to its end:

============ ==========================================================================================================
closed       wholly between ``quiet`` and ``opened``, and no function met it
open, before the last as many that ended before ``shut - g``
open, after  the first as many that began after ``opened + g``
transitional everything between, with runs that end and a backlog that is worked off; it is dropped
============ ==========================================================================================================

The same distance ``g`` is left before and after, so that both sides lie equally far from the window and a trend
cancels.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from smore.domain import loss
from smore.domain.loss import ClosedWindow, Loss, Sample

#: Open iterations that are needed before the first window.
_NEEDED: Final = 20
#: The fast test's iterations: those that ended in the last so many seconds, and older ones up to ``loss.LEAST_RECENT``.
RECENT_S: Final = 5.0
#: Windows whose closed iterations are the fast test's reference.
_REFERENCE: Final = 5
#: Windows that the loss in reports averages: the control needs the present, not the whole run of the job.
LOSS_WINDOWS: Final = 60
#: Seconds for which a finished window is repeated in reports: a report may be lost.
REPEATED_S: Final = 30.0
#: How many times its own length a window waits for the open iterations after it before it is given up.
_PATIENCE: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """One closing of the gate; see the module. ``quiet`` is None where the runs under way did not end in time."""

    shut: float
    quiet: float | None
    opened: float


@dataclass(frozen=True, slots=True)
class _Iteration:
    begin: float
    end: float
    #: A function was at work meanwhile.
    met: bool

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """
    When windows are closed. ``seed`` makes the times reproducible; ``share`` of the time is closed, 0 = never; no window is
    longer than ``longest_s``, the wait for running batches included.
    """

    seed: str
    share: float
    longest_s: float

    def windows(self, key: str, since: float) -> "Windows":
        """Of a rank, or of a rank and its guest, by the keys of their records."""
        return Windows(seed=f"{self.seed}/{key}", share=self.share, longest_s=self.longest_s, since=since)


class Windows:
    """
    Not thread-safe. Iterations that began before ``since`` are left out: nobody knows what ran then. The others as in
    :class:`Probing`.
    """

    def __init__(self, *, seed: str, share: float, longest_s: float, since: float) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._longest_s = longest_s
        self.since = since
        #: As far back as a window and both its sides can reach.
        self._iterations: deque[_Iteration] = deque()
        self._closings: deque[Closing] = deque()
        #: Waiting for the open iterations after them.
        self._pending: list[Closing] = []
        self._iteration_s: float | None = None
        self._due: float | None = None
        #: Seconds that running batches took to end at the last closing.
        self._drain_s = 0.0
        self._windows: deque[ClosedWindow] = deque(maxlen=LOSS_WINDOWS)
        #: (when it was finished, window).
        self._fresh: deque[tuple[float, ClosedWindow]] = deque()
        self._loss: Loss | None = None
        #: Windows that began before are no reference.
        self._renewed_at = 0.0

    # ---- when --------------------------------------------------------------------------------------------------------

    @property
    def length_s(self) -> float | None:
        """How long the next window must be quiet. None: not known yet, or iterations are too long for a window."""
        recent = self.recent
        if recent is not None and recent.n >= _NEEDED:
            self._iteration_s = recent.mean
        if self._iteration_s is None:
            return None
        length_s = loss.window_s(self._iteration_s)
        return length_s if length_s <= self._longest_s else None

    @property
    def side_s(self) -> float:
        """How much open time the next window wants on either side: the distance and as many iterations again."""
        return 2 * (self.length_s or 0.0) + self._drain_s

    def due(self, now: float) -> float | None:
        """When the next window is to begin; None: there is none (yet)."""
        length_s = self.length_s
        if not self._share or length_s is None:
            return None
        if self._due is None:
            # The first one comes soon: without any the control has no reference.
            self._due = now + self._random.random() * self._gap_s(length_s) / 2
        return self._due

    def _gap_s(self, closed_s: float) -> float:
        """Mean open time between closings of that length."""
        return closed_s * (1 - self._share) / self._share

    def closed(self, closing: Closing) -> None:
        """
        A window is over; the next one is drawn: a gap of at least both sides, and beyond it exponential, so that no
        period is met.
        """
        closed_s = closing.opened - closing.shut
        self._drain_s = (closing.quiet if closing.quiet is not None else closing.opened) - closing.shut
        least_s = 2 * self.side_s
        self._due = closing.opened + least_s + self._random.expovariate(1.0) * max(0.0, self._gap_s(closed_s) - least_s)
        self._closings.append(closing)
        if closing.quiet is not None:
            self._pending.append(closing)

    def disturbed(self, closing: Closing) -> None:
        """The gate was closed for another job."""
        self._closings.append(closing)

    def renew(self, now: float) -> None:
        """What else trains here has changed: windows from before are no reference for the iterations from now on."""
        self._renewed_at = now

    # ---- what it says ------------------------------------------------------------------------------------------------

    def add(self, end: float, duration: float, met: bool) -> None:
        """One iteration, in their order; ``met``: a function was at work meanwhile."""
        iteration = _Iteration(end - duration, end, met)
        if iteration.begin < self.since or duration <= 0:
            return
        self._iterations.append(iteration)
        kept_s = _PATIENCE * self._longest_s
        while self._iterations[0].end < end - kept_s:
            self._iterations.popleft()
        while self._closings and self._closings[0].opened < end - kept_s:
            self._closings.popleft()

    def settle(self, now: float) -> None:
        """Finish the windows whose after side is complete, give up those where it does not come."""
        for closing in list(self._pending):
            window = self._measured(closing)
            if window is not None:
                self._windows.append(window)
                self._fresh.append((now, window))
                self._loss = loss.estimate(self._windows)
            if (
                window is not None
                or now > closing.opened + _PATIENCE * (closing.opened - closing.shut) + self._longest_s
            ):
                self._pending.remove(closing)
        while self._fresh and self._fresh[0][0] < now - REPEATED_S:
            self._fresh.popleft()

    def _measured(self, closing: Closing) -> ClosedWindow | None:
        assert closing.quiet is not None
        guard_s = closing.opened - closing.shut
        inside = [
            iteration.seconds
            for iteration in self._iterations
            if iteration.begin >= closing.quiet and iteration.end <= closing.opened and not iteration.met
        ]
        count = len(inside)
        if count < loss.LEAST_ITERATIONS:
            return None
        others = [past for past in self._closings if past is not closing]
        around = [i for i in self._iterations if not any(_disturbed(i, other) for other in others)]
        before = [i.seconds for i in around if i.end <= closing.shut - guard_s][-count:]
        after = [i.seconds for i in around if i.begin >= closing.opened + guard_s][:count]
        if len(before) < count or len(after) < count:
            return None
        closed = Sample.of(inside)
        return ClosedWindow(
            start=closing.quiet,
            end=closing.opened,
            before_s=Sample.of(before).mean,
            before_n=count,
            closed_s=closed.mean,
            closed_n=count,
            closed_sd=closed.sd,
            after_s=Sample.of(after).mean,
            after_n=count,
        )

    def fresh(self) -> list[ClosedWindow]:
        """The windows that were finished a short while ago: what reports carry."""
        return [window for _, window in self._fresh]

    @property
    def finished(self) -> Sequence[ClosedWindow]:
        """The last :data:`LOSS_WINDOWS`."""
        return self._windows

    @property
    def count(self) -> int:
        """Windows that the loss averages."""
        return len(self._windows)

    @property
    def loss(self) -> Loss | None:
        """Over the last :data:`LOSS_WINDOWS` windows."""
        return self._loss

    @property
    def recent(self) -> Sample | None:
        """
        The last iterations with the gate open: of :data:`RECENT_S`, and :data:`~smore.domain.loss.LEAST_RECENT` where
        there are.
        """
        recent: list[float] = []
        for iteration in reversed(self._iterations):
            if len(recent) >= loss.LEAST_RECENT and iteration.end <= self._iterations[-1].end - RECENT_S:
                break
            if not any(_disturbed(iteration, past) for past in self._closings):
                recent.append(iteration.seconds)
        return Sample.of(recent) if recent else None

    @property
    def reference(self) -> Sample | None:
        """The closed iterations of the last windows."""
        return loss.reference([window for window in self._windows if window.start >= self._renewed_at][-_REFERENCE:])


def _disturbed(iteration: _Iteration, closing: Closing) -> bool:
    """Whether it lay in a closing or in the time after it, in which the backlog is worked off."""
    return iteration.end > closing.shut and iteration.begin < closing.opened + (closing.opened - closing.shut)
