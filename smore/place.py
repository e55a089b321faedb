"""
The two words under which measurements are kept apart: what the device is, and how its users share it.

A worker reports them and a profiling run writes them on every row; a degradation table holds for one such pair. So both take them from
here. Standard library only.
"""

import platform
from pathlib import Path


def cpu_partition(cores: int, share: float = 1.0) -> str:
    """A CPU partition, which stands in for a GPU instance: its size and the processor, not which cores they are."""
    part = f"{cores} core" if cores == 1 else f"{cores} cores"
    return f"CPU partition: {part}{'' if share == 1 else f' x {share:g}'} of {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return " and ".join(sorted(names)) or platform.machine()


def sharing(mode: str, function_nice: int = 0) -> str:
    """``mode`` (time-slice, mps, streams) and, where functions run at a lower priority than training, by how much."""
    return f"{mode}, functions nice {function_nice}" if function_nice else mode
