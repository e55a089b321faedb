"""Errors by hand, splits that keep pairs together, figures by their names, and the command line."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.research.predictor import evaluate
from lab.research.predictor.evaluate import (
    CALIBRATION_PAIRS,
    FRACTIONS,
    SIDES,
    EvaluationReport,
    Figure,
    json_line,
    log_mean,
    mae,
    main,
    measured_sets,
    of_model,
    rmsle,
    skill,
    split,
    tables,
)
from lab.research.predictor.measured import samples
from lab.simulation import published
from lab.simulation.recipes import RECIPES
from ml import rows
from ml.predict.pairwise import FittedPredictor
from ml.predict.samples import DIRECTIONS, Direction, Samples
from ml.rows import Colocation, Row
from tests.support.measured import MODELS, PLACE, T0, function, pairs, solos, together, training

E = math.e
NAMES = list(RECIPES)


def between_functions(
    models: Sequence[str] = MODELS, repeats: int = 1, batches: Sequence[int] = (2, 8)
) -> Iterator[Colocation]:
    """Every pair of functions of the models in the batches, each measured ``repeats`` times with some noise."""
    generator = np.random.default_rng(0)
    configurations = [function(model, batch) for model in models for batch in batches]
    for number, (first, second) in enumerate(combinations_with_replacement(configurations, 2)):
        for repeat in range(repeats):
            yield together(first, second, T0 + 60.0 * (number * repeats + repeat), float(generator.uniform(0.8, 1.2)))


def measured(direction: Direction = "functions", *, name: str = "cpu", repeats: int = 1) -> Samples:
    """36 pairs between 8 functions of 4 models, or 64 of a training and a function."""
    found: list[Row] = [*solos(), *(between_functions(repeats=repeats) if direction == "functions" else pairs(64))]
    [profile] = rows.profiles(found)
    return samples(profile, direction, name=name)


class Spy:
    """Stands in for all recipes with the quick one, and notes what was learned from and what was asked for."""

    def __init__(self) -> None:
        self.fits: list[tuple[str, Samples, int, bool]] = []
        self.asked: list[tuple[str, Samples, Samples]] = []

    def recipe(self, name: str) -> Any:
        spy = self

        class Noted:
            def __init__(self, learned: Samples, predictor: FittedPredictor) -> None:
                self.learned, self.predictor = learned, predictor

            def predict(self, held: Samples) -> Any:
                spy.asked.append((name, self.learned, held))
                return self.predictor.predict(held)

            def upper(self, held: Samples, coverage: float) -> Any:
                assert coverage == 0.9
                return self.predictor.upper(held, coverage)

        class Quick:
            def fit(self, learned: Samples, seed: int, *, bounds: bool = True) -> Noted:
                spy.fits.append((name, learned, seed, bounds))
                return Noted(learned, RECIPES["linear"].fit(learned, seed, bounds=bounds))

        return Quick()


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    noted = Spy()
    monkeypatch.setattr(evaluate, "RECIPES", {name: noted.recipe(name) for name in NAMES})
    return noted


# ---- Eq. 2 and the others by hand ------------------------------------------------------------------------------------


def test_rmsle_by_hand() -> None:
    """ln 1 against ln e, ln e^2 against ln e^2, ln e against ln e^3: errors of 1, 0 and 2."""
    actual, predicted = np.array([0.0, E**2 - 1, E - 1]), np.array([E - 1, E**2 - 1, E**3 - 1])

    assert rmsle(actual, predicted) == pytest.approx(math.sqrt((1 + 0 + 4) / 3))
    assert rmsle(predicted, actual) == pytest.approx(rmsle(actual, predicted))
    assert rmsle(np.array([0.5]), np.array([0.2])) == pytest.approx(math.log(1.5 / 1.2))


def test_mae_by_hand() -> None:
    assert mae(np.array([0.2, 1.0]), np.array([0.5, 0.9])) == pytest.approx(0.2)


def test_skill_by_hand() -> None:
    """Logarithms 0 and 2; the constant is 1 (errors 1 + 1), the prediction 0 and 1 (errors 0 + 1)."""
    actual = np.array([0.0, E**2 - 1])

    assert skill(actual, np.array([0.0, E - 1]), E - 1) == pytest.approx(0.5)
    assert skill(actual, actual, E - 1) == 1.0
    assert skill(actual, np.full(2, E - 1), E - 1) == pytest.approx(0.0)
    assert skill(actual, actual[::-1], E - 1) == pytest.approx(1 - 8 / 2)
    assert skill(np.full(2, 0.5), np.array([0.1, 0.2]), 0.5) == 0.0


def test_what_noise_made_negative_counts_as_none() -> None:
    negative, none = np.array([-0.3, 0.5]), np.array([0.0, 0.5])
    predicted = np.array([0.1, 0.4])

    assert rmsle(negative, predicted) == rmsle(none, predicted)
    assert mae(negative, predicted) == mae(none, predicted)
    assert skill(negative, predicted, 0.2) == skill(none, predicted, 0.2)
    assert rmsle(none, negative) == 0.0


def test_the_constant_is_the_mean_in_log_space() -> None:
    found = measured().take(np.arange(3))

    assert log_mean(replace(found, target=np.array([-0.5, E - 1, E**2 - 1]))) == pytest.approx(E - 1)


@pytest.mark.parametrize("error", [rmsle, mae, lambda actual, predicted: skill(actual, predicted, 0.1)])
@pytest.mark.parametrize(
    ("actual", "predicted", "why"),
    [
        ([], [], "cannot be compared"),
        ([0.1, 0.2], [0.1], "cannot be compared"),
        ([[0.1, 0.2]], [[0.1, 0.2]], "cannot be compared"),
        ([0.1, math.nan], [0.1, 0.2], "not a number"),
        ([0.1, 0.2], [math.inf, 0.2], "not a number"),
    ],
)
def test_what_cannot_be_compared_is_an_error(error: Any, actual: list[Any], predicted: list[Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        error(np.array(actual, float), np.array(predicted, float))


# ---- splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_a_pair_is_never_in_both_halves(fraction: float) -> None:
    found = measured(repeats=3)
    configurations = [(v.tobytes(), a.tobytes()) for v, a in zip(found.victim, found.aggressor, strict=True)]
    # 28 pairs of different functions in both directions and 8 of one with itself, all three times.
    assert (len(found), len(set(found.pair.tolist())), len(set(configurations))) == (36 * 2 * 3, 36, 64)
    for seed in range(20):
        train = split(found, fraction, np.random.default_rng(seed))
        learned = {frozenset(pair) for pair, side in zip(configurations, train, strict=True) if side}
        held = {frozenset(pair) for pair, side in zip(configurations, train, strict=True) if not side}
        assert not learned & held
        assert (len(learned), len(learned) + len(held)) == (max(2, round(fraction * 36)), 36)


def test_splits_are_random_and_repeatable() -> None:
    found = measured()
    masks = [split(found, 0.2, np.random.default_rng(seed)) for seed in (0, 0, 1)]

    assert np.array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[0], masks[2])
    assert all(any(split(found, 0.2, np.random.default_rng(seed))[n] for seed in range(40)) for n in range(len(found)))


def test_both_halves_hold_something() -> None:
    found = measured("training")

    assert len(set(found.pair[split(found, 0.0, np.random.default_rng(0))].tolist())) == 2
    assert len(set(found.pair[~split(found, 1.0, np.random.default_rng(0))].tolist())) == 1
    three = found.take(found.pair < 3)
    assert split(three, 0.9, np.random.default_rng(0)).sum() == 2
    with pytest.raises(ValueError, match="cpu has 2 pairs: too few"):
        split(found.take(found.pair < 2), 0.5, np.random.default_rng(0))


def test_every_split_is_learned_and_asked_apart(spy: Spy) -> None:
    found = measured()
    parts = list(evaluate.splits(found, count=3, seed=5, fraction=0.25, recipes=("paper", "ours")))

    assert [(name, seed, bounds) for name, _, seed, bounds in spy.fits] == [
        (name, seed, name == "ours") for seed in (5, 6, 7) for name in ("paper", "ours")
    ]
    for name, learned, held in spy.asked:
        assert name in ("paper", "ours")
        assert not set(learned.pair.tolist()) & set(held.pair.tolist())
        assert len(learned) + len(held) == len(found)
        assert len(set(learned.pair.tolist())) == 9
    # Both recipes have the same split, and the next split is another.
    halves = [learned.pair.tolist() for _, learned, _ in spy.asked]
    assert halves[0] == halves[1]
    assert halves[0] != halves[2]
    _, learned, held = spy.asked[0]
    predicted = RECIPES["linear"].fit(learned, 5, bounds=False).predict(held)
    assert {name: parts[0]["paper"][name] for name in parts[0]["paper"]} == {
        "rmsle": rmsle(held.target, predicted),
        "mae": mae(held.target, predicted),
        "skill": skill(held.target, predicted, log_mean(learned)),
    }
    assert set(parts[0]["ours"]) == {"rmsle", "mae", "skill", "coverage"}
    upper = RECIPES["linear"].fit(learned, 5).upper(held, 0.9)
    assert parts[0]["ours"]["coverage"] == (held.target <= upper).mean()


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_a_figure_is_the_mean_and_the_interval_of_95_percent() -> None:
    figure = Figure.of([float(value) for value in range(101)])

    assert (figure.value, figure.low, figure.high) == (50.0, 2.5, 97.5)
    assert Figure.exact(0.3) == Figure(value=0.3, low=0.3, high=0.3)


def test_what_is_not_known_is_left_out() -> None:
    report = EvaluationReport()
    report.put("a", math.nan)
    report.put("b", [0.1, math.inf])
    report.put("c", 0.5)
    report.put("d", [0.25, 0.75])

    assert report.figures == {"c": Figure.exact(0.5), "d": Figure.of([0.25, 0.75])}
    assert math.isnan(report.value("a"))
    assert report.value("d") == 0.5


def test_figures_have_the_names_of_the_docstring(spy: Spy) -> None:
    report = evaluate.evaluate(
        [measured(repeats=2), measured("training", name="gavel-k80")], count=2, seed=0, repeated=["cpu"]
    )

    for key in ("cpu.functions", "gavel-k80.training"):
        expected = {
            f"{metric}.{key}.{name}"
            for metric in ("rmsle", "mae", "skill")
            for name in ("linear", "bagging", "paper", "ours", "constant", "models", "pairs", "times")
        }
        expected |= {
            f"{metric}.{key}"
            for metric in (
                "rmsle_ratio",
                "rmsle_ratio_times",
                "skill",
                "skill_trivial",
                "coverage",
                "forest_to_bagging",
                "bagging_to_linear",
            )
        }
        expected |= {
            f"curve.{key}.{name}.{fraction}" for name in ("paper", "ours") for fraction in (0.05, 0.1, 0.2, 0.4, 0.8)
        }
        expected |= {
            f"{metric}_{label}.{key}.{side}"
            for metric in ("skill", "paper", "coverage")
            for label in ("unseen", "calibrated")
            for side in ("victim", "aggressor", "both")
        }
        if key == "cpu.functions":
            expected |= {f"floor.{key}", f"floor_ratio.{key}", f"ours_floor_ratio.{key}"}
        assert {name for name in report.figures if f".{key}" in name and not name.startswith("gate.")} == expected
    assert {name for name in report.figures if name.startswith("gate.")} == {
        f"gate.{metric}.{part}"
        for metric in ("rmsle_ratio", "skill", "skill_trivial", "coverage")
        for part in ("cpu.functions", "gavel.training")
    }
    assert report.sizes == {
        "cpu.functions": {"samples": 144, "pairs": 36},
        "gavel-k80.training": {"samples": 64, "pairs": 64},
    }
    # All recipes are the same here.
    assert report.figures["rmsle_ratio.cpu.functions"] == Figure.exact(1.0)
    assert report.value("skill.cpu.functions") == report.value("skill.cpu.functions.ours")


def test_ratios_are_of_each_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Ours over the forest, the forest over bagging, bagging over linear: 1 / 2, 2 / 4 and 4 / 8, then 3 / 2, 2 / 4 and 4
    / 4.
    """
    errors: list[Mapping[str, float]] = [
        {"ours": 1, "paper": 2, "bagging": 4, "linear": 8, "times": 3, "constant": 9, "models": 2, "pairs": 4},
        {"ours": 3, "paper": 2, "bagging": 4, "linear": 4, "times": 1, "constant": 9, "models": 6, "pairs": 5},
    ]
    found = [
        {name: {"rmsle": e, "mae": 0.0, "skill": 0.1 * e, "coverage": 0.9} for name, e in part.items()}
        for part in errors
    ]
    asked: list[Any] = []

    def splits(measured: Samples, **how: Any) -> Any:
        asked.append(how)
        return found

    monkeypatch.setattr(evaluate, "splits", splits)
    report = EvaluationReport()
    evaluate.at_twenty_percent(report, measured("training"), count=2, seed=3)

    assert asked == [
        {"count": 2, "seed": 3, "fraction": 0.2, "recipes": [*RECIPES, "constant", "models", "pairs", "times"]}
    ]
    assert report.figures["rmsle_ratio.cpu.training"] == Figure.of([0.5, 1.5])
    assert report.figures["rmsle_ratio_times.cpu.training"] == Figure.of([1.5, 0.5])
    # The effects of models have the least mean error of the trivial ones, 4; of pairs it is 4.5.
    assert report.figures["skill_trivial.cpu.training"] == Figure.of([1 - 1 / 4, 1 - 1 / 4])
    assert report.figures["forest_to_bagging.cpu.training"] == Figure.exact(0.5)
    assert report.figures["bagging_to_linear.cpu.training"] == Figure.of([0.5, 1.0])
    assert report.figures["skill.cpu.training"] == Figure.of([0.1, 0.1 * 3])
    assert report.figures["rmsle.cpu.training.linear"] == Figure.of([8, 4])


