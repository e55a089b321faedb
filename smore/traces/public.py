"""
Public traces: the excerpts that are bundled with the package, and whole data sets that a user fetches.

A file is looked for by its path below a folder of data, such as ``azure2019/invocations.csv.gz``: first among what was
fetched, then among what is bundled. smore/traces/data/README.md has the sources and licences.
"""

import hashlib
import re
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from smore.domain.errors import InvalidSpec

BUNDLED: Final = Path(__file__).with_name("data")
#: Bytes that are read at once.
CHUNK: Final = 1 << 20
#: Seconds without a byte after which a server counts as unreachable.
SILENCE_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """
    A whole public data set: one archive, its size in bytes and SHA-256, and the files that are kept of it.

    ``members``: pattern of a file's name in the archive → the path under which it is kept, with the groups of the
    pattern.
    """

    name: str
    about: str
    licence: str
    url: str
    bytes: int
    sha256: str
    members: Mapping[str, str]


#: Microsoft publishes no checksum. This one is of the release's archive as several users have recorded it.
AZURE2019: Final = DataSet(
    name="azure2019",
    about="Azure Functions trace 2019: invocations per minute, run times and memory of 14 days",
    licence="CC BY 4.0, Microsoft; cite Shahrad et al., Serverless in the Wild, USENIX ATC 2020",
    url=(
        "https://github.com/Azure/AzurePublicDataset/releases/download/dataset-functions-2019/"
        "azurefunctions_dataset2019_azurefunctions-dataset2019.tar.xz"
    ),
    bytes=142_968_140,
    sha256="aff8b3ca7240a41a109e4ee598e0a96e45fcb92e7b8395ac19cb3748cd260d89",
    members={
        r"invocations_per_function_md\.anon\.(d\d\d)\.csv": r"\1/invocations.csv",
        r"function_durations_percentiles\.anon\.(d\d\d)\.csv": r"\1/durations.csv",
        r"app_memory_percentiles\.anon\.(d\d\d)\.csv": r"\1/app_memory.csv",
    },
)
DATA_SETS: Final = {data_set.name: data_set for data_set in (AZURE2019,)}


class BadDownload(InvalidSpec):
    """An archive that could not be fetched, or is not the expected one; nothing of it is kept."""


def fetched(home: Path) -> Path:
    """The folder below the platform's home in which fetched data sets lie."""
    return home / "data"


def folders(home: Path, data: Path | None = None) -> tuple[Path, ...]:
    """Where files are looked for: in ``data`` alone, or, if it is None, among what was fetched and what is bundled."""
    return (data,) if data is not None else (fetched(home), BUNDLED)


def fetch(data_set: DataSet, folder: Path, *, progress: Callable[[int, int], None], url: str = "") -> list[Path]:
    """
    Download a data set, check it, and unpack it into ``folder``/<name>. ``url``: a mirror; "" = the publisher's.

    ``progress(done, total)`` gets bytes. Returns the files. Raises BadDownload, or OSError where the disk fails.
    """
    target = folder / data_set.name
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=target) as archive:
        _download(data_set, url or data_set.url, archive, progress)
        archive.seek(0)
        return _unpack(data_set, archive, target)


def _download(data_set: DataSet, url: str, archive: IO[bytes], progress: Callable[[int, int], None]) -> None:
    if not url.startswith(("https://", "http://")):
        raise BadDownload(f"url: an http address is expected, not {url!r}", field="url")
    digest, done = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=SILENCE_S) as answer:  # noqa: S310 - http alone, see above
            while chunk := answer.read(CHUNK):
                digest.update(chunk)
                done += len(chunk)
                if done > data_set.bytes:
                    break
                archive.write(chunk)
                progress(done, data_set.bytes)
    except OSError as error:
        raise BadDownload(f"{url}: {getattr(error, 'reason', None) or error}", field="url") from error
    if done != data_set.bytes:
        size = f"more than {data_set.bytes:,}" if done > data_set.bytes else f"{done:,} of {data_set.bytes:,}"
        raise BadDownload(f"{url}: {size} bytes came: it is not the expected archive, or it was cut", field="url")
    if digest.hexdigest() != data_set.sha256:
        raise BadDownload(
            f"{url}: its SHA-256 is {digest.hexdigest()}, not {data_set.sha256}: nothing of it was kept", field="url"
        )


def _unpack(data_set: DataSet, archive: IO[bytes], target: Path) -> list[Path]:
    """Only regular files whose name matches a pattern are written, under the name that the pattern gives them."""
    kept = []
    try:
        with tarfile.open(fileobj=archive) as members:
            for member in members:
                path = _kept_as(data_set, Path(member.name).name)
                content = members.extractfile(member) if path and member.isfile() else None
                if content is None:
                    continue
                written = target / path
                written.parent.mkdir(parents=True, exist_ok=True)
                part = written.with_suffix(".part")
                with part.open("wb") as file:
                    while chunk := content.read(CHUNK):
                        file.write(chunk)
                part.replace(written)
                kept.append(written)
    except tarfile.TarError as error:
        raise BadDownload(f"the archive of {data_set.name} cannot be read: {error}") from error
    return sorted(kept)


def _kept_as(data_set: DataSet, name: str) -> str:
    """The path below the data set's folder under which a file of the archive is kept, '' for none."""
    for pattern, path in data_set.members.items():
        match = re.fullmatch(pattern, name)
        if match is not None:
            return match.expand(path)
    return ""
