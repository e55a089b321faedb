"""
The standard streams of user code in a runner: whole lines are written to the process's own standard output, which the
worker reads (worker/runner/output.py). Both streams go there, standard error between marks, so that their order is kept;
native code writes to descriptors 1 and 2 as it likes.
"""

import contextlib
import io
import os
import sys
from typing import Any, BinaryIO, Final, cast

from worker.frames import MARKS

#: Bytes of what user code printed while it was loaded that an error carries, its end.
_LOG_BYTES: Final = 6000
#: Bytes of a line that has no end yet; a longer one is written as it is.
_UNFINISHED: Final = 64 << 10


class _Lines(io.RawIOBase):
    """One of the two streams. Not thread-safe beyond what one write is."""

    def __init__(self, output: "OutputLog", descriptor: int) -> None:
        self._output = output
        self._descriptor = descriptor
        self._rest = b""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        kept = self._output.kept
        if kept is not None:
            kept += bytes(data)
            del kept[:-_LOG_BYTES]
        self._rest += bytes(data)
        end = self._rest.rfind(b"\n") + 1 or (len(self._rest) if len(self._rest) > _UNFINISHED else 0)
        if end:
            lines, self._rest = self._rest[:end], self._rest[end:]
            self._write(lines)
        return len(data)

    def finish(self) -> None:
        """Write a line that has no end."""
        if self._rest:
            lines, self._rest = self._rest, b""
            self._write(lines + b"\n")

    def _write(self, lines: bytes) -> None:
        if self._descriptor == 2:
            # Back to standard output at once: what a process of the handler writes there has no mark.
            lines = MARKS["stderr"] + lines + MARKS["stdout"]
        # A log whose reader is gone must not fail an invocation.
        with contextlib.suppress(OSError):
            while lines:
                lines = lines[os.write(1, lines) :]


class OutputLog:
    """Standard output and standard error of a runner."""

    def __init__(self) -> None:
        #: Where it is a buffer, what is written is added to it too, its last bytes.
        self.kept: bytearray | None = None
        self.stdout, self.stderr = _Lines(self, 1), _Lines(self, 2)

    def take_over(self) -> None:
        """Become ``sys.stdout`` and ``sys.stderr``."""
        # As Python's -u has it: text straight onto the raw stream.
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(cast(BinaryIO, lines), encoding="utf-8", errors="replace", write_through=True)
            for lines in (self.stdout, self.stderr)
        )

    def finish(self) -> None:
        """A request has been served: write lines that have no end."""
        self.stdout.finish()
        self.stderr.finish()
