"""
Trivial predictors, which know of a pair only who takes part: what a recipe has to beat to have learned anything about
workloads.

========= ==========================================================================================================
constant  the mean of the training part in log space
models    the mean, an effect of the victim's model and one of the aggressor's
pairs     these, an effect of each workload (model and batch) on each side, and one of each pair of models
========= ==========================================================================================================

Effects add in log space and are least squares with a ridge of one sample, so that an effect that few samples tell stays
near zero.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

import numpy as np

from ml.predict.pairwise import log_target
from ml.predict.samples import Floats, Samples

#: The effects of each sample: a predictor of degradations adds those that it has learned.
_Effects = Callable[[Samples], Sequence[Sequence[Hashable]]]


def _none(samples: Samples) -> list[list[Hashable]]:
    return [[] for _ in range(len(samples))]


def _models(samples: Samples) -> list[list[Hashable]]:
    return [
        [("victim", victim), ("aggressor", aggressor)]
        for victim, aggressor in zip(samples.victims, samples.aggressors, strict=True)
    ]


def _pairs(samples: Samples) -> list[list[Hashable]]:
    victims = _workloads(samples.victims, samples.victim, samples.victim_solo)
    aggressors = _workloads(samples.aggressors, samples.aggressor, samples.aggressor_solo)
    return [
        [*models, tuple(models), ("victim", *victim), ("aggressor", *aggressor)]
        for models, victim, aggressor in zip(_models(samples), victims, aggressors, strict=True)
    ]


def _workloads(models: Sequence[str], table: Floats, solo: Floats) -> list[tuple[Hashable, ...]]:
    """A workload is told apart by its features: two that wait for their input differently have other times alone."""
    return [(name, row.tobytes(), alone.tobytes()) for name, row, alone in zip(models, table, solo, strict=True)]


def _additive(effects_of: _Effects) -> Callable[[Samples, Samples], Floats]:
    def predict(learned: Samples, held: Samples) -> Floats:
        numbers: dict[Hashable, int] = {}
        for effects in effects_of(learned):
            for effect in effects:
                numbers.setdefault(effect, len(numbers))

        def present(samples: Samples) -> Floats:
            matrix = np.zeros((len(samples), len(numbers)))
            for row, effects in enumerate(effects_of(samples)):
                matrix[row, [numbers[effect] for effect in effects if effect in numbers]] = 1.0
            return matrix

        inputs, target = present(learned), log_target(learned)
        level = target.mean()
        sizes = np.linalg.solve(inputs.T @ inputs + np.eye(len(numbers)), inputs.T @ (target - level))
        return np.asarray(np.expm1(np.maximum(level + present(held) @ sizes, 0.0)))

    return predict


#: Degradations [m] of the second samples, learned from the first.
TRIVIAL: Final[Mapping[str, Callable[[Samples, Samples], Floats]]] = {
    "constant": _additive(_none),
    "models": _additive(_models),
    "pairs": _additive(_pairs),
}
