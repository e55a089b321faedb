"""
``python -m scheduler.policy``: compile what a decision runs, for the leaders of an installation.

A leader that finds nothing compiled starts it too: the compiler would leave it twice as large as it has to be.
"""

from scheduler.policy.engine import prepare
from scheduler.policy.prewarm import rules

if __name__ == "__main__":
    prepare()
    rules.prepare()
