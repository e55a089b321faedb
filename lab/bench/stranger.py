"""
The hostile trainings of ``lab.bench.strangers``: ``python -m lab.bench.stranger KIND``. ``lab.bench.kills`` forges a ring as they do.
With ``idle`` after the kind it waits where it would work.

Each of them, the harmless ``honest`` too, works without pause and makes twenty steps a second, so that beside any of them
the processor has the same to do. After each step a hostile one writes into its files what no loop would.
"""

import os
import random
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import smore
from smore.tracking.ring import CAPACITY, HEADER_BYTES

WORK_S: Final = 0.05
#: Offsets in the file of steps (smore/tracking/ring.py) and in the hold file (smore/tracking/hold.py).
_COUNT, _LENGTH, _HELD = 16, 40, 24


def main(kind: str, idle: str = "") -> None:
    forge = KINDS[kind]
    with smore.track() as tracker:
        while True:
            until = time.perf_counter() + WORK_S
            if idle:
                time.sleep(WORK_S)
            while time.perf_counter() < until:
                if kind == "fast":
                    tracker.step()
            tracker.step()
            forge()


def write(path: str | Path, offset: int, data: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        file.write(data)


def count(ring: str | Path) -> None:
    """A count that is negative, or one that no column holds."""
    write(ring, _COUNT, random.choice((struct.pack("<q", -6), struct.pack("<Q", 2**63))))


def length(ring: str | Path, value: int = 2**64 - 1) -> None:
    write(ring, _LENGTH, struct.pack("<Q", value))


def durations(ring: str | Path, value: float = float("inf")) -> None:
    """Every duration in the ring is this."""
    write(ring, HEADER_BYTES, struct.pack("<dd", time.time(), value) * CAPACITY)


def pipe(path: str) -> None:
    """A pipe in place of a file: whoever opens it to read waits for a writer."""
    if not Path(path).is_fifo():
        Path(path).unlink(missing_ok=True)
        os.mkfifo(path)


def hold(path: str) -> None:
    """It says that it waits, since the machine's start, and that another process looks at the file."""
    write(path, _HELD, struct.pack("<ddQ", float("inf"), 1.0, 1))


def _ring() -> str:
    return os.environ["SMORE_TRACK"]


def _hold_and_log() -> None:
    pipe(os.environ["SMORE_HOLD"])
    if (log := os.readlink("/proc/self/fd/1")).endswith(".log"):
        pipe(log)


KINDS: Final[Mapping[str, Callable[[], None]]] = {
    "honest": lambda: None,
    "count": lambda: count(_ring()),
    "length": lambda: length(_ring()),
    "infinite": lambda: durations(_ring(), float("inf")),
    "nan": lambda: durations(_ring(), float("nan")),
    "pipe for steps": lambda: pipe(_ring()),
    "pipe for hold and log": _hold_and_log,
    "fast": lambda: None,
    "forged hold": lambda: hold(os.environ["SMORE_HOLD"]),
}

if __name__ == "__main__":
    main(*sys.argv[1:])
