"""Start a program for a command of ``smore``, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

import typer

from smore.cli.terminal import fail, platform_home
from smore.process.root import ROOT

#: Settings of a command that passes all its arguments on to a program: the program parses them, `--help` too.
PASSED_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
#: Modules that import the package that starts them, so it starts them by name. An installation may lack those of the
#: laboratory. tests/unit/test_house.py looks for each.
PROGRAMS: Final = {
    "alone": "worker.runner.alone",
    "compare": "lab.research.compare",
    "learning": "ml.learn.learning",
    "live": "lab.bench.live",
    "profile": "lab.measure.profile",
    "prewarm": "lab.research.prewarm.served",
    "replay": "lab.research.replay.replay",
    "report": "lab.research.predictor.report",
}


def start(name: str, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
    """
    Run the program ``name`` of :data:`PROGRAMS`.

    Its environment names this machine's Redis and Postgres, and has ``variables``. Raises typer.Exit with its exit code
    where that is not 0.
    """
    from smore.local import machine

    command = [*_command(name), *arguments]
    environment = {**_environment(), **(variables or {})}
    endpoints = machine.endpoints(platform_home())
    if endpoints is not None:
        environment.setdefault("SMORE_REDIS__URL", endpoints.redis_url)
        environment.setdefault("SMORE_POSTGRES__URL", endpoints.postgres_url)
    code = subprocess.run(command, env=environment, check=False).returncode
    if code:
        raise typer.Exit(code)


def ask(name: str, given: bytes) -> tuple[int, bytes]:
    """
    Run a program with ``given`` on its standard input. Its exit code, below 0 = the signal that ended it, and what it
    wrote to standard output.
    """
    ended = subprocess.run(_command(name), input=given, stdout=subprocess.PIPE, env=_environment(), check=False)
    return ended.returncode, ended.stdout


def _command(name: str) -> list[str]:
    """What runs a program. The command ends where the laboratory is not installed."""
    module = PROGRAMS[name]
    if not (ROOT / module.partition(".")[0]).is_dir():
        fail("this command is the laboratory's, which is not installed: pip install smore-lab")
    return [sys.executable, "-m", module]


def _environment() -> dict[str, str]:
    """This shell's, with the platform's packages for imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
