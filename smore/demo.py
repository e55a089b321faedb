"""``python -m smore.demo``: a program that smore/cli/programs.py names."""

from smore.cli.programs import run

run("smore.demo")
