"""
Uploaded folders on this node: fetched by digest, checked, unpacked once. Used by :mod:`worker.artifacts.runtime`. What
must stay true: nothing is unpacked before its digest has been checked, and projects share no files.
"""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from smore.blobs import archive
from smore.blobs.store import Source
from smore.domain.artifact import Artifact, check_path
from smore.domain.errors import WrongDigest
from worker.artifacts.cache import ArtifactCache, HeldFolder

#: Seconds since the last write after which a file without a second link is in no fetch that is under way.
_FETCHED_S: Final = 3600.0


class Artifacts:
    """
    ``root/folders`` holds the unpacked folders by the digest of their artifact, ``root/files`` their large files by the
    files' own digests: several revisions with the same weights have hard links to one file. ``source`` opens the store
    that folders are fetched from. Safe from any thread and process.
    """

    def __init__(self, root: Path, source: Callable[[], Source], limit_bytes: int) -> None:
        self._files = root / "files"
        self._cache = ArtifactCache(root / "folders", limit_bytes)
        self._source = source

    def take(self, project: str, artifact: Artifact) -> HeldFolder:
        """
        The unpacked folder, the caller's to close.

        Raises BlobNotFound, WrongDigest, InvalidArtifact, OSError (a broken connection or a full disk).
        """
        return self._cache.take(artifact.digest, lambda folder, _: self._make(project, artifact, folder))

    def _make(self, project: str, artifact: Artifact, folder: Path) -> None:
        self.sweep(None)
        self._files.mkdir(parents=True, exist_ok=True)
        # Functions run as other users: they must be able to read it, whatever the umask is.
        self._files.chmod(0o755)
        with tempfile.TemporaryDirectory(dir=self._files, prefix="code.") as folder_of_code:
            code = Path(folder_of_code, "code.zip")
            self._fetch(project, artifact.code, code)
            archive.unpack(code, folder)
        for name, digest in artifact.files.items():
            path = folder / check_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._file(project, digest), path)

    def _file(self, project: str, digest: str) -> Path:
        """The file of a digest. Projects share none, as in the store: none may read what another uploaded."""
        path = self._files / f"{project}.{digest}"
        try:
            os.utime(path)
        except FileNotFoundError:
            with tempfile.NamedTemporaryFile(dir=self._files, prefix="part.", delete=False) as part:
                new = Path(part.name)
            try:
                self._fetch(project, digest, new)
                new.chmod(0o444)
                new.replace(path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
        return path

    def _fetch(self, project: str, digest: str, target: Path) -> None:
        hashed = hashlib.sha256()
        with target.open("wb") as sink:
            for piece in self._source().read(project, digest):
                hashed.update(piece)
                sink.write(piece)
        if hashed.hexdigest() != digest:
            raise WrongDigest(f"What came for the blob {digest} has another digest.")

    def sweep(self, wanted: Collection[str] | None) -> None:
        """As :meth:`worker.artifacts.cache.ArtifactCache.sweep`, and remove the files that no folder links to."""
        self._cache.sweep(wanted)
        for path in self._files.glob("*.*"):
            # A file that is being fetched has one link as well; a young one may be such.
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.is_file() and status.st_nlink == 1 and time.time() - status.st_mtime > _FETCHED_S:
                    path.unlink()
