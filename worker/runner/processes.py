"""The parent's hands on its zygote and its runners. The parent imports no torch and touches no device: they do."""

import contextlib
import errno
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from smore.domain.invocation import Cause
from smore.process import observability
from worker import frames, proc
from worker.frames import META_BYTES, Answer, BadFrame, Channel, Chunk, Failed, Item, Load, Loaded, Predict, Predicted
from worker.inherited import MALLOC, for_runners
from worker.runner import answers
from worker.sandbox.cgroup import RunnerGroup

log = observability.logger(__name__)

ROOT: Final = Path(__file__).parents[2]

_FORK_S: Final = 30.0
#: Between two tries to be given a zygote.
_AGAIN_S: Final = 0.1
#: From the end of a runner's socket to the zygote's word of its end.
_REAP_S: Final = 1.0
_UNLOAD_S: Final = 2.0
_END_S: Final = 3.0
_BUFFER_BYTES: Final = 1 << 20

#: The parts of a load in the runner, and of one out of host memory.
LOAD_PHASES: Final = ("import", "weights", "first_run")
_RESTORE_PHASES: Final = ("host",)

A = TypeVar("A", bound=frames.FromRunner)
R = TypeVar("R")


class RunnerDied(Exception):
    """The process ended while it was waited for; ``status`` negative = by that signal."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        super().__init__(f"The runner {describe(status)}.")


class RunnerTimeout(Exception):
    """No answer in time."""


class RunnerFailed(Exception):
    """The answer was an error; the runner lives."""

    def __init__(self, cause: Cause, message: str) -> None:
        self.cause = cause
        super().__init__(message)


class NoRunner(Exception):
    """There is no zygote to fork one just now."""


def describe(status: int | None) -> str:
    """``ended by SIGSEGV``, ``ended with status 3``."""
    if status is None:
        return "ended"
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One answer for each invocation of a batch and the bytes of its result, checked; ``run_s`` by our own clock."""

    answers: Sequence[Answer]
    results: Sequence[bytes]
    run_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """
    Of each runner's control group, and of what its function may hold of the machine's memory: ``host_mib`` and
    ``host_per_mib`` for each MiB that it declares. ``beyond_mib``: what the group allows above that.
    """

    #: The first part of the groups' names.
    group: str
    beyond_mib: float
    processes: int
    #: As on a CPU partition, whose memory is the machine's.
    host_mib: float = 0.0
    host_per_mib: float = 1.0

    def host_of(self, declared_mib: float) -> float:
        return self.host_mib + self.host_per_mib * declared_mib


