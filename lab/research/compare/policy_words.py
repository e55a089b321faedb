"""What policies for functions are, in words for whoever reads a comparison: computed from their knobs."""

from math import isfinite
from typing import Final

from lab.simulation.policies import OF_THE_PAPER, chosen
from lab.simulation.spelt import parse
from scheduler.policy.knobs import PRESETS, BudgetRule, Choice, ClassRule, Knobs, Order, SmRule
from scheduler.policy.setting import UnknownPolicy, choose

_ORDER: Final = {
    Order.PRIORITY: "highest priority first (Eq. 5 of the paper)",
    Order.SHARES: "least run time so far first, by weight",
    Order.DEADLINE: "earliest deadline first",
    Order.ARRIVAL: "by arrival",
}
_CHOICE: Final = {
    Choice.LEAST_IMPACT: "on the GPU instance of least predicted impact",
    Choice.LEAST_UTILISED: "on the least utilised GPU instance",
    Choice.RANDOM: "on any GPU instance",
}
_CLASSES: Final = {
    ClassRule.BOUND: ("runs of class batch bounded by what others can wait",),
    ClassRule.TIER: ("class batch after all else",),
    ClassRule.TEMPORAL: ("class batch only while nothing else waits or runs",),
    ClassRule.NONE: (),
}


def in_words(policy: str) -> str:
    """Of a policy with its changed knobs (``edf-util:sm_cap=0.9``); '' of one that this version does not have."""
    knobs = knobs_of(policy)
    if knobs is None:
        return ""
    own = _own_rule(parse(policy)[0])
    order = (
        "order and GPU instance by a placement rule of one's own" if own else f"{_ORDER[knobs.order]}, {_where(knobs)}"
    )
    told = ("told by the paper's forest",) if parse(policy)[0] in OF_THE_PAPER else ()
    return "; ".join((order, *_checks(knobs), *_CLASSES[knobs.classes], _late(knobs), *told)) + "."


def knobs_of(policy: str) -> Knobs | None:
    """The knobs of a policy, without loading a placement rule of one's own; None: this version has no such policy."""
    try:
        name, changed, _ = chosen(policy)
        return choose(PRESETS, "smore-product" if _own_rule(name) else name, changed)
    except UnknownPolicy:
        return None


def _own_rule(name: str) -> bool:
    return ":" in name or name.endswith(".py")


def _where(knobs: Knobs) -> str:
    where = _CHOICE[knobs.choice]
    sampled = knobs.fast and knobs.choice is not Choice.RANDOM
    return f"{where}; under high load the first of a sample that will do" if sampled else where


def _checks(knobs: Knobs) -> list[str]:
    """What a GPU instance has to pass, beside memory and slots, which every policy checks."""
    if not knobs.beside_training:
        return ["never beside a training"]
    checks = []
    if knobs.sm_rule is not SmRule.NONE:
        used = "the training's SMs" if knobs.sm_rule is SmRule.TRAINING else "all SMs in use"
        checks.append(f"{used} and the function's own at most {100 * knobs.sm_cap:g} %")
    lost = f"{100 * knobs.tau_training:g} %"
    match knobs.budget_rule:
        case BudgetRule.INSTANT:
            checks.append(f"a training's predicted degradation at most {lost} at every moment")
        case BudgetRule.BUCKET:
            checks.append(f"what a training loses over time at most {lost}, and {knobs.account_s:g} s of that at once")
        case BudgetRule.NONE:
            checks.append("no bound on what trainings lose")
    if isfinite(knobs.tau_function):
        checks.append(f"a function's predicted degradation at most {100 * knobs.tau_function:g} %")
    checks.append("predicted ends before deadlines" if knobs.accept else "predicted ends are not looked at")
    return checks


def _late(knobs: Knobs) -> str:
    return "late invocations are executed" if knobs.late_s else "what cannot be in time any more is dropped"
