"""``smore logs``: the logs of this machine's processes."""

import os
import sys
import time
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from smore.cli.terminal import fail, platform_home, searched

#: Seconds between two reads of a log that is followed.
FOLLOW_S: Final = 0.2


def logs(
    process: Annotated[str | None, typer.Argument(help="gateway, worker-cpu0, redis…; without it all of them.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they grow, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Lines of each to begin with.")] = 20,
) -> None:
    """The logs of this machine's processes."""
    folder = platform_home() / "logs"
    files = sorted(folder.glob("*.log"))
    if not files:
        fail(f"there are no logs. {searched()}")
    if process is not None:
        files = [file for file in files if file.stem == process]
        if not files:
            names = ", ".join(sorted(file.stem for file in folder.glob("*.log"))) or "none"
            fail(f"{folder} has no log of {process}; it has: {names}")
    tails = [Tail(file, "" if process else f"{file.stem} | ", lines) for file in files]
    try:
        for tail in tails:
            tail.copy(sys.stdout)
        while follow:
            sys.stdout.flush()
            time.sleep(FOLLOW_S)
            for tail in tails:
                tail.copy(sys.stdout)
    except KeyboardInterrupt:
        pass


class Tail:
    """
    Reader of the whole lines that are appended to a text file.

    A file that was truncated or replaced is read from its beginning. ``lines``: how many of the present ones are read.
    """

    def __init__(self, path: Path, prefix: str, lines: int) -> None:
        self._path = path
        self._prefix = prefix
        # The file stays open: the rest of a rotated file is still read, and its inode number cannot be used again for
        # the new file.
        self._file = path.open("rb")
        data = self._file.read()
        # Whole lines only: a line that is still being written is read later.
        end = data.rfind(b"\n") + 1
        last = data[:end].splitlines(keepends=True)[-lines:] if lines else []
        self._at = end - sum(map(len, last))

    def copy(self, out: IO[str]) -> None:
        """Write the whole lines that were appended since the last call to ``out``."""
        self._read(out)
        try:
            replaced = not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return  # between two files of a rotation
        if replaced:
            self._file.close()
            self._file, self._at = self._path.open("rb"), 0
            self._read(out)

    def _read(self, out: IO[str]) -> None:
        if os.fstat(self._file.fileno()).st_size < self._at:
            self._at = 0
        self._file.seek(self._at)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        for line in data[:end].decode(errors="replace").splitlines():
            print(f"{self._prefix}{line}", file=out)
