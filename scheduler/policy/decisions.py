"""What the policy wants done, each with its reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from smore.domain.invocation import Cause


class Refusal(StrEnum):
    """Why a GPU instance was not chosen."""

    GONE = "gone"
    PAUSED = "paused"
    NO_SLOT = "no_slot"
    QUARANTINED = "quarantined"
    BUSY = "busy"
    MEMORY = "memory"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """
    One GPU instance as it was weighed. Seconds; ``impact`` is the scalar of digest A27.

    ``function_degradation`` of the batch and ``training_degradation`` of the training by all functions there, with their 90 % bounds, are
    fractions; ``known``: they came from the table, not from what was declared.
    """

    gpu: str
    warm: bool
    start_delay_s: float
    run_s: float
    finish_at: float
    impact: float
    function_degradation: float
    function_degradation_upper: float
    training_degradation: float
    training_degradation_upper: float
    known: bool
    refusal: Refusal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why a decision came out as it did: the best eight, and how many were refused for what."""

    policy: str
    table_version: int
    seed: int
    priority: float
    candidates: Sequence[Candidate]
    refused: Mapping[Refusal, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Send ``attempts`` (id, attempt known so far) of one revision to a GPU instance as one batch."""

    function: str
    revision: int
    gpu: str
    attempts: Sequence[tuple[str, int]]
    cold: bool
    reasons: Reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """End a waiting invocation: ``action`` is a column of the transition table."""

    function: str
    id: str
    action: str
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarm:
    """Load a revision before anything can run there."""

    function: str
    revision: int
    gpu: str


Decision = Dispatch | End | Prewarm
