"""
Functions of ``lab.bench.kills``: one that records every run, so that double runs can be counted, and a hostile one; and that
of ``lab.bench.long_runs``.
"""

import os
import stat
import time
from typing import Any, ClassVar

from smore.handler import Handler


class Tally(Handler):
    """
    ``{"n": number, "file": path, "s": seconds}``: appends the number to an existing file, sleeps for the longest ``s``
    of the batch, and returns the number.
    """

    example: ClassVar[Any] = {"n": -1, "file": os.devnull, "s": 0.0}

    def predict(self, inputs: Any) -> Any:
        for given in inputs:
            # One write of one short line with O_APPEND is atomic, so runners may share the file.
            target = os.open(given["file"], os.O_WRONLY | os.O_APPEND)
            os.write(target, b"%d\n" % given["n"])
            os.close(target)
        time.sleep(max(given["s"] for given in inputs))
        return [{"n": given["n"]} for given in inputs]


class Forge(Handler):
    """``{"do": "forge"}``: writes bytes that are no frame to every socket of its process."""

    example: ClassVar[Any] = {"do": "nothing"}

    def predict(self, inputs: Any) -> Any:
        if any(given.get("do") == "forge" for given in inputs):
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                try:
                    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                        os.write(descriptor, b"\xff" * 64)
                except OSError:
                    continue
        return inputs


class Work(Handler):
    """``{"s": seconds}``: keeps a core busy for that long. Time for which its process is stopped does not count."""

    example: ClassVar[Any] = {"s": 0.0}

    def predict(self, inputs: Any) -> Any:
        left_s, last = max(given["s"] for given in inputs), time.perf_counter()
        while left_s > 0:
            now = time.perf_counter()
            left_s, last = left_s - min(now - last, 0.1), now
        return inputs
