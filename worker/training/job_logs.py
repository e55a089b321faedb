"""
What jobs print, on its way from their files on this machine to their logs in Redis (smore/redis/logs.py), where gateways
of any machine read it.

A job writes to its file whether a worker runs or not. What must stay true: a job never waits for this; what is in the
file goes to the log once and in its order, also where the worker starts again or Redis was away. What a job prints
faster than it may (``SMORE_LOGS__BYTES_PER_S``) is left out, and a line says how much.
"""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis

from smore.domain.job import JobState
from smore.messages.logs import LogPiece, LogStream
from smore.messages.reports import JobReport
from smore.process import observability
from smore.process.settings import LogSettings
from smore.redis.logs import LogWriter, job_log
from smore.tracking.regular import open_regular
from worker.training.record import key_of, log_name

log = observability.logger(__name__)

#: Seconds between two looks into the files.
LOOK_S: Final = 0.5
#: Bytes of a piece's lines.
PIECE_BYTES: Final = 8 << 10
#: Seconds' worth of the rate that may wait; what is older is left out.
BURST_S: Final = 16
#: Seconds that the worker's end waits for what is still to be sent.
_END_S: Final = 2.0


@dataclass(slots=True)
class _File:
    """The file of a rank's attempt. ``at``: bytes of it that were sent; ``failed``: it was said that it cannot be read."""

    log: str
    path: Path
    attempt: int
    at: int
    failed: bool = False


@dataclass(eq=False)
class JobLogs:
    """
    Sends what the jobs of a GPU instance print, in a thread of its own. ``ranks`` gives the reports of those that are
    known, ``folder`` holds their files.
    """

    writer: LogWriter
    bounds: LogSettings
    gpu: str
    folder: Path
    ranks: Callable[[], Iterable[JobReport]]
    _node: str = field(default_factory=socket.gethostname, init=False)
    _files: dict[tuple[str, int, int], _File] = field(default_factory=dict, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="job-logs", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """Send what is there, and end. What jobs print later is sent by the next worker."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def shipped(self, key: str) -> bool:
        """Whether all is sent of what the rank of this record's key has printed; safe from any thread."""
        path = self.folder / log_name(key)
        try:
            with open(open_regular(path), "rb") as source:
                size = source.seek(0, 2)
        except OSError:
            # There is none, or the job has put something else in its place.
            return True
        return size == next((file.at for file in list(self._files.values()) if file.path == path), 0)

    def send(self) -> None:
        """Send what was written since the last call. Raises redis-py's errors; then it is sent by the next call."""
        ranks = {(rank.id, rank.attempt, rank.rank): rank for rank in self.ranks()}
        for key in self._files.keys() - ranks.keys():
            # The worker forgets a rank once all of it is sent.
            del self._files[key]
        for key, rank in ranks.items():
            file = self._files.get(key)
            if file is None:
                path = self.folder / log_name(key_of(rank.id, rank.attempt, rank.rank))
                if not path.exists():
                    continue
                file = self._files[key] = self._open(rank, path)
            try:
                self._send(file, over=rank.state not in (JobState.STARTING, JobState.RUNNING))
            except OSError as error:
                if not file.failed:
                    log.warning("the output of a job cannot be read", job=rank.id, error=str(error))
                file.failed = True

    def _open(self, rank: JobReport, path: Path) -> _File:
        """From where the worker before this one, or this one before it lost sight of the rank, has sent it."""
        name = job_log(rank.id, rank.rank)
        last = self.writer.newest(name)
        return _File(name, path, rank.attempt, last.end if last is not None and last.attempt == rank.attempt else 0)

    def _send(self, file: _File, *, over: bool) -> None:
        with open(open_regular(file.path), "rb") as source:
            size = source.seek(0, 2)
            if size == file.at:
                return
            pieces: list[LogPiece] = []
            at = file.at
            most = self.bounds.bytes_per_s * BURST_S
            if size - at > most:
                source.seek(size - most)
                source.readline()
                pieces.append(self._piece(file, LogStream.SMORE, [_left_out(source.tell() - at)], source.tell()))
                at = source.tell()
            source.seek(at)
            data = source.read(self.bounds.bytes_per_s)
        # The last line of what goes on may not be whole yet.
        end = len(data) if over and at + len(data) == size else data.rfind(b"\n") + 1
        if end == 0 and len(data) < self.bounds.bytes_per_s:
            data = b""
        elif end == 0:
            end = len(data)
        lines: list[str] = []
        held = begun = 0
        for line in io.BytesIO(data[:end]):
            lines.append(self._cut(line))
            held += len(line)
            if held - begun >= PIECE_BYTES:
                pieces.append(self._piece(file, LogStream.STDOUT, lines, at + held))
                lines, begun = [], held
        if lines:
            pieces.append(self._piece(file, LogStream.STDOUT, lines, at + held))
        if pieces:
            self.writer.append((file.log, piece) for piece in pieces)
            file.at = pieces[-1].end

    def _piece(self, file: _File, stream: LogStream, lines: list[str], end: int) -> LogPiece:
        return LogPiece(
            at=time.time(),
            stream=stream,
            lines=lines,
            gpu=self.gpu,
            node=self._node,
            attempt=file.attempt,
            end=end,
        )

    def _cut(self, line: bytes) -> str:
        # A progress bar writes one line again and again: the last state of it counts.
        line = line.rstrip(b"\r\n").rpartition(b"\r")[2]
        most = self.bounds.line_bytes
        if len(line) <= most:
            return line.decode(errors="replace")
        return f"{line[:most].decode(errors='ignore')} … [{len(line) - most} bytes cut]"

    def _run(self) -> None:
        silent = False
        while True:
            stopped = self._stop.wait(LOOK_S)
            try:
                self.send()
                silent = False
            except redis.RedisError as error:
                if not silent:
                    log.warning("the output of jobs waits", error=str(error))
                silent = True
            if stopped:
                return


def _left_out(count: int) -> str:
    return (
        f"{count} bytes were left out: the job prints faster than its log takes them; the file on its machine has all"
    )
