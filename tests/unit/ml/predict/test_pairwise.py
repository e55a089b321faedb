"""
Recipes and their frozen parameters, the process of ours against plain formulas, bounds that cover, and stored
predictors.
"""

import dataclasses
import hashlib
import io
import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.predict import gaussian, pairwise
from ml.predict.pairwise import (
    ARRAYS,
    COLUMNS,
    KNOWN_PAIRS,
    MANIFEST,
    PAPER_FEATURES,
    RECIPES,
    SHARES,
    UNSEEN,
    BadArtifact,
    FittedPredictor,
    Linear,
    Ours,
    Trees,
    columns,
    estimator,
    fit,
    load,
    log_target,
    paper_features,
    save,
    shared,
    sharing,
)
from ml.predict.samples import SOLO, Direction, Floats, Ints, Samples
from ml.rows import FEATURES, BadRow

pytestmark = pytest.mark.numeric

PAPER_RECIPES = ("linear", "bagging", "paper")
PLACE = ("CPU partition: 1 core", "time-slice")


def alone(mean_s: Floats, wait_s: Floats | float = 0.0) -> Floats:
    """:data:`SOLO` [n] of workloads of which only times are known."""
    known = {
        "mean_s": mean_s,
        "p50_s": 0.98 * mean_s,
        "p99_s": 1.2 * mean_s,
        "wait_s": wait_s + 0 * mean_s,
        "busy_s": mean_s - wait_s,
    }
    return np.column_stack([known.get(name, np.full(len(mean_s), np.nan)) for name in SOLO])


def world(count: int, seed: int, *, models: int = 8, noise: float = 0.1, direction: Direction = "training") -> Samples:
    """
    ``count`` pairs of configurations (a model in one of four batches), drawn without replacement. Each model has a
    weight as an aggressor and a sensitivity as a victim that no feature tells; the degradation also grows with the
    aggressor's share of the time.
    """
    generator = np.random.default_rng(seed)
    architecture = np.exp(generator.normal(2.0, 1.0, (models, len(FEATURES))))
    sensitive, heavy = generator.normal(0.0, 0.7, (2, models))
    speed = np.exp(generator.normal(0.0, 0.3, models))
    batches = np.array([1.0, 2.0, 4.0, 8.0])
    configuration = 4 * models
    drawn = generator.choice(configuration**2, count, replace=False)

    def side(which: Ints) -> tuple[Ints, Floats, Floats]:
        model, batch = which // 4, batches[which % 4]
        table = architecture[model].copy()
        table[:, FEATURES.index("flops")] *= 1e8 * batch
        table[:, FEATURES.index("memory_bytes")] *= 1e6 * batch
        table[:, FEATURES.index("batch")] = batch
        return model, table, 1e-3 * batch * speed[model] * architecture[model, 0]

    victim, victim_table, victim_s = side(drawn // configuration)
    aggressor, aggressor_table, aggressor_s = side(drawn % configuration)
    power = 1.2 * aggressor_s / (aggressor_s + victim_s) + sensitive[victim] + heavy[aggressor] - 0.5
    logs = np.exp(power) + generator.normal(0.0, noise, count)
    return Samples(
        name="world",
        direction=direction,
        victim=victim_table,
        aggressor=aggressor_table,
        victim_solo=alone(victim_s),
        aggressor_solo=alone(aggressor_s),
        target=np.expm1(logs),
        victims=[f"m{m}" for m in victim],
        aggressors=[f"m{m}" for m in aggressor],
        pair=np.arange(count),
    )


def rmsle(predictor: FittedPredictor, held: Samples) -> float:
    return float(np.sqrt(((log_target(held) - np.log1p(predictor.predict(held))) ** 2).mean()))


def halves(samples: Samples, count: int) -> tuple[Samples, Samples]:
    return samples.take(np.arange(count)), samples.take(np.arange(count, len(samples)))


@pytest.fixture(scope="module")
def known() -> Samples:
    return world(40, 1)


@pytest.fixture(scope="module")
def fresh() -> Samples:
    """Pairs that nobody has seen, partly of models that nobody has seen, with inputs far outside."""
    found = world(60, 1, models=8).take(np.arange(40, 60))
    strange = ["m99" if number % 3 == 0 else name for number, name in enumerate(found.victims)]
    far = found.victim * np.where(np.arange(20) % 4 == 0, 1e4, 1.0)[:, None]
    return replace(found, victims=strange, victim=far)


@pytest.fixture(scope="module")
def fitted(known: Samples) -> Mapping[str, FittedPredictor]:
    """Each recipe with its bounds."""
    return {name: recipe.fit(known, 3, place=PLACE) for name, recipe in RECIPES.items()}


# ---- the paper's recipe ----------------------------------------------------------------------------------------------


def test_the_features_are_table_iii_of_both_sides_in_order() -> None:
    side = [
        "flops",
        "parameters",
        "memory_bytes",
        "activations",
        "conv",
        "linear",
        "norm",
        "relu",
        "embedding",
        "pooling",
        "dropout",
        "batch",
    ]

    assert list(PAPER_FEATURES) == [f"victim.{name}" for name in side] + [f"aggressor.{name}" for name in side]
    assert [RECIPES[name].features for name in PAPER_RECIPES] == [PAPER_FEATURES] * 3


def test_the_papers_inputs_are_the_raw_numbers(known: Samples) -> None:
    inputs = paper_features(known)

    assert inputs.shape == (40, 24)
    for position, name in enumerate(PAPER_FEATURES):
        side, feature = name.split(".")
        assert np.array_equal(inputs[:, position], getattr(known, side)[:, FEATURES.index(feature)])


def test_the_forest_is_frozen() -> None:
    forest = estimator("paper", 7)
    expected = {
        "n_estimators": 200,
        "max_depth": None,
        "min_samples_leaf": 1,
        "min_samples_split": 2,
        "max_leaf_nodes": None,
        "max_features": 1.0,
        "max_samples": None,
        "bootstrap": True,
        "criterion": "squared_error",
        "ccp_alpha": 0.0,
        "random_state": 7,
    }

    assert type(forest).__name__ == "RandomForestRegressor"
    assert {name: forest.get_params()[name] for name in expected} == expected


def test_bagging_is_frozen() -> None:
    bagging = estimator("bagging", 7)
    expected = {
        "n_estimators": 200,
        "bootstrap": True,
        "bootstrap_features": False,
        "max_features": 1.0,
        "random_state": 7,
        "estimator__max_depth": None,
        "estimator__min_samples_leaf": 1,
        "estimator__criterion": "squared_error",
    }

    assert type(bagging).__name__ == "BaggingRegressor"
    assert type(bagging.get_params()["estimator"]).__name__ == "DecisionTreeRegressor"
    assert {name: bagging.get_params()[name] for name in expected} == expected


def test_linear_is_frozen() -> None:
    linear = estimator("linear", 7)

    assert type(linear).__name__ == "LinearRegression"
    assert (linear.get_params()["fit_intercept"], linear.get_params()["positive"]) == (True, False)


@pytest.mark.parametrize("name", ["ours", "", "forest"])
def test_another_name_has_no_regressor(name: str) -> None:
    with pytest.raises(KeyError):
        estimator(name, 0)


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_the_paper_learns_the_raw_fraction(name: str, known: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, Floats, Floats]] = []

    def spy(recipe: str, seed: int) -> Any:
        made = estimator("linear" if recipe == "linear" else "paper", 0)
        if recipe != "linear":
            made.set_params(n_estimators=1)  # type: ignore[attr-defined]
        learn = made.fit

        def noted(inputs: Floats, target: Floats) -> object:
            asked.append((recipe, seed, inputs, target))
            return learn(inputs, target)

        made.fit = noted  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(pairwise, "estimator", spy)
    RECIPES[name].fit(known, 11, bounds=False)

    [(recipe, seed, inputs, target)] = asked
    assert (recipe, seed) == (name, 11)
    assert np.array_equal(inputs, paper_features(known))
    assert known.target.min() < 0
    assert target.tolist() == [max(0.0, value) for value in known.target.tolist()]