def test_the_floor_is_the_deviation_of_repeats() -> None:
    """Two pairs measured twice, apart by 0.2 and 0.4 in log space: variances of 0.02 and 0.08."""
    found = measured("training").take(np.array([0, 0, 1, 1, 2]))
    report = EvaluationReport()
    report.put("rmsle.cpu.training.paper", 0.5)
    evaluate.floor(report, replace(found, target=np.expm1([0.5, 0.7, 1.0, 1.4, 3.0])))

    assert report.value("floor.cpu.training") == pytest.approx(math.sqrt(0.05))
    assert report.value("floor_ratio.cpu.training") == pytest.approx(0.5 / math.sqrt(0.05))
    # It is known no better than two pairs can tell it.
    interval = report.figures["floor.cpu.training"]
    assert (interval.low, interval.high) == pytest.approx((math.sqrt(0.02), math.sqrt(0.08)))


def test_without_repeats_there_is_no_floor() -> None:
    report = EvaluationReport()
    report.put("rmsle.cpu.training.paper", 0.5)
    evaluate.floor(report, measured("training"))

    assert set(report.figures) == {"rmsle.cpu.training.paper"}


def test_a_place_where_nobody_slows_down_anybody(spy: Spy) -> None:
    """Ratios to an error of nothing are not known, all the rest is; a reader and a program get what there is."""
    found = measured("training").take(np.repeat(np.arange(0, 64, 2), 2))
    found = replace(found, target=-np.random.default_rng(0).uniform(0.0, 0.05, 64))
    report = evaluate.evaluate([found], count=2, seed=0, repeated=["cpu"])

    assert report.value("rmsle.cpu.training.paper") == report.value("floor.cpu.training") == 0.0
    assert report.value("coverage.cpu.training") == report.value("coverage_unseen.cpu.training.both") == 1.0
    assert not [
        name for name in report.figures if "ratio" in name or "_to_" in name or name.startswith(("skill_", "paper_"))
    ]
    assert "cpu.training: unknown, an error is zero" in list(tables(report))
    assert strict(json_line(report, "c"))["figures"]["floor.cpu.training"] == 0.0


