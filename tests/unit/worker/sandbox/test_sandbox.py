"""Parts of a cell that need no runner."""

import os
import resource
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.frames import Confinement
from worker.sandbox import warden


def device(group: int, mode: int) -> Any:
    return SimpleNamespace(st_gid=group, st_mode=stat.S_IFCHR | mode)


def test_a_runner_joins_the_groups_that_open_a_gpu_and_never_roots() -> None:
    assert warden._groups(
        [device(44, 0o660), device(0, 0o660), device(105, 0o666), device(106, 0o444), device(107, 0o640)]
    ) == {44, 107}


def test_only_devices_are_gpus_those_of_mig_among_them(tmp_path: Path) -> None:
    """The folders, root's on every host and open to all, are none."""
    for name in ("nvidia0", "nvidia-caps/nvidia-cap1", "dri/card0", "sda"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to("/dev/null")
    (tmp_path / "dri" / "by-path").mkdir()
    (tmp_path / "nvidia1").symlink_to(tmp_path / "gone")
    (tmp_path / "nvidia-text").touch()
    assert [os.path.relpath(path, tmp_path) for path in warden._gpus(tmp_path)] == [
        "dri/card0",
        "nvidia-caps/nvidia-cap1",
        "nvidia0",
    ]


def test_threads_are_bounded_only_where_the_user_is_the_runners_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts all threads of a user: once a training of the same user has many, a runner could start none."""
    bounded: dict[int, int] = {}
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: bounded.__setitem__(what, limits[0]))
    warden._limit(Confinement(processes=77), None)
    assert resource.RLIMIT_NPROC not in bounded and bounded[resource.RLIMIT_CORE] == 0
    warden._limit(Confinement(processes=77), 60_600)
    assert bounded[resource.RLIMIT_NPROC] == 77
