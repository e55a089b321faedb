"""
Environments of uploaded functions on this node: the packages that they require beyond the platform's.

An environment is a venv that falls back to the platform's own site-packages, so that torch and the other packages there
are not installed again. The packages that a runner itself uses keep the platform's version by constraint: another torch
would take gigabytes, another numpy would be one that torch was not built for. pip builds it
(worker/artifacts/builder.py) and sees what the environment's interpreter sees. What must stay true: nothing of an
environment runs unconfined, for an installed package can run code wherever an interpreter starts in it.
"""

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from smore.definition.requirements import check_requirements
from smore.domain.artifact import Artifact
from smore.domain.errors import InvalidSpec
from worker.artifacts.builder import Build
from worker.artifacts.cache import ArtifactCache, HeldFolder
from worker.child_env import ROOT, scrubbed
from worker.frames import Confinement, packages_of

#: Imported by the process that runners are forked from (worker/runner/zygote.py, worker/runner/runner.py): never
#: another version than the platform's.
FIXED: Final = ("torch", "numpy", "msgspec", "orjson")

#: A folder beside an installed package, with its name and version.
_INSTALLED: Final = re.compile(r"([\w.]+)-([\w.+!]+)\.dist-info", re.ASCII)


class BuildFailed(Exception):
    """The environment cannot be built; the message ends with the log."""


class BuildEnded(Exception):
    """The worker is ending, and the build with it."""


def environment_key(requirements: Sequence[str], artifact: Artifact) -> str:
    """
    A key that is the same for functions that may share an environment: same requirements, same wheels of their own, same
    platform.
    """
    wheels = sorted((name, artifact.files[name[2:]]) for name in requirements if name.startswith("./"))
    parts = [sorted(requirements), wheels, _fixed(), sys.version, platform.machine(), sysconfig.get_path("purelib")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def chosen(requirements: Sequence[str], environment: Path) -> list[str]:
    """``name==version`` of each package of the index that was required without one version, as pip installed it."""
    installed = {
        canonicalize_name(found[1]): found[2]
        for entry in packages_of(environment).glob("*.dist-info")
        if (found := _INSTALLED.fullmatch(entry.name)) is not None
    }
    wanted = [Requirement(text) for text in requirements if not text.startswith("./")]
    open_ = [each.name for each in wanted if not any(part.operator.startswith("==") for part in each.specifier)]
    return [f"{name}=={installed[canonicalize_name(name)]}" for name in open_ if canonicalize_name(name) in installed]


@cache
def _fixed() -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in FIXED]


@dataclass(eq=False)
class Environments:
    """
    ``build_s`` bounds a build, seconds; ``sdists``: whether packages may be built from their source. pip is confined as
    ``confinement`` says, without a view of ``home``, in a control group whose name begins with ``group``. Safe from any
    thread; a lock guards the list of running builds.
    """

    root: Path
    limit_bytes: int
    build_s: float
    sdists: bool
    confinement: Confinement
    home: Path
    group: str
    cache: ArtifactCache = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set, init=False)
    _ended: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.cache = ArtifactCache(self.root, self.limit_bytes)

    def take(self, requirements: Sequence[str], artifact: Artifact, code: Path) -> HeldFolder:
        """
        The environment of these requirements, the caller's to close. ``code`` is the unpacked folder, which has the
        function's own wheels.

        The first caller on this node builds it, the others wait. Raises BuildFailed, BuildEnded, OSError.
        """
        key = environment_key(requirements, artifact)
        return self.cache.take(key, lambda folder, lock: self._build(requirements, code, folder, lock))

    def _build(self, requirements: Sequence[str], code: Path, folder: Path, lock: int) -> None:
        try:
            # A revision that an older gateway registered may have requirements that are refused today.
            check_requirements(requirements)
        except InvalidSpec as error:
            raise BuildFailed(str(error)) from error
        self.cache.sweep()
        room = min(self.limit_bytes, shutil.disk_usage(folder).free // 2)
        build = Build(
            folder=str(folder),
            code=str(code),
            requirements=list(requirements),
            fixed=_fixed(),
            sdists=self.sdists,
            timeout_s=self.build_s,
            disk_mib=max(1, room >> 20),
            home=str(self.home),
            confinement=self.confinement,
            group=self.group,
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
                output = process.stdout.read().decode(errors="replace").strip()
            finally:
                with self._lock:
                    self._running.discard(process)
        if process.wait() != 0:
            if self._ended:
                raise BuildEnded
            raise BuildFailed(output or "The environment was not built: its builder has ended.")

    def end(self) -> None:
        """End the running builds and begin no more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                assert process.stdin is not None
                process.stdin.close()