def test_a_gate_is_the_mean_over_gavels_gpus_split_by_split() -> None:
    report = EvaluationReport()
    names = ["cpu", "gavel-k80", "gavel-p100", "gavel-v100", "parvagpu-a100-7g", "cpu-2"]
    for name, values in zip(
        names, ([0.0, 10.0], [0.0, 2.0], [3.0, 1.0], [6.0, 3.0], [9.0, 9.0], [9.0, 9.0]), strict=True
    ):
        report.put(f"skill.{name}.training", values)
    report.put("coverage.gavel-p100.functions", [0.9, 0.9])
    evaluate.gates(report, names)

    # The GPUs go apart more than their mean does: its interval is narrower than the mean of theirs.
    assert {name: figure for name, figure in report.figures.items() if name.startswith("gate.")} == {
        "gate.skill.cpu.training": Figure.of([0.0, 10.0]),
        "gate.skill.gavel.training": Figure.of([3.0, 2.0]),
        "gate.coverage.gavel.functions": Figure.exact(0.9),
    }


# ---- models that were left out ---------------------------------------------------------------------------------------


def test_the_samples_of_a_model() -> None:
    found = measured().take(np.arange(4))
    found = replace(found, victims=["a", "b", "a", "c"], aggressors=["a", "a", "b", "c"])

    assert [of_model(found, "a", side).tolist() for side in SIDES] == [
        [True, False, True, False],
        [True, True, False, False],
        [True, True, True, False],
    ]


