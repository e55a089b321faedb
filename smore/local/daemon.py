"""
The supervisor's process: supervisord that restarts processes sooner.

Stock supervisord examines its children once a second, so a killed process can be missing for two seconds. A process
that dies while it starts is started again after 1, 2, 3, 4… seconds, without a bound on the pause. Here a child's death
wakes the loop: a process that had been up is restarted at once, and one that keeps dying after 0.25, 0.5, 1, 1, 1…
seconds, without a bound on the number of attempts.

Where the platform has a process named ``template`` (``template.py``), the processes of its modules are forked from it: they
become children of this process, which waits for them as for any other. While the first template imports, they wait for
their module; where it is missing, is started again or does not answer, they are started by exec.

It is run by its path, as ``python -P daemon.py -c <file>``, not as a module: importing the parent package would load
the settings, and every other process waits for this one.
"""

import ctypes
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import supervisor.process
from supervisor.medusa import asyncore_25 as asyncore
from supervisor.options import ServerOptions
from supervisor.process import Subprocess
from supervisor.states import ProcessStates, SupervisorStates
from supervisor.supervisord import Supervisor

#: Seconds before a process that died while it started is started again: the first, the second, every later time.
RETRY_S = (0.25, 0.5, 1.0)
TEMPLATE: Final = "template"
#: Seconds in which a template imports a module: a process that is to be started waits so long for it.
IMPORT_S: Final = 10.0
#: Why a process is not started yet.
_WAITING: Final = "waiting for the template"
#: Seconds in which a template answers with a process.
FORK_S: Final = 3.0
_PR_SET_CHILD_SUBREAPER: Final = 36


class Readable:
    """A socket in supervisord's poll set; ``read`` is called where there is something to read, or its end."""

    def __init__(self, end: socket.socket, read: Callable[[], object]) -> None:
        self._end, self._read = end, read
        asyncore.socket_map[end.fileno()] = self

    def fileno(self) -> int:
        return self._end.fileno()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def handle_read_event(self) -> None:
        self._read()

    def handle_error(self) -> None:
        """Ignore the error: there was nothing to read."""


