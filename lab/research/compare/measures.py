"""The measures of a comparison: how a table calls each, what it is, and where it has no value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lab.simulation.metrics import Interval, interval
from smore.domain.loss import student


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """
    ``heading`` of a column, ``meaning`` in a few words, ``definition`` in a sentence, ``better``: more, less, or ''
    where neither is. ``undefined``: when there is nothing to divide by.
    """

    heading: str
    meaning: str
    definition: str
    better: str
    undefined: str


#: In the order of the tables. lab/simulation/metrics.py computes them.
MEASURES: Final[Mapping[str, Measure]] = {
    "dsr": Measure(
        heading="DSR",
        meaning="deadlines met, of all submitted",
        definition="Deadline satisfactory ratio: invocations that ended by their deadline, over all that were submitted.",
        better="more",
        undefined="nothing was submitted",
    ),
    "dsr_admitted": Measure(
        heading="DSR admitted",
        meaning="deadlines met, of those dispatched",
        definition="Invocations that ended by their deadline, over those that were dispatched to a GPU instance.",
        better="more",
        undefined="nothing was dispatched",
    ),
    "admission": Measure(
        heading="admitted",
        meaning="dispatched, of all submitted",
        definition="Invocations that were dispatched to a GPU instance, over all that were submitted.",
        better="",
        undefined="nothing was submitted",
    ),
    "gui": Measure(
        heading="GUI",
        meaning="utilisation gained, points",
        definition="Mean utilisation of the GPU instances, less that of the same trainings without functions.",
        better="more",
        undefined="there is no GPU instance",
    ),
    "sfd": Measure(
        heading="SFD",
        meaning="degradation of trainings",
        definition=(
            "How much slower an iteration is than alone, as its average over time, mean over trainings: 100 % is twice"
            " as slow. A short stop counts as a very slow iteration, so it can be far above 100 %."
        ),
        better="less",
        undefined="no training ran",
    ),
    "train_loss": Measure(
        heading="training lost",
        meaning="iterations that did not happen",
        definition="Iterations that trainings did not get done for functions' sake, over those they do alone.",
        better="less",
        undefined="no training ran",
    ),
    "sld": Measure(
        heading="SLD",
        meaning="degradation of functions, against the mean alone",
        definition="Run time over the mean run time alone, less one, mean over the invocations that ended.",
        better="less",
        undefined="no invocation ended",
    ),
    "sld_p99": Measure(
        heading="SLD (P99)",
        meaning="degradation of functions, against the P99 alone",
        definition="Run time over the 99th percentile of the run times alone, less one; negative where it is below.",
        better="less",
        undefined="no invocation ended",
    ),
    "cold": Measure(
        heading="cold starts",
        meaning="cold starts, of those dispatched",
        definition="Dispatched invocations that waited for a load, over all dispatched.",
        better="less",
        undefined="nothing was dispatched",
    ),
    "waste": Measure(
        heading="waste",
        meaning="instance time loaded and idle",
        definition="Time in which instances of functions were loaded and did not run, over the time they were loaded.",
        better="less",
        undefined="no instance was loaded",
    ),
    "harvest": Measure(
        heading="harvest",
        meaning="work done in time, of a GPU instance's time",
        definition=(
            "Run time alone of the invocations that met their deadline, over the time of the GPU instances: what a GPU"
            " instance did for functions in time."
        ),
        better="more",
        undefined="there is no GPU instance",
    ),
}


#: Figures that are shares; gui is a difference of two.
_SHARES: Final = frozenset(
    {"dsr", "dsr_admitted", "dsr_accepted", "admission", "expired", "rejected", "failed", "refused"}
    | {"train_loss", "cold", "waste", "utilisation", "function_utilisation"}
)
#: The least value of figures that can be negative: a degradation of -1 is a run that takes no time.
_LEAST: Final[Mapping[str, float]] = {"gui": -1.0, "gui_relative": -1.0, "sld": -1.0, "sld_p99": -1.0}


def interval_of(metric: str, values: Sequence[float]) -> Interval:
    """The mean of a figure over seeds, with its 95 % interval (Student), cut off at what the figure can be."""
    name = metric.partition(".")[0]
    most = 1.0 if name in _SHARES or name == "gui" else math.inf
    return interval(values).within(_LEAST.get(name, 0.0), most)


#: What is said of intervals wherever they stand.
CUT_OFF: Final = "Intervals are Student's over seeds, cut off at what a figure can be (0 to 100 % of a share)."


#: Seeds up to which readers are told that an interval says little, and how many to run instead.
FEW: Final = 5
ENOUGH: Final = 8


def few_seeds(count: int) -> str:
    """What is said where few seeds were run; '' where they are enough."""
    if count > FEW:
        return ""
    if count == 1:
        return f"One seed has no interval, and no claim can be made from it; run at least {ENOUGH}."
    return (
        f"{count} seeds are few: a 95 % interval then reaches {student(0.975, count - 1):.1f} standard errors to each side (2.0 with"
        f" many seeds), and the standard error is itself known from {count} values alone. What cannot be said may be decided"
        f" by more seeds, and what held may not hold again; run at least {ENOUGH}."
    )


#: What on a page is counted, and what is an estimate.
ESTIMATES: Final = (
    "A row of rows.csv is one simulated run, and its figures are counted, not estimated. Means over seeds and differences"
    " are estimates of what further seeds would give; the interval says how far off they may be. It covers seeds alone: not"
    " another trace, cluster or interference model."
)


def why_undefined(metric: str, count: int, seeds: int) -> str:
    """Why a figure has no value: in ``count`` of the seeds there was nothing to divide by."""
    reason = MEASURES[metric].undefined if metric in MEASURES else "nothing of it was submitted"
    return f"{reason} in {count} of {seeds} seeds"


def undefined_policies(metric: str, counts: Mapping[str, int], seeds: int) -> str:
    """
    For which policies a metric is undefined, and why; '' if it is for none. ``counts``: by policy, the seeds without a
    value.
    """
    by_count: dict[int, list[str]] = {}
    for policy, count in counts.items():
        if count:
            by_count.setdefault(count, []).append(policy)
    return "; ".join(
        f"{', '.join(policies) if len(policies) < len(counts) else 'all policies'}: {why_undefined(metric, count, seeds)}"
        for count, policies in by_count.items()
    )