@pytest.mark.parametrize("direction", ["training", "functions"])
def test_a_model_that_is_left_out_was_never_learned_from(direction: Direction, spy: Spy) -> None:
    found = measured(direction)
    report = EvaluationReport()
    evaluate.unseen(report, found, seed=0)

    asked = iter(spy.asked)
    for side in SIDES:
        for calibration in (0, CALIBRATION_PAIRS):
            for model in sorted(MODELS):
                out = of_model(found, model, side)
                for name in ("paper", "ours"):
                    recipe, learned, held = next(asked)
                    assert recipe == name
                    shown = set(learned.pair.tolist()) & set(found.pair[out].tolist())
                    assert len(shown) == calibration
                    assert not set(learned.pair.tolist()) & set(held.pair.tolist())
                    assert of_model(held, model, side).all()
                    assert len(held) == (out & ~np.isin(found.pair, list(shown))).sum()
                    if not calibration:
                        met = {
                            "victim": learned.victims,
                            "aggressor": learned.aggressors,
                            "both": [*learned.victims, *learned.aggressors],
                        }
                        assert model not in met[side]
                        assert len(held) == out.sum()
    assert next(asked, None) is None
    assert {name for name, *_ in spy.asked} == {"paper", "ours"}


def test_errors_of_left_out_models_are_pooled(spy: Spy) -> None:
    found = measured("training")
    report = EvaluationReport()
    evaluate.unseen(report, found, seed=0)
    of_victims = [(learned, held) for name, learned, held in spy.asked if name == "ours"][: len(MODELS)]
    errors, base = 0.0, 0.0
    for learned, held in of_victims:
        errors += float(
            ((np.log1p(held.target) - np.log1p(RECIPES["linear"].fit(learned, 0).predict(held))) ** 2).sum()
        )
        base += float(((np.log1p(held.target) - np.log1p(learned.target).mean()) ** 2).sum())

    assert report.value("skill_unseen.cpu.training.victim") == pytest.approx(1 - errors / base)
    assert report.value("paper_unseen.cpu.training.victim") == report.value("skill_unseen.cpu.training.victim")