class Runner:
    """
    One runner process. Its requests are made by one thread at a time, whoever holds it; ``kill`` and ``ended`` are for
    all.

    Each request raises RunnerDied, RunnerTimeout, RunnerFailed, and BadFrame for an answer that is none: then the
    process is killed.
    """

    def __init__(
        self, pid: int, sock: socket.socket, kill: Callable[[int, int], None], bounds: Bounds | None = None
    ) -> None:
        self.pid = pid
        self.ended = threading.Event()
        #: As in :attr:`subprocess.Popen.returncode`, once it has ended.
        self.status: int | None = None
        #: Whether the kernel ended it, or something that it had started, for want of memory; known once it has ended.
        self.ran_out = False
        self._bounds = bounds
        self._group: RunnerGroup | None = None
        #: What the loaded function may answer and hold.
        self._results = frames.Results(one=0, together=0)
        self._memory_mib = 0.0
        self._channel = Channel(sock)
        self._kill = kill

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal the runner and whatever it has started."""
        self._kill(self.pid, number)

    def stop(self, soft_s: float) -> None:
        """SIGTERM, and SIGKILL so much later."""
        self.kill(signal.SIGTERM)
        if not self.ended.wait(soft_s):
            self.kill()

    def end(self) -> None:
        """Kill it and wait until its memory is back."""
        self.kill()
        self.ended.wait(_UNLOAD_S)
        self._channel.socket.close()

    def unload(self) -> None:
        """Let it end in order; kill it where that takes long. Returns when it is gone."""
        try:
            self._channel.send(frames.encode(frames.Unload()), until=time.monotonic() + _UNLOAD_S)
            self.ended.wait(_UNLOAD_S)
        except OSError:
            pass
        if self.ended.is_set():
            self._channel.socket.close()
        else:
            self.end()

    def prepare(self, device: str, timeout_s: float) -> None:
        self._ask(frames.Prepare(device=device), frames.Prepared, timeout_s, lambda *_: None)

    def load(self, request: Load, timeout_s: float) -> Loaded:
        """Its times are those of our clock, divided as the runner says."""
        host_mib = self._bounds.host_of(request.memory_mib) if self._bounds is not None else request.memory_mib
        request = msgspec.structs.replace(request, host_mib=host_mib)
        if self._group is not None and self._bounds is not None:
            self._group.limit(host_mib + self._bounds.beyond_mib)
        self._results, self._memory_mib = request.results, request.memory_mib
        return self._ready(request, LOAD_PHASES, timeout_s)

    def park(self, timeout_s: float) -> frames.Parked:
        """Its weights to host memory. RunnerFailed where they cannot be moved."""
        return self._ask(
            frames.Park(),
            frames.Parked,
            timeout_s,
            lambda parked, *_: frames.Parked(host_mib=answers.amount(parked.host_mib)),
        )

    def restore(self, timeout_s: float) -> Loaded:
        """And back, as :meth:`load`."""
        return self._ready(frames.Restore(), _RESTORE_PHASES, timeout_s)

    def _ready(self, request: Load | frames.Restore, phases: Sequence[str], timeout_s: float) -> Loaded:
        def read(loaded: Loaded, _: bytearray, took_s: float) -> Loaded:
            # Never more of the device than it may have, whatever it says.
            return Loaded(
                phases=answers.divided(loaded.phases, phases, took_s * 1e3),
                memory_mib=min(answers.amount(loaded.memory_mib), self._memory_mib),
                tensors=loaded.tensors,
            )

        return self._ask(request, Loaded, timeout_s, read)

    def enter_group(self) -> None:
        """
        Into a control group of its own, where one may be made; takes milliseconds, so before anybody waits for a load.
        """
        if self._bounds is None:
            return
        group = RunnerGroup.make(f"{self._bounds.group}{self.pid}", processes=self._bounds.processes)
        if group is not None:
            self._group = group
            try:
                group.add(self.pid)
            except OSError as error:
                log.warning("runner not in its control group", pid=self.pid, error=str(error))
            if self.ended.is_set():
                group.remove()

    def exhausted(self) -> bool:
        """Whether the kernel has ended something that it started for want of memory."""
        return self._group is not None and self._group.ran_out()

    def gone(self, status: int | None) -> RunnerGroup | None:
        """Its process has ended. Its control group, where something that it had started has still to end."""
        self.status = status
        self.ran_out = self.exhausted()
        lingers = self._group is not None and not self._group.remove()
        self.ended.set()
        return self._group if lingers else None

    def predict(self, items: Sequence[Item], payloads: Sequence[Chunk], trace: str, timeout_s: float) -> Ran:
        most = self._results

        def read(predicted: Predicted, body: bytearray, took_s: float) -> Ran:
            return Ran(answers=predicted.answers, results=answers.results(items, predicted.answers, body), run_s=took_s)

        request = Predict(items=list(items), trace=trace)
        return self._ask(request, Predicted, timeout_s, read, payloads, min(len(items) * most.one, most.together))

    def _ask(
        self,
        request: frames.ToRunner,
        expected: type[A],
        timeout_s: float,
        read: Callable[[A, bytearray, float], R],
        payloads: Sequence[Chunk] = (),
        body_bytes: int = 0,
    ) -> R:
        """What ``read`` makes of the answer, of its body and of the seconds that it took; it may raise BadFrame."""
        began = time.monotonic()
        until = began + timeout_s
        try:
            self._channel.expect_silence()
            self._channel.send(frames.encode(request), payloads, until)
            meta, body = self._channel.receive(META_BYTES, body_bytes, until)
            took_s = time.monotonic() - began
            answer = frames.read_answer(meta)
            if isinstance(answer, Failed) and not body:
                raise RunnerFailed(answers.cause_of(answer), answer.message)
            if not isinstance(answer, expected):
                raise BadFrame("its answer is to something else than it was asked")
            return read(answer, body, took_s)
        except BadFrame:
            # Whatever it would say next could be anything, to anybody.
            self.kill()
            raise
        except TimeoutError as error:
            raise RunnerTimeout(f"There was no answer within {timeout_s:g} s.") from error
        except (EOFError, OSError) as error:
            # How it ended is told by the zygote, which is about to reap it; no status means that the zygote is gone.
            # One that lives on has closed its socket, and is made to end.
            if not self.ended.wait(_REAP_S):
                self.kill()
                self.ended.wait(_UNLOAD_S)
            raise RunnerDied(self.status) from error


class _Pending:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.pid = 0


class Zygote:
    """
    The process that runners are forked from, asked for anew when it has died (then its runners have died with it).

    ``nursery`` is the socket at which zygotes are to be had (:mod:`worker.runner.nursery`). ``record`` is where the
    zygote's session is written down for :func:`end_survivors`; ``started`` is told of every zygote and ``exited`` of
    every runner's end, in a thread of this object. ``cores``: those that it keeps to, with one thread each; without
    them it and its runners are born on ``near`` (none = where the worker is) and compute with ``threads`` threads (0 =
    as many as torch likes).
    """

    def __init__(
        self,
        *,
        nursery: Path,
        cores: Sequence[int],
        nice: int,
        environment: Mapping[str, str],
        scratch: Path,
        home: Path,
        confinement: frames.Confinement,
        bounds: Bounds | None,
        record: Path,
        exited: Callable[[Runner], None],
        started: Callable[[int], None],
        near: Sequence[int] = (),
        threads: int = 0,
    ) -> None:
        self._nursery = nursery
        self._cores = cores
        self._near = near
        self._threads = 1 if cores else threads
        self._nice = nice
        own_threads = {"OMP_NUM_THREADS": str(self._threads)} if self._threads else {}
        self._environment = {**MALLOC, "PYTHONPATH": str(ROOT), **own_threads, **environment}
        self._scratch = scratch
        self._home = home
        self._confinement = confinement
        self._bounds = bounds
        self._record = record
        self._exited = exited
        self._started = started
        self._tokens = itertools.count()
        #: Told when there is a zygote, and when there will be none.
        self._state = threading.Condition()
        self._pending: dict[int, _Pending] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._runners: dict[int, Runner] = {}
        #: Control groups of runners that have ended, with something in them that has not yet.
        self._lingering: list[RunnerGroup] = []
        self._pid: int | None = None
        #: To the zygote that is there, and to the one that was asked for.
        self._control: socket.socket | None = None
        self._asked: socket.socket | None = None
        self._listener: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def pid(self) -> int | None:
        return self._pid

    def start(self) -> None:
        """Have a zygote from now on; returns at once."""
        with self._state:
            if self._listener is None and not self._closed.is_set():
                self._listener = threading.Thread(target=self._live, name="zygote", daemon=True)
                self._listener.start()

    def _live(self) -> None:
        told = False
        while not self._closed.is_set():
            try:
                with self._ask() as control:
                    self._listen(control)
                told = False
            except OSError as error:
                # The nursery is being started, and this is tried again until it is there.
                if not told:
                    log.warning("no zygote yet", nursery=str(self._nursery), error=str(error))
                told = True
            except Exception:
                # Without this thread the worker would never have a zygote again.
                log.exception("zygote lost")
            self._closed.wait(_AGAIN_S)

    def _ask(self) -> socket.socket:
        """The connection that becomes the zygote's. Raises OSError."""
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        setup = frames.Setup(
            cores=list(self._cores or self._near) or sorted(os.sched_getaffinity(0)),
            threads=self._threads,
            nice=self._nice,
            environment=for_runners(self._environment),
            scratch=str(self._scratch),
            home=str(self._home),
            confinement=self._confinement,
        )
        passed: list[int] = []
        try:
            passed.append(os.open(self._nursery.parent, os.O_RDONLY | os.O_DIRECTORY))
            passed.append(os.pidfd_open(os.getpid()))
            # A zygote does not wait long for what it is to be.
            control.connect(os.fspath(self._nursery))
            socket.send_fds(control, [frames.encode(setup)], [*passed, 1, 2])
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
        # One that has just died is found out by asking it: the next one is asked once more.
        for _ in range(2):
            control = self._there(other_than=gone)
            runner = self._ask_for_runner(control)
            if runner is not None:
                return runner
            gone = control
        raise NoRunner("The zygote did not answer.")

    def _there(self, other_than: socket.socket | None) -> socket.socket:
        """The connection to the zygote, waited for. Raises NoRunner."""
        with self._state:
            self._state.wait_for(lambda: self._control not in (None, other_than) or self._closed.is_set(), _FORK_S)
            if self._control in (None, other_than):
                raise NoRunner("The worker is ending." if self._closed.is_set() else "There is no zygote.")
            assert self._control is not None
            return self._control

    def _ask_for_runner(self, control: socket.socket) -> Runner | None:
        """None where this zygote has ended before it answered. Raises NoRunner, OSError."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        token = next(self._tokens)
        pending = self._pending[token] = _Pending()
        self._sockets[token] = ours
        try:
            with theirs:
                try:
                    socket.send_fds(control, [frames.encode(frames.Fork(token=token))], [theirs.fileno()])
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
            runner.enter_group()
            return runner
        finally:
            self._pending.pop(token, None)
            self._sockets.pop(token, None)

    def _dead(self, pid: int, sock: socket.socket) -> Runner:
        """It has ended before it could be handed out."""
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
        """Returns when the zygote at the other end is gone, with all that was its. Raises OSError where none came."""
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
                        write_session(self._record, pid)
                        self._started(pid)
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
                                self._runners[forked.pid] = Runner(forked.pid, sock, self._signal, self._bounds)
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
        # What user code has started outlives a zygote that was killed.
        end_survivors(self._record)
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
            self._lingering = [one for one in (*self._lingering, *([group] if group else [])) if not one.remove()]
            self._exited(runner)

    def close(self) -> None:
        """End the zygote and all runners."""
        with self._state:
            self._closed.set()
            self._state.notify_all()
            asked, listener = self._asked, self._listener
            if asked is not None:
                # The end of the socket is what a zygote ends by, its runners first; the listening thread then hears its
                # end. From a nursery that has not taken the connection yet there is nothing to be heard.
                with contextlib.suppress(OSError):
                    asked.shutdown(socket.SHUT_WR if self._control is not None else socket.SHUT_RDWR)
        if listener is not None:
            listener.join(2 * _END_S)


# ---- the session of a former self ------------------------------------------------------------------------------------


def write_session(record: Path, pid: int) -> None:
    """Write down whose session it is; whole or not at all."""
    new = record.with_name(record.name + ".new")
    new.write_text(json.dumps({"boot": proc.boot_id(), "session": pid, "start": proc.start_time(pid) or 0}))
    new.replace(record)


def end_survivors(record: Path, wait_s: float = 10.0) -> int:
    """
    Kill what is left of the session written down there and wait until it is gone. Returns how many there were.

    After ``kill -9`` of a worker its zygote ends by itself; this is for what could not (stopped, or started by user
    code).
    """
    try:
        written = json.loads(record.read_text())
        boot, session, start = str(written["boot"]), int(written["session"]), int(written["start"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
    leader = proc.start_time(session)
    if boot != proc.boot_id() or (leader is not None and leader != start):
        return 0  # the number belongs to somebody else by now
    killed: set[int] = set()
    deadline = time.monotonic() + wait_s
    while members := [pid for pid, began in proc.session_members(session) if began >= start]:
        for pid in members:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            log.error("survivors of the former worker cannot be killed", pids=members)
            break
        time.sleep(0.01)
    record.unlink(missing_ok=True)
    return len(killed)
