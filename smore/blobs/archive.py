"""
The code archive of an uploaded folder: checked, then unpacked. smore_client/pack.py makes it.

It is a zip because the entries of a zip can be checked before anything is unpacked.
"""

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from smore.domain.artifact import check_path
from smore.domain.errors import InvalidArtifact

#: Bytes of the code's archive, compressed and unpacked. smore_client/pack.py has the same bounds.
MAX_ARCHIVE_BYTES: Final = 256 << 20
MAX_UNPACKED_BYTES: Final = 1 << 30
MAX_ENTRIES: Final = 20_000
#: Source text shrinks to about a quarter, so a ratio of a hundred is an attack on the disk. Small archives may exceed it.
MAX_RATIO: Final = 100
RATIO_FREE_BYTES: Final = 4 << 20

_CHUNK: Final = 1 << 20
#: What zipfile raises for bytes that are no valid zip.
_BROKEN: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    RuntimeError,
    OverflowError,
    OSError,
)
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def check(file: BinaryIO) -> list[zipfile.ZipInfo]:
    """
    Check a code archive without unpacking anything, and return its entries. Raises InvalidArtifact.

    Refused: methods other than store and deflate, encryption, links, devices and everything else that is no file or
    folder, paths that :func:`~smore.domain.artifact.check_path` refuses, a name twice (whatever its case) or both as a
    file and as a folder, too many entries, too many bytes, too high a ratio.
    """
    size = file.seek(0, os.SEEK_END)
    if size > MAX_ARCHIVE_BYTES:
        raise InvalidArtifact(f"The code's archive has {size} bytes; it may have {MAX_ARCHIVE_BYTES}.")
    try:
        with zipfile.ZipFile(file) as reader:
            entries = reader.infolist()
    except _BROKEN as error:
        raise InvalidArtifact(f"The code is no readable zip: {error}") from error
    if len(entries) > MAX_ENTRIES:
        raise InvalidArtifact(f"The code's archive has {len(entries)} entries; it may have {MAX_ENTRIES}.")
    total = sum(entry.file_size for entry in entries)
    if total > MAX_UNPACKED_BYTES:
        raise InvalidArtifact(f"The code has {total} bytes unpacked; it may have {MAX_UNPACKED_BYTES}.")
    if total > max(RATIO_FREE_BYTES, MAX_RATIO * size):
        raise InvalidArtifact(f"The code's archive grows to more than {MAX_RATIO} times its size.")
    for entry in entries:
        _check_entry(entry)
    _check_names(entries)
    return entries


def _check_entry(entry: zipfile.ZipInfo) -> None:
    try:
        check_path(entry.filename.removesuffix("/"))
        # zipfile cuts a name at its first NUL, so the whole name is checked as well.
        check_path(entry.orig_filename.removesuffix("/"))
    except ValueError as error:
        raise InvalidArtifact(f"The code's archive: {error}.") from error
    mode = entry.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if kind not in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
        raise InvalidArtifact(
            f"The code's archive: {entry.filename} is a link, a device or something else that is no file."
        )
    if entry.flag_bits & 0x1 or entry.compress_type not in _METHODS:
        raise InvalidArtifact(
            f"The code's archive: {entry.filename} is encrypted or uses another method than store or deflate."
        )


def _check_names(entries: list[zipfile.ZipInfo]) -> None:
    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        name = entry.filename.removesuffix("/").casefold()
        if name in files or (name in folders and not entry.is_dir()):
            raise InvalidArtifact(f"The code's archive: {entry.filename} is in it twice.")
        if not entry.is_dir():
            files.add(name)
        parts = name.split("/")
        folders.update("/".join(parts[:count]) for count in range(1, len(parts) + entry.is_dir()))
    if both := files & folders:
        raise InvalidArtifact(f"The code's archive: {min(both)} is both a file and a folder.")


def unpack(archive: Path, target: Path) -> None:
    """
    Unpack a code archive into an existing empty folder. Raises InvalidArtifact, either as :func:`check` does, before
    anything is written, or where the content differs from the list of entries; OSError where it cannot be written.
    """
    with archive.open("rb") as file:
        entries = check(file)
        with zipfile.ZipFile(file) as reader:
            for entry in entries:
                path = target / entry.filename
                if entry.is_dir():
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                # Exclusive: it never writes through an existing file or link.
                with path.open("xb") as sink:
                    for piece in _pieces(reader, entry):
                        sink.write(piece)


def _pieces(reader: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of an entry. Raises InvalidArtifact where its length is not the one in the list of entries."""
    left = entry.file_size
    try:
        with reader.open(entry) as source:
            while left >= 0 and (piece := source.read(_CHUNK)):
                left -= len(piece)
                yield piece
    except _BROKEN as error:
        raise InvalidArtifact(f"The code's archive: {entry.filename}: {error}") from error
    if left:
        raise InvalidArtifact(f"The code's archive: {entry.filename} has another size than its entry says.")
