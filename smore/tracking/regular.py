"""
Opening a file that a training can replace: whoever reads it must neither wait for a pipe nor follow a link. Standard
library alone.
"""

import errno
import os
import stat
from pathlib import Path


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a regular file; it never waits. Raises OSError for anything else, a link too."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor
