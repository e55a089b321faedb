"""
What a run of the tests that was killed leaves behind: platforms, servers and trainings have sessions of their own and
would run on.
"""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from smore.local.supervision import wait_ended

ROOT = Path(__file__).resolve().parents[2]
#: Names the folder of a run in the environment of all that its tests start.
FOLDER = "SMORE_TEST_FOLDER"


def watch(folder: Path) -> "subprocess.Popen[bytes]":
    """
    Start a process that outlives this one and then ends everything that works in ``folder``. Kill it where this process
    ends in order.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.leftovers", str(os.getpid()), str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def working_in(folder: Path) -> set[psutil.Process]:
    """
    The processes whose command, working folder or environment names ``folder`` or what is in it, and their descendants,
    without this one.
    """
    name = re.compile(re.escape(str(folder)) + r"(?![\w-])")
    found = {process for process in psutil.process_iter() if _names(process, name)}
    for process in tuple(found):
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return {process for process in found if process.pid != os.getpid()}


def _names(process: psutil.Process, name: re.Pattern[str]) -> bool:
    # Redis and Postgres write their titles over their environments. Whoever is not root cannot read a GPU worker's.
    with suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            words = (*process.cmdline(), process.cwd(), *process.environ().values())
            return any(name.search(word) for word in words)
    return False


def main(pid: int, folder: Path) -> None:
    wait_ended(pid, None)
    while left := working_in(folder):  # a supervisor starts its processes again until it is gone itself
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
