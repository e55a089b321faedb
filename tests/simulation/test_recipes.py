"""The paper's recipes: frozen parameters, features of table III, and bounds from pairs that were left out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lab.simulation import recipes
from lab.simulation.recipes import FOLDS, PAPER_FEATURES, RECIPES, estimator, left_out, paper_features
from ml.predict.pairwise import FittedPredictor
from ml.predict.samples import SOLO, Floats, Samples
from ml.rows import FEATURES, BadRow
from tests.support.pairs import halves, rmsle, world

pytestmark = pytest.mark.numeric

PAPER_RECIPES = ("linear", "bagging", "paper")


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
    return {name: RECIPES[name].fit(known, 3) for name in PAPER_RECIPES}


def test_the_recipes_are_the_papers_and_ours() -> None:
    assert tuple(RECIPES) == (*PAPER_RECIPES, "ours")
    assert all(recipe.name == name for name, recipe in RECIPES.items())


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

    monkeypatch.setattr(recipes, "estimator", spy)
    RECIPES[name].fit(known, 11, bounds=False)

    [(recipe, seed, inputs, target)] = asked
    assert (recipe, seed) == (name, 11)
    assert np.array_equal(inputs, paper_features(known))
    assert known.target.min() < 0
    assert target.tolist() == [max(0.0, value) for value in known.target.tolist()]


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


def test_residuals_are_of_pairs_that_were_left_out(known: Samples) -> None:
    """Repeats and the other direction of a pair are left out with it, and each pair once."""
    twice = replace(known, pair=np.arange(40) // 2, target=np.arange(40.0))
    seen: list[tuple[set[int], set[int]]] = []

    class Spy:
        def __init__(self, learned: Samples) -> None:
            self.learned = set(learned.pair.tolist())

        def log_mean(self, samples: Samples) -> Floats:
            seen.append((self.learned, set(samples.pair.tolist())))
            return np.zeros(len(samples))

        def spread(self, samples: Samples) -> Floats:
            return np.ones(len(samples))

    scores = left_out(twice, 0, lambda learned, seed: Spy(learned))

    assert scores == pytest.approx(np.sort(np.log1p(np.arange(40.0))))
    assert len(seen) == FOLDS
    assert all(not learned & held and learned | held == set(range(20)) for learned, held in seen)
    assert sorted(pair for _, held in seen for pair in held) == list(range(20))


def test_bounds_cover_what_they_promise() -> None:
    """
    Pairs drawn from one space are exchangeable. The mean as a bound would cover about a half, the largest residual
    everything.
    """
    covered, half, below = [], [], []
    for seed in range(20):
        learned, held = halves(world(350, seed), 150)
        predictor = RECIPES["linear"].fit(learned, seed)
        covered.append((held.target <= predictor.upper(held, 0.9)).mean())
        half.append((held.target <= predictor.upper(held, 0.5)).mean())
        below.append((held.target <= predictor.predict(held)).mean())

    assert 0.86 < np.mean(covered) < 0.94
    assert 0.43 < np.mean(half) < 0.57
    assert np.mean(below) < 0.8


@pytest.mark.parametrize("name", PAPER_RECIPES)
@pytest.mark.parametrize("count", [0, 1])
def test_less_than_two_pairs_teach_nothing(name: str, count: int, known: Samples) -> None:
    one = replace(known.take(np.arange(5 * count)), pair=np.zeros(5 * count, np.int64))

    with pytest.raises(BadRow, match=f"{count} pairs of world: a predictor needs at least two"):
        RECIPES[name].fit(one, 0)


def test_two_pairs_are_enough(known: Samples) -> None:
    two = known.take(np.arange(2))

    predictor = RECIPES["linear"].fit(two)
    assert predictor.predict(two) == pytest.approx(two.target, rel=0.7)
    assert (predictor.upper(known) >= 0).all()


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_another_direction_is_refused(name: str, known: Samples, fitted: Mapping[str, FittedPredictor]) -> None:
    other = replace(known, direction="function")

    with pytest.raises(BadRow, match="of the direction 'training' was given 'function'"):
        fitted[name].predict(other)
    with pytest.raises(BadRow, match="of the direction 'training' was given 'function'"):
        fitted[name].upper(other)


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_nothing_asked_is_nothing_answered(name: str, known: Samples, fitted: Mapping[str, FittedPredictor]) -> None:
    none = known.take(np.zeros(0, np.int64))

    assert (fitted[name].predict(none).shape, fitted[name].upper(none).shape) == ((0,), (0,))


def test_without_bounds_there_is_none(known: Samples) -> None:
    with pytest.raises(ValueError, match="without bounds"):
        RECIPES["linear"].fit(known, 0, bounds=False).upper(known)


def test_a_seed_decides(known: Samples, fresh: Samples, fitted: Mapping[str, FittedPredictor]) -> None:
    other = RECIPES["paper"].fit(known, 4, bounds=False)

    assert not np.array_equal(other.predict(fresh), fitted["paper"].predict(fresh))
    assert np.array_equal(RECIPES["paper"].fit(known, 3, bounds=False).predict(fresh), fitted["paper"].predict(fresh))
