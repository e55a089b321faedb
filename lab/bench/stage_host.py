"""
Runs one stage of a benchmark within a time and leaves no process of it: ``python -m lab.bench.stage_host SECONDS COMMAND...``.

When the time is over, or SIGTERM comes, the command's process group gets SIGTERM, and SIGKILL :data:`GRACE_S` later.
However it ended, every process that it has started is killed then, also those in sessions of their own: a platform's
supervisor and its trainings would hold the device. Ends with the command's status, or with :data:`CUT` where the time
was over. Uses the standard library alone.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from worker import proc

CUT: Final = 124
#: Seconds for a platform to stop in order.
GRACE_S: Final = 10.0
#: Seconds for killed processes to be gone.
_GONE_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


class _Stopped(Exception):
    """SIGTERM has come."""


def _stop(*_: object) -> None:
    raise _Stopped


def main(words: Sequence[str]) -> int:
    """Run ``words[1:]`` for ``float(words[0])`` seconds at most. Returns the exit status."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    # Orphans of the command become children of this process, so that they can be killed. Where its parent is killed this
    # process ends, and the command with it.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _stop)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return CUT
    command = subprocess.Popen(words[1:], process_group=0)
    try:
        status = command.wait(float(words[0]))
    except (subprocess.TimeoutExpired, _Stopped):
        status = CUT
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if status == CUT:
        _end(command)
    _sweep()
    return status if status >= 0 else 128 - status


def _end(command: "subprocess.Popen[bytes]") -> None:
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, _GONE_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(wait_s)
            return


def _sweep() -> None:
    """Kill every descendant; one may start another in between."""
    until = time.monotonic() + _GONE_S
    while left := [pid for pid in proc.tree(os.getpid()) if pid != os.getpid()]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > until:
            print(f"could not be ended: {left}", file=sys.stderr)
            return
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
