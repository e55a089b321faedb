"""
What a policy believes of degradation, learned from measurements alone: the pair-wise predictor where nothing was
measured (``lab.simulation.recipes``), and the weights of Eq. 3 and 4 (A10's normalised rule).

Nothing here can reach the interference model: a contract of imports keeps this module from it, and what it is given
(:class:`Measured`) holds readings of counters, times and measured pairs alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.simulation.recipes import RECIPES
from ml.predict.samples import SOLO, Direction, Samples
from scheduler.policy.degradation import weight_arrays
from smore.domain.degradation import K_MAX, Neighbour, Weights, of_function, of_training

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: The bound of a measured cell, in deviations: 90 %.
_Z90: Final = 1.2816


@dataclass(frozen=True, slots=True)
class Side:
    """
    Workloads of one role on a place, as (model, batch): table III [n, 12] and what a solo run told [n, len(SOLO)].
    """

    names: Sequence[tuple[str, int]]
    features: Floats
    solo: Floats

    def __len__(self) -> int:
        return len(self.names)

    @property
    def utilisation(self) -> Floats:
        return np.asarray(self.solo[:, SOLO.index("utilisation")])


@dataclass(frozen=True, slots=True)
class ObservedSet:
    """
    Several functions that ran beside a training, all by their places in their sides: what the training lost, and what
    the function ``looked_at`` (a place in ``functions``) did.
    """

    training: int
    functions: tuple[int, ...]
    training_lost: float
    looked_at: int
    function_lost: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """
    Of a direction: degradations as measured [J or F, F], which of them the predictor may learn from (the others judge
    it), and the deviation of a measurement in log space.
    """

    measured: Floats
    known: Mask
    noise: float


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured on a place."""

    trainings: Side
    functions: Side
    pairs: Mapping[Direction, Pairs]


@dataclass(frozen=True, slots=True)
class PairTable:
    """
    Measured and predicted pairs: direction → (expected, 90 % bound). ``rmsle``: of the predicted ones against their
    measurements, which the predictor has not seen.
    """

    cells: Mapping[Direction, tuple[Floats, Floats]]
    rmsle: Mapping[str, float]


def pair_table(measured: Measured, recipe: str, seed: int) -> PairTable:
    """``recipe`` of ``lab.simulation.recipes``; nothing is predicted where everything was measured."""
    cells: dict[Direction, tuple[Floats, Floats]] = {}
    errors: dict[str, float] = {}
    for direction, pairs in measured.pairs.items():
        if pairs.known.all():
            cells[direction] = pairs.measured, pairs.measured
            continue
        expected, upper = _predicted(measured, direction, pairs, recipe, seed)
        errors[direction] = rmsle(expected[~pairs.known], pairs.measured[~pairs.known])
        # The next measurement differs by its own noise and that of the one that is known.
        bound = np.expm1(np.log1p(pairs.measured) + _Z90 * np.sqrt(2.0) * pairs.noise)
        cells[direction] = (
            np.where(pairs.known, pairs.measured, expected),
            np.where(pairs.known, bound, np.maximum(upper, expected)),
        )
    return PairTable(cells, errors)


def samples(measured: Measured, direction: Direction, row: Ints, column: Ints, target: Floats) -> Samples:
    """Of cells of a direction's matrix."""
    trainings, functions = measured.trainings, measured.functions
    rows = functions if direction == "functions" else trainings
    (victims, victim), (aggressors, aggressor) = (rows, row), (functions, column)
    if direction == "function":
        (victims, victim), (aggressors, aggressor) = (functions, column), (trainings, row)
    low, high = np.minimum(row, column), np.maximum(row, column)
    return Samples(
        name="simulated",
        direction=direction,
        victim=victims.features[victim],
        aggressor=aggressors.features[aggressor],
        victim_solo=victims.solo[victim],
        aggressor_solo=aggressors.solo[aggressor],
        target=target,
        victims=[victims.names[index][0] for index in victim],
        aggressors=[aggressors.names[index][0] for index in aggressor],
        pair=(low * len(functions) + high) if direction == "functions" else row * len(functions) + column,
    )


def _predicted(measured: Measured, direction: Direction, pairs: Pairs, recipe: str, seed: int) -> tuple[Floats, Floats]:
    row, column = np.nonzero(pairs.known)
    fitted = RECIPES[recipe].fit(samples(measured, direction, row, column, pairs.measured[pairs.known]), seed)
    row, column = (index.ravel() for index in np.indices(pairs.measured.shape))
    every = samples(measured, direction, row, column, np.zeros(pairs.measured.size))
    return fitted.predict(every).reshape(pairs.measured.shape), fitted.upper(every).reshape(pairs.measured.shape)


def rmsle(predicted: Floats, measured: Floats) -> float:
    """Eq. 2."""
    return float(np.sqrt(np.mean((np.log1p(predicted) - np.log1p(measured)) ** 2))) if predicted.size else 0.0


def gain(measured: Measured) -> Floats:
    """
    A16 [F]: where a pair was measured, utilisation together less the training's; elsewhere the function's share of what
    the training leaves.
    """
    of_training, of_function = measured.trainings.utilisation, measured.functions.utilisation
    together = np.minimum(1.0, of_training[:, None] + of_function[None, :]) - np.minimum(1.0, of_training)[:, None]
    left = of_function[None, :] * (1.0 - of_training[:, None])
    return np.asarray(np.where(measured.pairs["training"].known, together, left).mean(axis=0))


def weights(
    measured: Measured,
    cells: Mapping[Direction, tuple[Floats, Floats]],
    observed: Sequence[ObservedSet],
    models: Mapping[str, int],
) -> tuple[Floats, Floats, Floats]:
    """
    gamma, alpha and beta [K_MAX + 1, M, M] after what was observed of sets; ``models``: place of each in the arrays.

    Sets of each size learn apart, from one; what was never met at k is that of k - 1 afterwards (A12).
    """
    by_size = {k: Weights() for k in range(2, K_MAX + 1)}
    of_trainings, of_functions, among = (cells[direction][0] for direction in ("training", "function", "functions"))
    for seen in observed:
        i, victim = seen.training, measured.trainings.names[seen.training][0]
        members = [(measured.functions.names[column][0], column) for column in seen.functions]
        own = by_size[len(members)]
        beside = [Neighbour(model, float(of_trainings[i, column])) for model, column in members]
        own.learn(of_training(victim, beside), seen.training_lost)
        # One of the functions is looked at; all alike it would be the same set several times.
        j = seen.looked_at
        model, column = members[j]
        others = [Neighbour(name, float(among[column, other])) for name, other in members[:j] + members[j + 1 :]]
        training = Neighbour(victim, float(of_functions[i, column]))
        own.learn(of_function(model, [training], others), seen.function_lost)
    learned = Weights({key: value for each in by_size.values() for key, value in each.learned.items()})
    return weight_arrays(learned, models)
