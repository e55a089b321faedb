"""The one method that a shell (the live leader, the simulator) calls of a policy."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from scheduler.policy.decisions import Decision
from scheduler.policy.events import Event


class Round(NamedTuple):
    """
    What a call of :meth:`Policy.decide` ends in.

    ``decisions`` are in the order in which they must be performed. ``wake_at``: when the policy has something to decide
    even if nothing happens until then, epoch seconds; inf = never.
    """

    decisions: list[Decision]
    wake_at: float


class Policy(Protocol):
    """A pure rule. Two policies that get the same events at the same times decide the same."""

    def decide(self, now: float, events: Sequence[Event]) -> Round:
        """
        Apply events and decide. ``now`` in epoch seconds.

        The policy counts its decisions as performed; a claim that fails comes back as
        :class:`~scheduler.policy.events.ClaimRefused`. A call whose events only ask
        (:data:`~scheduler.policy.events.Question`) places nothing and changes nothing.
        """
        ...
