"""Start a program of the checkout (smore/cli/programs.py) for a command of ``smore``."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import typer

from smore.cli.programs import STARTED
from smore.cli.terminal import fail, platform_home

#: Settings of a command that passes all its arguments on to a program: the program parses them, `--help` too.
PASSED_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def start(name: str, *arguments: str) -> None:
    """
    Run the program ``name`` of :data:`~smore.cli.programs.STARTED` in a process of its own.

    Its environment names this machine's Redis and Postgres. Raises typer.Exit with its exit code where that is not 0.
    """
    from smore import local

    environment = dict(os.environ)
    endpoints = local.endpoints(platform_home())
    if endpoints is not None:
        environment.setdefault("SMORE_REDIS__URL", endpoints.redis_url)
        environment.setdefault("SMORE_POSTGRES__URL", endpoints.postgres_url)
    root = Path(__file__).parents[2]
    if not (root / "ml").is_dir():
        fail("this command needs the platform's checkout or image: the folder ml is missing")
    environment["PYTHONPATH"] = str(root)
    code = subprocess.run([sys.executable, "-m", STARTED[name], *arguments], env=environment, check=False).returncode
    if code:
        raise typer.Exit(code)
