"""The CPU share of a partition that divides its cores with another: a control group where one may be made."""

import os
from pathlib import Path
from typing import Self

from smore import observability

log = observability.logger(__name__)


class ShareGroup:
    """A cgroup whose processes get ``share`` of a full weight; the weight binds only while neighbours want the core too."""

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
        """Let go of the group; a job that lives on keeps it."""
        try:
            self._folder.rmdir()
        except OSError as error:
            log.debug("control group stays", folder=str(self._folder), error=str(error))


def _places(share: float) -> list[tuple[Path, str, str]]:
    """(parent folder, file, its text) where a group for CPU time could be made: version 1, then version 2."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path.lstrip("/")
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next((path for controllers, path in own.items() if "cpu" in controllers.split(",")), "")
            found.append((Path(mount) / path, "cpu.shares", str(max(2, round(1024 * share)))))
        elif kind == "cgroup2":
            parent = Path(mount) / own.get("", "")
            if _delegates_cpu(parent):
                found.append((parent, "cpu.weight", str(max(1, round(100 * share)))))
    return found


def _delegates_cpu(parent: Path) -> bool:
    try:
        return "cpu" in (parent / "cgroup.subtree_control").read_text().split() and os.access(parent, os.W_OK)
    except OSError:
        return False