@pytest.mark.parametrize("name", ["bagging", "paper"])
def test_the_arrays_of_nodes_predict_what_scikit_learn_does(
    name: str, known: Samples, fresh: Samples, fitted: Mapping[str, FittedPredictor]
) -> None:
    model = fitted[name].model
    assert isinstance(model, Trees)
    assert len(model.roots) == 200
    theirs: Any = estimator(name, 3)
    theirs.fit(paper_features(known), np.maximum(known.target, 0.0))

    for samples in (known, fresh):
        assert fitted[name].predict(samples) == pytest.approx(
            theirs.predict(paper_features(samples)), rel=1e-12, abs=1e-12
        )


def test_an_input_at_a_threshold_goes_where_scikit_learn_sends_it(
    known: Samples, fitted: Mapping[str, FittedPredictor]
) -> None:
    """Each threshold of the forest as an input: equal goes one way, the next single-precision number the other."""
    model = fitted["paper"].model
    assert isinstance(model, Trees)
    theirs: Any = estimator("paper", 3)
    theirs.fit(paper_features(known), np.maximum(known.target, 0.0))
    inner = np.flatnonzero(np.isfinite(model.threshold))[:400]
    inputs = np.repeat(paper_features(known)[:1], 2 * len(inner), axis=0)
    for row, node in enumerate(inner):
        inputs[2 * row, model.feature[node]] = model.threshold[node]
        inputs[2 * row + 1, model.feature[node]] = np.nextafter(np.float32(model.threshold[node]), np.float32(np.inf))
    at = replace(known.take(np.zeros(len(inputs), np.int64)), victim=inputs[:, :12], aggressor=inputs[:, 12:])

    predicted = fitted["paper"].predict(at)
    assert predicted == pytest.approx(theirs.predict(inputs), rel=1e-12)
    assert (np.abs(predicted[::2] - predicted[1::2]) > 1e-9).any()


def test_linear_is_least_squares_and_never_below_nothing(
    known: Samples, fresh: Samples, fitted: Mapping[str, FittedPredictor]
) -> None:
    theirs: Any = estimator("linear", 3)
    theirs.fit(paper_features(known), np.maximum(known.target, 0.0))
    expected = theirs.predict(paper_features(fresh))

    assert expected.min() < 0
    assert fitted["linear"].predict(fresh) == pytest.approx(np.maximum(expected, 0.0), rel=1e-9)


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_what_the_paper_does_not_measure_changes_nothing_of_its_recipes(
    name: str, fresh: Samples, fitted: Mapping[str, FittedPredictor]
) -> None:
    unmeasured = np.full((len(fresh), len(SOLO)), np.nan)

    without = fitted[name].predict(replace(fresh, victim_solo=unmeasured, aggressor_solo=unmeasured))
    assert np.array_equal(without, fitted[name].predict(fresh))


def test_the_forest_beats_linear_and_ours_the_forest() -> None:
    learned, held = halves(world(400, 5), 80)
    errors = {name: rmsle(RECIPES[name].fit(learned, 0, bounds=False), held) for name in ("linear", "paper", "ours")}

    assert errors["paper"] < 0.9 * errors["linear"]
    assert errors["ours"] < 0.9 * errors["paper"]


# ---- what sharing does -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "wait", "pause", "mean", "worst"),
    [
        (1.0, 0.0, 0.0, 1.0, 1.0),  # an aggressor without a pause: half the device, twice the time
        (
            2.0,
            0.0,
            1.0,
            0.5,
            0.5,
        ),  # a busy phase of 2 s (work of 1) and a pause of 1 s (work of 1): a whole round of 3 s
        (1.0, 0.0, 1.0, 0.5, 1.0),  # all of it may fall into the busy phase
        (1.5, 0.0, 1.0, 0.5, 2 / 3),  # 2 s in the phase and 0.5 s after it
        (1.0, 1.0, 0.0, 0.5, 0.5),  # its own waiting is not drawn out
    ],
)
def test_sharing_by_hand(busy: float, wait: float, pause: float, mean: float, worst: float) -> None:
    """Share one half; the aggressor is busy for 1 s alone. The P99 alone is the mean here."""

    def side(busy: float, wait: float) -> Floats:
        values = {"busy_s": busy, "wait_s": wait, "mean_s": busy + wait, "p99_s": busy + wait}
        return np.array([[values.get(name, np.nan) for name in SOLO]])

    found = sharing(side(busy, wait), side(1.0, pause), 0.5)

    assert (found[0][0], found[1][0]) == (pytest.approx(mean), pytest.approx(worst))


