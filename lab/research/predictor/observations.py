"""Tests the paper's observations I to IV (section II-B) on measured rows: each has rules with thresholds, and a verdict."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from lab.measure.plan import LADDERS
from lab.research.predictor.published import DIRECTION_TITLES, PHASES, counted, ordered, percent, title
from ml.predict.samples import DIRECTIONS, METRICS, Direction, sides
from ml.rows import Colocation, PlaceProfile, Role, Solo, Workload, degradation

# Thresholds of the observations' rules.

#: Least spread between models, and largest spread between the batches of one model, as shares (the paper: "within 20
#: %").
BAND: Final = 0.20
#: The share that counts as "generally" and "mostly".
MOST: Final = 0.75
#: Least ratio of the deviation over partners to the deviation over repeats.
NOISE_FACTOR: Final = 2.0
#: Skill from which a degradation counts as predictable: the explained share of the variance in log space.
SKILL: Final = 0.5
#: Number of warm runs from which a cold start is significant, and the paper's longest deadline in warm P99 (section
#: VIII-A).
COLD_RATIO: Final = 10.0
LONGEST_DEADLINE: Final = 4.0

# Least data for a verdict. These minima were set after early looks at part of the data, the thresholds before. They are
# frozen: later rows do not change them.

#: Models (observations I and IV); in I also models and roles with two or more batches.
LEAST_MODELS: Final = 3
#: Degrees of freedom of either deviation (II).
LEAST_FREEDOM: Final = 10
#: Steps of the ladders, and sets of members (III).
LEAST_STEPS: Final = 4
LEAST_SEVERAL: Final = 20


@dataclass(frozen=True, slots=True)
class Part:
    """
    One condition of an observation: its rule in words, whether it holds (None = not enough data), and the numbers.
    """

    rule: str
    held: bool | None
    numbers: str


@dataclass(frozen=True, slots=True)
class Observation:
    """
    One of the paper's four observations, as a claim with conditions.

    It holds if all conditions hold, fails if one of them fails, and is unknown otherwise.
    """

    number: str
    claim: str
    parts: tuple[Part, ...]
    details: tuple[str, ...] = ()

    @property
    def held(self) -> bool | None:
        answers = {part.held for part in self.parts}
        return False if False in answers else None if None in answers else True


def as_described(profile: PlaceProfile) -> PlaceProfile:
    """Without trainings that waited for their input for another share than their model card says, and rows with one."""
    return replace(
        profile,
        solo={workload: row for workload, row in profile.solo.items() if workload.wait is None},
        colocations=[row for row in profile.colocations if all(one.workload.wait is None for one in row.members)],
    )


def partition(profile: PlaceProfile) -> bool:
    """Whether the device is a CPU partition, which stands in for a GPU."""
    return profile.place.device.startswith("CPU partition")


def waits(profile: PlaceProfile) -> bool:
    """Whether trainings waited for their input for a configured time."""
    return any(solo.input_wait_s > 0 for solo in profile.solo.values())


def utilisation(profile: PlaceProfile, role: Role) -> dict[str, dict[int, float]]:
    """Share of the device's time by model and batch, alone; without workloads that have no counter."""
    by_model: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for workload, solo in sorted(profile.solo.items()):
        if workload.role == role and solo.utilisation is not None:
            by_model[workload.model][workload.batch] = solo.utilisation
    return dict(by_model)


