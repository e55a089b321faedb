"""A training's command as the GPU worker can run it: a program of this machine gets its absolute path and its folder."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from smore.cli.terminal import EXIT_USAGE, fail

_HERE: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def resolved(argv: Sequence[str], cwd: str | None, url: str) -> tuple[list[str], str | None]:
    """
    The command and the folder that it starts in; ``cwd`` None = this shell's, where it is a program. What names no program
    is an entry point, which stays as it is.

    ``url`` of the platform: only on this machine its GPU workers see this machine's files.
    """
    program, *arguments = argv
    here = urlsplit(url).hostname in _HERE
    path = Path(program)
    if path.suffix != ".py" and "/" not in program:
        on_path = shutil.which(program) if here else None
        # `python train.py`: the python of this shell, which may be that of a virtual environment.
        return ([on_path, *arguments], cwd or os.getcwd()) if on_path is not None else (list(argv), cwd)
    if not here:
        if not path.is_absolute():
            fail(
                f"the platform is at {url}: name {program} by its absolute path there, and its folder by --cwd",
                EXIT_USAGE,
            )
        return list(argv), cwd
    absolute = path.absolute()
    if not absolute.is_file():
        fail(f"there is no file {absolute}", EXIT_USAGE)
    if os.access(absolute, os.X_OK):
        return [str(absolute), *arguments], cwd or os.getcwd()
    if path.suffix != ".py":
        fail(f"{absolute} is not executable (chmod +x), and no Python script", EXIT_USAGE)
    python = shutil.which("python") or shutil.which("python3")
    if python is None:
        fail("there is no python in PATH", EXIT_USAGE)
    return [python, str(absolute), *arguments], cwd or os.getcwd()
