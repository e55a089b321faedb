"""
What the policy of a run believes: the pair-wise predictor trained on a sample of the truth, and the weights of Eq. 3
and 4.

As on the platform: a share of all pairs of a training and a function is measured (A6; in windows of a minute, with
noise), besides the square of functions at their smallest batch and a tenth of its other batches (A7);
``ml.predict.pairwise`` predicts the rest; the weights learn from sets of several functions by A10's normalised rule.
The truth's own formula is never used for what was not measured.

``exact`` instead takes the truth's pair table, without noise or prediction.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ml.measure.rows import FEATURES
from ml.predict import pairwise
from ml.predict.samples import METRICS, SOLO, Direction, Samples
from scheduler.policy.degradation import Degradation, Table, weight_arrays
from scheduler.simulation.interference import (
    MODELS,
    BadInterferenceModel,
    Contention,
    InterferenceModel,
    Use,
    decode,
    encode,
)
from scheduler.simulation.world import Reader, World, workloads
from smore.domain.degradation import K_MAX, Neighbour, UpdateRule, Weights, of_function, of_training

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Kind = Literal["sampled", "exact", "none"]

#: Seconds of one measurement.
WINDOW_S: Final = 60.0
#: Deviation of a P99 over that of a mean, for as many normal samples: sqrt(0.99 x 0.01) over the density at the
#: quantile.
_TAIL: Final = 3.73
#: The bound of a measured cell, in deviations: 90 %.
_Z90: Final = 1.2816
_RULE: Final = UpdateRule()
#: Directions of the simulated interference. Two trainings on one GPU are simulated elsewhere
#: (scheduler/simulation/jobs).
_SIMULATED: Final[tuple[Direction, ...]] = ("training", "function", "functions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """
    ``kind``: sampled, exact, or none (nothing is known: every degradation as declared). ``fraction`` of the pairs that
    are measured; ``recipe`` of ``ml.predict.pairwise``; ``updates`` of the weights, 0: they stay one. ``bias``: what
    predicted losses of trainings are multiplied by in the end, so that the closed loop has an error to correct.
    """

    kind: Kind = "sampled"
    fraction: float = 0.2
    recipe: str = "ours"
    updates: int = 3000
    bias: float = 1.0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Belief":
        """From a preset. Raises BadWorld, which names the field."""
        reader = Reader(document, "predictor")
        belief = cls(
            kind=reader.word("kind", "sampled", get_args(Kind)),  # type: ignore[arg-type]
            fraction=reader.number("fraction", 0.2, 0.01, 1.0),
            recipe=reader.word("recipe", "ours", tuple(pairwise.RECIPES)),
            updates=reader.whole("updates", 3000, 0, 1_000_000),
            bias=reader.number("bias", 1.0, 0.01, 100.0),
        )
        reader.end()
        return belief


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """
    A :class:`scheduler.policy.degradation.Table`. ``rmsle``: of the predicted cells against the truth, by direction.
    """

    version: int
    places: Mapping[tuple[str, str], Degradation]
    rmsle: Mapping[str, float]

    def at(self, device: str, sharing_mode: str) -> Degradation | None:
        return self.places.get((device, sharing_mode))


def table(world: World, belief: Belief, seed: int) -> Table | None:
    """Of all places of a world; the same for the same seed. None for the belief ``none``."""
    if belief.kind == "none":
        return None
    places: dict[tuple[str, str], Degradation] = {}
    errors: dict[str, float] = {}
    for sevenths in sorted({gpu.sevenths for gpu in world.gpus}):
        gpu = next(gpu for gpu in world.gpus if gpu.sevenths == sevenths)
        degradation, rmsle = _place(world, sevenths, belief, seed)
        places[world.device(gpu), world.interference_model.sharing_mode] = replace(
            degradation,
            training=degradation.training * belief.bias,
            training_upper=degradation.training_upper * belief.bias,
        )
        errors |= {f"{direction}.{sevenths}": value for direction, value in rmsle.items()}
    return Tables(version=1, places=places, rmsle=errors)


@dataclass(frozen=True, slots=True)
class _Side:
    """
    Workloads of one role on a place. ``name`` without role and batch is the model's; ``uses`` as the place has them.
    """

    role: str
    names: list[tuple[str, int]]
    uses: list[Use]
    features: Floats
    solo: Floats

    def __len__(self) -> int:
        return len(self.names)

    @property
    def model(self) -> Ints:
        return np.array([MODELS.index(model) for model, _ in self.names], np.int64)


def _side(interference_model: InterferenceModel, role: str, names: Sequence[tuple[str, int]], uses: list[Use]) -> _Side:
    features = np.array([_features(interference_model, model, role, batch) for model, batch in names])
    solo = np.full((len(names), len(SOLO)), np.nan)
    for row, use in zip(solo, uses, strict=True):
        # Where a device is shared by time, what a training leaves is a wait; on a GPU it is room beside it.
        wait = use.seconds * (1.0 - use.u) if role == "training" and use.features else 0.0
        known = {
            "utilisation": use.u,
            "memory_utilisation": use.b,
            "busy_s": use.seconds - wait,
            "wait_s": wait,
            "mean_s": use.seconds * interference_model.mean,
            "p50_s": use.seconds,
            "p99_s": use.seconds * interference_model.p99,
        }
        for name, value in known.items():
            row[SOLO.index(name)] = value
    return _Side(role, list(names), uses, features, solo)


def _features(interference_model: InterferenceModel, model: str, role: str, batch: int) -> list[float]:
    measured = interference_model.use(model, role, batch).features
    if measured:
        return list(measured)
    known = workloads()[model]
    affine = {name: known[role][name][0] + known[role][name][1] * batch for name in ("flops", "memory_bytes")}
    return [float(batch if name == "batch" else affine.get(name, known.get(name))) for name in FEATURES]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """
    The truth of every pair: degradations without noise; of a training and of a function [J, F], of functions among
    themselves [F, F].
    """

    training: Floats
    function: Floats
    functions: Floats


def _sides(
    interference_model: InterferenceModel, sevenths: int, extra: tuple[tuple[str, int], ...]
) -> tuple[_Side, _Side, _Pairs]:
    """All trainings that run on a slice, all functions, and the truth of every pair of them."""
    trainings: list[tuple[str, int]] = []
    places: list[Contention] = []
    known = [model for model in MODELS if model in interference_model.demands["training"]]
    for model in known:
        for batch in interference_model.batches(model, "training"):
            try:
                places.append(interference_model.on(sevenths, (model, batch)))
            except BadInterferenceModel:
                continue
            trainings.append((model, batch))
    sizes = {
        model: set(interference_model.batches(model, "function"))
        for model in MODELS
        if model in interference_model.demands["function"]
    }
    for model, batch in extra:
        sizes[model].add(batch)
    functions = [(model, batch) for model, batches in sizes.items() for batch in sorted(batches)]
    bare = interference_model.on(sevenths, None)
    kinds = [bare.kind(*name) for name in functions]
    of_training, of_function = (np.zeros((len(trainings), len(functions))) for _ in range(2))
    for i, place in enumerate(places):
        for j, name in enumerate(functions):
            slow, (own,) = place.slowdowns([place.kind(*name)])
            of_training[i, j], of_function[i, j] = slow - 1.0, own - 1.0
    among = np.array([[bare.slowdowns([one, other])[1][0] - 1.0 for other in kinds] for one in kinds])
    victims = [place.training for place in places]
    return (
        _side(interference_model, "training", trainings, [use for use in victims if use is not None]),
        _side(interference_model, "function", functions, [bare.alone(kind) for kind in kinds]),
        _Pairs(of_training, of_function, among),
    )


@dataclass(frozen=True, slots=True)
class _PairTable:
    """
    Measured and predicted pairs of a place: direction → (expected, upper); ``gain`` [F]; ``rmsle`` of what was
    predicted.
    """

    trainings: _Side
    functions: _Side
    cells: Mapping[Direction, tuple[Floats, Floats]]
    gain: Floats
    rmsle: Mapping[str, float]


@lru_cache(maxsize=4)
def _pair_table(
    document: str,
    sevenths: int,
    extra: tuple[tuple[str, int], ...],
    kind: Kind,
    fraction: float,
    recipe: str,
    seed: int,
) -> _PairTable:
    """Of a truth (as JSON), on a slice: the same for all configurations of a preset, so it is made once for them."""
    interference_model = decode(json.loads(document))
    trainings, functions, true = _sides(interference_model, sevenths, extra)
    matrices: dict[Direction, Floats] = {
        "training": true.training,
        "function": true.function,
        "functions": true.functions,
    }
    if kind == "exact":
        cells = {direction: (matrix, matrix) for direction, matrix in matrices.items()}
        return _PairTable(
            trainings, functions, cells, _gain(trainings, functions, np.ones(true.training.shape, bool)), {}
        )
    random = np.random.default_rng([seed, 4])
    masks = _sampled(trainings, functions, fraction, random)
    bounded: dict[Direction, tuple[Floats, Floats]] = {}
    errors: dict[str, float] = {}
    for direction, matrix in matrices.items():
        mask = masks["functions" if direction == "functions" else "pairs"]
        noise = _noise(interference_model, trainings, functions, direction)
        measured = np.maximum((1.0 + matrix) * np.exp(noise * random.standard_normal(matrix.shape)) - 1.0, 0.0)
        expected, upper = _predicted(trainings, functions, direction, measured, mask, recipe, seed)
        errors[direction] = _rmsle(expected[~mask], matrix[~mask])
        # The next measurement differs by its own noise and that of the one that is known.
        bound = np.expm1(np.log1p(measured) + _Z90 * math.sqrt(2.0) * noise)
        bounded[direction] = np.where(mask, measured, expected), np.where(mask, bound, np.maximum(upper, expected))
    return _PairTable(trainings, functions, bounded, _gain(trainings, functions, masks["pairs"]), errors)


def _place(world: World, sevenths: int, belief: Belief, seed: int) -> tuple[Degradation, Mapping[str, float]]:
    interference_model = world.interference_model
    extra = tuple(sorted({(one.model, one.batch * size) for one in world.functions for size in {1, one.max_batch}}))
    document = json.dumps(encode(interference_model), sort_keys=True)
    known = _pair_table(document, sevenths, extra, belief.kind, belief.fraction, belief.recipe, seed)
    trainings, functions, cells = known.trainings, known.functions, known.cells
    gamma, alpha, beta = _weights(
        world, sevenths, trainings, functions, cells, belief.updates, np.random.default_rng([seed, 5])
    )
    batches: dict[str, list[tuple[int, int]]] = {}
    for index, (model, batch) in enumerate(functions.names):
        batches.setdefault(f"{model}/{interference_model.preset}", []).append((batch, index))
    return Degradation(
        trainings={
            f"{model}/{interference_model.preset}/training/{batch}": index
            for index, (model, batch) in enumerate(trainings.names)
        },
        batches={name: sorted(sizes) for name, sizes in batches.items()},
        training_model=trainings.model,
        function_model=functions.model,
        training=cells["training"][0],
        training_upper=cells["training"][1],
        function=cells["function"][0],
        function_upper=cells["function"][1],
        functions=cells["functions"][0],
        functions_upper=cells["functions"][1],
        gamma=gamma,
        alpha=alpha,
        beta=beta,
        gain=known.gain,
        cost=(cells["training"][0] + cells["function"][0]).mean(axis=0),
    ), known.rmsle


def _sampled(
    trainings: _Side, functions: _Side, fraction: float, random: np.random.Generator
) -> Mapping[str, NDArray[np.bool_]]:
    """Which cells are measured: a random share of training x function; functions by A7."""
    shape = len(trainings), len(functions)
    total = shape[0] * shape[1]
    pairs = np.zeros(total, bool)
    pairs[random.choice(total, max(2, round(fraction * total)), replace=False)] = True
    smallest = np.array(
        [batch == min(size for name, size in functions.names if name == model) for model, batch in functions.names]
    )
    among = smallest[:, None] & smallest[None, :]
    rest = np.flatnonzero(~among.ravel())
    tenth = np.zeros(among.size, bool)
    tenth[random.choice(rest, round(0.1 * len(rest)), replace=False)] = True
    return {"pairs": pairs.reshape(shape), "functions": among | tenth.reshape(among.shape)}


def _noise(interference_model: InterferenceModel, trainings: _Side, functions: _Side, direction: Direction) -> Floats:
    """Deviation of a measured slowdown in log space, by victim, broadcast to the direction's matrix [J or F, F]."""
    side = trainings if direction == "training" else functions
    runs = np.array([max(1.0, WINDOW_S / use.seconds) for use in side.uses])
    deviation = interference_model.noise / np.sqrt(runs) * (1.0 if METRICS[direction] == "mean" else _TAIL)
    if direction == "function":
        return np.asarray(np.broadcast_to(deviation[None, :], (len(trainings), len(functions))))
    return np.asarray(np.broadcast_to(deviation[:, None], (len(side), len(functions))))


