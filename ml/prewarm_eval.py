"""``python -m ml.prewarm_eval``: a program that smore/cli/programs.py names."""

from smore.cli.programs import run

run("ml.prewarm_eval")
