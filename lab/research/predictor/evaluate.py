"""
Evaluates the recipes on pairs that they were not fitted on: ``python -m lab.research.predictor.evaluate [--json]``.

For every data set and direction: random splits at the paper's 20 % (a pair with its repeats and its other direction on
one side of the split), a learning curve, and models left out whole. Measured rows are those of ``ml/data``; public
measurements (``lab.simulation.published``) are read from ``--data``. With ``--json`` the last line of stdout is a JSON object
of the figures and their 95 % intervals over splits.

=============================== ====================================================================================================
figure (set and direction follow)
=============================== ====================================================================================================
rmsle, mae, skill . recipe      Eq. 2; mean absolute error of fractions; 1 - MSLE / MSLE of the training part's mean in log space. A
                                recipe, a trivial predictor (``lab.research.predictor.trivial``), or ``times``: ours, told of solo runs the
                                times alone
rmsle_ratio, skill, coverage    ours over the paper's forest; ours; share of held-out samples under the 90 % bound. ``gate.`` where a bar
                                was set for it. ``gavel`` is the mean over its GPUs, split by split
skill_trivial                   1 - MSLE of ours / MSLE of the trivial predictor with the least RMSLE on the set
rmsle_ratio_times               ``times`` over the paper's forest
floor, floor_ratio              deviation of repeated measurements: the RMSLE to be expected of whoever knows every pair, estimated from
                                the pairs that were repeated, with its interval over these; the paper's forest over it
ours_floor_ratio                ours over the floor
curve . recipe . fraction       RMSLE when that fraction of the pairs is measured
skill_unseen . side             ours, when no pair with a model on that side was measured; ``coverage_unseen``; ``paper_unseen``: the
                                forest's skill; ``*_calibrated``: after three pairs of the model
forest_to_bagging, ...          ratios of RMSLE, for the ranking of table V
=============================== ====================================================================================================
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lab.research.predictor.measured import samples
from lab.research.predictor.noise import noise_rmsle, repeats
from lab.research.predictor.trivial import TRIVIAL
from lab.simulation import published
from lab.simulation.recipes import RECIPES
from ml import rows
from ml.predict.samples import DIRECTIONS, SOLO, Floats, Samples

ROOT = Path(__file__).parents[3]
TRAIN_FRACTION: Final = 0.2
FRACTIONS: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
COVERAGE: Final = 0.9
CALIBRATION_PAIRS: Final = 3
#: Splits of ``--quick``.
QUICK_SPLITS: Final = 5
#: Part of the work after which the time left is estimated: the first forests wait for processes to start.
ESTIMATED_FROM: Final = 0.1
#: Draws of repeated pairs for the interval of the noise floor.
BOOTSTRAPS: Final = 2000
#: Ratio to the noise floor up to which nothing can be gained.
NEAR_FLOOR: Final = 1.2
#: Sets with a target.
GATED: Final = ("cpu", "gavel")
#: What a solo run tells without counters of the device and without a profile of kernels.
TIMES: Final = ("mean_s", "p50_s", "p99_s")

Side: TypeAlias = Literal["victim", "aggressor", "both"]
SIDES: Final[tuple[Side, ...]] = ("victim", "aggressor", "both")
Mask: TypeAlias = NDArray[np.bool_]


def squared_log_error(actual: Floats, predicted: Floats) -> Floats:
    """(ln(1 + y) - ln(1 + y'))^2 of each sample [n]; a negative degradation counts as 0 (assumption A5)."""
    errors: Floats = (np.log1p(np.maximum(actual, 0.0)) - np.log1p(np.maximum(predicted, 0.0))) ** 2
    return errors


def rmsle(actual: Floats, predicted: Floats) -> float:
    """Eq. 2. ValueError without samples, or for arrays of different lengths."""
    _same(actual, predicted)
    return float(np.sqrt(squared_log_error(actual, predicted).mean()))


def mae(actual: Floats, predicted: Floats) -> float:
    """Mean absolute error of fractions; a negative degradation counts as 0."""
    _same(actual, predicted)
    return float(np.abs(np.maximum(actual, 0.0) - predicted).mean())


def skill(actual: Floats, predicted: Floats, constant: float) -> float:
    """
    1 - MSLE / MSLE of ``constant``, a degradation: 1 = perfect, 0 = no better than it. 0 where the constant is perfect.
    """
    _same(actual, predicted)
    base = float(squared_log_error(actual, np.full(len(actual), constant)).sum())
    return 1.0 - float(squared_log_error(actual, predicted).sum()) / base if base else 0.0


def _same(actual: Floats, predicted: Floats) -> None:
    if actual.shape != predicted.shape or actual.ndim != 1 or not len(actual):
        raise ValueError(f"{actual.shape} actual and {predicted.shape} predicted degradations cannot be compared")
    if not (np.isfinite(actual).all() and np.isfinite(predicted).all()):
        raise ValueError("a degradation is not a number")


def _ratio(first: float, second: float) -> float:
    """``first`` over ``second``; NaN if ``second`` is 0."""
    return first / second if second else float("nan")


def log_mean(measured: Samples) -> float:
    """The degradation whose logarithm is the mean of the logarithms: the constant that a skill is compared with."""
    return float(np.expm1(np.log1p(np.maximum(measured.target, 0.0)).mean()))


def split(measured: Samples, fraction: float, generator: np.random.Generator) -> Mask:
    """A mask [n] of the training samples: those of a random ``fraction`` of the pairs, at least two and not all."""
    pairs = generator.permutation(np.unique(measured.pair))
    if len(pairs) < 3:
        raise ValueError(f"{measured.name} has {len(pairs)} pairs: too few to hold some out")
    count = min(len(pairs) - 1, max(2, round(fraction * len(pairs))))
    return np.isin(measured.pair, pairs[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A mean over splits and the interval that holds 95 % of them."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        low, high = np.percentile(values, [2.5, 97.5])
        return cls(value=float(np.mean(values)), low=float(low), high=float(high))

    @classmethod
    def exact(cls, value: float) -> "Figure":
        return cls(value=value, low=value, high=value)


@dataclass(slots=True, kw_only=True)
class EvaluationReport:
    """Figures by name, the values of those that have one a split, and the size of each set."""

    figures: dict[str, Figure] = field(default_factory=dict)
    by_split: dict[str, Sequence[float]] = field(default_factory=dict)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)

    def put(self, name: str, values: Sequence[float] | float) -> None:
        """Add a figure with one value, or one value a split; unknown figures (NaN) are left out."""
        if np.isfinite(values).all():
            self.figures[name] = Figure.exact(values) if isinstance(values, float) else Figure.of(values)
            if not isinstance(values, float):
                self.by_split[name] = values

    def value(self, name: str) -> float:
        return self.figures[name].value if name in self.figures else float("nan")


def splits(
    measured: Samples, *, count: int, seed: int, fraction: float, recipes: Sequence[str]
) -> Iterator[dict[str, dict[str, float]]]:
    """
    For each of ``count`` random splits: rmsle, mae and skill by recipe, and the coverage of ours. Recipes may be trivial
    predictors too, and ``times``: ours with the times of solo runs alone.
    """
    for number in range(count):
        train = split(measured, fraction, np.random.default_rng([seed, number]))
        learned, held = measured.take(train), measured.take(~train)
        constant = log_mean(learned)
        by_recipe = {}
        for name in recipes:
            if name in TRIVIAL:
                predicted = TRIVIAL[name](learned, held)
            elif name == "times":
                predictor = RECIPES["ours"].fit(times_alone(learned), seed + number, bounds=False)
                predicted = predictor.predict(times_alone(held))
            else:
                predictor = RECIPES[name].fit(learned, seed + number, bounds=name == "ours")
                predicted = predictor.predict(held)
            by_recipe[name] = {
                "rmsle": rmsle(held.target, predicted),
                "mae": mae(held.target, predicted),
                "skill": skill(held.target, predicted, constant),
            }
            if name == "ours":
                by_recipe[name]["coverage"] = float((held.target <= predictor.upper(held, COVERAGE)).mean())
        yield by_recipe


def times_alone(measured: Samples) -> Samples:
    """Samples of which the solo runs tell nothing but :data:`TIMES`."""
    known = np.array([name in TIMES for name in SOLO])
    return replace(
        measured,
        victim_solo=np.where(known, measured.victim_solo, np.nan),
        aggressor_solo=np.where(known, measured.aggressor_solo, np.nan),
    )


def at_twenty_percent(report: EvaluationReport, measured: Samples, *, count: int, seed: int) -> None:
    """All recipes over random splits, at the paper's 20 % of the pairs."""
    key = f"{measured.name}.{measured.direction}"
    names = [*RECIPES, *TRIVIAL, "times"]
    results = list(splits(measured, count=count, seed=seed, fraction=TRAIN_FRACTION, recipes=names))
    for name in names:
        for metric in ("rmsle", "mae", "skill"):
            report.put(f"{metric}.{key}.{name}", [part[name][metric] for part in results])
    best = min(TRIVIAL, key=lambda name: report.value(f"rmsle.{key}.{name}"))
    report.put(
        f"skill_trivial.{key}", [1 - _ratio(part["ours"]["rmsle"], part[best]["rmsle"]) ** 2 for part in results]
    )
    report.put(f"rmsle_ratio.{key}", [_ratio(part["ours"]["rmsle"], part["paper"]["rmsle"]) for part in results])
    report.put(f"rmsle_ratio_times.{key}", [_ratio(part["times"]["rmsle"], part["paper"]["rmsle"]) for part in results])
    report.put(f"skill.{key}", [part["ours"]["skill"] for part in results])
    report.put(f"coverage.{key}", [part["ours"]["coverage"] for part in results])
    report.put(
        f"forest_to_bagging.{key}", [_ratio(part["paper"]["rmsle"], part["bagging"]["rmsle"]) for part in results]
    )
    report.put(
        f"bagging_to_linear.{key}", [_ratio(part["bagging"]["rmsle"], part["linear"]["rmsle"]) for part in results]
    )


def floor(report: EvaluationReport, measured: Samples) -> None:
    key = f"{measured.name}.{measured.direction}"
    if np.isfinite(value := noise_rmsle(measured)):
        parts = repeats(measured)
        # Bootstrap by pairs: repeats of one pair deviate alike.
        drawn = np.random.default_rng(0).integers(len(parts), size=(BOOTSTRAPS, len(parts)))
        squares, freedom = parts[drawn].sum(axis=1).T
        low, high = np.percentile(np.sqrt(squares / freedom), [2.5, 97.5])
        report.figures[f"floor.{key}"] = Figure(value=value, low=float(low), high=float(high))
    report.put(f"floor_ratio.{key}", _ratio(report.value(f"rmsle.{key}.paper"), noise_rmsle(measured)))
    report.put(f"ours_floor_ratio.{key}", _ratio(report.value(f"rmsle.{key}.ours"), noise_rmsle(measured)))


def curve(report: EvaluationReport, measured: Samples, fraction: float, *, count: int, seed: int) -> None:
    """RMSLE of the forest and of ours where this fraction of the pairs is measured."""
    key = f"{measured.name}.{measured.direction}"
    results = list(splits(measured, count=count, seed=seed, fraction=fraction, recipes=("paper", "ours")))
    for name in ("paper", "ours"):
        report.put(f"curve.{key}.{name}.{fraction}", [part[name]["rmsle"] for part in results])


def of_model(measured: Samples, model: str, side: Side) -> Mask:
    """The samples [n] with ``model`` on that side; "both" = on either."""
    victim = np.array([name == model for name in measured.victims])
    aggressor = np.array([name == model for name in measured.aggressors])
    masks: dict[Side, Mask] = {"victim": victim, "aggressor": aggressor, "both": victim | aggressor}
    return masks[side]


def unseen(report: EvaluationReport, measured: Samples, *, seed: int) -> None:
    """
    Each model is left out in turn: its samples on one side, or all; the other direction of its pairs too. Errors are
    pooled over the models. Calibrated: three pairs of the model are in the training part, the rest is predicted.
    """
    key = f"{measured.name}.{measured.direction}"
    # If every pair is a model with itself, its two sides are the same.
    sides = SIDES if any(v != a for v, a in zip(measured.victims, measured.aggressors, strict=True)) else ("both",)
    for side in sides:
        for label, calibration in (("unseen", 0), ("calibrated", CALIBRATION_PAIRS)):
            errors, bases = {"paper": 0.0, "ours": 0.0}, 0.0
            covered: list[bool] = []
            for model in sorted({*measured.victims, *measured.aggressors}):
                out = of_model(measured, model, side)
                pairs = np.random.default_rng([seed, len(model)]).permutation(np.unique(measured.pair[out]))
                shown = np.isin(measured.pair, pairs[:calibration])
                train, held = ~np.isin(measured.pair, pairs) | shown, out & ~shown
                if len(pairs) <= CALIBRATION_PAIRS or len(np.unique(measured.pair[train])) < 2:
                    continue
                learned, left = measured.take(train), measured.take(held)
                bases += float(squared_log_error(left.target, np.full(len(left), log_mean(learned))).sum())
                for name in errors:
                    predictor = RECIPES[name].fit(learned, seed, bounds=name == "ours")
                    errors[name] += float(squared_log_error(left.target, predictor.predict(left)).sum())
                    if name == "ours":
                        covered.extend(left.target <= predictor.upper(left, COVERAGE))
            if covered:
                report.put(f"skill_{label}.{key}.{side}", 1 - _ratio(errors["ours"], bases))
                report.put(f"paper_{label}.{key}.{side}", 1 - _ratio(errors["paper"], bases))
                report.put(f"coverage_{label}.{key}.{side}", float(np.mean(covered)))


def gates(report: EvaluationReport, names: Sequence[str]) -> None:
    """The figures with a target, under the prefix ``gate.``; Gavel's is the mean over its GPUs, split by split."""
    for metric in ("rmsle_ratio", "skill", "skill_trivial", "coverage"):
        for direction in DIRECTIONS:
            for gated in GATED:
                keys = [
                    f"{metric}.{name}.{direction}"
                    for name in names
                    if name == gated or (gated == "gavel" and name.startswith("gavel-"))
                ]
                of_sets = [report.by_split[key] for key in keys if key in report.by_split]
                if of_sets:
                    report.put(f"gate.{metric}.{gated}.{direction}", np.mean(of_sets, axis=0).tolist())


def measured_sets(paths: Sequence[Path]) -> list[Samples]:
    """Every direction of every device and sharing mode in files of rows; equal names are numbered."""
    sets, uses_of_name = [], dict[str, int]()
    for profile in rows.profiles(row for path in paths for row in rows.read(path)):
        base_name = place_name(profile.place)
        uses_of_name[base_name] = uses_of_name.get(base_name, 0) + 1
        name = base_name if uses_of_name[base_name] == 1 else f"{base_name}-{uses_of_name[base_name]}"
        sets += [samples(profile, direction, name=name) for direction in DIRECTIONS]
    return [part for part in sets if len(np.unique(part.pair)) >= 10]


def place_name(place: rows.DeviceMode) -> str:
    """A short name of a device for figures: its kind."""
    return "cpu" if place.device.startswith("CPU partition") else place.device.lower().replace(" ", "-")


def tables(report: EvaluationReport) -> Iterator[str]:
    """The figures as text."""
    keys = list(report.sizes)
    yield f"RMSLE at {TRAIN_FRACTION:.0%} of the pairs (mean and 95 % of the splits), and ours in detail\n"
    yield (
        "set and direction | samples | pairs | floor | "
        + " | ".join(RECIPES)
        + " | ours/paper | skill | skill over trivial | MAE paper | MAE ours | coverage"
    )
    for key in keys:
        cells = [f"{report.sizes[key]['samples']}", f"{report.sizes[key]['pairs']}", _interval(report, f"floor.{key}")]
        cells += [_interval(report, f"rmsle.{key}.{name}") for name in RECIPES]
        cells += [
            _cell(report, name)
            for name in (
                f"rmsle_ratio.{key}",
                f"skill.{key}",
                f"skill_trivial.{key}",
                f"mae.{key}.paper",
                f"mae.{key}.ours",
            )
        ]
        yield " | ".join([key, *cells, _cell(report, f"coverage.{key}")])
    yield "\nRanking of table V (forest <= bagging < linear)\n"
    for key in keys:
        first, second = report.value(f"forest_to_bagging.{key}"), report.value(f"bagging_to_linear.{key}")
        if not np.isfinite([first, second]).all():
            yield f"{key}: unknown, an error is zero"
            continue
        word = "holds" if first <= 1 and second < 1 else "does not hold"
        yield f"{key}: {word} (forest/bagging {first:.3f}, bagging/linear {second:.3f})"
    for key in keys:
        if report.value(f"floor_ratio.{key}") <= NEAR_FLOOR:
            yield f"{key}: the paper's forest is within {NEAR_FLOOR} of the noise floor; there is nothing to gain"
    yield "\nLearning curve: RMSLE forest / ours by the fraction of pairs that is measured\n"
    for key in keys:
        cells = [
            f"{report.value(f'curve.{key}.paper.{f}'):.3f} / {report.value(f'curve.{key}.ours.{f}'):.3f}"
            for f in FRACTIONS
        ]
        yield " | ".join([key, *(f"{fraction}: {cell}" for fraction, cell in zip(FRACTIONS, cells, strict=True))])
    if not any(name.startswith("skill_unseen.") for name in report.figures):
        yield "\nUnseen models: left out, because this is the quick evaluation"
        return
    yield "\nUnseen models: skill ours (forest), coverage; after three calibration pairs\n"
    for key in keys:
        for side in SIDES:
            if f"skill_unseen.{key}.{side}" in report.figures:
                cells = [
                    f"{label}: {report.value(f'skill_{label}.{key}.{side}'):.2f}"
                    f" ({report.value(f'paper_{label}.{key}.{side}'):.2f}),"
                    f" {report.value(f'coverage_{label}.{key}.{side}'):.3f}"
                    for label in ("unseen", "calibrated")
                ]
                yield " | ".join([key, side, *cells])


def _cell(report: EvaluationReport, name: str) -> str:
    return f"{report.value(name):.3f}" if name in report.figures else "-"


def _interval(report: EvaluationReport, name: str) -> str:
    figure = report.figures.get(name)
    if figure is None:
        return "-"
    return f"{figure.value:.3f} ({figure.low:.3f}..{figure.high:.3f})"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def json_line(report: EvaluationReport, command: str, *, quick: bool = False) -> str:
    figures: Mapping[str, Figure] = report.figures
    return json.dumps(
        {
            "command": command,
            "figures": {name: _rounded(figure.value) for name, figure in figures.items()},
            "intervals": {
                name: [_rounded(figure.low), _rounded(figure.high)]
                for name, figure in figures.items()
                if figure.low != figure.high
            },
            "sizes": report.sizes,
        }
        | ({"quick": True} if quick else {}),
        allow_nan=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """
    A part of the evaluation of a set, which one process does: all recipes at 20 % (``at`` 0), a point of the learning curve
    (``at``: its fraction), or the models left out (``at`` 1). ``repeated``: equal pairs of the set are repeats.
    """

    measured: Samples
    at: float
    count: int
    seed: int
    repeated: bool

    @property
    def forests(self) -> int:
        """Forests that are fitted, which most of the time goes to."""
        match self.at:
            case 0:
                return 2 * self.count
            case 1:
                return 2 * len(SIDES) * len({*self.measured.victims, *self.measured.aggressors})
            case _:
                return max(2, self.count // 5)

    def done(self) -> EvaluationReport:
        report = EvaluationReport()
        if self.at == 0:
            at_twenty_percent(report, self.measured, count=self.count, seed=self.seed)
            if self.repeated:
                floor(report, self.measured)
        elif self.at == 1:
            unseen(report, self.measured, seed=self.seed)
        else:
            curve(report, self.measured, self.at, count=max(2, self.count // 5), seed=self.seed)
        return report


def evaluate(
    sets: Sequence[Samples],
    *,
    count: int,
    seed: int,
    repeated: Sequence[str] = (),
    quick: bool = False,
    workers: int = 1,
) -> EvaluationReport:
    """
    Everything about every set; ``quick``: but for models left out. ``repeated`` names sets in which equal pairs are
    repeats of one measurement. Progress goes to stderr.
    """
    parts = [
        Part(measured=measured, at=at, count=count, seed=seed, repeated=measured.name in repeated)
        for measured in sets
        for at in (0.0, *FRACTIONS, *(() if quick else (1.0,)))
    ]
    report = EvaluationReport()
    report.sizes = {
        f"{measured.name}.{measured.direction}": {"samples": len(measured), "pairs": len(np.unique(measured.pair))}
        for measured in sets
    }
    total, fitted = sum(part.forests for part in parts), 0
    print(
        f"{len(sets)} sets, {count} splits, {total} forests on {workers} processes: estimating the time",
        file=sys.stderr,
        flush=True,
    )
    began = time.monotonic()
    for part, of_part in zip(parts, _each(parts, workers), strict=True):
        report.figures |= of_part.figures
        report.by_split |= of_part.by_split
        fitted += part.forests
        key = f"{part.measured.name}.{part.measured.direction}"
        left = time_left(time.monotonic() - began, fitted / total)
        print(f"{100 * fitted // total:3} %, {left}: {key}", file=sys.stderr, flush=True)
    gates(report, sorted({measured.name for measured in sets}))
    return report


def time_left(used_s: float, done: float) -> str:
    """Until the end, if what is left goes on as the part ``done`` (0 to 1) did in ``used_s`` seconds."""
    return f"{_minutes(used_s * (1 - done) / done)} to go" if done >= ESTIMATED_FROM else "estimating the time"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _each(parts: Sequence[Part], workers: int) -> Iterator[EvaluationReport]:
    """The reports of all parts, in their order."""
    if workers <= 1:
        yield from map(Part.done, parts)
        return
    # Matrices are small: more threads only wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(Part.done, parts)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="lab.research.predictor.evaluate",
        description="How well the recipes predict pairs that they have not seen.",
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON line")
    parser.add_argument(
        "--rows",
        type=Path,
        nargs="*",
        default=sorted((ROOT / "ml" / "data").glob("*.jsonl")),
        help="files of measured rows",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT / "ml" / "data" / "interference",
        help="folder of public measurements",
    )
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"a subset that says little: {QUICK_SPLITS} splits, and no models left out; about a minute on two cores",
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes; default: one for each core"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[""], metavar="NAME", help="only sets whose names begin so")
    options = parser.parse_args(arguments)
    count = QUICK_SPLITS if options.quick else options.splits
    if count < 2:
        parser.error("an interval takes at least two splits")
    try:
        sets = own = measured_sets(options.rows)
        if options.data.is_dir():
            sets = [*own, *published.load(options.data)]
        else:
            print(f"{options.data} is not there: public measurements are left out", file=sys.stderr)
    except (rows.BadRow, OSError, UnicodeDecodeError) as error:
        print(f"lab.research.predictor.evaluate: {error}", file=sys.stderr)
        return 2
    sets = [measured for measured in sets if measured.name.startswith(tuple(options.only))]
    if not sets:
        print("there is nothing to evaluate", file=sys.stderr)
        return 1
    report = evaluate(
        sets,
        count=count,
        seed=options.seed,
        repeated=[measured.name for measured in own],
        quick=options.quick,
        workers=options.workers,
    )
    if options.json:
        print(
            json_line(report, " ".join(["python -m lab.research.predictor.evaluate", *arguments]), quick=options.quick)
        )
        return 0
    if options.quick:
        print(f"QUICK: {count} splits, no models left out. Figures of the documents are of the whole evaluation.\n")
    print("\n".join(tables(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
