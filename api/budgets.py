"""Which degradation budgets of a training can be kept provably."""

import math
from collections.abc import Sequence
from typing import Final

from api.deps import Gateway
from smore.domain import loss
from smore.domain.errors import InvalidInput
from smore.domain.loss import DEFAULT_BUDGET, LEAST_BUDGET

#: Iterations that a profile needs before their noise can be estimated.
_LEAST_TIMED: Final = 8


def check_budget(gateway: Gateway, budget: float, workload: str, places: Sequence[tuple[str, str]]) -> None:
    """
    Raises InvalidInput, which names the smallest budget whose keeping can be told from noise.

    The noise comes from a profile of the workload at these places; without a profile only the static bound holds. A
    default budget is not checked: it is an aim.
    """
    smallest = LEAST_BUDGET
    why = "the smallest for any job"
    own = gateway.settings.worker
    for place in places if workload else ():
        for timing in gateway.reader().solo_timings(workload, place):
            if timing["n"] < _LEAST_TIMED:
                continue
            noise = loss.noise_of(timing["p50"], timing["p95"])
            resolvable = loss.resolvable(
                noise=noise, iteration_s=timing["mean"], share=own.probe_share, longest_s=own.probe_max_s
            )
            if resolvable > smallest:
                smallest = math.ceil(resolvable * 1000) / 1000 if math.isfinite(resolvable) else math.inf
                why = f"iterations of {workload} take {timing['mean']:.3g} s and scatter by {noise:.1%}"
            break
    if math.isinf(smallest):
        raise InvalidInput(
            f"budget: the keeping of no budget can be measured for this job: {why}, too slow for windows of {own.probe_max_s:g} s in"
            f" {own.probe_share:.0%} of the time. Leave it out to start the job with the aim of {DEFAULT_BUDGET:g}.",
            field="budget",
        )
    if not smallest <= budget <= 1:
        raise InvalidInput(
            f"budget: {budget:g} is not from {smallest:g} to 1; {smallest:g} is {why}",
            field="budget",
            smallest=smallest,
        )
