"""``python -m scheduler.simulation``: a program that smore/cli/programs.py names."""

from smore.cli.programs import run

run("scheduler.simulation")
