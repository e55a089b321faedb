"""``python -m tests.support.stand_in NAME``: a process that tells in ``<home>/NAME.json`` what it is, and ends when told."""

import json
import os
import signal
import sys
from pathlib import Path


def main(name: str) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
    file = Path(os.environ["SMORE_HOME"], f"{name}.json")
    new = file.with_suffix(".new")
    said = {"pid": os.getpid(), "parent": os.getppid(), "words": sys.argv[1:], "environment": dict(os.environ)}
    new.write_text(json.dumps(said))
    new.replace(file)
    print(f"{name} runs", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
