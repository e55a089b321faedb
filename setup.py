"""
What pyproject.toml cannot say of the wheel: it holds the packages of the platform's processes inside ``smore``
(smore/process/root.py), and the client beside it. An editable install leaves all of them where they are.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: Folders of the checkout, and where they are in the wheel.
PLACES = {name: f"smore/_tree/{name}" for name in ("api", "migrations", "ml", "scheduler", "worker", "zoo")}
PLACES["client/smore_client"] = "smore_client"


class BuildTree(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for folder, place in PLACES.items():
                shutil.copytree(folder, Path(self.build_lib, place), ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildTree})
