"""``python -m ml.evaluate``: a program that smore/cli/programs.py names."""

from smore.cli.programs import run

run("ml.evaluate")
