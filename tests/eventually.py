"""Waiting in tests: poll a condition with a deadline, never sleep for a guess."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], within_s: float = 10.0, what: str = "the condition") -> T:
    """The first truthy value of ``condition``. Raises AssertionError when none came within the time."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not hold within {within_s} s (last: {value!r})"
        time.sleep(0.01)