def test_a_direction_is_explained_in_its_own_metric() -> None:
    training = world(20, 0)
    training = replace(training, aggressor_solo=alone(training.aggressor_solo[:, SOLO.index("mean_s")], 1e-3))
    mean, worst = sharing(training.victim_solo, training.aggressor_solo, 0.3)

    assert shared(training, 0.3) == pytest.approx(np.log1p(mean))
    assert shared(replace(training, direction="function"), 0.3) == pytest.approx(np.log1p(worst))
    assert (np.abs(mean - worst) > 1e-3).any()
    assert not shared(training, None).any()


def test_columns_are_named_and_each_is_in_one_group(known: Samples) -> None:
    found = dict(zip(COLUMNS, columns(known, 0.4).T, strict=True))

    assert found["victim.ln flops"] == pytest.approx(np.log1p(known.victim[:, 0]))
    assert found["aggressor.ln dropout"] == pytest.approx(np.log1p(known.aggressor[:, FEATURES.index("dropout")]))
    assert found["aggressor.ln tail"] == pytest.approx(np.full(40, np.log(1.2)))
    assert np.isnan(found["victim.ln kernels"]).all()
    mean, worst = sharing(known.victim_solo, known.aggressor_solo, 0.4)
    assert found["ln worst sharing"] == pytest.approx(np.log1p(worst))
    assert found["ln mean sharing"] == pytest.approx(np.log1p(mean))
    layout = pairwise._layout()
    assert sorted(column for group in layout.groups for column in group) == list(range(len(COLUMNS)))
    assert [COLUMNS[column] for column in layout.line] == ["ln mean sharing", "ln worst sharing", "ln mean ratio"]
    assert all(COLUMNS[column].startswith("aggressor.") for group in layout.aggressor for column in group)


def test_the_share_that_made_the_data_is_found() -> None:
    """Only an aggressor that waits for its input tells what its victim gets while it is busy."""
    found = world(40, 2)
    mean_s = found.aggressor_solo[:, SOLO.index("mean_s")]
    found = replace(found, aggressor_solo=alone(mean_s, mean_s * np.random.default_rng(0).uniform(0.0, 0.9, 40)))
    for share in (0.25, 0.7):
        true, _ = sharing(found.victim_solo, found.aggressor_solo, share)
        model = RECIPES["ours"].fit(replace(found, target=true), 0, bounds=False).model

        assert isinstance(model, Ours)
        assert (share in SHARES, model.share) == (True, share)
        assert model.log_mean(found) == pytest.approx(np.log1p(true), abs=1e-3)


def test_times_that_nobody_measured_are_no_obstacle() -> None:
    unmeasured = np.full((40, len(SOLO)), np.nan)
    found = replace(world(40, 3), victim_solo=unmeasured, aggressor_solo=unmeasured)
    predictor = fit(found)

    assert np.isfinite(predictor.upper(found)).all()
    assert rmsle(predictor, found) < 0.8 * log_target(found).std()


# ---- the process -----------------------------------------------------------------------------------------------------

LAYOUT = gaussian.Layout(victim=[[0, 1], [2]], aggressor=[[3, 4], [5]], pair=[[6], [7]])


def plain(hyper: Floats, first: Floats, second: Floats) -> Floats:
    """The covariance as the module's docstring has it, one number after another."""
    weights, (victim, aggressor, both, pair, line) = np.exp(hyper[:6]), np.exp(hyper[6:11])

    def kernel(x: Floats, y: Floats, groups: Sequence[Sequence[int]], numbers: Sequence[int]) -> float:
        squared = sum(
            weights[n] * np.mean([(x[c] - y[c]) ** 2 for c in group]) for n, group in zip(numbers, groups, strict=True)
        )
        return (1 + math.sqrt(3 * squared)) * math.exp(-math.sqrt(3 * squared))

    found = np.empty((len(first), len(second)))
    for i, x in enumerate(first):
        for j, y in enumerate(second):
            v, a = kernel(x, y, LAYOUT.victim, (0, 1)), kernel(x, y, LAYOUT.aggressor, (2, 3))
            product = (x[6] * y[6] + x[7] * y[7]) / 2
            found[i, j] = (
                victim * v + aggressor * a + both * v * a + pair * kernel(x, y, LAYOUT.pair, (4, 5)) + line * product
            )
    return found


def inputs_and_target(count: int, seed: int = 0) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(0.0, 1.0, (count, 8))
    return inputs, np.sin(inputs[:, 0]) * inputs[:, 3] + 0.5 * inputs[:, 6] + generator.normal(0.0, 0.1, count)


def drawn_hyper(seed: int = 0) -> Floats:
    means, deviations = LAYOUT.prior()
    return means + 0.5 * deviations * np.random.default_rng(seed).normal(0.0, 1.0, len(means))


def conditioned(like: gaussian.GaussianProcess, inputs: Floats, standard: Floats) -> gaussian.GaussianProcess:
    """The same process with the same hyperparameters after other samples, by plain formulas."""
    noise = math.exp(like.hyper[-1]) + gaussian.JITTER
    covariance = plain(like.hyper, inputs, inputs) + noise * np.eye(len(inputs))
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    weights: Floats = np.linalg.solve(covariance, standard).astype(float)
    return replace(like, inputs=inputs, weights=weights, root=root)


