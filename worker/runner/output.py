"""
What runners print, in the worker: two pipes for each runner, one for standard output and one for standard error, so
that what native code and a runner's own processes write is read too.

One thread (:class:`OutputReader`) reads the pipes of all runners. When a request to a runner has ended, what is in its
pipes is read at once, so a line belongs to the batch that printed it. What must stay true: nobody here waits for
anything else than a pipe, because a function whose pipe is full waits.
"""

import fcntl
import os
import re
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from smore.process import observability
from worker.frames import MARKS
from worker.runner.masking import Mask

log = observability.logger(__name__)

#: What a pipe holds, and what is read of it at once. The kernel gives less where the user has many pipes.
PIPE_BYTES: Final = 256 << 10
#: Seconds between two readings: what is printed in that time travels together, and what is more than a pipe holds waits.
PAUSE_S: Final = 0.02
#: Bytes of a line that has no end yet; a longer one is taken as it is.
_UNFINISHED: Final = 64 << 10
_STREAMS: Final = {mark: stream for stream, mark in MARKS.items()}
_MARK: Final = re.compile(b"(" + b"|".join(map(re.escape, _STREAMS)) + b")")


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """
    Whole lines that one runner wrote to one stream (``stdout``, ``stderr``): ``text`` ends with a line end. ``at``:
    epoch seconds. ``function`` is '' before a handler is loaded; ``invocations``: of the batch that ran then.
    """

    at: float
    function: str
    revision: int
    pid: int
    stream: str
    invocations: Sequence[str]
    text: bytes


Take = Callable[[Printed], None]


class RunnerOutput:
    """The pipes of one runner. ``take`` gets what they hold, in the thread that reads; it must not block."""

    def __init__(self, take: Take, closed: Callable[[int], None]) -> None:
        self.pid = 0
        self._take = take
        self._closed = closed
        self._function, self._revision, self._mask = "", 0, Mask()
        self._invocations: Sequence[str] = ()
        self._lock = threading.Lock()
        self._poll = select.poll()
        #: By descriptor: the stream of its next lines, and a line without its end.
        self._streams: dict[int, str] = {}
        self._unfinished: dict[int, bytes] = {}

    def add(self, descriptor: int, stream: str) -> None:
        """Read ``stream`` from the reading end of a pipe, which does not block."""
        self._streams[descriptor], self._unfinished[descriptor] = stream, b""
        self._poll.register(descriptor, select.POLLIN)

    def belong_to(self, function: str, revision: int, mask: Mask) -> None:
        """From now on its lines are this function's, whose secrets ``mask`` hides."""
        self._function, self._revision, self._mask = function, revision, mask

    def begin(self, invocations: Sequence[str]) -> None:
        """A batch runs."""
        self._invocations = invocations

    def end(self) -> None:
        """The batch, or another request, has ended: read what it has printed. One thread at a time."""
        # The one system call that a batch pays which prints nothing.
        for descriptor, _ in self._poll.poll(0):
            self.read(descriptor)
        if any(tuple(self._unfinished.values())):
            with self._lock:
                for descriptor in self._unfinished:
                    self._give_unfinished(descriptor)
        self._invocations = ()

    def read(self, descriptor: int) -> None:
        """Read once what is there."""
        with self._lock:
            if descriptor not in self._streams:
                return
            try:
                data = os.read(descriptor, PIPE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close(descriptor)
                return
            end = data.rfind(b"\n") + 1
            if end:
                self._give(descriptor, self._unfinished[descriptor] + data[:end])
                self._unfinished[descriptor] = data[end:]
            else:
                self._unfinished[descriptor] += data
            if len(self._unfinished[descriptor]) > _UNFINISHED:
                self._give_unfinished(descriptor)

    def close(self) -> None:
        """The runner has ended: read what it has left. Processes that outlive it write to nobody."""
        for descriptor in list(self._streams):
            self.read(descriptor)
            with self._lock:
                self._close(descriptor)

    def _give_unfinished(self, descriptor: int) -> None:
        """Give a line that has no end yet, but for what may be the beginning of a secret."""
        rest = self._mask.printed(self._unfinished[descriptor])
        end = len(rest) - self._mask.begun(rest)
        self._unfinished[descriptor] = rest[end:]
        if end:
            self._give(descriptor, rest[:end] + b"\n")

    def _give(self, descriptor: int, text: bytes) -> None:
        """Whole lines without secrets, each under the stream that the marks before it name."""
        first, *marked = _MARK.split(self._mask.printed(text))
        if first:
            self._give_lines(self._streams[descriptor], first)
        for mark, lines in zip(marked[::2], marked[1::2], strict=True):
            stream = self._streams[descriptor] = _STREAMS[mark]
            if lines:
                self._give_lines(stream, lines)

    def _give_lines(self, stream: str, text: bytes) -> None:
        self._take(
            Printed(
                at=time.time(),
                function=self._function,
                revision=self._revision,
                pid=self.pid,
                stream=stream,
                invocations=self._invocations,
                text=text if text.endswith(b"\n") else text + b"\n",
            )
        )

    def _close(self, descriptor: int) -> None:
        if descriptor not in self._streams:
            return
        if rest := self._unfinished.pop(descriptor):
            self._give(descriptor, rest + b"\n")
        del self._streams[descriptor]
        self._poll.unregister(descriptor)
        self._closed(descriptor)
        os.close(descriptor)


class OutputReader:
    """Reads the pipes of all runners of a worker, in a thread of its own. ``take`` as for :class:`RunnerOutput`."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._epoll = select.epoll()
        self._outputs: dict[int, RunnerOutput] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more; what is there was read when its runner ended."""
        self._stopped.set()

    def open(self) -> tuple[RunnerOutput, tuple[int, int]]:
        """
        The pipes of a runner that is about to be forked, and their writing ends: standard output and standard error,
        the caller's to close. Raises OSError.
        """
        output = RunnerOutput(self._take, self._forget)
        ends: list[int] = []
        try:
            for stream in ("stdout", "stderr"):
                reading, writing = os.pipe2(os.O_CLOEXEC)
                ends.append(writing)
                os.set_blocking(reading, False)
                with suppress(OSError):
                    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
                output.add(reading, stream)
                self._outputs[reading] = output
                self._epoll.register(reading, select.EPOLLIN)
        except OSError:
            output.close()
            for end in ends:
                os.close(end)
            raise
        return output, (ends[0], ends[1])

    def _forget(self, descriptor: int) -> None:
        del self._outputs[descriptor]
        self._epoll.unregister(descriptor)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                ready = self._epoll.poll(1.0)
                for descriptor, _ in ready:
                    output = self._outputs.get(descriptor)
                    if output is not None:
                        output.read(descriptor)
            except Exception:
                # Without this thread every function that prints would wait.
                log.exception("output not read")
                ready = []
                self._stopped.wait(1.0)
            if ready:
                self._stopped.wait(PAUSE_S)
