"""
Settings of the queue of trainings compared: ``python -m lab.research.compare compare --preset jobs-muri``.

Every setting meets the same jobs, errors and failures of a seed. Differences are paired by seed, with 95 % intervals
(Student): ``advantage.<metric>.<other>`` is by how much the first setting is better, in the metric's unit;
``reduction.<metric>.<a>.<b>`` the part by which a's is below b's; where a preset has several interference models, each seed
counts once under each. ``ratio.<a>.<b>.<truth>`` is the mean completion over seeds of a over that of b under one of them,
and ``worst_ratio.<a>.<b>`` the largest of these. Each stands in the figures with ``.low`` and ``.high``.
"""

import csv
import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any, Final

from lab.research.compare.claims import TIE, ClaimVerdict
from lab.research.compare.comparison import alike, alike_in_words
from lab.research.compare.measures import few_seeds
from lab.research.compare.terminal import show_table
from lab.simulation.jobs.metrics import MEANINGS, MORE, SHARES, figures, told_over_length
from lab.simulation.jobs.simulator import simulate_jobs
from lab.simulation.jobs.traces import jobs
from lab.simulation.jobs.world import load_job_preset
from lab.simulation.metrics import Interval, interval
from lab.simulation.spelt import parse
from lab.simulation.world import bad
from scheduler.policy.jobs.knobs import job_setting

