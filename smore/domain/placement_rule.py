"""
A placement rule of one's own: in which order the engine tries what waits, and which GPU instance takes a batch.

The engine (``scheduler/policy/engine.py``) keeps everything else: memory, deadlines, the budgets of trainings, batching,
pauses and pins. It offers a rule only GPU instances on which the batch may run. docs/guides/own-policy.md is the guide;
:func:`smore.testing.rules.check_placement_rule` tests a rule.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

#: Methods of a rule.
METHODS: Final = ("order", "choose")


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
