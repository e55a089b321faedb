"""Uploaded folders on this node: fetched by digest, checked, unpacked once."""

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
from worker.artifacts.cache import ArtifactCache, Held

#: A file without a second link that was last written this long ago belongs to nobody who still fetches.
_FETCHED_S: Final = 3600.0


class Artifacts:
    """
    ``root/folders`` holds the unpacked folders by the digest of their artifact, ``root/files`` their large files by
    their own: several revisions with the same weights have hard links to one file.
    """

    def __init__(self, root: Path, source: Callable[[], Source], limit_bytes: int) -> None:
        self._files = root / "files"
        self._cache = ArtifactCache(root / "folders", limit_bytes)
        self._source = source

    def take(self, project: str, artifact: Artifact) -> Held:
        """
        The unpacked folder, to be closed when nobody uses it any more.

        Raises BlobNotFound, WrongDigest, InvalidArtifact, OSError (a broken connection or a full disk).
        """
        return self._cache.take(artifact.digest, lambda folder, _: self._make(project, artifact, folder))

    def _make(self, project: str, artifact: Artifact, folder: Path) -> None:
        self.sweep(None)
        self._files.mkdir(parents=True, exist_ok=True)
        # Functions are users of their own, whatever the umask says.
        self._files.chmod(0o755)
        with tempfile.TemporaryDirectory(dir=self._files, prefix="code.") as place:
            code = Path(place, "code.zip")
            self._fetch(project, artifact.code, code)
            archive.unpack(code, folder)
        for name, digest in artifact.files.items():
            path = folder / check_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._file(project, digest), path)

    def _file(self, project: str, digest: str) -> Path:
        """Projects share none, as in the store: what one may read is not what another uploaded."""
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
        """As :meth:`worker.artifacts.cache.ArtifactCache.sweep`, with the files that no folder has any more."""
        self._cache.sweep(wanted)
        for path in self._files.glob("*.*"):
            # A part or an archive that is being fetched has one link as well; what is young may be one.
            with contextlib.suppress(OSError):
                found = path.stat()
                if path.is_file() and found.st_nlink == 1 and time.time() - found.st_mtime > _FETCHED_S:
                    path.unlink()
