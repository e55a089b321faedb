"""
``python -m scheduler.policy``: compile what a decision runs, so that the first leader of an installation need not.
"""

from scheduler.policy.engine import prepare
from scheduler.policy.prewarm import rules

if __name__ == "__main__":
    prepare()
    rules.prepare()
