"""
The turn to load: of the schedulers that start together on a machine one loads at a time, so that the first can lead after
half of the time that both need. Nobody leads meanwhile.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import IO, Final

#: A process that holds its turn for longer was stopped, or the machine is very busy: the next one begins, seconds.
LONGEST_S: Final = 20.0
_LOOK_S: Final = 0.05


def take(folder: Path, longest_s: float = LONGEST_S) -> IO[str]:
    """
    Wait for the turn, which lasts until the returned file is closed, or its process has ended. ``folder``: one that the
    schedulers of a machine share.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "scheduler.loading"
    turn = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "w")  # noqa: SIM115 - the caller closes it
    until = time.monotonic() + longest_s
    while time.monotonic() < until:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(_LOOK_S)
    return turn
