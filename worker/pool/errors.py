"""
Why the warm pool gives a batch no instance. Raised by :class:`worker.pool.pool.Pool` and its parts, turned into an
outcome by :class:`worker.batches.Executor`.
"""


class Unservable(Exception):
    """This worker cannot run the batch now; another may."""


class Quarantined(Exception):
    """The revision is quarantined after repeated crashes."""


class LoadFailed(Exception):
    """The handler could not be loaded; the message, and ``traceback`` (frames of user code), are for the caller."""

    def __init__(self, message: str, traceback: str = "") -> None:
        self.traceback = traceback
        super().__init__(message)
