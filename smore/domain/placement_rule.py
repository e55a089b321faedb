"""
A placement rule of one's own: in which order the engine tries what waits, and which GPU instance takes a batch.

The engine (``scheduler/policy/engine.py``) keeps everything else: memory, deadlines, the budgets of trainings, batching,
pauses and pins. It offers a rule only GPU instances on which the batch may run. docs/guides/own-policy.md is the guide;
:func:`smore.testing.check_placement_rule` tests a rule.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from traceback import extract_tb
from typing import Final, NamedTuple, Protocol

from smore.domain.quote import quoted
from smore.domain.spelling import did_you_mean

#: Methods of a rule.
METHODS: Final = ("order", "choose")


class BadRule(ValueError):
    """A rule cannot be loaded, or answered with something that it may not; the message says which and what."""


class WaitingBatch(NamedTuple):
    """
    Invocations of one revision that wait for a GPU instance, seen by the one whose deadline is first. Times in epoch
    seconds. ``rows``: of the batch, or of its first invocation where the order is asked; ``run_s``: seconds that a warm
    run of them takes alone, as expected; ``priority``: P (Eq. 5) times the boost that people gave the function;
    ``memory_mib``: what an instance of the revision holds on a GPU instance, as declared or measured, the larger of both.
    """

    function: str
    revision: int
    arrival_at: float
    deadline_at: float
    rows: int
    run_s: float
    priority: float
    memory_mib: float


class Offer(NamedTuple):
    """
    A GPU instance that may take the batch now, with what is predicted of it there.

    ``warm``: an instance of the function is idle there; ``start_delay_s``: seconds until it could run (0 where warm);
    ``finish_at``: epoch seconds. ``function_degradation``: of the batch, ``training_degradation``: of the training by
    all functions there then (0 without a training), fractions, with the bounds that hold for 90 %; ``known``: they come
    from the degradation table, not from declarations. ``impact``: what the training, the batch and the other functions
    lose together. ``trains``: a training runs there. ``free_mib``: memory that is free or held by idle instances, less the reserve;
    ``utilisation``: of the device, 0..1, as last reported.
    """

    gpu: str
    warm: bool
    start_delay_s: float
    finish_at: float
    function_degradation: float
    function_degradation_upper: float
    training_degradation: float
    training_degradation_upper: float
    known: bool
    impact: float
    trains: bool
    free_mib: float
    utilisation: float


class PlacementRule(Protocol):
    """
    Made without arguments for each run or leader. The same calls must give the same answers: no clock, no input or
    output, and random numbers from a generator with a fixed seed only.
    """

    def order(self, now: float, batch: WaitingBatch) -> float:
        """
        Batches with smaller numbers are tried first; ties by deadline. A finite number. Called for each batch that
        waits, in every round.
        """
        ...

    def choose(self, now: float, batch: WaitingBatch, offers: Sequence[Offer]) -> Offer | None:
        """
        One of ``offers`` (at least one, in the order of the GPU instances' first reports), or None: the batch waits for
        the next round, and expires where it waits too long. After None for several invocations fewer of them are
        offered. Also called for questions (dry runs), after which nothing is placed.
        """
        ...


def made(make: Callable[[], PlacementRule]) -> PlacementRule:
    """A rule with both methods. Raises BadRule where ``make`` is no class and no function, fails, or a method is missing."""
    if not callable(make):
        kind = type(make).__qualname__
        raise BadRule(f"an instance of {kind} was given; its class is expected, or a function that makes a rule")
    try:
        rule = make()
    # Code of somebody else may raise anything.
    except Exception as error:
        name = getattr(make, "__qualname__", repr(make))
        raise BadRule(f"{name}() raised {failure(error)}; a rule is made without arguments") from error
    if words := _lacking(rule):
        raise BadRule(words)
    return rule


def _lacking(rule: object) -> str:
    """Which methods of :class:`PlacementRule` a rule lacks, with its class, file and methods; '' = none."""
    missing = [method for method in METHODS if not callable(getattr(rule, method, None))]
    if not missing:
        return ""
    kind = type(rule)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    public = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))]
    near = "".join(dict.fromkeys(did_you_mean(method, public) for method in missing))
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
