"""
``python -m worker.runner.nursery SOCKET``: the process that the zygotes of all GPU workers of a machine are forked
from.

Importing torch takes seconds of a processor. It happens once here, so a worker that starts, or whose zygote has died,
has a zygote in the time of a fork. This module makes the socket, sheds the platform's settings and becomes ``python -m
worker.runner.zygote``: what a process was started with can be read by all that are forked from it.
"""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Final

from worker.inherited import MALLOC, for_runners

_ROOT: Final = Path(__file__).parents[2]
#: Workers that ask while it imports wait here.
_BACKLOG: Final = 128


def _leave_session() -> None:
    """
    Into a session of its own: where the kernel shares processors among sessions (sched_autogroup), it would import
    torch in the share of all that the supervisor has started, beside trainings with one each. The supervisor has made
    it a group's leader, which may not.
    """
    with contextlib.suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()


def main(place: Path) -> None:
    _leave_session()
    os.umask(0o077)
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.fspath(place))
    listener.listen(_BACKLOG)
    listener.set_inheritable(True)
    words = [sys.executable, "-m", "worker.runner.zygote", str(listener.fileno())]
    os.execve(words[0], words, for_runners({**MALLOC, "PYTHONPATH": str(_ROOT)}))  # noqa: S606 - it is to become it


if __name__ == "__main__":
    main(Path(sys.argv[1]))
