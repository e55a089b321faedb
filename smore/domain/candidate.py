"""GPU instances as a decision weighed them: for the policy, for what is written of it and for whoever reads that."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    One GPU instance as it was weighed. ``delay_s``: seconds until the batch could start there, ``run_s``: of its run alone;
    ``finish_at``: epoch seconds. ``impact`` weighs what the batch costs the training, itself and the other batches there.

    ``function_degradation`` of the batch and ``training_degradation`` of the training by all functions there, with
    their 90 % bounds, are fractions; ``known``: they came from the table, not from what was declared. ``refusal`` None =
    acceptable. A number that is not finite, or was not written, is read as None.
    """

    gpu: str
    warm: bool = False
    delay_s: float | None = None
    run_s: float | None = None
    finish_at: float | None = None
    impact: float | None = None
    function_degradation: float | None = None
    function_degradation_upper: float | None = None
    training_degradation: float | None = None
    training_degradation_upper: float | None = None
    known: bool = False
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Shadow:
    """Where another policy would have placed the same batch at the same moment; None = nowhere, so far."""

    policy: str
    gpu: str | None = None
