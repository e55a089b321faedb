"""Trivial predictors by hand: what they add up, and what they know of a pair that they have not seen."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lab.research.predictor.measured import samples
from lab.research.predictor.trivial import TRIVIAL
from ml import rows
from ml.predict.samples import Samples
from tests.support.measured import pairs, solos


def found() -> Samples:
    [profile] = rows.profiles([*solos(), *pairs(64)])
    return samples(profile, "training", name="cpu")


def named(victims: str, aggressors: str, logs: list[float]) -> Samples:
    """Samples of as many workloads as models, with these logarithms of 1 + degradation."""
    some = found().take(np.arange(len(logs)))
    ones = {
        name: np.ones_like(getattr(some, name)) for name in ("victim", "aggressor", "victim_solo", "aggressor_solo")
    }
    return replace(
        some,
        **ones,
        victims=list(victims),
        aggressors=list(aggressors),
        target=np.expm1(logs),
        pair=np.arange(len(logs)),
    )


def test_the_constant_is_the_mean_in_log_space() -> None:
    predicted = TRIVIAL["constant"](named("ab", "cd", [0.0, 2.0]), named("zz", "zz", [1.0, 1.0]))
    assert predicted == pytest.approx([math.e - 1] * 2)


def test_effects_of_models_add_in_log_space() -> None:
    """Both victims beside both aggressors, a hundred times each: the ridge of one sample hardly counts."""
    victims, aggressors, logs = "aabb" * 100, "cdcd" * 100, [0.1, 0.4, 0.7, 1.0] * 100
    some = found()
    learned = replace(
        some.take(np.zeros(400, np.int64)),
        victims=list(victims),
        aggressors=list(aggressors),
        target=np.expm1(logs),
        pair=np.arange(400),
    )
    held = named("abaz", "cdzz", [0.0] * 4)
    predicted = np.log1p(TRIVIAL["models"](learned, held))
    # Of an unknown model no effect is known: the victim a is 0.3 below the mean of 0.55.
    assert predicted == pytest.approx([0.1, 1.0, 0.25, 0.55], abs=0.01)


def test_a_pair_of_models_has_an_effect_of_its_own() -> None:
    """Nothing but the pair tells: effects of single models cancel out."""
    learned = named("aabb", "cdcd", [0.0, 1.0, 1.0, 0.0])
    held = named("ab", "dd", [0.0, 0.0])
    assert np.log1p(TRIVIAL["models"](learned, held)) == pytest.approx([0.5, 0.5])
    dear, cheap = np.log1p(TRIVIAL["pairs"](learned, held))
    assert (dear, cheap) == (pytest.approx(0.75), pytest.approx(0.25))


def test_a_trivial_prediction_is_at_least_nothing() -> None:
    learned = named("aabb", "cdcd", [0.0, 0.0, 0.0, 8.0])
    for predict in TRIVIAL.values():
        assert (predict(learned, learned) >= 0).all()
