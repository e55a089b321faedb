"""Where trainings lost more than a policy's limit on their loss, and why: computed from its knobs and the runs."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from lab.research.compare.policy_words import knobs_of
from lab.simulation.world import World
from scheduler.policy.knobs import BudgetRule, Knobs

#: Preset whose runs are long enough for a limit on what is lost over time.
LONG_ENOUGH: Final = "budget"


def exceeded(
    worlds: Mapping[str, World], configurations: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
) -> list[str]:
    """
    A sentence for each configuration in which a policy's trainings lost more on average than it allows.

    ``configurations``: name → policy → metric → one value per seed.
    """
    return [
        f"{name + ': ' if len(configurations) > 1 else ''}{policy}: {words}"
        for name, by_policy in configurations.items()
        for policy, values in by_policy.items()
        if (words := _excess(policy, worlds[name], _mean(values["train_loss"]), _mean(values["simulated_s"])))
    ]


def _excess(policy: str, world: World, loss: float, seconds: float) -> str:
    """``loss``: iterations that did not happen, a fraction; ``seconds``: of a run. '' where the limit was kept."""
    knobs = knobs_of(policy)
    if knobs is None or knobs.budget_rule is BudgetRule.NONE or not knobs.beside_training:
        return ""
    budget = max((_budget(gpu.budget, knobs) for gpu in world.gpus if gpu.training is not None), default=math.inf)
    # A budget is a share of the time that an iteration takes alone; a loss is a share of the iterations done alone.
    limit = budget / (1.0 + budget) if math.isfinite(budget) else 1.0
    if not loss > limit:
        return ""
    said = (
        f"trainings lost {100 * loss:.1f} % of their iterations, more than the limit of {100 * limit:.1f} %"
        f" (iterations {100 * budget:g} % slower)"
    )
    if knobs.budget_rule is BudgetRule.INSTANT:
        return f"{said}. It limits what is predicted when a batch is placed, and the true loss was higher."
    at_once = knobs.aim * limit * knobs.account_s
    allowed = at_once / seconds + knobs.aim * limit
    if loss > allowed:
        return (
            f"{said}. Its token bucket allows {100 * allowed:.1f} % in runs of {seconds:.3g} s; beyond that batches cost more"
            " than was predicted, or more than a full bucket holds."
        )
    return (
        f"{said}. Runs of {seconds:.3g} s are too short for it: the token bucket is full at the start, with tokens of"
        f" {knobs.account_s:g} s ({1000 * at_once:.0f} ms of training time), which functions may use up at once"
        f" ({100 * at_once / seconds:.0f} % of such a run). Compare by a longer trace, such as that of the preset {LONG_ENOUGH}."
    )


def _budget(own: float | None, knobs: Knobs) -> float:
    return knobs.tau_training if own is None else own


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
