"""
The folders of checkpoints, one for each attempt of a job: ``<root>/<job>/<attempt>``.

Each attempt has its own, so that an older attempt which still lives never writes into that of a newer one. A new attempt's
begins with the last complete checkpoint of those before (smore/tracking/checkpoint.py says which ones are complete).
Used by :mod:`worker.training.jobs`.
"""

import os
import shutil
import threading
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Final

from smore.process import observability
from smore.tracking.checkpoint import UNFINISHED, Checkpoint, complete

log = observability.logger(__name__)

#: Seconds between two looks at a folder.
_LOOK_S: Final = 2.0
#: Seconds between two looks for jobs whose checkpoints may go, and how many are reported at a time.
_AGED_LOOK_S: Final = 600.0
_AGED: Final = 100


class Checkpoints:
    """
    ``root`` is made when it is needed; ``kept_s``: see :meth:`aged`. Thread-safe.

    A folder may be on a network's storage that hangs: a thread of its own looks into those that are watched, and
    :meth:`iterations` gives what it saw last.
    """

    def __init__(self, root: Path, kept_s: float | None = None) -> None:
        self._root, self._kept_s = root, kept_s
        self._aged: Sequence[str] = ()
        self._aged_at = -inf
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], int] = {}
        self._looking = False
        self._soon = threading.Event()

    def folder(self, job: str, attempt: int) -> Path:
        return self._root / job / str(attempt)

    def make(self, job: str, attempt: int, seed_attempt: int, *, seed: bool) -> Path:
        """
        The attempt's folder, made where it is not there; with ``seed`` it holds the last complete checkpoint of the newest
        attempt up to ``seed_attempt`` that has one. Raises OSError.
        """
        folder = self.folder(job, attempt)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if seed and not complete(folder):
            self._seed(job, folder, min(seed_attempt, attempt - 1))
        if seed:
            with self._lock:
                self._seen[job, attempt] = _iterations(folder)
        return folder

    def _seed(self, job: str, folder: Path, newest: int) -> None:
        for past in range(newest, 0, -1):
            found = complete(self.folder(job, past))
            if found:
                _copy(found[-1], folder)
                log.info("checkpoint taken over", job=job, attempt=past, iterations=found[-1].iterations)
                # What came before them is needed by nobody any more.
                for older in range(past - 1, 0, -1):
                    shutil.rmtree(self.folder(job, older), ignore_errors=True)
                return

    # ---- what is there -----------------------------------------------------------------------------------------------

    def iterations(self, job: str, attempt: int) -> int:
        """Of the attempt's last complete checkpoint, 0 = none was seen yet. From the first call on the folder is watched."""
        with self._lock:
            if not self._looking:
                self._looking = True
                threading.Thread(target=self._look, name="checkpoints", daemon=True).start()
            return self._seen.setdefault((job, attempt), 0)

    def unwatch(self, job: str, attempt: int) -> None:
        """Look into the attempt's folder no more."""
        with self._lock:
            self._seen.pop((job, attempt), None)

    # ---- what may go -------------------------------------------------------------------------------------------------

    def aged(self) -> Sequence[str]:
        """
        Jobs into whose folders nobody has written for ``kept_s`` (None = there are none), at most :data:`_AGED`. Whether
        they are over only the catalog knows.
        """
        with self._lock:
            if self._kept_s is not None and time.monotonic() - self._aged_at > _AGED_LOOK_S:
                self._aged_at = time.monotonic()
                threading.Thread(target=self._look_for_aged, name="aged checkpoints", daemon=True).start()
            return self._aged

    def drop(self, job: str) -> None:
        """Delete the folder of a job that is over, if nobody has written into it since; returns at once."""
        threading.Thread(target=self._drop, args=(job,), name="drop checkpoints", daemon=True).start()

    def _drop(self, job: str) -> None:
        folder = self._root / job
        if not self._is_aged(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)
        log.info("checkpoints deleted", job=job)
        with self._lock:
            self._aged = [other for other in self._aged if other != job]

    def _look_for_aged(self) -> None:
        try:
            aged = sorted(folder.name for folder in self._root.iterdir() if self._is_aged(folder))[:_AGED]
        except FileNotFoundError:
            aged = []
        with self._lock:
            self._aged = aged

    def _is_aged(self, folder: Path) -> bool:
        """Each start of an attempt and each checkpoint changes a folder of its job."""
        if self._kept_s is None:
            return False
        try:
            changed_at = max(each.lstat().st_mtime for each in (folder, *folder.iterdir()))
        except OSError:
            return False
        return time.time() - changed_at > self._kept_s

    def look_soon(self) -> None:
        """A training has ended: it may have written its last checkpoint."""
        self._soon.set()

    def _look(self) -> None:
        while True:
            self._soon.wait(_LOOK_S)
            self._soon.clear()
            with self._lock:
                watched = list(self._seen)
            for job, attempt in watched:
                iterations = _iterations(self.folder(job, attempt))
                with self._lock:
                    if (job, attempt) in self._seen:
                        self._seen[job, attempt] = iterations


def _iterations(folder: Path) -> int:
    found = complete(folder)
    return found[-1].iterations if found else 0


def _copy(checkpoint: Checkpoint, folder: Path) -> None:
    """Under a name that does not count until it is whole; by links where the storage has them."""
    unfinished = folder / (checkpoint.path.name + UNFINISHED)
    if checkpoint.path.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(checkpoint.path, unfinished, copy_function=_link)
    else:
        unfinished.unlink(missing_ok=True)
        _link(str(checkpoint.path), str(unfinished))
    unfinished.replace(folder / checkpoint.path.name)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
