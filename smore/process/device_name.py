"""
The name of a device mode: what the device is, and how its users share it.

Measurements of different device modes never mix. Workers report these names, and profiling runs write them on every row,
so both take them from here. Standard library only.
"""

import os
import platform
import socket
import stat
from pathlib import Path
from typing import Final

#: NVML's utilisation: the share of time in which any kernel ran, whatever part of the device it used.
NVML_COUNTER: Final = "nvml-utilization"
#: Where MPS has its pipe unless ``CUDA_MPS_PIPE_DIRECTORY`` says otherwise.
_MPS_FOLDER: Final = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own path


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


def refused(mode: str) -> str:
    """Why no worker starts in this sharing mode; '' = it is supported."""
    if mode == "mps":
        return (
            "SMORE_WORKER__SHARING_MODE=mps is not supported: confined functions cannot reach the MPS server, and a"
            " fault of one client ends every client of the GPU, training included. Use time-slice"
        )
    if mode == "streams":
        return (
            "SMORE_WORKER__SHARING_MODE=streams is not supported: functions run in processes of their own. Use"
            " time-slice"
        )
    return ""


def mps_daemon() -> Path | None:
    """The pipe of an MPS daemon that answers on this machine; None = there is none."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER)) / "control"
    try:
        kind = pipe.stat().st_mode
        if stat.S_ISFIFO(kind):
            # Opening a pipe without a reader is an error.
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            return pipe
        if stat.S_ISSOCK(kind):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
                own.connect(str(pipe))
            return pipe
    except OSError:
        return None
    return None
