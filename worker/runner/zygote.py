"""
``python -m worker.runner.zygote FD``: the nursery, which zygotes are forked from, and the zygote, which runners are
forked from.

A zygote is the process of one GPU worker from which its runners are forked. The nursery (started by
:mod:`worker.runner.nursery`) has imported torch once and touched no device. It forks a zygote for each GPU worker that
connects; so a zygote, and then a runner, starts in the time of a fork and shares the pages of what was imported. The
worker's side is :mod:`worker.runner.zygote_handle`.

What must stay true: both are single-threaded, for forking with threads is undefined. The connection ties the zygote to
its worker: requests come in, process numbers and exit statuses go out, and the end of the connection or of the worker
ends the zygote and all its runners. The nursery's end does not.

Python's own forkserver is no way to do this: it would start by running Celery's ``__main__`` again.
"""

import contextlib
import fcntl
import gc
import importlib
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from worker import frames
from worker.child_env import ROOT
from worker.frames import Channel
from worker.proc import die_with_parent
from worker.sandbox import warden
from worker.sandbox.warden import Cell, Warden

#: Imported by the nursery, and so by no zygote and no runner.
PRELOAD: Final = ("torch", "worker.runner.runner")
#: Seconds between two looks at scratch folders that the kernel does not bound.
_LOOK_S: Final = 1.0
#: Seconds within which a worker that connects to the nursery must have sent its setup.
_ASK_S: Final = 1.0


class _Forker:
    """The zygote's work: forks runners and reaps them. ``worker``: a pidfd of the worker. One thread."""

    def __init__(self, control: socket.socket, worker: int) -> None:
        self._control = control
        self._worker = worker
        self._children: dict[int, Cell] = {}
        self._warden: Warden | None = None
        self._scratch = Path("/")
        self._nice = 0
        #: Readable when a child has ended.
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def run(self, setup: frames.Setup) -> None:
        """Serve the worker until it is gone."""
        # A worker that waited for the nursery may be gone: its scratch folder is its successor's by now.
        if self._orphaned():
            return
        self._prepare(setup)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        for source in (self._control, self._woken, self._worker):
            selector.register(source, selectors.EVENT_READ)
        looked_at = time.monotonic()
        # The end of the socket says that the worker is gone; the pidfd is for a worker whose socket leaked to another
        # process.
        while not self._orphaned():
            for key, _ in selector.select(timeout=_LOOK_S):
                if key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._reap()
                elif key.fileobj is self._control and not self._serve():
                    return
            if time.monotonic() - looked_at >= _LOOK_S:
                looked_at = time.monotonic()
                self._end_overfull()

    def _orphaned(self) -> bool:
        return bool(select.select([self._worker], [], [], 0)[0])

    def _next(self) -> tuple[frames.ToZygote, list[int]] | None:
        """A request and the descriptors that came with it; None when the worker is gone."""
        data, descriptors, _, _ = socket.recv_fds(self._control, frames.ZYGOTE_PACKET, 3)
        return (frames.decode_to_zygote(data), list(descriptors)) if data else None

    def _prepare(self, setup: frames.Setup) -> None:
        self._nice = setup.nice
        self._scratch = Path(setup.scratch)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        os.environ.clear()
        os.environ.update(setup.environment)
        os.sched_setaffinity(0, setup.cores)
        if setup.threads:
            import torch

            torch.set_num_threads(setup.threads)
        if setup.confinement.on:
            self._warden = Warden(setup.confinement, self._scratch, ROOT, [Path(setup.home)] if setup.home else [])
        _freeze()
        self._send(frames.Ready(pid=os.getpid(), holds=self._warden.holds if self._warden is not None else []))

    def _send(self, message: frames.FromZygote) -> None:
        # A worker that is gone is noticed where requests are read.
        with contextlib.suppress(OSError):
            self._control.send(frames.encode(message))

    def _serve(self) -> bool:
        try:
            request = self._next()
        except ConnectionResetError:
            request = None
        match request:
            case None:
                return False
            case (frames.Fork() as fork, [descriptor, *output]):
                self._fork(fork.token, descriptor, output)
            case (frames.Kill() as kill, _) if kill.pid in self._children:
                # The process group: processes that user code has started go as well.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(kill.pid, kill.signal)
        return True

    def _fork(self, token: int, descriptor: int, output: Sequence[int]) -> None:
        cell = self._cell(token)
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_runner(zygote, descriptor, output, cell)
        for passed in (descriptor, *output):
            os.close(passed)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # both sides do it, so the group exists before it is needed
        self._children[pid] = cell
        self._send(frames.Forked(token=token, pid=pid))

    def _cell(self, token: int) -> Cell:
        if self._warden is not None:
            return self._warden.cell(token)
        folder = self._scratch / str(token)
        folder.mkdir(exist_ok=True)
        return Cell(folder=folder, user=None, mounted=False, number=None)

    def _take_back(self, cell: Cell) -> None:
        if self._warden is not None:
            self._warden.release(cell)
        else:
            shutil.rmtree(cell.folder, ignore_errors=True)

    def _become_runner(self, zygote: int, descriptor: int, output: Sequence[int], cell: Cell) -> NoReturn:
        try:
            for standard, own in zip((1, 2), output, strict=False):
                os.dup2(own, standard)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)
            # The sockets of the zygote and its selector are not the runner's.
            warden.close_others([descriptor])
            os.nice(self._nice)
            os.chdir(cell.folder)
            from worker.runner.runner import serve

            if self._warden is not None:
                self._warden.enter(cell)
            # Only now: the kernel forgets it when the process becomes another user.
            die_with_parent(zygote)

            serve(Channel(socket.socket(fileno=descriptor)))
        except BaseException:  # noqa: BLE001
            # Nothing may unwind into the zygote's loop: this is another process now.
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)

    def _end_overfull(self) -> None:
        if self._warden is None:
            return
        for pid, cell in self._children.items():
            if self._warden.overfull(cell):
                print(f"runner {pid} has filled its scratch folder and is ended", file=sys.stderr, flush=True)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._children:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            self._bury(ended.si_pid)

    def _bury(self, pid: int) -> None:
        # While the leader is a zombie its group's number is taken by nobody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        cell = self._children.pop(pid, None)
        if cell is not None:
            self._take_back(cell)
        self._send(frames.Exited(pid=pid, status=os.waitstatus_to_exitcode(status)))

    def end(self) -> None:
        """Kill all runners and wait for their ends."""
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for cell in self._children.values():
            self._take_back(cell)
        # Where the worker is gone the folder may be its successor's, which begins by emptying it.
        if self._scratch != Path("/") and not self._orphaned():
            shutil.rmtree(self._scratch, ignore_errors=True)


