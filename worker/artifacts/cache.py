"""
The artifact cache: content-addressed folders of one node, each made once, read-only, shared by all its GPU workers; the
least recently used are removed first.

The record ``<key>.json`` beside the folder ``<root>/<key>`` is written last, so a folder without one was left by a
process that died. Making and removing take the lock ``<key>.lock`` exclusively, using shares it; the kernel releases
locks when a process ends, however it ends. What must stay true: a folder that is in use is never removed.
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from smore.process import observability

log = observability.logger(__name__)

_READ_ONLY: Final = 0o555


class HeldFolder:
    """A folder of the cache that stays until this is closed."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor

    def close(self) -> None:
        """Use it no more; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ArtifactCache:
    """
    The folders below ``root``. ``limit_bytes`` bounds them; a folder that is held stays, however large. Safe from any
    thread and process: file locks order them.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root
        self._limit = limit_bytes

    def take(self, key: str, make: Callable[[Path, int], None]) -> HeldFolder:
        """
        The folder of this key. Where there is none ``make`` fills an empty one, once; other callers wait for it.

        ``make`` gets the folder and the lock's descriptor: a process that inherits the descriptor keeps others away even
        when this one is killed. Raises what ``make`` raises, and then leaves nothing.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        # Functions run as other users: they must be able to read it, whatever the umask is.
        self._root.chmod(0o755)
        while True:
            held = self._share(key)
            if held is not None:
                return held
            self._make(key, make)
            # Another worker may have removed it before this one has shared its lock: then it is made again.

    def _share(self, key: str) -> HeldFolder | None:
        descriptor = self._lock(key, fcntl.LOCK_SH)
        try:
            os.utime(self._record(key))
        except FileNotFoundError:
            os.close(descriptor)
            return None
        return HeldFolder(self._root / key, descriptor)

    def _make(self, key: str, make: Callable[[Path, int], None]) -> None:
        descriptor = self._lock(key, fcntl.LOCK_EX)
        try:
            record, folder = self._record(key), self._root / key
            if record.exists():
                return
            remove(folder)
            folder.mkdir(mode=0o755)
            try:
                make(folder, descriptor)
                size = seal(folder)
            except BaseException:
                remove(folder)
                raise
            new = record.with_suffix(".new")
            new.write_text(json.dumps({"bytes": size, "made_at": time.time()}))
            new.replace(record)
        finally:
            # Unlocked, not only closed: a process that ``make`` has started may live on and have the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _lock(self, key: str, how: int) -> int:
        """The descriptor of the key's lock file, locked; waits. A lock file that was removed meanwhile is made anew."""
        path = self._root / f"{key}.lock"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, how)
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _record(self, key: str) -> Path:
        return self._root / f"{key}.json"

    def sweep(self, wanted: Collection[str] | None = None) -> list[str]:
        """
        Remove folders whose keys are not ``wanted`` (None = all are), then the least recently used until the rest is
        within the limit. Folders in use stay. Returns the keys of those that were removed.
        """
        folders: list[tuple[bool, float, str, int]] = []
        for record in self._root.glob("*.json"):
            key = record.stem
            with contextlib.suppress(OSError, ValueError, KeyError):
                size = int(json.loads(record.read_text())["bytes"])
                folders.append((wanted is None or key in wanted, record.stat().st_mtime, key, size))
        excess = sum(size for *_, size in folders) - self._limit
        removed = []
        for is_wanted, _, key, size in sorted(folders):
            if (not is_wanted or excess > 0) and self._remove(key):
                removed.append(key)
                excess -= size
        if removed:
            log.info("removed from the node", root=str(self._root), keys=removed)
        return removed

    def _remove(self, key: str) -> bool:
        path = self._root / f"{key}.lock"
        try:
            descriptor = self._lock(key, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            self._record(key).unlink(missing_ok=True)
            remove(self._root / key)
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
        return True


def seal(folder: Path) -> int:
    """Make a folder and all in it read-only and readable for every user of the machine; returns its bytes."""
    total = 0
    for place, folders, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(place, name)
            status = path.lstat()
            total += status.st_size
            if stat.S_ISREG(status.st_mode):
                path.chmod(_READ_ONLY if status.st_mode & stat.S_IXUSR else 0o444)
        for name in folders:
            path = Path(place, name)
            if not path.is_symlink():
                path.chmod(_READ_ONLY)
    folder.chmod(_READ_ONLY)
    return total


def remove(folder: Path) -> None:
    """Remove a folder, a sealed one too."""
    for place, folders, _ in os.walk(folder):
        for path in (Path(place), *(Path(place, name) for name in folders)):
            if not path.is_symlink():
                path.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