def test_models_beside_themselves_are_left_out_on_both_sides_at_once(spy: Spy) -> None:
    found = measured()
    itself = np.array([v == a for v, a in zip(found.victims, found.aggressors, strict=True)])
    # Of two batches of a model there are three pairs: too few to show three and hold one out. Twice the numbers make
    # six.
    alike = found.take(np.repeat(np.flatnonzero(itself), 2))
    report = EvaluationReport()
    evaluate.unseen(report, replace(alike, pair=2 * alike.pair + np.arange(len(alike)) % 2), seed=0)

    assert {name.rpartition(".")[2] for name in report.figures} == {"both"}
    assert len(report.figures) == 6


def test_a_model_with_too_few_pairs_is_not_left_out(spy: Spy) -> None:
    found = measured("training")
    few = np.concatenate(
        [
            np.flatnonzero(of_model(found, "bert", "victim"))[:CALIBRATION_PAIRS],
            np.flatnonzero(~of_model(found, "bert", "both")),
        ]
    )
    evaluate.unseen(EvaluationReport(), found.take(few), seed=0)

    assert spy.asked
    assert not [held for _, _, held in spy.asked if "bert" in held.victims and set(held.victims) == {"bert"}]


# ---- data sets -------------------------------------------------------------------------------------------------------


def write(path: Path, found: Sequence[Row]) -> Path:
    for row in found:
        rows.write(path, row)
    return path


def test_measured_rows_become_sets_of_each_place_and_direction(tmp_path: Path) -> None:
    other = replace(PLACE, sharing_mode="mps")
    first = write(tmp_path / "a.jsonl", [*solos(), *pairs(12), *between_functions(["bert"], batches=(2,))])
    second = write(tmp_path / "b.jsonl", [*solos(place=other), *pairs(11, place=other), *pairs(2, skip=12)])

    # The single pair of functions is too few; rows of one place come together from both files.
    assert [(part.name, part.direction, len(part)) for part in measured_sets([first, second])] == [
        ("cpu", "training", 14),
        ("cpu", "function", 14),
        ("cpu-2", "training", 11),
        ("cpu-2", "function", 11),
    ]


def test_too_few_pairs_make_no_set_however_often_they_were_measured(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*solos(), *(row for _ in range(5) for row in pairs(9))])

    assert measured_sets([path]) == []


# ---- output ----------------------------------------------------------------------------------------------------------


def strict(line: str) -> Any:
    """JSON without NaN and infinities, which Python's reader would take."""
    return json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_the_line_is_strict_json() -> None:
    report = EvaluationReport(sizes={"cpu.training": {"samples": 3, "pairs": 2}})
    report.put("exact", 1 / 3)
    report.put("mean", [0.1, 0.30001])
    report.put("nothing", math.nan)

    assert strict(json_line(report, "c")) == {
        "command": "c",
        "figures": {"exact": 0.3333, "mean": 0.2},
        "intervals": {"mean": [0.105, 0.295]},
        "sizes": {"cpu.training": {"samples": 3, "pairs": 2}},
    }
    report.figures["bad"] = Figure.exact(math.nan)
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line(report, "c")


def test_a_reader_gets_every_set(spy: Spy) -> None:
    report = evaluate.evaluate(
        [measured(repeats=2), measured("training", name="gavel-k80")], count=2, seed=0, repeated=["cpu"]
    )
    report.put("forest_to_bagging.cpu.functions", 1.0)
    report.put("bagging_to_linear.cpu.functions", 0.9)
    report.put("floor_ratio.cpu.functions", 1.2)
    lines = list(tables(report))

    assert "cpu.functions: holds (forest/bagging 1.000, bagging/linear 0.900)" in lines
    assert "gavel-k80.training: does not hold (forest/bagging 1.000, bagging/linear 1.000)" in lines
    assert [line for line in lines if "nothing to gain" in line] == [
        "cpu.functions: the paper's forest is within 1.2 of the noise floor; there is nothing to gain"
    ]
    [row] = [line for line in lines if line.startswith("gavel-k80.training | 64 | 64 | - | ")]
    figure = report.figures["rmsle.gavel-k80.training.ours"]
    assert f" | {figure.value:.3f} ({figure.low:.3f}..{figure.high:.3f}) | 1.000 | " in row
    assert len([line for line in lines if line.startswith("cpu.functions | both | unseen: ")]) == 1


# ---- the command -----------------------------------------------------------------------------------------------------


