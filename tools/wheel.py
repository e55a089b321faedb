"""
Builds the wheels into ``dist/`` and tries them as somebody without a checkout: ``python -m tools.wheel --json``.

In an empty folder it makes a ``.venv``, installs the platform's wheel with ``[embedded]`` and the versions of
constraints.txt, starts the platform, runs the README's blocks of its first function, and stops it. Then it installs the
laboratory's wheel and asks ``smore compare`` for its help, which is the laboratory's. Figures:

* ``walked``: 1 where all of that did what it should; ``wheel_mb``, ``lab_wheel_mb``.
* ``install_s``: seconds that pip took for the platform and what it needs; ``up_s``: of the first ``smore up``, which
  compiles what decides.
* ``processes``: processes of that platform that could be read; ``from_checkout``: those of them with a path of this
  checkout in their command line, environment, working folder or maps. It should be 0.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lab.bench.ports import free_port
from lab.bench.report import ROOT, emit, progress
from tools import walk

DIST: Final = ROOT / "dist"
#: In what a command of the laboratory says where that is missing.
MISSING: Final = "pip install smore-lab"
COMPARE: Final = "smore compare --help"


def build(into: Path) -> list[Path]:
    """
    The wheels of the platform and the laboratory. They are built from a copy of the files that git does not ignore, so
    that nothing is in them that an earlier build or run has left in the checkout.
    """
    into.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        walk.copy(tree)
        for project in (tree, tree / "lab"):
            command = [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "--wheel-dir",
                folder,
                str(project),
            ]
            subprocess.run(command, check=True)
        return [Path(shutil.copy(wheel, into)) for wheel in sorted(Path(folder).glob("*.whl"), reverse=True)]


def environment() -> dict[str, str]:
    """A shell's that has never heard of the checkout."""
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder).is_relative_to(ROOT)]
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG") or name.startswith("PIP_")}
    return kept | {"PATH": os.pathsep.join(path), "SMORE_API__PORT": str(free_port())}


def processes(home: Path) -> Iterator[tuple[str, str]]:
    """What ``/proc`` says of each process of the platform in ``home``: its id, and all in which a path may stand."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            given = (process / "environ").read_text(errors="replace")
            if f"SMORE_HOME={home}\0" in given:
                told = (process / "cmdline").read_text(errors="replace") + (process / "maps").read_text()
                yield process.name, "\0".join((given, told, str((process / "cwd").readlink())))
        except OSError:
            continue  # it has ended, or is another user's


class Stranger:
    """Somebody in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = environment()

    def shell(self, script: str) -> str:
        """What a script prints. RuntimeError where it fails."""
        words = ["bash", "-e", "-o", "pipefail", "-c", f'export PATH="$PWD/.venv/bin:$PATH"\n{script}']
        done = subprocess.run(
            words, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(
                f"{script.strip()}: status {done.returncode}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
            )
        return done.stdout

    def install(self, wheel: Path, extra: str = "") -> float:
        """Seconds that pip took."""
        began = time.monotonic()
        self.shell(f"pip install --quiet --constraint {ROOT / 'constraints.txt'} '{wheel}{extra}'")
        return time.monotonic() - began

    def serve(self) -> dict[str, float]:
        """Start the platform, deploy and invoke the README's function, stop it. RuntimeError where that fails."""
        began = time.monotonic()
        self.shell("smore up")
        figures = {"up_s": time.monotonic() - began}
        try:
            for block in walk.blocks((ROOT / "README.md").read_text(), "README.md"):
                if block.file:
                    file = self.folder / block.file
                    file.parent.mkdir(exist_ok=True)
                    file.write_text(block.text.partition("\n")[2])
                elif block.kind == "quick" and block.language == "sh":
                    printed = self.shell(block.text)
                    progress(printed.strip())
                    if "".join(printed.split()).rpartition('"y":')[2].rstrip("}") not in (
                        "[[2,4,6]]",
                        "[[2.0,4.0,6.0]]",
                    ):
                        raise RuntimeError(f"the README's function answered {printed}")
            seen = dict(processes(self.folder / ".smore"))
            figures["processes"] = len(seen)
            figures["from_checkout"] = sum(f"{ROOT}{os.sep}" in told for told in seen.values())
        finally:
            self.shell("smore down")
        return figures


def try_out(platform: Path, laboratory: Path) -> dict[str, float]:
    """The figures of an installation in an empty folder. RuntimeError where something does not do what it should."""
    with tempfile.TemporaryDirectory() as folder:
        stranger = Stranger(Path(folder))
        stranger.shell(f"{Path(sys.executable).resolve()} -m venv .venv")
        figures = {"install_s": stranger.install(platform, "[embedded]")}
        figures |= stranger.serve()
        if MISSING not in stranger.shell(f"{COMPARE} 2>&1 || true"):
            raise RuntimeError(f"{COMPARE} does not say {MISSING!r}")
        stranger.install(laboratory)
        stranger.shell(COMPARE)
    if figures["from_checkout"] or not figures["processes"]:
        raise RuntimeError(f"{figures['from_checkout']} of {figures['processes']} processes use the checkout")
    return figures | {"walked": 1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wheel", description="Build the wheels and try them.")
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    options = parser.parse_args()
    platform, laboratory = build(DIST)
    figures = {"wheel_mb": platform.stat().st_size / 1e6, "lab_wheel_mb": laboratory.stat().st_size / 1e6}
    problem = ""
    try:
        figures |= try_out(platform, laboratory)
    except RuntimeError as error:
        problem = str(error)
        figures["walked"] = 0
        progress(problem)
    if options.json:
        emit("python -m tools.wheel --json", figures, problem=problem)
    else:
        for name, value in figures.items():
            print(f"{name:14}{value:>10.4g}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
