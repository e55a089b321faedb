"""
Secrets in what a runner prints and in its errors: the worker puts ``***`` in their place, so that what native code and a
runner's own processes print is covered too. Results stay as the function made them.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from worker import frames
from worker.frames import Failed, Predicted

#: A shorter secret, or line of one, is part of too many other words to be hidden.
_HIDDEN_FROM: Final = 8
_SHOWN: Final = "***"


class Mask:
    """Hides the secrets that it is made of, and each line of one that has several."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        lines = {line for secret in secrets for line in (secret, *secret.splitlines()) if len(line) >= _HIDDEN_FROM}
        # A secret that contains another one is replaced before it.
        self._hidden = [(line, line.encode()) for line in sorted(lines, key=len, reverse=True)]

    def text(self, text: str) -> str:
        """The text without secrets."""
        for secret, _ in self._hidden:
            text = text.replace(secret, _SHOWN)
        return text

    def printed(self, data: bytes) -> bytes:
        """What was printed without secrets."""
        for _, secret in self._hidden:
            data = data.replace(secret, _SHOWN.encode())
        return data

    def begun(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret, whose rest is still to come."""
        longest = 0
        for _, secret in self._hidden:
            at = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
            while at >= 0 and not secret.startswith(data[at:]):
                at = data.find(secret[:1], at + 1)
            if at >= 0:
                longest = max(longest, len(data) - at)
        return longest

    def answer(self, answer: frames.FromRunner) -> frames.FromRunner:
        """The answer with no secrets in its errors."""
        if not self._hidden:
            return answer
        match answer:
            case Failed():
                return Failed(
                    cause=answer.cause, message=self.text(answer.message), traceback=self.text(answer.traceback)
                )
            case Predicted() if any(item.message for item in answer.answers):
                return Predicted(
                    answers=[
                        msgspec.structs.replace(item, message=self.text(item.message), field=self.text(item.field))
                        for item in answer.answers
                    ]
                )
            case _:
                return answer