def _pairs(
    trainings: _Side, functions: _Side, direction: Direction, row: Ints, column: Ints, target: Floats
) -> Samples:
    rows = functions if direction == "functions" else trainings
    (victims, victim), (aggressors, aggressor) = (rows, row), (functions, column)
    if direction == "function":
        (victims, victim), (aggressors, aggressor) = (functions, column), (trainings, row)
    low, high = np.minimum(row, column), np.maximum(row, column)
    return Samples(
        name="truth",
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


def _predicted(
    trainings: _Side,
    functions: _Side,
    direction: Direction,
    measured: Floats,
    mask: NDArray[np.bool_],
    recipe: str,
    seed: int,
) -> tuple[Floats, Floats]:
    row, column = np.nonzero(mask)
    fitted = pairwise.fit(_pairs(trainings, functions, direction, row, column, measured[mask]), seed, recipe=recipe)
    row, column = (index.ravel() for index in np.indices(measured.shape))
    every = _pairs(trainings, functions, direction, row, column, np.zeros(measured.size))
    return fitted.predict(every).reshape(measured.shape), fitted.upper(every).reshape(measured.shape)


def _rmsle(predicted: Floats, true: Floats) -> float:
    return float(np.sqrt(np.mean((np.log1p(predicted) - np.log1p(true)) ** 2))) if predicted.size else 0.0


def _gain(trainings: _Side, functions: _Side, measured: NDArray[np.bool_]) -> Floats:
    """
    A16 [F]: measured, utilisation together less the training's; elsewhere the function's share of what the training
    leaves.
    """
    of_training, of_function = (np.array([use.u for use in side.uses]) for side in (trainings, functions))
    together = np.minimum(1.0, of_training[:, None] + of_function[None, :]) - np.minimum(1.0, of_training)[:, None]
    left = of_function[None, :] * (1.0 - of_training[:, None])
    return np.asarray(np.where(measured, together, left).mean(axis=0))


def _weights(
    world: World,
    sevenths: int,
    trainings: _Side,
    functions: _Side,
    cells: Mapping[Direction, tuple[Floats, Floats]],
    updates: int,
    random: np.random.Generator,
) -> tuple[Floats, Floats, Floats]:
    """
    gamma, alpha and beta [K_MAX + 1, M, M] after ``updates`` observed sets of two to K_MAX of the world's functions
    beside its trainings.

    Sets of each size learn apart, from one; what was never met at k is that of k - 1 afterwards (A12).
    """
    by_size = {k: Weights() for k in range(2, K_MAX + 1)}
    pairs = sorted({gpu.training.pair for gpu in world.gpus if gpu.training is not None and gpu.sevenths == sevenths})
    names = sorted({(function.model, function.batch) for function in world.functions})
    if updates and pairs:
        places = [world.interference_model.on(sevenths, pair) for pair in pairs]
        columns = [functions.names.index(name) for name in names]
        of_trainings, of_functions, among = (cells[direction][0] for direction in _SIMULATED)
        for _ in range(updates):
            which = int(random.integers(len(pairs)))
            k = int(random.integers(2, K_MAX + 1))
            chosen = random.integers(len(names), size=k).tolist()
            place, victim, i = places[which], pairs[which][0], trainings.names.index(pairs[which])
            slow, own = place.slowdowns([place.kind(*names[number]) for number in chosen])
            noise = np.exp(world.interference_model.noise / math.sqrt(20.0) * random.standard_normal(k + 1))
            members = [(names[number][0], columns[number]) for number in chosen]
            beside = [Neighbour(model, float(of_trainings[i, column])) for model, column in members]
            weights = by_size[k]
            weights.learn(of_training(victim, beside), slow * noise[0] - 1.0, _RULE)
            # One of the functions is looked at; all alike it would be the same set several times.
            j = int(random.integers(k))
            model, looked_at = members[j]
            training = Neighbour(victim, float(of_functions[i, looked_at]))
            others = [
                Neighbour(other, float(among[looked_at, column])) for other, column in members[:j] + members[j + 1 :]
            ]
            weights.learn(of_function(model, [training], others), own[j] * noise[1 + j] - 1.0, _RULE)
    learned = Weights({key: value for weights in by_size.values() for key, value in weights.learned.items()})
    return weight_arrays(learned, {model: number for number, model in enumerate(MODELS)})
