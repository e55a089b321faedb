"""``python -m ml.profile``: a program that smore/cli/programs.py names."""

from smore.cli.programs import run

run("ml.profile")