def observation_i(profile: PlaceProfile) -> Observation:
    """Models differ in utilisation, one model stays within a band."""
    roles: tuple[Role, ...] = ("training", "function")
    means: dict[Role, dict[str, float]] = {}
    bands: list[float] = []
    for role in roles:
        by_model = utilisation(profile, role)
        means[role] = {model: statistics.fmean(batches.values()) for model, batches in by_model.items()}
        bands += [max(batches.values()) - min(batches.values()) for batches in by_model.values() if len(batches) > 1]
    spreads = {
        role: max(of_role.values()) - min(of_role.values())
        for role, of_role in means.items()
        if len(of_role) >= LEAST_MODELS
    }
    words = "; ".join(
        f"{role}: {percent(min(means[role].values()))} to {percent(max(means[role].values()))}" for role in spreads
    )
    words = words or f"fewer than {LEAST_MODELS} models with a counted utilisation in either role"
    details = []
    differ = any(spread >= BAND for spread in spreads.values()) if spreads else None
    if partition(profile) or waits(profile):
        differ = None
        words = f"not a finding, because it was set ({words})" if spreads else words
        details.append(
            "The utilisation of a training here follows from `ModelCard.input_wait`, which was set and not found: the"
            " wait was worked out anew for each batch from that batch's processor time. So neither the levels of figure"
            " 1 nor their order can be confirmed here; a band over the batches only says that the setting is met."
        )
    if partition(profile):
        details.append(
            "A function that runs again and again on a CPU partition takes all of its time by construction, whatever"
            " the model: its level and its band say nothing about GPUs."
        )
    narrow = [band for band in bands if band <= BAND]
    band_words = (
        f"{len(narrow)} of {len(bands)} models and roles; the widest band is {100 * max(bands):.0f} points"
        if bands
        else "none"
    )
    return Observation(
        "I",
        "Models differ in how much of the device they use, while one model stays within a band.",
        (
            Part(
                f"In at least one role with {LEAST_MODELS} or more models, the mean utilisation of the highest model is"
                f" at least {100 * BAND:.0f} points above that of the lowest.",
                differ,
                words,
            ),
            Part(
                f"Of the models and roles measured at two or more batches (at least {LEAST_MODELS}), {percent(MOST)} or"
                f" more lie within {100 * BAND:.0f} points over their batches. (A row holds one mean over its run: the"
                " band is over batches, not time.)",
                len(narrow) >= MOST * len(bands) if len(bands) >= LEAST_MODELS else None,
                band_words,
            ),
        ),
        tuple(details),
    )


def cells(profile: PlaceProfile, direction: Direction) -> dict[tuple[Workload, Workload], list[float]]:
    """
    Measured degradations by (victim, aggressor), one for each repeat.

    Both sides of a row of a function beside itself are one measurement, their mean.
    """
    by_pair: defaultdict[tuple[Workload, Workload], list[float]] = defaultdict(list)
    for row in profile.colocations:
        of_row: defaultdict[tuple[Workload, Workload], list[float]] = defaultdict(list)
        for victim, aggressor in sides(row, direction):
            of_row[victim.workload, aggressor.workload].append(degradation(victim, METRICS[direction]))
        for pair, values in of_row.items():
            by_pair[pair].append(statistics.fmean(values))
    return dict(by_pair)


def by_models(measured: Mapping[tuple[Workload, Workload], Sequence[float]]) -> dict[tuple[str, str], list[float]]:
    """The pairs of batches of each (victim's model, aggressor's model), a pair's repeats averaged."""
    by_model: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for (victim, aggressor), values in measured.items():
        by_model[victim.model, aggressor.model].append(statistics.fmean(values))
    return dict(by_model)


def log1p(value: float) -> float:
    """ln(1 + degradation); negative degradations (noise) count as 0, as in Eq. 2."""
    return math.log1p(max(0.0, value))


@dataclass(frozen=True, slots=True)
class Spread:
    """A deviation in ln(1 + degradation), pooled over groups; ``freedom`` = values less groups. NaN without freedom."""

    deviation: float
    freedom: int


def pooled(groups: Iterable[Sequence[float]]) -> Spread:
    """The deviation of values from the mean of their group."""
    squares, freedom = 0.0, 0
    for group in groups:
        logs = [log1p(value) for value in group]
        mean = statistics.fmean(logs)
        squares += math.fsum((log - mean) ** 2 for log in logs)
        freedom += len(logs) - 1
    return Spread(math.sqrt(squares / freedom) if freedom else math.nan, freedom)


