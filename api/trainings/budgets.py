"""Which degradation budgets of a training can be kept provably."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from api.deps import Gateway
from smore.domain import loss
from smore.domain.errors import InvalidInput
from smore.domain.loss import DEFAULT_BUDGET, LEAST_BUDGET, MOST_BUDGET

#: Iterations that a profile needs before their noise can be estimated.
_LEAST_TIMED: Final = 8


def too_long(iterations_s: Iterable[float | None], longest_s: float) -> str:
    """
    Why no window of ``longest_s`` holds iterations that take so long (None = not known), '' = one does: then no budget can
    be proven.
    """
    window_s = loss.window_s(min((each for each in iterations_s if each), default=longest_s / 100))
    if window_s <= longest_s:
        return ""
    return f"seven of its iterations take {window_s:.3g} s, and a window is at most {longest_s:g} s (SMORE_WORKER__PROBE_MAX_S)"


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
        raise InvalidInput.at(
            "budget",
            f"the keeping of no budget can be measured for this job: {why}, too slow for windows of {own.probe_max_s:g} s in"
            f" {own.probe_share:.0%} of the time. Leave it out to start the job with the aim of {DEFAULT_BUDGET:g}.",
        )
    if not smallest <= budget <= MOST_BUDGET:
        raise InvalidInput.at(
            "budget",
            f"{budget:g} is not from {smallest:g} to {MOST_BUDGET:g}; {smallest:g} is {why}",
            smallest=smallest,
        )