class Process(Subprocess):  # type: ignore[misc]
    """A process of the platform, started by a fork of the template where there is one, else by exec."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        #: Of the template: our end of its standard input, its own end, the modules that it has imported, whether it imports
        #: the next one now, and whether all were imported once.
        self._link: socket.socket | None = None
        self._its_end: socket.socket | None = None
        self._imported: set[str] = set()
        self._imports = False
        self._was_ready = False
        #: When it was started or has imported a module.
        self._heard_at = 0.0

    def spawn(self) -> int | None:
        template = self.group.processes.get(TEMPLATE) if self.group else None
        if template is self:
            return self._spawn_template()  # type: ignore[no-any-return]
        words = shlex.split(self.config.command)
        if template is None or not template.makes(words):
            return super().spawn()  # type: ignore[no-any-return]
        if template.is_awaited(words[2]):
            self.spawnerr = _WAITING
            self.laststart = time.time()
            if self.state != ProcessStates.BACKOFF:
                self.change_state(ProcessStates.STARTING)
                self.change_state(ProcessStates.BACKOFF)
            self.delay = template._heard_at + IMPORT_S
            return None
        fork = self.config.options.fork
        # The rest of a start is the same: the log's pipe before, the record of the pid after it.
        self.config.options.fork = lambda: template.fork(self, words) or fork()
        try:
            return super().spawn()  # type: ignore[no-any-return]
        finally:
            self.config.options.fork = fork

    def makes(self, words: list[str]) -> bool:
        """Whether this template lives and forks what has this command line."""
        return bool(self.pid) and self._link is not None and words[1:2] == ["-m"] and words[2] in self._modules()

    def _modules(self) -> list[str]:
        return shlex.split(self.config.command)[3:]

    def is_awaited(self, module: str) -> bool:
        """Whether this is the first template and cannot fork what runs this module now, but may soon."""
        # Beside a load a new one imports for longer than an exec takes.
        waits = self._imports or module not in self._imported
        return waits and not self._was_ready and time.time() < self._heard_at + IMPORT_S

    def _hear(self) -> None:
        """Fork what waits for the module that the template has imported, and let it import the next one."""
        assert self._link is not None
        try:
            module = self._link.recv(256).decode()
        except OSError:
            module = ""
        if not module:
            self._cut()
        self._imports, self._heard_at = False, time.time()
        self._imported.add(module)
        self._was_ready |= self._imported.issuperset(self._modules())
        for process in self.group.processes.values():
            if process.state == ProcessStates.BACKOFF and process.spawnerr == _WAITING:
                process.spawn()
        if self._link is not None and not self._imported.issuperset(self._modules()):
            self._imports = True
            with suppress(OSError):  # it has ended, which is heard next
                self._link.send(b"go on")

    def _cut(self) -> None:
        """Forget the template that is at the other end."""
        if self._link is not None:
            del asyncore.socket_map[self._link.fileno()]
            self.config.options.poller.unregister_readable(self._link.fileno())
            self._link.close()
            self._link = None

    def fork(self, process: "Process", words: list[str]) -> int | None:
        """The pid of a process that this template has forked; None where it has not."""
        if self._link is None or self._imports or words[2] not in self._imported:
            return None
        logger, config = self.config.options.logger, process.config
        ours, its = socket.socketpair()
        with ours:
            ours.settimeout(FORK_S)
            try:
                with its:
                    socket.send_fds(self._link, [b"fork"], [its.fileno(), process.pipes["child_stdout"]])
                pid = int(ours.recv(20))
                # Only what is read from here on begins to work, so none is started twice.
                request = {
                    "command": words,
                    "folder": config.directory or os.getcwd(),
                    "environment": {**os.environ, "SUPERVISOR_ENABLED": "1", **(config.environment or {})},
                }
                ours.sendall(json.dumps(request).encode())
                ours.shutdown(socket.SHUT_WR)
                return pid
            except (OSError, ValueError) as error:
                logger.warn(f"the template does not fork {config.name}, which is started without it: {error!r}")
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)  # it is restarted
                self._cut()
                return None

    def _spawn_template(self) -> int | None:
        self._cut()
        self._imported, self._imports, self._heard_at = set(), True, time.time()
        # Packets, so that requests do not run together.
        self._link, self._its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        Readable(self._link, self._hear)
        with self._its_end:
            return super().spawn()  # type: ignore[no-any-return]

    def _prepare_child_fds(self) -> None:
        if self._its_end is not None:
            os.dup2(self._its_end.fileno(), self.pipes["child_stdin"])
        super()._prepare_child_fds()

    def _spawn_as_child(self, filename: str, argv: list[str]) -> None:
        if self._its_end is not None:
            # Every process is a copy of the template, which therefore holds no setting but the folder.
            for name in [name for name in os.environ if name.startswith("SMORE_") and name != "SMORE_HOME"]:
                del os.environ[name]
        super()._spawn_as_child(filename, argv)


class PromptSupervisor(Supervisor):  # type: ignore[misc]
    """Supervisord whose loop wakes when the next state change is due, not at the next full second."""

    def runforever(self) -> None:
        # What the template forks twice becomes a child of this process.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # A socket that the interpreter writes to at every signal, SIGCHLD among them. Created after the fork into the
        # background: the wakeup descriptor belongs to one process.
        write_end, read_end = socket.socketpair()
        write_end.setblocking(False)
        read_end.setblocking(False)
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        Readable(read_end, lambda: read_end.recv(4096))
        poller = self.options.poller
        poll = poller.poll
        poller.poll = lambda timeout: poll(min(timeout, self._due_in_s()))
        super().runforever()

    def reap(self, once: bool = False, recursionguard: int = 0) -> None:
        super().reap(once=once, recursionguard=recursionguard)
        now = time.time()
        for process in self._processes():
            if process.state == ProcessStates.BACKOFF:
                process.delay = min(process.delay, now + RETRY_S[min(process.backoff, len(RETRY_S)) - 1])

    def _processes(self) -> list:  # type: ignore[type-arg]
        return [process for group in self.process_groups.values() for process in group.processes.values()]

    def _due_in_s(self) -> float:
        """Seconds until the next state change that needs no signal and no command; 1 at most."""
        now = time.time()
        due = now + 1.0
        keeps_running = self.options.mood >= SupervisorStates.RUNNING
        for process in self._processes():
            match process.state:
                case ProcessStates.EXITED if keeps_running and process.config.autorestart:
                    due = now
                case ProcessStates.STOPPED if keeps_running and process.config.autostart and not process.laststart:
                    due = now
                case ProcessStates.BACKOFF | ProcessStates.STOPPING:
                    due = min(due, process.delay)
                case ProcessStates.STARTING:
                    due = min(due, process.laststart + process.config.startsecs)
        # Supervisord tests for "later than": a millisecond more saves a second iteration.
        return 0.0 if due <= now else due - now + 0.001


def main() -> None:
    supervisor.process.Subprocess = Process
    options = ServerOptions()
    options.realize(sys.argv[1:], doc=__doc__)
    options.first = True
    options.test = False
    with suppress(asyncore.ExitNow):  # raised when everything has stopped
        PromptSupervisor(options).main()
    options.close_httpservers()
    options.close_logger()


if __name__ == "__main__":
    main()
