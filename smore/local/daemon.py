"""
The supervisor's process: supervisord with two of its habits changed.

Stock supervisord looks at its children once a second, so a killed process is away for up to two seconds, and one that
dies while it starts is tried again after 1, 2, 3, 4… seconds without bound. Here a child's death wakes the loop, a
process that had been up is back at once, and one that keeps dying is tried again after 0.25, 0.5, 1, 1, 1… seconds for
as long as it takes.

Run by its path, as ``python -P daemon.py -c <file>``, and not as a module: the parent package would import the
settings, and everything waits for this process.
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

#: Seconds before a process that died while starting is tried again: the first, the second, and every later time.
RETRY_S = (0.25, 0.5, 1.0)


class Bell:
    """
    A socket in supervisord's poll set that the interpreter writes to whenever a signal comes in: SIGCHLD above all.
    """

    def __init__(self) -> None:
        self._rings, self._hears = socket.socketpair()
        self._rings.setblocking(False)
        self._hears.setblocking(False)
        signal.set_wakeup_fd(self._rings.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._hears.fileno()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def handle_read_event(self) -> None:
        self._hears.recv(4096)

    def handle_error(self) -> None:
        """Nothing was there to read."""


class PromptSupervisor(Supervisor):  # type: ignore[misc]
    """Supervisord that acts when something is due, not at the next full second."""

    def runforever(self) -> None:
        # Only now, behind the fork into the background.
        bell = Bell()
        asyncore.socket_map[bell.fileno()] = bell
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
        """Seconds until some process is to change its state without anybody's doing."""
        now = time.time()
        due = now + 1.0
        going_on = self.options.mood >= SupervisorStates.RUNNING
        for process in self._processes():
            match process.state:
                case ProcessStates.EXITED if going_on and process.config.autorestart:
                    due = now
                case ProcessStates.STOPPED if going_on and process.config.autostart and not process.laststart:
                    due = now
                case ProcessStates.BACKOFF | ProcessStates.STOPPING:
                    due = min(due, process.delay)
                case ProcessStates.STARTING:
                    due = min(due, process.laststart + process.config.startsecs)
        # Supervisord compares with "later than": a millisecond more saves a second round.
        return 0.0 if due <= now else due - now + 0.001


def main() -> None:
    options = ServerOptions()
    options.realize(sys.argv[1:], doc=__doc__)
    options.first = True
    options.test = False
    with suppress(asyncore.ExitNow):  # its way to say that everything has stopped
        PromptSupervisor(options).main()
    options.close_httpservers()
    options.close_logger()


if __name__ == "__main__":
    main()
