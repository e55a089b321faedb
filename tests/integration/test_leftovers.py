"""A run of the tests that is killed leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

from tests.support import leftovers
from tests.support.eventually import eventually

#: A run that starts a process in a session of its own for each way to name its folder, and goes on.
RUN = """
import os, subprocess, sys, time
from pathlib import Path
from tests.support import leftovers

folder = Path(sys.argv[1])
leftovers.watch(folder)
idle = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen([*idle, str(folder)], start_new_session=True)
subprocess.Popen(idle, start_new_session=True, cwd=folder, env={})
subprocess.Popen(idle, start_new_session=True, env={"SMORE_HOME": f"{folder}/home"})
print("started", flush=True)
time.sleep(600)
"""


def test_a_run_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    folder, other = tmp_path / "run-1", tmp_path / "run-10"
    folder.mkdir()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(other)])
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder)], cwd=leftovers.ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert run.stdout is not None and run.stdout.readline() == "started\n"
        # The run, its watcher and what it has started.
        eventually(lambda: len(leftovers.working_in(folder)) == 5, what="all are there")
        run.kill()
        run.wait()
        eventually(lambda: not leftovers.working_in(folder), what="all are gone")
        assert bystander.poll() is None
    finally:
        for process in (run, bystander):
            process.kill()
            process.communicate()
