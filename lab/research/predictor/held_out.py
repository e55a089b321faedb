"""Judges a predictor on pairs that it was not fitted on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np

from lab.research.predictor.evaluate import squared_log_error
from lab.research.predictor.published import ordered
from ml.predict.samples import Floats, Ints, Samples
from ml.rows import PlaceProfile, Row

SEED: Final = 0
FOLDS: Final = 5
#: Least number of pairs for a cross-validation.
LEAST_PAIRS: Final = 20


class BoundedPredictor(Protocol):
    """A predictor to judge, as ml.predict.pairwise.FittedPredictor."""

    def predict(self, samples: Samples) -> Floats: ...

    def upper(self, samples: Samples, coverage: float = 0.9) -> Floats: ...


Fit = Callable[[Samples, int], BoundedPredictor]
COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPredictions:
    """
    Predictions of pairs by predictors that were not fitted on them.

    ``predicted``, ``upper`` (of :data:`COVERAGE`) and ``constant`` (the mean in log space of the training pairs) are
    fractions [n], in the order of ``samples``.
    """

    samples: Samples
    predicted: Floats
    upper: Floats
    constant: Floats

    @property
    def actual(self) -> Floats:
        return self.samples.target

    @property
    def pairs(self) -> int:
        return len(np.unique(self.samples.pair))

    @property
    def rmsle(self) -> float:
        """Eq. 2."""
        return float(np.sqrt(squared_log_error(self.actual, self.predicted).mean()))

    @property
    def skill(self) -> float:
        """1 - MSLE / MSLE of ``constant``: 1 = perfect, 0 = no better than the mean."""
        base = float(squared_log_error(self.actual, self.constant).sum())
        return 1 - float(squared_log_error(self.actual, self.predicted).sum()) / base if base else 0.0

    @property
    def covered(self) -> float:
        """Share of the samples at or below their upper bound."""
        return float((self.actual <= self.upper).mean())

    def of_model(self, side: Literal["victim", "aggressor"]) -> dict[str, tuple[float, int]]:
        """RMSLE over the samples with a model on that side, and their number."""
        names = np.array(self.samples.victims if side == "victim" else self.samples.aggressors)
        errors = squared_log_error(self.actual, self.predicted)
        return {
            name: (float(np.sqrt(errors[names == name].mean())), int((names == name).sum()))
            for name in ordered(names.tolist())
        }


def judge(measured: Samples, fit: Fit, seed: int = SEED) -> JudgedPredictions | None:
    """
    Out-of-fold predictions. A pair with its repeats and its other direction is in one fold. None with too few pairs.
    """
    pairs = np.unique(measured.pair)
    if len(pairs) < LEAST_PAIRS:
        return None
    predicted, upper, constant = (np.full(len(measured), np.nan) for _ in range(3))
    for fold in np.array_split(np.random.default_rng(seed).permutation(pairs), FOLDS):
        held_out: Ints = np.flatnonzero(np.isin(measured.pair, fold))
        training = measured.take(~np.isin(measured.pair, fold))
        predictor = fit(training, seed)
        held_samples = measured.take(held_out)
        predicted[held_out], upper[held_out] = predictor.predict(held_samples), predictor.upper(held_samples, COVERAGE)
        constant[held_out] = np.expm1(np.log1p(np.maximum(training.target, 0)).mean())
    return JudgedPredictions(samples=measured, predicted=predicted, upper=upper, constant=constant)


def pair_rows(profile: PlaceProfile) -> list[Row]:
    """The rows with two members."""
    return [row for row in profile.colocations if len(row.members) == 2]
