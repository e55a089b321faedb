"""
Blobs: bytes that are named by their SHA-256, in a folder or in any storage that fsspec knows (``s3://…``).

A blob is at ``<url>/<project>/<digest>``. Projects share none, even of the same content: otherwise whoever knows a digest
could read another project's weights. An upload stays in a folder of its own until it is complete and its digest has been
checked, so no reader ever sees a part. Data is copied in pieces of a mebibyte.

A worker on another host reads blobs from a gateway (:class:`GatewayBlobs`). It proves that it belongs to the platform by a
ticket that it writes to Redis: whoever may write there is trusted with more than blobs.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Protocol, Self, cast

import redis
import redis.asyncio

from smore.domain.artifact import DIGEST
from smore.domain.errors import BlobNotFound, Conflict, PayloadTooLarge, StorageFull, WrongDigest
from smore.process.settings import Settings

CHUNK: Final = 1 << 20
#: Seconds after which an upload that nobody continued is dropped.
ABANDONED_S: Final = 86_400.0
#: Part of the uploads' disk that stays free.
FREE_SHARE: Final = 0.05

TICKET_HEADER: Final = "Smore-Ticket"
#: Seconds for which a ticket is valid; a read that has begun goes on.
TICKET_S: Final = 60
#: Attempts of a read that brings no more bytes.
_TRIES: Final = 5
_READ_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    project: str
    digest: str
    size: int
    #: When it was stored or last kept (:meth:`Blobs.keep`), epoch seconds.
    at: float


class SourceAway(OSError):
    """The gateway that serves the blobs cannot be reached now."""


class Source(Protocol):
    """Where a worker reads blobs from."""

    def read(self, project: str, digest: str, offset: int = 0) -> Iterator[bytes]:
        """
        The bytes from ``offset`` on, in pieces. The reader must compare them with the digest.

        Raises BlobNotFound before the first piece, and OSError where the read breaks off (SourceAway: try again later).
        """
        ...


class Blobs:
    """
    ``url``: a folder or an fsspec URL; ``staging``: the folder of unfinished uploads where ``url`` is no folder (a folder
    keeps them itself).
    """

    def __init__(self, url: str, staging: Path) -> None:
        # Imported here: a gateway that serves no uploads does not need it.
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self._fs, root = url_to_fs(url)
        self._root = str(root).rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)
        self._staging = Path(self._root, ".uploads") if self._local else staging

    def _path(self, project: str, digest: str) -> str:
        assert DIGEST.fullmatch(digest), digest
        return f"{self._root}/{project}/{digest}"

    # ---- reading -----------------------------------------------------------------------------------------------------

    def size(self, project: str, digest: str) -> int | None:
        """Bytes of a complete blob; None where there is none."""
        try:
            return int(self._fs.size(self._path(project, digest)))
        except FileNotFoundError:
            return None

    def open(self, project: str, digest: str) -> BinaryIO:
        """Seekable. Raises BlobNotFound."""
        try:
            return cast(BinaryIO, self._fs.open(self._path(project, digest), "rb"))
        except FileNotFoundError as error:
            raise BlobNotFound from error

    def read(self, project: str, digest: str, offset: int = 0) -> Iterator[bytes]:
        """See :class:`Source`."""
        file = self.open(project, digest)

        def pieces() -> Iterator[bytes]:
            with file:
                file.seek(offset)
                while piece := file.read(CHUNK):
                    yield piece

        return pieces()

    def __iter__(self) -> Iterator[Blob]:
        for path, info in self._fs.find(self._root, detail=True).items():
            project, _, digest = str(path).removeprefix(f"{self._root}/").partition("/")
            if DIGEST.fullmatch(digest):
                yield Blob(
                    project=project, digest=digest, size=int(info["size"]), at=self._fs.modified(path).timestamp()
                )

    def used(self, project: str) -> int:
        """Bytes of all blobs of a project."""
        try:
            return sum(int(info["size"]) for info in self._fs.find(f"{self._root}/{project}", detail=True).values())
        except FileNotFoundError:
            return 0

    # ---- changing ----------------------------------------------------------------------------------------------------

    def keep(self, project: str, digest: str) -> None:
        """Set the age of a blob to 0. In an object store, which has no such operation, the age counts from the upload."""
        if self._local:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._path(project, digest))

    def remove(self, project: str, digest: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(project, digest))

    def _part(self, project: str, digest: str) -> Path:
        assert DIGEST.fullmatch(digest), digest
        return self._staging / f"{project}.{digest}.part"

    def offset(self, project: str, digest: str) -> int:
        """How many bytes of an unfinished upload have arrived."""
        try:
            return self._part(project, digest).stat().st_size
        except FileNotFoundError:
            return 0

    def upload(self, project: str, digest: str, *, offset: int, size: int, most: int, project_most: int) -> "Upload":
        """
        Begin or continue an upload of ``size`` bytes in all at ``offset``. It is locked for this caller until it is closed.

        Raises Conflict where the upload has another offset (``offset`` in its details) or another caller writes it,
        PayloadTooLarge above ``most`` bytes, StorageFull where the project would have more than ``project_most`` bytes or
        the disk too little room.
        """
        if size > most:
            raise PayloadTooLarge(f"A blob may have {most} bytes; this one has {size}.", limit=most, size=size)
        if offset > size:
            raise Conflict("The offset is behind the end.", offset=self.offset(project, digest))
        if offset == 0:
            self._require_room(project, size, project_most)
        part = self._part(project, digest)
        part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            arrived = os.fstat(descriptor).st_size
            if arrived != offset or not _is_at(descriptor, part):
                raise Conflict(f"The upload has {arrived} bytes.", offset=arrived)
            os.lseek(descriptor, offset, os.SEEK_SET)
        except BlockingIOError as error:
            os.close(descriptor)
            raise Conflict("Somebody else is uploading this blob now.", offset=self.offset(project, digest)) from error
        except BaseException:
            os.close(descriptor)
            raise
        return Upload(self, project, digest, part, descriptor, offset, size)

    def _require_room(self, project: str, size: int, project_most: int) -> None:
        if self.used(project) + size > project_most:
            raise StorageFull(f"The blobs of a project may have {project_most} bytes in all.", limit=project_most)
        self._staging.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = os.statvfs(self._staging)
        if disk.f_bavail * disk.f_frsize - size < FREE_SHARE * disk.f_blocks * disk.f_frsize:
            raise StorageFull("The disk that blobs go to has too little room left.")

    def store(self, project: str, digest: str, part: Path) -> None:
        """Move the complete and checked file ``part`` to the blobs."""
        path = self._path(project, digest)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if self._local:
            part.chmod(0o444)
            part.replace(path)
        else:
            self._fs.put_file(str(part), path)
            part.unlink()

    def drop_abandoned(self, now: float) -> int:
        """Drop uploads that nobody continued. Returns how many."""
        dropped = 0
        for part in self._staging.glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                if now - part.stat().st_mtime > ABANDONED_S:
                    part.unlink()
                    dropped += 1
        return dropped


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the path is still that of the open file, which another process may have stored or dropped meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@dataclass(eq=False)
class Upload:
    """
    An open upload, from :meth:`Blobs.upload`; close it, or use it in a ``with``. What was written stays for the next
    :meth:`Blobs.upload`.
    """

    blobs: Blobs
    project: str
    digest: str
    part: Path
    descriptor: int
    offset: int
    size: int

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Raises PayloadTooLarge, with nothing of ``data`` written, beyond the announced size."""
        if self.offset + len(data) > self.size:
            raise PayloadTooLarge(f"The blob was announced with {self.size} bytes.", limit=self.size)
        view = memoryview(data)
        while view:
            written = os.write(self.descriptor, view)
            self.offset += written
            view = view[written:]

    def finish(self) -> bool:
        """
        Store the blob if all of its bytes have arrived, and return whether that is so.

        Raises WrongDigest where they have another digest; the upload is dropped then.
        """
        if self.offset < self.size:
            return False
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        hashed = hashlib.sha256()
        while piece := os.read(self.descriptor, CHUNK):
            hashed.update(piece)
        if hashed.hexdigest() != self.digest:
            self.part.unlink(missing_ok=True)
            raise WrongDigest
        os.fsync(self.descriptor)
        self.blobs.store(self.project, self.digest, self.part)
        return True

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# ---- from another host -----------------------------------------------------------------------------------------------


