"""Functions of ``lab.bench.kills``: one that records every run, so that double runs can be counted, and a hostile one."""

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
