"""
Whether a training is held back, in a second small file beside that of its steps: the worker writes how much of the time it
may run, and the training's loop looks at it after each iteration and between micro-batches (:class:`Hold`).

The training maps the file, so a look costs no system call. Layout (little-endian):

====== ==== ==========================================================================
offset type meaning
====== ==== ==========================================================================
0      8s   magic ``SMHLD001``
8      f64  the part of the time in which it may run, 0 to 1 (by the worker)
16     f64  when the worker last wrote, seconds of the machine's monotonic clock
24     f64  seconds for which it was held back so far (by the training; by the worker of one that does not look)
32     f64  since when it has been waiting, same clock; 0 = it runs (by the training)
40     u64  process id of the training that looks at this file; 0 = none does
====== ==== ==========================================================================

Once the worker has been silent for :data:`SILENT_S`, the training runs freely. Standard library alone.
"""

import contextlib
import math
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final, NamedTuple

from smore.tracking.regular import open_regular

MAGIC: Final = b"SMHLD001"
FILE_BYTES: Final = 64
#: The variable that names the file.
VARIABLE: Final = "SMORE_HOLD"
#: A worker that has not written for so many seconds holds nobody back.
SILENT_S: Final = 2.0
#: Seconds for which one of several ranks waits at most at a time: the others wait for it in collectives, which time out.
GANG_S: Final = 5.0
#: A training that says that it was held for longer is not believed, seconds: it is a century.
_LONGEST_S: Final = 3.2e9
#: Seconds between two looks of a training that waits.
_LOOK_S: Final = 0.005

_FRACTION, _AT, _HELD, _SINCE, _PID = 1, 2, 3, 4, 5
_FILE: Final = struct.Struct("<8sddddQ")


class Hold:
    """The training's side. ``gang``: it is one of several ranks. Raises OSError, ValueError for a file that is none."""

    def __init__(self, path: str, *, gang: bool) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != FILE_BYTES or os.pread(descriptor, 8, 0) != MAGIC:
                raise ValueError(f"{path} says nothing about holding back")
            self._map = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        view = memoryview(self._map)
        self._floats, integers = view.cast("d"), view.cast("Q")
        view.release()
        integers[_PID] = os.getpid()
        integers.release()
        self._longest_s = GANG_S if gang else float("inf")
        #: Monotonic seconds from which on it has run.
        self._since = time.monotonic()

    def wait(self) -> float:
        """Wait for as long as the training is to be held back now; returns the seconds that it took, 0 = none."""
        floats = self._floats
        if floats[_FRACTION] >= 1.0:
            self._since = 0.0
            return 0.0
        began = time.monotonic()
        # What it did before it was held back at all is not made up for.
        worked_s = began - self._since if self._since else 0.0
        floats[_SINCE] = began
        while (now := time.monotonic()) < self._until(began, worked_s, now):
            time.sleep(_LOOK_S)
        floats[_SINCE] = 0.0
        floats[_HELD] += now - began
        self._since = now
        return now - began

    def _until(self, began: float, worked_s: float, now: float) -> float:
        """When it goes on, as the file says now."""
        fraction = self._floats[_FRACTION]
        if fraction >= 1.0 or abs(now - self._floats[_AT]) > SILENT_S:
            return now
        share_s = worked_s * (1.0 - fraction) / fraction if fraction > 0.0 else float("inf")
        return began + min(share_s, self._longest_s)

    def close(self) -> None:
        """It looks no more: from now on the worker stops and continues its process."""
        struct.pack_into("<Q", self._map, 8 * _PID, 0)
        self._floats.release()
        self._map.close()


class Held(NamedTuple):
    """What a training says of itself: seconds held so far, whether it waits now, its process (0 = it does not look)."""

    seconds: float
    waits: bool
    pid: int


class HoldFile:
    """The worker's side. It reads and writes the file and does not map it: a file cut short would kill it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> None:
        """A file that holds nobody back, for a training that begins. Raises OSError."""
        self._path.write_bytes(_FILE.pack(MAGIC, 1.0, 0.0, 0.0, 0.0, 0).ljust(FILE_BYTES, b"\0"))

    def write(self, fraction: float) -> None:
        """
        The training may run for this part of the time, from now on and until :data:`SILENT_S` after the last call. Of one
        that is forgotten there is no file, and nothing is written.
        """
        # The time first: a fraction beside an old time would count for nothing.
        self._write((_AT, time.monotonic()), (_FRACTION, fraction))

    def add(self, seconds: float) -> None:
        """A training that does not look at this file was stopped for so long."""
        self._write((_HELD, self.read().seconds + seconds))

    def _write(self, *values: tuple[int, float]) -> None:
        # Where the training has put something else there, it looks at nothing that the worker writes.
        with contextlib.suppress(OSError), open(open_regular(self._path, os.O_RDWR), "r+b", buffering=0) as file:
            for place, value in values:
                os.pwrite(file.fileno(), struct.pack("<d", value), 8 * place)

    def read(self) -> Held:
        """Nothing where there is no such file, or it says what cannot be."""
        try:
            with open(open_regular(self._path), "rb", buffering=0) as file:
                raw = file.read(FILE_BYTES)
            magic, _, _, held_s, since, pid = _FILE.unpack_from(raw)
        except (OSError, struct.error):
            return Held(0.0, False, 0)
        if magic != MAGIC or not 0.0 <= held_s <= _LONGEST_S or not math.isfinite(since):
            return Held(0.0, False, 0)
        return Held(held_s, since > 0.0, pid)