def process(count: int = 25, *, hyper: Floats | None = None) -> tuple[gaussian.GaussianProcess, Floats, Floats]:
    """A process after ``count`` samples, their columns and target; columns are standard and the target is not."""
    inputs, standard = inputs_and_target(count)
    empty = gaussian.GaussianProcess(
        layout=LAYOUT,
        centre=np.zeros(8),
        scale=np.ones(8),
        level=2.0,
        unit=3.0,
        inputs=inputs,
        weights=standard,
        hyper=drawn_hyper() if hyper is None else hyper,
        root=np.eye(count),
    )
    return conditioned(empty, inputs, standard), inputs, 2.0 + 3.0 * standard


def test_the_covariance_is_the_one_of_the_docstring() -> None:
    first, second = inputs_and_target(6)[0], inputs_and_target(9, 1)[0]

    assert gaussian._covariance(LAYOUT, drawn_hyper(), first, second) == pytest.approx(
        plain(drawn_hyper(), first, second), rel=1e-12
    )


@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_the_fast_covariance_is_the_plain_one(count: int) -> None:
    """All pairs of some sides, in disorder, over several chunks: each side repeats."""
    found, inputs, _ = process()
    generator = np.random.default_rng(count)
    sides = generator.normal(0.0, 1.0, (20, 8))
    rows = np.column_stack(
        [
            sides[generator.integers(0, 20, count), :3],
            sides[generator.integers(0, 20, count), 3:6],
            generator.normal(size=(count, 2)),
        ]
    )
    fast = list(found._crosses(rows))

    assert [len(part) for part in fast] == [
        min(gaussian.CHUNK, count - begin) for begin in range(0, count, gaussian.CHUNK)
    ]
    assert np.concatenate(fast) == pytest.approx(
        gaussian._covariance(LAYOUT, found.hyper, rows, inputs), rel=1e-11, abs=1e-12
    )


def test_mean_and_deviation_of_many_rows_are_those_of_each() -> None:
    found, _, _ = process()
    rows = np.tile(inputs_and_target(30, 4)[0], (20, 1))
    alone = [(found.mean(rows[n : n + 1])[0], found.deviation(rows[n : n + 1])[0]) for n in range(30)]

    assert np.column_stack([found.mean(rows), found.deviation(rows)]) == pytest.approx(
        np.tile(alone, (20, 1)), rel=1e-10
    )


def test_mean_and_deviation_are_the_plain_formulas() -> None:
    """Equations 2.25 and 2.26, the noise of a new measurement included."""
    found, inputs, target = process()
    rows = inputs_and_target(7, 3)[0]
    noise = math.exp(found.hyper[-1]) + gaussian.JITTER
    inverse = np.linalg.inv(plain(found.hyper, inputs, inputs) + noise * np.eye(len(inputs)))
    cross = plain(found.hyper, rows, inputs)
    variance = np.diag(plain(found.hyper, rows, rows) - cross @ inverse @ cross.T) + noise

    assert found.mean(rows) == pytest.approx(2.0 + cross @ inverse @ (target - 2.0), rel=1e-9)
    assert found.deviation(rows) == pytest.approx(3.0 * np.sqrt(variance), rel=1e-9)


def test_without_noise_the_mean_goes_through_the_samples() -> None:
    quiet = drawn_hyper()
    quiet[-1] = -30.0
    found, inputs, target = process(hyper=quiet)
    noisy = drawn_hyper()
    noisy[-1] = 2.0

    assert found.mean(inputs) == pytest.approx(target, abs=1e-3)
    assert found.deviation(inputs).max() < 0.05 * found.deviation(inputs + 2.0).min()
    assert np.abs(process(hyper=noisy)[0].mean(inputs) - target).max() > 1.0


def test_the_deviation_grows_away_from_the_samples_and_then_stays() -> None:
    found, inputs, _ = process()
    away = found.deviation(inputs.mean(0) + np.outer([0.0, 1.0, 2.0, 3.0], np.ones(8)))
    assert (np.diff(away) > 0).all()

    beyond = found.deviation(np.array([[gaussian.FAR] * 8, [10 * gaussian.FAR] * 8, [1e9] * 8]))
    assert beyond[0] == beyond[1] == beyond[2]


def test_what_is_unknown_is_the_mean_of_its_column() -> None:
    found, _, _ = process()
    found = replace(found, centre=np.arange(8.0))

    assert found.mean(np.full((1, 8), np.nan)) == pytest.approx(found.mean(np.arange(8.0)[None]))


def test_left_out_is_as_if_conditioned_anew() -> None:
    found, inputs, target = process()
    standard = (target - found.level) / found.unit
    parts = [np.array([4]), np.array([0, 7, 8]), np.arange(10, 20)]
    for part, scores in zip(parts, found.left_out(parts), strict=True):
        rest = np.setdiff1d(np.arange(len(target)), part)
        without = conditioned(found, inputs[rest], standard[rest])
        assert scores == pytest.approx(
            (target[part] - without.mean(inputs[part])) / without.deviation(inputs[part]), rel=1e-6
        )


def test_a_fit_standardises_and_conditions_on_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, standard = inputs_and_target(30)
    table, target = 5.0 + 2.0 * inputs, 7.0 + 4.0 * standard
    table[3, 1] = np.nan
    monkeypatch.setattr(gaussian, "SOUGHT_ON", 12)
    found = gaussian.fit(table, target, LAYOUT, seed=0)

    whole = table[~np.isnan(table[:, 1]), 1]
    assert found.centre[1] == pytest.approx(whole.mean())
    assert found.scale[1] == pytest.approx(math.sqrt((((whole - whole.mean()) ** 2).sum() + 2 * 0.25) / (29 + 2)))
    assert [found.level, found.unit] == pytest.approx([target.mean(), target.std()])
    assert len(found.inputs) == 30
    anew = conditioned(found, found.inputs, (target - found.level) / found.unit)
    assert found.mean(table) == pytest.approx(anew.mean(table), rel=1e-8)
    assert found.deviation(table) == pytest.approx(anew.deviation(table), rel=1e-8)
    assert np.corrcoef(found.mean(table), target)[0, 1] > 0.9


