"""Which checkpoints may go, and that others stay."""

import os
import time
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from worker.training.checkpoints import Checkpoints

DAY_S = 86_400.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders of the jobs old (of two attempts), young, and of one whose second attempt has just begun."""
    for job, attempt, days in (("old", 1, 40), ("old", 2, 31), ("young", 1, 29), ("again", 1, 40), ("again", 2, 0)):
        folder = tmp_path / job / str(attempt)
        folder.mkdir(parents=True)
        (folder / "checkpoint-5.pt").write_bytes(b"weights")
        os.utime(folder, (0, time.time() - days * DAY_S))
    for job in ("old", "young", "again"):
        os.utime(tmp_path / job, (0, time.time() - 40 * DAY_S))
    return tmp_path


def test_only_what_nobody_has_touched_for_long_goes(root: Path) -> None:
    checkpoints = Checkpoints(root, 30 * DAY_S)
    assert eventually(checkpoints.aged) == ["old"]
    for job in ("old", "young", "again", "none"):
        checkpoints.drop(job)
    eventually(lambda: not (root / "old").exists(), what="its end")
    assert sorted(folder.name for folder in root.iterdir()) == ["again", "young"]
    assert (root / "young" / "1" / "checkpoint-5.pt").exists()
    eventually(lambda: checkpoints.aged() == [])


def test_without_a_bound_everything_stays(root: Path) -> None:
    checkpoints = Checkpoints(root)
    checkpoints._drop("old")
    assert (checkpoints.aged(), (root / "old").exists()) == ((), True)
