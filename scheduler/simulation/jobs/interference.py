"""
The interference model: what jobs that share a GPU cost each other in a simulation; no rule sees it. Alone, a job takes
the time that its trace says.

``constant=X``: each takes X times as long beside another one. ``muri``: by the publisher's own times of CPU, GPU and
network in an iteration, the largest over the three of max(1, sum of busy shares) to the power of 1.1, times 1.02.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from scheduler.simulation.jobs.traces import SimulatedJob
from scheduler.simulation.world import bad

#: Of the law of Muri's pairs: how slowdowns grow with what is asked of a resource, and what sharing itself costs.
EXPONENT, OVERHEAD = 1.1, 1.02


class InterferenceModel(Protocol):
    """What co-location really costs."""

    def slowdown(self, job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
        """How many times longer an iteration of ``job`` takes with others on its slowest GPU; 1 alone."""
        ...


class Constant:
    """The same for every pair."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def slowdown(self, job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
        del job  # whatever it is
        return self._factor if beside else 1.0


class Muri:
    """By the busy shares of each resource."""

    def slowdown(self, job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
        if not beside:
            return 1.0
        everybody = (job, *beside)
        missing = next((one.id for one in everybody if not one.busy_s), None)
        if missing is not None:
            raise bad("truth", f"muri needs times of CPU, GPU and network, and {missing} has none")
        shares = [sum(one.busy_s[place] / one.iteration_s for one in everybody) for place in range(len(job.busy_s))]
        return OVERHEAD * float(max(1.0, *shares) ** EXPONENT)


_NAMED: Final = {"muri": Muri}


def interference_of(name: str) -> InterferenceModel:
    """``muri`` or ``constant=1.25``. Raises BadWorld."""
    kind, _, value = name.partition("=")
    if kind in _NAMED and not value:
        return _NAMED[kind]()
    try:
        factor = float(value) if kind == "constant" else 0.0
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < 1000.0:
        raise bad("truth", f"muri or constant=X with X of at least 1 is expected, not {name!r}")
    return Constant(factor)
