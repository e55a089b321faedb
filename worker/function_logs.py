"""
What functions print, on its way from this worker to their logs in Redis (smore/redis/logs.py).

Lines are taken from the pipes of runners (worker/runner/output.py) within a rate for each function, and sent by one
thread. What must stay true: taking never blocks and what waits is bounded; while Redis is away lines are dropped and
counted, and runs go on.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import redis

from smore.messages.logs import LogPiece, LogStream
from smore.process import observability
from smore.process.settings import LogSettings
from smore.redis.logs import LogWriter, function_log
from worker.runner.output import Printed

log = observability.logger(__name__)

#: Bytes of a piece's lines, and of all pieces that wait to be sent.
PIECE_BYTES: Final = 8 << 10
WAITING_BYTES: Final = 8 << 20
#: Bytes that each line counts beside its own, and seconds' worth of the rate that may come at once.
LINE_COST: Final = 64
BURST_S: Final = 16
#: Seconds between two lines that say how many were dropped.
MARK_S: Final = 1.0
#: Seconds between two checks of how much all logs take.
TRIM_S: Final = 10.0
#: Seconds that the worker's end waits for what is still to be sent.
_END_S: Final = 2.0


class Allowance:
    """A token bucket of bytes: ``rate`` a second, BURST_S times as many at once."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._at = rate, now
        self.tokens = self._most = rate * BURST_S

    def refill(self, now: float) -> None:
        """Add what has come since the last call."""
        self.tokens = min(self._most, self.tokens + (now - self._at) * self._rate)
        self._at = now


class _OfFunction:
    """What is known of one function's output. ``dropped``: lines of which its log has not been told."""

    def __init__(self, rate: float, now: float) -> None:
        self.allowance = Allowance(rate, now)
        self.dropped = 0
        self.marked_at = -MARK_S
        self.revision = 0