def _freeze() -> None:
    gc.collect()
    # A collection in a child would otherwise write to every object's header, and so copy every page.
    gc.freeze()


# ---- the nursery -----------------------------------------------------------------------------------------------------


def _become_zygote(control: socket.socket, door: tuple[int, int]) -> NoReturn:
    status = 1
    try:
        # A session of its own: its processes can be found after it, and are no part of the supervisor's session.
        os.setsid()
        control.settimeout(_ASK_S)
        data, descriptors, _, _ = socket.recv_fds(control, frames.ZYGOTE_PACKET, 4)
        control.settimeout(None)
        # Without data the worker has ended while it waited.
        if data:
            _serve_as_zygote(control, data, descriptors, door)
        status = 0
    except BaseException:  # noqa: BLE001
        # Nothing may unwind into the nursery's loop: this is another process now.
        sys.excepthook(*sys.exc_info())
    os._exit(status)


def _serve_as_zygote(control: socket.socket, data: bytes, descriptors: Sequence[int], door: tuple[int, int]) -> None:
    if len(descriptors) != 4 or not _let_in(descriptors[0], door):
        raise PermissionError("the process that asked for a zygote may not open the nursery's folder")
    folder, worker, output, errors = descriptors
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for descriptor in (folder, output, errors):
        os.close(descriptor)
    setup = frames.decode_to_zygote(data)
    assert isinstance(setup, frames.Setup)
    forker = _Forker(control, worker)
    try:
        forker.run(setup)
    finally:
        forker.end()


def _let_in(folder: int, door: tuple[int, int]) -> bool:
    """
    Whether the sender of this descriptor could open the folder of the nursery's socket. A runner that is confined, but
    no user of its own, can connect to the socket, because Landlock does not restrict that; it cannot open the folder,
    except as a path alone (O_PATH).
    """
    status = os.fstat(folder)
    return (status.st_dev, status.st_ino) == door and not fcntl.fcntl(folder, fcntl.F_GETFL) & os.O_PATH


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            print(
                f"zygote {ended[0]} ended with status {os.waitstatus_to_exitcode(ended[1])}",
                file=sys.stderr,
                flush=True,
            )


def main(descriptor: int) -> None:
    """The nursery: import torch, then fork a zygote for every connection to the listening socket ``descriptor``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=descriptor)
    folder = os.stat(Path(listener.getsockname()).parent)
    door = folder.st_dev, folder.st_ino
    began = time.perf_counter()
    # Nothing that is imported is garbage.
    gc.disable()
    for module in PRELOAD:
        importlib.import_module(module)
    gc.enable()
    _freeze()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    print(f"nursery ready, torch imported in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        control, _ = listener.accept()
        try:
            if os.fork() == 0:
                listener.close()
                _become_zygote(control, door)
        except OSError as error:
            # The worker asks again.
            print(f"no zygote: {error}", file=sys.stderr, flush=True)
        finally:
            control.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
