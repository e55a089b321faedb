"""
The recipes of the paper's table V, beside the product's own (``ml/predict/pairwise.py``).

They learn from the 24 raw numbers of table III (12 for each side, section IV-B). Their parameters are frozen, so that
"better than the paper's recipe" is a fixed comparison:

======= ============================================================================================================
linear  least squares
bagging 200 regression trees, each on a bootstrap sample
paper   random forest of 200 trees, unlimited depth, leaves of one sample (the paper gives none of these values)
======= ============================================================================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from ml.predict.pairwise import OURS, Model, Recipe, Scores, log_target
from ml.predict.samples import Floats, Samples
from ml.rows import FEATURES

#: The 24 features of section IV-B.
PAPER_FEATURES: Final = tuple(f"{side}.{name}" for side in ("victim", "aggressor") for name in FEATURES)
#: Parts into which the pairs are divided; each is left out once.
FOLDS: Final = 5


def paper_features(samples: Samples) -> Floats:
    """[n, 24] in the order of :data:`PAPER_FEATURES`."""
    return np.hstack([samples.victim, samples.aggressor])


class Estimator(Protocol):
    """The part of a scikit-learn regressor that is used; scikit-learn has no types."""

    def fit(self, inputs: Floats, target: Floats) -> object: ...

    def predict(self, inputs: Floats) -> Floats: ...

    def get_params(self) -> Mapping[str, Any]: ...


def estimator(name: str, seed: int) -> Estimator:
    """An unfitted regressor of one of the paper's recipes. Frozen: all comparisons here are against these."""
    # Imported here, because a simulation that is told all needs no scikit-learn.
    from sklearn.ensemble import BaggingRegressor, RandomForestRegressor  # type: ignore[import-untyped]
    from sklearn.linear_model import LinearRegression  # type: ignore[import-untyped]
    from sklearn.tree import DecisionTreeRegressor  # type: ignore[import-untyped]

    regressor: Estimator
    match name:
        case "linear":
            regressor = LinearRegression()
        case "bagging":
            regressor = BaggingRegressor(DecisionTreeRegressor(), n_estimators=200, random_state=seed)
        case "paper":
            regressor = RandomForestRegressor(n_estimators=200, max_depth=None, min_samples_leaf=1, random_state=seed)
        case _:
            raise KeyError(name)
    return regressor


@dataclass(frozen=True, slots=True)
class Regressed:
    """A fitted regressor of fractions, as a :class:`~ml.predict.pairwise.Model`."""

    regressor: Estimator

    def log_mean(self, samples: Samples) -> Floats:
        if not len(samples):
            return np.zeros(0)  # scikit-learn refuses to be asked nothing
        logs: Floats = np.log1p(np.maximum(self.regressor.predict(paper_features(samples)), 0.0))
        return logs

    def spread(self, samples: Samples) -> Floats:
        return np.ones(len(samples))


def _paper_recipe(name: str) -> Recipe:
    def fit_model(samples: Samples, seed: int) -> Model:
        fitted = estimator(name, seed)
        fitted.fit(paper_features(samples), np.maximum(samples.target, 0.0))
        return Regressed(fitted)

    def learn(samples: Samples, seed: int, bounds: bool) -> tuple[Model, Scores]:
        return fit_model(samples, seed), {"none": left_out(samples, seed, fit_model)} if bounds else {}

    return Recipe(name=name, learn=learn)


def left_out(samples: Samples, seed: int, fit_model: Callable[[Samples, int], Model]) -> Floats:
    """Residuals of every sample, ascending, by a model that was fitted without its pair."""
    residuals = np.empty(len(samples))
    pairs = np.random.default_rng(seed).permutation(np.unique(samples.pair))
    for part in np.array_split(pairs, min(FOLDS, len(pairs))):
        out = np.isin(samples.pair, part)
        residuals[out] = log_target(samples)[out] - fit_model(samples.take(~out), seed).log_mean(samples.take(out))
    return np.sort(residuals)


RECIPES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe for recipe in (*map(_paper_recipe, ("linear", "bagging", "paper")), OURS)
}