def test_the_evidence_is_the_marginal_likelihood() -> None:
    inputs, target = inputs_and_target(20)
    standard = (inputs - inputs.mean(0)) / np.sqrt((20 * inputs.var(0) + 2 * 0.25) / 22)
    hyper, _ = LAYOUT.prior()
    covariance = plain(hyper, standard, standard) + (math.exp(hyper[-1]) + gaussian.JITTER) * np.eye(20)
    rest = target - target.mean()
    expected = -0.5 * rest @ np.linalg.solve(covariance, rest) - 0.5 * np.linalg.slogdet(covariance)[1]

    assert gaussian.log_marginal_likelihood(inputs, target, LAYOUT) == pytest.approx(expected, rel=1e-9)


Objective = Callable[[Floats], tuple[float, Floats]]


@pytest.fixture
def sought(monkeypatch: pytest.MonkeyPatch) -> tuple[Objective, Floats, Floats]:
    """The objective that a fit minimises, where it began and what it found."""
    noted: list[tuple[Objective, Floats]] = []
    minimum = gaussian.minimum

    def spy(objective: Objective, start: Floats, unit: Floats) -> Floats:
        noted.append((objective, start))
        return minimum(objective, start, unit)

    monkeypatch.setattr(gaussian, "minimum", spy)
    found = gaussian._best_hyperparameters(*inputs_and_target(20), LAYOUT)
    [(objective, start)] = noted
    return objective, start, found


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_the_gradient_is_that_of_finite_differences(sought: tuple[Objective, Floats, Floats], seed: int | None) -> None:
    objective, start, _ = sought
    at = start if seed is None else drawn_hyper(seed)
    steps = 1e-5 * np.eye(len(at))
    slopes = [(objective(at + step)[0] - objective(at - step)[0]) / 2e-5 for step in steps]

    assert objective(at)[1] == pytest.approx(slopes, rel=1e-5, abs=1e-6)


def test_the_objective_is_likelihood_times_prior_and_gets_better(sought: tuple[Objective, Floats, Floats]) -> None:
    objective, start, found = sought
    inputs, target = inputs_and_target(20)
    hyper = drawn_hyper(2)
    means, deviations = LAYOUT.prior()
    covariance = plain(hyper, inputs, inputs) + (math.exp(hyper[-1]) + gaussian.JITTER) * np.eye(20)
    likelihood = 0.5 * target @ np.linalg.solve(covariance, target) + 0.5 * np.linalg.slogdet(covariance)[1]

    assert objective(hyper)[0] == pytest.approx(
        likelihood + 0.5 * (((hyper - means) / deviations) ** 2).sum(), rel=1e-9
    )
    assert objective(found)[0] < objective(start)[0] - 1.0
    assert np.abs(objective(found)[1]).max() < 0.1 * np.abs(objective(start)[1]).max()


def rosenbrock(x: Floats) -> tuple[float, Floats]:
    bend = x[1] - x[0] ** 2
    return float((1 - x[0]) ** 2 + 100 * bend**2), np.array([-2 * (1 - x[0]) - 400 * x[0] * bend, 200 * bend])


def test_the_minimum_of_a_known_function() -> None:
    found = gaussian.minimum(rosenbrock, np.array([-1.2, 1.0]), np.ones(2), iterations=200)

    assert found == pytest.approx([1.0, 1.0], abs=0.02)
    stopped = gaussian.minimum(rosenbrock, np.array([-1.2, 1.0]), np.ones(2), iterations=3)
    assert rosenbrock(found)[0] < rosenbrock(stopped)[0] < rosenbrock(np.array([-1.2, 1.0]))[0]


def test_the_search_steps_back_from_where_there_is_no_value() -> None:
    def walled(x: Floats) -> tuple[float, Floats]:
        if x[0] > 2.5:
            raise np.linalg.LinAlgError
        return float((x[0] - 2.0) ** 4), np.array([4 * (x[0] - 2.0) ** 3])

    assert gaussian.minimum(walled, np.array([-30.0]), np.array([20.0])) == pytest.approx([2.0], abs=0.3)


def test_a_search_from_the_minimum_stays() -> None:
    assert gaussian.minimum(rosenbrock, np.ones(2), np.ones(2)).tolist() == [1.0, 1.0]


# ---- bounds ----------------------------------------------------------------------------------------------------------


class Fixed:
    """ln 2 for everybody, with a spread of a half."""

    def log_mean(self, samples: Samples) -> Floats:
        return np.full(len(samples), math.log(2.0))

    def spread(self, samples: Samples) -> Floats:
        return np.full(len(samples), 0.5)

    def arrays(self) -> Mapping[str, Any]:
        return {}


def fixed(**scores: Sequence[float]) -> FittedPredictor:
    found: dict[Any, Floats] = {side: np.array(values, float) for side, values in scores.items()}
    some = frozenset({"m0"})
    return FittedPredictor(
        recipe="ours", direction="training", model=Fixed(), victims=some, aggressors=some, scores=found
    )


@pytest.mark.parametrize(
    ("count", "coverage", "position"),
    [(9, 0.9, 9), (10, 0.9, 10), (19, 0.9, 18), (20, 0.9, 19), (99, 0.9, 90), (99, 0.5, 50), (3, 0.9, 3), (1, 0.1, 1)],
)
def test_the_bound_is_the_quantile_of_n_plus_one(count: int, coverage: float, position: int, known: Samples) -> None:
    """The ceil((n + 1) x coverage)-th smallest of n, times the spread, on top of the mean in log space."""
    upper = fixed(none=[0.01 * number for number in range(1, count + 1)]).upper(known, coverage)

    assert upper == pytest.approx(np.full(40, 2.0 * math.exp(0.5 * 0.01 * position) - 1.0))


def test_a_bound_is_at_least_nothing(known: Samples) -> None:
    assert not fixed(none=[-50.0]).upper(known).any()


