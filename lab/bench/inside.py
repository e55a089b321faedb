"""The function of ``lab.bench.probes cell``: reports from within a runner who it is and what it may do."""

import os
import resource
import socket
import subprocess
import sys
from typing import Any, ClassVar

import torch

from smore.handler import Handler

#: Code of a process that starts CUDA and prints 0 or CUDA's error. It fails where no driver is installed.
CHILD = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"


class Inside(Handler):
    """Reports what it may do; the input is ignored."""

    example: ClassVar = None

    def load(self, device: str) -> None:
        self._matrix = torch.ones(512, 512, device=device)

    def predict(self, inputs: list[Any]) -> list[Any]:
        product = float((self._matrix @ self._matrix)[0, 0])
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        answer = {
            "product": product,
            "user": os.getuid(),
            "groups": os.getgroups(),
            "threads": len(os.listdir("/proc/self/task")),
            "data_limit_mib": None if limit == resource.RLIM_INFINITY else limit / 2**20,
            "unix_stream": may(socket.SOCK_STREAM),
            "unix_packet": may(socket.SOCK_SEQPACKET),
            "child": child(),
        }
        return [answer for _ in inputs]


def may(kind: int) -> bool:
    """Whether it may make a unix socket of that kind."""
    try:
        socket.socket(socket.AF_UNIX, kind).close()
    except OSError:
        return False
    return True


def child() -> str:
    """What :data:`CHILD` prints in a process that the runner starts, or the error."""
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", CHILD], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return done.stdout.strip() or (done.stderr.strip().splitlines() or ["nothing"])[-1]
