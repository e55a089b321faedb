"""
The Markdown of a report: what measured rows say, and how good a predictor is. ``lab.research.predictor.pictures`` draws the
pictures beside it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from lab.research.predictor.evaluate import mae
from lab.research.predictor.held_out import COVERAGE, FOLDS, LEAST_PAIRS, JudgedPredictions, pair_rows
from lab.research.predictor.observations import (
    as_described,
    cells,
    cold_starts,
    noise,
    observations,
    repeated_pairs,
)
from lab.research.predictor.published import DIRECTION_TITLES, PHASES, PUBLISHED, counted, ordered, percent, title, when
from lab.simulation.metrics import wilson
from ml.predict.samples import DIRECTIONS, Direction
from ml.rows import PlaceProfile, Row

#: Pairs of the paper's space: training models x batches x function models x batches.
SPACE: Final = 8 * 4 * 8 * 4

#: The pictures under the text: file name without its ending, and caption.
PROFILE_PICTURES: Final[Mapping[str, str]] = {
    "utilisation": "Utilisation alone, by model and batch",
    "pairs": "Degradation by co-location, model by model",
    "functions": "Functions beside functions",
    "trainings": "Trainings beside trainings",
    "concurrency": "Degradation by several functions at a time",
    "cold-start": "Cold start against warm run",
}
PREDICTOR_PICTURES: Final[Mapping[str, str]] = {
    "calibration": "Predicted against measured degradation",
    "errors": "Error of the predictor by model",
}

VERDICTS: Final = {True: "held", False: "did not hold", None: "cannot be said"}


def _heading(profile: PlaceProfile, preset: str, rows: Sequence[Row], name: str) -> list[str]:
    place = profile.place
    drivers = ", ".join(sorted({row.place.driver for row in rows}))
    return [
        f"# {name}: {place.device}",
        "",
        (
            f"Sharing mode: {place.sharing_mode}. Models: preset `{preset}`. {drivers}. Utilisation counter:"
            f" {place.counter}. Measured {when(rows)}. Degradation is (time together) / (time alone) - 1 (Eq. 1): mean"
            " iteration time of a training, P99 of a function; `ml.rows.degradation` says what the time"
            " alone is."
        ),
        "",
    ]


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines)] + [""]


def profile_text(profile: PlaceProfile, preset: str) -> str:
    """
    The Markdown beside the pictures of the command ``profiles``. It counts all rows; observations are of models as their
    cards describe them.
    """
    rows: list[Row] = [*profile.solo.values(), *profile.colocations]
    kinds = Counter(row.kind for row in profile.colocations)
    described = as_described(profile)
    pairs = cells(described, "training")
    verdicts = observations(described)
    lines = _heading(profile, preset, rows, "Profiles")
    lines += [
        (
            f"{counted(len(profile.solo), 'workload')} alone, {counted(kinds['pair'], 'row')} of a training with a"
            f" function, {kinds['functions']} of two functions, {kinds['trainings']} of two trainings,"
            f" {kinds['several']} of three or more. {len(pairs)} of the {SPACE:,} pairs of a training and a function"
            f" (8 x 4 x 8 x 4) are measured: {percent(len(pairs) / SPACE)}."
        ),
        "",
        *_other_waits(profile, described),
        "## Observations of the paper",
        "",
        *_table(["", "claim", "here"], [[o.number, o.claim, f"**{VERDICTS[o.held]}**"] for o in verdicts]),
        "An observation did not hold if one of its rules did not; it held if all did; otherwise the rows cannot say.",
        "",
    ]
    for observation in verdicts:
        lines += [f"### {observation.number}: {VERDICTS[observation.held]}", ""]
        lines += [
            f"- {part.rule}\n  **{VERDICTS[part.held].capitalize()}**: {part.numbers}." for part in observation.parts
        ]
        lines += ["", *(f"{detail}\n" for detail in observation.details)]
    lines += [
        "## Repeats",
        "",
        (
            "The noise floor: how far repeats of one pair deviate, pooled over the pairs measured more than once, but for a"
            " workload beside itself, whose two sides are one measurement."
        ),
        "",
    ]
    lines += _table(
        ["direction", "pairs repeated", "deviation of log(1 + degradation)", "a time differs by about"],
        _repeats(profile),
    )
    lines += ["## Cold start", ""]
    lines += _table(
        [
            "function",
            "batch",
            *(f"{words}, s" for words in PHASES.values()),
            "warm median, ms",
            "ratio",
            "paper: cold, s",
            "warm, ms",
            "ratio",
        ],
        (
            [
                title(cold.workload.model),
                str(cold.workload.batch),
                *(f"{cold.phases[phase]:.3f}" for phase in PHASES),
                f"{1000 * cold.warm_p50_s:.1f}",
                f"{cold.ratio:.0f}",
                *_published(cold.workload.model),
            ]
            for cold in cold_starts(described)
        ),
    )
    lines += [
        "The ratio counts imports, device context and weights, as the paper does, without the first run.",
        "",
        "## Pictures",
        "",
        *(f"![{alt}]({name}.svg)\n" for name, alt in PROFILE_PICTURES.items()),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _other_waits(profile: PlaceProfile, described: PlaceProfile) -> list[str]:
    """What observations and pictures leave out, [] = nothing."""
    workloads = len(profile.solo) - len(described.solo)
    rows = len(profile.colocations) - len(described.colocations)
    if not workloads and not rows:
        return []
    words = (
        f"Of these, {counted(workloads, 'workload')} and {counted(rows, 'row')} name another wait for input than the model"
        " card says. Observations and pictures leave them out; repeats count them."
    )
    return [words, ""]


def _published(model: str) -> list[str]:
    if model not in PUBLISHED:
        return ["", "", ""]
    published = PUBLISHED[model]
    return [f"{published.cold_s:g}", f"{published.warm_ms:g}", f"{1000 * published.cold_s / published.warm_ms:.0f}"]


def _repeats(profile: PlaceProfile) -> Iterator[list[str]]:
    for direction in DIRECTIONS:
        measured = cells(profile, direction)
        floor = noise(measured)
        floor_words = (
            [f"{floor.deviation:.3f}", percent(math.expm1(floor.deviation))]
            if floor.freedom
            else ["unknown", "unknown"]
        )
        yield [DIRECTION_TITLES[direction], str(repeated_pairs(measured)), *floor_words]


def predictor_text(profile: PlaceProfile, preset: str, judged: Mapping[Direction, JudgedPredictions | None]) -> str:
    """The Markdown beside the pictures of the command ``predictor``."""
    lines = _heading(profile, preset, pair_rows(profile), "Predictor")
    lines += [
        (
            f"Recipe `ours`. Every prediction here is of a pair that its predictor had not seen: {FOLDS} folds over"
            " whole pairs, so a pair's repeats and its other direction are held out together. RMSLE is Eq. 2, the"
            " skill is 1 - MSLE / MSLE of the mean of the training pairs in log space, the noise floor the deviation"
            f" of repeats. Covered: share of the samples at or below their {percent(COVERAGE)} upper bound, with the 95"
            " % interval for as many independent draws as there are pairs."
        ),
        "",
    ]
    table = []
    for direction, result in judged.items():
        if result is None:
            table.append([DIRECTION_TITLES[direction], f"fewer than {LEAST_PAIRS}", *[""] * 6])
            continue
        low, high = wilson(result.covered, result.pairs)
        floor = noise(cells(profile, direction))
        table.append(
            [
                DIRECTION_TITLES[direction],
                str(result.pairs),
                str(len(result.actual)),
                f"{result.rmsle:.3f}",
                f"{mae(result.actual, result.predicted):.3f}",
                f"{result.skill:.2f}",
                f"{floor.deviation:.3f}" if floor.freedom else "unknown",
                f"{percent(result.covered)} ({percent(low)} to {percent(high)})",
            ]
        )
    lines += _table(
        ["direction", "pairs", "samples", "RMSLE", "MAE (fraction)", "skill", "noise floor", "covered"], table
    )
    for direction, result in judged.items():
        if result is None:
            continue
        victim, aggressor = result.of_model("victim"), result.of_model("aggressor")
        lines += [f"## Error by model: {DIRECTION_TITLES[direction]}", ""]
        lines += _table(
            ["model", "RMSLE where it is slowed down", "samples", "RMSLE where it is beside", "samples"],
            (
                [title(model), *_error(victim.get(model)), *_error(aggressor.get(model))]
                for model in ordered({*victim, *aggressor})
            ),
        )
    lines += ["## Pictures", "", *(f"![{alt}]({name}.svg)\n" for name, alt in PREDICTOR_PICTURES.items())]
    return "\n".join(lines).rstrip() + "\n"


def _error(model_error: tuple[float, int] | None) -> list[str]:
    return ["", "0"] if model_error is None else [f"{model_error[0]:.3f}", str(model_error[1])]
