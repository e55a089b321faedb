"""
Packs a function's folder for upload: the code as one zip, weights and wheels as files of their own.

Large files travel beside the zip, so that a change of the code does not send them again. Equal folders make equal zips:
names are sorted, times and modes left out.
"""

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: It is sent with the revision and is no part of the code: a new deadline is no new code.
FUNCTION_FILE: Final = "function.yaml"
#: A file of this size or more is a blob of its own, in bytes.
LARGE_BYTES: Final = 1 << 20
#: What the platform takes (smore/blobs/archive.py, smore/domain/artifact.py; a test compares them).
MAX_FILES: Final = 1000
MAX_ENTRIES: Final = 20_000
MAX_ARCHIVE_BYTES: Final = 256 << 20
MAX_UNPACKED_BYTES: Final = 1 << 30
MAX_RATIO: Final = 100
RATIO_FREE_BYTES: Final = 4 << 20
MAX_PATH_BYTES: Final = 1024
MAX_PART_BYTES: Final = 255

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """
    A folder ready to be sent. ``code``: SHA-256 of its zip; ``files``: SHA-256 of each file beside it, by its path in
    the folder; ``blobs``: where the bytes of each SHA-256 lie.
    """

    code: str
    files: Mapping[str, str]
    blobs: Mapping[str, Path]


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(folder: Path, into: Path) -> Packed | None:
    """
    Pack a folder; its zip is written into the folder ``into``. None where the folder holds nothing but its
    function.yaml.

    Hidden files and folders, ``__pycache__`` and ``*.pyc`` are left out; links are followed where they end inside the
    folder. Raises OSError, and ValueError that names the file which the platform would refuse.
    """
    small: list[tuple[str, Path]] = []
    large: dict[str, Path] = {}
    for path in sorted(files_of(folder)):
        name = path.relative_to(folder).as_posix()
        if name == FUNCTION_FILE:
            continue
        _check_name(folder, name)
        if path.stat().st_size >= LARGE_BYTES or path.suffix == ".whl":
            large[name] = path
        else:
            small.append((name, path))
    if not small and not large:
        return None
    if len(large) > MAX_FILES:
        raise ValueError(f"{folder}: {len(large)} files of {LARGE_BYTES >> 20} MiB or more; {MAX_FILES} may be sent")
    if len(small) > MAX_ENTRIES:
        raise ValueError(f"{folder}: {len(small)} files; {MAX_ENTRIES} may be sent")
    names: set[str] = set()
    for name, _ in small:
        if name.casefold() in names:
            raise ValueError(f"{folder}: {name} is in it twice, but for the case of its letters")
        names.add(name.casefold())
    archive = into / "code.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as writer:
        for name, path in small:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = (stat.S_IFREG | 0o444) << 16
            writer.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        unpacked = sum(entry.file_size for entry in writer.infolist())
    _check_size(folder, archive.stat().st_size, unpacked)
    code = digest_of(archive)
    files = {name: digest_of(path) for name, path in large.items()}
    return Packed(code=code, files=files, blobs={code: archive, **{files[name]: path for name, path in large.items()}})


def files_of(folder: Path) -> Iterator[Path]:
    """Regular files under the folder. Raises ValueError for what is neither file nor folder, or leads out."""
    root = folder.resolve()
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink() and not (path.resolve().is_relative_to(root) and path.is_file()):
                raise ValueError(f"{path}: a link may only lead to a file inside the folder")
        for name in names:
            path = Path(place, name)
            if name.startswith(".") or name.endswith(".pyc"):
                continue
            if not path.is_file():
                raise ValueError(f"{path}: neither a file nor a folder")
            yield path


def _check_name(folder: Path, name: str) -> None:
    if any(ord(character) < 32 or character in "\\:\x7f" for character in name):
        raise ValueError(f"{folder}: {name!r} has a character that no file's name should have")
    try:
        sizes = [len(part.encode()) for part in name.split("/")]
    except UnicodeEncodeError as error:
        raise ValueError(f"{folder}: {name!r} is not Unicode") from error
    if max(sizes) > MAX_PART_BYTES or sum(sizes) + len(sizes) > MAX_PATH_BYTES:
        raise ValueError(f"{folder}: {name!r} is too long")


def _check_size(folder: Path, packed: int, unpacked: int) -> None:
    if packed > MAX_ARCHIVE_BYTES:
        raise ValueError(f"{folder}: its code has {packed} bytes packed; {MAX_ARCHIVE_BYTES} may be sent")
    if unpacked > MAX_UNPACKED_BYTES:
        raise ValueError(f"{folder}: its code has {unpacked} bytes; {MAX_UNPACKED_BYTES} may be sent")
    if unpacked > max(RATIO_FREE_BYTES, MAX_RATIO * packed):
        raise ValueError(f"{folder}: its code shrinks to less than a {MAX_RATIO}th, which the platform refuses")
