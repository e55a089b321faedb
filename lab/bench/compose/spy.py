"""
A function that looks for passwords and tries what it must not do. ``lab.bench.compose`` uploads this file as
``handler.py``.
"""

import glob
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from smore.handler import Handler

PROCESSES = ("/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ", "/proc/[0-9]*/task/*/cmdline")
FILES = ("/app/.env", "/data/key", "/data/secrets.key", "/data/run/trainings.token")
#: Folders in which it must not write; it has one of its own.
FOLDERS = ("/app", "/data", "/data/run", "/home/smore", "/tmp", "/dev/shm", "/")  # noqa: S108
EVERY_S = 0.02
CONNECT_S = 2.0


class Spy(Handler):
    """
    ``{"words": [text], "seconds": number, "addresses": [[host, port]]}``: looks for the words in what every process was
    started with and in files of the platform, for so many seconds. ``found``: places with a word; ``seen``: the command
    lines it could read; ``escapes``: what it could do (:func:`escapes`).
    """

    example: ClassVar[Any] = {"words": ["-"], "seconds": 0.0, "addresses": []}

    def predict(self, inputs: list[Any]) -> list[Any]:
        return [
            self.look(given["words"], given["seconds"]) | {"escapes": escapes(given["addresses"], FOLDERS)}
            for given in inputs
        ]

    def look(self, words: list[str], seconds: float) -> dict[str, Any]:
        places: dict[str, bool] = {}
        seen = set()
        until = time.monotonic() + seconds
        while True:
            for path in (*(path for pattern in PROCESSES for path in glob.glob(pattern)), *FILES):
                try:
                    with open(path, "rb") as file:
                        text = file.read()
                except OSError:
                    continue
                if path.endswith("cmdline"):
                    seen.add(text[:40].decode(errors="replace"))
                for number, word in enumerate(words):
                    if word.encode() in text:
                        places[f"word {number} in {path}: {text[:40]!r}"] = True
            if time.monotonic() >= until:
                return {"found": places, "seen": len(seen)}
            time.sleep(EVERY_S)


def escapes(addresses: Sequence[tuple[str, int]], folders: Sequence[str]) -> list[str]:
    """What of this it could do: connect to an address, write in a folder, signal its parent, have a capability."""
    done = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), CONNECT_S).close()
            done.append(f"connected to {host}:{port}")
        except OSError:
            continue
    for folder in folders:
        file = Path(folder, "spy")
        try:
            file.touch()
            file.unlink()
            done.append(f"wrote in {folder}")
        except OSError:
            continue
    try:
        os.kill(os.getppid(), 0)
        done.append("signalled its parent")
    except PermissionError:
        pass
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if int(status["CapEff"], 16):
        done.append("has capabilities")
    if status["NoNewPrivs"].strip() != "1":
        done.append("may gain privileges")
    return done
