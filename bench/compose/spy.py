"""A function that looks for passwords. ``bench.compose`` uploads this file as ``handler.py``."""

import glob
import time
from typing import Any, ClassVar

from smore.handler import Handler

PROCESSES = ("/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ", "/proc/[0-9]*/task/*/cmdline")
FILES = ("/app/.env", "/data/key", "/data/secrets.key", "/data/run/trainings.token")
EVERY_S = 0.02


class Spy(Handler):
    """
    ``{"words": [text], "seconds": number}``: looks for the words in what every process was started with and in files
    of the platform, for so many seconds. ``found``: places with a word; ``seen``: the command lines it could read.
    """

    example: ClassVar[Any] = {"words": ["-"], "seconds": 0.0}

    def predict(self, inputs: list[Any]) -> list[Any]:
        return [self.look(given["words"], given["seconds"]) for given in inputs]

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
