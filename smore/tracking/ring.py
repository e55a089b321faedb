"""
A training's steps in a file, as a ring buffer that :class:`Tracker` writes and :class:`TrackReader` reads in the worker.

The training maps the file, so a step costs no system call and no lock, and the last steps of a killed job can still be
read. Layout (little-endian):

====== ==== =======================================================
offset type meaning
====== ==== =======================================================
0      8s   magic ``SMTRK001``
8      u32  version (1)
12     u32  capacity: slots in the ring (65536)
16     u64  count: steps written in the life of the file
24     f64  when the present writer opened it, epoch seconds
32     u32  process id of the present writer
40     u64  iterations that the training makes in all; 0 = not said
64     slot x capacity: f64 end (epoch seconds), f64 duration (seconds)
====== ==== =======================================================

Step ``n`` is in slot ``n % capacity``, and ``count = n + 1`` publishes it. A writer that opens a valid file continues its
count, so a reader's position stays valid when the job restarts.
"""

import fcntl
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

from smore.tracking import micro_batches
from smore.tracking.hold import VARIABLE as HOLD
from smore.tracking.hold import Hold
from smore.tracking.regular import open_regular

MAGIC: Final = b"SMTRK001"
VERSION: Final = 1
CAPACITY: Final = 65536
HEADER_BYTES: Final = 64
SLOT_BYTES: Final = 16
FILE_BYTES: Final = HEADER_BYTES + CAPACITY * SLOT_BYTES
#: Counts from here on no float holds exactly; and no loop makes more steps a second. A file that says more is not believed.
MOST_COUNT: Final = 2**53
MOST_PER_S: Final = 10_000_000

_HEADER: Final = struct.Struct("<8sIIQdI")
# Indices of the fields as 8-byte words: a memoryview item is stored by one 8-byte copy, struct's "<Q" byte by byte.
_COUNT, _START, _LENGTH, _FIRST_SLOT = 2, 3, 5, HEADER_BYTES // 8
_PID_OFFSET: Final = 32
#: Looks at a count that changes all the time.
_LOOKS: Final = 100


def warn(message: str, *details: object) -> None:
    """Write to the training's own log."""
    # Imported when needed: it is the largest part of what `import smore` would otherwise cost.
    import logging

    logging.getLogger("smore.track").warning(message, *details)


