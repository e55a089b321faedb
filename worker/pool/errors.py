"""
Why the warm pool gives a batch no instance. Raised by :class:`worker.pool.pool.Pool` and its parts, turned into an
outcome by :class:`worker.batches.Executor`.
"""


class Unservable(Exception):
    """This worker cannot run the batch now; another may."""


class Quarantined(Exception):
    """The revision is quarantined after repeated crashes."""


class LoadFailed(Exception):
    """The handler could not be loaded; the message is for the caller."""
