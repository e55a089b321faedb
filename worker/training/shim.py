"""
``python -I -S shim.py STATUS FD COMMAND…``: starts a training in a session of its own, and writes down how it ended.

The kernel tells a process's exit status to its parent alone, and a training outlives the worker that started it. So
this process is its parent: it has a session of its own too, and ends only after the training. Without it a worker that
adopts a training could not tell a crash from an orderly end: a subreaper (``PR_SET_CHILD_SUBREAPER``) would have to
outlive the whole platform just as this does, and a process descriptor tells the exit status to others than the parent
only from Linux 6.15 on.

The training writes its process number to the descriptor FD before its command begins. The file STATUS has its full size
from the start, so that the end can be written on a full disk too. SIGTERM, SIGINT and SIGHUP are passed on to the
training's process group. Where this process is killed the training goes on, and how it ends stays unknown.

Standard library only, and as little of it as possible: one of these lives beside every training.
"""

import os
import signal
import sys

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Python ignores these, and what is ignored stays so behind an exec.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
LENGTH = 32


def _record(text: str) -> bytes:
    return text.encode().ljust(LENGTH - 1) + b"\n"


def _train(descriptor: int, command: list[str]) -> None:
    """The child's part; does not return."""
    try:
        os.setsid()
        for number in (*_PASSED_ON, *_IGNORED):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        os.write(descriptor, b"%d" % os.getpid())
        os.close(descriptor)
        os.execv(command[0], command)  # noqa: S606 - it is what this process is for
    finally:
        os._exit(126)


def main() -> None:
    path, descriptor, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    status = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.write(status, _record("runs"))
    # Until the child can be signalled.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    pid = os.fork()
    if pid == 0:
        _train(descriptor, command)
    os.close(descriptor)

    def pass_on(number: int, _frame: object) -> None:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            os.kill(
                pid, number
            )  # it has no session of its own yet; it has not been waited for, so its number is still its own

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    _, ended = os.waitpid(pid, 0)
    # Its number may be another's from now on.
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    os.pwrite(status, _record(f"exit {os.waitstatus_to_exitcode(ended)}"), 0)


if __name__ == "__main__":
    main()
