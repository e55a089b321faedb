"""``python -m scheduler.policy``: compile what a decision runs, so that the first leader of an installation need not."""

from scheduler.policy.core import prepare

if __name__ == "__main__":
    prepare()
