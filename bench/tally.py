"""A function that writes down every run, so that a benchmark can count what was executed twice."""

import os
import stat
import time
from typing import Any, ClassVar

from smore.handler import Handler


class Tally(Handler):
    """
    ``{"n": number, "file": path, "s": seconds}``: appends the number to the file that is there, takes that long,
    answers the number.
    """

    example: ClassVar[Any] = {"n": -1, "file": os.devnull, "s": 0.0}

    def predict(self, inputs: Any) -> Any:
        for one in inputs:
            # One write of one short line with O_APPEND is atomic, so runners may share the file.
            target = os.open(one["file"], os.O_WRONLY | os.O_APPEND)
            os.write(target, b"%d\n" % one["n"])
            os.close(target)
        time.sleep(max(one["s"] for one in inputs))
        return [{"n": one["n"]} for one in inputs]


class Forge(Handler):
    """``{"do": "forge"}``: writes bytes that are no frame to every socket that its process has."""

    example: ClassVar[Any] = {"do": "nothing"}

    def predict(self, inputs: Any) -> Any:
        if any(one.get("do") == "forge" for one in inputs):
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                try:
                    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                        os.write(descriptor, b"\xff" * 64)
                except OSError:
                    continue
        return inputs