class Tracker:
    """
    Writes one job's steps. Made by :func:`smore.tracking.track.track`; for one thread of one process.

    It must never harm the training: after an error with the file it does nothing any more, and the log has one warning.
    """

    def __init__(self, path: str | None, *, length: int = 0) -> None:
        """``length``: iterations that the training makes in all, 0 = not said."""
        self._map: mmap.mmap | None = None
        self._parts = _micro_batches()
        #: Whether the log says already that a batch was not cut.
        self._whole = False
        self._hold: Hold | None = None
        self._count = 0
        self._last = time.perf_counter()
        #: Seconds of the present iteration for which it was held back.
        self._held_s = 0.0
        if path is None:
            return
        if sys.byteorder != "little":
            warn("steps are not tracked: the file's layout is little-endian, this machine is not")
            return
        try:
            self._open(path, length)
        except (OSError, ValueError) as error:
            self._fail(error)
            return
        if file := os.environ.get(HOLD):
            try:
                self._hold = Hold(file, gang=os.environ.get("WORLD_SIZE", "1") not in ("", "1"))
            except (OSError, ValueError) as error:
                warn("this training cannot be held back between its iterations: %s", error)

    def _open(self, path: str, length: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Two writers would mix their steps (the ranks of a distributed job inherit one environment). The first one
            # keeps the file; the kernel lets go of the lock when the process ends, however it ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            header = os.pread(descriptor, _HEADER.size, 0)
            valid = os.fstat(descriptor).st_size == FILE_BYTES and _valid(header)
            if not valid:
                os.ftruncate(descriptor, 0)
            # Without reserved blocks a full disk would kill the training by SIGBUS at the first store, instead of
            # raising here.
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            # The map holds a duplicate of the descriptor, and with it the lock.
            self._map = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        if not valid:
            self._map[: _HEADER.size] = _HEADER.pack(MAGIC, VERSION, CAPACITY, 0, 0.0, 0)
        # Kept for the life of the map: making a view costs more than storing through it.
        view = memoryview(self._map)
        self._floats, self._integers = view.cast("d"), view.cast("Q")
        view.release()
        self._count = self._integers[_COUNT]
        self._floats[_START] = time.time()
        self._integers[_LENGTH] = length
        self._map[_PID_OFFSET : _PID_OFFSET + 4] = struct.pack("<I", os.getpid())

    def _fail(self, error: Exception) -> None:
        self._map = None
        warn("steps are not tracked any more, training goes on: %s", error)

    @property
    def active(self) -> bool:
        """Whether steps are being written."""
        return self._map is not None

    def step(self) -> None:
        """
        Report the end of an iteration; its duration is the time since the last call (at first: since the tracker
        began), less what it was held back by the platform. Waits where it is to be held back now.
        """
        if self._map is None:
            return
        now = time.perf_counter()
        try:
            slot = _FIRST_SLOT + 2 * (self._count % CAPACITY)
            # In this order: the reader tells an overwritten slot by its end.
            self._floats[slot] = time.time()
            self._floats[slot + 1] = now - self._last - self._held_s
            self._count += 1
            self._integers[_COUNT] = self._count
        except (OSError, ValueError) as error:
            self._fail(error)
        self._held_s = 0.0
        self._last = now + (self._hold.wait() if self._hold is not None else 0.0)

    def micro_batches(self, batch: Any) -> Iterator[tuple[Any, float]]:
        """
        The batch in as many parts as the platform asks for, one after the other, so that less memory is needed at a time:
        ``for part, weight in tracker.micro_batches(batch): (loss(part) * weight).backward()``, then the optimiser's step and
        :meth:`step`. Gradients add up to those of the whole batch where ``loss`` is a mean over rows that do not depend on
        each other (batch statistics make them).

        Parts are cut along axis 0 (:mod:`smore.tracking.micro_batches`); the weights, shares of the rows, add up to 1.
        Outside the platform it is one part. So is a batch that cannot be cut; the log says so once.
        """
        if self._parts > 1:
            try:
                parts = micro_batches.cut(batch, self._parts)
                return parts if self._hold is None else self._waiting(parts, self._hold)
            except ValueError as error:
                if not self._whole:
                    self._whole = True
                    warn("a batch is run as a whole and not in %d micro-batches: %s", self._parts, error)
        return iter([(batch, 1.0)])

    def _waiting(self, parts: Iterator[tuple[Any, float]], hold: Hold) -> Iterator[tuple[Any, float]]:
        """The parts; before each but the first it waits where the training is to be held back."""
        yield next(parts)
        for part in parts:
            self._held_s += hold.wait()
            yield part

    def close(self) -> None:
        """Let go of the file; what was written stays readable. Further steps do nothing."""
        if self._map is not None:
            self._floats.release()
            self._integers.release()
            self._map.close()
            self._map = None
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def __enter__(self) -> Self:
        self._last = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _micro_batches() -> int:
    """In how many parts a batch is run."""
    try:
        return micro_batches.asked()
    except ValueError as error:
        warn("batches are run as a whole: %s", error)
        return 1


def _valid(header: bytes) -> bool:
    return len(header) == _HEADER.size and _HEADER.unpack(header)[:3] == (MAGIC, VERSION, CAPACITY)


class TrackReader:
    """
    Reads the steps that a :class:`Tracker` in another process writes. The file may be missing, replaced, truncated, left by
    a killed writer, no file at all, or hold numbers that no loop makes; none of that raises or waits.

    ``since``: the ``count`` up to which a former reader has read. The file is read and not mapped, because a truncated
    file would kill a process that maps it.
    """

    def __init__(self, path: str, *, since: int = 0) -> None:
        self._path = path
        self._position = since
        self._inode: tuple[int, int] | None = None
        #: When the count was believed last, monotonic seconds; None = it never was.
        self._counted_at: float | None = None
        #: Whether the file was valid at the last read.
        self.ok = False
        #: Steps that were written until the last read.
        self.count = 0
        #: Process id of the last writer; 0 = not known.
        self.pid = 0
        #: Iterations that the training makes in all; 0 = it has not said so.
        self.length = 0
        #: Steps that were overwritten before this reader had read them.
        self.lost = 0
        self.look()

    def look(self) -> None:
        """Read how far it has come, and no steps."""
        descriptor = self._look()
        if descriptor is not None:
            os.close(descriptor)

    def _look(self) -> int | None:
        """Open the file and read its header; None (and not ``ok``) where it is missing or invalid."""
        self.ok = False
        try:
            descriptor = open_regular(self._path)
        except FileNotFoundError:
            self._forget()
            return None
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            raw = os.pread(descriptor, HEADER_BYTES, 0)
            header = raw[: _HEADER.size]
            self.ok = status.st_size >= FILE_BYTES and _valid(header)
            if self.ok:
                self._take(self._steady_count(descriptor), raw)
        except (OSError, struct.error):
            self.ok = False
        if not self.ok:
            os.close(descriptor)
            self._forget()
            return None
        inode = (status.st_dev, status.st_ino)
        if self._inode not in (None, inode) or self._position > self.count:
            self._position = 0
        self._inode = inode
        return descriptor

    def _take(self, count: int, header: bytes) -> None:
        """Believe the header, if a loop can have made that."""
        (length,) = struct.unpack_from("<Q", header, 8 * _LENGTH)
        now = time.monotonic()
        most = MOST_COUNT
        if self._counted_at is not None:
            most = min(most, self.count + int((now - self._counted_at + 1) * MOST_PER_S))
        if count > most or length > MOST_COUNT:
            self.ok = False
            return
        self.count, self.length, self._counted_at = count, length, now
        self.pid = int(_HEADER.unpack(header[: _HEADER.size])[5])

    def _forget(self) -> None:
        """The file is gone: all steps of the next file are new."""
        if self._inode is not None:
            self._inode, self._position = None, 0

    def _steady_count(self, descriptor: int) -> int:
        """The count, read until two reads agree: the kernel need not copy eight bytes at once."""
        previous = -1
        for _ in range(_LOOKS):
            (count,) = struct.unpack("<Q", os.pread(descriptor, 8, 8 * _COUNT))
            if count == previous:
                break
            previous = count
        return int(previous)

    def read_new(self, most: int = CAPACITY) -> list[tuple[float, float]]:
        """
        The steps since the last call, oldest first: (end in epoch seconds, duration in seconds) each. Of more than ``most``
        as many as that, evenly spaced.
        """
        descriptor = self._look()
        if descriptor is None:
            return []
        try:
            return self._read(descriptor, most)
        except (OSError, struct.error):
            self.ok = False
            return []
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, most: int) -> list[tuple[float, float]]:
        count = self.count
        first = max(self._position, count - CAPACITY)
        every = max(1, -(-(count - first) // most))
        steps = [
            step
            for start, stop in self._runs(first, count)
            for step in self._slots(descriptor, start + (first - start) % every, stop, every)
        ]
        # Slots that the writer may have overwritten during the read do not count. It may also be about to publish the
        # oldest slot: then that slot's end has changed, because the end is stored first.
        oldest = self._steady_count(descriptor) - CAPACITY
        kept = max(first, oldest)
        gone = -(-(kept - first) // every)
        threatened = kept == oldest and kept < count and kept == first + gone * every
        if threatened and self._slots(descriptor, kept, kept + 1, 1)[0][0] != steps[gone][0]:
            kept, gone = kept + 1, gone + 1
        self.lost += min(kept, count) - self._position
        self._position = count
        return steps[gone:]

    @staticmethod
    def _runs(first: int, stop: int) -> list[tuple[int, int]]:
        """[first, stop), split where the ring wraps around."""
        wrap = (first // CAPACITY + 1) * CAPACITY
        return [(first, stop)] if stop <= wrap else [(first, wrap), (wrap, stop)]

    @staticmethod
    def _slots(descriptor: int, start: int, stop: int, every: int) -> list[tuple[float, float]]:
        """Those of the steps ``start``, ``start + every``… before ``stop``."""
        length = max(0, stop - start) * SLOT_BYTES
        data = os.pread(descriptor, length, HEADER_BYTES + start % CAPACITY * SLOT_BYTES)
        if len(data) != length:
            raise OSError("the file was truncated while it was read")
        numbers = memoryview(data).cast("d")
        return list(zip(numbers[:: 2 * every].tolist(), numbers[1 :: 2 * every].tolist(), strict=True))
