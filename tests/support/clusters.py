"""
New clusters of Postgres for the homes of tests. ``initdb`` makes the first of a process; a copy of it takes a quarter of
the processor time.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smore.local.embedded import DATABASE


class Clusters:
    """In the place of smore.local.embedded's ``_create_cluster``, which is ``create``."""

    def __init__(self, create: Callable[..., None]) -> None:
        self._create = create
        self._folder = TemporaryDirectory(prefix="smore-cluster-")

    def __call__(self, program: Any, run_as: Any, data: Path, password: str) -> None:
        first = Path(self._folder.name, "postgres")
        # Another user's files would not be that user's any more.
        if run_as.user is not None or not first.exists():
            self._create(program, run_as, data, password)
            if run_as.user is None:
                shutil.copytree(data, first)
            return
        shutil.copytree(first, data)
        subprocess.run(
            [*run_as.prefix, program.postgres, "--single", "-D", str(data), "postgres"],
            input=f"ALTER ROLE {DATABASE} PASSWORD '{password}'",
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
