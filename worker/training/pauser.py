"""
``python -I -S pauser.py``: stops and continues a training whose loop does not look at the file of holding back
(smore/tracking/hold.py), by SIGSTOP and SIGCONT to its process group.

The worker writes a line ``FRACTION PID START`` to stdin at least once a second: the training with that number and start time
may run for that part of each :data:`PERIOD_S`, which begins at the same time everywhere: the ranks of a training that
wait for each other must be stopped together. A process of its own, because a training that is stopped must go on whatever
becomes of the worker: it is continued when stdin ends, and when nothing was written for :data:`SILENT_S`. Standard library
only.
"""

import os
import select
import signal
import sys
import time

PERIOD_S = 1.0
SILENT_S = 5.0


class Target:
    """The training at hand."""

    def __init__(self) -> None:
        self.fraction, self.pid, self.start = 1.0, 0, 0
        self.stopped = False

    def take(self, fraction: float, pid: int, start: int) -> None:
        if (pid, start) != (self.pid, self.start):
            self.turn(False)
            self.stopped = False
        self.fraction, self.pid, self.start = fraction, pid, start

    def turn(self, stop: bool) -> None:
        """Stop it, or let it run."""
        if stop != self.stopped and self.pid and _start(self.pid) == self.start:
            try:
                os.killpg(self.pid, signal.SIGSTOP if stop else signal.SIGCONT)
            except OSError:
                stop = False
            self.stopped = stop


def _start(pid: int) -> int:
    """Clock ticks since boot at which a process began; -1 of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return -1


def phase(now: float, fraction: float) -> tuple[bool, float]:
    """Whether a training is stopped at ``now`` (epoch seconds), and for how many seconds that stays so."""
    open_s, at = fraction * PERIOD_S, now % PERIOD_S
    stop = at >= open_s
    return stop, PERIOD_S - at if stop else open_s - at


def main() -> None:
    os.set_blocking(0, False)
    target = Target()
    heard_at = time.monotonic()
    rest = b""
    try:
        while True:
            stop, left_s = phase(time.time(), target.fraction)
            target.turn(stop and time.monotonic() - heard_at <= SILENT_S)
            if not select.select([0], [], [], max(0.001, left_s))[0]:
                continue
            read = os.read(0, 4096)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                fraction, pid, start = line.split()
                target.take(float(fraction), int(pid), int(start))
                heard_at = time.monotonic()
    finally:
        target.turn(False)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    main()
