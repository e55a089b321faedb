"""
Environments of uploaded functions on this node: what they require, on top of what the platform has.

An environment is a venv whose last place to look is the platform's own site-packages, so that torch and everything else that is there is
not installed again. What a runner itself stands on keeps the platform's version by constraint: another torch would be gigabytes, another
numpy one that torch was not built for. pip builds it: it looks where the environment's interpreter looks, behind the .pth file too.
"""

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import IO, Final

from smore.domain.artifact import Artifact
from worker.processes import ROOT, scrubbed
from worker.shelf import Held, Shelf

#: Imported by the process that runners are forked from (worker/zygote.py, worker/runner.py): never another version than the platform's.
FIXED: Final = ("torch", "numpy", "msgspec", "orjson")
#: Of a failed build's log, the end is kept.
LOG_CHARS: Final = 6000

_CHECK: Final = "import torch, worker.runner"


class BuildFailed(Exception):
    """The environment cannot be built; the message ends with the log."""


class BuildEnded(Exception):
    """The worker is ending, and the build with it."""


def environment_key(requirements: Sequence[str], artifact: Artifact) -> str:
    """The same for functions that may share an environment: same requirements, same wheels of their own, same platform."""
    wheels = sorted((name, artifact.files[name[2:]]) for name in requirements if name.startswith("./"))
    parts = [sorted(requirements), wheels, _fixed(), sys.version, platform.machine(), sysconfig.get_path("purelib")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _fixed() -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in FIXED]


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


class Environments:
    """``build_s`` bounds a build, seconds."""

    def __init__(self, root: Path, limit_bytes: int, build_s: float) -> None:
        self.shelf = Shelf(root, limit_bytes)
        self._build_s = build_s
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def take(self, requirements: Sequence[str], artifact: Artifact, code: Path) -> Held:
        """
        The environment, to be closed when nobody uses it any more. ``code`` is the unpacked folder: wheels of its own lie there.

        Built by the first who asks on this node; the others wait for it. Raises BuildFailed, BuildEnded, OSError.
        """
        key = environment_key(requirements, artifact)
        return self.shelf.take(key, lambda folder, lock: self._build(requirements, code, folder, lock))

    def _build(self, requirements: Sequence[str], code: Path, folder: Path, lock: int) -> None:
        self.shelf.sweep()
        until = time.monotonic() + self._build_s
        with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile("w+") as log:
            wanted, fixed = Path(place, "requirements.txt"), Path(place, "constraints.txt")
            wanted.write_text("".join(f"{one}\n" for one in requirements))
            fixed.write_text("".join(f"{one}\n" for one in _fixed()))
            python = str(python_of(folder))
            self._run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], code, log, lock, until, {})
            site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
            (site / "platform.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
            # In the folder, so that the paths of its own wheels lead somewhere.
            self._run(
                [sys.executable, "-m", "pip", "--python", python, "install", "--no-input", "--disable-pip-version-check",
                 "--no-warn-script-location", "--root-user-action", "ignore", "--constraint", str(fixed), "--requirement", str(wanted)],
                code, log, lock, until, {},
            )  # fmt: skip
            self._run([python, "-c", _CHECK], ROOT, log, lock, until, {"PYTHONPATH": str(ROOT)})

    def _run(self, words: Sequence[str], cwd: Path, log: IO[str], lock: int, until: float, extra: Mapping[str, str]) -> None:
        """Run to the end, what it says into the log. Raises BuildFailed, BuildEnded."""
        with self._lock:
            if self._ended:
                raise BuildEnded
            process = subprocess.Popen(
                words,
                cwd=cwd,
                env=scrubbed(extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,
            )
            self._running.add(process)
        try:
            status: int | None = process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            with self._lock:
                self._running.discard(process)
        if status != 0:
            if self._ended:
                raise BuildEnded
            log.seek(0)
            said = log.read()[-LOG_CHARS:].strip()
            what = "took too long" if status is None else f"ended with status {status}"
            raise BuildFailed(f"The environment was not built: {' '.join(words[1:3])} {what}. Its log:\n{said}")

    def end(self) -> None:
        """End what is being built, and begin nothing more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