def _ticket(prefix: str, ticket: str) -> str:
    return f"{prefix}ticket:{ticket}"


async def redeem(client: "redis.asyncio.Redis", prefix: str, ticket: str, digest: str) -> str | None:
    """The project of a ticket for this blob, which ends with it; None where there is no such ticket (any more)."""
    if not ticket.isalnum() or len(ticket) != 32:
        return None
    blob = cast("bytes | None", await cast("Awaitable[object]", client.getdel(_ticket(prefix, ticket))))
    project, _, named = (blob or b"").decode().partition("/")
    return project if named == digest and project else None


class GatewayBlobs:
    """Reads blobs from a gateway; continues where a connection broke."""

    def __init__(self, url: str, client: "redis.Redis", prefix: str) -> None:
        self._url = url.rstrip("/")
        self._redis = client
        self._prefix = prefix

    def read(self, project: str, digest: str, offset: int = 0) -> Iterator[bytes]:
        """See :class:`Source`."""
        import httpx

        failures = 0
        while True:
            try:
                for piece in self._stretch(project, digest, offset):
                    offset += len(piece)
                    failures = 0
                    yield piece
                return
            except httpx.TransportError as error:
                failures += 1
                if failures == _TRIES:
                    raise SourceAway(f"{self._url} breaks off: {error or type(error).__name__}") from error
                time.sleep(0.1 * 2**failures)

    def _stretch(self, project: str, digest: str, offset: int) -> Iterator[bytes]:
        import httpx

        ticket = secrets.token_hex(16)
        self._redis.set(_ticket(self._prefix, ticket), f"{project}/{digest}", ex=TICKET_S)
        headers = {TICKET_HEADER: ticket, "Range": f"bytes={offset}-", "Accept-Encoding": "identity"}
        with httpx.stream("GET", f"{self._url}/v1/blobs/{digest}", headers=headers, timeout=_READ_S) as response:
            if response.status_code == 404:
                raise BlobNotFound
            if response.status_code == 416:
                return  # the connection broke after the last byte
            if response.status_code != 206:
                raise SourceAway(f"{self._url} answered {response.status_code}")
            yield from response.iter_raw()


def open_blobs(config: Settings) -> Blobs:
    """The blobs of this platform: for gateways and the control worker."""
    home = config.home.resolve()
    return Blobs(config.blobs.url or str(home / "blobs"), home / "uploads")


def open_source(config: Settings, client: "redis.Redis") -> Source:
    """The blobs for a worker: over a gateway where ``SMORE_BLOBS__URL`` is one."""
    if config.blobs.url.startswith(("http://", "https://")):
        return GatewayBlobs(config.blobs.url, client, config.redis.prefix)
    return open_blobs(config)
