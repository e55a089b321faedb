"""Waiting in tests: poll a condition with a deadline, never sleep for a guess."""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

#: A machine that does other things too takes so many times as long as what a test says.
PATIENCE = 4.0


def eventually(
    condition: Callable[[], T | Literal[False] | None], within_s: float = 10.0, what: str = "the condition"
) -> T:
    """
    The first truthy value of ``condition``. Raises AssertionError when none came within the time, and says what came
    last.
    """
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        assert waited < PATIENCE * within_s, f"{what} did not hold within {PATIENCE * within_s:g} s (last: {value!r})"
        # Whoever is waited for needs the processor: what takes long is asked for less often.
        time.sleep(min(max(0.01, waited / 20), 0.1))
