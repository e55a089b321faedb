"""
``python -m worker.runner.nursery SOCKET``: the nursery, the process of a machine from which the zygotes of all its GPU
workers are forked.

Importing torch takes seconds of CPU time. It happens once here, so a worker that starts, or whose zygote has died, has a
zygote in the time of a fork. This module makes the socket, drops the platform's settings and becomes ``python -m
worker.runner.zygote``. What must stay true: the environment of this process holds no credential, for every process that
is forked from it can read it.
"""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Final

from worker.child_env import MALLOC, ROOT, for_runners
from worker.proc import die_with_parent

#: Workers that may wait while it imports torch.
_BACKLOG: Final = 128


def _leave_session() -> None:
    """
    Begin a session of its own. Where the kernel shares processors among sessions (sched_autogroup), torch would
    otherwise be imported in the share of all that the supervisor has started, beside trainings with one each. A group's
    leader, which the supervisor has made it, may not do so and leaves that group first.
    """
    with contextlib.suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()


def main(place: Path) -> None:
    """Listen at ``place`` and become the nursery, which ends with its parent's thread. Raises OSError."""
    # Nobody finds it by a session of its own, or by an environment that names nothing, where its parent was killed.
    die_with_parent(os.getppid())
    _leave_session()
    os.umask(0o077)
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.fspath(place))
    listener.listen(_BACKLOG)
    listener.set_inheritable(True)
    words = [sys.executable, "-m", "worker.runner.zygote", str(listener.fileno())]
    os.execve(words[0], words, for_runners({**MALLOC, "PYTHONPATH": str(ROOT)}))  # noqa: S606 - this process becomes the nursery


if __name__ == "__main__":
    main(Path(sys.argv[1]))
