"""
The environment variables that a worker passes on to the processes that it starts: jobs, zygotes, runners, builders.

What must stay true: no credential of the platform reaches a process that runs somebody else's code.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: The folder of the platform's own code: the PYTHONPATH and the working folder of what is started.
ROOT: Final = Path(__file__).parents[1]

#: glibc gives memory back and takes it again at random moments, which doubles some latencies: it keeps what it has. A
#: runner's memory comes back when it ends.
MALLOC: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_ARENA_MAX": "1",
}

#: Variables that a runner gets: how programs find things and behave. Any other may hold a password.
_PASSED: Final = (
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "PYTHONHASHSEED",
    # Which instructions of the processor numeric libraries use; OpenBLAS and MKL are among the prefixes.
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "NUMBA_CPU_NAME",
)
_PASSED_PREFIXES: Final = (
    "LC_",
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "NVIDIA_",
    "OMP_",
    "MKL_",
    "KMP_",
    "OPENBLAS_",
    "MALLOC_",
    "TORCH_",
    "PYTORCH_",
    "TRITON_",
)


def scrubbed(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without the platform's settings, which hold credentials; ``extra`` on top."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SMORE_")} | dict(extra)


def for_runners(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of zygotes and runners: only what :data:`_PASSED` and its prefixes name, ``extra`` on top."""
    passed = {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}
    return passed | dict(extra)
