"""A comparison of policies as tables in a terminal."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lab.research.compare.by_world import errors_in_words
from lab.research.compare.claims import RULE, JudgedClaim
from lab.research.compare.comparison import BOUND, Comparison, Plan, alike_in_words, exceeded
from lab.research.compare.measures import (
    CUT_OFF,
    MEASURES,
    few_seeds,
    interval_of,
    undefined_policies,
    why_undefined,
)
from lab.simulation.metrics import Interval

#: Metrics of each configuration in the table.
_SHOWN_EACH: Final = ("dsr", "dsr_admitted", "train_loss")
#: Width of a column.
_CELL: Final = 25


def show(plan: Plan, compared: Comparison, intervals: Mapping[str, Interval]) -> None:
    """Tables and claims on standard output."""
    undefined = compared.undefined()
    seeds = len(plan.seeds)
    print(
        f"{plan.preset}: {_counted(seeds, 'seed')}, {_counted(len(compared.configurations), 'configuration')}; per cent [95 % interval];"
        " -: undefined"
    )
    if words := plan.trace_in_words():
        print(words)
    wide = max(16, *(len(policy) + 2 for policy in compared.policies))

    def cell(name: str, policy: str) -> str:
        value = intervals[f"{name}.{policy}"]
        bounds = f" [{100 * value.low:.2f}, {100 * value.high:.2f}]" if math.isfinite(value.low) else ""
        return _percent(value.mean, 0, 2) + bounds

    show_table(list(MEASURES), compared.policies, cell)
    print(f"  {CUT_OFF}")
    if words := few_seeds(seeds):
        print(f"  {words}")
    if words := alike_in_words(compared.same()):
        print(f"  {words}")
    for words in (*errors_in_words(plan, compared), *exceeded(plan, compared)):
        print(f"  {words}")
    for name, measure in MEASURES.items():
        words = undefined_policies(name, {policy: undefined[f"{name}.{policy}"] for policy in compared.policies}, seeds)
        if words:
            print(f"  {measure.heading} is undefined: {words}")
    if len(compared.configurations) > 1:
        for name in _SHOWN_EACH:
            column = max((8, *(len(key) + 2 for key in compared.configurations)))
            print(f"{name:{wide}}" + "".join(f"{key:>{column}}" for key in compared.configurations))
            for policy in compared.policies:
                means = [interval_of(name, by[policy][name]).mean for by in compared.configurations.values()]
                print(f"{policy:{wide}}" + "".join(_percent(mean, column, 2) for mean in means))
    print(f"{'instances loaded':{wide}}{'at start':>10}{'mean':>10}   on a GPU instance")
    for policy in compared.policies:
        counts = [intervals[f"{name}.{policy}"].mean for name in ("loaded_at_start", "loaded")]
        print(f"{policy:{wide}}" + "".join(f"{count:10.2f}" for count in counts))
    if compared.bound:
        print(f"{'offline bound':{wide}}{100 * intervals[f'dsr.{BOUND}'].mean:8.2f}")
    judged = compared.judged()
    if judged:
        print(f"{compared.policies[0]} compared with each other policy: points better, paired by seed, 95 % interval:")
    for claimed in judged:
        worlds = (
            f"; sign holds in {100 * claimed.worlds:.0f} % of {plan.worlds} worlds, {100 * claimed.calm:+.2f} without"
            " interference"
            if plan.worlds
            else ""
        )
        numbers = _advantage(claimed, undefined[f"advantage.{claimed.claim.name}"], seeds)
        print(f"  {claimed.verdict:15} {claimed.claim}: {numbers}{worlds}")
    if judged:
        print(f"  {RULE}")
    functions = [
        name.removeprefix("admission.")
        for name in next(iter(compared.values.values()))
        if name.startswith("admission.")
    ]
    narrow = max((8, *(len(name) + 2 for name in functions)))
    print(f"{'admission by':{wide}}" + "".join(f"{name:>{narrow}}" for name in functions))
    for policy in compared.policies:
        shares = (intervals[f"admission.{name}.{policy}"].mean for name in functions)
        print(f"{policy:{wide}}" + "".join(_percent(share, narrow, 1) for share in shares))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def show_table(measures: Sequence[str], policies: Sequence[str], cell: Callable[[str, str], str]) -> None:
    """A row for each policy, a column for each measure: in blocks, one below the other, that fit the terminal."""
    wide = max(16, *(len(policy) + 2 for policy in policies))
    fitting = max(1, (shutil.get_terminal_size().columns - wide) // _CELL)
    for start in range(0, len(measures), fitting):
        block = measures[start : start + fitting]
        print(f"{'':{wide}}" + "".join(f"{name:>{_CELL}}" for name in block))
        for policy in policies:
            print(f"{policy:{wide}}" + "".join(f"{cell(name, policy):>{_CELL}}" for name in block))


def _percent(share: float, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if math.isnan(share) else f"{100 * share:{width}.{digits}f}"


def _advantage(claimed: JudgedClaim, undefined: int, seeds: int) -> str:
    """The paired difference in points with its interval; why there is none, if it is undefined."""
    advantage = claimed.advantage
    if math.isnan(advantage.mean):
        return f"undefined, {why_undefined(claimed.claim.metric, undefined, seeds)}"
    if claimed.equal:
        return "equal in every seed"
    bounds = f"{100 * advantage.low:+.2f}, {100 * advantage.high:+.2f}" if seeds > 1 else "one seed"
    return f"{100 * advantage.mean:+.2f} [{bounds}]"
