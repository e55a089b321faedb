"""
Environments of uploaded functions on this node: what they require, on top of what the platform has.

An environment is a venv whose last place to look is the platform's own site-packages, so that torch and everything else
that is there is not installed again. What a runner itself stands on keeps the platform's version by constraint: another
torch would be gigabytes, another numpy one that torch was not built for. pip builds it (worker/artifacts/builder.py):
it looks where the environment's interpreter looks, behind the .pth file too. Nothing of an environment runs outside a
cell: what is installed can run code wherever an interpreter starts in it.
"""

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from smore.definition.requirements import check_requirements
from smore.domain.artifact import Artifact
from smore.domain.errors import InvalidSpec
from worker.artifacts.builder import Build
from worker.artifacts.cache import ArtifactCache, Held
from worker.frames import Confinement
from worker.inherited import ROOT, scrubbed

#: Imported by the process that runners are forked from (worker/runner/zygote.py, worker/runner/runner.py): never
#: another version than the platform's.
FIXED: Final = ("torch", "numpy", "msgspec", "orjson")


class BuildFailed(Exception):
    """The environment cannot be built; the message ends with the log."""


class BuildEnded(Exception):
    """The worker is ending, and the build with it."""


def environment_key(requirements: Sequence[str], artifact: Artifact) -> str:
    """
    The same for functions that may share an environment: same requirements, same wheels of their own, same platform.
    """
    wheels = sorted((name, artifact.files[name[2:]]) for name in requirements if name.startswith("./"))
    parts = [sorted(requirements), wheels, _fixed(), sys.version, platform.machine(), sysconfig.get_path("purelib")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _fixed() -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in FIXED]


class Environments:
    """
    ``build_s`` bounds a build, seconds; ``sdists``: whether packages may be built from their source. pip is shut in as
    ``confinement`` says, without a view of ``home``, in a control group whose name begins with ``group``.
    """

    def __init__(
        self,
        root: Path,
        limit_bytes: int,
        build_s: float,
        *,
        sdists: bool,
        confinement: Confinement,
        home: Path,
        group: str,
    ) -> None:
        self.cache = ArtifactCache(root, limit_bytes)
        self._limit = limit_bytes
        self._build_s = build_s
        self._sdists = sdists
        self._confinement = confinement
        self._home = home
        self._group = group
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def take(self, requirements: Sequence[str], artifact: Artifact, code: Path) -> Held:
        """
        The environment, to be closed when nobody uses it any more. ``code`` is the unpacked folder: wheels of its own
        lie there.

        Built by the first who asks on this node; the others wait for it. Raises BuildFailed, BuildEnded, OSError.
        """
        key = environment_key(requirements, artifact)
        return self.cache.take(key, lambda folder, lock: self._build(requirements, code, folder, lock))

    def _build(self, requirements: Sequence[str], code: Path, folder: Path, lock: int) -> None:
        try:
            # A revision that was registered by an older gateway may have others.
            check_requirements(requirements)
        except InvalidSpec as error:
            raise BuildFailed(str(error)) from error
        self.cache.sweep()
        room = min(self._limit, shutil.disk_usage(folder).free // 2)
        build = Build(
            folder=str(folder),
            code=str(code),
            requirements=list(requirements),
            fixed=_fixed(),
            sdists=self._sdists,
            timeout_s=self._build_s,
            disk_mib=max(1, room >> 20),
            home=str(self._home),
            confinement=self._confinement,
            group=self._group,
        )
        with self._lock:
            if self._ended:
                raise BuildEnded
            process = subprocess.Popen(
                [sys.executable, "-m", "worker.artifacts.builder"],
                cwd=ROOT,
                env=scrubbed({"PYTHONPATH": str(ROOT)}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[lock],
                start_new_session=True,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(build) + b"\n")
            process.stdin.flush()
            self._running.add(process)
        # Its input stays open for as long as this worker wants the environment.
        with process.stdin, process.stdout:
            try:
                said = process.stdout.read().decode(errors="replace").strip()
            finally:
                with self._lock:
                    self._running.discard(process)
        if process.wait() != 0:
            if self._ended:
                raise BuildEnded
            raise BuildFailed(said or "The environment was not built: its builder has ended.")

    def end(self) -> None:
        """End what is being built, and begin nothing more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                assert process.stdin is not None
                process.stdin.close()
