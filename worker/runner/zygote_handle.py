"""
The worker's handle on its zygote, the process that its runners are forked from (worker/runner/zygote.py), and the list
of the runners that live.

A zygote comes from the machine's nursery (worker/runner/nursery.py) by one message over a unix socket. What must stay
true: a zygote that has died is replaced, its runners count as ended, and nothing that they have started survives.
"""

import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from smore.process import observability
from worker import frames
from worker.child_env import MALLOC, ROOT, for_runners
from worker.runner.output import OutputReader, RunnerOutput
from worker.runner.runner_handle import Bounds, NoRunner, Runner
from worker.runner.survivors import end_survivors, write_session
from worker.sandbox.cgroup import RunnerGroup

log = observability.logger(__name__)

_FORK_S: Final = 30.0
#: Seconds between two requests for a zygote.
_RETRY_S: Final = 0.1
#: Seconds that a zygote may take to end with its runners.
_END_S: Final = 6.0
_BUFFER_BYTES: Final = 1 << 20


class _Pending:
    """A fork that was asked for. ``pid`` 0 when ``done`` = the zygote has ended."""

    def __init__(self, output: RunnerOutput | None) -> None:
        self.output = output
        self.done = threading.Event()
        self.pid = 0


def setup(
    *,
    scratch: Path,
    home: Path,
    confinement: frames.Confinement,
    cores: Sequence[int] = (),
    near: Sequence[int] = (),
    threads: int = 0,
    nice: int = 0,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> frames.Setup:
    """
    ``cores``: those that a zygote and its runners keep to, with one thread each; without them they start on ``near`` (none
    = those of this process) and compute with ``threads`` threads (0 = torch's default). ``environment``: more variables.
    """
    threads = 1 if cores else threads
    own_threads = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    return frames.Setup(
        cores=list(cores or near) or sorted(os.sched_getaffinity(0)),
        threads=threads,
        nice=nice,
        environment=for_runners({**MALLOC, "PYTHONPATH": str(ROOT), **own_threads, **environment}),
        scratch=str(scratch),
        home=str(home),
        confinement=confinement,
    )


@dataclass(eq=False, kw_only=True)
class Zygote:
    """
    The zygote of one worker, asked for anew when it has died (then its runners have died with it). Safe from any thread;
    a condition of its own guards the connection and the runners.

    ``nursery`` is the socket that hands out zygotes (:mod:`worker.runner.nursery`). ``record`` is the file with the
    zygote's session, for :func:`worker.runner.survivors.end_survivors`. ``started`` is called with the process number
    of every zygote and ``exited`` with every runner that has ended, in a thread of this object. ``reader``: who reads
    what runners print; without one it goes where the worker's own output goes.
    """

    nursery: Path
    setup: frames.Setup
    record: Path
    bounds: Bounds | None = None
    exited: Callable[[Runner], None] = lambda _: None
    started: Callable[[int], None] = lambda _: None
    reader: OutputReader | None = None
    _tokens: Iterator[int] = field(default_factory=itertools.count, init=False)
    #: Notified when there is a zygote, and when there will be none.
    _state: threading.Condition = field(default_factory=threading.Condition, init=False)
    _pending: dict[int, _Pending] = field(default_factory=dict, init=False)
    _sockets: dict[int, socket.socket] = field(default_factory=dict, init=False)
    _runners: dict[int, Runner] = field(default_factory=dict, init=False)
    #: Control groups of ended runners in which a process has still to end.
    _lingering: list[RunnerGroup] = field(default_factory=list, init=False)
    _pid: int | None = field(default=None, init=False)
    #: Connections: to the zygote that is ready, and to the one that was asked for.
    _control: socket.socket | None = field(default=None, init=False)
    _asked: socket.socket | None = field(default=None, init=False)
    _listener: threading.Thread | None = field(default=None, init=False)
    _closed: threading.Event = field(default_factory=threading.Event, init=False)

    @property
    def pid(self) -> int | None:
        """Process number of the zygote, None while there is none."""
        return self._pid

    def start(self) -> None:
        """Have a zygote from now on; returns at once."""
        with self._state:
            if self._listener is None and not self._closed.is_set():
                self._listener = threading.Thread(target=self._run, name="zygote", daemon=True)
                self._listener.start()

    def _run(self) -> None:
        logged = False
        while not self._closed.is_set():
            try:
                with self._ask() as control:
                    self._listen(control)
                logged = False
            except OSError as error:
                # The nursery is being started, and this is tried again until it is there.
                if not logged:
                    log.warning("no zygote yet", nursery=str(self.nursery), error=str(error))
                logged = True
            except Exception:
                # Without this thread the worker would never have a zygote again.
                log.exception("zygote lost")
            self._closed.wait(_RETRY_S)

    def _ask(self) -> socket.socket:
        """The connection that becomes the zygote's. Raises OSError."""
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed: list[int] = []
        try:
            passed.append(os.open(self.nursery.parent, os.O_RDONLY | os.O_DIRECTORY))
            passed.append(os.pidfd_open(os.getpid()))
            # A zygote does not wait long for its setup.
            control.connect(os.fspath(self.nursery))
            socket.send_fds(control, [frames.encode(self.setup)], [*passed, 1, 2])
        except BaseException:
            control.close()
            raise
        finally:
            for descriptor in passed:
                os.close(descriptor)
        return control

    def fork(self) -> Runner:
        """
        A new runner. Raises NoRunner, also where the machine has no memory, processes or descriptors left for one.
        """
        try:
            return self._fork()
        except OSError as error:
            raise NoRunner(str(error)) from error

    def _fork(self) -> Runner:
        self.start()
        gone: socket.socket | None = None
        # Only a request shows that a zygote has just died: then its successor is asked.
        for _ in range(2):
            control = self._connection(other_than=gone)
            runner = self._ask_for_runner(control)
            if runner is not None:
                return runner
            gone = control
        raise NoRunner("The zygote did not answer.")

    def _connection(self, other_than: socket.socket | None) -> socket.socket:
        """The connection to the zygote, which is waited for. Raises NoRunner."""
        with self._state:
            self._state.wait_for(lambda: self._control not in (None, other_than) or self._closed.is_set(), _FORK_S)
            if self._control in (None, other_than):
                raise NoRunner("The worker is ending." if self._closed.is_set() else "There is no zygote.")
            assert self._control is not None
            return self._control

    def _ask_for_runner(self, control: socket.socket) -> Runner | None:
        """None where this zygote has ended before it answered. Raises NoRunner, OSError."""
        output, written = self.reader.open() if self.reader is not None else (None, ())
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        token = next(self._tokens)
        pending = self._pending[token] = _Pending(output)
        self._sockets[token] = ours
        forked = False
        try:
            with theirs:
                try:
                    socket.send_fds(control, [frames.encode(frames.Fork(token=token))], [theirs.fileno(), *written])
                except OSError as error:
                    if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.EBADF):
                        ours.close()
                        return None
                    raise
            if not pending.done.wait(_FORK_S):
                raise NoRunner("The zygote did not answer.")
            if not pending.pid:
                ours.close()
                return None
            with self._state:
                runner = self._runners.get(pending.pid)
            if runner is None:
                return self._dead(pending.pid, ours)
            forked = True
            runner.enter_group()
            return runner
        finally:
            self._pending.pop(token, None)
            self._sockets.pop(token, None)
            for descriptor in written:
                os.close(descriptor)
            if output is not None and not forked:
                output.close()

    def _dead(self, pid: int, sock: socket.socket) -> Runner:
        """A runner that has ended before it could be handed out."""
        runner = Runner(pid, sock, lambda *_: None)
        runner.ended.set()
        return runner

    def _signal(self, pid: int, number: int) -> None:
        control = self._control
        if control is not None and pid in self._runners:
            try:
                control.send(frames.encode(frames.Kill(pid=pid, signal=number)))
            except OSError as error:
                log.warning("runner not signalled", pid=pid, error=str(error))

    def _listen(self, control: socket.socket) -> None:
        """
        Read what the zygote reports until it is gone, with all its runners. Raises OSError where no zygote came.
        """
        with self._state:
            if self._closed.is_set():
                return
            self._asked = control
        asked_at = time.monotonic()
        pid = None
        try:
            while data := control.recv(frames.ZYGOTE_PACKET):
                match frames.decode_from_zygote(data):
                    case frames.Ready() as ready:
                        pid = ready.pid
                        write_session(self.record, pid)
                        self.started(pid)
                        log.info(
                            "zygote ready",
                            pid=pid,
                            waited_ms=round((time.monotonic() - asked_at) * 1e3),
                            holds=ready.holds,
                        )
                        with self._state:
                            self._pid, self._control = pid, control
                            self._state.notify_all()
                    case frames.Forked() as forked:
                        pending, sock = self._pending.get(forked.token), self._sockets.get(forked.token)
                        if pending is not None and sock is not None:
                            with self._state:
                                self._runners[forked.pid] = Runner(
                                    forked.pid, sock, self._signal, self.bounds, pending.output
                                )
                            pending.pid = forked.pid
                            pending.done.set()
                    case frames.Exited() as exited:
                        self._gone(exited.pid, exited.status)
        except ConnectionResetError:
            pass  # it has ended with requests unread
        finally:
            self._bury()
        if self._closed.is_set():
            return
        if pid is None:
            raise ConnectionResetError("the nursery has ended, or refused")
        log.error("zygote ended", pid=pid)

    def _bury(self) -> None:
        """The zygote is gone: so are its runners."""
        # Processes that user code has started outlive a zygote that was killed.
        end_survivors(self.record)
        with self._state:
            self._pid = self._control = self._asked = None
            left = list(self._runners)
        for pending in list(self._pending.values()):
            pending.done.set()
        for runner in left:
            self._gone(runner, None)

    def _gone(self, pid: int, status: int | None) -> None:
        with self._state:
            runner = self._runners.pop(pid, None)
        if runner is not None:
            group = runner.gone(status)
            groups = [*self._lingering, group] if group is not None else self._lingering
            self._lingering = [lingering for lingering in groups if not lingering.remove()]
            self.exited(runner)

    def close(self) -> None:
        """End the zygote and all runners."""
        with self._state:
            self._closed.set()
            self._state.notify_all()
            asked, listener = self._asked, self._listener
            if asked is not None:
                # A zygote ends when its socket ends, its runners first, and the listening thread reads the end. A nursery
                # that has not taken the connection yet would send nothing.
                with contextlib.suppress(OSError):
                    asked.shutdown(socket.SHUT_WR if self._control is not None else socket.SHUT_RDWR)
        if listener is not None:
            listener.join(_END_S)
