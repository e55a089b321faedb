"""Whether an error means that Redis does not serve now: it is away, or it refuses commands."""

import re
from typing import Final

import redis

#: The codes of a server that refuses: its append-only file or snapshot cannot be written (disk full), its memory is
#: full, it is a replica, it lacks replicas, or a script holds it. (One that still reads its files is a ConnectionError
#: in redis-py.) Redis 6 puts the code of a command that a script called inside the script's own error (``…
#: @user_script:14: -OOM command not allowed …``); redis-py puts the pipeline's command before it.
_REFUSAL: Final = re.compile(r"(?:^|\s-|: )(?:MISCONF|OOM|READONLY|NOREPLICAS|BUSY|MASTERDOWN)\s")


def refuses(error: BaseException) -> bool:
    """Whether Redis refused a command for a reason of its own, such as a full disk."""
    # redis-py removes the code from the text where it has a class for it.
    if isinstance(error, redis.OutOfMemoryError | redis.ReadOnlyError):
        return True
    return isinstance(error, redis.ResponseError) and _REFUSAL.search(str(error)) is not None


def is_outage(error: BaseException) -> bool:
    """Whether trying again later may help: no connection, no answer, or a refusal. True of every OSError."""
    return isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError) or refuses(error)