class FunctionLogs:
    """Takes what functions print and sends it. Safe from any thread. ``clock`` gives seconds."""

    def __init__(
        self, writer: LogWriter, bounds: LogSettings, gpu: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer = writer
        self._bounds = bounds
        self._gpu = gpu
        self._node = socket.gethostname()
        self._clock = clock
        self._changed = threading.Condition()
        self._functions: dict[str, _OfFunction] = {}
        self._waiting: list[tuple[str, LogPiece]] = []
        self._waiting_bytes = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="function-logs", daemon=True)

    def start(self) -> None:
        """Begin to send, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Send what waits, and end."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    # ---- taking ------------------------------------------------------------------------------------------------------

    def take(self, printed: Printed) -> None:
        """Take whole lines, as far as the function's rate allows; the others are dropped and counted."""
        if not printed.function:
            # It has loaded nothing yet: the platform's own code.
            log.warning("a runner printed", pid=printed.pid, text=printed.text.decode(errors="replace")[:2000])
            return
        with self._changed:
            function = self._of(printed.function)
            function.revision = printed.revision
            lines, dropped = self._allowed(printed.text, function.allowance)
            self._add(printed.function, printed.at, printed.stream, printed.pid, printed.invocations, lines)
            self._drop(printed.function, dropped)
            self._changed.notify()

    def tell(self, function: str, revision: int, invocations: Sequence[str], text: str) -> None:
        """Add the platform's own word to a function's log."""
        with self._changed:
            self._of(function).revision = revision
            self._add(function, time.time(), LogStream.SMORE, 0, invocations, [self._cut(text)])
            self._changed.notify()

    def _of(self, function: str) -> _OfFunction:
        if function not in self._functions:
            self._functions[function] = _OfFunction(self._bounds.bytes_per_s, self._clock())
        return self._functions[function]

    def _allowed(self, text: bytes, allowance: Allowance) -> tuple[list[str], int]:
        """The lines that there are tokens for, and how many there are more. The work is bounded by the tokens."""
        allowance.refill(self._clock())
        most = int(allowance.tokens // LINE_COST)
        if most <= 0:
            return [], text.count(b"\n")
        *parts, rest = text.split(b"\n", most)
        lines: list[str] = []
        for position, part in enumerate(parts):
            line = self._cut(part.decode(errors="replace"))
            cost = LINE_COST + len(line)
            if cost > allowance.tokens:
                return lines, len(parts) - position + rest.count(b"\n")
            allowance.tokens -= cost
            lines.append(line)
        return lines, rest.count(b"\n")

    def _cut(self, line: str) -> str:
        most = self._bounds.line_bytes
        if len(line) <= most and len(data := line.encode()) <= most:
            return line
        data = line.encode()
        return f"{data[:most].decode(errors='ignore')} … [{len(data) - most} bytes cut]"

    def _add(
        self, function: str, at: float, stream: str, pid: int, invocations: Sequence[str], lines: Sequence[str]
    ) -> None:
        """Let lines wait in pieces. With the lock held."""
        name, revision = function_log(function), self._functions[function].revision
        piece: list[str] = []
        size = 0
        for position, line in enumerate(lines):
            piece.append(line)
            size += len(line) + LINE_COST
            if size < PIECE_BYTES and position < len(lines) - 1:
                continue
            if self._waiting_bytes + size > WAITING_BYTES:
                self._drop(function, len(piece))
            else:
                self._waiting_bytes += size
                self._waiting.append(
                    (
                        name,
                        LogPiece(
                            at=at,
                            stream=stream,
                            lines=piece,
                            gpu=self._gpu,
                            node=self._node,
                            pid=pid,
                            revision=revision,
                            invocations=list(invocations),
                        ),
                    )
                )
            piece, size = [], 0

    def _drop(self, function: str, lines: int) -> None:
        if lines:
            self._functions[function].dropped += lines
            observability.LOG_LINES_DROPPED.labels(function).inc(lines)

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        silent = False
        trimmed_at = self._clock()
        while True:
            with self._changed:
                owed = any(function.dropped for function in self._functions.values())
                if not self._waiting and not self._stopped:
                    self._changed.wait(MARK_S if owed else None)
                stopped = self._stopped
            try:
                if self.send() == 0 and stopped:
                    return
                silent = False
                if self._clock() - trimmed_at >= TRIM_S:
                    trimmed_at = self._clock()
                    self._writer.trim()
            except (redis.RedisError, OSError) as error:
                if not silent:
                    log.warning("functions' output is dropped: Redis does not serve", error=str(error))
                silent = True
                if stopped:
                    return

    def send(self) -> int:
        """
        Send what waits, and how much was dropped. Returns the number of pieces. Raises redis-py's errors; then the
        lines are counted as dropped.
        """
        with self._changed:
            marks = self._marks()
            pieces, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not pieces and not marks:
            return 0
        try:
            self._writer.append([*pieces, *((name, piece) for name, piece, _, _ in marks)])
        except (redis.RedisError, OSError):
            with self._changed:
                for name, piece in pieces:
                    self._drop(name.partition("/")[2], len(piece.lines))
                for _, _, function, dropped in marks:
                    self._functions[function].dropped += dropped
            raise
        return len(pieces) + len(marks)

    def _marks(self) -> list[tuple[str, LogPiece, str, int]]:
        """A line for each function of which lines were dropped, not more often than MARK_S. With the lock held."""
        now, marks = self._clock(), []
        for function, known in self._functions.items():
            if not known.dropped or (now - known.marked_at < MARK_S and not self._stopped):
                continue
            text = (
                f"{known.dropped} lines were dropped: the function prints faster than {self._bounds.bytes_per_s} bytes"
                " a second, or Redis was away"
            )
            piece = LogPiece(
                at=time.time(),
                stream=LogStream.SMORE,
                lines=[text],
                gpu=self._gpu,
                node=self._node,
                revision=known.revision,
            )
            marks.append((function_log(function), piece, function, known.dropped))
            known.dropped, known.marked_at = 0, now
        return marks
