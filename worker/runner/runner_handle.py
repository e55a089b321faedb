"""
The worker's handle on one runner process: its requests, its signals, its end.

Made by :class:`worker.runner.zygote_handle.Zygote`, used by the warm pool and by batches. The worker imports no torch
and touches no device: the process at the other end of the socket does (worker/runner/runner.py). What must stay true:
nothing that a runner answers is trusted; a runner that breaks the protocol is killed.
"""

import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from smore.domain.invocation import Cause
from smore.process import observability
from worker import frames, proc
from worker.frames import META_BYTES, Answer, BadFrame, Channel, Chunk, Failed, Item, Load, Loaded, Predict, Predicted
from worker.runner import answers
from worker.runner.host_memory import HostBound
from worker.runner.masking import Mask
from worker.runner.output import RunnerOutput
from worker.sandbox.cgroup import RunnerGroup

log = observability.logger(__name__)

#: Seconds from the end of a runner's socket to the zygote's message that it has ended.
_REAP_S: Final = 1.0
_UNLOAD_S: Final = 2.0
#: Seconds between two looks whether a signal has stopped it.
_STOP_LOOK_S: Final = 0.002

#: The parts of a load in the runner, and of one out of host memory.
_LOAD_PHASES: Final = ("import", "weights", "first_run")
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
    """The answer was an error, its ``cause`` as the runner says; the runner lives."""

    def __init__(self, cause: Cause, message: str, traceback: str = "") -> None:
        self.cause = cause
        #: The frames of user code.
        self.traceback = traceback
        super().__init__(message)


class NoRunner(Exception):
    """No runner can be forked now."""


def describe(status: int | None) -> str:
    """An exit status in words: ``ended by SIGSEGV``, ``ended with status 3``."""
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
    """
    One answer for each invocation of a batch and the bytes of its result, checked. ``run_s``: seconds by the worker's
    own clock, without those for which it was held.
    """

    answers: Sequence[Answer]
    results: Sequence[bytes]
    run_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """
    Bounds of each runner. Of the machine's memory its function may hold ``host_mib``, and ``host_per_mib`` for each MiB
    that it declares; its control group allows ``beyond_mib`` more, and so many ``processes``.
    """

    #: The first part of the groups' names.
    group: str
    beyond_mib: float
    processes: int
    #: The defaults are for a CPU partition, whose memory is the machine's.
    host_mib: float = 0.0
    host_per_mib: float = 1.0

    def host_of(self, declared_mib: float) -> float:
        """MiB of the machine's memory for a function that declares so much."""
        return self.host_mib + self.host_per_mib * declared_mib


