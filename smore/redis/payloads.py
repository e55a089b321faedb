"""
Large payloads in the memory of one machine: files in a private folder of a tmpfs, one for each invocation.

Where gateway and GPU workers are on one machine, a payload need not go through Redis, where its socket, scripts and heap
copy it about ten times. Redis holds the rest of such an invocation, and the size of its payload. Only payloads that a
waiting caller can send again are stored here (docs/decisions/0017). The gateway writes the file and removes it with the
caller's answer; a sweep removes the files of callers who stopped waiting and of gateways that were killed.

New pages cost four times as much as copying into them (250 µs against 60 µs for 600 kB), so a few files are kept and
overwritten.
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
    The payloads in an existing folder, by project and id of the invocation.

    One thread of a process may ``put`` and ``drop``; any process may ``get``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Files without an invocation, kept for the next payloads; their names begin with a dot.
        self._spares: list[str] = []

    def _path(self, project: str, id_: str) -> str:
        return f"{self._folder}/{project}.{id_}"

    def put(self, project: str, id_: str, payload: Buffer) -> bool:
        """Store a payload. False where memory is short: then it must go through Redis."""
        path = self._path(project, id_)
        if self._spares:
            # Where a sweep has removed the spare file, a new one is made.
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
        """The payload of ``size`` bytes; None where it is not there (any more)."""
        path = self._path(project, id_)
        try:
            with open(path, "rb", buffering=0) as file:
                payload = file.read(size)
                # The invocation may end meanwhile, and its file be overwritten for another one: under another name.
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
        (project, id) of payloads that were written at least so many seconds ago. Spare files of that age are removed.
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
