"""
Why the warm pool gives a batch no instance. Raised by :class:`worker.pool.pool.Pool` and its parts, turned into an
outcome by :class:`worker.batches.Executor`.
"""

from smore.domain.invocation import Cause


class Unservable(Exception):
    """This worker cannot run the batch now; another may."""


class NoneLeft(Unservable):
    """No instance is there, and none was to be loaded."""


class Quarantined(Exception):
    """The revision is quarantined after repeated crashes."""


class LoadFailed(Exception):
    """
    The handler could not be loaded; the message, and ``traceback`` (frames of user code), are for the caller. ``cause``:
    LOAD_FAILED, or OUT_OF_MEMORY.
    """

    def __init__(self, message: str, traceback: str = "", cause: Cause = Cause.LOAD_FAILED) -> None:
        self.traceback = traceback
        self.cause = cause
        super().__init__(message)
