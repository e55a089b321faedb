"""
Large payloads in the memory of one machine: files of a private folder in a tmpfs, one for each invocation.

Where gateway and GPU workers are processes of one machine, a payload need not go through Redis: through its socket, its
scripts and its heap it is copied about ten times. Redis holds everything else of such an invocation, and of its payload
the size. Only what a waiting caller can send again comes here (docs/decisions/0017): the gateway that took it writes
the file and removes it with the caller's answer, and sweeps up what callers who did not wait to the end, or a gateway
that was killed, have left.

Fresh pages cost four times what copying into them does (250 µs against 60 for 600 kB), so a few files are kept and
written over.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from smore.domain.tensors import Buffer

#: Files that are kept for the next payloads, and the largest of them: together the memory that an idle gateway holds.
_SPARES: Final = 8
_SPARE_BYTES: Final = 4 << 20


class Payloads:
    """
    The folder, which exists. Every invocation is named by its project and its id.

    ``put`` and ``drop`` are for one thread of a process; any process may ``get``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Files of no invocation, whose names begin with a dot.
        self._spares: list[str] = []

    def _path(self, project: str, id_: str) -> str:
        return f"{self._folder}/{project}.{id_}"

    def put(self, project: str, id_: str, payload: Buffer) -> bool:
        """Whether it lies there now; where memory is short it does not, and goes through Redis."""
        path = self._path(project, id_)
        if self._spares:
            # Where somebody has swept it away there is a new file.
            with suppress(OSError):
                os.rename(self._spares.pop(), path)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                written = os.write(descriptor, payload)
            finally:
                os.close(descriptor)
        except OSError:
            written = -1
        if written == len(payload):
            return True
        with suppress(OSError):
            os.unlink(path)
        return False

    def get(self, project: str, id_: str, size: int) -> bytes | None:
        """The ``size`` bytes that were put there, None where they are not (any more)."""
        path = self._path(project, id_)
        try:
            with open(path, "rb", buffering=0) as file:
                payload = file.read(size)
                # Its invocation may have ended meanwhile, and the file may be written over by then: but not under this
                # name.
                whole = (
                    payload is not None
                    and len(payload) == size
                    and os.path.samestat(os.stat(path), os.fstat(file.fileno()))
                )
        except OSError:
            return None
        return payload if whole else None

    def drop(self, project: str, id_: str) -> None:
        path = self._path(project, id_)
        with suppress(OSError):
            if len(self._spares) < _SPARES and os.stat(path).st_size <= _SPARE_BYTES:
                spare = f"{self._folder}/.{id_}"
                os.rename(path, spare)
                self._spares.append(spare)
            else:
                os.unlink(path)

    def older(self, seconds: float) -> Iterator[tuple[str, str]]:
        """
        (project, id) of what has lain there so long. Spare files that were not written to for as long are removed.
        """
        before = time.time() - seconds
        for path in self._folder.iterdir():
            project, _, id_ = path.name.rpartition(".")
            with suppress(OSError):
                if path.stat().st_mtime >= before:
                    continue
                if project:
                    yield project, id_
                else:
                    path.unlink()
