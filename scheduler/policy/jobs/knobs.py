"""
What can be set on the rule for trainings, and the named settings: SMore's own and the baselines that it is compared with.
All of them are one engine (``core.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Any, Final

from scheduler.policy.jobs.own_rule import OwnJobRule
from scheduler.policy.own_rule import load_rule
from scheduler.policy.setting import UnknownPolicy, choose
from smore.domain.job_rule import METHODS
from smore.domain.own_rule import BadRule

HOUR_S: Final = 3600.0


class JobOrder(StrEnum):
    """
    Who is tried first: who came first; who has the least expected time left, over the project's weight; the same times
    its GPU instances; who has had little GPU time (two queues, each by arrival); whose deadline is first; who can wait
    the shortest and still meet it, and last whoever can meet it no more.
    """

    ARRIVAL = "arrival"
    REMAINING = "remaining"
    REMAINING_GPUS = "remaining-gpus"
    ATTAINED = "attained"
    DEADLINE = "deadline"
    ALLOWANCE = "allowance"


class Passing(StrEnum):
    """Who may start before the first that does not fit: whatever fits; who ends before that one could start; nobody."""

    ANY = "any"
    BACKFILL = "backfill"
    NONE = "none"


class Sharing(StrEnum):
    """
    Beside whom a job starts for which too few GPU instances are free: nobody; the first that there are; the paper's
    partner (SJF-BSBF: the smallest mean end of the two, where it beats waiting for that one); SMore's (``sharing.py``).
    """

    NONE = "none"
    FIRST = "first"
    PAIR = "pair"
    GAIN = "gain"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKnobs:
    """
    Frozen settings of the rule; the defaults are ``smore-jobs``.

    ====================  ============================================================================  ==========
    knob                  meaning                                                                       range
    ====================  ============================================================================  ==========
    order                 who is tried first                                                            JobOrder
    passing               who may start before the first that does not fit                              Passing
    patience_s            time in the queue after which a job is first and GPU instances are kept       >= 0, inf
    patience_lengths      added to it for each second of the job's own expected length                  >= 0
    patience_most_s       the most that both may be, whatever a length was said to be                   >= 0, inf
    preemptive            running jobs are stopped for others; needs a checkpoint at any moment         bool
    look_s                time between two looks at who must stop, 0 = whenever something has changed   >= 0
    attained_gpu_s        GPU time from which on a job is in the second queue of the order ``attained``  > 0
    elastic               the rule chooses each job's number of GPU instances; needs ``preemptive``     bool
    change_s              what another number of GPU instances costs a job that has run before          >= 0
    sharing               beside whom a job may start, where both owners allow it                       Sharing
    least_gain            work that two do together that share a GPU instance, of what one does alone   >= 1
    least_gain_alike      the same where no workload that is here would do more with either             1..least_gain
    even_part             part of its wait in which a newcomer is through where two do less than that,
                          but at least the work of one                                                  >= short_part
    short_part            the same where they do less than one alone                                    >= 0
    spare_part            of the memory that stays free where two share                                 0..1
    promises              whether ends are promised to those that ask for it                            bool
    guard                 whether what would break a promise is refused                                 bool
    back_off_s            pause before the first restart; each further one is twice as long             >= 0
    back_off_most_s       the longest such pause                                                        >= 0
    short_s               an attempt that fails before is a short end                                   >= 0
    short_ends            short ends in a row after which a job is not started again                    >= 1
    rule                  a rule of one's own in place of ``order``, of ``sharing``'s choice, or both   None, object
    ====================  ============================================================================  ==========
    """

    name: str = "smore-jobs"
    order: JobOrder = JobOrder.REMAINING
    passing: Passing = Passing.ANY
    patience_s: float = 12 * HOUR_S
    patience_lengths: float = 2.0
    patience_most_s: float = 14 * 24 * HOUR_S
    preemptive: bool = False
    look_s: float = 0.0
    attained_gpu_s: float = 8 * HOUR_S
    elastic: bool = False
    change_s: float = 30.0
    sharing: Sharing = Sharing.GAIN
    least_gain: float = 1.2
    least_gain_alike: float = 1.1
    even_part: float = 0.2
    short_part: float = 0.1
    spare_part: float = 0.05
    promises: bool = True
    guard: bool = True
    back_off_s: float = 10.0
    back_off_most_s: float = 600.0
    short_s: float = 60.0
    short_ends: int = 3
    rule: OwnJobRule | None = None

    def __post_init__(self) -> None:
        for name, good in (
            ("patience_s", self.patience_s >= 0),
            ("patience_lengths", 0 <= self.patience_lengths < inf),
            ("patience_most_s", self.patience_most_s >= 0),
            ("look_s", 0 <= self.look_s < inf),
            ("attained_gpu_s", self.attained_gpu_s > 0),
            ("elastic", not self.elastic or (self.preemptive and self.look_s > 0)),
            ("change_s", 0 <= self.change_s < inf),
            ("sharing", self.sharing is Sharing.NONE or not self.preemptive),
            ("least_gain", 1 <= self.least_gain < inf),
            ("least_gain_alike", 1 <= self.least_gain_alike <= self.least_gain),
            ("even_part", self.short_part <= self.even_part < inf),
            ("short_part", 0 <= self.short_part < inf),
            ("spare_part", 0 <= self.spare_part < 1),
            ("back_off_s", 0 <= self.back_off_s < inf),
            ("back_off_most_s", isfinite(self.back_off_most_s) and self.back_off_most_s >= 0),
            ("short_s", 0 <= self.short_s < inf),
            ("short_ends", self.short_ends >= 1),
        ):
            if not good:
                raise UnknownPolicy(f"{name}: {getattr(self, name)!r} is out of range")

    def part_of(self, gain: float) -> float:
        """Within which part of its wait a newcomer must be through where two do ``gain`` together, which is too little."""
        return self.even_part if gain >= 1 else self.short_part


_SMORE: Final = JobKnobs()
_PLAIN: Final = replace(_SMORE, patience_s=inf, patience_most_s=inf, sharing=Sharing.NONE, promises=False)

#: Named settings. Without patience a baseline is what its publication says. ``tiresias`` with two queues looks as often
#: as its authors' scheduler; ``srsf`` looks whenever a job comes or ends. ``sjf-ffs`` and ``sjf-bsbf`` are those of one
#: publication: first fit sharing, and best sharing benefit first. ``edf``: earliest deadline first; ``swaf``: smallest waiting
#: allowance first, in the style of GENIE. ``pollux-style`` is in the style of Pollux, not Pollux
#: itself: it changes numbers of GPU instances alone, not batch sizes, at the authors' interval and with their cost.
SETTINGS: Final[Mapping[str, JobKnobs]] = {
    knobs.name: knobs
    for knobs in (
        _SMORE,
        replace(_PLAIN, name="fifo", order=JobOrder.ARRIVAL, passing=Passing.NONE),
        replace(_PLAIN, name="fifo-backfill", order=JobOrder.ARRIVAL, passing=Passing.BACKFILL),
        replace(_PLAIN, name="sjf"),
        replace(_PLAIN, name="sjf-ffs", sharing=Sharing.FIRST),
        replace(_PLAIN, name="sjf-bsbf", sharing=Sharing.PAIR),
        replace(_PLAIN, name="edf", order=JobOrder.DEADLINE),
        replace(_PLAIN, name="swaf", order=JobOrder.ALLOWANCE),
        replace(_PLAIN, name="srsf", order=JobOrder.REMAINING_GPUS, preemptive=True),
        replace(_PLAIN, name="tiresias", order=JobOrder.ATTAINED, preemptive=True, look_s=120.0),
        replace(_PLAIN, name="pollux-style", order=JobOrder.ARRIVAL, preemptive=True, look_s=60.0, elastic=True),
    )
}


def job_setting(name: str, **changed: Any) -> JobKnobs:
    """
    A named setting with some knobs changed; ``module:Class`` or ``FILE.py:Class``: ``smore-jobs`` with a new rule of that
    class (smore/domain/job_rule.py). Raises UnknownPolicy, which names what there is.
    """
    if ":" not in name and not name.endswith(".py"):
        return choose(SETTINGS, name, changed)
    try:
        own = replace(_SMORE, name=name, rule=OwnJobRule(name, load_rule(name, METHODS, 1)))
    except BadRule as error:
        raise UnknownPolicy(str(error)) from error
    return choose({name: own}, name, changed)


def why_not_live(knobs: JobKnobs) -> str | None:
    """Why a setting may not lead live trainings, in words; None = it may."""
    if knobs.preemptive:
        return (
            f"{knobs.name} stops running trainings for others, and nothing may stop a training that has no checkpoint at"
            " that moment; it is for the simulator alone"
        )
    return None