def test_a_quick_run_ends_with_one_json_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The recipes as they are, on 10 pairs of functions of one model, two measurements each; without the public data.
    """
    monkeypatch.setattr(evaluate, "FRACTIONS", (0.2, 0.8))
    monkeypatch.setattr(evaluate, "QUICK_SPLITS", 2)
    path = write(
        tmp_path / "rows.jsonl",
        [*solos(batches=(1, 2, 4, 8)), *between_functions(["vgg16"], repeats=2, batches=(1, 2, 4, 8))],
    )
    absent = tmp_path / "absent"
    arguments = ["--rows", str(path), "--data", str(absent), "--quick", "--json", "--workers", "1"]

    assert main(arguments) == 0
    out, err = capsys.readouterr()
    told = [line for line in err.splitlines() if line.endswith("cpu.functions")]
    assert "1 sets, 2 splits, 8 forests on 1 processes: estimating the time" in err.splitlines()
    assert told[0].startswith(" 50 %, ") and told[-1] == "100 %, 0 s to go: cpu.functions"
    assert len(out.splitlines()) == 1
    document = strict(out)
    assert document["command"] == "python -m lab.research.predictor.evaluate " + " ".join(arguments)
    assert document["quick"] is True
    assert document["sizes"] == {"cpu.functions": {"samples": 40, "pairs": 10}}
    assert f"{absent} is not there: public measurements are left out" in err.splitlines()
    figures = document["figures"]
    assert {name for name in figures if name.startswith("gate.")} == {
        f"gate.{metric}.cpu.functions" for metric in ("rmsle_ratio", "skill", "skill_trivial", "coverage")
    }
    assert figures["gate.rmsle_ratio.cpu.functions"] == figures["rmsle_ratio.cpu.functions"]
    assert all(figures[f"rmsle.cpu.functions.{name}"] > 0 for name in NAMES)
    assert 0 <= figures["coverage.cpu.functions"] <= 1
    # One model beside itself cannot be left out.
    assert not [name for name in figures if "unseen" in name]
    for name, (low, high) in document["intervals"].items():
        assert low < high
        assert low <= figures[name] <= high


def test_the_time_left_comes_from_what_was_done() -> None:
    assert evaluate.time_left(8.0, 0.05) == "estimating the time"
    assert (evaluate.time_left(20.0, 0.25), evaluate.time_left(30.0, 0.1)) == ("60 s to go", "4 min to go")


def test_public_sets_are_taken_and_only_some_on_request(
    tmp_path: Path, spy: Spy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []
    public = [
        measured("training", name=name).take(np.arange(24)) for name in ("gavel-k80", "gavel-v100", "parvagpu-a100-7g")
    ]

    def load(folder: Path) -> list[Samples]:
        asked.append(folder)
        return public

    monkeypatch.setattr(published, "load", load)
    path = write(tmp_path / "rows.jsonl", [*solos(), *pairs(12)])

    options = ["--splits", "2", "--json", "--workers", "1", "--only", "gavel", "cpu"]
    assert main(["--rows", str(path), "--data", str(tmp_path), *options]) == 0
    out, err = capsys.readouterr()
    document = strict(out)
    assert asked == [tmp_path]
    assert list(document["sizes"]) == ["cpu.training", "cpu.function", "gavel-k80.training", "gavel-v100.training"]
    assert document["figures"]["gate.coverage.gavel.training"] == pytest.approx(
        (document["figures"]["coverage.gavel-k80.training"] + document["figures"]["coverage.gavel-v100.training"]) / 2,
        rel=1e-3,
    )
    assert "public measurements" not in err
    # Two splits, and each recipe at the paper's 20 %.
    assert len({seed for name, _, seed, _ in spy.fits if name == "linear"}) == 2


def test_without_json_it_is_for_a_reader(tmp_path: Path, spy: Spy, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "rows.jsonl", [*solos(), *pairs(12)])

    assert main(["--rows", str(path), "--data", str(tmp_path / "absent"), "--quick", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("QUICK: 5 splits, no models left out.")
    assert "\nRMSLE at 20% of the pairs" in out
    assert [line.split(" |")[0] for line in out.splitlines() if " | 12 | 12 | " in line] == [
        "cpu.training",
        "cpu.function",
    ]
    assert len({seed for name, _, seed, _ in spy.fits if name == "linear"}) == 5


def test_nothing_to_evaluate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--rows", "--data", str(tmp_path / "absent"), "--json"]) == 1
    assert capsys.readouterr() == (
        "",
        f"{tmp_path / 'absent'} is not there: public measurements are left out\nthere is nothing to evaluate\n",
    )

    monkeypatch.setattr(published, "load", lambda folder: [measured("training", name="gavel-k80")])
    assert main(["--rows", "--data", str(tmp_path), "--json", "--only", "cpu"]) == 1
    assert capsys.readouterr() == ("", "there is nothing to evaluate\n")


@pytest.mark.parametrize("count", ["1", "0", "-3", "many"])
def test_an_interval_takes_two_splits(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--splits", count])
    assert stopped.value.code == 2
    assert "splits" in capsys.readouterr().err


def test_every_direction_is_evaluated(tmp_path: Path) -> None:
    trainings = [training(model, batch) for model in MODELS[:2] for batch in (2, 8)]
    beside = (together(one, other, T0) for one, other in combinations_with_replacement(trainings, 2))
    path = write(tmp_path / "rows.jsonl", [*solos(), *pairs(12), *between_functions(MODELS[:2]), *beside])

    assert tuple(part.direction for part in measured_sets([path])) == DIRECTIONS
