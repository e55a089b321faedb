"""
Control groups: the CPU share of a partition, and the bounds of one runner. Used by the worker's parent process. What must
stay true: where no group may be made the worker runs without one.
"""

import contextlib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Self

from smore.process import observability

log = observability.logger(__name__)


class ShareGroup:
    """
    A cgroup whose processes get ``share`` of a full weight; the weight binds only while neighbours want the core too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def make(cls, name: str, share: float) -> Self | None:
        """None where no cgroup may be made: then the kernel's grouping by session divides the time."""
        for parent, file, value in _places(share):
            folder = parent / name
            try:
                folder.mkdir(exist_ok=True)
                (folder / file).write_text(value)
            except OSError:
                continue
            log.info("CPU share by control group", folder=str(folder), file=file, value=value)
            return cls(folder)
        log.info("no control group may be made: the CPU share is left to the kernel's session groups", share=share)
        return None

    def add(self, pid: int) -> None:
        """Take a process in; what it starts from now on follows it."""
        try:
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            log.warning("process not in its control group", pid=pid, error=str(error))

    def remove(self) -> None:
        """Remove the group; it stays where a job in it lives on."""
        try:
            self._folder.rmdir()
        except OSError as error:
            log.debug("control group stays", folder=str(self._folder), error=str(error))


class RunnerGroup:
    """
    Bounds of a runner and all that it starts, shared memory and files in memory included.

    Only in version 1 of control groups: in version 2 a process is in one group, which is the partition's.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    @classmethod
    def make(cls, name: str, *, processes: int) -> Self | None:
        """Without a bound for memory yet. None where no group may be made."""
        folders: dict[str, Path] = {}
        for controller in ("pids", "memory"):
            parent = _own_folder(controller)
            if parent is not None:
                with contextlib.suppress(OSError):
                    (parent / name).mkdir()
                    folders[controller] = parent / name
        if "pids" in folders:
            (folders["pids"] / "pids.max").write_text(str(processes))
        return cls(folders) if folders else None

    def limit(self, memory_mib: float) -> None:
        """Bound the memory of the group."""
        if "memory" in self._folders:
            (self._folders["memory"] / "memory.limit_in_bytes").write_text(str(int(memory_mib * 2**20)))

    def add(self, pid: int) -> None:
        """Take a process in. Raises OSError; ProcessLookupError where it is gone."""
        for folder in self._folders.values():
            (folder / "cgroup.procs").write_text(str(pid))

    def ran_out(self) -> bool:
        """Whether the kernel has ended a process of the group for want of memory."""
        folder = self._folders.get("memory")
        try:
            text = (folder / "memory.oom_control").read_text() if folder is not None else ""
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in text.splitlines())

    def remove(self) -> bool:
        """Remove the group. False while a process of it has still to end."""
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self._folders.values())


def remove_left(prefix: str) -> None:
    """Remove the groups, by the first part of their names, that a former worker's runners have left."""
    for controller in ("pids", "memory"):
        parent = _own_folder(controller)
        for folder in parent.glob(f"{prefix}*") if parent is not None else ():
            with contextlib.suppress(OSError):
                folder.rmdir()


@cache
def _own_folder(controller: str) -> Path | None:
    """Of version 1: this process's group under that controller, where a group may be made in it."""
    own = next((path for _, names, path in _memberships() if controller in names.split(",")), None)
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if own is not None and kind == "cgroup" and controller in options.split(","):
            folder = Path(mount) / own.lstrip("/")
            return folder if os.access(folder, os.W_OK) else None
    return None


def _memberships() -> list[tuple[str, str, str]]:
    """(number, controllers, path) of the groups that this process is in."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return [(number, names, path) for number, names, path in (line.split(":", 2) for line in lines)]


def _places(share: float) -> list[tuple[Path, str, str]]:
    """(parent folder, file, its text) where a group for CPU time could be made: version 1, then version 2."""
    own = {controllers: path.lstrip("/") for _, controllers, path in _memberships()}
    places = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next((path for controllers, path in own.items() if "cpu" in controllers.split(",")), "")
            places.append((Path(mount) / path, "cpu.shares", str(max(2, round(1024 * share)))))
        elif kind == "cgroup2":
            parent = Path(mount) / own.get("", "")
            if _delegates_cpu(parent):
                places.append((parent, "cpu.weight", str(max(1, round(100 * share)))))
    return places


def _delegates_cpu(parent: Path) -> bool:
    try:
        return "cpu" in (parent / "cgroup.subtree_control").read_text().split() and os.access(parent, os.W_OK)
    except OSError:
        return False