def test_each_side_that_is_not_known_has_its_own_quantile(known: Samples) -> None:
    four = replace(known.take(np.arange(4)), victims=["m0", "x", "m0", "x"], aggressors=["m0", "m0", "x", "x"])
    predictor = fixed(none=[0.2], victim=[0.4], aggressor=[0.6], both=[0.8])

    assert UNSEEN == ("none", "victim", "aggressor", "both")
    assert np.log1p(predictor.upper(four)) - math.log(2.0) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    # Without scores of its own a side takes those of known models.
    assert np.log1p(fixed(none=[0.2], victim=[0.4]).upper(four)) - math.log(2.0) == pytest.approx([0.1, 0.2, 0.1, 0.1])


def test_a_model_is_known_after_some_pairs() -> None:
    """Different pairs count, repeats do not; each side by itself."""
    found = world(40, 0).take(np.arange(2 * KNOWN_PAIRS + 3))
    n = KNOWN_PAIRS
    victims = ["often"] * n + ["repeated"] * n + ["seldom"] * 3
    aggressors = ["a", "b", "c", *["common"] * (2 * n)]
    pair = np.array([*range(n), *[n] * n, *range(n + 1, n + 4)])
    predictor = RECIPES["linear"].fit(
        replace(found, victims=victims, aggressors=aggressors, pair=pair), 0, bounds=False
    )

    assert predictor.victims == {"often"}
    assert predictor.aggressors == {"common"}


@pytest.mark.parametrize(("name", "seeds", "count"), [("linear", 20, 150), ("ours", 8, 60)])
def test_bounds_cover_what_they_promise(name: str, seeds: int, count: int) -> None:
    """
    Pairs drawn from one space are exchangeable. The mean as a bound would cover about a half, the largest residual
    everything.
    """
    covered, half, below = [], [], []
    for seed in range(seeds):
        learned, held = halves(world(count + 200, seed), count)
        predictor = RECIPES[name].fit(learned, seed)
        covered.append((held.target <= predictor.upper(held, 0.9)).mean())
        half.append((held.target <= predictor.upper(held, 0.5)).mean())
        below.append((held.target <= predictor.predict(held)).mean())

    assert 0.86 < np.mean(covered) < 0.94
    assert 0.43 < np.mean(half) < 0.57
    assert np.mean(below) < 0.8