def noise(measured: Mapping[tuple[Workload, Workload], Sequence[float]]) -> Spread:
    """
    The noise floor: the deviation of repeats of one pair, as ``lab.research.predictor.noise.noise_rmsle``. A workload beside itself
    is left out: its value is the mean of two sides, which deviates less.
    """
    return pooled(values for (victim, aggressor), values in measured.items() if victim != aggressor)


def repeated_pairs(measured: Mapping[tuple[Workload, Workload], Sequence[float]]) -> int:
    """How many pairs were measured more than once; the two directions of a pair are one."""
    return len({frozenset(pair) for pair, values in measured.items() if len(values) > 1})


def observation_ii(profile: PlaceProfile) -> Observation:
    """The degradation depends on the function beside the training."""
    parts = []
    details = []
    for direction in DIRECTIONS[:2]:
        measured = cells(profile, direction)
        beside: defaultdict[Workload, list[float]] = defaultdict(list)
        for (victim, aggressor), values in measured.items():
            beside[victim if direction == "training" else aggressor].append(statistics.fmean(values))
        partners, floor = pooled(beside.values()), noise(measured)
        enough = min(partners.freedom, floor.freedom) >= LEAST_FREEDOM
        ratio = f", ratio {partners.deviation / floor.deviation:.1f}" if enough and floor.deviation > 0 else ""
        parts.append(
            Part(
                f"{DIRECTION_TITLES[direction].capitalize()}: beside one training of one batch, the degradation"
                f" deviates over functions and their batches at least {NOISE_FACTOR:g} times as much as over repeats of"
                f" one pair (deviations of log(1 + degradation), pooled, each with {LEAST_FREEDOM} or more degrees of"
                " freedom).",
                partners.deviation >= NOISE_FACTOR * floor.deviation if enough else None,
                f"over functions {_deviation(partners)}, over repeats {_deviation(floor)}{ratio}",
            )
        )
    training, function = (by_models(cells(profile, direction)) for direction in DIRECTIONS[:2])
    published = {
        "deepfm": "0.4 % to 18.4 %",
        "vgg16": "below 10 % for four functions",
        "roberta": "below 10 % for four functions",
    }
    for model, words in published.items():
        means = {other: statistics.fmean(values) for (victim, other), values in training.items() if victim == model}
        if means:
            light = [means[other] for other in ("mobilenet", "deepfm", "roberta", "deepvit") if other in means]
            below = (
                f"; below 10 % beside {sum(mean < 0.1 for mean in light)} of {len(light)} of MobileNet, DeepFM, RoBERTa"
                " and DeepViT"
            )
            details.append(
                f"{title(model)} training beside {counted(len(means), 'function model')}:"
                f" {percent(min(means.values()))} to {percent(max(means.values()))}{below if light else ''} (paper:"
                f" {words})."
            )
    if function:
        rises = [value for values in function.values() for value in values]
        acceptable = sum(value < 1 for value in rises) / len(rises)
        details.append(
            f"The P99 of a function rises by less than 100 % in {percent(acceptable)} of {counted(len(rises), 'pair')}"
            " (paper: about half of the cases acceptable, without a limit; above 100 % unacceptable)."
        )
    return Observation(
        "II", "How much is lost depends on which function runs beside a training.", tuple(parts), tuple(details)
    )


def _deviation(spread: Spread) -> str:
    return f"{spread.deviation:.3f} ({spread.freedom} degrees of freedom)" if spread.freedom else "unknown"


@dataclass(frozen=True, slots=True)
class Step:
    """
    ``k`` equal functions beside a training: degradation of the training, and mean, least and largest degradation of the
    functions' P99.
    """

    k: int
    training: float
    function: float
    function_least: float
    function_most: float


Ladder = tuple[Workload, Workload]


