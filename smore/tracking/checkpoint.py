"""
Checkpoints of a training in its attempt's folder, which the platform names in ``SMORE_CHECKPOINT``.

The platform starts a training again from its last complete checkpoint. It knows one by its name, ``checkpoint-<iterations>``
with or without an extension (``checkpoint-9000``, ``checkpoint-9000.pt``), a file or a folder. So whoever writes one
gives it another name first (``.tmp`` at its end) and renames it when it is whole: a training that is killed meanwhile
leaves no half checkpoint behind. Standard library alone.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The extension of a checkpoint that is being written.
UNFINISHED: Final = ".tmp"
_NAME: Final = re.compile(r"checkpoint-(\d{1,18})(\.[A-Za-z0-9]+)?")


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A complete checkpoint. ``iterations``: how many the training had made when it was written."""

    iterations: int
    path: Path


def complete(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints in a folder, the last one last; none where there is no such folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    named = [(match, name) for name in names if (match := _NAME.fullmatch(name)) and match[2] != UNFINISHED]
    return sorted(Checkpoint(int(match[1]), folder / name) for match, name in named)


def last_checkpoint() -> Checkpoint | None:
    """
    The checkpoint with which a training begins: the last complete one in ``SMORE_CHECKPOINT``. None at the first start, and
    outside the platform.
    """
    folder = os.environ.get("SMORE_CHECKPOINT")
    found = complete(Path(folder)) if folder else []
    return found[-1] if found else None


@contextmanager
def checkpoint(iterations: int, *, extension: str = ".pt", keep: int = 2) -> Iterator[Path]:
    """
    Write a checkpoint after so many iterations: ``with smore.checkpoint(900) as path: torch.save(state, path)``.

    The file becomes a complete checkpoint when the block ends without an error; then older ones beyond ``keep`` are
    removed. For one rank of a training. Raises ValueError where ``SMORE_CHECKPOINT`` is not set (:func:`last_checkpoint` is
    None there too).
    """
    if not (named := os.environ.get("SMORE_CHECKPOINT")):
        raise ValueError("SMORE_CHECKPOINT is not set: this training was not started by the platform")
    folder = Path(named)
    path = folder / f"checkpoint-{iterations}{extension}"
    unfinished = folder / (path.name + UNFINISHED)
    yield unfinished
    # A host that dies after the rename must not keep a name without its bytes.
    descriptor = os.open(unfinished, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    unfinished.replace(path)
    for old in complete(folder)[: -max(1, keep)]:
        remove(old.path)


def remove(path: Path) -> None:
    """Remove a checkpoint, a file or a folder; one that is gone already is no error."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
