"""Start a program of the checkout (smore/cli/programs.py) for a command of ``smore``."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

from smore.cli.programs import STARTED
from smore.cli.terminal import fail, platform_home

#: Settings of a command that passes all its arguments on to a program: the program parses them, `--help` too.
PASSED_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def start(name: str, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
    """
    Run the program ``name`` of :data:`~smore.cli.programs.STARTED` in a process of its own.

    Its environment names this machine's Redis and Postgres, and has ``variables``. Raises typer.Exit with its exit code
    where that is not 0.
    """
    from smore import local

    environment = {**_environment(), **(variables or {})}
    endpoints = local.endpoints(platform_home())
    if endpoints is not None:
        environment.setdefault("SMORE_REDIS__URL", endpoints.redis_url)
        environment.setdefault("SMORE_POSTGRES__URL", endpoints.postgres_url)
    code = subprocess.run([sys.executable, "-m", STARTED[name], *arguments], env=environment, check=False).returncode
    if code:
        raise typer.Exit(code)


def ask(name: str, given: bytes) -> tuple[int, bytes]:
    """
    Run a program with ``given`` on its standard input. Its exit code, below 0 = the signal that ended it, and what it
    wrote to standard output.
    """
    ended = subprocess.run(
        [sys.executable, "-m", STARTED[name]], input=given, stdout=subprocess.PIPE, env=_environment(), check=False
    )
    return ended.returncode, ended.stdout


def _environment() -> dict[str, str]:
    """This shell's, with the checkout for imports. The command ends where there is none."""
    root = Path(__file__).parents[2]
    if not (root / "ml").is_dir():
        fail("this command needs the platform's checkout or image: the folder ml is missing")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
