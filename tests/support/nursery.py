"""A nursery and its zygotes for tests that have no platform."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from worker.frames import Confinement
from worker.runner.zygote_handle import Zygote, setup

ROOT = Path(__file__).parents[2]


def start(place: Path) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "worker.runner.nursery", str(place)]
    return subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})


@cache
def nursery() -> Path:
    """The socket of one that lives as long as the tests; it is started for the first that asks."""
    folder = Path(tempfile.mkdtemp(prefix="smore-nursery-"))
    process = start(folder / "nursery.sock")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(process.wait)
    atexit.register(process.terminate)
    return folder / "nursery.sock"


def zygote(folder: Path, name: str = "one") -> Zygote:
    """A zygote of the nursery at ``<folder>/nursery.sock``; its runners are not shut in."""
    return Zygote(
        nursery=folder / "nursery.sock",
        setup=setup(
            scratch=folder / name,
            home=folder,
            confinement=Confinement(on=False),
            cores=(max(os.sched_getaffinity(0)),),
        ),
        record=folder / f"{name}.json",
    )