def test_residuals_are_of_pairs_that_were_left_out(known: Samples) -> None:
    """Repeats and the other direction of a pair are left out with it, and each pair once."""
    twice = replace(known, pair=np.arange(40) // 2, target=np.arange(40.0))
    seen: list[tuple[set[int], set[int]]] = []

    class Spy(Fixed):
        def __init__(self, learned: Samples) -> None:
            self.learned = set(learned.pair.tolist())

        def log_mean(self, samples: Samples) -> Floats:
            seen.append((self.learned, set(samples.pair.tolist())))
            return np.zeros(len(samples))

    scores = pairwise._left_out(twice, 0, lambda learned, seed: Spy(learned))

    assert scores == pytest.approx(np.sort(np.log1p(np.arange(40.0))))
    assert len(seen) == pairwise.FOLDS
    assert all(not learned & held and learned | held == set(range(20)) for learned, held in seen)
    assert sorted(pair for _, held in seen for pair in held) == list(range(20))


def test_ours_leaves_out_pairs_and_models(known: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Any]] = []
    left_out = gaussian.GaussianProcess.left_out

    def spy(self: gaussian.GaussianProcess, parts: Sequence[Any]) -> list[Floats]:
        asked.append([part.tolist() for part in parts])
        return left_out(self, parts)

    monkeypatch.setattr(gaussian.GaussianProcess, "left_out", spy)
    twice = replace(known, pair=np.arange(40) // 2)
    predictor = fit(twice)

    assert asked[0] == [[2 * pair, 2 * pair + 1] for pair in range(20)]
    for parts, names in (
        (asked[1], [known.victims]),
        (asked[2], [known.aggressors]),
        (asked[3], [known.victims, known.aggressors]),
    ):
        models = sorted({name for side in names for name in side})
        assert parts == [[n for n in range(40) if any(side[n] == model for side in names)] for model in models]
    assert {side: len(scores) for side, scores in predictor.scores.items()} | {"both": 0} == {
        "none": 40,
        "victim": 40,
        "aggressor": 40,
        "both": 0,
    }
    assert all((np.diff(scores) >= 0).all() for scores in predictor.scores.values())


def test_the_bound_of_an_unseen_model_is_wider() -> None:
    learned, held = halves(world(200, 4), 100)
    predictor = fit(learned)
    new = ["new"] * len(held)
    bounds = [
        predictor.upper(replace(held, victims=victims, aggressors=aggressors))
        for victims, aggressors in (
            (held.victims, held.aggressors),
            (new, held.aggressors),
            (held.victims, new),
            (new, new),
        )
    ]

    assert predictor.victims >= set(held.victims)
    assert predictor.aggressors >= set(held.aggressors)
    for wider in bounds[1:]:
        assert (wider > bounds[0]).all()
    assert (bounds[0] > predictor.predict(held)).all()


def test_bounds_of_three_models_are_wider_by_their_sides_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    three, four = (world(60, 0, models=models) for models in (3, 4))
    wide = [fit(known) for known in (three, four)]
    monkeypatch.setattr(pairwise, "WIDER", dict.fromkeys(UNSEEN, 1.0))
    plain = [fit(known) for known in (three, four)]

    assert pairwise.FEW_MODELS == 3
    for side, factor in zip(UNSEEN, (1.4, 1.3, 1.1, 1.75), strict=True):
        before = plain[0].scores[side]
        np.testing.assert_allclose(wide[0].scores[side], np.where(before > 0, factor * before, before))
        np.testing.assert_array_equal(wide[1].scores[side], plain[1].scores[side])
    np.testing.assert_array_equal(wide[0].predict(three), plain[0].predict(three))


def test_bounds_widen_away_from_what_was_measured(known: Samples, fitted: Mapping[str, FittedPredictor]) -> None:
    model = fitted["ours"].model
    far = replace(known, victim=known.victim * 1e3, victim_solo=known.victim_solo * 30)

    assert (model.spread(far) > model.spread(known)).all()


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("count", [0, 1])
def test_less_than_two_pairs_teach_nothing(name: str, count: int, known: Samples) -> None:
    one = replace(known.take(np.arange(5 * count)), pair=np.zeros(5 * count, np.int64))

    with pytest.raises(BadRow, match=f"{count} pairs of world: a predictor needs at least two"):
        RECIPES[name].fit(one, 0)


@pytest.mark.parametrize("name", ["linear", "ours"])
def test_two_pairs_are_enough(name: str, known: Samples) -> None:
    two = known.take(np.arange(2))

    predictor = fit(two, recipe=name)
    assert predictor.predict(two) == pytest.approx(two.target, rel=0.7)
    assert (predictor.upper(known) >= 0).all()


def test_equal_degradations_are_learned_as_they_are(known: Samples) -> None:
    predictor = fit(replace(known, target=np.full(40, 0.3)))

    assert predictor.predict(known) == pytest.approx(np.full(40, 0.3), abs=1e-6)


@pytest.mark.parametrize("name", RECIPES)
def test_another_direction_is_refused(name: str, known: Samples, fitted: Mapping[str, FittedPredictor]) -> None:
    other = replace(known, direction="function")

    with pytest.raises(BadRow, match="of the direction 'training' was given 'function'"):
        fitted[name].predict(other)
    with pytest.raises(BadRow, match="of the direction 'training' was given 'function'"):
        fitted[name].upper(other)


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_asked_is_nothing_answered(name: str, known: Samples, fitted: Mapping[str, FittedPredictor]) -> None:
    none = known.take(np.zeros(0, np.int64))

    assert (fitted[name].predict(none).shape, fitted[name].upper(none).shape) == ((0,), (0,))


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_coverage_is_between_0_and_1(coverage: float, known: Samples, fitted: Mapping[str, FittedPredictor]) -> None:
    with pytest.raises(ValueError, match="a coverage is between 0 and 1"):
        fitted["linear"].upper(known, coverage)


@pytest.mark.parametrize("name", ["linear", "ours"])
def test_without_bounds_there_is_none(name: str, known: Samples) -> None:
    with pytest.raises(ValueError, match="without bounds"):
        RECIPES[name].fit(known, 0, bounds=False).upper(known)


def test_an_unknown_recipe_is_an_error(known: Samples) -> None:
    with pytest.raises(KeyError, match="forest"):
        fit(known, recipe="forest")


@pytest.mark.parametrize("name", ["target", "victim", "aggressor"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_number_no_sample(name: str, bad: float, known: Samples) -> None:
    array = getattr(known, name).copy()
    array[3] = bad

    with pytest.raises(BadRow, match=f"{name} of world holds a value that is not a number"):
        dataclasses.replace(known, **{name: array})


@pytest.mark.parametrize("name", ["victim", "aggressor", "victim_solo", "aggressor_solo", "pair"])
def test_arrays_of_another_shape_are_refused(name: str, known: Samples) -> None:
    array = getattr(known, name)

    with pytest.raises(BadRow, match=f"{name} has the shape"):
        dataclasses.replace(known, **{name: array[:-1]})
    if array.ndim == 2:
        with pytest.raises(BadRow, match=f"{name} has the shape"):
            dataclasses.replace(known, **{name: array[:, :-1]})


def test_a_time_of_nothing_and_a_missing_name_are_refused(known: Samples) -> None:
    with pytest.raises(BadRow, match="-1 or less"):
        replace(known, target=np.full(40, -1.0))
    with pytest.raises(BadRow, match="as many names"):
        replace(known, victims=known.victims[:-1])


def test_a_seed_decides(known: Samples, fresh: Samples, fitted: Mapping[str, FittedPredictor]) -> None:
    """That of the forest is scikit-learn's: with the same one it predicts the same, see above."""
    other = RECIPES["paper"].fit(known, 4, bounds=False)

    assert not np.array_equal(other.predict(fresh), fitted["paper"].predict(fresh))
    assert np.array_equal(fit(known, 3).upper(fresh), fitted["ours"].upper(fresh))


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_stored_predictor_is_the_same_again(
    name: str, fresh: Samples, fitted: Mapping[str, FittedPredictor], tmp_path: Path
) -> None:
    save(fitted[name], tmp_path / "new" / "folder")
    again = load(tmp_path / "new" / "folder")

    assert np.array_equal(again.predict(fresh), fitted[name].predict(fresh))
    for coverage in (0.5, 0.9):
        assert np.array_equal(again.upper(fresh, coverage), fitted[name].upper(fresh, coverage))
    for part in ("recipe", "direction", "victims", "aggressors", "place"):
        assert getattr(again, part) == getattr(fitted[name], part)
    assert type(again.model) is type(fitted[name].model)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [ARRAYS, MANIFEST]


def test_no_place_and_no_bounds_are_kept_as_such(known: Samples, tmp_path: Path) -> None:
    for name in ("linear", "ours"):
        save(RECIPES[name].fit(known, 0, bounds=False), tmp_path)
        again = load(tmp_path)
        assert (again.recipe, again.place, again.scores) == (name, None, {})


def test_where_nothing_is_stored(tmp_path: Path, fitted: Mapping[str, FittedPredictor]) -> None:
    with pytest.raises(OSError, match=MANIFEST):
        load(tmp_path)
    save(fitted["linear"], tmp_path)
    (tmp_path / ARRAYS).unlink()
    with pytest.raises(OSError, match=ARRAYS):
        load(tmp_path)


def test_a_save_that_was_cut_short_is_noticed(
    known: Samples, fitted: Mapping[str, FittedPredictor], tmp_path: Path
) -> None:
    """New arrays beside the old manifest."""
    save(fitted["linear"], tmp_path / "old")
    save(RECIPES["linear"].fit(known.take(np.arange(30)), 0), tmp_path / "new")
    (tmp_path / "old" / ARRAYS).write_bytes((tmp_path / "new" / ARRAYS).read_bytes())

    with pytest.raises(BadArtifact, match="damaged or belongs to another manifest"):
        load(tmp_path / "old")


def tell(folder: Path, **changes: object) -> None:
    """Change entries of the manifest; None takes one away."""
    manifest = json.loads((folder / MANIFEST).read_text()) | changes
    (folder / MANIFEST).write_text(json.dumps({name: value for name, value in manifest.items() if value is not None}))


def arrays_of(folder: Path, content: bytes) -> None:
    """Other arrays, with a manifest that vouches for them."""
    (folder / ARRAYS).write_bytes(content)
    tell(folder, sha256=hashlib.sha256(content).hexdigest())


def packed(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :]


def raw(folder: Path) -> bytes:
    return (folder / ARRAYS).read_bytes()


DAMAGE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "cut arrays": (lambda at: (at / ARRAYS).write_bytes(raw(at)[:-30]), "damaged or belongs"),
    "empty arrays": (lambda at: (at / ARRAYS).write_bytes(b""), "damaged or belongs"),
    "a flipped byte": (lambda at: (at / ARRAYS).write_bytes(flipped(raw(at), 100)), "damaged or belongs"),
    "another digest": (lambda at: tell(at, sha256="0" * 64), "damaged or belongs"),
    "no digest": (lambda at: tell(at, sha256=None), "sha256"),
    "vouched, but cut": (lambda at: arrays_of(at, raw(at)[:-30]), "not a stored predictor"),
    "vouched, but empty": (lambda at: arrays_of(at, b""), "not a stored predictor"),
    "vouched, but no archive": (lambda at: arrays_of(at, b"weights"), "not a stored predictor"),
    "vouched, but a single array": (
        lambda at: arrays_of(at, b"\x93NUMPY\x01\x00" + bytes(64)),
        "not a stored predictor",
    ),
    "vouched, but without an array": (lambda at: arrays_of(at, packed(**{"model.weights": np.zeros(24)})), "constant"),
    "another version": (lambda at: tell(at, version=2), "version 2, 1 is expected"),
    "no version": (lambda at: tell(at, version=None), "version"),
    "fewer features": (lambda at: tell(at, features=PAPER_FEATURES[:-1]), "aggressor.batch"),
    "features in disorder": (lambda at: tell(at, features=PAPER_FEATURES[::-1]), "their order"),
    "an unknown recipe": (lambda at: tell(at, recipe="forest"), "unknown recipe 'forest'"),
    "a recipe that is none": (lambda at: tell(at, recipe=["linear"]), "not a stored predictor"),
    "features of another recipe": (lambda at: tell(at, recipe="ours"), "other features"),
    "an unknown direction": (lambda at: tell(at, direction="sideways"), "'sideways'"),
    "a place that is none": (lambda at: tell(at, place=[]), "not a stored predictor"),
    "half a place": (lambda at: tell(at, place=["X"]), "not a stored predictor"),
    "victims that are none": (lambda at: tell(at, victims=3), "not a stored predictor"),
    "no JSON": (lambda at: (at / MANIFEST).write_text('{"version": 1,'), "not a stored predictor"),
    "no text": (lambda at: (at / MANIFEST).write_bytes(b"\xff\xfe\x00"), "not a stored predictor"),
    "an empty manifest": (lambda at: (at / MANIFEST).write_text(""), "not a stored predictor"),
    "a manifest that is a list": (lambda at: (at / MANIFEST).write_text("[1]"), "not a stored predictor"),
}


@pytest.fixture
def unpickled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of pickle: nothing may be."""
    asked: list[str] = []
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, name=name, **__: asked.append(name))
    return asked


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed(
    damage: str, fitted: Mapping[str, FittedPredictor], tmp_path: Path, unpickled: list[str]
) -> None:
    save(fitted["linear"], tmp_path)
    assert load(tmp_path).recipe == "linear"
    change, why = DAMAGE[damage]
    change(tmp_path)

    with pytest.raises(BadArtifact, match=why):
        load(tmp_path)
    assert unpickled == []


def test_every_flipped_byte_of_vouched_arrays_is_noticed_or_harmless(
    fitted: Mapping[str, FittedPredictor], tmp_path: Path
) -> None:
    """
    Whatever a byte breaks, in the archive's structure or in a compressed array, nothing but BadArtifact comes out.
    """
    save(fitted["linear"], tmp_path)
    whole, noticed = raw(tmp_path), 0
    for position in range(0, len(whole), 7):
        arrays_of(tmp_path, flipped(whole, position))
        try:
            load(tmp_path)
        except BadArtifact:
            noticed += 1

    assert noticed > len(whole) // 7 // 2


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("code of a stored predictor was run",)


@pytest.mark.parametrize("name", ["model.weights", "scores.none", "something else"])
def test_no_code_of_a_file_is_run(
    name: str, fitted: Mapping[str, FittedPredictor], tmp_path: Path, unpickled: list[str]
) -> None:
    save(fitted["linear"], tmp_path)
    with np.load(tmp_path / ARRAYS, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    arrays_of(tmp_path, packed(**arrays | {name: np.array([Bomb()], object)}))

    with pytest.raises(BadArtifact, match="allow_pickle"):
        load(tmp_path)
    assert unpickled == []


def test_a_pickle_in_place_of_the_arrays_is_not_opened(
    fitted: Mapping[str, FittedPredictor], tmp_path: Path, unpickled: list[str]
) -> None:
    save(fitted["linear"], tmp_path)
    arrays_of(tmp_path, pickle.dumps(Bomb()))

    with pytest.raises(BadArtifact, match="not a stored predictor"):
        load(tmp_path)
    assert unpickled == []


def test_what_is_stored_are_arrays_of_numbers(fitted: Mapping[str, FittedPredictor], tmp_path: Path) -> None:
    save(fitted["ours"], tmp_path)
    with np.load(tmp_path / ARRAYS, allow_pickle=False) as stored:
        kinds = {name: stored[name].dtype.kind for name in stored.files}

    assert set(kinds.values()) == {"f"}
    assert {name.partition(".")[0] for name in kinds} == {"model", "scores"}
    assert isinstance(load(tmp_path).model, Ours)
    save(fitted["linear"], tmp_path)
    assert isinstance(load(tmp_path).model, Linear)
