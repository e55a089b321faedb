"""A file system of its own in a file: a disk that a benchmark may fill and freeze without harm to the machine's."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Sparse: only what is written takes room on the machine's disk.
SIZE_MIB = 3072


class Disk:
    """A mounted ext4 on a loop device. ``folder`` is its root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    @property
    def free_mib(self) -> int:
        return shutil.disk_usage(self.folder).free >> 20

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with self._filler.open("wb", buffering=0) as filler:
            for step in (64 << 20, 1 << 20, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), step)

    def empty(self) -> None:
        """Free the space and return when it can be used: ext4 reuses freed blocks only after a commit of its journal."""
        self._filler.unlink(missing_ok=True)
        self._commit()

    def freeze(self) -> None:
        """From now on writes and syncs of every process wait."""
        subprocess.run(["fsfreeze", "--freeze", str(self.folder)], check=True)

    def thaw(self) -> None:
        subprocess.run(["fsfreeze", "--unfreeze", str(self.folder)], check=True)

    def _commit(self) -> None:
        root = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(root)
        finally:
            os.close(root)


def missing() -> str:
    """Why this machine cannot mount such a disk; "" where it can."""
    if os.geteuid() != 0:
        return "a file system of its own needs root"
    if not Path("/dev/loop-control").exists():
        return "the kernel offers no loop device"
    programs = [name for name in ("mkfs.ext4", "mount", "umount", "fsfreeze") if shutil.which(name) is None]
    return f"{', '.join(programs)} not installed" if programs else ""


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """
    A disk mounted in ``folder``. It is detached in the end, with processes that still use it left to notice.

    Raises CalledProcessError where the machine refuses.
    """
    image, root = folder / "disk.img", folder / "disk"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE_MIB << 20)
    # Nothing kept back for root, and the tables written now: what is measured later is the platform's writing.
    subprocess.run(
        ["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image)], check=True
    )
    subprocess.run(["mount", "-o", "loop", str(image), str(root)], check=True)
    try:
        yield Disk(root)
    finally:
        for _ in range(50):
            if subprocess.run(["umount", str(root)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.2)
        else:
            subprocess.run(["umount", "--lazy", str(root)], check=False)
