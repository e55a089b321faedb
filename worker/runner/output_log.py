"""
The standard streams of user code in a runner: each line goes to the worker's log with the function's name before it, and
without the function's secrets.
"""

import contextlib
import io
import os
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from worker import frames
from worker.frames import Failed, Predicted

#: Bytes of what user code printed while it was loaded that an error carries, its end.
_LOG_BYTES: Final = 6000
#: A shorter secret is part of too many other words to be hidden.
_HIDDEN_FROM: Final = 8


class OutputLog(io.RawIOBase):
    """Writes whole lines to descriptor 2, each with ``prefix`` before it. Not thread-safe beyond what one write is."""

    def __init__(self) -> None:
        self.prefix = ""
        #: Where it is a buffer, what is written is added to it too, its last bytes.
        self.kept: bytearray | None = None
        self._rest = b""
        self._hidden: list[str] = []

    def hide(self, secrets: Iterable[str]) -> None:
        """Write ``***`` for these from now on; of a secret of several lines, for each line."""
        lines = {line for secret in secrets for line in (secret, *secret.splitlines()) if len(line) >= _HIDDEN_FROM}
        # A secret that contains another one is replaced before it.
        self._hidden = sorted(lines, key=len, reverse=True)

    def masked(self, text: str) -> str:
        """The text without the hidden secrets."""
        for secret in self._hidden:
            text = text.replace(secret, "***")
        return text

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def write(self, data: Any) -> int:
        if self.kept is not None:
            self.kept += bytes(data)
            del self.kept[:-_LOG_BYTES]
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        if lines:
            mark = f"[{self.prefix}] ".encode()
            if self._hidden:
                lines = [self.masked(line.decode(errors="replace")).encode() for line in lines]
            # A log whose reader is gone must not fail an invocation.
            with contextlib.suppress(OSError):
                os.write(2, b"".join(mark + line + b"\n" for line in lines))
        return len(data)


def masked(answer: frames.FromRunner, log: OutputLog) -> frames.FromRunner:
    """An answer whose error texts have no secrets; results stay as the function made them."""
    match answer:
        case Failed():
            return Failed(cause=answer.cause, message=log.masked(answer.message))
        case Predicted() if any(item.message for item in answer.answers):
            return msgspec.structs.replace(
                answer,
                answers=[msgspec.structs.replace(item, message=log.masked(item.message)) for item in answer.answers],
            )
        case _:
            return answer