#: Metrics of which reductions are said for every two settings.
REDUCED: Final = ("jct", "p95", "wait")
#: Columns of the table.
SHOWN: Final = ("jct", "jct_median", "p95", "jct_p99", "wait", "makespan", "slowdown_max", "gpu_share", "preemptions")
#: Those of them that there are only where jobs have deadlines, or ask for promises.
PROMISED: Final = ("qos", "told_end_90", "promised", "kept", "told_over_length", "others_jct")
#: Of these there is a value for each job, not for each run: the figure is the median of all jobs of all runs.
OF_JOBS: Final = ("told_over_length",)
#: How verdicts are reached, and why hours and per cent may seem to disagree, for whoever reads them.
RULE: Final = (
    f"“{ClaimVerdict.HELD}”: the whole 95 % interval of the paired difference is above 0; “{ClaimVerdict.FAILED}”: all of it"
    f" is below; else “{ClaimVerdict.UNKNOWN}”."
)
PER_CENT: Final = (
    "Per cent are the mean over seeds of each seed's own reduction; the hours divided by a mean completion give another"
    " number, in which seeds with long completions count more, and which can have the other sign."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """
    ``lengths``: deviation of the logarithm of what owners say; ``noise``: of what is predicted of pairs; ``truths``: the
    interference models, under each of which all runs are made; ``trace``: fields of the preset's trace that are changed.
    ``shared``: whether owners allow others beside their jobs.
    """

    preset: str
    policies: tuple[str, ...]
    seeds: int
    truths: tuple[str, ...]
    lengths: float
    noise: float
    trace: Mapping[str, object]
    among: tuple[Path, ...]
    shared: bool


#: Setting → metric → one value for each truth and seed, the seeds of the first truth first; :data:`OF_JOBS` have more.
Values = Mapping[str, Mapping[str, Sequence[float]]]


def plan(
    preset: str,
    named: str,
    seeds: int,
    truth: str,
    lengths: float,
    noise: float,
    among: Sequence[Path],
    trace: Mapping[str, object] = {},
) -> JobPlan:
    """
    Of a command's options; ``named``: settings with commas between; ``truth``: another one than the preset's, '' = its
    own; ``trace``: fields of the preset's trace to change. Raises UnknownPolicy or BadWorld.
    """
    loaded = load_job_preset(preset, truth=truth, among=among)
    policies = tuple(filter(None, named.split(","))) or loaded.policies
    for policy in policies:
        setting, knobs = parse(policy)
        job_setting(setting, **knobs)
    if len(set(policies)) < len(policies):
        raise bad("policies", "each once is expected")
    if not 0 <= lengths < 10:
        raise bad("lengths", f"a number in 0..10 is expected, not {lengths:g}")
    if not 0 <= noise < 10:
        raise bad("predictor", f"noise in 0..10 is expected, not {noise:g}")
    return JobPlan(
        preset=preset,
        policies=policies,
        seeds=seeds,
        truths=loaded.truths,
        lengths=lengths,
        noise=noise,
        trace=trace,
        among=tuple(among),
        shared=loaded.world.share > 0,
    )


def run_seed(plan: JobPlan, place: int) -> tuple[int, dict[str, dict[str, list[float]]], int]:
    """(place among truths and seeds, values of figures by setting, jobs simulated)."""
    truth, seed = plan.truths[place // plan.seeds], place % plan.seeds
    preset = load_job_preset(plan.preset, truth=truth, lengths=plan.lengths, noise=plan.noise, among=plan.among)
    # A file of one's own is read as it is, without the fields of the preset's trace.
    document = plan.trace if plan.trace.get("kind") == "csv" else {**preset.trace, **plan.trace}
    trace = jobs(document, preset.world.size, seed, plan.among)
    by_policy = {}
    for policy in plan.policies:
        setting, knobs = parse(policy)
        result = simulate_jobs(preset.world, trace, job_setting(setting, **knobs), seed=seed)
        by_policy[policy] = {name: [value] for name, value in figures(result).items()}
        if any(result.asked):
            by_policy[policy]["told_over_length"] = told_over_length(result)
    return place, by_policy, len(trace) * len(plan.policies)


def values(plan: JobPlan, workers: int, progress: Callable[[int, int, int], None]) -> Values:
    """All runs. ``progress(done, total, jobs)`` is called after each seed."""
    rows: dict[int, dict[str, dict[str, list[float]]]] = {}
    simulated, total = 0, plan.seeds * len(plan.truths)
    for place, by_policy, count in _each(plan, min(workers, total)):
        rows[place] = by_policy
        simulated += count
        progress(len(rows), total, simulated)
    names = list(rows[0][plan.policies[0]])
    return {
        policy: {name: [value for place in range(total) for value in rows[place][policy][name]] for name in names}
        for policy in plan.policies
    }


def _each(plan: JobPlan, workers: int) -> Iterator[tuple[int, dict[str, dict[str, list[float]]], int]]:
    if workers <= 1:
        yield from map(partial(run_seed, plan), range(plan.seeds * len(plan.truths)))
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(partial(run_seed, plan), range(plan.seeds * len(plan.truths)))


def intervals(plan: JobPlan, by: Values) -> dict[str, Interval]:
    """
    Means by setting, advantages of the first over the others, and reductions between every two. A seed counts once: what
    it gives under several truths is averaged first, because these runs share their jobs. Intervals are cut off at what a
    figure can be.
    """

    def over_seeds(series: Sequence[float]) -> Interval:
        truths = len(plan.truths)
        return interval([sum(series[seed :: plan.seeds]) / truths for seed in range(plan.seeds)])

    def over_jobs(series: Sequence[float]) -> Interval:
        return Interval(mean=median(series) if series else math.nan, low=math.nan, high=math.nan)

    found = {
        f"{name}.{policy}": over_jobs(series)
        if name in OF_JOBS
        else over_seeds(series).within(0.0, 1.0 if name in SHARES else math.inf)
        for policy, of in by.items()
        for name, series in of.items()
    }
    first, *others = plan.policies
    for other in others:
        for name, series in by[other].items():
            if name in OF_JOBS:
                continue
            sign = -1.0 if name in MORE else 1.0
            differences = [sign * (theirs - ours) for ours, theirs in zip(by[first][name], series, strict=True)]
            found[f"advantage.{name}.{other}"] = over_seeds(differences)
    for name in REDUCED:
        for ours in plan.policies:
            for theirs in plan.policies:
                if ours != theirs:
                    parts = [
                        1.0 - mine / other if other > 0 else 0.0
                        for mine, other in zip(by[ours][name], by[theirs][name], strict=True)
                    ]
                    found[f"reduction.{name}.{ours}.{theirs}"] = over_seeds(parts).within(-math.inf, 1.0)
    return found | _ratios(plan, by)


def _ratios(plan: JobPlan, by: Values) -> dict[str, Interval]:
    """Mean completions over one another, under each truth, and the worst of them; nothing where there is one truth."""
    found: dict[str, Interval] = {}
    if len(plan.truths) < 2:
        return found
    for ours, theirs in permutations(plan.policies, 2):
        ratios = {}
        for number, truth in enumerate(plan.truths):
            of = slice(number * plan.seeds, (number + 1) * plan.seeds)
            ratios[truth] = _ratio(by[ours]["jct"][of], by[theirs]["jct"][of])
        found |= {f"ratio.{ours}.{theirs}.{truth}": one for truth, one in ratios.items()}
        found[f"worst_ratio.{ours}.{theirs}"] = max(ratios.values(), key=lambda one: one.mean)
    return found


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Of two means, with the interval of its linear form: deviations of a seed are of both together."""
    ratio, mean = sum(ours) / sum(theirs), sum(theirs) / len(theirs)
    linear = [ratio + (mine - ratio * other) / mean for mine, other in zip(ours, theirs, strict=True)]
    return interval(linear).within(0.0, math.inf)


def judged(plan: JobPlan, found: Mapping[str, Interval]) -> dict[str, tuple[str, ClaimVerdict]]:
    """Of each other setting: the claim that the first one's mean completion is lower, and whether it held."""
    first, *others = plan.policies
    claims = {}
    for other in others:
        advantage = found[f"advantage.jct.{other}"]
        verdict = ClaimVerdict.UNKNOWN
        if advantage.low > TIE:
            verdict = ClaimVerdict.HELD
        elif advantage.high < -TIE:
            verdict = ClaimVerdict.FAILED
        claims[f"jct.{other}"] = f"mean completion of {first} lower than {other}'s", verdict
    return claims


def same_in_words(plan: JobPlan, by: Values) -> str:
    """Which settings do not differ in any figure of any seed, and where nobody shares that this is so; '' = neither."""
    parts = [alike_in_words(alike(by))]
    if not plan.shared:
        parts.append(
            "Nobody shares in this preset: no owner allows another job beside his own (share 0), so what settings do about"
            " sharing changes nothing. jobs-small-shared is the smallest preset in which jobs share."
        )
    return " ".join(filter(None, parts))


def document(plan: JobPlan, by: Values, found: Mapping[str, Interval]) -> dict[str, Any]:
    """What the JSON line says."""
    named: dict[str, float] = {}
    for name, one in found.items():
        named[name] = one.mean
        if name.startswith(("advantage.", "reduction.", "ratio.", "worst_ratio.")):
            named |= {f"{name}.low": one.low, f"{name}.high": one.high}
    claims = judged(plan, found)
    holds = {ClaimVerdict.HELD: 1.0, ClaimVerdict.FAILED: 0.0, ClaimVerdict.UNKNOWN: float("nan")}
    named |= {f"holds.{name}": holds[verdict] for name, (_, verdict) in claims.items()}
    return {
        "figures": named,
        "intervals": {name: {"low": one.low, "high": one.high} for name, one in found.items()},
        "claims": {name: f"{words}: {verdict}" for name, (words, verdict) in claims.items()},
        "same": alike(by),
        "seeds": plan.seeds,
        "truths": list(plan.truths),
        "device": "simulated",
    }


def show(plan: JobPlan, by: Values, found: Mapping[str, Interval]) -> None:
    """The table and the claims, for people."""
    print(
        f"{plan.preset} ({', '.join(plan.truths)}): {plan.seeds} seeds; mean [95 % interval over seeds, cut off at 0]"
    )
    shown = [*SHOWN, *(name for name in PROMISED if f"{name}.{plan.policies[0]}" in found)]
    for name in shown:
        print(f"  {name:16} {MEANINGS[name]}")
    show_table(shown, plan.policies, lambda name, policy: _cell(found[f"{name}.{policy}"]))
    for words in filter(None, (same_in_words(plan, by), few_seeds(plan.seeds))):
        print(f"  {words}")
    if len(plan.policies) > 1:
        print(f"{plan.policies[0]} against the others, hours of mean completion, paired by seed:")
    for name, (words, verdict) in judged(plan, found).items():
        one = found[f"advantage.{name}"]
        if one.low == one.high == 0.0:
            print(f"  {verdict:15} {words}: equal in every seed")
            continue
        part = found[f"reduction.jct.{plan.policies[0]}.{name.removeprefix('jct.')}"]
        print(
            f"  {verdict:15} {words}: {one.mean:+.2f} [{one.low:+.2f}, {one.high:+.2f}], {100 * part.mean:.0f} %"
            f" [{100 * part.low:.0f}, {100 * part.high:.0f}]"
        )
    if len(plan.policies) > 1:
        print(f"  {RULE}")
        print(f"  {PER_CENT}")
    if len(plan.truths) > 1:
        _show_ratios(plan, found)


def _show_ratios(plan: JobPlan, found: Mapping[str, Interval]) -> None:
    first, *others = plan.policies
    print(f"mean completion of {first} over the others':")
    print(f"  {'':14}" + "".join(f"{truth:>15}" for truth in plan.truths))
    for other in others:
        print(
            f"  {other:14}" + "".join(f"{found[f'ratio.{first}.{other}.{truth}'].mean:15.3f}" for truth in plan.truths)
        )


def _cell(one: Interval) -> str:
    bounds = f" [{one.low:.2f}, {one.high:.2f}]" if math.isfinite(one.low) else ""
    return f"{one.mean:.2f}{bounds}"


def write_rows(plan: JobPlan, by: Values, folder: Path) -> Path:
    """``rows.csv``: a line for each run."""
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [name for name in by[plan.policies[0]] if name not in OF_JOBS]
        writer.writerow(["truth", "seed", "policy", *names])
        for number, truth in enumerate(plan.truths):
            for seed in range(plan.seeds):
                for policy in plan.policies:
                    place = number * plan.seeds + seed
                    writer.writerow([truth, seed, policy, *(repr(by[policy][name][place]) for name in names)])
    return path