def ladders(profile: PlaceProfile) -> dict[Ladder, list[Step]]:
    """The paper's three combinations by (training, function), each with its numbers of functions in ascending order."""
    rows_by_k: defaultdict[Ladder, defaultdict[int, list[Colocation]]] = defaultdict(lambda: defaultdict(list))
    for row in profile.colocations:
        first, *others = (member.workload for member in row.members)
        if first.role == "training" and len(set(others)) == 1 and (first.model, others[0].model) in LADDERS:
            rows_by_k[first, others[0]][len(others)].append(row)
    steps: dict[Ladder, list[Step]] = {}
    for ladder, by_k in sorted(
        rows_by_k.items(), key=lambda item: (LADDERS.index((item[0][0].model, item[0][1].model)), item[0])
    ):
        if max(by_k) > 1:
            steps[ladder] = [_step(k, by_k[k]) for k in sorted(by_k)]
    return steps


def _step(k: int, rows: Sequence[Colocation]) -> Step:
    functions = [degradation(member, METRICS["function"]) for row in rows for member in row.members[1:]]
    training = statistics.fmean(degradation(row.members[0], METRICS["training"]) for row in rows)
    return Step(k, training, statistics.fmean(functions), min(functions), max(functions))


def observation_iii(profile: PlaceProfile) -> Observation:
    """The degradation by several functions can be predicted."""
    steps_by_ladder = ladders(profile)
    pairs = [(lower, upper) for steps in steps_by_ladder.values() for lower, upper in pairwise(steps)]
    rises = [upper.training > lower.training for lower, upper in pairs] + [
        upper.function > lower.function for lower, upper in pairs
    ]
    several = {direction: several_skill(profile, direction) for direction in DIRECTIONS[:2]}
    parts = [
        Part(
            f"Over the paper's three combinations and both directions, {percent(MOST)} or more of the steps to the next"
            f" larger number of functions raise the degradation (at least {LEAST_STEPS} steps).",
            sum(rises) >= MOST * len(rises) if len(rises) >= LEAST_STEPS else None,
            f"{sum(rises)} of {len(rises)} steps rise",
        )
    ]
    for direction, (skill, rows) in several.items():
        parts.append(
            Part(
                f"The {'training' if direction == 'training' else 'functions'}: where two or more functions run, a"
                " straight line over the sum of the measured pair-wise degradations (Eq."
                f" {3 if direction == 'training' else 4}, all weights one), both as log(1 + degradation) and fitted"
                f" without the members it is asked about, explains {percent(SKILL)} or more of the variance (at least"
                f" {LEAST_SEVERAL} sets of members). A pair of batches that was not measured is replaced by the mean"
                " over the batches of its two models.",
                None if skill is None else skill >= SKILL,
                f"{counted(rows, 'set')} of members with all pairs known"
                + ("" if skill is None else f", {percent(skill)} explained"),
            )
        )
    largest = [
        f"{title(training.model)} training beside {steps[-1].k} x {title(function.model)}: training"
        f" {percent(steps[-1].training)}, functions' P99 {percent(steps[-1].function)}."
        for (training, function), steps in steps_by_ladder.items()
    ]
    return Observation("III", "What several functions at a time cost can be predicted.", tuple(parts), tuple(largest))