class Runner:
    """
    One runner process. Its requests are made by one thread at a time, the holder's; ``kill``, ``stop`` and ``ended`` may
    be used by every thread. ``kill`` of the constructor signals a process and all that it has started.

    Each request raises RunnerDied, RunnerTimeout, RunnerFailed, and BadFrame for an answer that breaks the protocol:
    then the process is killed. ``timeout_s`` bounds a request, seconds. Times of requests are by a clock that stands
    still while the process is held: between :meth:`hold` and :meth:`go_on`, which one thread calls.
    """

    def __init__(
        self,
        pid: int,
        sock: socket.socket,
        kill: Callable[[int, int], None],
        bounds: Bounds | None = None,
        output: RunnerOutput | None = None,
    ) -> None:
        self.pid = pid
        self._output = output
        if output is not None:
            output.pid = pid
        self.ended = threading.Event()
        #: As in :attr:`subprocess.Popen.returncode`, once it has ended.
        self.status: int | None = None
        #: Whether the kernel ended it, or a process that it had started, for want of memory; valid once it has ended.
        self.ran_out = False
        self._bounds = bounds
        #: Of the machine's memory, once it was asked to load.
        self.bound = HostBound()
        self._group: RunnerGroup | None = None
        #: What the loaded function may answer and hold.
        self._results = frames.Results(one=0, together=0)
        self._memory_mib = 0.0
        self._mask = Mask()
        #: Since when it is held, None = it is not; seconds for which it was held before.
        self._held: tuple[float | None, float] = (None, 0.0)
        self._channel = Channel(sock, self._clock)
        self._kill = kill

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal the runner and whatever it has started."""
        self._kill(self.pid, number)

    def hold(self) -> None:
        """Have it stopped where it is. Nothing that ends it minds: SIGKILL reaches a stopped process."""
        self.kill(signal.SIGSTOP)
        self._held = time.monotonic(), self._held[1]

    def stands(self, until: float) -> bool:
        """Wait until it is stopped, ``until`` monotonic seconds at most; False where it is not, or has ended."""
        while not (still := proc.suspended(self.pid)) and time.monotonic() < until:
            if self.ended.wait(_STOP_LOOK_S):
                break
        return still

    def go_on(self) -> None:
        """Continue it."""
        since, held_s = self._held
        if since is not None:
            self._held = None, held_s + time.monotonic() - since
            self.kill(signal.SIGCONT)

    def _clock(self) -> float:
        """Monotonic seconds, less those for which it was held."""
        since, held_s = self._held
        return (since if since is not None else time.monotonic()) - held_s

    def stop(self, soft_s: float) -> None:
        """SIGTERM, and SIGKILL ``soft_s`` seconds later."""
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
            self._channel.send(frames.encode(frames.Unload()), until=self._clock() + _UNLOAD_S)
            self.ended.wait(_UNLOAD_S)
        except OSError:
            pass
        if self.ended.is_set():
            self._channel.socket.close()
        else:
            self.end()

    def prepare(self, device: str, timeout_s: float) -> None:
        """Let it begin to use the device, without a model."""
        self._ask(frames.Prepare(device=device), frames.Prepared, timeout_s, lambda *_: None)

    def load(self, request: Load, timeout_s: float) -> Loaded:
        """
        Load a handler; what the runner prints is its function's from now on, without the secrets of the request, and so
        are its errors. The times are the worker's own, divided
        among the phases as the runner says.
        """
        function, _, revision = request.label.rpartition("@")
        self._mask = Mask(request.secrets.values())
        if self._output is not None:
            self._output.belong_to(function, int(revision), self._mask)
        host_mib = self._bounds.host_of(request.memory_mib) if self._bounds is not None else request.memory_mib
        request = msgspec.structs.replace(request, host_mib=host_mib)
        beyond_mib = self._bounds.beyond_mib if self._bounds is not None else 0.0
        self.bound = HostBound(declared_mib=request.memory_mib, host_mib=host_mib, beyond_mib=beyond_mib)
        if self._group is not None and self._bounds is not None:
            self._group.limit(self.bound.limit_mib)
        self._results, self._memory_mib = request.results, request.memory_mib
        return self._ready(request, _LOAD_PHASES, timeout_s)

    def park(self, timeout_s: float) -> frames.Parked:
        """Move its weights to host memory. RunnerFailed where they cannot be moved."""
        return self._ask(
            frames.Park(),
            frames.Parked,
            timeout_s,
            lambda parked, *_: frames.Parked(host_mib=answers.amount(parked.host_mib)),
        )

    def restore(self, timeout_s: float) -> Loaded:
        """Move its weights back to the device; as :meth:`load`."""
        return self._ready(frames.Restore(), _RESTORE_PHASES, timeout_s)

    def _ready(self, request: Load | frames.Restore, phases: Sequence[str], timeout_s: float) -> Loaded:
        def read(loaded: Loaded, _: bytearray, took_s: float) -> Loaded:
            # Counted as no more of the device than it may have, whatever it says.
            return Loaded(
                phases=answers.divided(loaded.phases, phases, took_s * 1e3),
                memory_mib=min(answers.amount(loaded.memory_mib), self._memory_mib),
                tensors=loaded.tensors,
            )

        return self._ask(request, Loaded, timeout_s, read)

    def enter_group(self) -> None:
        """
        Put it into a control group of its own, where one may be made. Takes milliseconds, so it is called before anybody
        waits for a load.
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
        """Whether the kernel has ended a process of its control group for want of memory."""
        return self._group is not None and self._group.ran_out()

    def gone(self, status: int | None) -> RunnerGroup | None:
        """
        Its process has ended. Returns its control group where processes that it had started have still to end.
        """
        self.status = status
        self.ran_out = self.exhausted()
        if self._output is not None:
            self._output.close()
        lingers = self._group is not None and not self._group.remove()
        self.ended.set()
        return self._group if lingers else None

    def predict(
        self, items: Sequence[Item], payloads: Sequence[Chunk], invocations: Sequence[str], timeout_s: float
    ) -> Ran:
        """
        Run a batch: ``payloads`` are the inputs, in the order of ``items``. What it prints belongs to ``invocations``.
        """
        return self.begin(items, payloads, invocations, timeout_s)()

    def begin(
        self, items: Sequence[Item], payloads: Sequence[Chunk], invocations: Sequence[str], timeout_s: float
    ) -> Callable[[], Ran]:
        """
        :meth:`predict` in two steps: what is returned waits for the end of the run, raises all that a request does, and
        must be called, in whichever thread.
        """
        most = self._results
        if self._output is not None:
            self._output.begin(invocations)

        def read(predicted: Predicted, body: bytearray, took_s: float) -> Ran:
            return Ran(answers=predicted.answers, results=answers.results(items, predicted.answers, body), run_s=took_s)

        request = Predict(items=list(items))
        return self._send(request, Predicted, timeout_s, read, payloads, min(len(items) * most.one, most.together))

    def _ask(
        self,
        request: frames.ToRunner,
        expected: type[A],
        timeout_s: float,
        read: Callable[[A, bytearray, float], R],
    ) -> R:
        """
        Send a request and return what ``read`` makes of the answer, its body and the seconds that it took. ``read`` may
        raise BadFrame.
        """
        return self._send(request, expected, timeout_s, read)()

    def _send(
        self,
        request: frames.ToRunner,
        expected: type[A],
        timeout_s: float,
        read: Callable[[A, bytearray, float], R],
        payloads: Sequence[Chunk] = (),
        body_bytes: int = 0,
    ) -> Callable[[], R]:
        """:meth:`_ask` in two steps: what is returned waits for the answer, and raises what either step does."""
        began = self._clock()
        until = began + timeout_s
        unsent: Exception | None = None
        try:
            self._channel.expect_silence()
            self._channel.send(frames.encode(request), payloads, until)
        except (BadFrame, EOFError, OSError) as error:
            unsent = error

        def answer() -> R:
            try:
                if unsent is not None:
                    raise unsent
                meta, body = self._channel.receive(META_BYTES, body_bytes, until)
                took_s = self._clock() - began
                answer = self._mask.answer(frames.read_answer(meta))
                if isinstance(answer, Failed) and not body:
                    raise RunnerFailed(answers.cause_of(answer), answer.message, answer.traceback[: frames.TRACEBACK])
                if not isinstance(answer, expected):
                    raise BadFrame("its answer is to something else than it was asked")
                return read(answer, body, took_s)
            except BadFrame:
                # Its next answer could be meant for another caller.
                self.kill()
                raise
            except TimeoutError as error:
                raise RunnerTimeout(f"There was no answer within {timeout_s:g} s.") from error
            except (EOFError, OSError) as error:
                # The zygote, which is about to reap it, says how it ended; no status means that the zygote is gone too.
                # One that lives on has closed its socket, and is made to end.
                if not self.ended.wait(_REAP_S):
                    self.kill()
                    self.ended.wait(_UNLOAD_S)
                raise RunnerDied(self.status) from error
            finally:
                if self._output is not None:
                    self._output.end()

        return answer
