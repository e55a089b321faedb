"""
The supervisor's process: supervisord that restarts processes sooner.

Stock supervisord examines its children once a second, so a killed process can be missing for two seconds. A process
that dies while it starts is started again after 1, 2, 3, 4… seconds, without a bound on the pause. Here a child's death
wakes the loop: a process that had been up is restarted at once, and one that keeps dying after 0.25, 0.5, 1, 1, 1…
seconds, without a bound on the number of attempts.

It is run by its path, as ``python -P daemon.py -c <file>``, not as a module: importing the parent package would load
the settings, and every other process waits for this one.
"""

import signal
import socket
import sys
import time
from contextlib import suppress

from supervisor.medusa import asyncore_25 as asyncore
from supervisor.options import ServerOptions
from supervisor.states import ProcessStates, SupervisorStates
from supervisor.supervisord import Supervisor

#: Seconds before a process that died while it started is started again: the first, the second, every later time.
RETRY_S = (0.25, 0.5, 1.0)


class SignalWakeup:
    """A socket in supervisord's poll set that the interpreter writes to at every signal, SIGCHLD among them."""

    def __init__(self) -> None:
        self._write_end, self._read_end = socket.socketpair()
        self._write_end.setblocking(False)
        self._read_end.setblocking(False)
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._read_end.fileno()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def handle_read_event(self) -> None:
        self._read_end.recv(4096)

    def handle_error(self) -> None:
        """Ignore the error: there was nothing to read."""


class PromptSupervisor(Supervisor):  # type: ignore[misc]
    """Supervisord whose loop wakes when the next state change is due, not at the next full second."""

    def runforever(self) -> None:
        # Created after the fork into the background: the wakeup descriptor belongs to one process.
        wakeup = SignalWakeup()
        asyncore.socket_map[wakeup.fileno()] = wakeup
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
