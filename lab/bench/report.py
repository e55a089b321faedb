"""
How a benchmark reports its figures.

Every command with ``--json`` shows its progress on stderr and ends its stdout with one line, a JSON object:
``{"command", "date", "revision", "device", "figures": {name: number}, ...extra}``.
"""

import json
import math
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def end_on_sigterm() -> None:
    """From now on a terminated run still ends the processes that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def progress(line: str) -> None:
    """Print one line to stderr; stdout is for the result."""
    print(line, file=sys.stderr, flush=True)


def revision() -> str:
    """The checkout's tag or short hash, with ``-dirty`` when it has changes; ``unknown`` where git knows no commit."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown"
    return described.stdout.strip() or "unknown"


def device() -> str:
    """The machine in a few words: CPU model, the cores this process may use, Python's version."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def rounded(value: float, digits: int = 4) -> float:
    """
    ``value`` with so many significant digits, because no run here is more precise; an integer stays exact.
    """
    if isinstance(value, int) or value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def result(command: str, figures: Mapping[str, float], **extra: object) -> dict[str, object]:
    """
    The object that ``emit`` prints. ValueError for a figure that is no finite number: a figure that was not measured is
    left out.
    """
    for name, value in figures.items():
        if not math.isfinite(value):
            raise ValueError(f"figure {name} is {value}")
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "device": device(),
        "figures": {name: rounded(value) for name, value in figures.items()},
        **extra,
    }


def emit(command: str, figures: Mapping[str, float], **extra: object) -> None:
    """Print the result as the last line of stdout."""
    print(json.dumps(result(command, figures, **extra), allow_nan=False), flush=True)
