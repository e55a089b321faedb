"""What settings of the queue of trainings are, in words for whoever reads a comparison: computed from their knobs."""

from math import isfinite
from typing import Final

from lab.simulation.jobs.world import JobWorld
from lab.simulation.spelt import parse
from scheduler.policy.jobs.knobs import HOUR_S, JobKnobs, JobOrder, Passing, Sharing, job_setting

#: What a named setting stands for, where its knobs do not say it.
REMARKS: Final = {
    "smore-jobs": "The platform's own rule.",
    "sjf": "Shortest job first.",
    "sjf-ffs": "The baseline of SJF-BSBF's authors: first fit sharing.",
    "sjf-bsbf": "SJF-BSBF: best sharing benefit first.",
    "edf": "Earliest deadline first.",
    "swaf": "Smallest waiting allowance first, in the style of GENIE.",
    "srsf": "Shortest remaining service first.",
    "tiresias": "In the style of Tiresias, with two queues.",
    "pollux-style": (
        "In the style of Pollux, not Pollux itself: no batch size and no learning rate changes, and a batch counts the same"
        " however many GPUs do it."
    ),
}
_ORDER: Final = {
    JobOrder.ARRIVAL: "by arrival",
    JobOrder.REMAINING: "least expected time left first",
    JobOrder.DEADLINE: "earliest deadline first",
    JobOrder.ALLOWANCE: "who can wait the shortest and still meet its deadline first, who can meet it no more last",
    JobOrder.REMAINING_GPUS: "least expected time left times GPU instances first",
}
_PASSING: Final = {
    Passing.ANY: "whatever fits starts",
    Passing.BACKFILL: "who ends before the first could start may pass it",
    Passing.NONE: "nobody passes the first that does not fit",
}
_SHARING: Final = {
    Sharing.NONE: "nobody shares a GPU instance",
    Sharing.FIRST: "where too few GPU instances are free, a job starts beside the first host that there is",
    Sharing.PAIR: (
        "where too few are free, a job starts beside the host with the smallest mean end of the two, if that is earlier than"
        " waiting for that host"
    ),
}


def in_words(policy: str, world: JobWorld) -> str:
    """Of a setting with its changed knobs (``sjf:patience_s=3600``): what it is, how it decides, what its changes cost."""
    name, changed = parse(policy)
    knobs = job_setting(name, **changed)
    decides = _elastic(knobs) if knobs.elastic else _order(knobs)
    return " ".join(filter(None, (REMARKS.get(name, ""), f"{decides[0].upper()}{decides[1:]}.", _costs(knobs, world))))


def _order(knobs: JobKnobs) -> str:
    order = _ORDER.get(
        knobs.order,
        f"two queues, the second for jobs that have had {knobs.attained_gpu_s / HOUR_S:g} GPU hours, each by arrival",
    )
    own = knobs.rule
    parts = ["by a rule of one's own" if own is not None and own.orders else order, _PASSING[knobs.passing]]
    if isfinite(knobs.patience_s):
        parts.append(
            f"who has waited {knobs.patience_s / HOUR_S:g} h and {knobs.patience_lengths:g} times its own length is first"
        )
    if knobs.preemptive:
        parts.append(f"running jobs are stopped for others, {_when(knobs)}")
    pairs = own is not None and own.pairs and knobs.sharing is not Sharing.NONE
    parts.append(
        "where too few are free, a job starts beside whom a rule of one's own takes"
        if pairs
        else _SHARING.get(
            knobs.sharing,
            f"two share a GPU instance that together do at least {knobs.least_gain:g} times the work of one, or"
            f" {knobs.least_gain_alike:g} times where no other pair would do more",
        )
    )
    return "; ".join(parts)


def _elastic(knobs: JobKnobs) -> str:
    return f"each job's number of GPU instances is chosen anew {_when(knobs)}, whatever it asked for"


def _when(knobs: JobKnobs) -> str:
    return f"every {knobs.look_s:g} s" if knobs.look_s else "whenever a job comes or ends"


def _costs(knobs: JobKnobs, world: JobWorld) -> str:
    """What a stop costs; '' where nobody is stopped."""
    if knobs.elastic:
        return (
            f"A change of the number costs {knobs.change_s:g} s, a resumption after a failure {world.resume_s:g} s; a first"
            " start costs nothing."
        )
    if knobs.preemptive:
        return f"A job that was stopped goes on {world.resume_s:g} s after it is started again."
    return ""
