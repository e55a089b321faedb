"""
What can be set on a policy, and the named settings: SMore's own and the baselines that it is compared with (docs/paper.md).

All of them are one engine (``engine.py``) with other knobs, so that they differ in nothing but what is named here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Any, Final

from scheduler.policy.own_rule import load_rule
from scheduler.policy.setting import UnknownPolicy, choose
from smore.domain.own_rule import BadRule
from smore.domain.placement_rule import METHODS, PlacementRule


class Order(StrEnum):
    """
    What is tried first in a round: the highest P (Eq. 5); the function that has had the least run time, weighted by P;
    the earliest deadline; or the earliest arrival.
    """

    PRIORITY = "priority"
    SHARES = "shares"
    DEADLINE = "deadline"
    ARRIVAL = "arrival"


class Choice(StrEnum):
    """Which of the acceptable GPU instances: least predicted impact (A27), least utilised, or any."""

    LEAST_IMPACT = "least-impact"
    LEAST_UTILISED = "least-utilised"
    RANDOM = "random"


class SmRule(StrEnum):
    """
    What the SM check counts: nothing, all that is in use (A26), or the training alone (EDF-util as the paper says it).
    """

    NONE = "none"
    TOTAL = "total"
    TRAINING = "training"


class BudgetRule(StrEnum):
    """
    What a training's budget bounds: nothing; its predicted degradation at every moment (A28.1); or what it loses over
    time.

    The last is a token bucket: it refills by ``budget / (1 + budget)`` seconds a second, and every placed batch takes
    what it is predicted to cost.
    """

    NONE = "none"
    INSTANT = "instant"
    BUCKET = "account"


class ClassRule(StrEnum):
    """
    What sets bulk work (class batch) apart: nothing; a share, a bound on its runs and a slot that it leaves free
    (classes.py); that it comes after all else; or that it runs only while nothing else waits or runs there.
    """

    NONE = "none"
    BOUND = "bound"
    TIER = "tier"
    TEMPORAL = "temporal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """
    Frozen settings of a policy; the defaults are the preset ``smore``. Shares and degradations are fractions.

    ====================  ==========================================================================  ===========  ============
    knob                  meaning                                                                     range        paper
    ====================  ==========================================================================  ===========  ============
    order                 who is tried first                                                          Order        P(f), Eq. 5
    choice                which acceptable GPU instance                                               Choice       Alg. 1
    sm_rule, sm_cap       SM check, and the share that may be in use                                  > 0          "100 %"
    memory_reserve        share of the memory that stays free                                         0..1         A26
    budget_rule           what a training's budget bounds                                             BudgetRule   A28.1
    tau_training          degradation budget of a training that names none                            >= 0         10 %
    aim                   part of its budget that refills its bucket                                  0..1         none
    account_s             seconds of budget that a bucket can hold                                    > 0          none
    company               part of its time that a batch waits for more while a bucket is low          0..1         none
    tau_function          most predicted degradation of a function                                    > 0, inf     A28.4
    accept                whether the predicted end must be before the deadline                       bool         A28.2
    late_s                seconds past its deadline for which an invocation is still executed         >= 0         A22
    ahead_s               seconds before a run's expected end at which the next batch may be sent       0..0.1       none
    protect_inflight      whether running batches must still meet theirs                              bool         A28.3
    guard                 share added to a predicted latency                                          >= 0         none
    use_upper             predict latencies with the 90 % bound                                       bool         none
    beside_training       whether functions may run beside a training at all                          bool         none
    fast                  whether high load takes the first of a sample (a random choice: of all)     bool         sec. V
    fast_from             GPU instances from which on that pays: a scan of fewer costs no more          >= 0         none
    load_hi, load_lo      offered load at which that begins and ends                                  0..1         A23
    hold_s                seconds that low load must last                                             >= 0         A23
    d_least, d_share      sampled: the larger of a number and a share of the GPU instances            >= 1, 0..1   d, A24
    warm_first            GPU instances with an idle warm instance come first                         bool         A24
    impact                weights of training, function, functions there                              >= 0         A27
    ageing_per_s          added to the normalised P per second of waiting, where P is the order       >= 0         A20
    classes               what sets bulk work apart                                                   ClassRule    none
    batch_share           weight of bulk work against the largest, where shares are the order         0..1         none
    recorded              candidates that are kept with a decision                                    >= 1         none
    rule                  a placement rule of one's own in place of ``order`` and ``choice``         None, object none
    seed                  of the sample and of random choice                                          int          none
    ====================  ==========================================================================  ===========  ============
    """

    name: str = "smore"
    order: Order = Order.PRIORITY
    choice: Choice = Choice.LEAST_IMPACT
    sm_rule: SmRule = SmRule.TOTAL
    sm_cap: float = 1.0
    memory_reserve: float = 0.05
    budget_rule: BudgetRule = BudgetRule.INSTANT
    tau_training: float = 0.10
    aim: float = 1.0
    account_s: float = 10.0
    company: float = 0.0
    tau_function: float = inf
    accept: bool = True
    late_s: float = 0.0
    ahead_s: float = 0.0
    protect_inflight: bool = True
    guard: float = 0.0
    use_upper: bool = False
    beside_training: bool = True
    fast: bool = True
    fast_from: int = 0
    load_hi: float = 0.7
    load_lo: float = 0.5
    hold_s: float = 2.0
    d_least: int = 8
    d_share: float = 0.1
    warm_first: bool = False
    impact: tuple[float, float, float] = (1.0, 1.0, 1.0)
    ageing_per_s: float = 0.0
    classes: ClassRule = ClassRule.NONE
    batch_share: float = 0.05
    recorded: int = 8
    rule: PlacementRule | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, good in (
            ("sm_cap", self.sm_cap > 0),
            ("memory_reserve", 0 <= self.memory_reserve < 1),
            ("tau_training", 0 <= self.tau_training < inf),
            ("aim", 0 < self.aim <= 1),
            ("account_s", self.account_s > 0),
            ("company", 0 <= self.company <= 1),
            ("tau_function", self.tau_function > 0),
            ("late_s", 0 <= self.late_s < inf),
            ("ahead_s", 0 <= self.ahead_s <= 0.1),
            ("guard", 0 <= self.guard < inf),
            ("fast_from", self.fast_from >= 0),
            ("load_hi", 0 < self.load_lo <= self.load_hi <= 1),
            ("hold_s", self.hold_s >= 0),
            ("d_least", self.d_least >= 1),
            ("d_share", 0 <= self.d_share <= 1),
            ("impact", len(self.impact) == 3 and all(weight >= 0 and isfinite(weight) for weight in self.impact)),
            ("ageing_per_s", 0 <= self.ageing_per_s < inf),
            ("batch_share", 0 < self.batch_share <= 1),
            ("recorded", self.recorded >= 1),
        ):
            if not good:
                raise UnknownPolicy(f"{name}: {getattr(self, name)!r} is out of range")


_SMORE: Final = Knobs()
_PLAIN: Final = replace(
    _SMORE,
    sm_rule=SmRule.NONE,
    budget_rule=BudgetRule.NONE,
    accept=False,
    protect_inflight=False,
    fast=False,
)

#: Baselines whose invocations are all executed, as the paper says of Random, wait so long past their deadlines where
#: nothing takes them. Less than a simulated run goes on after its last deadline, so that everything ends.
EXECUTED_S: Final = 50.0
#: Budgets in per cent for which the product and Random within its budget have names: the points of their curves of
#: deadlines met against training lost.
BUDGETS: Final = (2, 5, 10, 20)

_PRODUCT: Final = replace(
    _SMORE,
    name="smore-product",
    order=Order.SHARES,
    sm_rule=SmRule.NONE,
    budget_rule=BudgetRule.BUCKET,
    aim=0.8,
    account_s=2.0,
    company=0.5,
    warm_first=True,
    guard=0.05,
    memory_reserve=0.0,
    fast_from=512,
    classes=ClassRule.BOUND,
)
_RANDOM: Final = replace(_PLAIN, name="random", order=Order.ARRIVAL, choice=Choice.RANDOM)
_EDF_UTIL: Final = replace(
    _PLAIN,
    name="edf-util",
    order=Order.DEADLINE,
    choice=Choice.LEAST_UTILISED,
    sm_rule=SmRule.TRAINING,
    sm_cap=0.95,
)
_EDF_UTIL_SPREAD: Final = replace(_EDF_UTIL, name="edf-util-spread", choice=Choice.RANDOM)


#: The product in all but the order and the choice: what these are worth.
_RANDOM_BUDGET: Final = replace(_PRODUCT, name="random-budget", order=Order.ARRIVAL, choice=Choice.RANDOM)


def _all_executed(knobs: Knobs) -> Knobs:
    return replace(knobs, name=f"{knobs.name}-all", late_s=EXECUTED_S)


#: Named settings. Those named after the paper are given its predictor, a forest, where one is simulated
#: (lab/simulation/policies.py); ``smore-ours`` is the same rule with the product's predictor. A counter of busy
#: time, which is all that a CPU partition and most GPUs have, reads 100 % where SMs are free, so the product does not
#: refuse by it; it rests on predicted degradation. ``-b<n>``: with a budget of n per cent for trainings that name none;
#: ``random-budget``: the product's account, admission and closed loop, by arrival and on any GPU instance that passes.
#: Of EDF-util the paper leaves open what becomes of late invocations and which of the GPU instances that pass it takes;
#: of Random it says that all are executed. ``-all`` executes late ones, the others drop what cannot be in time;
#: ``-spread`` takes any of those that pass at random, the other the least utilised by its counter. ``classless``, ``tier``
#: and ``temporal``: the product with another rule for bulk work.
PRESETS: Final[Mapping[str, Knobs]] = {
    knobs.name: knobs
    for knobs in (
        _SMORE,
        replace(_SMORE, name="smore-ours"),
        replace(_SMORE, name="smore-strict10", tau_function=0.10),
        replace(_SMORE, name="smore-no-fast", fast=False),
        _PRODUCT,
        *(
            replace(knobs, name=f"{knobs.name}-b{budget}", tau_training=budget / 100)
            for knobs in (_PRODUCT, _RANDOM_BUDGET)
            for budget in BUDGETS
        ),
        *(
            replace(_PRODUCT, name=name, classes=rule)
            for name, rule in (
                ("classless", ClassRule.NONE),
                ("tier", ClassRule.TIER),
                ("temporal", ClassRule.TEMPORAL),
            )
        ),
        replace(_SMORE, name="elasticflow", order=Order.DEADLINE, fast=False),
        *(made for knobs in (_RANDOM, _EDF_UTIL, _EDF_UTIL_SPREAD) for made in (knobs, _all_executed(knobs))),
        replace(_EDF_UTIL, name="edf-util-total", sm_rule=SmRule.TOTAL),
        replace(_PLAIN, name="fifo", order=Order.ARRIVAL),
        replace(_PLAIN, name="exclusive", order=Order.ARRIVAL, beside_training=False),
    )
}


def preset(name: str, **changed: Any) -> Knobs:
    """
    A named setting with some knobs changed; ``module:Class`` or ``FILE.py:Class``: the product with a new placement
    rule of that class (smore/domain/placement_rule.py). Raises UnknownPolicy, which names what there is.
    """
    setting, _, rest = name.partition(":")
    if not rest and not name.endswith(".py"):
        return choose(PRESETS, name, changed)
    if setting in PRESETS:
        raise UnknownPolicy(f"{rest!r} is not of the form knob=value")
    try:
        own = replace(_PRODUCT, name=name, rule=load_rule(name, METHODS, len(METHODS)))
    except BadRule as error:
        raise UnknownPolicy(str(error)) from error
    return choose({name: own}, name, changed)