def several_skill(profile: PlaceProfile, direction: Direction) -> tuple[float | None, int]:
    """
    The skill of the sum of pair-wise degradations for sets of several workloads (leave one set out), and the number of
    sets.

    The skill is one less the squared error over that of the mean of the other sets, both in ln(1 + degradation); None
    with fewer than :data:`LEAST_SEVERAL` sets, or if all have the same degradation.
    """
    lookup: dict[Direction, _Cells] = {d: _Cells(cells(profile, d)) for d in DIRECTIONS}
    sets: defaultdict[tuple[Workload, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in profile.colocations:
        if row.kind != "several" or row.members[0].workload.role != "training":
            continue
        members = row.members
        names = [member.workload for member in members]
        for position in range(1) if direction == "training" else range(1, len(members)):
            if direction == "training":
                parts = [lookup["training"].of(names[0], other) for other in names[1:]]
            else:
                others = names[1:position] + names[position + 1 :]
                parts = [lookup["function"].of(names[position], names[0])]
                parts += [lookup["functions"].of(names[position], other) for other in others]
            measured_parts = [part for part in parts if part is not None]
            if len(measured_parts) == len(parts):
                actual = degradation(members[position], METRICS[direction])
                sets[names[0], *sorted(names[1:])].append((log1p(math.fsum(measured_parts)), log1p(actual)))
    if len(sets) < LEAST_SEVERAL:
        return None, len(sets)
    error, base = 0.0, 0.0
    for held_out, points in sets.items():
        x, y = np.array([point for members_, others_ in sets.items() if members_ != held_out for point in others_]).T
        slope = float(np.cov(x, y, bias=True)[0, 1] / np.var(x)) if np.var(x) > 0 else 0.0
        for summed, actual in points:
            error += (actual - float(y.mean()) - slope * (summed - float(x.mean()))) ** 2
            base += (actual - float(y.mean())) ** 2
    return (1 - error / base if base > 0 else None), len(sets)


class _Cells:
    """Degradation of a pair: measured, else the mean over the batches of its models, else None."""

    def __init__(self, measured: Mapping[tuple[Workload, Workload], Sequence[float]]) -> None:
        self._measured = {pair: statistics.fmean(values) for pair, values in measured.items()}
        self._models = {models: statistics.fmean(values) for models, values in by_models(measured).items()}

    def of(self, victim: Workload, aggressor: Workload) -> float | None:
        return self._measured.get((victim, aggressor), self._models.get((victim.model, aggressor.model)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """
    A function model at its smallest measured batch; times in seconds.

    ``cold_s`` is the paper's cold start: imports, context and weights, without the first run.
    """

    workload: Workload
    phases: Mapping[str, float]
    warm_p50_s: float
    warm_p99_s: float

    @property
    def cold_s(self) -> float:
        return math.fsum(seconds for phase, seconds in self.phases.items() if phase != "first_run")

    @property
    def ratio(self) -> float:
        """Cold start over the median warm run."""
        return self.cold_s / self.warm_p50_s


def cold_starts(profile: PlaceProfile) -> list[ColdStart]:
    """Cold starts in the order of table I, without models whose start was not timed."""
    smallest: dict[str, Solo] = {}
    for workload, solo in sorted(profile.solo.items()):
        if workload.role == "function" and solo.cold_s:
            smallest.setdefault(workload.model, solo)
    return [
        ColdStart(
            workload=smallest[model].workload,
            phases={phase: smallest[model].cold_s.get(phase, 0.0) for phase in PHASES},
            warm_p50_s=smallest[model].timing.p50,
            warm_p99_s=smallest[model].timing.p99,
        )
        for model in ordered(smallest)
    ]


def observation_iv(profile: PlaceProfile) -> Observation:
    """Cold starts lengthen functions enough to break deadlines."""
    starts = cold_starts(profile)
    long = sum(cold.ratio >= COLD_RATIO for cold in starts)
    late = sum(cold.cold_s > LONGEST_DEADLINE * cold.warm_p99_s for cold in starts)
    enough = len(starts) >= LEAST_MODELS
    ratios = [cold.ratio for cold in starts]
    span = f", {min(ratios):.0f} to {max(ratios):.0f} times" if starts else ""
    return Observation(
        "IV",
        "A cold start lengthens a function so much that its deadline may be lost.",
        (
            Part(
                f"For {percent(MOST)} or more of the function models (at least {LEAST_MODELS}), imports, device context"
                f" and weights take {COLD_RATIO:g} or more times the median warm run.",
                long >= MOST * len(starts) if enough else None,
                f"{long} of {len(starts)} models{span} (paper, table II: 32 to 520 times)",
            ),
            Part(
                f"For {percent(MOST)} or more of them the cold start alone is longer than the longest deadline of the"
                f" paper's evaluation, {LONGEST_DEADLINE:g} times the warm P99.",
                late >= MOST * len(starts) if enough else None,
                f"{late} of {len(starts)} models",
            ),
        ),
    )


def observations(profile: PlaceProfile) -> list[Observation]:
    return [observation_i(profile), observation_ii(profile), observation_iii(profile), observation_iv(profile)]
