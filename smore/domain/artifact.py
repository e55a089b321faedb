"""
An uploaded function: the archive of its code and its large files, each a blob named by its SHA-256, and the packages that
it requires.

An artifact holds no path of any machine: it is the same wherever its blobs are.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smore.domain.errors import InvalidSpec
from smore.domain.quote import quoted

#: A blob's name: the SHA-256 of its bytes, in lower-case hex.
DIGEST = re.compile(r"[0-9a-f]{64}")
#: Files beside the archive in one artifact; the revision's record names each.
MAX_FILES = 1000
MAX_REQUIREMENTS = 100
#: Bytes of a path inside the folder, and of each part of it: Linux' own limits.
MAX_PATH_BYTES = 1024
MAX_PART_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """
    ``code`` is the digest of the code's archive (smore/blobs/archive.py); ``files`` maps paths inside the folder to
    digests.
    """

    code: str
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of the whole folder: two artifacts that have the same one unpack to the same files."""
        return hashlib.sha256(json.dumps([self.code, sorted(self.files.items())]).encode()).hexdigest()

    @property
    def blobs(self) -> frozenset[str]:
        """Digests of all blobs that are needed to unpack it."""
        return frozenset((self.code, *self.files.values()))


def check_path(path: str) -> str:
    """
    The path itself, if it stays inside its folder and every file system can hold it.

    Raises ValueError, which says what is wrong: absolute, upwards, empty parts, a backslash, a colon, control
    characters, too long.
    """
    if not path or path.startswith("/"):
        raise ValueError(f"{quoted(path)} is not a relative path")
    if any(ord(character) < 32 or character in "\\:\x7f" for character in path):
        raise ValueError(f"{quoted(path)} has a character that no file's name should have")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{quoted(path)} leads out of its folder or has an empty part")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError as error:
        raise ValueError(f"{quoted(path)} is not Unicode") from error
    if max(sizes) > MAX_PART_BYTES or sum(sizes) + len(parts) > MAX_PATH_BYTES:
        raise ValueError(f"{quoted(path)} is too long")
    return path


def parse_artifact(raw: object, where: str) -> Artifact | None:
    """The artifact in ``{code: sha256, files: {path: sha256}}``; None for None. Raises InvalidSpec that names the field."""
    if raw is None:
        return None
    if not isinstance(raw, Mapping) or not raw.keys() <= {"code", "files"}:
        raise InvalidSpec.at(where, "a mapping with code and files is expected; `smore deploy FOLDER` makes it")
    code, files = raw.get("code"), raw.get("files") or {}
    if not isinstance(code, str) or DIGEST.fullmatch(code) is None:
        raise InvalidSpec.at(f"{where}.code", "a SHA-256 in lower-case hex is expected")
    if not isinstance(files, Mapping) or len(files) > MAX_FILES:
        raise InvalidSpec.at(f"{where}.files", f"a mapping of at most {MAX_FILES} paths to SHA-256 is expected")
    for path, digest in files.items():
        if not isinstance(path, str) or not isinstance(digest, str) or DIGEST.fullmatch(digest) is None:
            raise InvalidSpec.at(f"{where}.files", f"{quoted(path)}: a path and its SHA-256 are expected")
        try:
            check_path(path)
        except ValueError as error:
            raise InvalidSpec.at(f"{where}.files", str(error)) from error
    return Artifact(code=code, files=dict(files))


def parse_requirements(raw: object, artifact: Artifact | None, where: str) -> tuple[str, ...]:
    """
    Requirement specifiers as pip takes them, and ``./…whl`` for a wheel of the folder. Raises InvalidSpec.

    Options (``-r``, ``--index-url``) are refused: the revision alone must say what its environment is made of.
    """
    if raw is None:
        return ()
    if not isinstance(raw, Sequence) or isinstance(raw, str) or len(raw) > MAX_REQUIREMENTS:
        raise InvalidSpec.at(where, f"a list of at most {MAX_REQUIREMENTS} requirements is expected")
    requirements = []
    for item in raw:
        text = item.strip() if isinstance(item, str) else ""
        if not text or len(text) > 300 or not text.isascii() or not text.isprintable() or text.startswith("-"):
            raise InvalidSpec.at(where, f"{quoted(item)} is not a requirement such as einops==0.8.1")
        if text.startswith("./"):
            if artifact is None or text[2:] not in artifact.files or not text.endswith(".whl"):
                raise InvalidSpec.at(where, f"{text} is no wheel of the uploaded folder")
        elif "/" in text.partition("@")[0] or text.endswith(".whl"):
            raise InvalidSpec.at(where, f"{text}: a wheel of the folder begins with ./")
        requirements.append(text)
    if requirements and artifact is None:
        raise InvalidSpec.at(where, "only a function that was uploaded has requirements")
    return tuple(requirements)
