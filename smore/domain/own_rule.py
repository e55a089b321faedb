"""Rules of one's own: what their classes must have, and what is said of one that cannot be used."""

import importlib
import sys
from collections.abc import Callable, Sequence
from traceback import extract_tb
from typing import TypeVar

from smore.domain.quote import quoted
from smore.domain.spelling import did_you_mean

Rule = TypeVar("Rule")


class BadRule(ValueError):
    """A rule cannot be loaded, or answered with something that it may not; the message says which and what."""


def made(make: Callable[[], Rule], methods: Sequence[str], least: int) -> Rule:
    """
    A rule with at least so many of the ``methods``. Raises BadRule where ``make`` is no class and no function, fails, or
    methods are missing or misspelt.
    """
    if not callable(make):
        kind = type(make).__qualname__
        raise BadRule(f"an instance of {kind} was given; its class is expected, or a function that makes a rule")
    try:
        rule = make()
    # Code of somebody else may raise anything.
    except Exception as error:
        name = getattr(make, "__qualname__", repr(make))
        raise BadRule(f"{name}() raised {failure(error)}; a rule is made without arguments") from error
    if words := _lacking(rule, methods, least):
        raise BadRule(words)
    return rule


def _lacking(rule: object, methods: Sequence[str], least: int) -> str:
    """Which methods a rule lacks, with its class, file and methods; '' = it has enough, and none that is spelt alike."""
    missing = [method for method in methods if not callable(getattr(rule, method, None))]
    kind = type(rule)
    public = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))]
    others = [name for name in public if name not in methods]
    near = "".join(dict.fromkeys(did_you_mean(method, others) for method in missing))
    if not missing or (not near and len(methods) - len(missing) >= least):
        return ""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    where, without = f" of {file}" if file else "", " and ".join(f"no method {quoted(method)}" for method in missing)
    return f"the class {kind.__qualname__}{where} has {without}" + (
        near or f"; its methods are {', '.join(public[:8]) or 'none'}"
    )


def failure(error: Exception) -> str:
    """
    What a rule raised and where, for whoever called it and caught the error: ``KeyError: 'a' (/home/ada/mine.py, line
    12)``, the last line of the rule's file that it came through.
    """
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [frame for frame in extract_tb(error.__traceback__)[1:] if not _imports(frame.filename)]
    if not frames:
        # The call itself failed: it takes other arguments.
        return words
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{words} ({last.filename}, line {last.lineno})"


def _imports(filename: str) -> bool:
    """Whether a frame is of Python's import, between whoever loads a rule and the rule's file."""
    return filename == importlib.__file__ or filename.startswith("<frozen importlib")
